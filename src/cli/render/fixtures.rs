//! Fixed views for the tests of rendering, and texts that would drive a terminal if they were let through.

use crate::domain::status::{Reason, ReasonClass, Status};
use crate::domain::verdict::UsageSum;
use crate::domain::{Oid, ProjectId, TaskPath, Wall};
use crate::protocol::view::{
    Counts, EventLine, InvalidLine, NightView, ProjectReport, ProjectView, ReportLine, ReportView, RescueView,
    StatusView, TaskLine, TaskView,
};

/// One of each family that acts: colours, cursor, erase, clipboard, links, titles, device strings, C1 as UTF-8, bell,
/// backspace, direction, separators, carriage return, line feed.
pub(crate) const HOSTILE: [&str; 14] = [
    "\u{1b}[31mred\u{1b}[0m",
    "\u{1b}[1A\u{1b}[2Kcomplete OK",
    "\u{1b}]52;c;aGk=\u{7}",
    "\u{1b}]52;c;aGk=\u{1b}\\",
    "\u{1b}]8;;http://x\u{1b}\\y\u{1b}]8;;\u{1b}\\",
    "\u{1b}]0;title\u{7}",
    "\u{1b}P+q544e\u{1b}\\",
    "\u{9b}2J",
    "ding\u{7}",
    "pass\u{8}\u{8}\u{8}\u{8}fail",
    "a\u{202e}b",
    "a\u{2028}b\u{2029}c",
    "fail\rpass",
    "one\n✓ forged   completed",
];

pub(crate) fn all_hostile() -> String {
    HOSTILE.join(" ")
}

pub(crate) fn path(text: &str) -> TaskPath {
    TaskPath::parse(text).unwrap()
}

pub(crate) fn project() -> ProjectId {
    ProjectId::parse("my-repo").unwrap()
}

pub(crate) fn oid() -> Oid {
    Oid::parse(&"abcdef0123".repeat(4)).unwrap()
}

pub(crate) fn usage() -> UsageSum {
    UsageSum { input: 2_000_000, output: 100_000, cached: 40_000, cost: 0.41, partial: true, runs: 3 }
}

pub(crate) fn task(name: &str, status: Status, why: &str) -> TaskLine {
    TaskLine {
        path: path(name),
        title: name.replace('-', " "),
        status,
        phase: String::new(),
        agent: None,
        for_ms: 60_000,
        attempt: 0,
        attempts: 3,
        doing: String::new(),
        why: why.into(),
        reason: None,
        last_output_ms: None,
        last_progress_ms: None,
    }
}

pub(crate) fn running() -> TaskLine {
    TaskLine {
        phase: "running".into(),
        agent: Some("claude".into()),
        for_ms: 192_000,
        attempt: 1,
        doing: "editing src/routes.rs".into(),
        ..task("add-health-endpoint", Status::InProgress, "in progress: claude works on it, 3m12s; attempt 1 of 3.")
    }
}

pub(crate) fn evening() -> StatusView {
    let waits = "queued: waits for add-health-endpoint (running). It starts when that is merged.";
    let asks = "blocked: it asks: Keep the old key? Answer with `overnight answer rename-config \"…\"`.";
    let mut failed = task("split-parser", Status::Failed, "");
    failed.reason = Some(Reason::new(ReasonClass::ValidationFailed, "check test failed twice"));
    StatusView {
        daemon: "working".into(),
        alarms: vec!["the disk of /home is 97 % full".into()],
        paused: false,
        slots: 2,
        night: Some(NightView { number: 3, started: Wall(1_796_068_800_000), ended: None }),
        projects: vec![ProjectView {
            project: project(),
            code: "/home/me/my-repo".into(),
            state: "/home/me/my-repo-state".into(),
            base: Some("main".into()),
            into: Some("overnight/main".into()),
            tip: Some(oid()),
            paused: false,
            alarms: vec!["main and origin/main went apart".into()],
            counts: Counts { queued: 1, running: 1, needs_you: 1, merged: 1, failed: 1, ..Counts::default() },
            usage: usage(),
            slots: 2,
            more: 0,
            tasks: vec![
                task("document-endpoints", Status::Queued, waits),
                running(),
                task("rename-config", Status::Blocked, asks),
                failed,
                task("add-lexer", Status::Completed, "completed: merged as abcdef0123"),
            ],
            invalid: vec![InvalidLine {
                place: "tasks/Bad Name".into(),
                line: None,
                reason: "slug \"Bad Name\" may hold only a-z".into(),
            }],
            cycles: vec![],
        }],
        sources: "watching".into(),
        idle: None,
    }
}

/// Hostile text in every place that can hold it.
pub(crate) fn hostile_status() -> StatusView {
    let mut view = evening();
    let text = all_hostile();
    view.alarms = vec![text.clone()];
    view.daemon.clone_from(&text);
    let project = &mut view.projects[0];
    project.alarms = vec![text.clone()];
    project.base = Some(text.clone());
    project.into = Some(text.clone());
    project.invalid = vec![InvalidLine { place: text.clone(), line: Some(1), reason: text.clone() }];
    project.cycles = vec![text.clone()];
    project.tasks = HOSTILE
        .iter()
        .map(|text| {
            let text = (*text).to_owned();
            TaskLine {
                title: text.clone(),
                phase: text.clone(),
                agent: Some(text.clone()),
                doing: text.clone(),
                why: text.clone(),
                reason: Some(Reason::new(ReasonClass::Infra, text)),
                ..running()
            }
        })
        .collect();
    let mut queued = task("queued", Status::Queued, &text);
    queued.reason = Some(Reason::new(ReasonClass::Infra, text.clone()));
    let failed = TaskLine { why: String::new(), status: Status::Failed, ..queued.clone() };
    project.tasks.extend([queued, failed]);
    view
}

fn report_line(name: &str, status: Status, text: &str, next: Option<&str>) -> ReportLine {
    ReportLine {
        path: path(name),
        title: format!("The title of {name}"),
        status,
        text: text.into(),
        class: None,
        next: next.map(str::to_owned),
        agent: Some("claude".into()),
        attempts: 2,
        took_ms: Some(1_260_000),
        usage: UsageSum { input: 90_000, output: 10_000, cost: 0.31, runs: 2, ..UsageSum::default() },
        commit: (status == Status::Completed).then(oid),
        files: 4,
        left_out: vec![],
    }
}

pub(crate) fn morning() -> ReportView {
    let mut merged = report_line("add-lexer", Status::Completed, "merged into overnight/main", None);
    merged.left_out = vec!["big.bin".into()];
    let answer = "answer rename-config \"yes, one release\"";
    ReportView {
        night: Some(NightView {
            number: 3,
            started: Wall(1_796_068_800_000),
            ended: Some(Wall(1_796_068_800_000 + 27_660_000)),
        }),
        projects: vec![ProjectReport {
            project: project(),
            base: Some("main".into()),
            into: Some("overnight/main".into()),
            ahead: Some(17),
            alarms: vec!["main and origin/main went apart".into()],
            merged: vec![merged],
            needs_you: vec![report_line("rename-config", Status::Blocked, "asks: \"Keep the old key?\"", Some(answer))],
            failed: vec![report_line(
                "split-parser",
                Status::Failed,
                "check test failed twice",
                Some("retry split-parser"),
            )],
            aborted: vec![],
            open: vec![report_line("document-endpoints", Status::Queued, "waits for rename-config", None)],
            invalid: vec![InvalidLine {
                place: "tasks/x/README.md".into(),
                line: Some(3),
                reason: "unknown key".into(),
            }],
            usage: usage(),
            by_agent: vec![
                ("claude".into(), usage()),
                ("codex".into(), UsageSum { runs: 1, partial: true, ..UsageSum::default() }),
            ],
        }],
    }
}

pub(crate) fn hostile_report() -> ReportView {
    let mut view = morning();
    let text = all_hostile();
    let project = &mut view.projects[0];
    project.base = Some(text.clone());
    project.into = Some(text.clone());
    project.alarms = vec![text.clone()];
    project.by_agent[0].0.clone_from(&text);
    project.invalid[0] = InvalidLine { place: text.clone(), line: None, reason: text.clone() };
    let lists = [&mut project.merged, &mut project.needs_you, &mut project.failed, &mut project.open];
    for list in lists {
        for line in list.iter_mut() {
            line.title = format!("<script>alert('&')</script>{text}");
            line.text.clone_from(&text);
            line.next = Some(text.clone());
            line.agent = Some(text.clone());
            line.left_out = vec![text.clone()];
        }
    }
    view
}

pub(crate) fn event(text: &str) -> EventLine {
    EventLine {
        seq: 7,
        at: Wall(1_796_079_845_000),
        project: Some(project()),
        task: Some(path("add-lexer")),
        epoch: 4,
        kind: "running".into(),
        text: text.into(),
    }
}

pub(crate) fn one_task() -> TaskView {
    TaskView {
        project: project(),
        line: running(),
        depends_on: vec![path("add-lexer")],
        requester: Some("me".into()),
        labels: vec!["api".into()],
        priority: 5,
        branch: Some("overnight-task/add-health-endpoint".into()),
        base: Some(oid()),
        worktree: Some("/data/worktrees/1".into()),
        merged: None,
        session: Some("s-1".into()),
        question: None,
        files: vec!["src/routes.rs".into()],
        left_out: vec![],
        usage: usage(),
        queued: Some(Wall(1_796_079_000_000)),
        started: Some(Wall(1_796_079_845_000)),
        ended: None,
        runs: vec!["my-repo.add-health-endpoint.4".into()],
        rescues: vec![RescueView { name: "refs/overnight/rescue/x/1".into(), commit: oid(), attempt: Some(1) }],
        journal: vec![event("the brief is written")],
        body: "## Description\n\nReturn build info.\n".into(),
    }
}

pub(crate) fn hostile_task() -> TaskView {
    let text = all_hostile();
    let mut view = one_task();
    view.line.title.clone_from(&text);
    view.line.doing.clone_from(&text);
    view.line.why.clone_from(&text);
    view.line.agent = Some(text.clone());
    view.line.phase.clone_from(&text);
    view.requester = Some(text.clone());
    view.labels = vec![text.clone()];
    view.branch = Some(text.clone());
    view.worktree = Some(text.clone());
    view.session = Some(text.clone());
    view.question = Some(text.clone());
    view.files = vec![text.clone()];
    view.left_out = vec![text.clone()];
    view.runs = vec![text.clone()];
    view.rescues[0].name.clone_from(&text);
    view.journal = vec![EventLine { kind: text.clone(), ..event(&text) }];
    view.body = text;
    view
}
