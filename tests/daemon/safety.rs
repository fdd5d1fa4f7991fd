//! What must never happen, whatever an agent or a task does: data outside touched, work lost, secrets spread, text run.

use crate::kit::{Kit, class, find, picture, read, task_text, word, write};
use crate::rig::{BIN, Setup};

/// Night case 1: links out of a worktree are removed, never followed.
#[test]
fn case_1_clean_up_never_walks_through_a_link() {
    let kit = Kit::new();
    let precious = kit.root().join("precious");
    write(&precious.join("f"), "keep\n");
    let (p, c) = (precious.to_string_lossy().into_owned(), kit.code().to_string_lossy().into_owned());
    let before = picture(&precious);
    kit.script_task(
        "t1",
        "",
        &[&format!(
            "ln -s {p} data; ln -s {c}/.git/objects obj; mkdir -p ro/x; touch ro/x/y; chmod 555 ro/x ro; \
             printf 'data\\nobj\\nro/\\n' > .gitignore; echo ok > t1.txt"
        )],
    );
    kit.script_task(
        "t2",
        "attempts: 1\n",
        &[&format!("me=$(pwd); cd /; mv \"$me\" \"$me.away\"; ln -s {p} \"$me\"; exit 1")],
    );
    kit.up();
    kit.merged_task("t1");
    let t2 = kit.settled("t2");
    assert_ne!(word(&t2), "completed");
    kit.script_task("t3", "", &["echo more > t3.txt"]);
    kit.merged_task("t3");
    assert_eq!(picture(&precious), before, "what a link pointed to");
    let told = kit.try_git(&kit.code(), &["fsck", "--full"]);
    assert_eq!(told.code, 0, "{told:?}");
    assert!(kit.on_target("t1.txt").is_some());
    let left = find(&kit.data().join("projects/code/wt"), &|name| name == "y" || name == "data" || name == "obj");
    assert!(left.is_empty(), "{left:?}");
    kit.close();
}

/// Night case 4: an untracked file of the person's stands where a merge would write.
#[test]
fn case_4_a_merge_touches_nothing_of_the_persons() {
    let kit = Kit::new();
    write(&kit.code().join("out.txt"), "the person's\n");
    kit.script_task("t1", "", &["echo agent > out.txt"]);
    kit.script_task("t2", "", &["echo b > b.txt"]);
    kit.up();
    kit.merged_task("t1");
    kit.merged_task("t2");
    assert_eq!(kit.agent_runs("t1"), 1);
    assert_eq!(read(&kit.code().join("out.txt")), "the person's\n");
    // Landing would write it: refused, with the file's name, and nothing is lost.
    let told = kit.run(&["land", "--yes"]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains("out.txt"), "{told:?}");
    assert_eq!(read(&kit.code().join("out.txt")), "the person's\n");
    kit.close();
}

/// Night case 13: git's variables around the daemon lead nobody into another repository.
#[test]
fn case_13_variables_of_git_reach_nobody() {
    let kit = Kit::new();
    kit.commit(&[("test.sh", "git rev-parse --show-toplevel > \"$HOME/toplevel\"; pwd -P > \"$HOME/pwd\"\n")]);
    let decoy = kit.root().join("decoy");
    std::fs::create_dir_all(&decoy).unwrap();
    kit.git(&decoy, &["init", "-q", "-b", "main"]);
    write(&decoy.join("d"), "d\n");
    kit.git(&decoy, &["add", "-A"]);
    kit.git(&decoy, &["commit", "-q", "-m", "Decoy"]);
    let before = picture(&decoy);
    let at = decoy.display();
    let around = [
        ("GIT_DIR", format!("{at}/.git")),
        ("GIT_INDEX_FILE", format!("{at}/.git/index")),
        ("GIT_WORK_TREE", at.to_string()),
        ("GIT_AUTHOR_NAME", "evil".into()),
        ("GIT_CONFIG_COUNT", "1".into()),
        ("GIT_CONFIG_KEY_0", "core.bare".into()),
        ("GIT_CONFIG_VALUE_0", "true".into()),
    ];
    kit.script_task(
        "t1",
        "",
        &["env > env.txt; git init -q scratch && rm -rf scratch; git add env.txt && git commit -q -m mine"],
    );
    let started = kit.command(BIN).arg("start").envs(around).output().unwrap();
    assert!(started.status.success(), "{started:?}");
    kit.merged_task("t1");
    assert_eq!(picture(&decoy), before);
    let env = kit.on_target("env.txt").unwrap();
    for name in ["GIT_DIR=", "GIT_INDEX_FILE=", "GIT_WORK_TREE=", "GIT_CONFIG_COUNT=", "GIT_CONFIG_KEY", "=evil"] {
        assert!(!env.contains(name), "{name} in {env}");
    }
    assert_eq!(read(&kit.home().join("toplevel")), read(&kit.home().join("pwd")));
    let authors = kit.git(&kit.mirror(), &["log", "--format=%an|%cn", "overnight/main"]);
    assert!(!authors.contains("evil"), "{authors}");
    kit.close();
}

/// Night case 25: the worktree's link to its repository is removed, led elsewhere or replaced.
#[test]
fn case_25_a_worktree_without_its_link_is_noticed() {
    let kit = Kit::with(Setup { attempts: 1, ..Setup::default() });
    let main = kit.git(&kit.code(), &["rev-parse", "main"]);
    let code = kit.code().to_string_lossy().into_owned();
    kit.script_task("t1", "", &["rm .git; echo x > x; git add -f x; git commit -q -m oops; true"]);
    kit.script_task(
        "t2",
        "",
        &[&format!("echo 'gitdir: {code}/.git' > .git; echo y > y; git add y; git commit -q -m oops; true")],
    );
    kit.script_task("t3", "", &["rm -rf .git; git init -q; echo z > z; git add z; git commit -q -m oops"]);
    kit.script_task("t4", "", &["echo fine > t4.txt"]);
    kit.up();
    for (task, file) in [("t1", "x"), ("t2", "y"), ("t3", "z")] {
        let view = kit.settled(task);
        assert_ne!(word(&view), "completed", "{task}");
        assert!(["policy", "wrong_branch"].contains(&class(&view)), "{task}: {}", view["line"]);
        assert!(kit.on_target(file).is_none(), "{task}");
    }
    // Without a fence the second one could commit to the person's checkout by itself. That is noticed, and nothing is built
    // on it until the person says go on.
    let stray = kit.git(&kit.code(), &["rev-parse", "main"]);
    assert_ne!(stray, main);
    kit.remember();
    let alarms = kit.status()["projects"][0]["alarms"].to_string();
    assert!(alarms.contains("worked, your base branch moved from"), "{alarms}");
    kit.script_task("t5", "", &["echo later > t5.txt"]);
    kit.wait("t5 is known", || kit.facts("t5")["line"]["why"].as_str()?.contains("overnight resume").then_some(()));
    let land = kit.run(&["land", "--yes"]);
    assert!(land.code != 0 && land.err.contains("overnight resume"), "{land:?}");
    let holds = kit.try_git(&kit.mirror(), &["merge-base", "--is-ancestor", &stray, "overnight/main"]);
    assert_ne!(holds.code, 0, "something was built on the stray commit");
    kit.ok(&["resume"]);
    kit.merged_task("t4");
    kit.merged_task("t5");
    kit.close();
}

/// Night case 29: whatever a title, a name or a file is called, no shell reads it.
#[test]
fn case_29_text_from_tasks_never_reaches_a_shell() {
    let kit = Kit::rest(
        "[[chain.before]]\nname = \"note\"\nrun = 'printf \"%s\\n\" \"$OVERNIGHT_TITLE\" >> \"$HOME/titles\"'\n",
    );
    kit.unhelpful("");
    let place = kit.root().join("PWN").display().to_string();
    let titles = [
        format!("$(touch {place}1)"),
        format!("`touch {place}2`"),
        format!("x'; touch {place}3; '"),
        "%s%n".into(),
        "${IFS} \"quoted\" \\ | <br> [x](y) `a|b`".into(),
        "\u{202e}evil \u{1f600} é".into(),
    ];
    kit.git(&kit.code(), &["branch", "a;touch${IFS}PWN6"]);
    for (n, title) in titles.iter().enumerate() {
        let script = format!("printf '%s' \"a;touch {place}5\" > 'a;touch PWN5.txt'; echo {n} > n{n}");
        let front = format!("requester: {}\n", serde_json::to_string(title).unwrap());
        kit.wish(&format!("t{n}"), &task_text(title, &front, &[&script]));
    }
    kit.up();
    for (n, title) in titles.iter().enumerate() {
        let view = kit.settled(&format!("t{n}"));
        // All write one file alike, so none conflicts.
        assert_eq!(word(&view), "completed", "{}", view["line"]);
        assert_eq!(view["line"]["title"], title.as_str());
        let commit = view["merged"].as_str().unwrap().to_owned();
        let body = kit.git(&kit.mirror(), &["-c", "i18n.logOutputEncoding=UTF-8", "log", "-1", "--format=%B", &commit]);
        let plain = title.chars().all(|c| c != '\u{202e}');
        assert!(!plain || body.contains(title.as_str()), "{title} in {body}");
    }
    // Each step got the title as it is.
    let mut given: Vec<String> = read(&kit.home().join("titles")).lines().map(str::to_owned).collect();
    given.sort();
    let mut wanted = titles.to_vec();
    wanted.sort();
    assert_eq!(given, wanted);
    let made = find(kit.root(), &|name| name.starts_with("PWN"));
    assert!(made.is_empty(), "{made:?}");
    kit.close();
}

/// Night case 47: what an agent leaves behind that nobody should publish.
#[test]
fn case_47_secrets_and_rubbish_are_left_out_and_named() {
    let kit = Kit::rest("[git]\nmax_file = \"1MB\"\n");
    kit.commit(&[(".gitignore", "*.log\n.env\n")]);
    kit.script_task(
        "t1",
        "",
        &["echo CAN''ARY=1 > .env; echo CAN''ARY2 > id_rsa; mkfifo pipe; mkdir -p src; echo 'fn f() {}' > src/fix.rs; \
           echo '*.log' > .gitignore"],
    );
    kit.script_task("t2", "", &["head -c 3000000 /dev/zero > dump.sql; echo t2 > t2.txt"]);
    kit.up();
    let t1 = kit.settled("t1");
    let t2 = kit.settled("t2");
    assert!(t1["left_out"].to_string().contains(".env"), "{}", t1["left_out"]);
    assert!(t1["left_out"].to_string().contains("id_rsa"), "{}", t1["left_out"]);
    assert!(t2["left_out"].to_string().contains("dump.sql"), "{}", t2["left_out"]);
    assert!(kit.on_target(".env").is_none() && kit.on_target("id_rsa").is_none());
    for repo in [kit.code().clone(), kit.state().clone()] {
        let objects = kit.git(&repo, &["log", "--all", "-p", "--format=%H"]);
        assert!(!objects.contains("CANARY"), "{}", repo.display());
    }
    kit.close();
}

/// Night case 79: neither prompts nor tokens stand in a command line.
#[test]
fn case_79_no_prompt_in_a_command_line() {
    let kit = Kit::rest(
        "[agents.stub]\nkind = \"custom\"\nbin = \"stub\"\nprompt = \"stdin\"\nenv = { TOKEN = \"CANARYTOKEN\" }\n",
    );
    kit.script(
        "stub",
        "#!/bin/sh\ncat > got.txt\ntouch \"$HOME/running\"\nwhile ! test -e \"$HOME/go\"; do sleep 0.05; done\n",
    );
    kit.wish("t1", "---\ntitle: t1\nstatus: queued\nagent: stub\n---\n\nCANARYPROMPT\n");
    kit.up();
    kit.wait("the agent runs", || kit.home().join("running").exists().then_some(()));
    let seen = kit.processes();
    assert!(seen.iter().any(|(_, line)| line.contains("stub")), "{seen:?}");
    assert!(!seen.iter().any(|(_, line)| line.contains("CANARY")), "{seen:?}");
    write(&kit.home().join("go"), "");
    kit.merged_task("t1");
    assert!(kit.on_target("got.txt").unwrap().contains("CANARYPROMPT"));
    kit.close();
}

/// Night case 83: what agents print and tasks are called acts on nobody's terminal.
#[test]
fn case_83_no_escape_sequence_reaches_a_terminal() {
    let kit = Kit::new();
    let evil =
        r"red \u001b[31m up \u001b[1A\u001b[2K t9 complete OK \u001b]52;c;aGk=\u0007 \u009b1m \u0008 \u2028 \u202e";
    let script = r"printf 'ok\033[2K\033]0;title\007 \302\233 \r forged line\n\233\n'; printf 'x' > 'f\033[1m'; echo a > t.txt; exit 3";
    let task = task_text("TITLE", "attempts: 1\n", &[script]);
    kit.wish("t1", &task.replace("TITLE", evil));
    kit.up();
    kit.settled("t1");
    for args in [
        vec!["status"],
        vec!["show", "t1"],
        vec!["why", "t1"],
        vec!["logs", "t1"],
        vec!["report"],
        vec!["events"],
        vec!["logs"],
        vec!["task", "list"],
    ] {
        let told = kit.run(&args);
        let bad = |c: char| matches!(c, '\u{1b}' | '\u{7}' | '\u{8}' | '\u{9b}' | '\r' | '\u{2028}' | '\u{202e}');
        assert!(!told.out.contains(bad) && !told.err.contains(bad), "{args:?}: {:?} {:?}", told.out, told.err);
    }
    let log = kit.log();
    assert!(!log.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{log:?}");
    kit.close();
}

/// Night case 19: ids and slugs that are paths or options name nothing, anywhere.
#[test]
fn case_19_task_names_that_are_paths_lead_nowhere() {
    let kit = Kit::new();
    kit.git(&kit.state(), &["config", "core.protectNTFS", "false"]);
    let outside = kit.root().join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    // Made with plumbing: no tool of ours or of git's would write these names.
    let blob = kit.root().join("task.md");
    write(&blob, &task_text("evil", "", &["touch evil"]));
    let blob = kit.git(&kit.state(), &["hash-object", "-w", blob.to_str().unwrap()]);
    let leaf = tree(&kit, &[("100644", "blob", &blob, "README.md")]);
    let link = kit.root().join("link");
    write(&link, outside.to_str().unwrap());
    let link = kit.git(&kit.state(), &["hash-object", "-w", link.to_str().unwrap()]);
    let names = ["-rf", "CON", "   ", "a\u{202e}b", "x\\ny", "a..b", "lock", "Up"];
    let mut entries: Vec<(&str, &str, &str, &str)> =
        names.iter().map(|n| ("040000", "tree", leaf.as_str(), *n)).collect();
    entries.push(("120000", "blob", &link, "evil"));
    entries.push(("040000", "tree", &leaf, "good"));
    let tasks = tree(&kit, &entries);
    let root = tree(&kit, &[("040000", "tree", &tasks, "tasks")]);
    let head = kit.git(&kit.state(), &["rev-parse", "HEAD"]);
    let commit = kit.git(&kit.state(), &["commit-tree", &root, "-p", &head, "-m", "Hostile names"]);
    kit.git(&kit.state(), &["update-ref", "refs/heads/main", &commit]);
    kit.git(&kit.state(), &["reset", "-q", "--hard"]);
    kit.up();
    kit.merged_task("good");
    let invalid = kit.project()["invalid"].to_string();
    for name in ["-rf", "CON", "a..b", "lock"] {
        assert!(invalid.contains(name), "{name} in {invalid}");
    }
    for args in
        [["logs", "../../../etc/passwd"], ["show", "%2e%2e/x"], ["show", "-- -rf"], ["why", "."], ["show", "a\0b"]]
    {
        if args[1].contains('\0') {
            continue;
        }
        let told = kit.run(&args);
        assert!([2, 3].contains(&told.code), "{args:?}: {told:?}");
        assert!(!told.out.contains("root:"), "{told:?}");
    }
    assert!(outside.read_dir().unwrap().next().is_none());
    kit.close();
}

fn tree(kit: &Kit, entries: &[(&str, &str, &str, &str)]) -> String {
    let mut lines = String::new();
    for (mode, kind, oid, name) in entries {
        lines.push_str(&format!("{mode} {kind} {oid}\t{name}\0"));
    }
    let input = kit.root().join("tree-input");
    write(&input, &lines);
    let mut command = kit.command("git");
    command.args(["mktree", "-z"]).current_dir(kit.state()).stdin(std::fs::File::open(&input).unwrap());
    let out = command.output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

/// Night case 62: paths with everything in them that shells, git and option parsers stumble over.
#[test]
fn case_62_awkward_names_of_folders() {
    let kit = Kit::new();
    let at = kit.root().join("ü x'$(id)\"-").join("-n");
    let (code, state) = (at.join("-rf"), at.join(" lead trail "));
    std::fs::create_dir_all(&code).unwrap();
    kit.git(&code, &["init", "-q", "-b", "main"]);
    write(&code.join("a.txt"), "a\n");
    kit.git(&code, &["add", "-A"]);
    kit.git(&code, &["commit", "-q", "-m", "Begin"]);
    let here = |args: &[&str]| {
        let output = kit.command(BIN).current_dir(&code).args(args).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    assert!(here(&["init", "--name", "odd", "--state", state.to_str().unwrap()]).0);
    assert!(here(&["config", "set", "agents.script", "true"]).0);
    for (slug, front, script) in [
        ("a", "", "echo a > 'ä b'"),
        ("b", "depends_on: [a]\n", "cat 'ä b' > b"),
        ("c", "depends_on: [b]\n", "cat b > c"),
    ] {
        let front = format!("agent: script\n{front}");
        write(&state.join("tasks").join(slug).join("README.md"), &task_text(slug, &front, &[script]));
    }
    kit.up();
    kit.wait("c is merged", || here(&["task", "status", "c"]).1.starts_with("completed").then_some(()));
    assert!(here(&["land", "--yes"]).0);
    assert_eq!(read(&code.join("c")), "a\n");
    assert_eq!(kit.git(&code, &["status", "--porcelain"]), "?? overnight.toml");
    let told = kit.command(BIN).current_dir("/").args(["--project", "odd", "status"]).output().unwrap();
    assert!(told.status.success(), "{told:?}");
    kit.close();
}
