//! `show`: one task with its facts, most important first, and the lists of tasks and rescues.

use super::{Paint, Style, block, columns, line, money, pad, status, tokens};
use crate::protocol::view::{RescueView, TaskLine, TaskView};

/// Files that are named before the rest is counted.
const FILES: usize = 12;

/// Everything about one task.
pub fn task(view: &TaskView, style: &Style) -> String {
    let (mark, paint) = status::sign(view.line.status);
    let mut out = format!(
        "{} {}   {}   {}\n  {}\n\n",
        style.paint(paint, mark),
        style.paint(Paint::Strong, view.line.path.as_str()),
        style.paint(paint, &status::word(&view.line)),
        line(&view.line.title),
        line(&view.line.why)
    );
    for (label, text) in facts(view, style) {
        out.push_str(&format!("  {} {text}\n", style.paint(Paint::Quiet, &pad(label, 11))));
    }
    out.push_str(&rescues(&view.rescues, style));
    if !view.journal.is_empty() {
        out.push('\n');
        for event in &view.journal {
            out.push_str(&format!("  {}", super::events::event(event, true, &Style { width: None, ..*style })));
        }
    }
    let body = block(&view.body);
    if !body.trim().is_empty() {
        out.push('\n');
        for text in body.trim_end().lines() {
            out.push_str(format!("  {} {text}", style.paint(Paint::Quiet, "│")).trim_end());
            out.push('\n');
        }
    }
    out
}

fn facts(view: &TaskView, style: &Style) -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    let mut put = |label: &'static str, text: Option<String>| {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            out.push((label, text));
        }
    };
    let list = |items: &[String]| items.iter().map(|item| line(item)).collect::<Vec<_>>().join(", ");
    put("asks", view.question.as_deref().map(line));
    put("after", Some(view.depends_on.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")));
    let attempt = (view.line.attempt > 0).then(|| format!("attempt {} of {}", view.line.attempt, view.line.attempts));
    put("agent", join([view.line.agent.as_deref().map(line), attempt]));
    put("doing", Some(status::about(&view.line)).filter(|_| !view.line.doing.is_empty()));
    put("priority", (view.priority != 0).then(|| view.priority.to_string()));
    put("labels", Some(list(&view.labels)));
    put("requester", view.requester.as_deref().map(line));
    put("branch", view.branch.as_deref().map(line));
    put("started at", view.base.as_ref().map(|oid| oid.short().to_owned()));
    put("worktree", view.worktree.as_deref().map(line));
    put("merged as", view.merged.as_ref().map(|oid| oid.short().to_owned()));
    put("session", view.session.as_deref().map(line));
    put("files", Some(some(&view.files)));
    put("left out", Some(some(&view.left_out)));
    put("used", join([money(&view.usage), tokens(&view.usage)]));
    put("queued", view.queued.map(|at| style.moment(at)));
    put("started", view.started.map(|at| style.moment(at)));
    put("ended", view.ended.map(|at| style.moment(at)));
    put("runs", (!view.runs.is_empty()).then(|| format!("{} · overnight logs {}", view.runs.len(), view.line.path)));
    out
}

fn join<const N: usize>(parts: [Option<String>; N]) -> Option<String> {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(" · "))
}

fn some(files: &[String]) -> String {
    let shown: Vec<String> = files.iter().take(FILES).map(|file| line(file)).collect();
    match files.len().saturating_sub(FILES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// What is kept of a task's attempts, with the commits it is kept at.
pub fn rescues(rescues: &[RescueView], style: &Style) -> String {
    let mut out = String::new();
    for rescue in rescues {
        let attempt = rescue.attempt.map_or_else(String::new, |n| format!("attempt {n} · "));
        let text = format!("{attempt}{} · {}", rescue.commit.short(), line(&rescue.name));
        out.push_str(&format!("  {} {text}\n", style.paint(Paint::Quiet, &pad("kept", 11))));
    }
    out
}

/// Tasks in a table: sign, path, word, title.
pub fn list(tasks: &[&TaskLine], style: &Style) -> String {
    let widest = tasks.iter().map(|t| columns(t.path.as_str())).max().unwrap_or(0);
    let words = tasks.iter().map(|t| columns(&status::word(t))).max().unwrap_or(0);
    let mut out = String::new();
    for task in tasks {
        let (mark, paint) = status::sign(task.status);
        let (path, word) = (pad(task.path.as_str(), widest), pad(&status::word(task), words));
        let title = style.fit(&line(&task.title), 10 + widest + words, 20);
        let row = format!("  {} {path}   {}   {title}", style.paint(paint, mark), style.paint(paint, &word));
        out.push_str(row.trim_end());
        out.push('\n');
    }
    if tasks.is_empty() {
        out.push_str("  no tasks · overnight add \"…\"\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn one_task_in_full() {
        assert_eq!(
            task(&fixtures::one_task(), &Style::PLAIN),
            "● add-health-endpoint   running   add health endpoint
  in progress: claude works on it, 3m12s; attempt 1 of 3.

  after       add-lexer
  agent       claude · attempt 1 of 3
  doing       editing src/routes.rs
  priority    5
  labels      api
  requester   me
  branch      overnight-task/add-health-endpoint
  started at  abcdef0123
  worktree    /data/worktrees/1
  session     s-1
  files       src/routes.rs
  used        at least $0.41 · at least 2.1 M tokens
  queued      30 Nov 22:50
  started     30 Nov 23:04
  runs        1 · overnight logs add-health-endpoint
  kept        attempt 1 · abcdef0123 · refs/overnight/rescue/x/1

  30 Nov 23:04  add-lexer                 running       the brief is written

  │ ## Description
  │
  │ Return build info.
"
        );
    }

    #[test]
    fn hostile_texts_cannot_act() {
        let shown = task(&fixtures::hostile_task(), &Style::PLAIN);
        assert!(!shown.chars().any(|c| c != '\n' && crate::domain::safe::is_unsafe(c)), "{shown:?}");
        assert!(shown.lines().all(|l| !l.starts_with('✓')), "{shown}");
    }

    #[test]
    fn lists_are_aligned() {
        let view = fixtures::evening();
        let tasks: Vec<&TaskLine> = view.projects[0].tasks.iter().take(2).collect();
        assert_eq!(
            list(&tasks, &Style::PLAIN),
            "  ○ document-endpoints    queued    document endpoints\n  ● add-health-endpoint   running   add health endpoint\n"
        );
        assert!(list(&[], &Style::PLAIN).contains("no tasks"));
    }
}
