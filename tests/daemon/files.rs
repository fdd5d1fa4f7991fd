//! What people and tools save: configuration good and bad, task files written in every way, boards, and names of files
//! that git's output hides.

use crate::kit::{Kit, class, read, task_text, word, write};
use crate::rig::{BIN, Setup};
use std::time::{Duration, Instant};

/// Night case 56: a signer that never ends, an editor that never ends: no commit of the daemon's asks for either.
#[test]
fn case_56_nobody_is_asked_to_sign_or_edit() {
    let kit = Kit::new();
    let signer = kit.script("slow-signer", "touch \"$HOME/signed\"; exec sleep 300");
    let editor = kit.script("edit-forever", "touch \"$HOME/edited\"; exec sleep 300");
    let (signer, editor) = (signer.display(), editor.display());
    write(
        &kit.home().join(".gitconfig"),
        &format!(
            "[user]\n name = Ada\n email = ada@example.org\n[commit]\n gpgSign = true\n[tag]\n gpgSign = true\n\
             [gpg]\n program = {signer}\n[core]\n editor = {editor}\n pager = {editor}\n[pager]\n log = {editor}\n diff = {editor}\n\
             [sequence]\n editor = {editor}\n[merge]\n tool = x\n"
        ),
    );
    kit.script_task("t1", "", &["echo t1 > t1.txt"]);
    kit.up();
    let began = Instant::now();
    kit.merged_task("t1");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    kit.ok(&["land", "--yes"]);
    kit.remember();
    assert!(!kit.home().join("signed").exists() && !kit.home().join("edited").exists());
    kit.close();
}

/// Night case 64: however an editor saves, the last content counts; its leftovers are no tasks.
#[test]
fn case_64_every_way_of_saving_a_file() {
    let kit = Kit::new();
    let text = |title: &str| format!("---\ntitle: {title}\nstatus: planning\n---\n\nText.\n");
    kit.wish("t1", &text("first"));
    kit.up();
    let file = kit.wish_file("t1");
    let beside = |name: &str| file.with_file_name(name);
    let seen = |title: &str| {
        kit.wait(&format!("{title} is seen"), || (kit.facts("t1")["line"]["title"] == title).then_some(()));
    };
    seen("first");
    for round in 0..2 {
        write(&file, &text(&format!("in place {round}")));
        seen(&format!("in place {round}"));
        write(&beside(".README.md.swp"), "b0VIM");
        write(&beside("4913"), "");
        write(&beside("new"), &text(&format!("renamed {round}")));
        std::fs::rename(beside("new"), &file).unwrap();
        seen(&format!("renamed {round}"));
        std::fs::rename(&file, beside("README.md~")).unwrap();
        write(&file, &text(&format!("after a backup {round}")));
        seen(&format!("after a backup {round}"));
    }
    for n in 0..50 {
        write(&file, &text(&format!("save {n}")));
    }
    write(&beside("#README.md#"), "x");
    seen("save 49");
    assert_eq!(kit.project()["invalid"].to_string(), "[]");
    let commits = kit.git(&kit.state_clone(), &["rev-list", "--count", "main"]).parse::<u32>().unwrap();
    assert!(commits < 40, "{commits} commits for one file");
    kit.close();
}

/// Night case 65: two things with one name are told apart, or refused with both places.
#[test]
fn case_65_two_things_with_one_name() {
    let kit = Kit::new();
    // A second project with the same task.
    let other = kit.root().join("second");
    std::fs::create_dir_all(&other).unwrap();
    kit.git(&other, &["init", "-q", "-b", "main"]);
    write(&other.join("o"), "o\n");
    kit.git(&other, &["add", "-A"]);
    kit.git(&other, &["commit", "-q", "-m", "Begin"]);
    let there = |args: &[&str]| {
        let output = kit.command(BIN).current_dir(&other).args(args).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(there(&["init", "--state", kit.root().join("second-state").to_str().unwrap()]).0, 0);
    assert_eq!(there(&["config", "set", "agents.script", "true"]).0, 0);
    write(
        &kit.root().join("second-state/tasks/a/README.md"),
        &task_text("a", "agent: script\n", &["echo other > a-other.txt"]),
    );
    kit.script_task("a", "depends_on: [b, b]\n", &["echo here > a-here.txt"]);
    kit.script_task("b", "", &["echo b > b.txt"]);
    kit.wish("p", "---\ntitle: p\nstatus: queued\n---\n");
    kit.script_task("p/p", "", &["echo pp > pp.txt"]);
    kit.script_task("E", "", &["echo never > never.txt"]);
    kit.wish("twice", "---\ntitle: one\nstatus: queued\ntitle: two\n---\n");
    kit.up();
    for path in ["a", "p/p", "p"] {
        kit.merged_task(path);
    }
    kit.wait("the other one is merged", || there(&["task", "status", "a"]).1.starts_with("completed").then_some(()));
    assert!(kit.on_target("a-here.txt").is_some() && kit.on_target("a-other.txt").is_none());
    assert_eq!(kit.git(&other, &["show", "overnight/main:a-other.txt"]), "other");
    let lines = kit.status()["projects"].to_string();
    assert!(lines.contains("a second time"), "{lines}");
    // The same key, agent, check or step twice in the configuration is an error with its line.
    let good = read(&kit.code().join("overnight.toml"));
    for (twice, said) in [
        (good.replace("slots = 4", "slots = 4\nslots = 5"), "slots"),
        (format!("{good}\n[[checks]]\nname = \"test\"\nrun = \"true\"\n"), "test"),
        (format!("{good}\n[agents.x]\nkind = \"script\"\n[agents.x]\nkind = \"script\"\n"), "x"),
    ] {
        let file = kit.root().join("twice.toml");
        write(&file, &twice);
        let told = kit.run(&["config", "check", file.to_str().unwrap()]);
        assert!(told.code == 2 && told.err.contains(said) && told.err.contains(':'), "{told:?}");
    }
    kit.close();
}

/// Night case 67, A03, C10: a broken configuration under a running night changes nothing and is told by line and key; at
/// a cold start without an approved one nothing is started.
#[test]
fn case_67_a_broken_configuration_changes_nothing() {
    let kit = Kit::new();
    let good = read(&kit.code().join("overnight.toml"));
    let begun = "touch $HOME/begun; while ! test -e $HOME/go; do sleep 0.05; done; echo t1 > t1.txt";
    kit.script_task("t1", "", &[begun]);
    let pid = kit.up();
    kit.wait("the agent runs", || kit.home().join("begun").exists().then_some(()));
    let wrong = [
        ("slots = \"four\"", "slots"),
        ("slots = 0", "slots"),
        ("slots = -1", "slots"),
        ("slots = 1000000000", "slots"),
        ("slotz = 3", "slotz"),
    ]
    .map(|(line, key)| (good.replace("slots = 4", line), key))
    .into_iter()
    .chain([
        (good.replace("attempts = 2", "attempts = 0"), "attempts"),
        (good.replace("attempts = 2", "attempts = -1"), "attempts"),
        (good.replace("wall = \"30s\"", "wall = \"10\""), "wall"),
        (good.replace("wall = \"30s\"", "wall = \"-5m\""), "wall"),
        (good.replace("wall = \"30s\"", "wall = \"99999999999h\""), "wall"),
        (good.replace("agent = \"script\"", "agent = \"nobody\""), "agent"),
        (good[..good.len() / 2].to_owned(), ""),
        (String::new(), ""),
    ]);
    for (text, key) in wrong {
        kit.write_config(&text);
        let told = kit.run(&["config", "check"]);
        assert_eq!(told.code, 2, "{text}: {told:?}");
        assert!(told.err.contains(key), "{key}: {told:?}");
        assert!(key.is_empty() || told.err.contains("overnight.toml:"), "{told:?}");
        assert_ne!(kit.run(&["config", "approve", "--hash", &overnight::config::hash(text.as_bytes())]).code, 0);
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGHUP).unwrap();
        kit.wait("it is said", || kit.status()["alarms"].to_string().contains("not valid").then_some(()));
    }
    // A sound change that nobody approved is said too, and does not run; approved, it does.
    let changed = good.replace("slots = 4", "slots = 3");
    kit.write_config(&changed);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGHUP).unwrap();
    kit.wait("it is said", || kit.status()["alarms"].to_string().contains("not approved").then_some(()));
    let told = kit.run(&["start"]);
    assert!(told.code == 0 && told.err.contains("approved"), "{told:?}");
    assert_ne!(kit.run(&["config", "approve", "--hash", "sha256:00"]).code, 0);
    kit.approve();
    kit.wait("the alarm is over", || (kit.status()["alarms"] == serde_json::json!([])).then_some(()));
    write(&kit.home().join("go"), "");
    kit.merged_task("t1");
    kit.write_config(&good);
    kit.approve();
    kit.down();
    kit.end_checks();
    // Never approved: nothing starts, with an exit of its own.
    std::fs::remove_dir_all(kit.data()).unwrap();
    kit.ok(&["init"]);
    for verb in ["start", "run"] {
        let told = kit.run(&[verb]);
        assert!(told.code == 2 && told.err.contains("config approve"), "{verb}: {told:?}");
    }
}

/// Night case 68: titles that Markdown would take for something else, and a board that people have rewritten.
#[test]
fn case_68_boards_are_views() {
    let kit = Kit::new();
    let long = "word ".repeat(60);
    let titles =
        ["a | b", r"a \| b", "`x | y`", "[x](y)", "a <br> b", "\u{1f600} \u{5d0}\u{5d1}", long.trim(), "# head", "- x"];
    for (n, title) in titles.iter().enumerate() {
        kit.wish(&format!("t{n}"), &task_text(title, "", &[&format!("echo {n} > n{n}.txt")]));
    }
    kit.up();
    for (n, title) in titles.iter().enumerate() {
        let facts = kit.merged_task(&format!("t{n}"));
        assert_eq!(facts["line"]["title"], *title);
    }
    let rows = kit.wait("the board has them all", || {
        let board = kit.git(&kit.state_clone(), &["show", "main:tasks/README.md"]);
        let rows: Vec<String> = board.lines().filter(|l| l.contains("completed")).map(str::to_owned).collect();
        (rows.len() == titles.len()).then_some(rows)
    });
    let cells = |row: &str| row.replace(r"\|", "").matches('|').count();
    assert!(rows.iter().all(|row| cells(row) == cells(&rows[0])), "{rows:?}");
    // Somebody rewrites the board, with conflict markers in it: it is a view, and no task changes by it.
    write(&kit.state().join("tasks/README.md"), "<<<<<<< HEAD\n| t0 | failed |\n=======\n>>>>>>> theirs\n");
    kit.script_task("late", "", &["echo late > late.txt"]);
    kit.merged_task("late");
    assert_eq!(word(&kit.facts("t0")), "completed");
    kit.close();
}

/// Night case 70: exact names of files, whatever git is configured to show.
#[test]
fn case_70_exact_names_of_files() {
    let kit = Kit::new();
    kit.unhelpful("");
    kit.commit(&[("old name", "o\n"), ("gone", "g\n")]);
    kit.script_task(
        "t1",
        "",
        &["for f in 'ä.txt' 'a b' '\"q\"' 'a -> b' ' lead' '-n' '\\303\\244'; do echo x > \"./$f\"; done; mkdir -p 'x b'; echo y > 'x b/y'\n\
           printf x > \"$(printf 'tab\\tx')\"; printf x > \"$(printf 'new\\nline')\"; printf x > \"$(printf 'raw\\377')\"\n\
           git mv 'old name' 'new ü'; git rm -q gone"],
    );
    kit.up();
    let facts = kit.merged_task("t1");
    let files: Vec<String> =
        facts["files"].as_array().unwrap().iter().map(|f| f.as_str().unwrap().to_owned()).collect();
    for name in ["ä.txt", "a b", "\"q\"", "a -> b", " lead", "-n", "x b/y", "new ü", "gone"] {
        assert!(files.iter().any(|f| f == name || f.trim_matches('\'') == name), "{name} in {files:?}");
    }
    assert_eq!(files.len(), 13, "{files:?}");
    assert!(!files.iter().any(|f| f.contains(['\t', '\n', '\u{fffd}'])), "{files:?}");
    let diff = kit.json(&["diff"]);
    assert_eq!(diff["files"].as_array().unwrap().len(), 13, "{diff}");
    kit.ok(&["land", "--yes"]);
    assert!(kit.code().join("ä.txt").exists());
    kit.remember();
    kit.close();
}

/// A05: a project without checks says that nothing is tested, and never that it passed.
#[test]
fn a05_without_checks_nothing_is_said_to_have_passed() {
    let kit = Kit::new();
    let text = read(&kit.code().join("overnight.toml"));
    let from = text.find("[[checks]]").unwrap();
    kit.write_config(&text[..from]);
    kit.approve();
    kit.commit(&[]);
    kit.script_task("t1", "", &["echo t1 > t1.txt"]);
    kit.up();
    kit.merged_task("t1");
    let events = kit.ok(&["events"]);
    assert!(!events.contains("pass") && !events.contains("green"), "{events}");
    assert!(events.contains("no checks"), "{events}");
    kit.close();
}

/// A task without attempts left, or of an agent that is not there, says so and not more.
#[test]
fn a_wish_that_cannot_be_fulfilled_says_why() {
    let kit = Kit::with(Setup { attempts: 1, ..Setup::default() });
    kit.wish("t1", "---\ntitle: t1\nstatus: queued\nagent: nobody\n---\n\nText.\n");
    kit.script_task("t2", "checks: [none-such]\n", &["echo t2 > t2.txt"]);
    kit.script_task("t3", "", &["echo t3 > t3.txt"]);
    kit.up();
    kit.merged_task("t3");
    for (path, name) in [("t1", "nobody"), ("t2", "none-such")] {
        let facts = kit.facts(path);
        assert!(facts["line"]["why"].as_str().unwrap().contains(name), "{}", facts["line"]);
        assert_ne!(class(&facts), "none", "{}", facts["line"]);
    }
    kit.close();
}

/// Commands that come with a task run only where the approved configuration lets them, however the task came.
#[test]
fn commands_in_tasks_run_only_where_they_are_allowed() {
    let kit = Kit::new();
    // The project's agent has to be another for the configuration to be sound.
    let config = kit.config(&Setup::default()).replace("script = true", "script = false");
    kit.write_config(&config.replace("agent = \"script\"", "agent = \"claude\""));
    kit.approve();
    kit.remember();
    let proof = kit.root().join("ran");
    kit.script_task("t1", "", &[&format!("echo ran > {}", proof.display())]);
    kit.script_task("t2", "agent: script\n", &[&format!("echo ran > {}", proof.display())]);
    kit.up();
    for path in ["t1", "t2"] {
        let facts = kit.wait("it says why", || {
            let facts = kit.facts(path);
            facts["line"]["why"].as_str().is_some_and(|why| why.contains("script agent is off")).then_some(facts)
        });
        assert_eq!((word(&facts), class(&facts)), ("queued", "policy"), "{}", facts["line"]);
    }
    assert!(!proof.exists());
    kit.close();
}

/// A folder that cannot be brought up for now (another git's lock) takes nothing back that was changed since: neither an
/// edit by a verb, nor a file that was saved there before it.
#[test]
fn a_folder_that_is_left_alone_takes_nothing_back() {
    let kit = Kit::new();
    let text = |title: &str| format!("---\ntitle: {title}\nstatus: planning\n---\n\nText.\n");
    let titled = |path: &str, title: &str| {
        kit.wait(&format!("{title} is seen"), || (kit.facts(path)["line"]["title"] == title).then_some(()));
    };
    let at_tip = |path: &str| kit.git(&kit.state_clone(), &["show", &format!("main:tasks/{path}/README.md")]);
    kit.wish("t1", &text("first"));
    kit.up();
    titled("t1", "first");
    kit.wait("the folder is brought up", || {
        let head = kit.git(&kit.state(), &["rev-parse", "HEAD"]);
        (head == kit.git(&kit.state_clone(), &["rev-parse", "main"])).then_some(())
    });
    write(&kit.state().join(".git/index.lock"), "");
    kit.wish("t1", &text("second"));
    titled("t1", "second");
    // One save after the other is fine: nobody else changed it.
    kit.wish("t1", &text("third"));
    titled("t1", "third");
    kit.ok(&["priority", "t1", "7"]);
    assert!(at_tip("t1").contains("priority: 7"), "{}", at_tip("t1"));
    kit.wait("it is said", || kit.status().to_string().contains("another git is at work there").then_some(()));
    // The same text saved once more, and then others.
    for (path, title) in [("t1", "third"), ("t2", "beside"), ("t1", "fourth"), ("t3", "last")] {
        kit.wish(path, &text(title));
        if path != "t1" {
            titled(path, title);
        }
    }
    assert!(at_tip("t1").contains("priority: 7"), "{}", at_tip("t1"));
    assert!(kit.log().contains("is not taken"), "{}", kit.log());
    // Another branch is not what is wished.
    std::fs::remove_file(kit.state().join(".git/index.lock")).unwrap();
    kit.git(&kit.state(), &["checkout", "-q", "-b", "mine"]);
    kit.wish("t4", &text("on another branch"));
    kit.wait("it is said", || kit.status().to_string().contains("is checked out there").then_some(()));
    assert!(kit.facts("t4").is_null());
    kit.git(&kit.state(), &["checkout", "-q", "main"]);
    titled("t4", "on another branch");
    kit.close();
}
