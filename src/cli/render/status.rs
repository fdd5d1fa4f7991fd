//! `status`: alarms first, then each project with a line of numbers and a line for each task: what runs, what waits for
//! a person, what waits for its turn, what ended.

use super::{Paint, Style, columns, count, line, money, pad, tokens};
use crate::domain::status::Status;
use crate::domain::time::human;
use crate::protocol::view::{Counts, ProjectView, StatusView, TaskLine};
use std::time::Duration;

/// Ended tasks that are shown of each project where not all are asked for.
const ENDED: usize = 10;
/// Longest column of paths.
const PATH: usize = 44;
/// Columns that a text gets even on a narrow terminal.
const LEAST: usize = 15;
/// Silence of an agent that is worth a word.
const SILENT: Duration = Duration::from_secs(300);

/// The whole view; with `all`, every ended task of the night is listed.
pub fn status(view: &StatusView, all: bool, style: &Style) -> String {
    let mut out = String::new();
    for alarm in &view.alarms {
        out.push_str(&alarm_line(alarm, style));
    }
    for (project, alarm) in view.projects.iter().flat_map(|p| p.alarms.iter().map(move |a| (p, a))) {
        out.push_str(&alarm_line(&format!("{}: {alarm}", project.project), style));
    }
    match view.daemon.as_str() {
        "working" if view.paused => out.push_str(&hint("paused: nothing new is started · overnight resume", style)),
        "working" => {}
        "none" => out.push_str(&hint("no daemon is running · overnight start", style)),
        other => out.push_str(&hint(&format!("the daemon is {}", line(other)), style)),
    }
    if view.projects.is_empty() {
        out.push_str("  no projects · overnight init makes a repository one\n");
    }
    for (i, one) in view.projects.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        out.push_str(&project(one, all, style));
    }
    out
}

/// A word for people for how a task stands.
pub fn word(task: &TaskLine) -> String {
    match task.status {
        Status::Claimed | Status::InProgress if task.phase == "backoff" => "put aside".into(),
        Status::Claimed | Status::InProgress if !task.phase.is_empty() => line(&task.phase).replace('_', " "),
        Status::Blocked => "needs you".into(),
        status => status.word().replace('_', " "),
    }
}

/// The sign before a task and its colour.
pub fn sign(status: Status) -> (&'static str, Paint) {
    match status {
        Status::Planning => ("◌", Paint::Quiet),
        Status::Queued => ("○", Paint::Quiet),
        Status::Claimed | Status::InProgress => ("●", Paint::Busy),
        Status::Blocked => ("?", Paint::Attention),
        Status::Completed => ("✓", Paint::Good),
        Status::Failed | Status::Aborted => ("✗", Paint::Bad),
    }
}

fn alarm_line(text: &str, style: &Style) -> String {
    format!("  {} {}\n", style.paint(Paint::Bad, "!"), style.fit(&line(text), 4, 40))
}

fn hint(text: &str, style: &Style) -> String {
    format!("  {}\n", style.paint(Paint::Attention, text))
}

fn project(view: &ProjectView, all: bool, style: &Style) -> String {
    let mut tasks: Vec<&TaskLine> = view.tasks.iter().collect();
    tasks.sort_by_key(|task| rank(task.status));
    let open = tasks.iter().take_while(|task| !task.status.is_final()).count();
    let kept = if all { tasks.len() } else { open + ENDED.min(tasks.len() - open) };
    let left_out = tasks.len() - kept;
    tasks.truncate(kept);

    let widths = Widths::of(&tasks);
    let name = view.project.as_str();
    let mut numbers = numbers(&view.counts);
    if view.paused {
        numbers.push_str(" · paused");
    }
    let spent: Vec<String> = [money(&view.usage), tokens(&view.usage)].into_iter().flatten().collect();
    let head = pad(name, widths.path + 2);
    let used = 2 + columns(&head) + 3 + columns(&numbers);
    let mut out = format!("  {}   {numbers}", style.paint(Paint::Strong, &head));
    if !spent.is_empty() {
        let spent = spent.join(" · ");
        // At the right where there is room, else below.
        let gap = match style.width.map(|width| width.checked_sub(used + columns(&spent) + 1)) {
            Some(Some(room)) if room >= 3 => " ".repeat(room),
            Some(_) => format!("\n{}", " ".repeat(2 + columns(&head) + 3)),
            None => "   ".into(),
        };
        out.push_str(&format!("{gap}{}", style.paint(Paint::Quiet, &spent)));
    }
    out.push('\n');
    for task in tasks {
        out.push_str(&row(task, &widths, style));
    }
    if left_out > 0 {
        out.push_str(&format!("    … and {} more that ended this night · overnight status --all\n", left_out));
    }
    if view.more > 0 {
        out.push_str(&format!("    … and {} more that are queued or ended\n", view.more));
    }
    for invalid in &view.invalid {
        let at = invalid.line.map_or_else(String::new, |n| format!(":{n}"));
        let text = format!("{}{at}: {}", line(&invalid.place), line(&invalid.reason));
        out.push_str(&format!("  {} {}\n", style.paint(Paint::Bad, "!"), style.fit(&text, 4, 40)));
    }
    for cycle in &view.cycles {
        let text = format!("these wait for each other: {}", line(cycle));
        out.push_str(&format!("  {} {}\n", style.paint(Paint::Bad, "!"), style.fit(&text, 4, 40)));
    }
    out
}

/// `1 running · 1 waiting · 0 merged`, and what else is not zero.
pub fn numbers(counts: &Counts) -> String {
    let mut parts = vec![format!("{} running", counts.running)];
    let mut add = |n: u32, text: &str| {
        if n > 0 {
            parts.push(format!("{n} {text}"));
        }
    };
    add(counts.merging, "merging");
    add(counts.needs_you, if counts.needs_you == 1 { "needs you" } else { "need you" });
    parts.push(format!("{} waiting", counts.queued));
    let mut add = |n: u32, text: &str| {
        if n > 0 {
            parts.push(format!("{n} {text}"));
        }
    };
    add(counts.planning, "in planning");
    add(counts.doomed, "cannot start");
    add(counts.failed, "failed");
    add(counts.aborted, "aborted");
    parts.push(format!("{} merged", counts.merged));
    parts.join(" · ")
}

/// What runs first, then what needs a person, then what waits, then what ended.
fn rank(status: Status) -> u8 {
    match status {
        Status::InProgress | Status::Claimed => 0,
        Status::Blocked => 1,
        Status::Queued => 2,
        Status::Planning => 3,
        Status::Failed => 4,
        Status::Aborted => 5,
        Status::Completed => 6,
    }
}

fn is_active(task: &TaskLine) -> bool {
    matches!(task.status, Status::InProgress | Status::Claimed)
}

/// The widths of the columns of one project.
struct Widths {
    path: usize,
    word: usize,
    agent: usize,
    time: usize,
}

impl Widths {
    fn of(tasks: &[&TaskLine]) -> Self {
        let widest = |cell: &dyn Fn(&TaskLine) -> String| tasks.iter().map(|t| columns(&cell(t))).max().unwrap_or(0);
        let active = |cell: &dyn Fn(&TaskLine) -> String| {
            tasks.iter().filter(|t| is_active(t)).map(|t| columns(&cell(t))).max().unwrap_or(0)
        };
        Self {
            path: widest(&|t| t.path.to_string()).min(PATH),
            word: widest(&word),
            agent: active(&agent),
            time: active(&lasting),
        }
    }
}

fn agent(task: &TaskLine) -> String {
    task.agent.as_deref().map(line).unwrap_or_default()
}

fn lasting(task: &TaskLine) -> String {
    human(Duration::from_millis(task.for_ms))
}

fn row(task: &TaskLine, widths: &Widths, style: &Style) -> String {
    let (mark, paint) = sign(task.status);
    let path = pad(&super::fit(task.path.as_str(), PATH), widths.path);
    let word = pad(&word(task), widths.word);
    let mut used = 4 + widths.path + 3 + widths.word + 3;
    let mut cells = String::new();
    let mut end = String::new();
    if is_active(task) {
        cells = format!("{}   {}   ", pad(&agent(task), widths.agent), pad(&lasting(task), widths.time));
        used += widths.agent + widths.time + 6;
        end = attempt(task);
    }
    // On a narrow terminal the text is worth more than the count.
    if style.width.is_some_and(|width| width < used + columns(&end) + 3 + LEAST) {
        end.clear();
    }
    let room = if end.is_empty() { 0 } else { columns(&end) + 3 };
    let text = style.fit(&about(task), used + room, LEAST);
    if !end.is_empty() {
        end = format!("   {}", style.paint(Paint::Quiet, &end));
    }
    let row = format!("  {} {path}   {}   {cells}{text}{end}", style.paint(paint, mark), style.paint(paint, &word));
    format!("{}\n", row.trim_end())
}

fn attempt(task: &TaskLine) -> String {
    match (task.attempt, task.attempts) {
        (0, _) | (_, 0) => String::new(),
        (n, of) => format!("attempt {n} of {of}"),
    }
}

/// What a task does or waits for, without the status word that stands beside it already.
pub fn about(task: &TaskLine) -> String {
    let mut text = if is_active(task) && !task.doing.is_empty() { line(&task.doing) } else { reason(task) };
    let silent = task.last_output_ms.filter(|ms| *ms <= task.for_ms).map(Duration::from_millis);
    if let Some(silent) = silent.filter(|silent| is_active(task) && *silent >= SILENT) {
        let gap = if text.is_empty() { "" } else { ", " };
        text.push_str(&format!("{gap}silent for {}", human(silent)));
    }
    text
}

fn reason(task: &TaskLine) -> String {
    let why = line(&task.why);
    let words = [task.status.word().replace('_', " "), task.status.word().to_owned()];
    let bare = words.iter().find_map(|word| why.strip_prefix(word.as_str())?.strip_prefix(": "));
    match (bare.unwrap_or(&why), &task.reason) {
        ("" | ".", Some(reason)) => line(&reason.text),
        (text, _) => text.to_owned(),
    }
}

/// One line for `start`: what the daemon watches and where it merges.
pub fn watching(view: &StatusView) -> String {
    let mut out = String::new();
    for project in &view.projects {
        let queued = project.counts.queued as usize;
        let mut parts = vec![format!("{} queued", count(queued, "task"))];
        if project.counts.running > 0 {
            parts.push(format!("{} running", project.counts.running));
        }
        parts.push(count(project.slots as usize, "slot"));
        match (&project.into, &project.base) {
            (Some(into), Some(base)) if into != base => {
                parts.push(format!("merges into {} ({} stays untouched)", line(into), line(base)));
            }
            (Some(into), _) => parts.push(format!("merges into {}", line(into))),
            (None, _) => {}
        }
        out.push_str(&format!("  watching {} · {}\n", project.project, parts.join(" · ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{self, HOSTILE};
    use super::*;

    #[test]
    fn the_evening_looks_like_this() {
        let shown = status(&fixtures::evening(), false, &Style::PLAIN);
        assert_eq!(
            shown,
            "  ! the disk of /home is 97 % full
  ! my-repo: main and origin/main went apart
  my-repo                 1 running · 1 needs you · 1 waiting · 1 failed · 1 merged   at least $0.41 · at least 2.1 M tokens
  ● add-health-endpoint   running     claude   3m12s   editing src/routes.rs   attempt 1 of 3
  ? rename-config         needs you   it asks: Keep the old key? Answer with `overnight answer rename-config \"…\"`.
  ○ document-endpoints    queued      waits for add-health-endpoint (running). It starts when that is merged.
  ✗ split-parser          failed      check test failed twice
  ✓ add-lexer             completed   merged as abcdef0123
  ! tasks/Bad Name: slug \"Bad Name\" may hold only a-z
"
        );
    }

    #[test]
    fn long_texts_are_cut_to_the_terminal_and_colours_are_plain_sgr() {
        let style = Style { colour: true, width: Some(72), ..Style::PLAIN };
        let shown = status(&fixtures::evening(), false, &style);
        let bare = strip(&shown);
        assert!(bare.lines().filter(|l| !l.contains(" waiting ·")).all(|l| columns(l) <= 72), "{bare}");
        assert!(shown.contains("\u{1b}[36m●\u{1b}[0m add-health-endpoint"), "{shown:?}");
        assert!(bare.contains("○ document-endpoints    queued      waits for add-health-endpoint (ru…"), "{bare}");
    }

    #[test]
    fn hostile_texts_cannot_act() {
        for style in [Style::PLAIN, Style { width: Some(200), ..Style::PLAIN }] {
            let shown = status(&fixtures::hostile_status(), true, &style);
            assert!(!shown.chars().any(|c| c != '\n' && crate::domain::safe::is_unsafe(c)), "{shown:?}");
            assert_eq!(shown.lines().count(), 8 + HOSTILE.len(), "{shown}");
        }
    }

    #[test]
    fn states_of_the_daemon_are_said_and_many_ended_tasks_summed_up() {
        let mut view = fixtures::evening();
        view.daemon = "none".into();
        assert!(status(&view, false, &Style::PLAIN).contains("  no daemon is running · overnight start\n"));
        view.daemon = "working".into();
        view.paused = true;
        assert!(status(&view, false, &Style::PLAIN).contains("overnight resume"));
        let done = view.projects[0].tasks.last().unwrap().clone();
        view.projects[0].tasks.extend(vec![done; 20]);
        let shown = status(&view, false, &Style::PLAIN);
        assert!(shown.contains("… and 12 more that ended this night · overnight status --all"), "{shown}");
        assert!(!status(&view, true, &Style::PLAIN).contains("more that ended"));
        assert!(status(&StatusView::default(), false, &Style::PLAIN).contains("overnight init"));
    }

    #[test]
    fn starting_says_what_is_watched() {
        assert_eq!(
            watching(&fixtures::evening()),
            "  watching my-repo · 1 task queued · 1 running · 2 slots · merges into overnight/main (main stays untouched)\n"
        );
    }

    fn strip(text: &str) -> String {
        let mut out = text.to_owned();
        for code in ["1", "2", "31", "32", "33", "36", "0"] {
            out = out.replace(&format!("\u{1b}[{code}m"), "");
        }
        out
    }
}
