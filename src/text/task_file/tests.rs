//! Task files as people, tools and attackers write them.

use super::*;
use crate::domain::task::{WishStatus, WishVerb};
use proptest::prelude::*;
use std::time::Duration;

fn path(text: &str) -> TaskPath {
    TaskPath::parse(text).unwrap()
}

fn wish(text: &str) -> Wish {
    read(text.as_bytes(), &path("a/me"), &|_| false).unwrap_or_else(|e| panic!("{e:?}"))
}

fn faults(bytes: &[u8]) -> Vec<(Option<u32>, String)> {
    let invalid = read(bytes, &path("me"), &|_| false).unwrap_err();
    invalid.into_iter().map(|i| (i.line, i.reason)).collect()
}

fn edited(text: &str, changes: &[(Key, Value)]) -> String {
    String::from_utf8(edit(text.as_bytes(), changes).unwrap_or_else(|e| panic!("{e}: {text:?}"))).unwrap()
}

fn list(items: &[&str]) -> Value {
    Value::List(items.iter().map(|i| (*i).to_owned()).collect())
}

#[test]
fn every_key_is_read() {
    let w = wish(
        "---\ntitle: \"A: b # c\"\nstatus: queued\ndepends_on: [./x, y/z, ../r]\npriority: -3\nagent: claude\n\
         model: Sonnet 4.5\nrequester: '@mira'\nlabels: a, b\nattempts: 3\ntimeout: 30m\nchecks:\n  - test\n\
         review: yes\napproved: 1\nwish: abort\nretry: 2\nscript: |\n  one\n  two\nunknown: {x: 1}\n---\n\n# Other\nbody\n",
    );
    assert_eq!((w.title.as_str(), w.status, w.priority), ("A: b # c", WishStatus::Queued, -3));
    assert_eq!(w.depends_on, [path("a/x"), path("r"), path("y/z")]);
    assert_eq!((w.agent.as_deref(), w.model.as_deref()), (Some("claude"), Some("Sonnet 4.5")));
    assert_eq!((w.requester.as_deref(), w.labels), (Some("@mira"), vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!((w.attempts, w.timeout), (Some(3), Some(Duration::from_secs(1800))));
    assert_eq!((w.checks, w.review, w.approved), (Some(vec!["test".to_owned()]), Some(true), Some(1)));
    assert_eq!((w.wish, w.retry), (Some(WishVerb::Abort), 2));
    assert_eq!((w.script, w.body.as_str()), (vec!["one\ntwo\n".to_owned()], "\n# Other\nbody\n"));
}

#[test]
fn titles_come_from_the_heading_or_the_slug() {
    assert_eq!(wish("```\n# no\n```\n# Task: Fix it #\n").title, "Fix it");
    assert_eq!(wish("---\nstatus: queued\ntitle:\n---\n# Fix\n").title, "Fix");
    let w = read(b"", &path("a/fix-the-cookie"), &|_| false).unwrap();
    assert_eq!((w.title.as_str(), w.status), ("fix the cookie", WishStatus::Planning));
    assert_eq!(wish("\u{feff}---\r\ntitle: x\r\n---\r\nb\r\n").body, "b\r\n");
}

#[test]
fn other_dialects_are_understood() {
    let first = "# Fix\n\nText.\n\n## Dependencies\n\n- add-login\n- auth/rotate-keys\n\n## Summary\n\n- not-this\n";
    assert_eq!(wish(first).depends_on, [path("add-login"), path("auth/rotate-keys")]);
    assert_eq!(wish("# Fix\n\n## Dependencies\n\nNone\n\n## Summary\n\nNone\n").depends_on, []);
    let third = "# Task: Fix\n\n**Status:** ⏳&nbsp;`queued`\n**Depends on:** add-login, ../rotate-keys\n";
    let w = wish(&third.replace("&nbsp;", "\u{a0}"));
    assert_eq!((w.status, w.depends_on), (WishStatus::Queued, vec![path("add-login"), path("rotate-keys")]));
    let links = "## Dependencies\n\n* [b](../b/)\n* `c` — needs its table\n";
    assert_eq!(wish(links).depends_on, [path("b"), path("c")]);
    assert_eq!(wish("**Status:** completed\n**Depends on:** —\n").status, WishStatus::Planning);
    assert_eq!(wish("---\ntitle: x\n---\n**Status:** queued\n").status, WishStatus::Planning);
    assert_eq!(faults(b"# x\n\n**Status:** queud\n")[0].0, Some(3));
    assert_eq!(faults(b"# x\n\n## Dependencies\n\n- Add Login\n")[0].0, Some(5));
}

#[test]
fn every_error_names_its_line() {
    let text = "---\r\ntitle: [a]\r\nstatus: completed\r\n# c\r\ndepends_on:\r\n  - ok\r\n  - ../../up\r\n  -\r\n\
                  \x20 - https://h/x\r\npriority: high\r\nattempts: 21\r\ntimeout: 10\r\nreview: maybe\r\nwish: stop\r\n\
                  retry: -1\r\nagent: --dangerous\r\ndepend_on: x\r\ntitle: b\r\nmodel: {a: b}\r\n---\r\n";
    let lines: Vec<_> = faults(text.as_bytes()).iter().map(|f| f.0.unwrap()).collect();
    assert_eq!(lines, [2, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
    let said = faults(b"---\ntitle: x\ndepend_on: y\n---\n");
    assert_eq!(said.len(), 1);
    assert!(said[0].1.contains("depend_on") && said[0].1.contains("`depends_on`"), "{said:?}");
    assert_eq!(faults(b"---\nstatus: queued\nagent: a\nstatus: queued\n---\n")[0].0, Some(4));
    assert_eq!(faults(b"---\ntitle: a: b\n---\n")[0].0, Some(2));
    assert_eq!(faults(b"---\nstatus: queued\n")[0].0, Some(1));
    assert_eq!(faults(b"ok\n\xff\n"), [(Some(2), "not UTF-8: byte 0xff at offset 3".to_owned())]);
    assert_eq!(faults(b"ok\n\0")[0].0, Some(2));
    assert_eq!(faults(b"---\ntitle: \"a\\0b\"\n---\n")[0].0, Some(2));
    assert_eq!(faults(&vec![b'x'; SIZE_MAX + 1])[0].0, None);
}

#[test]
fn conflict_markers_refuse_the_file_except_as_an_example() {
    let body = "---\ntitle: x\n---\n\n<<<<<<< HEAD\na\n=======\nb\n>>>>>>> other\n";
    assert_eq!(faults(body.as_bytes())[0].0, Some(5));
    let front = "---\n<<<<<<< HEAD\ntitle: x\n=======\ntitle: y\n>>>>>>> other\n---\n";
    assert_eq!(faults(front.as_bytes())[0].0, Some(2));
    assert_eq!(faults(b"<<<<<<< HEAD\n---\ntitle: x\n---\n")[0].0, Some(1));
    assert!(wish("---\ntitle: x\n---\n\n```\n<<<<<<< HEAD\n>>>>>>> b\n```\n").body.contains("HEAD"));
}

#[test]
fn alias_bombs_are_refused_at_their_first_anchor() {
    let mut bomb = "---\na: &a [x]\n".to_owned();
    for n in 0..50 {
        bomb.push_str(&format!("a{n}: &b{n} [*a, *a]\n"));
    }
    assert_eq!(faults(format!("{bomb}---\n").as_bytes())[0].0, Some(2));
}

#[test]
fn a_file_of_full_size_costs_no_more_than_its_length() {
    // Quadratic ways would take minutes here.
    let fill = |unit: &str| unit.repeat((SIZE_MAX - 100) / unit.len());
    let keys: String = (0..90_000).map(|n| format!("k{n}: 1\n")).collect();
    for yaml in [
        keys,
        format!("depends_on: [{}]\n", fill("X, ")),
        format!("depends_on:\n{}", fill("- X\n")),
        format!("title: {}", fill("a\n  b")),
        format!("title: \"{}", fill("\\x41\n")),
        format!("title: {}", fill("{")),
        fill("- "),
        fill("? "),
        fill("a: "),
        fill("#\n"),
        format!("script: |\n{}", fill("  a\n\n")),
    ] {
        let text = format!("---\n{yaml}\n---\n");
        let _ = read(text.as_bytes(), &path("me"), &|_| false);
        let _ = edit(text.as_bytes(), &[(Key::Status, Value::Text("queued".into()))]);
    }
    let body = format!("## Dependencies\n{}", fill("- X\n"));
    assert_eq!(faults(body.as_bytes()).len(), FAULTS_MAX);
    let _ = read(fill("```\n").as_bytes(), &path("me"), &|_| false);
}

#[test]
fn unknown_keys_are_kept_and_listed() {
    let text = "---\ntitle: x\n# c\nassignee: mira\ndepend_on: y\n---\n";
    let unknown = unknown_keys(text.as_bytes());
    assert_eq!(unknown, [UnknownKey { key: "assignee".to_owned(), line: 4 }]);
    assert_eq!(wish("---\nassignee: {a: [1]}\n---\n").title, "me");
}

fn regular(bytes: &[u8]) -> FileEntry<'_> {
    FileEntry { kind: EntryKind::Regular, bytes }
}

fn special(kind: EntryKind) -> FileEntry<'static> {
    FileEntry { kind, bytes: b"" }
}

#[test]
fn a_tree_gives_its_tasks_and_lists_what_it_cannot_take() {
    let b = b"---\ndepends_on: [c, d]\n---\n";
    let set = read_all([
        (&b"README.md"[..], regular(b"| board |")),
        (b"a/README.md", regular(b"# A\n")),
        (b"a/b/README.md", regular(b)),
        (b"a/c/README.md", regular(b"\xff")),
        (b"d/README.md", regular(b"")),
        (b"a/state.json", regular(b"{}")),
        (b"a/log.jsonl", regular(b"")),
        (b"a/BOARD.md", regular(b"")),
        (b"a/artifacts/README.md", regular(b"")),
        (b"a/artifacts/x/README.md", regular(b"")),
        (b"a/.README.md.swp", regular(b"")),
        (b"a/README.md~", regular(b"")),
        (b"a/4913", regular(b"")),
        (b"a/#README.md#", regular(b"")),
        (b"link/README.md", special(EntryKind::Symlink)),
        (b"evil", special(EntryKind::Symlink)),
        (b"sub", special(EntryKind::Gitlink)),
        (b"big/README.md", special(EntryKind::TooLarge { size: 9_000_000 })),
        (b"big/dump.bin", special(EntryKind::TooLarge { size: 9_000_000 })),
        (b"p/p/README.md", regular(b"")),
    ]);
    assert_eq!(set.wishes.keys().map(TaskPath::as_str).collect::<Vec<_>>(), ["a", "a/b", "d", "p/p"]);
    assert_eq!(set.wishes[&path("a/b")].depends_on, [path("a/c"), path("d")]);
    let places: Vec<_> = set.invalid.iter().map(|i| i.place.as_str()).collect();
    assert_eq!(places, ["a/c", "big", "evil", "link", "sub"]);
}

#[test]
fn no_hostile_name_becomes_a_task_and_the_others_go_on() {
    let names: &[&[u8]] = &[
        b"..",
        b".",
        b"../../outside",
        b"a/../../b",
        b".git",
        b"/etc/x",
        b"a\0b",
        b"-rf",
        b"CON",
        b" ",
        b"   ",
        b"a\nb",
        "a\u{202e}b".as_bytes(),
        b"A",
        b"Ab",
        "É".as_bytes(),
        "E\u{301}".as_bytes(),
        "é".as_bytes(),
        "ſ".as_bytes(),
        "K".as_bytes(),
        "a\u{200d}".as_bytes(),
        b"\xff",
        b"lock",
        b"x.lock",
        b"$(touch x)",
        b"README.md",
    ];
    let paths: Vec<Vec<u8>> = names.iter().map(|n| [n, &b"/README.md"[..]].concat()).collect();
    let mut entries: Vec<(&[u8], FileEntry<'_>)> = paths.iter().map(|p| (p.as_slice(), regular(b""))).collect();
    entries.push((b"good/README.md", regular(b"")));
    let set = read_all(entries);
    assert_eq!(set.wishes.len(), 1);
    assert_eq!(set.invalid.len(), names.len());
    for invalid in &set.invalid {
        assert_eq!(invalid.place, safe::line(&invalid.place));
        assert_eq!(invalid.reason, safe::line(&invalid.reason));
    }
    let twice = read_all([(&b"a/README.md"[..], regular(b"x")), (b"a/README.md", regular(b"y"))]);
    assert!(twice.wishes.is_empty() && twice.invalid.len() == 1);
}

#[test]
fn edits_touch_one_key_and_nothing_else() {
    let text = "---\r\n# top\r\ntitle:  'A'   # why\r\nstatus: planning\r\ndepends_on: # first\r\n  - a # one\r\n\
                  \x20 - b\r\n# between\r\nlabels: [x,\r\n  y]\r\nscript: |+\r\n  one\r\n\r\n  two\r\n\r\nagent:\r\nzz: 1\r\n---\r\nbody\r\nend";
    let check = |changes: &[(Key, Value)], from: &str, to: &str| {
        assert_eq!(text.matches(from).count(), 1);
        assert_eq!(edited(text, changes), text.replace(from, to));
    };
    check(&[(Key::Status, Value::Text("queued".into()))], "planning", "queued");
    check(&[(Key::Title, Value::Text("B: c".into()))], "'A'", "\"B: c\"");
    check(&[(Key::DependsOn, list(&["a", "b", "c"]))], "- b\r\n", "- b\r\n  - c\r\n");
    check(&[(Key::DependsOn, list(&["c"]))], "- a # one\r\n  - b", "- c");
    check(&[(Key::DependsOn, list(&[]))], " # first\r\n  - a # one\r\n  - b", " [] # first");
    check(&[(Key::DependsOn, Value::Remove)], "depends_on: # first\r\n  - a # one\r\n  - b\r\n", "");
    check(&[(Key::Labels, list(&["q"]))], "[x,\r\n  y]", "[q]");
    check(&[(Key::Script, Value::Text("ls -l".into()))], "|+\r\n  one\r\n\r\n  two", "ls -l");
    check(&[(Key::Agent, Value::Text("codex".into()))], "agent:", "agent: codex");
    check(&[(Key::Agent, Value::Remove)], "agent:\r\n", "");
    check(&[(Key::Retry, Value::Number(2))], "zz: 1\r\n", "zz: 1\r\nretry: 2\r\n");
    check(
        &[(Key::Review, Value::Flag(true)), (Key::Agent, Value::Remove)],
        "agent:\r\nzz: 1\r\n",
        "zz: 1\r\nreview: true\r\n",
    );
    check(&[(Key::Title, Value::Text("A".into())), (Key::Wish, Value::Remove)], "'A'", "'A'");
    check(&[(Key::DependsOn, list(&["a", "b"])), (Key::Labels, list(&["x", "y"]))], "zz", "zz");
}

#[test]
fn a_file_without_front_matter_gets_one_and_loses_nothing_it_said() {
    assert_eq!(edited("", &[(Key::Status, Value::Text("queued".into()))]), "---\nstatus: queued\n---\n");
    let text = "# Fix\r\n\r\n## Dependencies\r\n\r\n- add-login\r\n- ./b\r\n";
    let new = edited(text, &[(Key::Status, Value::Text("queued".into()))]);
    assert_eq!(new, format!("---\r\ndepends_on: [add-login, \"./b\"]\r\nstatus: queued\r\n---\r\n{text}"));
    assert_eq!(wish(&new).depends_on, wish(text).depends_on);
    assert_eq!(edited(text, &[(Key::DependsOn, list(&["add-login", "./b"]))]), text);
    assert_eq!(edited(text, &[(Key::Wish, Value::Remove)]), text);
    assert_eq!(edited(text, &[(Key::DependsOn, Value::Remove)]), format!("---\r\n---\r\n{text}"));
    let bom = "\u{feff}# x\n";
    assert_eq!(edited(bom, &[(Key::Retry, Value::Number(1))]), "\u{feff}---\nretry: 1\n---\n# x\n");
}

#[test]
fn unusual_files_are_refused_not_damaged() {
    let refuse = |text: &str, change: (Key, Value)| edit(text.as_bytes(), &[change]).unwrap_err();
    let queued = || (Key::Status, Value::Text("queued".into()));
    assert!(matches!(refuse("---\n{title: x}\n---\n", queued()), EditError::Unusual { .. }));
    assert!(matches!(refuse("---\n? title\n: x\n---\n", queued()), EditError::Unusual { .. }));
    assert_eq!(edited("---\n? status\n: x\n---\n", &[queued()]), "---\n? status\n: queued\n---\n");
    assert!(matches!(refuse("---\nstatus: x\nstatus: y\n---\n", queued()), EditError::Doubled { line: 3, .. }));
    assert!(matches!(refuse("---\na: 'x\n---\n", queued()), EditError::Unreadable { line: Some(2), .. }));
    assert!(matches!(refuse("", (Key::Title, Value::Text("\0".into()))), EditError::Nul { key: "title" }));
    let indented = "---\n  title: x\n---\n";
    assert_eq!(edited(indented, &[queued()]), "---\n  title: x\n  status: queued\n---\n");
    let next_line = "---\ntitle: # why\n  long\n  text\n---\n";
    assert_eq!(edited(next_line, &[(Key::Title, Value::Text("t".into()))]), "---\ntitle: t # why\n---\n");
}

/// Texts that break out of shells, YAML, Markdown, tables and terminals.
const HOSTILE: &[&str] = &[
    "$(touch /tmp/PWN1)",
    "`touch /tmp/PWN2`",
    "x'; touch /tmp/PWN3; '",
    "x\ntouch /tmp/PWN4",
    "%s%n",
    "${IFS}",
    "a: b",
    "a # b",
    "# a",
    "- a",
    "\"q\" 'q' \\ \\n",
    "{a: [b",
    "true",
    "null",
    "~",
    "1e3",
    "2026-05-04",
    "0x10",
    ".5",
    " lead trail ",
    "\ttab\t",
    "🦀 👩‍👧 é e\u{301}",
    "a\u{202e}b\u{2066}",
    "a\u{2028}b\u{85}c\u{feff}",
    "\u{fffe}\u{ffff}\u{fffd}",
    "\u{1b}[31m\u{7f}\u{1}",
    "x\r\n",
    "---\n...",
    "*a &b !c |d >e %f @g",
    "<<<<<<< HEAD\n>>>>>>> x",
    "\u{e0041}\u{10ffff}",
];

#[test]
fn hostile_titles_come_back_byte_for_byte() {
    for title in HOSTILE {
        let new = create(&NewTask { title: (*title).to_owned(), ..NewTask::default() });
        assert_eq!(wish(&new).title, *title, "{new}");
        let changed = edited("---\ntitle: old\n---\nx", &[(Key::Title, Value::Text((*title).to_owned()))]);
        assert_eq!(wish(&changed).title, *title, "{changed}");
        let script = NewTask { script: vec![(*title).to_owned(), "ls".to_owned()], ..NewTask::default() };
        if !title.trim().is_empty() {
            assert_eq!(wish(&create(&script)).script, [*title, "ls"]);
        }
    }
    assert_eq!(
        create(&NewTask {
            title: "Add login: now".into(),
            status: WishStatus::Queued,
            depends_on: vec!["a/b".into()],
            timeout: Some("30m".into()),
            description: "Do it.\n```\nopen".into(),
            acceptance: "<<<<<<< x".into(),
            ..NewTask::default()
        }),
        "---\ntitle: \"Add login: now\"\nstatus: queued\ndepends_on: [a/b]\ntimeout: 30m\n---\n\n## Description\n\n\
         Do it.\n```\nopen\n```\n\n## Acceptance criteria\n\n <<<<<<< x\n\n## Outstanding questions\n\nNone at this time.\n"
    );
}

/// Front matter lines in many ways of writing, most of them legal.
fn front_line() -> impl Strategy<Value = String> {
    prop_oneof![
        "(title|agent|zz|yy|x y): [a-c]{1,3}( #[a-z ]{0,4})?",
        "(title|model|zz): '([a-c ]|''){0,5}'",
        "(title|model|yy): \"([a-c #:]|\\\\n|\\\\\"){0,6}\" *",
        "(depends_on|labels|zz):( # c)?\n  - [a-c](\n  - \"[a-c]\"( # d)?){0,2}",
        "(depends_on|checks|yy):\n- [a-c](\n# e\n- [a-c]){0,2}",
        "(labels|checks|zz): \\[( ?[a-c],){0,2}\n?  [a-c] ?\\]",
        "(script|title|yy): [|>][+-]?\n  [a-c]{1,3}(\n\n  [a-c] #x)?\n{0,2}",
        "(script|zz): [a-c]+\n  [a-c]+",
        "(agent|model|zz):",
        "# [a-z:'\\[]{0,6}",
        "",
        "(zz|yy): \\{a: [a-c], b: \\[1\\]\\}",
        "(zz|yy):\n  k: v\n  # in\n  l: [a-c]",
        "[a-c: '\"#\\[|-]{0,8}",
    ]
}

fn document() -> impl Strategy<Value = String> {
    let body = "([a-z#`~*: -]|\n|\r\n|\u{202e}|🦀){0,40}";
    (proptest::collection::vec(front_line(), 0..6), body, any::<bool>(), any::<bool>()).prop_map(
        |(lines, body, crlf, front)| {
            let text = if front { format!("---\n{}\n---\n{body}", lines.join("\n")) } else { body };
            if crlf { text.replace("\r\n", "\n").replace('\n', "\r\n") } else { text }
        },
    )
}

fn changes() -> impl Strategy<Value = (Key, Value)> {
    let text = prop_oneof![
        (0..HOSTILE.len()).prop_map(|n| HOSTILE[n].to_owned()),
        "[a-c]{0,3}",
        "\\PC{0,8}",
        "([a-c'\":#,\\[\\]{}|>\n\r\t -]){0,8}"
    ];
    let texts = prop_oneof![Just(Key::Title), Just(Key::Agent), Just(Key::Script), Just(Key::Status)];
    let lists = prop_oneof![Just(Key::DependsOn), Just(Key::Labels), Just(Key::Checks), Just(Key::Script)];
    prop_oneof![
        (texts, text.clone()).prop_map(|(key, text)| (key, Value::Text(text))),
        (lists, proptest::collection::vec(text, 0..4)).prop_map(|(key, items)| (key, Value::List(items))),
        any::<i64>().prop_map(|n| (Key::Retry, Value::Number(n))),
        any::<bool>().prop_map(|f| (Key::Review, Value::Flag(f))),
        (0..Key::ALL.len()).prop_map(|n| (Key::ALL[n], Value::Remove)),
    ]
}

/// The front matter as list of raw `key…value` pieces, without those of `key`.
fn others(text: &str, key: Key) -> Vec<String> {
    let front = parts(text).unwrap().1.unwrap_or_default();
    let others = front.entries.iter().filter(|e| e.key != key.word());
    others.map(|e| text[e.place.start..e.span.end.max(e.place.end)].to_owned()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn an_edit_changes_its_key_and_keeps_every_other_byte(text in document(), (key, value) in changes()) {
        prop_assert_eq!(edit(text.as_bytes(), &[]).ok(), parts(&text).is_ok().then(|| text.clone().into_bytes()));
        let Ok(once) = edit(text.as_bytes(), &[(key, value.clone())]) else { return Ok(()) };
        let once = String::from_utf8(once).unwrap();
        prop_assert_eq!(edited(&once, &[(key, value.clone())]), once.clone(), "a second time changes nothing");
        let had_front = parts(&text).unwrap().1.is_some();
        if had_front {
            prop_assert_eq!(others(&once, key), others(&text, key));
            // What was there is still there, in order, but for one stretch.
            let same_start = text.bytes().zip(once.bytes()).take_while(|(a, b)| a == b).count();
            let (old_rest, new_rest) = (&text.as_bytes()[same_start..], &once.as_bytes()[same_start..]);
            let same_end = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(a, b)| a == b).count();
            let gone = String::from_utf8_lossy(&old_rest[..old_rest.len() - same_end]).into_owned();
            let entry = parts(&text).unwrap().1.unwrap().entries.into_iter().find(|e| e.key == key.word());
            let own = entry.map_or(0, |e| e.span.end.max(e.place.end) - e.place.start);
            prop_assert!(gone.len() <= own + 8 || value == Value::Remove, "{:?} gone from {:?}", gone, text);
        } else {
            prop_assert!(once.ends_with(&text));
        }
        if let (Ok(before), Ok(after)) = (read(text.as_bytes(), &path("me"), &|_| false), read(once.as_bytes(), &path("me"), &|_| false)) {
            prop_assert_eq!(&before.body, &after.body);
            match (&key, &value) {
                (Key::Title, Value::Text(title)) if !title.trim().is_empty() => prop_assert_eq!(&after.title, title),
                (Key::Status, Value::Text(_)) => {}
                (Key::DependsOn, _) => {}
                _ => prop_assert_eq!(&before.depends_on, &after.depends_on),
            }
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..120), front in any::<bool>()) {
        let bytes = if front { [b"---\n", bytes.as_slice(), b"\n---\n"].concat() } else { bytes };
        if let Err(invalid) = read(&bytes, &path("me"), &|_| true) {
            prop_assert!(!invalid.is_empty());
        }
        let _ = unknown_keys(&bytes);
        let _ = edit(&bytes, &[(Key::Title, Value::Text("x".into()))]);
        let _ = read_all([(bytes.as_slice(), regular(&bytes))]);
    }

    #[test]
    fn arbitrary_yaml_does_no_harm(yaml in "([a-z]|[:#\\[\\]{}&*!|>'\"%@,?~ \t\r\n-]){0,60}", (key, value) in changes()) {
        let text = format!("---\n{yaml}\n---\nbody");
        let _ = read(text.as_bytes(), &path("me"), &|_| true);
        let _ = edit(text.as_bytes(), &[(key, value)]);
    }

    #[test]
    fn what_is_created_is_valid(title in "\\PC{0,20}|(?s).{0,20}", text in "([a-z`~<># -]|\n|<<<<<<< x\n){0,60}") {
        prop_assume!(!title.contains('\0') && !title.trim().is_empty());
        let new = create(&NewTask { title: title.clone(), description: text.clone(), questions: text, ..NewTask::default() });
        prop_assert_eq!(wish(&new).title, title);
    }
}
