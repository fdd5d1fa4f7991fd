//! Golden bytes of the control socket: `wire.jsonl` holds every request and reply as it crosses the wire. A difference
//! means that older or newer programs no longer understand this one, so a line changes only on purpose.

use overnight::domain::status::{Reason, ReasonClass, Status};
use overnight::domain::verdict::UsageSum;
use overnight::domain::{Oid, ProjectId, TaskPath, Wall};
use overnight::protocol::view::{
    Counts, DiffView, EventLine, FileLine, InvalidLine, NightView, ProjectReport, ProjectView, ReportLine, ReportView,
    RescueView, StatusView, TaskLine, TaskView,
};
use overnight::protocol::{Call, ErrorKind, Failure, Reply, Request, frame};

const GOLDEN: &str = include_str!("wire.jsonl");

fn p() -> ProjectId {
    ProjectId::parse("p").expect("a name")
}

fn t() -> TaskPath {
    TaskPath::parse("a/b").expect("a path")
}

fn oid() -> Oid {
    Oid::parse(&"0123456789".repeat(4)).expect("an id")
}

fn requests() -> Vec<Request> {
    let (project, path, text) = (p(), t(), "t".to_owned());
    let all = vec![
        Request::Ping,
        Request::Status { project: None },
        Request::Show { project: p(), path: t() },
        Request::Why { project: p(), path: t() },
        Request::Report { project: Some(p()), night: Some(3) },
        Request::Events { project: Some(p()), path: None, since: Some(7), limit: 50, follow: true },
        Request::Add { project: p(), path: t(), text: "---\ntitle: \"ä\u{1b}\"\n---\n".into() },
        Request::Enqueue { project: p(), path: t() },
        Request::Abort { project: p(), path: t() },
        Request::Retry { project: p(), path: t() },
        Request::Priority { project: p(), path: t(), priority: -2 },
        Request::Answer { project: p(), path: t(), text },
        Request::Approve { project: p(), path: t() },
        Request::Pause { project: None },
        Request::Resume { project: Some(p()) },
        Request::Stop { agents: true },
        Request::Reload,
        Request::Land { project: p() },
        Request::Diff { project: p(), path: None, patch: true },
        Request::Rescues { project: p(), path: t() },
        Request::Undo { project, path, attempt: Some(2) },
        Request::Settle,
    ];
    for (i, request) in all.iter().enumerate() {
        assert_eq!(place(request), i, "every request once, in the order of its definition");
    }
    all
}

/// A new request does not compile until it has its place here, and fails until it has its line.
fn place(request: &Request) -> usize {
    match request {
        Request::Ping => 0,
        Request::Status { .. } => 1,
        Request::Show { .. } => 2,
        Request::Why { .. } => 3,
        Request::Report { .. } => 4,
        Request::Events { .. } => 5,
        Request::Add { .. } => 6,
        Request::Enqueue { .. } => 7,
        Request::Abort { .. } => 8,
        Request::Retry { .. } => 9,
        Request::Priority { .. } => 10,
        Request::Answer { .. } => 11,
        Request::Approve { .. } => 12,
        Request::Pause { .. } => 13,
        Request::Resume { .. } => 14,
        Request::Stop { .. } => 15,
        Request::Reload => 16,
        Request::Land { .. } => 17,
        Request::Diff { .. } => 18,
        Request::Rescues { .. } => 19,
        Request::Undo { .. } => 20,
        Request::Settle => 21,
    }
}

fn task_line() -> TaskLine {
    TaskLine {
        path: t(),
        title: "T".into(),
        status: Status::InProgress,
        phase: "running".into(),
        agent: Some("claude".into()),
        for_ms: 5,
        attempt: 1,
        attempts: 3,
        doing: "d".into(),
        why: "w".into(),
        reason: Some(Reason::new(ReasonClass::MergeConflict, "r")),
        last_output_ms: Some(6),
        last_progress_ms: None,
    }
}

fn usage() -> UsageSum {
    UsageSum { input: 1, output: 2, cached: 3, cost: 0.25, partial: true, runs: 4 }
}

fn event() -> EventLine {
    EventLine {
        seq: 9,
        at: Wall(8),
        project: Some(p()),
        task: Some(t()),
        epoch: 4,
        kind: "running".into(),
        text: "x".into(),
    }
}

fn night() -> Option<NightView> {
    Some(NightView { number: 3, started: Wall(1), ended: None })
}

fn invalid() -> Vec<InvalidLine> {
    vec![InvalidLine { place: "tasks/X".into(), line: Some(2), reason: "r".into() }]
}

fn rescue() -> RescueView {
    RescueView { name: "refs/overnight/rescue/a.b/1".into(), commit: oid(), attempt: Some(1) }
}

fn status() -> StatusView {
    let counts = Counts {
        planning: 1,
        queued: 2,
        running: 3,
        merging: 4,
        needs_you: 5,
        doomed: 6,
        merged: 7,
        failed: 8,
        aborted: 9,
    };
    StatusView {
        daemon: "working".into(),
        alarms: vec!["a".into()],
        paused: true,
        slots: 2,
        night: night(),
        projects: vec![ProjectView {
            project: p(),
            code: "/c".into(),
            state: "/s".into(),
            base: Some("main".into()),
            into: Some("overnight/main".into()),
            tip: Some(oid()),
            paused: false,
            alarms: vec![],
            counts,
            usage: usage(),
            slots: 2,
            tasks: vec![task_line()],
            more: 0,
            invalid: invalid(),
            cycles: vec!["a → b".into()],
        }],
        sources: "watching".into(),
        idle: None,
    }
}

fn task() -> TaskView {
    TaskView {
        project: p(),
        line: task_line(),
        depends_on: vec![t()],
        requester: Some("me".into()),
        labels: vec!["l".into()],
        priority: 1,
        branch: Some("overnight-task/a.b".into()),
        base: Some(oid()),
        worktree: Some("/w".into()),
        merged: None,
        session: Some("s".into()),
        question: Some("q".into()),
        files: vec!["f".into()],
        left_out: vec!["g".into()],
        usage: usage(),
        queued: Some(Wall(1)),
        started: Some(Wall(2)),
        ended: None,
        runs: vec!["p.a.b.4".into()],
        rescues: vec![rescue()],
        journal: vec![event()],
        body: "b\n".into(),
    }
}

fn report() -> ReportView {
    let line = ReportLine {
        path: t(),
        title: "T".into(),
        status: Status::Completed,
        text: "x".into(),
        class: None,
        next: Some("show a/b".into()),
        agent: Some("codex".into()),
        attempts: 2,
        took_ms: Some(3),
        usage: usage(),
        commit: Some(oid()),
        files: 4,
        left_out: vec!["g".into()],
    };
    ReportView {
        night: night(),
        projects: vec![ProjectReport {
            project: p(),
            base: Some("main".into()),
            into: None,
            ahead: Some(1),
            alarms: vec![],
            merged: vec![line],
            needs_you: vec![],
            failed: vec![],
            aborted: vec![],
            open: vec![],
            invalid: invalid(),
            usage: usage(),
            by_agent: vec![("codex".into(), usage())],
        }],
    }
}

fn replies() -> Vec<Reply> {
    let diff = DiffView {
        base: "main".into(),
        into: "overnight/main".into(),
        files: vec![FileLine { path: "f".into(), added: Some(1), removed: None }],
        patch: Some("+x\n".into()),
    };
    let failures = [
        (ErrorKind::Failed, Some("h".to_owned())),
        (ErrorKind::Usage, None),
        (ErrorKind::NotFound, None),
        (ErrorKind::WrongState, None),
        (ErrorKind::NotAllowed, None),
        (ErrorKind::Unexpected, None),
    ];
    let mut all = vec![
        Reply::Pong { version: "0.1.0".into(), protocol: 1, pid: 2, data: "/d".into() },
        Reply::Done { text: "t".into() },
        Reply::Status(Box::new(status())),
        Reply::Task(Box::new(task())),
        Reply::Why { text: "t".into() },
        Reply::Report(Box::new(report())),
        Reply::Events { lines: vec![event()], next: 10 },
        Reply::Event(event()),
        Reply::Diff(diff),
        Reply::Rescues { rescues: vec![rescue()] },
    ];
    all.extend(failures.map(|(kind, hint)| Reply::Error(Failure { kind, message: "m".into(), hint })));
    for (i, reply) in all.iter().enumerate() {
        assert_eq!(place_of(reply), i.min(10), "every reply, in the order of its definition");
    }
    all
}

fn place_of(reply: &Reply) -> usize {
    match reply {
        Reply::Pong { .. } => 0,
        Reply::Done { .. } => 1,
        Reply::Status(_) => 2,
        Reply::Task(_) => 3,
        Reply::Why { .. } => 4,
        Reply::Report(_) => 5,
        Reply::Events { .. } => 6,
        Reply::Event(_) => 7,
        Reply::Diff(_) => 8,
        Reply::Rescues { .. } => 9,
        Reply::Error(_) => 10,
    }
}

#[test]
fn every_message_has_its_golden_bytes_and_comes_back() {
    let calls: Vec<Call> = requests().into_iter().map(Call::new).collect();
    let replies = replies();
    let mut lines: Vec<Vec<u8>> = calls.iter().map(frame::write).collect();
    lines.extend(replies.iter().map(frame::write));
    let now = String::from_utf8(lines.concat()).expect("UTF-8");
    for (n, (now, golden)) in now.lines().zip(GOLDEN.lines()).enumerate() {
        assert_eq!(now, golden, "line {} of wire.jsonl", n + 1);
    }
    assert_eq!(now.lines().count(), GOLDEN.lines().count(), "in full:\n{now}");

    let mut golden = GOLDEN.lines();
    for call in &calls {
        let line = golden.next().unwrap_or_default();
        assert_eq!(frame::read::<Call>(line.as_bytes()).expect(line), *call);
    }
    for reply in &replies {
        let line = golden.next().unwrap_or_default();
        assert_eq!(frame::read::<Reply>(line.as_bytes()).expect(line), *reply);
    }
}

#[test]
fn exit_codes_belong_to_the_protocol() {
    let codes: Vec<u8> = replies()
        .iter()
        .filter_map(|reply| if let Reply::Error(failure) = reply { Some(failure.kind.exit_code()) } else { None })
        .collect();
    assert_eq!(codes, [1, 2, 3, 4, 2, 10]);
}

#[test]
fn hostile_lines_are_refused_as_messages() {
    for line in [
        "",
        "null",
        "{\"v\":1}",
        "{\"v\":1,\"request\":{\"verb\":\"dance\"}}",
        "{\"v\":1,\"request\":{\"verb\":\"show\",\"project\":\"p\",\"path\":\"../../etc/passwd\"}}",
        "{\"v\":1,\"request\":{\"verb\":\"show\",\"project\":\"../p\",\"path\":\"a\"}}",
        "{\"v\":-1,\"request\":{\"verb\":\"ping\"}}",
    ] {
        assert!(frame::read::<Call>(line.as_bytes()).is_err(), "{line}");
    }
}
