//! What verbs send and print, and how they end.

use super::bench::{Bench, line, not_found, path, status, view};
use overnight::domain::ProjectId;
use overnight::protocol::{ErrorKind, Failure, Reply, Request};
use std::time::{Duration, Instant};

fn p() -> ProjectId {
    ProjectId::parse("p").unwrap()
}

fn done(text: &str) -> Reply {
    Reply::Done { text: text.into() }
}

#[test]
fn a_title_becomes_a_task_and_a_taken_name_gets_a_number() {
    let bench = Bench::new();
    bench.daemon(|request| match request {
        Request::Add { path, .. } if !path.as_str().ends_with("-3") => Reply::Error(Failure {
            kind: ErrorKind::WrongState,
            message: format!("{path} exists already; a used path is never used again"),
            hint: None,
        }),
        Request::Add { .. } => done(""),
        Request::Show { path, .. } if path.as_str() == "zzz" => not_found(path),
        Request::Show { path, .. } => Reply::Task(Box::new(view(path.as_str(), ""))),
        Request::Status { .. } => Reply::Status(Box::new(status(vec![]))),
        other => panic!("{other:?}"),
    });
    let one = bench.run(&["add", "Add a /health endpoint", "--after", "a/b,c", "--priority", "-3", "--checks", "test"]);
    assert_eq!(
        (one.code, one.out.as_str(), one.err.as_str()),
        (0, "  add-a-health-endpoint-3   queued   after a/b, c\n", "")
    );
    let asked = bench.asked();
    let Some(Request::Add { project, text, .. }) = asked.last() else { panic!("{asked:?}") };
    assert_eq!(*project, p());
    for part in ["title: Add a /health endpoint", "status: queued", "a/b", "priority: -3", "test"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    for (title, slug) in [("Überschrift ändern", "uberschrift-andern"), ("登录", "deng-lu"), ("!!!", "task")] {
        assert_eq!(bench.run(&["add", title]).out, format!("  {slug}-3   queued\n"));
    }
    let fixed = bench.run(&["add", "T", "--slug", "mine"]);
    assert_eq!(fixed.code, 4, "a name that was asked for is not changed");
    assert!(fixed.err.contains("mine exists already"), "{fixed:?}");
    let missing = bench.run(&["add", "T", "--after", "zzz"]);
    assert_eq!(missing.code, 3, "{missing:?}");
    let json = bench.run(&["task", "new", "T", "--slug", "x-3", "--json"]);
    assert_eq!(json.out, "{\"path\":\"x-3\",\"status\":\"planning\",\"after\":[]}\n");
}

#[test]
fn a_slug_is_found_at_any_depth_where_it_is_unique() {
    let bench = Bench::new();
    bench.daemon(|request| match request {
        Request::Abort { path, .. } if path.as_str() == "deep/in/one" => done("aborted"),
        Request::Abort { path, .. } => not_found(path),
        Request::Status { .. } => {
            let lines = ["deep/in/one", "a/two", "b/two"].map(|path| line(path, "t"));
            Reply::Status(Box::new(status(lines.into())))
        }
        other => panic!("{other:?}"),
    });
    let one = bench.run(&["abort", "one"]);
    assert_eq!((one.code, one.out.as_str()), (0, "  deep/in/one   aborted\n"));
    assert_eq!(bench.asked().last(), Some(&Request::Abort { project: p(), path: path("deep/in/one") }));
    let two = bench.run(&["cancel", "two"]);
    assert_eq!(two.code, 2);
    assert!(two.err.contains("a/two, b/two"), "{two:?}");
    let none = bench.run(&["abort", "three"]);
    assert_eq!(none.code, 3);
    assert!(none.err.contains("overnight task list"), "{none:?}");
}

#[test]
fn each_verb_sends_its_request() {
    let bench = Bench::new();
    bench.daemon(|_| done("so"));
    let (project, a) = (p(), path("a"));
    let cases: Vec<(Vec<&str>, Request)> = vec![
        (vec!["retry", "a"], Request::Retry { project: p(), path: a.clone() }),
        (vec!["task", "retry", "a"], Request::Retry { project: p(), path: a.clone() }),
        (vec!["task", "enqueue", "a"], Request::Enqueue { project: p(), path: a.clone() }),
        (vec!["priority", "a", "-4"], Request::Priority { project: p(), path: a.clone(), priority: -4 }),
        (vec!["answer", "a", "yes"], Request::Answer { project: p(), path: a.clone(), text: "yes".into() }),
        (vec!["approve", "a"], Request::Approve { project: p(), path: a.clone() }),
        (vec!["undo", "a", "--attempt", "2"], Request::Undo { project: p(), path: a, attempt: Some(2) }),
        (vec!["pause"], Request::Pause { project: Some(p()) }),
        (vec!["resume"], Request::Resume { project: Some(p()) }),
        (vec!["land", "--yes"], Request::Land { project }),
    ];
    for (args, request) in cases {
        let ended = bench.run(&args);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{args:?}");
        assert!(ended.out.ends_with("so\n"), "{ended:?}");
        assert_eq!(bench.asked().last(), Some(&request));
    }
    let elsewhere = bench.command(&["pause"]).current_dir("/").output().unwrap();
    assert!(elsewhere.status.success());
    assert_eq!(bench.asked().last(), Some(&Request::Pause { project: None }), "outside of every project all are meant");
    let nowhere = bench.command(&["retry", "a"]).current_dir("/").output().unwrap();
    assert_eq!(nowhere.status.code(), Some(3));
}

#[test]
fn facts_as_json_are_the_views_themselves() {
    let bench = Bench::new();
    let view = status(vec![line("a", "t")]);
    let sent = view.clone();
    bench.daemon(move |_| Reply::Status(Box::new(sent.clone())));
    let shown = bench.run(&["status", "--json"]);
    assert_eq!(shown.code, 0);
    assert_eq!(serde_json::from_str::<overnight::protocol::view::StatusView>(&shown.out).unwrap(), view);
    assert_eq!(shown.out.lines().count(), 1, "one line in a pipe");
    let plain = bench.run(&["status"]);
    assert!(plain.out.contains("● a   running"), "{plain:?}");
    assert!(!plain.out.contains('\u{1b}'), "no colours in a pipe");
    let coloured = bench.run(&["status", "--color", "always"]);
    assert!(coloured.out.contains("\u{1b}[36m●\u{1b}[0m"));
}

#[test]
fn refusals_carry_kind_hint_and_code() {
    let bench = Bench::new();
    bench.daemon(|request| match request {
        Request::Ping => Reply::Pong { version: "0.0.9".into(), protocol: 1, pid: 1, data: "/".into() },
        _ => Reply::error(ErrorKind::Usage, "unknown verb `land`"),
    });
    let old = bench.run(&["land", "--yes"]);
    assert_eq!(old.code, 2);
    assert!(
        old.err.contains("unknown verb") && old.err.contains("0.0.9") && old.err.contains("overnight restart"),
        "{old:?}"
    );
    let version = bench.run(&["version"]);
    assert!(version.out.contains("0.0.9") && version.out.contains("overnight restart"), "{version:?}");
}

#[test]
fn a_daemon_that_does_not_answer_is_named() {
    let bench = Bench::new();
    let _deaf = std::os::unix::net::UnixListener::bind(bench.places.socket()).unwrap();
    let started = Instant::now();
    let silent = bench.run(&["status"]);
    assert!((Duration::from_secs(9)..Duration::from_secs(25)).contains(&started.elapsed()));
    assert_eq!(silent.code, 4);
    assert!(silent.err.contains(&format!("pid {}", std::process::id())), "{silent:?}");
    assert!(bench.places.socket().exists());
}

#[test]
fn stop_without_a_daemon_is_done_and_inside_a_run_people_are_needed() {
    let bench = Bench::new();
    let stopped = bench.run(&["stop"]);
    assert_eq!((stopped.code, stopped.out.as_str()), (0, "  no daemon is running\n"));
    for args in [&["start"][..], &["run"], &["config", "set", "project.slots", "9"], &["config", "approve"], &["init"]]
    {
        let inside = bench.command(args).env("OVERNIGHT_RUN", "p.a.4").output().unwrap();
        assert_eq!(inside.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&inside.stderr).contains("p.a.4"));
    }
}

#[test]
fn starting_shows_why_the_daemon_did_not_come_up() {
    let bench = Bench::new();
    std::fs::write(bench.code.join("overnight.toml"), "[project]\nname = \"p\"\nbase = \"other\"\n").unwrap();
    std::fs::remove_dir_all(bench.places.data.join("projects")).unwrap();
    let never = bench.run(&["start"]);
    assert_eq!(never.code, 2);
    assert!(never.err.contains("overnight config approve"), "{never:?}");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let bench = Bench::new();
    let many: Vec<_> = (0..5_000).map(|n| line(&format!("t{n}"), "text")).collect();
    bench.daemon(move |_| Reply::Status(Box::new(status(many.clone()))));
    let mut command = bench.command(&["status", "--all"]);
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
}
