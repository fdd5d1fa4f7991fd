//! Boards in both dialects, after formatters and people, and against a reader as strict as the other tool's.

use super::*;
use proptest::prelude::*;

fn row(task: &str) -> Row {
    Row {
        task: task.into(),
        title: String::new(),
        status: Status::Queued,
        depends_on: vec![],
        branch: None,
        agent: None,
        requester: None,
        time: None,
    }
}

/// The other tool's reader, by its rules: the first line with `|` and `---` is the rule, every later line with `|` is a
/// row of exactly seven cells, and an unknown status fails the whole file.
fn strict(text: &str) -> Result<Vec<(String, String, Vec<String>)>, String> {
    let mut lines = text.lines().skip_while(|l| !(l.starts_with('|') && l.contains("---")));
    lines.next().ok_or("no rule")?;
    let rows = lines.filter(|l| l.starts_with('|'));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        if cells.len() != 7 {
            return Err(format!("expected 7 columns, got {}: {line}", cells.len()));
        }
        let task = cells[0].split('[').nth(1).and_then(|t| t.split(']').next()).ok_or("no task")?;
        let word = cells[1].split('`').nth(1).ok_or("no status")?;
        Status::parse(word).filter(|s| s.word() == word).ok_or(format!("unknown status {word}"))?;
        let needs = cells[2].split(',').map(|d| d.trim().to_owned()).filter(|d| d != "—").collect();
        Ok((task.to_owned(), word.to_owned(), needs))
    })
    .collect()
}

#[test]
fn the_rendered_board_is_the_dialect_that_others_read() {
    let rows = [
        Row {
            status: Status::Claimed,
            branch: Some("overnight-task/add-login".into()),
            agent: Some("sonnet".into()),
            time: Some(Wall(1_777_885_923_007)),
            ..row("add-login")
        },
        Row {
            title: "Log out, [now] | `x`".into(),
            depends_on: vec!["add-login".into(), "b/c".into()],
            ..row("add-logout")
        },
    ];
    let text = render(&rows, None);
    assert_eq!(
        text,
        "<!-- Written by overnight from the tasks below; changes made here are lost. -->\n# Tasks\n\n\
         | Task | Status | Depends on | Branch | Agent | Requester | Time |\n|---|---|---|---|---|---|---|\n\
         | [add-login](add-login/) | 🔒 `claimed` | — | `overnight-task/add-login` | sonnet | — | 2026-05-04 09:12 |\n\
         | [add-logout](add-logout/) Log out, \\[now\\] ¦ \\`x\\` | ⏳ `queued` | add-login, b/c | — | — | — | — |\n"
    );
    assert_eq!(strict(&text).unwrap().len(), 2);
    let board = parse(&text).unwrap();
    assert_eq!((board.bad.len(), board.rows[1].title.as_str()), (0, "Log out, [now] ¦ `x`"));
    assert_eq!(board.rows[0].time, Some(Wall(1_777_885_920_000)));
    assert!(render(&[], Some("a\n# b")).contains("# Tasks: a\\\\n# b\n"));
}

#[test]
fn the_specified_dialect_is_read() {
    let text = "# Board\n\n| Task | Status | Depends&nbsp;on | Branch | Agent | Requester | Time |\n|---|---|---|---|---|---|---|\n\
        | [rotate-keys](rotate-keys/) | 🔵&nbsp;`in_progress` | — | `synchestra/rotate-keys` | Sonnet&nbsp;4.5 | @mira | 2026-05-04<br>09:12 |\n\
        | [drop](drop/) | ⏳\u{a0}`queued` | rotate-keys,<br>x/y | — | — | @mira | — |\n\n### Recently Finished\n\n\
        | Task | Status | Depends&nbsp;on | Branch | Agent | Requester | Time |\n|---|---|---|---|---|---|---|\n\
        | [audit](audit/) | ✅&nbsp;`complete` | — | — | Haiku&nbsp;4.5 | @mira | 2026-05-04<br>08:40 (1m05s) |\n";
    let board = parse(text).unwrap();
    assert_eq!(board.bad, []);
    let seen: Vec<_> = board.rows.iter().map(|r| (r.task.as_str(), r.status, r.recent)).collect();
    assert_eq!(
        seen,
        [
            ("rotate-keys", Status::InProgress, false),
            ("drop", Status::Queued, false),
            ("audit", Status::Completed, true)
        ]
    );
    assert_eq!(board.rows[0].agent.as_deref(), Some("Sonnet 4.5"));
    assert_eq!(board.rows[1].depends_on, ["rotate-keys", "x/y"]);
    assert_eq!(stamp::minute(board.rows[2].time.unwrap()), "2026-05-04 08:40");
}

#[test]
fn columns_are_known_by_name_and_bad_rows_by_line() {
    let text = "| Note | STATUS | Task | Prio |\n| --- | :---: | --- | --- |\n| a \\| b | QUEUED | x | 1 |\n\
        | n | asleep | y | 2 |\n| short |\n| n | `failed` | z | 3 |\n\n| What | Else |\n|---|---|\n| 1 | 2 |\n\n\
        ```\n| [no](no/) | `queued` |\n```\n\n| Task | Status |\n| bare | In Progress |\n| d | queued |\n| d | failed |\n";
    let board = parse(text).unwrap();
    assert_eq!(
        board.rows.iter().map(|r| (r.task.as_str(), r.line)).collect::<Vec<_>>(),
        [("x", 3), ("z", 6), ("bare", 17)]
    );
    assert_eq!(board.rows[0].extra, [("Note".to_owned(), "a \\| b".to_owned()), ("Prio".to_owned(), "1".to_owned())]);
    assert_eq!(board.bad.iter().map(|b| b.line).collect::<Vec<_>>(), [4, 5, 18, 19]);
    assert!(board.bad[2].reason.contains("18, 19"));
    let headless = "|---|---|---|---|---|---|---|\n| [a](a/) | `queued` | — | — | — | — | — |\n";
    assert_eq!(parse(headless).unwrap().rows.len(), 1);
    assert_eq!(parse("x\n<<<<<<< HEAD\n").unwrap_err().line, 2);
}

proptest! {
    #[test]
    fn no_text_breaks_the_strict_reader(
        title in "(?s)(\\PC|.|[|`\\[\\]<>\\\\]){0,300}",
        odd in "(\\PC|[|`,\\[\\]]|\n){0,12}",
        need in "(\\PC|[|`,]){0,8}",
    ) {
        let hostile = Row {
            title,
            branch: Some(odd.clone()),
            agent: Some(odd.clone()),
            requester: Some(odd),
            depends_on: vec![need],
            ..row("a/b")
        };
        let text = render(&[hostile, row("c")], Some("x | y"));
        let read = strict(&text);
        prop_assert!(read.is_ok(), "{:?}\n{}", read, text);
        prop_assert_eq!(read.unwrap().iter().map(|r| r.0.clone()).collect::<Vec<_>>(), ["a/b", "c"]);
        let board = parse(&text).unwrap();
        prop_assert_eq!((board.rows.len(), board.bad.len()), (2, 0), "{}", text);
    }

    #[test]
    fn arbitrary_text_does_no_harm(text in "([|`\\[\\]<>a-z: -]|\n|\\PC){0,200}") {
        let _ = parse(&text);
    }
}
