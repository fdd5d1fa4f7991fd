//! What is wrong or doubtful in the wishes of a project, each finding with its rule, its place and how to mend it. Pure
//! over what was read; the same findings serve the command line, hooks and the daemon's list of invalid tasks.

use super::markdown;
use super::task_file::unknown_keys;
use crate::domain::TaskPath;
use crate::domain::graph::Graph;
use crate::domain::safe;
use crate::domain::task::{Wish, WishSet};
use std::collections::BTreeSet;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The task is not, or cannot be, done as it stands.
    Error,
    /// It will be done, but perhaps not as meant.
    Warning,
}

/// One thing found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Name of the rule, stable, as in `dependency-cycle`.
    pub rule: &'static str,
    pub severity: Severity,
    /// Task path, or raw name escaped.
    pub place: String,
    /// Line in the task's file, from 1, where one can be named.
    pub line: Option<u32>,
    /// What is wrong, in one line that is safe to show.
    pub text: String,
    /// What to do about it.
    pub mend: String,
}

/// All findings of a set, by place. `ended` says of paths that are in no file any more (archived tasks) whether they
/// are known.
pub fn set(wishes: &WishSet, ended: &dyn Fn(&TaskPath) -> bool) -> Vec<Finding> {
    let mut findings: Vec<Finding> = wishes
        .invalid
        .iter()
        .map(|invalid| Finding {
            line: invalid.line,
            ..error(
                "invalid-task",
                &invalid.place,
                safe::line(&invalid.reason),
                "correct the file, or remove it".into(),
            )
        })
        .collect();
    let invalid: BTreeSet<&str> = wishes.invalid.iter().map(|i| i.place.as_str()).collect();
    for (path, wish) in &wishes.wishes {
        findings.extend(dependencies(path, wish, wishes, &invalid, ended));
    }
    for cycle in Graph::build(wishes.wishes.iter()).cycles() {
        let Some(first) = cycle.first() else { continue };
        let around: Vec<&str> = cycle.iter().chain([first]).map(TaskPath::as_str).collect();
        let text = format!("these tasks wait for each other: {}", around.join(" -> "));
        findings.push(error("dependency-cycle", first.as_str(), text, "take out one of these dependencies".into()));
    }
    findings.sort_by(|a, b| (&a.place, a.line, a.rule, &a.text).cmp(&(&b.place, b.line, b.rule, &b.text)));
    findings
}

/// What only the bytes of one task file show: keys without a meaning, and dependencies said where nobody reads them.
pub fn file(path: &TaskPath, bytes: &[u8]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = unknown_keys(bytes)
        .into_iter()
        .map(|unknown| Finding {
            severity: Severity::Warning,
            line: Some(unknown.line),
            ..error(
                "unknown-key",
                path.as_str(),
                format!("the key {:?} has no meaning here", safe::line(&unknown.key)),
                "remove it, or keep it as a note".into(),
            )
        })
        .collect();
    let text = std::str::from_utf8(bytes).unwrap_or("");
    if text.trim_start_matches('\u{feff}').lines().next().is_some_and(|l| l.trim_end() == "---") {
        let prose = ["**depends on:**", "**status:**"];
        let said = |line: &markdown::Line<'_>| {
            let lower = line.text.trim_start().to_lowercase();
            prose.iter().any(|p| lower.starts_with(p)) || lower.trim_end() == "## dependencies"
        };
        findings.extend(markdown::lines(text, 1, 0).filter(|line| !line.fenced && said(line)).map(|line| Finding {
            severity: Severity::Warning,
            line: Some(line.number),
            ..error(
                "prose-key",
                path.as_str(),
                format!("{:?} is prose in a file with front matter", safe::line(line.text.trim())),
                "say it as `depends_on` or `status` in the front matter".into(),
            )
        }));
    }
    findings
}

fn dependencies(
    path: &TaskPath,
    wish: &Wish,
    wishes: &WishSet,
    invalid: &BTreeSet<&str>,
    ended: &dyn Fn(&TaskPath) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for need in &wish.depends_on {
        if need.is_below(path) {
            let text = format!("it depends on its own sub-task {need}, which it contains and so waits for anyway");
            findings.push(error("dependency-below", path.as_str(), text, format!("remove {need} from `depends_on`")));
        } else if invalid.contains(need.as_str()) {
            let text = format!("it depends on {need}, whose file is invalid");
            findings.push(error("dependency-invalid", path.as_str(), text, format!("correct the file of {need}")));
        } else if !wishes.wishes.contains_key(need) && !ended(need) {
            let text = format!("it depends on {need}, and there is no such task");
            let mend = match similar(need, wishes) {
                Some(other) => format!("did you mean {other}?"),
                None => format!("add {need}, or remove it from `depends_on`"),
            };
            findings.push(error("dependency-missing", path.as_str(), text, mend));
        }
    }
    findings
}

/// A task of the same name elsewhere in the tree: the most common slip in a reference.
fn similar<'a>(need: &TaskPath, wishes: &'a WishSet) -> Option<&'a TaskPath> {
    wishes.wishes.keys().find(|path| path.slug() == need.slug())
}

fn error(rule: &'static str, place: &str, text: String, mend: String) -> Finding {
    Finding { rule, severity: Severity::Error, place: place.to_owned(), line: None, text, mend }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::task_file::{EntryKind, FileEntry, read_all};

    fn lint(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<String> = files.iter().map(|(path, _)| format!("{path}/README.md")).collect();
        let set = read_all(paths.iter().zip(files).map(|(path, (_, text))| {
            (path.as_bytes(), FileEntry { kind: EntryKind::Regular, bytes: text.as_bytes() })
        }));
        let ended = |path: &TaskPath| path.as_str() == "archived";
        super::set(&set, &ended).iter().map(|f| format!("{} {}: {}; {}", f.rule, f.place, f.text, f.mend)).collect()
    }

    #[test]
    fn cycles_are_named_in_full_and_once() {
        let found = lint(&[
            ("x", "---\ndepends_on: y\n---\n"),
            ("y", "---\ndepends_on: z\n---\n"),
            ("z", "---\ndepends_on: x\n---\n"),
            ("s", "---\ndepends_on: s\n---\n"),
            ("m", "---\ndepends_on: x\n---\n"),
            ("k", ""),
        ]);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("dependency-cycle s: these tasks wait for each other: s -> s"), "{found:?}");
        assert!(found[1].contains("x -> y -> z -> x"), "{found:?}");
    }

    #[test]
    fn dependencies_that_cannot_be_met_are_found() {
        let found = lint(&[
            ("a", "---\ndepends_on: [b/c, nowhere, archived, bad, a/d]\n---\n"),
            ("a/d", ""),
            ("q/c", ""),
            ("bad", "---\nstatus: x\n---\n"),
        ]);
        let rules: Vec<&str> = found.iter().map(|f| f.split(';').next().unwrap()).collect();
        for part in [
            "dependency-missing a: it depends on b/c, and there is no such task",
            "dependency-missing a: it depends on nowhere, and there is no such task",
            "dependency-invalid a: it depends on bad, whose file is invalid",
            "dependency-below a: it depends on its own sub-task a/d, which it contains and so waits for anyway",
        ] {
            assert!(rules.contains(&part), "{part} not in {rules:?}");
        }
        assert!(found.iter().any(|f| f.contains("did you mean q/c?")));
        assert!(!found.iter().any(|f| f.contains("archived")));
        assert!(found.iter().any(|f| f.starts_with("invalid-task bad")));
    }

    #[test]
    fn files_tell_of_keys_and_prose_that_nobody_reads() {
        let path = TaskPath::parse("a").unwrap();
        let text = "---\nassignee: x\n---\n\n## Dependencies\n\n```\n**Status:** queued\n```\n**Depends on:** b\n";
        let found: Vec<_> = file(&path, text.as_bytes()).iter().map(|f| (f.rule, f.line)).collect();
        assert_eq!(found, [("unknown-key", Some(2)), ("prose-key", Some(5)), ("prose-key", Some(10))]);
        assert_eq!(file(&path, b"## Dependencies\n\n- b\n"), []);
        assert_eq!(file(&path, b"\xff"), []);
    }
}
