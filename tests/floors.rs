//! The floors: which module may use which, and what keeps files readable. One crate lets everything see everything, so
//! the direction is kept here: the source tree is read as text and every offence is named with its file and line.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "floors/code.rs"]
mod code;

use code::{Fault, code_lines, functions, opening, strip, uses, without_tests};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const FILE_MAX: usize = 500;
const FUNCTION_MAX: usize = 70;

/// Module, what it may use, and whether it is pure. `*` stands for every module in a row above it.
/// A row may stand before its module does.
const FLOORS: &[(&str, &[&str], bool)] = &[
    ("domain", &[], true),
    ("agent", &["domain"], true),
    ("decide", &["domain"], true),
    ("text", &["domain"], true),
    ("protocol", &["domain"], true),
    ("git", &["domain", "text"], false),
    // `host` beyond the architecture page's table: the boot id and the boot-time clock are read in one way only.
    ("process", &["domain", "agent", "host"], false),
    ("store", &["domain", "decide"], false),
    ("host", &["domain"], false),
    ("notice", &["domain"], false),
    ("config", &["domain"], false),
    ("logging", &["domain"], false),
    ("daemon", &["*"], false),
    ("setup", &["*"], false),
    ("error", &["domain", "protocol", "config"], false),
    ("client", &["domain", "protocol", "config", "error"], false),
    ("tui", &["domain", "protocol", "config", "client", "error"], false),
    ("web", &["domain", "protocol", "config", "client", "error"], false),
    ("mcp", &["domain", "protocol", "config", "client", "error"], false),
    // `text` beyond the architecture page's table: `add` writes a task's README by the same pure function that reads it.
    ("cli", &["domain", "text", "protocol", "config", "client", "error", "setup", "daemon"], false),
];

/// What a pure floor may not name, and what stands in its place.
const BARRED: &[(&str, &str)] = &[
    ("tokio", "nothing waits here"),
    ("sqlx", "rows are saved by `store`"),
    ("nix::", "the hands talk to the system"),
    ("std::fs", "the hands read and write"),
    ("std::process", "the hands start children"),
    ("std::env", "only `config` reads the environment"),
    ("::now(", "time comes in as a value"),
    ("async fn", "nothing waits here"),
    ("HashMap", "its order differs from run to run; take a BTreeMap"),
];

/// One file's offences, in words.
fn faults(place: &Path, text: &str) -> Vec<Fault> {
    let mut out = Vec::new();
    let module = module_path(place);
    if !opening(text) {
        out.push(Fault { line: 1, text: "opens without `//!` and a full sentence on what it is for".into() });
    }
    let lines = code_lines(text);
    if lines > FILE_MAX {
        out.push(Fault { line: 1, text: format!("{lines} lines of code, more than {FILE_MAX}: split it at a joint") });
    }
    // The binary and the crate's root only put the floors together.
    let Some(top) = module.first().filter(|m| !matches!(m.as_str(), "main" | "lib")) else { return out };
    let Some(at) = FLOORS.iter().position(|(name, ..)| name == top) else {
        out.push(Fault { line: 1, text: format!("module {top} has no row in the table of floors") });
        return out;
    };
    let (_, may, pure) = FLOORS[at];
    let code = strip(if place.ends_with("tests.rs") { "" } else { without_tests(text) });
    for (line, used) in uses(&code, &module) {
        let known = FLOORS.iter().position(|(name, ..)| *name == used);
        let below = may.contains(&"*") && known.is_some_and(|k| k < at);
        if used != *top && known.is_some() && !below && !may.contains(&used.as_str()) {
            out.push(Fault { line, text: format!("{top} may not use {used}") });
        }
    }
    for (line, name, length) in functions(&code) {
        if length > FUNCTION_MAX {
            out.push(Fault { line, text: format!("fn {name} has {length} lines, more than {FUNCTION_MAX}") });
        }
    }
    if pure {
        out.extend(barred(&code));
    }
    out
}

fn barred(code: &str) -> Vec<Fault> {
    let mut out = Vec::new();
    for (n, line) in code.lines().enumerate() {
        for (word, instead) in BARRED {
            // `use std::{fs, …}` names it too.
            let grouped = word.strip_prefix("std::").is_some_and(|last| {
                line.split_once("std::{").is_some_and(|(_, group)| {
                    group.split(|c: char| !c.is_alphanumeric() && c != '_').any(|one| one == last)
                })
            });
            if line.contains(word) || grouped {
                out.push(Fault { line: n + 1, text: format!("{word:?} is barred on a pure floor: {instead}") });
            }
        }
    }
    out
}

/// `src/a/b.rs` is `a::b`, `src/a/mod.rs` is `a`.
fn module_path(place: &Path) -> Vec<String> {
    let mut parts: Vec<String> =
        place.with_extension("").components().map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

fn sources() -> BTreeMap<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut out = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                out.insert(path.strip_prefix(&root).unwrap().to_owned(), text);
            }
        }
    }
    out
}

#[test]
fn every_file_keeps_to_its_floor() {
    let mut all = Vec::new();
    for (place, text) in sources() {
        for fault in faults(&place, &text) {
            all.push(format!("src/{}:{}: {}", place.display(), fault.line, fault.text));
        }
    }
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

#[test]
fn every_module_of_the_tree_is_declared() {
    let files = sources();
    let root = strip(&files[Path::new("lib.rs")]);
    for place in files.keys() {
        let top = module_path(place)[0].clone();
        let declared = root.contains(&format!("mod {top};"));
        assert!(
            declared || matches!(top.as_str(), "lib" | "main"),
            "src/{top} is in no build: lib.rs does not name it"
        );
    }
}

/// A checker that finds nothing proves nothing: each rule is broken once on purpose.
#[test]
fn planted_offences_are_found() {
    let doc = "//! A file with one full sentence.\n";
    let found = |place: &str, body: &str| -> Vec<String> {
        faults(Path::new(place), &format!("{doc}{body}"))
            .into_iter()
            .map(|f| format!("{}: {}", f.line, f.text))
            .collect()
    };
    let table: &[(&str, &str, &str)] = &[
        ("decide/a.rs", "use crate::git::Repo;", "2: decide may not use git"),
        ("decide/a.rs", "use crate::{\n    domain::Oid,\n    text::lint,\n};", "4: decide may not use text"),
        ("decide/a/b.rs", "use super::super::super::store::Row;", "2: decide may not use store"),
        (
            "decide/a.rs",
            "mod inner {\n    fn f() { super::super::super::agent::x() }\n}",
            "3: decide may not use agent",
        ),
        ("domain/a.rs", "fn f() -> crate::decide::Board { x }", "2: domain may not use decide"),
        ("domain/a.rs", "use super::super::{agent as other, text};", "2: domain may not use agent"),
        ("tui/mod.rs", "use crate::daemon::lock;", "2: tui may not use daemon"),
        ("config/mod.rs", "use crate::logging;", "2: config may not use logging"),
        ("text/a.rs", "use std::{fmt, fs};", "\"std::fs\" is barred"),
        ("agent/a.rs", "fn f() { std::time::Instant::now() }", "\"::now(\" is barred"),
        ("protocol/a.rs", "pub async fn f() {}", "\"async fn\" is barred"),
        ("decide/a.rs", "type M = std::collections::HashMap<u8, u8>;", "\"HashMap\" is barred"),
        ("nowhere/a.rs", "", "has no row in the table"),
    ];
    for (place, body, expected) in table {
        let all = found(place, body);
        assert!(all.iter().any(|f| f.contains(expected)), "{place} {body:?} gave {all:?}");
    }
    let long = format!("impl X {{\n    fn long() {{\n{}    }}\n}}\n", "        x();\n".repeat(FUNCTION_MAX));
    assert_eq!(found("git/a.rs", &long), ["3: fn long has 72 lines, more than 70"]);
    assert!(found("git/a.rs", &"const A: u8 = 1;\n".repeat(FILE_MAX))[0].contains("501 lines of code"));
    for bare in ["", "fn main() {}", "//! words\n", "// A comment of the wrong kind.\n"] {
        assert!(!faults(Path::new("main.rs"), bare).is_empty(), "{bare:?} is no opening");
    }
    let clean = [
        ("decide/a.rs", "// crate::git is not used here\nconst A: &str = \"crate::git\";"),
        ("decide/a.rs", "use super::board::Board;\nuse crate::domain::{Oid, time::human};"),
        ("decide/a.rs", "#[cfg(test)]\nmod tests {\n    use std::fs;\n}"),
        ("domain/a.rs", "mod inner {\n    use super::git;\n}"),
        ("daemon/a.rs", "use crate::{decide::Board, git::Repo, logging};"),
        ("setup/a.rs", "use crate::daemon::lock;"),
        ("cli/a.rs", "use crate::{daemon, setup};"),
    ];
    for (place, body) in clean {
        assert_eq!(found(place, body), Vec::<String>::new(), "{place} {body:?}");
    }
}
