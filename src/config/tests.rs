//! Configurations read: every setting, and every way to get one wrong with the place where it is said.

#![expect(
    clippy::disallowed_methods,
    reason = "tests play the user and the machine: they start programs, wait with limits and read the environment"
)]

use super::*;
use crate::domain::chain::{Command, OnFailure, When};
use crate::domain::policy::{AgentKind, Limits, OutputFormat, PromptBy};
use proptest::prelude::*;
use std::time::Duration;

const HEAD: &str = "[project]\nname = \"p\"\nbase = \"main\"\n";

fn read_text(text: &str) -> Result<ProjectConfig, ConfigError> {
    parse(Path::new("overnight.toml"), text.as_bytes())
}

fn good(more: &str) -> ProjectConfig {
    read_text(&format!("{HEAD}{more}")).unwrap_or_else(|e| panic!("{more}\n{e}"))
}

/// The shipped file with every setting written out, and the number of lines that were taken in.
fn written_out() -> (String, usize) {
    let mut taken = 0;
    let lines: Vec<_> = SHIPPED
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => {
                taken += 1;
                rest
            }
            _ => line,
        })
        .collect();
    (lines.join("\n"), taken)
}

#[test]
fn the_shipped_file_is_sound_and_says_the_defaults() {
    let shipped = read_text(SHIPPED).unwrap_or_else(|e| panic!("{e}"));
    let least = read_text("[project]\nname = \"my-project\"\nbase = \"main\"\n").unwrap();
    let settled = |config: &ProjectConfig| ProjectConfig {
        policy: Policy { hash: String::new(), ..config.policy.clone() },
        ..config.clone()
    };
    assert_eq!(settled(&shipped), settled(&least));

    let (text, taken) = written_out();
    assert!(taken > 50, "{taken} settings");
    let full = read_text(&text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(full.state, shipped.state);
    let p = &full.policy;
    assert_eq!((p.slots, p.attempts, &*p.agent, p.brief_budget), (2, 3, "claude", 96 << 10));
    assert_eq!(p.limits, Limits::default());
    assert_eq!((&p.committer, p.max_file, &p.merge), (&shipped.policy.committer, 20 << 20, &shipped.policy.merge));
    assert_eq!(p.protect, shipped.policy.protect);
    assert_eq!(p.agents["claude"].env_pass, shipped.policy.agents["claude"].env_pass);
    assert_eq!(p.agents["mine"].prompt_by, PromptBy::File);
    assert_eq!(p.checks[0].timeout, Duration::from_secs(1800));
    let lists = [&p.chain.before, &p.chain.after, &p.chain.background, &p.chain.finally];
    assert_eq!(lists.map(Vec::len), [1, 1, 1, 1]);
}

#[test]
fn defaults_of_a_short_file() {
    let config = good("");
    assert_eq!(config.name.as_str(), "p");
    assert_eq!(config.state, Path::new("../p-state"));
    assert_eq!(config.state_folder(Path::new("/home/me/p")), Path::new("/home/me/p-state"));
    let p = config.policy;
    assert_eq!(p.merge.into, "overnight/main");
    assert!(p.merge.checks && !p.script_allowed && p.checks.is_empty());
    assert_eq!(p.hash, hash(HEAD.as_bytes()));
    let kinds: Vec<_> = p.agents.iter().map(|(name, a)| (name.as_str(), a.kind, a.slots)).collect();
    let expected = [("claude", AgentKind::Claude, 2), ("codex", AgentKind::Codex, 2), ("script", AgentKind::Script, 2)];
    assert_eq!(kinds, expected);
    assert!(p.agents["claude"].env_pass.iter().any(|v| v == "ANTHROPIC_API_KEY"));
}

const EVERYTHING: &str = r#"state = "/srv/state"
slots = 0x10
attempts = 1
agent = "mine"
brief_budget = "64 KiB"
[limits]
wall = "2h"
kill_grace = "0s"
transcript = 1000000
[agents]
script = true
[agents.codex]
model = "m"
args = ["--x"]
env_pass = ["FOO"]
env = { BAR = "1", GIT_AUTHOR_NAME = "me" }
slots = 1
max_turns = 7
[agents.fast]
kind = "claude"
[agents.mine]
kind = "custom"
bin = "/opt/agent"
prompt = "argument"
output = { format = "json_lines", session = "a.b", cost = "c" }
resume = ["--go-on", "{session}"]
[agents.runner]
kind = "script"
[[checks]]
name = "a"
run = ["x", ""]
[[checks]]
name = "b"
run = "y && z"
timeout = "90s"
[[chain.before]]
name = "s"
run = "1"
[[chain.after]]
name = "s"
prompt = "tidy\nup"
on_failure = "retry"
when = "success"
[[chain.background]]
name = "s"
run = "2"
[[chain.finally]]
name = "s"
run = "3"
when = "failure"
on_failure = "stop"
[merge]
into = "night/main"
checks = false
[git]
name = "Bot"
email = "bot@example.com"
max_file = "1GB"
[env]
pass = ["CARGO_HOME"]
"#;

#[test]
fn everything_written_arrives() {
    let config = good(EVERYTHING);
    assert_eq!(config.state_folder(Path::new("/x")), Path::new("/srv/state"));
    let p = config.policy;
    assert_eq!((p.slots, p.attempts, &*p.agent, p.brief_budget), (16, 1, "mine", 64 << 10));
    assert_eq!((p.limits.wall, p.limits.kill_grace), (Duration::from_secs(7200), Duration::ZERO));
    assert_eq!((p.limits.transcript, p.limits.no_progress), (1_000_000, Duration::from_secs(1200)));
    let codex = &p.agents["codex"];
    assert_eq!((codex.kind, codex.model.as_deref(), &codex.args), (AgentKind::Codex, Some("m"), &vec!["--x".into()]));
    assert!(codex.env_pass.contains(&"FOO".into()) && codex.env_pass.contains(&"CODEX_HOME".into()));
    assert_eq!((codex.env["BAR"].as_str(), codex.slots, codex.max_turns), ("1", 1, Some(7)));
    assert_eq!((p.agents["fast"].kind, &*p.agents["fast"].bin), (AgentKind::Claude, "claude"));
    let mine = &p.agents["mine"];
    assert_eq!((&*mine.bin, mine.prompt_by, mine.resume.len()), ("/opt/agent", PromptBy::Argument, 2));
    let OutputFormat::JsonLines { session, text, cost, .. } = &mine.output else { panic!("{:?}", mine.output) };
    assert_eq!((session.as_deref(), text.as_deref(), cost.as_deref()), (Some("a.b"), None, Some("c")));
    assert_eq!(p.agents["runner"].kind, AgentKind::Script);
    assert_eq!(p.checks[0].run, Command::Argv(vec!["x".into(), String::new()]));
    assert_eq!((&p.checks[1].run, p.checks[1].timeout), (&Command::Shell("y && z".into()), Duration::from_secs(90)));
    let steps = [&p.chain.before[0], &p.chain.after[0], &p.chain.background[0], &p.chain.finally[0]];
    let failures = [OnFailure::Stop, OnFailure::Retry, OnFailure::Log, OnFailure::Stop];
    assert_eq!(steps.map(|s| s.on_failure), failures);
    assert_eq!(steps.map(|s| s.when), [When::Always, When::Success, When::Always, When::Failure]);
    assert_eq!(steps[1].prompt.as_deref(), Some("tidy\nup"));
    assert_eq!((&*p.merge.into, p.merge.checks, p.max_file), ("night/main", false, 1 << 30));
    assert_eq!((p.committer.0.as_str(), p.env_pass), ("Bot", vec!["CARGO_HOME".to_owned()]));
}

/// What is written after a sound `[project]` of three lines, the line that is named, the key, and words of the message.
const WRONG: &[(&str, usize, &str, &str)] = &[
    ("slotz = 3", 4, "project.slotz", "unknown key (did you mean `slots`?)"),
    ("max_paralel = 3", 4, "project.max_paralel", "unknown key (known here: name, base, state"),
    ("slots = \"four\"", 4, "project.slots", "a whole number is expected, found a string"),
    ("slots = 0", 4, "project.slots", "0 is outside 1 to 512"),
    ("slots = 513", 4, "project.slots", "513 is outside"),
    ("slots = -1", 4, "project.slots", "-1 is outside"),
    ("slots = 1e9", 4, "project.slots", "found a float"),
    ("slots = 99999999999999999999999", 4, "project.slots", "too large"),
    ("attempts = 0", 4, "project.attempts", "outside 1 to 20"),
    ("attempts = 21", 4, "project.attempts", "outside 1 to 20"),
    ("slots = 2\nslots = 3", 5, "slots", "is there twice, first in line 4"),
    ("agent = \"claud\"", 4, "project.agent", "no agent is called \"claud\" (there are claude, codex, script"),
    ("agent = \"script\"", 4, "project.agent", "the script agent is off"),
    ("state = \"~/x\"", 4, "project.state", "not expanded"),
    ("state = \".\"", 4, "project.state", "cannot be the code repo itself"),
    ("brief_budget = \"big\"", 4, "project.brief_budget", "is no size"),
    ("brief_budget = -5", 4, "project.brief_budget", "is no size"),
    ("brief_budget = \"1KB\"", 4, "project.brief_budget", "outside 4096"),
    ("brief_budget = \"99999999999999GB\"", 4, "project.brief_budget", "is no size"),
    ("[limits]\nwal = \"1h\"", 5, "limits.wal", "did you mean `wall`?"),
    ("[limits]\nno-progress = \"1h\"", 5, "limits.no-progress", "did you mean `no_progress`?"),
    ("[limits]\nwall = \"10\"", 5, "limits.wall", "a whole number and a unit"),
    ("[limits]\nwall = 10", 5, "limits.wall", "a duration is expected, found an integer (write a whole number"),
    ("[limits]\nwall = \"-5m\"", 5, "limits.wall", "is no duration"),
    ("[limits]\nwall = \"99999999999h\"", 5, "limits.wall", "longer than a year"),
    ("[limits]\nwall = \"0s\"", 5, "limits.wall", "shorter than 1s"),
    ("[limits]\nwall = \"1h\"\n[limits]\nwall = \"2h\"", 6, "limits", "is there twice, first in line 4"),
    ("[limit]\nwall = \"1h\"", 4, "limit", "did you mean `limits`?"),
    ("limits = 3", 4, "project.limits", "unknown key"),
    ("[agents]\nscripts = true", 5, "agents.scripts", "did you mean `script`?"),
    ("[agents]\nscript = \"yes\"", 5, "agents.script", "true or false is expected"),
    ("[agents.script]\nbin = \"x\"", 4, "agents.script", "true or false is expected, found a table"),
    ("[agents.x]\nmodel = \"m\"", 4, "agents.x", "needs a kind"),
    ("[agents.x]\nkind = \"cluade\"", 5, "agents.x.kind", "did you mean \"claude\"?"),
    ("[agents.x]\nkind = \"custom\"", 4, "agents.x.bin", "is missing"),
    ("[agents.x]\nkind = \"script\"", 4, "agents.x", "is off here"),
    ("[agents.claude]\nkind = \"codex\"", 5, "agents.claude.kind", "another kind needs another name"),
    ("[agents.claude]\nmodell = \"m\"", 5, "agents.claude.modell", "did you mean `model`?"),
    ("[agents.claude]\nprompt = \"stdin\"", 5, "agents.claude.prompt", "only for agents of kind \"custom\""),
    ("[agents.claude]\n[agents.claude]", 5, "agents.claude", "is there twice, first in line 4"),
    ("[agents.\"My Agent\"]\nkind = \"codex\"", 4, "agents.My Agent", "\"my-agent\" would do"),
    ("[agents.x]\nkind=\"custom\"\nbin=\"x\"\nprompt=\"file\"", 7, "agents.x.prompt", "{prompt_file}"),
    ("[agents.x]\nkind=\"custom\"\nbin=\"x\"\nresume=[\"-r\"]", 7, "agents.x.resume", "{session}"),
    (
        "[agents.x]\nkind=\"custom\"\nbin=\"x\"\noutput=\"xml\"",
        7,
        "agents.x.output",
        "not one of \"text\", \"json_lines\"",
    ),
    ("[agents.x]\nkind=\"custom\"\nbin=\"x\"\noutput={session=\"a\"}", 7, "agents.x.output.format", "is missing"),
    (
        "[agents.x]\nkind=\"custom\"\nbin=\"x\"\noutput={format=\"text\",sesion=\"a\"}",
        7,
        "agents.x.output.sesion",
        "unknown",
    ),
    (
        "[agents.x]\nkind=\"custom\"\nbin=\"x\"\noutput={format=\"json_lines\",cost=\"a..b\"}",
        7,
        "agents.x.output.cost",
        "no path",
    ),
    ("[agents.codex]\nargs = [\"a\", 3]", 5, "agents.codex.args", "a string is expected"),
    ("[agents.codex]\nslots = 0", 5, "agents.codex.slots", "outside"),
    ("[agents.codex]\nmax_turns = 0", 5, "agents.codex.max_turns", "outside"),
    ("[agents.codex]\nbin = \"\"", 5, "agents.codex.bin", "is empty"),
    ("[agents.codex]\nbin = \"a\\nb\"", 5, "agents.codex.bin", "control character"),
    ("[agents.codex]\nargs = [\"a\\u0000\"]", 5, "agents.codex.args", "NUL"),
    ("[agents.codex]\nenv_pass = [\"A=B\"]", 5, "agents.codex.env_pass", "no name of an environment variable"),
    ("[agents.codex]\nenv = { OVERNIGHT_RUN = \"x\" }", 5, "agents.codex.env.OVERNIGHT_RUN", "set by the daemon"),
    ("[agents.codex.env]\nA = 3", 5, "agents.codex.env.A", "a string is expected"),
    ("[[checks]]\nname = \"a\"", 4, "checks[1].run", "is missing"),
    ("[[checks]]\nrun = \"a\"", 4, "checks[1].name", "is missing"),
    ("[[checks]]\nname = \"a\"\nrun = \" \"", 6, "checks[1].run", "empty command"),
    ("[[checks]]\nname = \"a\"\nrun = []", 6, "checks[1].run", "empty command"),
    ("[[checks]]\nname = \"a\"\nrun = [\"\"]", 6, "checks[1].run", "empty command"),
    ("[[checks]]\nname = \"a\"\nrun = 3", 6, "checks[1].run", "a string or a list of strings"),
    ("[[checks]]\nname = \"A b\"\nrun = \"x\"", 5, "checks[1].name", "\"a-b\" would do"),
    (
        "[[checks]]\nname = \"a\"\nrun = \"x\"\n[[checks]]\nname = \"a\"\nrun = \"y\"",
        8,
        "checks[2].name",
        "\"a\" is already the name of the check in line 5",
    ),
    ("[checks]\nname = \"a\"", 4, "checks", "an array of tables is expected, found a table"),
    ("[[chain.befor]]\nname = \"a\"", 4, "chain.befor", "did you mean `before`?"),
    ("[[chain.before]]\nname = \"a\"", 4, "chain.before[1].run", "is missing"),
    ("[[chain.before]]\nname = \"a\"\nrun = \"x\"\nprompt = \"y\"", 7, "chain.before[1].prompt", "not both"),
    ("[[chain.before]]\nname = \"a\"\nprompt = \"\"", 6, "chain.before[1].prompt", "is empty"),
    (
        "[[chain.after]]\nname = \"a\"\nrun = \"x\"\n[[chain.after]]\nname = \"a\"\nrun = \"x\"",
        8,
        "chain.after[2].name",
        "the step in line 5",
    ),
    ("[[chain.after]]\nname=\"a\"\nrun=\"x\"\non_failure=\"stopp\"", 7, "chain.after[1].on_failure", "did you mean"),
    ("[[chain.after]]\nname=\"a\"\nrun=\"x\"\nwhen=\"failure\"", 7, "chain.after[1].when", "does not fit"),
    ("[[chain.background]]\nname=\"a\"\nrun=\"x\"\non_failure=\"stop\"", 7, "chain.background[1].on_failure", "noted"),
    ("[[chain.background]]\nname=\"a\"\nprompt=\"x\"", 6, "chain.background[1].prompt", "is a command"),
    ("[[chain.finally]]\nname=\"a\"\nrun=\"x\"\non_failure=\"retry\"", 7, "chain.finally[1].on_failure", "runs once"),
    ("[merge]\ninto = \"main\"", 5, "merge.into", "is the base branch"),
    ("[merge]\ninto = \"main/night\"", 5, "merge.into", "beside the base branch"),
    ("[merge]\ninto = \"a..b\"", 5, "merge.into", "no legal branch name"),
    ("[merge]\ninto = \"overnight-task/x\"", 5, "merge.into", "tasks work on"),
    ("[merge]\ncheck = true", 5, "merge.check", "did you mean `checks`?"),
    ("[git]\nemail = \"<x>\"", 5, "git.email", "which a commit cannot"),
    ("[git]\nmax_file = true", 5, "git.max_file", "a size is expected, found a boolean"),
    ("[protect]\npaths = [\"!a\"]", 5, "protect.paths", "is no pattern of paths"),
    ("[protect]\ntests = 1", 5, "protect.tests", "true or false"),
    ("[env]\npass = \"A\"", 5, "env.pass", "a list of strings is expected"),
    ("[env]\npass = [\"1A\"]", 5, "env.pass", "no name of an environment variable"),
    ("[nightly]", 4, "nightly", "unknown key"),
    ("[limits\nwall = 1", 4, "", ""),
    ("slots = ", 4, "", ""),
    ("x = \"unclosed", 4, "", ""),
];

#[test]
fn every_wrong_thing_is_named_with_its_place() {
    for (more, line, key, words) in WRONG {
        let error = read_text(&format!("{HEAD}{more}\n")).map(|_| ()).expect_err(more);
        let found = error.problems.iter().any(|p| {
            let said = format!("{} ({})", p.text, p.help.as_deref().unwrap_or_default());
            p.line == *line && p.key == *key && p.column > 0 && said.contains(words)
        });
        assert!(found, "{more:?}\nexpected line {line} {key:?} {words:?}, got:\n{error}");
        assert!(error.problems.len() <= 2, "{more:?}: one mistake, one message:\n{error}");
    }
}

#[test]
fn the_project_section_itself() {
    for (text, line, key, words) in [
        ("", 1, "project", "is missing"),
        ("# nothing\n", 1, "project", "is missing"),
        ("[project]\n", 1, "project.name", "is missing"),
        ("[project]\nname = \"x\"\n", 1, "project.base", "is missing"),
        ("project = 3", 1, "project", "a table is expected"),
        ("[project]\nname = \"My App\"\nbase = \"main\"", 2, "project.name", "\"my-app\" would do"),
        ("[project]\nname = \"lock\"\nbase = \"main\"", 2, "project.name", "not \"lock\""),
        ("[project]\nname = \"x\"\nbase = \"refs/heads/main\"", 3, "project.base", "without refs/heads/"),
        ("[project]\nname = \"x\"\nbase = \"overnight/main\"", 3, "project.base", "merged into"),
        ("[project]\nname = \"x\"\nbase = \"overnight\"", 3, "project.base", "beside the base branch"),
    ] {
        let error = read_text(text).expect_err(text);
        let found = error.problems.iter().find(|p| p.key == key).unwrap_or_else(|| panic!("{text:?}\n{error}"));
        let said = format!("{} ({})", found.text, found.help.as_deref().unwrap_or_default());
        assert!(found.line == line && said.contains(words), "{text:?}\n{error}");
    }
}

#[test]
fn all_problems_come_at_once_in_the_order_of_lines_one_a_line() {
    let text =
        "[project]\nname = \"A\"\nslots = 0\nslotz = 1\n[limits]\nwall = \"10\"\n[[checks]]\nrun = \"\\u001b[2J\"\n";
    let error = read_text(text).unwrap_err();
    let lines: Vec<_> = error.problems.iter().map(|p| p.line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 6, 7], "{error}");
    let shown = error.to_string();
    assert_eq!(shown.lines().count(), lines.len());
    assert!(shown.contains("overnight.toml:3:9: project.slots: 0 is outside 1 to 512"), "{shown}");
    let hostile = read_text("[project]\n\"a\\nb\\u001b[2J\" = 1\n").unwrap_err();
    assert_eq!(hostile.to_string().lines().count(), hostile.problems.len());
    assert!(!hostile.to_string().contains('\x1b'));
}

#[test]
fn columns_count_characters_and_bytes_that_are_no_text_are_said() {
    let error = read_text(&format!("env = {{ \"é\" = 1, pass = 3 }}\n{HEAD}")).unwrap_err();
    let columns: Vec<_> = error.problems.iter().map(|p| (p.line, p.column, p.key.as_str())).collect();
    assert_eq!(columns, [(1, 9, "env.é"), (1, 25, "env.pass")]);
    let error = parse(Path::new("f"), b"[project]\nname = \"\xff\"").unwrap_err();
    assert_eq!(error.to_string(), "f:2:9: is not UTF-8");
    let error = parse(Path::new("f"), &vec![b'#'; MAX_BYTES + 1]).unwrap_err();
    assert!(error.to_string().contains("larger than"));
    assert!(parse(Path::new("f"), format!("\u{feff}{HEAD}").as_bytes()).is_ok(), "a byte order mark is no content");
}

#[test]
fn huge_and_deep_files_end_soon_with_a_bounded_list() {
    let start = std::time::Instant::now();
    let fill = |line: &dyn Fn(usize) -> String| -> String {
        let mut room = MAX_BYTES - HEAD.len();
        let fits = |line: &String| room.checked_sub(line.len()).map(|rest| room = rest).is_some();
        std::iter::once(HEAD.to_owned()).chain((0..).map(line).take_while(fits)).collect()
    };
    for text in [
        fill(&|i| format!("k{i} = 1\n")),
        fill(&|_| "slots = 2\n".into()),
        fill(&|_| "[limits]\n".into()),
        fill(&|_| "[[checks]]\nname = \"a\"\nrun = \"x\"\n".into()),
        fill(&|_| "]".into()),
        format!("{HEAD}x = {}", "[".repeat(500_000)),
        format!("{HEAD}x = {}", "{a=".repeat(300_000)),
        format!("{HEAD}{} = 1", "a.".repeat(400_000)),
    ] {
        let error = read_text(&text).unwrap_err();
        assert!((1..=101).contains(&error.problems.len()));
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn a_file_that_cannot_be_read_is_a_problem_like_any_other() {
    let top = tempfile::tempdir().unwrap();
    let missing = load(&top.path().join("overnight.toml")).unwrap_err().to_string();
    assert!(missing.contains("does not exist (`overnight init` writes one)"), "{missing}");
    assert!(load(top.path()).unwrap_err().to_string().contains("is no regular file"));
    let file = top.path().join("overnight.toml");
    std::fs::write(&file, HEAD).unwrap();
    assert_eq!(load(&file).unwrap().name.as_str(), "p");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any damage gives a configuration or problems with places inside the file, never a panic.
    #[test]
    fn damaged_files_are_told_apart(
        written in any::<bool>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..4u8, any::<u8>(), 1..40usize), 1..8),
    ) {
        let mut bytes = if written { written_out().0.into_bytes() } else { SHIPPED.as_bytes().to_vec() };
        for (at, what, byte, length) in edits {
            let at = at.index(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
            let end = (at + length).min(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => drop(bytes.drain(at..end)),
                2 => { let part = bytes[at..end].to_vec(); bytes.splice(at..at, part); }
                _ => bytes.insert(at, b"[]{}\"'=,.#\n-0_"[usize::from(byte) % 14]),
            }
            if bytes.is_empty() { break; }
        }
        let lines = bytes.split(|b| *b == b'\n').count();
        if let Err(error) = parse(Path::new("f"), &bytes) {
            prop_assert!(!error.problems.is_empty());
            for problem in &error.problems {
                prop_assert!(problem.line <= lines, "{} of {lines}", problem.line);
            }
            prop_assert_eq!(error.to_string().lines().count(), error.problems.len());
        }
    }
}
