//! What agents and checks do to processes, pipes and output: nothing of it holds up the night or outlives its run.

use crate::rig::{Rig, Setup, lines_of, signal, text};
use overnight::text::task_file::NewTask;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);

/// A rig whose agents are the scripts given by name; each is a custom agent that gets its prompt on standard input.
fn rig_of(agents: &[(&str, &str)], limits: &'static str) -> Rig {
    let rig = Rig::new();
    let mut rest = String::new();
    for (name, script) in agents {
        let bin = rig.script(name, script);
        let _ = write!(rest, "[agents.{name}]\nkind = \"custom\"\nbin = \"{}\"\n\n", bin.display());
    }
    let mut setup = Setup { rest, attempts: 1, ..Setup::default() };
    if !limits.is_empty() {
        setup.limits = limits;
    }
    rig.write_config(&rig.config(&setup));
    rig.approve();
    rig
}

const SHORT: &str =
    "wall = \"2s\"\nno_progress = \"20s\"\nfirst_event = \"20s\"\nexit_grace = \"1s\"\nkill_grace = \"1s\"";

fn reason(rig: &Rig, slug: &str) -> String {
    let line = rig.line(slug).unwrap_or_default();
    text(&line["reason"]["class"])
}

/// Waits until no process of the rig but the daemon is left.
fn until_alone(rig: &Rig, limit: Duration) {
    let end = Instant::now() + limit;
    loop {
        let left = rig.processes();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "still there: {left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// PROC-PIPE-HELD, B02: what an agent leaves behind holds its pipes; the run is judged by the agent's own end, the rest is
/// ended and named, and the next task starts.
#[test]
fn a_leftover_that_holds_the_pipes_is_ended_and_named() {
    let rig = Rig::with(&Setup { slots: 1, ..Setup::default() });
    rig.task("t1", &["echo x > x.txt", "sleep 600 & setsid sleep 601 & sleep 0.1; echo said-before-the-end"]);
    rig.task("t2", &["echo y > y.txt"]);
    let begun = Instant::now();
    let _daemon = rig.start();
    rig.until_word("t1", "completed", SOON);
    rig.until_word("t2", "completed", SOON);
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(rig.ok(&["logs", "t1"]).contains("said-before-the-end"));
    let events = rig.ok(&["events", "--task", "t1"]);
    assert!(events.contains("sleep 600") && events.contains("sleep 601"), "{events}");
    until_alone(&rig, Duration::from_secs(15));
    rig.end_checks();
}

/// PROC-GROUP-SURVIVOR, B01, B03: at the limit the whole tree goes: a member that ignores TERM, and one that forks on and
/// on, bounded here to some dozens at once.
#[test]
fn a_tree_that_resists_term_and_forks_on_is_ended_at_the_limit() {
    let stubborn = r#"cat >/dev/null
sh -c 'trap "" TERM INT HUP; while :; do sleep 0.2; done' &
sh -c 'n=0; while [ $n -lt 200 ]; do n=$((n+1)); sleep 20 & sleep 0.02; done' &
echo started; wait"#;
    let rig = rig_of(&[("stubborn", stubborn)], SHORT);
    for slug in ["t1", "t2", "t3"] {
        rig.agent_task(slug, "stubborn");
    }
    let _daemon = rig.start();
    for slug in ["t1", "t2", "t3"] {
        rig.until_word(slug, "failed", SOON);
        assert_eq!(reason(&rig, slug), "timeout", "{:?}", rig.line(slug));
    }
    until_alone(&rig, Duration::from_secs(15));
    rig.end_checks();
}

/// PROC-SETSID: helpers that leave the session, close their streams or call themselves otherwise are ended too; the
/// tester's own process of another session lives.
#[test]
fn helpers_that_leave_the_session_are_ended_and_strangers_are_not() {
    let helpers = r#"cat >/dev/null
setsid sh -c 'while :; do date >> "$HOME/../helper-beat"; sleep 0.1; done' >/dev/null 2>&1 </dev/null &
( setsid sh -c 'exec sleep 700' >/dev/null 2>&1 </dev/null & )
bash -c 'exec -a sshd sleep 701' &
sleep 0.3
echo x > "$OVERNIGHT_TASK.txt"
if [ "$OVERNIGHT_TASK" = t2 ]; then echo waiting; sleep 100; fi
echo finished"#;
    let rig = rig_of(&[("helpers", helpers)], "");
    let mut stranger = std::process::Command::new("setsid").args(["sleep", "60"]).spawn().unwrap();
    rig.agent_task("t1", "helpers");
    rig.agent_task("t2", "helpers");
    let _daemon = rig.start();
    rig.until_word("t1", "completed", SOON);
    rig.until_phase("t2", "running", SOON);
    rig.ok(&["cancel", "t2"]);
    rig.until_word("t2", "aborted", SOON);
    until_alone(&rig, Duration::from_secs(15));
    let beats = rig.lines("helper-beat").len();
    // Six times the pace of a helper that lives.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.lines("helper-beat").len(), beats);
    assert!(stranger.try_wait().unwrap().is_none(), "a stranger was ended");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    rig.end_checks();
}

/// OUT-BADUTF8, B06: bytes that are no text, a character in two halves, a last line without an end.
#[test]
fn bad_bytes_are_kept_and_shown_harmlessly() {
    let bad = r#"cat >/dev/null
echo ok1
printf '\377\376\227 \303\n'
printf 'half: \303'; sleep 0.2; printf '\244!\n'
printf 'nul:a\000b esc:\033[31mred\033[0m\n'
yes 'an ordinary line of output to fill the pipe' | head -c 3000000
yes 'an ordinary line of errors to fill the pipe' | head -c 3000000 >&2
echo x > x.txt
printf 'ok2 without an end'"#;
    let rig = rig_of(&[("bad", bad)], "");
    rig.agent_task("t1", "bad");
    let _daemon = rig.start();
    rig.until_word("t1", "completed", SOON);
    let shown = rig.ok(&["logs", "t1"]);
    assert!(shown.contains("ok1") && shown.contains("half: ä!"), "{}", &shown[..500.min(shown.len())]);
    assert!(shown.contains("ok2 without an end"));
    assert!(!shown.contains('\u{1b}') && !shown.contains('\0'));
    let json = rig.ok(&["logs", "t1", "--json"]);
    for line in json.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    let raw: u64 = bytes_of_runs(&rig, "out.");
    assert!(raw >= 6_000_000, "{raw}");
    rig.end_checks();
}

/// PROC-STDIN, B07: the prompt arrives whole and then ends; one who closes early breaks nothing; steps and checks get
/// nothing at all. The daemon's own standard input is a FIFO that nobody writes.
#[test]
fn standard_input_is_the_prompt_and_its_end() {
    let reads = "cat > \"$HOME/../prompt-$OVERNIGHT_TASK\"; ls -l /proc/$$/fd/0 >> \"$HOME/../stdin\"; echo x > \"$OVERNIGHT_TASK.txt\"; echo finished";
    let early = "head -c 10 >/dev/null; exec <&-; sleep 0.3; echo x > \"$OVERNIGHT_TASK.txt\"; echo finished";
    let by_argument = "cat >/dev/null; echo x > \"$OVERNIGHT_TASK.txt\"; echo finished";
    let rig = rig_of(&[("reads", reads), ("early", early), ("argument", by_argument)], "");
    let mut config = std::fs::read_to_string(rig.code().join("overnight.toml")).unwrap();
    config = config.replace("[agents.argument]\n", "[agents.argument]\nprompt = \"argument\"\n");
    config = config.replace("[project]\n", "[project]\nbrief_budget = \"4MB\"\n");
    config.push_str("[[chain.before]]\nname = \"stdin\"\nrun = \"cat; ls -l /proc/self/fd/0 >> $HOME/../stdin\"\n");
    rig.write_config(&config);
    rig.approve();
    let long: String = (0..12_000).map(|n| format!("line {n} of a very long description of the work\n")).collect();
    rig.task_file("t2", NewTask { agent: Some("reads".into()), description: long, ..NewTask::default() });
    rig.agent_task("t3", "early");
    rig.agent_task("t1", "argument");
    let fifo = rig.root().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let held = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let _daemon = rig.start_with_stdin(held);
    for slug in ["t1", "t2", "t3"] {
        rig.until_word(slug, "completed", SOON);
    }
    let prompt = std::fs::read_to_string(rig.root().join("prompt-t2")).unwrap();
    assert!(prompt.contains("line 0 of a very") && prompt.contains("line 11999 of a very"), "{} bytes", prompt.len());
    assert!(!rig.lines("stdin").iter().any(|l| l.contains("fifo")), "{:?}", rig.lines("stdin"));
    rig.end_checks();
}

/// OUT-HUGE-LINE, B05: 50 MB on one line, then a result. The daemon stays small and the log obeys its cap.
#[test]
fn fifty_megabytes_on_one_line_cost_no_memory() {
    let huge = r#"cat >/dev/null
echo '{"text":"begun"}'
head -c 50000000 /dev/zero | tr '\0' a
echo
echo '{"text":"the end"}'
echo x > x.txt"#;
    let rig =
        rig_of(&[("huge", huge)], "wall = \"30s\"\nno_progress = \"20s\"\nfirst_event = \"20s\"\ntranscript = \"1MB\"");
    let config = std::fs::read_to_string(rig.code().join("overnight.toml")).unwrap();
    let output = "[agents.huge]\noutput = { format = \"json_lines\", text = \"text\" }\n";
    rig.write_config(&config.replace("[agents.huge]\n", output));
    rig.approve();
    rig.agent_task("t1", "huge");
    let daemon = rig.start();
    rig.until_word("t1", "completed", SOON);
    let peak = daemon.memory_kib("VmHWM");
    assert!(peak < 150 * 1024, "{peak} KiB");
    let kept = bytes_of_runs(&rig, "out.");
    assert!(kept < 3 << 20, "{kept} bytes are kept");
    let shown = rig.ok(&["logs", "t1"]);
    assert!(shown.contains("the end"), "{}", &shown[shown.len().saturating_sub(500)..]);
    rig.end_checks();
}

/// OUT-STDERR-FLOOD: a flood on one stream never holds up the other; a closed stream is not the end.
#[test]
fn floods_and_closed_streams_stop_nobody() {
    let flood = "cat >/dev/null; head -c 10000000 /dev/zero | tr '\\0' e >&2; echo out; echo x > f.txt";
    let closed = "cat >/dev/null; exec >&-; n=0; while [ $n -lt 10 ]; do echo e$n >&2; n=$((n+1)); sleep 0.1; done; echo x > c.txt";
    let both =
        "cat >/dev/null; n=0; while [ $n -lt 1000 ]; do echo o$n; echo e$n >&2; n=$((n+1)); done; echo x > b.txt";
    let away = "cat >/dev/null; exec > mine.log 2>&1; sleep 1; echo x > a2.txt";
    let rig = rig_of(&[("flood", flood), ("closed", closed), ("both", both), ("away", away)], "");
    for name in ["flood", "closed", "both", "away"] {
        rig.agent_task(name, name);
    }
    let _daemon = rig.start();
    for name in ["flood", "closed", "both", "away"] {
        rig.until_word(name, "completed", Duration::from_secs(15));
    }
    let shown = rig.ok(&["logs", "both"]);
    for stream in ["o", "e"] {
        let at: Vec<usize> = (0..1000).step_by(37).filter_map(|n| shown.find(&format!("{stream}{n}\n"))).collect();
        assert!(at.len() >= 27 && at.windows(2).all(|w| w[0] < w[1]), "{stream}: {at:?}");
    }
    rig.end_checks();
}

/// PROC-SIGMASK, B10: what children inherit: clean signals, nothing of the operator's environment.
#[test]
fn children_start_with_clean_signals_and_a_clean_environment() {
    let looks = r#"cat >/dev/null
grep -E '^Sig(Blk|Ign)' /proc/self/status > "$HOME/../signals"
env > "$HOME/../env-agent"
yes | head -1 >/dev/null; echo "pipe $?" >> "$HOME/../signals"
umask >> "$HOME/../signals"
echo x > x.txt; echo finished"#;
    let rig = rig_of(&[("looks", looks), ("seven", "cat >/dev/null; exit 7")], "");
    let mut config = std::fs::read_to_string(rig.code().join("overnight.toml")).unwrap();
    config.push_str("[[chain.after]]\nname = \"env\"\nrun = \"env > $HOME/../env-step\"\n");
    rig.write_config(&config);
    rig.approve();
    rig.set_env("SECRET_X", "1");
    rig.set_env("GIT_DIR", "/nonexistent");
    rig.set_env("OVERNIGHT_TOKEN", "t");
    rig.agent_task("t1", "looks");
    rig.agent_task("t7", "seven");
    let wrapper = rig.script("hostile-start", "trap '' INT HUP PIPE CHLD; umask 0777; exec \"$@\"");
    let _daemon = rig.start_under(&[wrapper.to_str().unwrap()]);
    rig.until_word("t1", "completed", SOON);
    rig.until_word("t7", "failed", SOON);
    let signals = rig.lines("signals");
    assert!(signals.iter().filter(|l| l.starts_with("Sig")).all(|l| l.ends_with("0000000000000000")), "{signals:?}");
    assert!(signals.contains(&"pipe 0".to_owned()) && signals.contains(&"0022".to_owned()), "{signals:?}");
    for file in ["env-agent", "env-step"] {
        let env = rig.lines(file);
        assert!(env.iter().any(|l| l.starts_with("PATH=")), "{env:?}");
        let strange =
            |l: &&String| ["SECRET_X=", "GIT_DIR=", "OVERNIGHT_TOKEN=", "RIG_ID="].iter().any(|p| l.starts_with(p));
        assert_eq!(env.iter().filter(strange).count(), 0, "{env:?}");
    }
    assert!(
        rig.ok(&["why", "t7"]).contains("exit status 7") || rig.ok(&["why", "t7"]).contains("exit 7"),
        "{}",
        rig.ok(&["why", "t7"])
    );
    rig.unset_env("GIT_DIR");
    rig.end_checks();
}

/// B04: a check that hangs with a child of its own is stopped at its own limit, which is not a failure of the same kind;
/// the next task starts.
#[test]
fn a_check_that_hangs_is_stopped_at_its_limit() {
    let rig = Rig::with(&Setup { slots: 1, attempts: 1, ..Setup::default() });
    let config = std::fs::read_to_string(rig.code().join("overnight.toml")).unwrap();
    let slow = "[[checks]]\nname = \"slow\"\nrun = \"if [ -e hang ]; then sleep 1000 & wait; fi\"\ntimeout = \"1s\"\n\n[[checks]]";
    rig.write_config(&config.replacen("[[checks]]", slow, 1));
    rig.approve();
    rig.task("t1", &["echo x > hang"]);
    rig.task("t2", &["echo y > y.txt"]);
    let _daemon = rig.start();
    rig.until_word("t1", "failed", SOON);
    assert!(rig.ok(&["why", "t1"]).contains("limit"), "{}", rig.ok(&["why", "t1"]));
    rig.until_word("t2", "completed", SOON);
    until_alone(&rig, Duration::from_secs(15));
    rig.end_checks();
}

/// B08: a program that is not there makes its agent unusable; the task waits and spends no attempt, others work, and when
/// it is there and a person says go on, it runs.
#[test]
fn a_missing_agent_holds_its_tasks_and_spends_nothing() {
    let rig = rig_of(&[("gone", "cat >/dev/null; echo x > \"$OVERNIGHT_TASK.txt\"; echo finished")], "");
    let there = rig.bin().join("gone");
    let away = rig.bin().join("gone-for-now");
    std::fs::rename(&there, &away).unwrap();
    rig.agent_task("t1", "gone");
    rig.agent_task("t2", "gone");
    rig.task("t3", &["echo x > t3.txt"]);
    let _daemon = rig.start();
    rig.until_word("t3", "completed", SOON);
    rig.until("t1 or t2 is held", SOON, |s| {
        lines_of(s).iter().any(|l| l["agent"] == "gone" && text(&l["why"]).contains("gone"))
    });
    for slug in ["t1", "t2"] {
        assert_eq!(rig.line(slug).unwrap()["attempt"].as_u64().unwrap_or(0), 0, "{:?}", rig.line(slug));
    }
    std::fs::rename(&away, &there).unwrap();
    rig.ok(&["resume"]);
    rig.until_word("t1", "completed", SOON);
    rig.until_word("t2", "completed", SOON);
    rig.end_checks();
}

/// The same, mended where the message says: in the configuration. A task that was claimed before takes it up.
#[test]
fn an_agent_that_is_mended_in_the_configuration_goes_on() {
    let rig = rig_of(&[("gone", "cat >/dev/null; echo x > \"$OVERNIGHT_TASK.txt\"; echo finished")], "");
    let away = rig.bin().join("elsewhere");
    std::fs::rename(rig.bin().join("gone"), &away).unwrap();
    // It is there, and only running it shows that it cannot be run.
    let broken = rig.script("broken", "true");
    std::fs::write(&broken, "#!/no/such/interpreter\n").unwrap();
    std::fs::rename(&broken, rig.bin().join("gone")).unwrap();
    rig.agent_task("t1", "gone");
    let _daemon = rig.start();
    rig.until("t1 is held", SOON, |s| lines_of(s).iter().any(|l| text(&l["why"]).contains("waits for agent gone")));
    rig.ok(&["config", "set", "agents.gone.bin", away.to_str().unwrap()]);
    rig.remember();
    rig.ok(&["resume"]);
    rig.until_word("t1", "completed", SOON);
    rig.end_checks();
}

/// Case 37: the daemon's PATH has no agent. It is said, nothing is claimed and nothing spent; mended, all of it runs.
#[test]
fn case_37_an_agent_that_is_nowhere_on_path_is_claimed_nothing_for() {
    let rig = rig_of(&[("away", "cat >/dev/null; echo x > \"$OVERNIGHT_TASK.txt\"; echo finished")], "");
    let tools = rig.root().join("tools");
    std::fs::create_dir(&tools).unwrap();
    let config = std::fs::read_to_string(rig.code().join("overnight.toml")).unwrap();
    let config = config.replace(rig.bin().join("away").to_str().unwrap(), "away");
    rig.write_config(&config.replace("agent = \"script\"", "agent = \"away\""));
    rig.approve();
    std::fs::rename(rig.bin().join("away"), tools.join("away")).unwrap();
    for n in 1..=5 {
        rig.agent_task(&format!("t{n}"), "away");
    }
    let _daemon = rig.start();
    rig.until("it is said", SOON, |s| s["projects"][0]["alarms"].to_string().contains("it is in no folder of PATH"));
    rig.until("they wait", SOON, |s| {
        lines_of(s).iter().filter(|l| l["status"] == "queued" && text(&l["why"]).contains("agent away")).count() == 5
    });
    let log = rig.git(&rig.state_clone(), &["log", "--format=%s", "--all"]);
    assert!(!log.contains("in_progress") && !log.contains("claim"), "{log}");
    let doctor = rig.run(&["doctor"]);
    assert!(doctor.code != 0 && doctor.out.contains("away"), "{doctor:?}");
    rig.ok(&["config", "set", "agents.away.bin", tools.join("away").to_str().unwrap()]);
    rig.remember();
    for n in 1..=5 {
        rig.until_word(&format!("t{n}"), "completed", SOON);
    }
    rig.end_checks();
}

/// B12: an agent that falls silent is stopped as stalled; one that is held by its provider is not touched.
#[test]
fn silence_is_stopped_as_stalled() {
    let rig = rig_of(
        &[("silent", "cat >/dev/null; echo hello; sleep 300")],
        "wall = \"30s\"\nno_progress = \"1s\"\nfirst_event = \"20s\"\nkill_grace = \"1s\"",
    );
    rig.agent_task("t1", "silent");
    let _daemon = rig.start();
    rig.until_word("t1", "failed", SOON);
    assert_eq!(reason(&rig, "t1"), "stalled");
    until_alone(&rig, Duration::from_secs(15));
    rig.end_checks();
}

/// CON-CANCEL-STUCK: a tree that is STOPped or ignores TERM is ended all the same, and asking again restarts no clock.
#[test]
fn cancel_ends_stopped_and_stubborn_agents_within_the_grace() {
    let stubborn = "cat >/dev/null; trap '' TERM; echo up; while :; do sleep 0.2; done";
    let rig = rig_of(&[("stubborn", stubborn), ("plain", "cat >/dev/null; echo up; sleep 300")], "");
    rig.agent_task("t1", "stubborn");
    rig.agent_task("t2", "plain");
    let _daemon = rig.start();
    rig.wait_for("both are up", SOON, || rig.agents("plain").len() == 1 && rig.agents("stubborn").len() == 1);
    for pid in rig.agents("plain") {
        signal(pid, "STOP");
    }
    let begun = Instant::now();
    for _ in 0..8 {
        for slug in ["t1", "t2"] {
            let done = rig.run(&["cancel", slug]);
            assert!([0, 4].contains(&done.code), "{done:?}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    rig.until_word("t1", "aborted", SOON);
    rig.until_word("t2", "aborted", SOON);
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    until_alone(&rig, Duration::from_secs(15));
    rig.end_checks();
}

/// Bytes of files in all run folders whose name begins with `prefix`.
fn bytes_of_runs(rig: &Rig, prefix: &str) -> u64 {
    let runs = std::fs::read_dir(rig.places.runs()).unwrap().flatten();
    let files = runs.flat_map(|run| std::fs::read_dir(run.path()).unwrap().flatten().collect::<Vec<_>>());
    files.filter(|f| f.file_name().to_string_lossy().starts_with(prefix)).map(|f| f.metadata().unwrap().len()).sum()
}
