//! What a night does with work: outcomes of agents, merges and their order, names, and what stands in a task's file.

use crate::kit::{Kit, class, read, reason, word, write};
use crate::rig::{Setup, lines_of};
use std::path::Path;
use std::time::Duration;

/// A recorded run of Claude Code.
fn recorded(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts/claude").join(name).to_string_lossy().into_owned()
}

/// A profile named `stub` that reads what Claude Code prints from the program `stub`.
const STUB: &str = "[agents.stub]\nkind = \"claude\"\nbin = \"stub\"\n";

/// Night case 2: what an agent left uncommitted is kept and merged.
#[test]
fn case_2_uncommitted_work_is_taken_in() {
    let kit = Kit::new();
    kit.unhelpful("");
    kit.script_task("t1", "", &["mkdir src; echo new > src/new.txt; echo more >> a.txt; git add a.txt; echo all done"]);
    kit.up();
    kit.merged_task("t1");
    assert_eq!(kit.on_target("src/new.txt").as_deref(), Some("new\n"));
    assert!(kit.on_target("a.txt").unwrap().ends_with("more\n"));
    kit.close();
}

/// Night case 11: a usage limit in the middle of the night holds the profile, once, and costs nobody an attempt.
#[test]
fn case_11_a_limit_storm_is_one_hold() {
    let kit = Kit::with(Setup { slots: 3, rest: STUB.into(), ..Setup::default() });
    write(&kit.home().join("limited"), "");
    let (limit, fine) = (recorded("x-oauth-usage-limit.jsonl"), recorded("write-file.jsonl"));
    kit.script(
        "stub",
        &format!(
            "cat > prompt.txt; if test -e $HOME/limited; then cat {limit}; exit 1; fi\n\
             sed -n 's/.*overnight-task\\/\\(t[0-9]*\\).*/\\1/p' prompt.txt | head -n 1 > name; rm prompt.txt\n\
             mv name \"$(cat name).txt\"; cat {fine}"
        ),
    );
    for n in 0..10 {
        kit.wish(&format!("t{n}"), &format!("---\ntitle: t{n}\nstatus: queued\nagent: stub\n---\n\nWrite a file.\n"));
    }
    kit.up();
    kit.wait("the profile is held", || kit.ok(&["events"]).contains("is held").then_some(()));
    // Everything that was under way meets the limit too, and nothing else is started.
    kit.wait("no agent runs", || {
        let lines = lines_of(&kit.status());
        lines.iter().all(|l| ["queued", "backoff"].contains(&l["phase"].as_str().unwrap())).then_some(())
    });
    let runs: usize = (0..10).map(|n| kit.agent_runs(&format!("t{n}"))).sum();
    assert!(runs <= 6, "{runs} runs met the limit");
    for n in 0..10 {
        let facts = kit.facts(&format!("t{n}"));
        assert_eq!(facts["line"]["attempt"], 0, "{}", facts["line"]);
        assert!(!["failed", "blocked"].contains(&word(&facts)), "{}", facts["line"]);
    }
    let said = kit.log().lines().filter(|l| l.contains("is held")).count();
    assert_eq!(said, 1, "{}", kit.log());
    std::fs::remove_file(kit.home().join("limited")).unwrap();
    kit.ok(&["resume"]);
    for n in 0..10 {
        kit.merged_task(&format!("t{n}"));
    }
    kit.close();
}

/// Night case 14: a conflict, and hooks of the person's that refuse, leave no half merge behind.
#[test]
fn case_14_no_half_merge_is_left() {
    let kit = Kit::new();
    for hook in ["pre-merge-commit", "commit-msg", "pre-commit", "post-checkout", "reference-transaction", "post-merge"]
    {
        let text = format!("#!/bin/sh\necho {hook} >> \"$HOME/hooked\"\nexit 1\n");
        write(&kit.code().join(".git/hooks").join(hook), &text);
        std::process::Command::new("chmod").arg("755").arg(kit.code().join(".git/hooks").join(hook)).status().unwrap();
    }
    // Both change the same line from the same start; the second waits until the first is in.
    kit.script_task("first", "", &["while ! test -e $HOME/second; do sleep 0.05; done; echo first > a.txt"]);
    kit.script_task(
        "second",
        "",
        &["touch $HOME/second; while ! test -e $HOME/go; do sleep 0.05; done; echo second > a.txt"],
    );
    kit.script_task("third", "", &["echo third > third.txt"]);
    kit.up();
    kit.merged_task("first");
    kit.merged_task("third");
    write(&kit.home().join("go"), "");
    let second = kit.settled("second");
    assert_eq!((word(&second), class(&second)), ("blocked", "merge_conflict"), "{}", second["line"]);
    assert!(reason(&second).contains("a.txt"), "{}", reason(&second));
    assert_eq!(kit.agent_runs("second"), 1);
    assert_eq!(kit.on_target("a.txt").as_deref(), Some("first\n"));
    assert_eq!(read(&kit.home().join("hooked")), "", "hooks of the person's ran");
    // Its branch is kept, and a new try starts from what is merged now.
    kit.ok(&["retry", "second"]);
    kit.merged_task("second");
    assert_eq!(kit.on_target("a.txt").as_deref(), Some("second\n"));
    kit.close();
}

/// Night case 23: agents that ask and wait.
#[test]
fn case_23_an_agent_that_asks_keeps_nobody_waiting() {
    let (ask, login) = (recorded("ask-question-text.jsonl"), recorded("x-oauth-401.jsonl"));
    let kit = Kit::with(Setup {
        limits: "wall = \"30s\"\nno_progress = \"2s\"\nfirst_event = \"2s\"\nexit_grace = \"1s\"\nkill_grace = \"1s\"",
        attempts: 1,
        rest: "[agents.tty]\nkind = \"custom\"\nbin = \"tty-agent\"\nprompt = \"file\"\nargs = [\"{prompt_file}\"]\n\
               [agents.event]\nkind = \"custom\"\nbin = \"event-agent\"\noutput = { format = \"json_lines\", text = \"text\" }\n\
               [agents.asks]\nkind = \"claude\"\nbin = \"ask-agent\"\n\
               [agents.login]\nkind = \"claude\"\nbin = \"login-agent\"\n"
            .into(),
        ..Setup::default()
    });
    kit.script(
        "tty-agent",
        "printf 'Allow external_directory? (y/n)'; read x && echo got > input.txt\n\
         (exec 3</dev/tty) 2>/dev/null && echo tty > tty.txt\nls -l /proc/self/fd/0 > stdin.txt; echo done",
    );
    kit.script("event-agent", "echo '{\"type\":\"permission\",\"text\":\"asking for permission\"}'; exec sleep 60");
    kit.script("ask-agent", &format!("cat > /dev/null; cat {ask}"));
    kit.script("login-agent", &format!("cat > /dev/null; cat {login}; exit 1"));
    for (slug, agent) in [("t1", "tty"), ("t2", "event"), ("t3", "asks"), ("t4", "login"), ("t5", "login")] {
        kit.wish(slug, &format!("---\ntitle: {slug}\nstatus: queued\nagent: {agent}\n---\n\nDo it.\n"));
    }
    kit.up();
    kit.merged_task("t1");
    assert!(kit.on_target("tty.txt").is_none(), "the agent had a terminal");
    assert!(kit.on_target("input.txt").is_none(), "the agent had an input");
    assert!(kit.on_target("stdin.txt").unwrap().contains("/dev/null"));
    let t2 = kit.settled("t2");
    assert_eq!((word(&t2), class(&t2)), ("failed", "stalled"), "{}", t2["line"]);
    let t3 = kit.settled("t3");
    assert_eq!((word(&t3), class(&t3)), ("blocked", "needs_input"), "{}", t3["line"]);
    assert!(t3["question"].as_str().unwrap().contains("Which colour"), "{}", t3["question"]);
    let board = kit.wait("the question is on the board", || {
        let board = kit.git(&kit.state_clone(), &["show", "main:tasks/README.md"]);
        board.contains("t3").then_some(board)
    });
    assert!(board.lines().any(|l| l.contains("t3") && l.contains("blocked")), "{board}");
    kit.wait("the login is held", || kit.ok(&["events"]).contains("login is held").then_some(()));
    let runs = kit.agent_runs("t4") + kit.agent_runs("t5");
    assert!(runs <= 2, "{runs} runs of a profile that nobody is logged in to");
    assert_eq!(kit.agent_runs("t3"), 1);
    kit.close();
}

/// Night case 34: forty tasks in one commit, sixteen at once, while somebody holds the person's `config.lock`.
#[test]
fn case_34_forty_worktrees_at_once() {
    let kit = Kit::with(Setup { slots: 16, ..Setup::default() });
    kit.unhelpful("");
    kit.git(&kit.state(), &["rev-parse", "HEAD"]);
    for n in 0..40 {
        kit.script_task(&format!("t{n}"), "", &[&format!("echo {n} > t{n}.txt")]);
    }
    kit.git(&kit.state(), &["add", "-A"]);
    kit.git(&kit.state(), &["commit", "-q", "-m", "Forty"]);
    let branches = kit.try_git(&kit.code(), &["config", "--local", "--get-regexp", "^branch\\."]).out;
    let lock = kit.code().join(".git/config.lock");
    kit.up();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                write(&lock, "");
                std::thread::sleep(Duration::from_millis(300));
                let _ = std::fs::remove_file(&lock);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        for n in 0..40 {
            kit.merged_task(&format!("t{n}"));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    for n in 0..40 {
        assert_eq!(kit.on_target(&format!("t{n}.txt")), Some(format!("{n}\n")));
    }
    assert_eq!(kit.agent_runs("t39"), 1);
    assert_eq!(kit.try_git(&kit.code(), &["config", "--local", "--get-regexp", "^branch\\."]).out, branches);
    let told = kit.try_git(&kit.mirror(), &["config", "--local", "--get-regexp", "^branch\\."]);
    assert_eq!(told.out, "");
    kit.wait("no task branch is left", || {
        kit.refs(&kit.mirror(), "refs/heads/overnight-task").is_empty().then_some(())
    });
    kit.close();
}

/// Night case 35: the branch that is merged is the task's own, and holds nobody else's work.
#[test]
fn case_35_a_branch_belongs_to_its_task() {
    let kit = Kit::with(Setup { attempts: 1, ..Setup::default() });
    kit.script_task(
        "t1",
        "review: true\n",
        &["echo t1 > t1.txt; git add .; git commit -qm t1; while ! test -e $HOME/off; do sleep 0.05; done; \
           git branch -f overnight-task/t2 HEAD && touch $HOME/moved"],
    );
    kit.script_task(
        "t2",
        "",
        &["git checkout -q --detach; touch $HOME/off; while ! test -e $HOME/moved; do sleep 0.05; done; \
           echo t2 > t2.txt; git add .; git commit -qm t2"],
    );
    kit.up();
    // Whoever moves another task's branch has its own held up too: from outside, each holds the other's commits.
    let t1 = kit.settled("t1");
    assert!(["review", "wrong_branch"].contains(&class(&t1)), "{}", t1["line"]);
    let t2 = kit.settled("t2");
    assert_eq!((word(&t2), class(&t2)), ("blocked", "wrong_branch"), "{}", t2["line"]);
    kit.script_task("u1", "review: true\n", &["echo u1 > u1.txt"]);
    assert_eq!(class(&kit.settled("u1")), "review");
    kit.script_task("t3", "", &["git merge -q overnight-task/u1; echo t3 > t3.txt"]);
    let t3 = kit.settled("t3");
    assert_eq!((word(&t3), class(&t3)), ("blocked", "wrong_branch"), "{}", t3["line"]);
    assert!(reason(&t3).contains("u1"), "{}", reason(&t3));
    assert!(kit.on_target("u1.txt").is_none() && kit.on_target("t3.txt").is_none());
    kit.ok(&["approve", "u1"]);
    kit.merged_task("u1");
    // What was blocked is kept when the person gives it up.
    kit.ok(&["abort", "t2"]);
    kit.wait("t2 is over", || (word(&kit.facts("t2")) == "aborted").then_some(()));
    assert!(kit.is_kept("t2.txt", "t2\n"), "t2's own commit is lost");
    kit.close();
}

/// Night case 40: the order of merges follows the graph, and one that fails in the middle stops only what needs it.
#[test]
fn case_40_a_failure_in_the_middle_stops_only_what_needs_it() {
    let kit = Kit::with(Setup { attempts: 1, slots: 6, ..Setup::default() });
    let file = |name: &str, needs: &[&str]| {
        let seen: String = needs.iter().map(|n| format!("test -f {n}.txt || exit 9; ")).collect();
        format!("{seen}echo {name} > {name}.txt")
    };
    kit.script_task("a", "", &[&file("a", &[])]);
    let b = "touch $HOME/b; while ! test -e $HOME/go; do sleep 0.05; done; echo b > shared.txt; echo b > b.txt";
    kit.script_task("b", "depends_on: [a]\n", &[b]);
    kit.script_task("c", "depends_on: [b]\n", &[&file("c", &["a", "b"])]);
    kit.script_task("d", "", &[&file("d", &[])]);
    kit.script_task("e", "depends_on: [d]\n", &[&file("e", &["d"])]);
    kit.script_task("f", "depends_on: [d]\n", &["echo f > bad"]);
    kit.script_task("g", "depends_on: [e, f]\n", &[&file("g", &["d", "e"])]);
    kit.script_task("h", "", &["while ! test -e $HOME/b; do sleep 0.05; done; echo h > shared.txt"]);
    kit.script_task("i", "", &[&file("i", &[])]);
    kit.up();
    for path in ["a", "d", "e", "h", "i"] {
        kit.merged_task(path);
    }
    write(&kit.home().join("go"), "");
    let (b, f) = (kit.settled("b"), kit.settled("f"));
    assert_eq!((word(&b), class(&b)), ("blocked", "merge_conflict"), "{}", b["line"]);
    assert_eq!((word(&f), class(&f)), ("failed", "validation_failed"), "{}", f["line"]);
    for (path, need) in [("c", "b"), ("g", "f")] {
        let facts = kit.facts(path);
        assert_eq!((word(&facts), class(&facts)), ("queued", "dependency_failed"), "{}", facts["line"]);
        assert!(facts["line"]["why"].as_str().unwrap().contains(need), "{}", facts["line"]);
        assert_eq!(kit.agent_runs(path), 0);
    }
    // Doomed tasks are revived by the retry of what they need.
    kit.ok(&["retry", "b"]);
    kit.merged_task("b");
    kit.merged_task("c");
    assert_eq!(kit.on_target("c.txt").as_deref(), Some("c\n"));
    let text =
        kit.git(&kit.mirror(), &["log", "--reverse", "--format=%(trailers:key=Overnight-Task)", "overnight/main"]);
    let at = |path: &str| text.lines().position(|l| l.starts_with(&format!("Overnight-Task: {path}@"))).unwrap();
    assert!(at("a") < at("b") && at("b") < at("c") && at("d") < at("e"), "{text}");
    kit.close();
}

/// Night case 46: nested tasks and names that git's refs cannot have beside each other.
#[test]
fn case_46_nested_tasks_have_names_of_their_own() {
    let kit = Kit::new();
    for branch in ["task", "overnight-task", "refs/heads/x"] {
        kit.git(&kit.code(), &["branch", branch]);
    }
    kit.wish("a", "---\ntitle: a\nstatus: queued\n---\n\nAll of it.\n");
    kit.wish("a/b", "---\ntitle: b\nstatus: queued\n---\n\nMore of it.\n");
    kit.script_task("a/b/c", "", &["git symbolic-ref HEAD > c.txt"]);
    kit.script_task("a/a", "", &["git symbolic-ref HEAD > aa.txt"]);
    kit.script_task("a-b", "", &["git symbolic-ref HEAD > a-b.txt"]);
    for bad in ["a.lock", "a..b", "@", "-x", "a b", "é", "lock"] {
        kit.script_task(bad, "", &["echo bad > bad-name.txt"]);
    }
    kit.up();
    for path in ["a/b/c", "a/b", "a/a", "a", "a-b"] {
        kit.merged_task(path);
    }
    let names: std::collections::BTreeSet<Option<String>> =
        ["c.txt", "aa.txt", "a-b.txt"].iter().map(|f| kit.on_target(f)).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    for name in names.into_iter().flatten() {
        assert_eq!(kit.try_git(&kit.mirror(), &["check-ref-format", name.trim()]).code, 0, "{name}");
    }
    let invalid = kit.project()["invalid"].to_string();
    for bad in ["a.lock", "a..b", "@", "-x", "a b", "lock"] {
        assert!(invalid.contains(bad), "{bad} in {invalid}");
    }
    assert!(kit.on_target("bad-name.txt").is_none());
    kit.close();
}

/// Night case 46: a branch that stands where ours would go is named before anything is made.
#[test]
fn case_46_a_branch_in_the_way_is_named_at_init() {
    let kit = Kit::new();
    let other = kit.root().join("other");
    std::fs::create_dir_all(&other).unwrap();
    kit.git(&other, &["init", "-q", "-b", "main"]);
    write(&other.join("a"), "a\n");
    kit.git(&other, &["add", "-A"]);
    kit.git(&other, &["commit", "-q", "-m", "Begin"]);
    kit.git(&other, &["branch", "overnight"]);
    let output = kit.command(crate::rig::BIN).current_dir(&other).arg("init").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("overnight"), "{said}");
    assert!(!other.join("overnight.toml").exists(), "something was written before the names were tried");
}

/// Night case 50: cycles are told once, with their path; what is no part of them goes on.
#[test]
fn case_50_cycles_are_told_once() {
    let kit = Kit::new();
    for (path, need) in [("x", "y"), ("y", "z"), ("z", "x"), ("s", "s"), ("m", "x"), ("k2", "k3")] {
        kit.script_task(path, &format!("depends_on: [{need}]\n"), &["echo never > never.txt"]);
    }
    kit.wish("p", "---\ntitle: p\nstatus: queued\ndepends_on: [p/c]\n---\n");
    kit.script_task("p/c", "depends_on: [/p]\n", &["echo never > never.txt"]);
    kit.script_task("k", "", &["echo k > k.txt"]);
    kit.up();
    kit.merged_task("k");
    // A second cycle comes while it runs.
    kit.script_task("k3", "depends_on: [k2]\n", &["echo never > never.txt"]);
    for path in ["x", "y", "z", "k2", "k3"] {
        kit.wait(&format!("{path} is in a cycle"), || (class(&kit.facts(path)) == "dependency_cycle").then_some(()));
    }
    let m = kit.facts("m");
    assert!(m["line"]["why"].as_str().unwrap().contains('x'), "{}", m["line"]);
    let cycles = kit.project()["cycles"].to_string();
    for path in ["x", "y", "z", "k2", "k3"] {
        assert!(cycles.contains(path), "{path} in {cycles}");
    }
    let s = kit.facts("s");
    let told = kit.project()["invalid"].to_string();
    assert!(class(&s) == "dependency_cycle" || told.contains("\"s\""), "{s} {told}");
    let said = kit.log().lines().filter(|l| l.contains("cycle") && l.contains('y') && l.contains('z')).count();
    assert!(said <= 2, "{said} times");
    assert!(kit.on_target("never.txt").is_none());
    kit.close();
}

/// Night case 52: prompts of every length arrive, or the one task that cannot be told its prompt says so.
#[test]
fn case_52_a_prompt_that_does_not_fit_stops_nobody_else() {
    let kit = Kit::rest(
        "[agents.argument]\nkind = \"custom\"\nbin = \"takes-argument\"\nargs = [\"{prompt}\"]\nprompt = \"argument\"\n\
         [agents.stdin]\nkind = \"custom\"\nbin = \"takes-stdin\"\nprompt = \"stdin\"\n\
         [agents.file]\nkind = \"custom\"\nbin = \"takes-file\"\nprompt = \"file\"\nargs = [\"{prompt_file}\"]\n",
    );
    let text = read(&kit.code().join("overnight.toml")).replace("attempts = 2", "attempts = 2\nbrief_budget = \"2MB\"");
    kit.write_config(&text);
    kit.approve();
    kit.commit(&[]);
    kit.script(
        "takes-argument",
        "printf %s \"$1\" | wc -c > got-$$.txt; printf %s \"$1\" | grep -q END-OF-TEXT && echo whole",
    );
    kit.script("takes-stdin", "cat > x; wc -c < x > got-$$.txt; grep -q END-OF-TEXT x || exit 3; rm x");
    kit.script("takes-file", "wc -c < \"$1\" > got-$$.txt; grep -q END-OF-TEXT \"$1\" || exit 3");
    let body = |size: usize| format!("{}\nEND-OF-TEXT\n", "x ".repeat(size / 2));
    for (slug, agent, size) in [
        ("small", "argument", 1_000),
        ("large", "argument", 200_000),
        ("after", "argument", 1_000),
        ("piped", "stdin", 300_000),
        ("filed", "file", 300_000),
    ] {
        let after = if slug == "after" { "depends_on: [small]\npriority: -5\n" } else { "" };
        let front = format!("---\ntitle: --help\nstatus: queued\nagent: {agent}\n{after}---\n\n{}", body(size));
        kit.wish(slug, &front);
    }
    kit.up();
    for path in ["small", "piped", "filed"] {
        kit.merged_task(path);
    }
    let large = kit.settled("large");
    assert_eq!(class(&large), "spawn_error", "{}", large["line"]);
    assert!(reason(&large).contains("131071"), "{}", reason(&large));
    assert!(kit.agent_runs("large") <= 1);
    kit.merged_task("after");
    kit.close();
}
