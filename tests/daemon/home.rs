//! The way of a task through files, chains and checks, and the way home: saved by hand, sent back, asked about, reviewed,
//! reported, landed and brought back.

use crate::kit::{Kit, class, find, read, reason, task_text, word, write};
use crate::rig::Setup;
use std::time::{Duration, Instant};

/// A01: a failed check goes back to the agent with all that it needs, and its second try passes.
#[test]
fn a01_a_failed_check_goes_back_with_its_output() {
    let kit = Kit::new();
    kit.commit(&[("test.sh", "echo the-output-of-the-check; test ! -e wrong\n")]);
    kit.script_task(
        "t1",
        "",
        &[
            "cat > \"$HOME/prompt.$OVERNIGHT_ATTEMPT\"",
            "if [ $OVERNIGHT_ATTEMPT = 1 ]; then echo x > wrong; else rm wrong; fi; echo t1 > t1.txt",
        ],
    );
    kit.up();
    let facts = kit.merged_task("t1");
    assert_eq!(facts["line"]["attempt"], 2, "{}", facts["line"]);
    let second = read(&kit.home().join("prompt.2"));
    for part in ["check test", "sh test.sh", "the-output-of-the-check", "exit 1", "Do it."] {
        assert!(second.contains(part), "{part:?} in {second}");
    }
    kit.close();
}

/// A02, A17 and `undo`: no more runs than allowed, the base as it was, the work kept and brought back; the ledger's
/// numbers have no gap.
#[test]
fn a02_what_never_passes_is_kept_and_can_be_brought_back() {
    let kit = Kit::with(Setup { attempts: 3, ..Setup::default() });
    let base = kit.git(&kit.code(), &["rev-parse", "main"]);
    kit.script_task("t1", "", &["echo $OVERNIGHT_ATTEMPT > bad; echo work > t1.txt"]);
    kit.up();
    let facts = kit.settled("t1");
    assert_eq!((word(&facts), class(&facts)), ("failed", "validation_failed"), "{}", facts["line"]);
    assert_eq!(kit.agent_runs("t1"), 3);
    assert_eq!(kit.git(&kit.code(), &["rev-parse", "main"]), base);
    assert!(kit.on_target("t1.txt").is_none());
    assert!(kit.ok(&["rescues", "t1"]).contains("rescue"), "nothing is kept");
    let said = kit.ok(&["undo", "t1"]);
    let branch = said.split_whitespace().find(|w| w.starts_with("overnight/undo/")).unwrap().to_owned();
    assert_eq!(kit.git(&kit.code(), &["show", &format!("{branch}:t1.txt")]), "work");
    assert_eq!(kit.run(&["undo", "nothing-of-this-name"]).code, 3);
    let lines = kit.ok(&["events", "--json", "--limit", "1000"]);
    let seqs: Vec<u64> =
        lines.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["seq"].as_u64().unwrap()).collect();
    assert!(seqs.windows(2).all(|w| w[1] == w[0] + 1), "{seqs:?}");
    let kinds: Vec<String> = lines
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap())
        .filter(|l| l["task"] == "t1")
        .map(|l| l["kind"].as_str().unwrap().to_owned())
        .collect();
    let at = |kind: &str| kinds.iter().position(|k| k == kind).unwrap_or_else(|| panic!("{kind} in {kinds:?}"));
    assert!(at("claiming") < at("preparing") && at("preparing") < at("running") && at("running") < at("checking"));
    assert_eq!(kinds.iter().filter(|k| *k == "running").count(), 3, "{kinds:?}");
    assert_eq!(kinds.last().map(String::as_str), Some("ended"));
    kit.close();
}

/// A04: checks run in their order, and the first that fails is the last that runs.
#[test]
fn a04_checks_after_a_failed_one_are_not_run() {
    let kit = Kit::with(Setup {
        attempts: 1,
        rest: "[[checks]]\nname = \"lint\"\nrun = \"echo lint >> $HOME/ran\"\n".into(),
        ..Setup::default()
    });
    kit.script_task("t1", "", &["echo x > bad"]);
    kit.up();
    let facts = kit.settled("t1");
    assert!(reason(&facts).starts_with("check test fails"), "{}", reason(&facts));
    let report = kit.ok(&["report"]);
    assert!(report.contains("check test fails (exit 1); not run: lint"), "{report}");
    // Once for the base, and never for the task.
    assert_eq!(read(&kit.home().join("ran")), "lint\n");
    kit.close();
}

/// A06, A07: neither a check's output nor a task's text of any length hurts.
#[test]
fn a06_output_and_text_of_any_length() {
    let kit = Kit::rest("[agents.stub]\nkind = \"custom\"\nbin = \"stub\"\n");
    kit.commit(&[(
        "test.sh",
        "test ! -e wrong || { echo head-of-it; yes 'a line of output' | head -c 30000000; echo tail-of-it; exit 1; }\n",
    )]);
    kit.script(
        "stub",
        "cat > \"$HOME/prompt.$OVERNIGHT_ATTEMPT\"; tr '\\0' ' ' < /proc/$PPID/cmdline > \"$HOME/parent\"; tr '\\0' ' ' < /proc/$$/cmdline > \"$HOME/line\"\n\
         if [ $OVERNIGHT_ATTEMPT = 1 ]; then echo x > wrong; else rm wrong; fi; echo t1 > t1.txt",
    );
    let text =
        format!("---\ntitle: t1\nstatus: queued\nagent: stub\n---\n\nMARK-OF-THE-TEXT {}\n", "word ".repeat(60_000));
    kit.wish("t1", &text);
    let pid = kit.up();
    kit.merged_task("t1");
    let first = read(&kit.home().join("prompt.1"));
    let second = read(&kit.home().join("prompt.2"));
    assert!(first.contains("MARK-OF-THE-TEXT") && first.len() <= 96 << 10, "{} bytes", first.len());
    // Where no session goes on, the brief and how it failed share the budget.
    assert!(second.contains("MARK-OF-THE-TEXT") && second.len() <= 96 << 10, "{} bytes", second.len());
    let failed = &second[second.find("check test failed").unwrap()..];
    let fence = failed.find("```text\n").unwrap();
    assert!(failed[fence..].starts_with("```text\nhead-of-it\na line of output\n"), "{failed}");
    assert!(failed.contains("tail-of-it\n```\n"), "{failed}");
    // Every byte of it is told or counted.
    let cut = failed.find("\n[cut ").unwrap();
    let count: usize = failed[cut + 6..].split(' ').next().unwrap().parse().unwrap();
    let mark = format!("\n[cut {count} bytes]\n").len();
    let quoted = failed[fence + 8..=failed.rfind("\n```\n").unwrap()].len() - mark;
    assert_eq!(quoted + count, "head-of-it\n".len() + 30_000_000 + "tail-of-it\n".len());
    assert!(failed.len() <= 24 << 10, "{} bytes", failed.len());
    for name in ["line", "parent"] {
        assert!(!read(&kit.home().join(name)).contains("MARK-OF-THE-TEXT"), "the text is in a command line");
    }
    let status = read(std::path::Path::new(&format!("/proc/{pid}/status")));
    let peak: u64 =
        status.lines().find(|l| l.starts_with("VmHWM")).unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak < 150 << 10, "{peak} KiB");
    kit.close();
}

/// A08 to A12, A14 and A16: what an agent's end means, by what it did.
#[test]
fn a08_the_end_of_an_agent_is_judged_by_what_it_did() {
    let kit = Kit::with(Setup { attempts: 2, slots: 8, ..Setup::default() });
    kit.commit(&[(
        "test.sh",
        "echo r > report.xml; mkdir -p __pycache__; echo c > __pycache__/m.pyc\n\
         if [ -e bad ]; then echo always-the-same; exit 1; fi; if [ -e once ]; then exit 1; fi\n",
    )]);
    kit.script_task("asks", "", &["echo 'QUESTION: Which database should I use?'"]);
    kit.script_task("url", "", &["echo 'see http://localhost/x?y=1 for more. Done.'"]);
    kit.script_task("dies", "attempts: 1\n", &["echo half > half.txt; exit 7"]);
    kit.script_task("commits", "", &["echo c > c.txt; git add c.txt; git commit -qm mine"]);
    kit.script_task("halves", "", &["echo h > h1.txt; git add h1.txt; git commit -qm half; echo h > h2.txt"]);
    kit.script_task("stuck", "attempts: 5\n", &["echo x > bad"]);
    kit.script_task(
        "mends",
        "",
        &["if [ $OVERNIGHT_ATTEMPT = 1 ]; then echo x > once; else rm once; echo m > m.txt; fi"],
    );
    kit.up();
    let asks = kit.settled("asks");
    assert_eq!((word(&asks), class(&asks)), ("blocked", "needs_input"), "{}", asks["line"]);
    assert_eq!(asks["question"], "Which database should I use?");
    let url = kit.settled("url");
    assert_eq!((word(&url), class(&url)), ("failed", "no_changes"), "{}", url["line"]);
    let dies = kit.settled("dies");
    assert_eq!((word(&dies), class(&dies)), ("failed", "agent_error"), "{}", dies["line"]);
    assert!(reason(&dies).contains('7'), "{}", reason(&dies));
    assert!(kit.on_target("half.txt").is_none() && kit.is_kept("half.txt", "half\n"));
    for path in ["commits", "halves", "mends"] {
        kit.merged_task(path);
    }
    assert_eq!(kit.facts("halves")["files"].to_string(), "[\"h1.txt\",\"h2.txt\"]");
    let stuck = kit.settled("stuck");
    assert_eq!(class(&stuck), "no_progress", "{}", stuck["line"]);
    assert_eq!(kit.agent_runs("stuck"), 2);
    for rubbish in ["report.xml", "__pycache__/m.pyc"] {
        assert!(kit.on_target(rubbish).is_none(), "{rubbish} of a check was merged");
    }
    // The answer to a question goes on with the task.
    kit.ok(&["answer", "asks", "the small one"]);
    kit.wait("it asks again", || (kit.agent_runs("asks") == 2).then_some(()));
    kit.close();
}

/// A13: a base that fails its checks holds the project and burns no attempt; it goes on once the base is mended.
#[test]
fn a13_a_red_base_is_nobodys_fault() {
    let kit = Kit::new();
    kit.commit(&[("bad", "x\n")]);
    kit.script_task("t1", "", &["echo t1 > t1.txt"]);
    kit.up();
    kit.wait("it is said", || kit.run(&["why", "t1"]).out.contains("Mend the base").then_some(()));
    assert_eq!((kit.agent_runs("t1"), kit.facts("t1")["line"]["attempt"].as_u64()), (0, Some(0)));
    std::fs::remove_file(kit.code().join("bad")).unwrap();
    kit.commit(&[]);
    kit.ok(&["resume"]);
    kit.merged_task("t1");
    kit.close();
}

/// Before, after, background and last steps, with the exits 75 (again) and 78 (does not apply).
#[test]
fn steps_run_around_the_agent() {
    let kit = Kit::with(Setup {
        attempts: 1,
        rest: "[[chain.before]]\nname = \"setup\"\nrun = 'echo before >> $HOME/steps; test -e $HOME/ready || { touch $HOME/ready; exit 75; }'\n\
               [[chain.before]]\nname = \"none\"\nrun = 'exit 78'\n\
               [[chain.after]]\nname = \"tidy\"\nrun = 'echo after >> $HOME/steps; echo tidy > tidy.txt'\n\
               [[chain.background]]\nname = \"measure\"\nrun = 'echo background >> $HOME/beside; pwd > $HOME/where; exec sleep 60'\n\
               [[chain.finally]]\nname = \"good\"\nrun = 'echo good >> $HOME/steps'\nwhen = \"success\"\n\
               [[chain.finally]]\nname = \"ill\"\nrun = 'echo ill >> $HOME/steps'\nwhen = \"failure\"\n"
            .into(),
        ..Setup::default()
    });
    kit.script_task(
        "t1",
        "",
        &["while ! test -e $HOME/where; do sleep 0.05; done; pwd > $HOME/mine; echo t1 > t1.txt"],
    );
    kit.up();
    kit.merged_task("t1");
    assert_eq!(read(&kit.home().join("steps")), "before\nbefore\nafter\ngood\n");
    assert_eq!(kit.on_target("tidy.txt").as_deref(), Some("tidy\n"));
    assert_eq!(read(&kit.home().join("beside")), "background\n");
    assert_ne!(read(&kit.home().join("where")), read(&kit.home().join("mine")), "two writers in one tree");
    kit.wait("the background step is ended", || {
        (!kit.processes().iter().any(|(_, line)| line.starts_with("sleep 60"))).then_some(())
    });
    let snapshot = std::path::PathBuf::from(read(&kit.home().join("where")).trim());
    assert!(snapshot.parent().is_some_and(|bg| bg.ends_with("bg")), "{}", snapshot.display());
    kit.wait("its snapshot is removed", || (!snapshot.exists()).then_some(()));
    kit.script_task("t2", "", &["exit 5"]);
    kit.settled("t2");
    assert!(read(&kit.home().join("steps")).ends_with("before\nill\n"), "{}", read(&kit.home().join("steps")));
    kit.close();
}

/// A task file saved by hand while the daemon runs: at once, whole or not at all, and a wrong one is told with its line.
#[test]
fn a_saved_file_is_a_task_before_any_poll() {
    let kit = Kit::new();
    kit.up();
    kit.wait("it has looked around", || kit.project()["base"].is_string().then_some(()));
    let whole = task_text("t1", "", &["echo t1 > t1.txt"]);
    // Half of it first: front matter that does not end.
    let (half, _) = whole.split_at(whole.len() / 2);
    kit.wish("t1", half);
    kit.wish("wrong", "---\ntitle: wrong\nstatus: queued\nprority: 3\n---\n");
    kit.wish("fine", &task_text("fine", "", &["echo fine > fine.txt"]));
    let saved = Instant::now();
    kit.wait("fine is known", || (word(&kit.facts("fine")) != "none").then_some(()));
    println!("known after {:?}", saved.elapsed());
    // The poll behind the watch comes every thirty seconds only.
    assert!(saved.elapsed() < Duration::from_secs(10), "{:?}", saved.elapsed());
    kit.wait("the wrong ones are listed", || {
        let invalid = kit.project()["invalid"].to_string();
        (invalid.contains("wrong") && invalid.contains("t1")).then_some(())
    });
    let invalid = kit.project()["invalid"].as_array().unwrap().clone();
    let wrong = invalid.iter().find(|i| i["place"].as_str().unwrap().contains("wrong")).unwrap();
    assert_eq!(wrong["line"], 4, "{wrong}");
    assert!(wrong["reason"].as_str().unwrap().contains("priority"), "{wrong}");
    assert_eq!(word(&kit.facts("t1")), "none", "a half-written file was acted on");
    kit.wish("t1", &whole);
    kit.merged_task("t1");
    kit.merged_task("fine");
    kit.close();
}

/// The person's state folder is brought up under their edits, and what they commit next takes nothing back.
#[test]
fn the_state_folder_is_brought_up_under_the_persons_edits() {
    let kit = Kit::new();
    write(&kit.state().join("notes.md"), "mine\n");
    kit.git(&kit.state(), &["add", "notes.md"]);
    kit.git(&kit.state(), &["commit", "-q", "-m", "Notes"]);
    write(&kit.state().join("notes.md"), "mine, edited\n");
    kit.script_task("t1", "", &["echo t1 > t1.txt"]);
    kit.up();
    kit.merged_task("t1");
    let state = kit.state().join("tasks/t1/state.json");
    kit.wait("the result is in the folder", || read(&state).contains("completed").then_some(()));
    assert_eq!(read(&kit.state().join("notes.md")), "mine, edited\n");
    assert_eq!(kit.git(&kit.state(), &["status", "--porcelain"]), " M notes.md".trim_end());
    // Git says so where the folder is being brought up at this very moment.
    kit.wait("it is committed", || (kit.try_git(&kit.state(), &["commit", "-qam", "Edited"]).code == 0).then_some(()));
    let changed = kit.git(&kit.state(), &["show", "--name-only", "--format=", "HEAD"]);
    assert_eq!(changed, "notes.md");
    kit.wait("it is taken in", || {
        (kit.git(&kit.state_clone(), &["show", "main:notes.md"]) == "mine, edited").then_some(())
    });
    assert!(kit.git(&kit.state_clone(), &["show", "main:tasks/t1/state.json"]).contains("completed"));
    kit.close();
}

/// `report` in its three forms, `diff`, and `land` by a fast-forward; then a dirty checkout, and a base that went on.
#[test]
fn the_way_home() {
    let kit = Kit::new();
    kit.unhelpful("");
    kit.script_task("t1", "", &["echo t1 > t1.txt; echo changed > a.txt"]);
    kit.script_task("t2", "attempts: 1\n", &["exit 3"]);
    kit.up();
    kit.merged_task("t1");
    kit.settled("t2");
    let report = kit.json(&["report"]);
    assert_eq!(report["projects"][0]["merged"][0]["path"], "t1", "{report}");
    assert_eq!(report["projects"][0]["failed"][0]["path"], "t2", "{report}");
    let page = kit.root().join("report.html");
    kit.ok(&["report", "--html", page.to_str().unwrap()]);
    let page = read(&page);
    assert!(page.contains("t1") && page.contains("</html>"), "{page}");
    assert!(!page.contains("http://") && !page.contains("<script"), "the page asks for more than itself");
    let diff = kit.json(&["diff"]);
    assert_eq!(diff["files"].as_array().unwrap().len(), 2, "{diff}");
    let patch = kit.ok(&["diff", "--patch"]);
    assert!(patch.contains("+t1"), "{patch}");
    // Dirty where the landing would write: refused, with the file's name.
    write(&kit.code().join("a.txt"), "the person's\n");
    let told = kit.run(&["land", "--yes"]);
    assert!(told.code == 1 && told.err.contains("a.txt"), "{told:?}");
    assert_eq!(read(&kit.code().join("a.txt")), "the person's\n");
    kit.git(&kit.code(), &["checkout", "-q", "a.txt"]);
    kit.ok(&["land", "--yes"]);
    assert_eq!(read(&kit.code().join("t1.txt")), "t1\n");
    assert_eq!(kit.git(&kit.code(), &["rev-parse", "main"]), kit.git(&kit.code(), &["rev-parse", "overnight/main"]));
    assert_eq!(kit.git(&kit.code(), &["status", "--porcelain"]), "");
    kit.remember();
    // The base goes on by hand, beside new work: joined, checked, and landed.
    kit.commit(&[("hand.txt", "hand\n")]);
    kit.script_task("t3", "", &["echo t3 > t3.txt"]);
    kit.merged_task("t3");
    kit.commit(&[("hand2.txt", "hand\n")]);
    // What the base has by itself is no part of what would land.
    let diff = kit.json(&["diff"]);
    assert_eq!(diff["files"], serde_json::json!([{ "path": "t3.txt", "added": 1, "removed": 0 }]), "{diff}");
    kit.wait("it lands", || (kit.run(&["land", "--yes"]).code == 0).then_some(()));
    for file in ["t3.txt", "hand.txt", "hand2.txt"] {
        assert!(kit.code().join(file).exists(), "{file}");
    }
    kit.remember();
    kit.close();
}

/// Work that came home as one commit of another hash is recognised: nothing is merged twice.
#[test]
fn a_squashed_landing_is_recognised() {
    let kit = Kit::new();
    kit.script_task("t1", "", &["echo one > one.txt; git add .; git commit -qm one; echo two > two.txt"]);
    kit.up();
    kit.merged_task("t1");
    kit.wait("it is delivered", || {
        (kit.try_git(&kit.code(), &["show", "overnight/main:two.txt"]).code == 0).then_some(())
    });
    kit.git(&kit.code(), &["merge", "-q", "--squash", "overnight/main"]);
    kit.git(&kit.code(), &["commit", "-q", "-m", "Pull request"]);
    kit.commit(&[("hand.txt", "hand\n")]);
    let base = kit.git(&kit.code(), &["rev-parse", "main"]);
    kit.script_task("t2", "", &["echo two > t2.txt"]);
    kit.merged_task("t2");
    let log = kit.git(&kit.mirror(), &["log", "--format=%s", &format!("{base}..overnight/main")]);
    assert!(!log.contains("Merge main") && !log.contains("t1"), "{log}");
    kit.ok(&["land", "--yes"]);
    kit.remember();
    kit.close();
}

/// A review holds the merge until a person says yes; the person's retry after a failure is a new life.
#[test]
fn review_and_retry() {
    let kit = Kit::with(Setup { attempts: 1, ..Setup::default() });
    kit.script_task("t1", "review: true\n", &["echo t1 > t1.txt"]);
    kit.script_task("t2", "", &["test -e $HOME/mended && echo t2 > t2.txt"]);
    kit.script_task("t3", "depends_on: [t2]\n", &["cat t2.txt > t3.txt"]);
    kit.up();
    assert_eq!(class(&kit.settled("t1")), "review");
    assert!(kit.on_target("t1.txt").is_none());
    assert_eq!(kit.run(&["approve", "t2"]).code, 4);
    kit.ok(&["approve", "t1"]);
    kit.merged_task("t1");
    let t2 = kit.settled("t2");
    assert_eq!(word(&t2), "failed");
    kit.wait("t3 is doomed", || (class(&kit.facts("t3")) == "dependency_failed").then_some(()));
    write(&kit.home().join("mended"), "");
    kit.ok(&["retry", "t2"]);
    kit.wait("t2 is merged", || (word(&kit.facts("t2")) == "completed").then_some(()));
    kit.merged_task("t3");
    kit.close();
}

/// Case 94: every attempt has a log of its own.
#[test]
fn case_94_attempts_do_not_read_each_others_traces() {
    let kit = Kit::new();
    kit.script_task(
        "t1",
        "",
        &["echo \"this is try $OVERNIGHT_ATTEMPT\"; while ! test -e $HOME/go; do sleep 0.05; done; test $OVERNIGHT_ATTEMPT = 2 || { echo DONE > DONE; exit 1; }; echo t1 > t1.txt"],
    );
    kit.up();
    // Whoever follows it sees all of it, and is left when the task is over.
    let mut follow = kit.command(crate::rig::BIN);
    follow.args(["logs", "-f", "t1"]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    kit.wait("it works", || (kit.facts("t1")["line"]["phase"] == "running").then_some(()));
    let follow = follow.spawn().unwrap();
    write(&kit.home().join("go"), "");
    kit.merged_task("t1");
    let followed = follow.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&followed.stdout), String::from_utf8_lossy(&followed.stderr));
    assert!(followed.status.success(), "{err}");
    let at = |text: &str| out.find(text).unwrap_or_else(|| panic!("{text} is missing in {out}"));
    assert!(
        at("attempt 1 · running") < at("this is try 1") && at("this is try 1") < at("attempt 2 · running"),
        "{out}"
    );
    assert!(at("this is try 2") < at("attempt 2 · checking") && err.contains("merged into"), "{out}{err}");
    let (first, second) = (kit.ok(&["logs", "t1", "--attempt", "1"]), kit.ok(&["logs", "t1", "--attempt", "2"]));
    assert!(first.contains("this is try 1") && !first.contains("this is try 2"), "{first}");
    assert!(second.contains("this is try 2") && !second.contains("this is try 1"), "{second}");
    assert!(find(&kit.code(), &|name| name == "DONE").is_empty());
    kit.close();
}

/// A15: an agent that removes, cuts out or skips what fails gets nowhere by that; a person's yes lets it through.
#[test]
fn a15_work_that_takes_tests_away_waits_for_a_yes() {
    let kit = Kit::with(Setup { rest: "[protect]\npaths = [\"ci/**\"]\n".into(), slots: 7, ..Setup::default() });
    let two = "def test_a():\n    pass\n\ndef test_b():\n    pass\n";
    kit.commit(&[
        ("tests/test_x.py", two),
        ("tests/test_y.py", two),
        ("tests/test_z.py", two),
        ("tests/run.sh", "exit 0\n"),
        ("ci/deep/build.yml", "on: push\n"),
    ]);
    kit.script_task("gone", "", &["git rm -q tests/test_x.py; git commit -qm done"]);
    kit.script_task("fewer", "", &["sed -i 1,3d tests/test_x.py"]);
    kit.script_task("skips", "", &["sed -i 1i@pytest.mark.skip tests/test_x.py"]);
    kit.script_task("uncounted", "", &["rm tests/run.sh"]);
    kit.script_task("ci", "", &["echo more >> ci/deep/build.yml"]);
    kit.script_task("allowed", "review: false\n", &["sed -i 1,3d tests/test_y.py"]);
    kit.script_task(
        "moves",
        "",
        &["git mv tests/test_z.py tests/test_w.py; echo 'def test_c(): pass' >> tests/test_w.py"],
    );
    kit.up();
    for (path, why) in [
        ("gone", "removes the test file tests/test_x.py and leaves 0 of 2 tests"),
        ("fewer", "leaves 1 of 2 tests in the files it touches"),
        ("skips", "skips 1 test more"),
        ("uncounted", "removes the test file tests/run.sh"),
        ("ci", "changes ci/deep/build.yml"),
    ] {
        let task = kit.settled(path);
        assert_eq!((word(&task), class(&task)), ("blocked", "review"), "{}", task["line"]);
        assert!(reason(&task).contains(why), "{path}: {}", reason(&task));
    }
    for path in ["allowed", "moves"] {
        kit.merged_task(path);
    }
    assert_eq!(kit.on_target("tests/test_x.py").as_deref(), Some(two));
    kit.ok(&["approve", "gone"]);
    kit.merged_task("gone");
    assert!(kit.on_target("tests/test_x.py").is_none());
    // A no with words goes to the agent; what it does then is looked at as before.
    kit.ok(&["answer", "ci", "Leave that file alone."]);
    kit.wait("it is sent back", || (kit.agent_runs("ci") == 2).then_some(()));
    assert_eq!(class(&kit.settled("ci")), "review");
    kit.close();
}

/// The branch that receives the work is the person's too: moved by hand it is left and said, deleted it is made anew, and a
/// delivery that a crash cut off before its note is known again.
#[test]
fn a_delivered_branch_that_the_person_moves() {
    let kit = Kit::new();
    let there = |kit: &Kit| kit.try_git(&kit.code(), &["rev-parse", "-q", "--verify", "refs/heads/overnight/main"]).out;
    let merge = |kit: &Kit, name: &str| {
        kit.script_task(name, "", &[&format!("echo {name} > {name}.txt")]);
        kit.merged_task(name);
        kit.git(&kit.mirror(), &["rev-parse", "overnight/main"])
    };
    let delivered = |kit: &Kit, tip: &str| kit.wait("it is delivered", || (there(kit).trim() == tip).then_some(()));
    kit.up();
    let first = merge(&kit, "t1");
    delivered(&kit, &first);
    kit.git(&kit.code(), &["branch", "-f", "overnight/main", "main"]);
    let second = merge(&kit, "t2");
    kit.wait("it is said", || kit.status()["projects"][0]["alarms"].to_string().contains("was moved in").then_some(()));
    assert_eq!(there(&kit).trim(), kit.git(&kit.code(), &["rev-parse", "main"]));
    kit.git(&kit.code(), &["branch", "-D", "overnight/main"]);
    kit.ok(&["resume"]);
    delivered(&kit, &second);
    kit.wait("nothing is wrong", || (kit.status()["projects"][0]["alarms"] == serde_json::json!([])).then_some(()));
    kit.down();
    let note = kit.mirror().with_file_name("delivered");
    assert_eq!(read(&note), format!("overnight/main {second}\n"));
    write(&note, &format!("overnight/main {first} {second}\n"));
    kit.up();
    let third = merge(&kit, "t3");
    delivered(&kit, &third);
    kit.close();
}
