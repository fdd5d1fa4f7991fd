//! A night in review as Markdown: what was merged, what needs the reader and the command to type, what failed, what is
//! still open, and the totals.

use super::{Paint, Style, count, line, money, tokens};
use crate::domain::time::human;
use crate::protocol::view::{NightView, ProjectReport, ReportLine, ReportView};
use std::time::Duration;

/// Files left out of commits that are named before the rest is counted.
const LEFT_OUT: usize = 5;

/// The whole report.
pub fn report(view: &ReportView, style: &Style) -> String {
    let mut out = format!("{}\n", style.paint(Paint::Strong, &format!("# {}", title(view, style))));
    for project in &view.projects {
        if view.projects.len() > 1 {
            out.push_str(&format!("\n{}\n", style.paint(Paint::Strong, &format!("## {}", project.project))));
        }
        out.push_str(&one(project, style));
    }
    if view.projects.is_empty() {
        out.push_str("\nNothing was worked on.\n");
    }
    out
}

/// `Night of 30 Nov – 1 Dec · my-repo · 7h41m`.
pub fn title(view: &ReportView, style: &Style) -> String {
    let mut parts = vec![view.night.as_ref().map_or_else(|| "No night yet".to_owned(), |night| days(night, style))];
    if let [only] = view.projects.as_slice() {
        parts.push(only.project.to_string());
    }
    if let Some(NightView { started, ended, .. }) = &view.night {
        parts.push(ended.map_or_else(|| "still going".to_owned(), |ended| human(ended.since(*started))));
    }
    parts.join(" · ")
}

fn days(night: &NightView, style: &Style) -> String {
    let first = style.day(night.started);
    match night.ended.map(|ended| style.day(ended)) {
        Some(last) if last != first => format!("Night of {first} – {last}"),
        _ => format!("Night of {first}"),
    }
}

/// `merged 17 · needs you 2 · failed 1 · $11.20 · 2.1 M tokens`.
pub fn totals(project: &ProjectReport) -> String {
    let mut parts = vec![format!("merged {}", project.merged.len())];
    let others = [
        ("needs you", project.needs_you.len()),
        ("failed", project.failed.len()),
        ("aborted", project.aborted.len()),
        ("still open", project.open.len()),
    ];
    parts.extend(others.iter().filter(|(_, n)| *n > 0).map(|(word, n)| format!("{word} {n}")));
    parts.extend(money(&project.usage));
    parts.extend(tokens(&project.usage));
    parts.join(" · ")
}

/// The lists of a project in the order of their urgency, with their headings.
pub fn sections(project: &ProjectReport) -> [(&'static str, &[ReportLine]); 5] {
    [
        ("Needs you", &project.needs_you),
        ("Failed", &project.failed),
        ("Merged", &project.merged),
        ("Still open", &project.open),
        ("Aborted", &project.aborted),
    ]
}

/// `17 commits wait in overnight/main`, where some do.
pub fn ahead(project: &ProjectReport) -> Option<String> {
    let (n, into, base) = (project.ahead?, project.into.as_ref()?, project.base.as_ref()?);
    (n > 0).then(|| format!("{} in {} that {} does not have", count(n as usize, "commit"), line(into), line(base)))
}

fn one(project: &ProjectReport, style: &Style) -> String {
    let mut out = format!("\n{}\n", totals(project));
    for alarm in &project.alarms {
        out.push_str(&format!("\n> {} {}\n", style.paint(Paint::Bad, "!"), line(alarm)));
    }
    for (heading, lines) in sections(project) {
        if lines.is_empty() {
            continue;
        }
        out.push_str(&format!("\n{}\n\n", style.paint(Paint::Strong, &format!("### {heading}"))));
        for task in lines {
            out.push_str(&entry(task, style));
        }
    }
    if !project.invalid.is_empty() {
        out.push_str(&format!("\n{}\n\n", style.paint(Paint::Strong, "### Task files that cannot be read")));
        for invalid in &project.invalid {
            let at = invalid.line.map_or_else(String::new, |n| format!(":{n}"));
            out.push_str(&format!("- {}{at}: {}\n", line(&invalid.place), line(&invalid.reason)));
        }
    }
    if project.by_agent.len() > 1 {
        out.push_str(&format!("\n{}\n\n", style.paint(Paint::Strong, "### Agents")));
        for (agent, usage) in &project.by_agent {
            let parts: Vec<String> =
                [Some(count(usage.runs as usize, "run")), money(usage), tokens(usage)].into_iter().flatten().collect();
            out.push_str(&format!("- {}: {}\n", line(agent), parts.join(" · ")));
        }
    }
    if let Some(ahead) = ahead(project) {
        out.push_str(&format!("\n{ahead}: `overnight diff`, then `overnight land`\n"));
    }
    out
}

fn entry(task: &ReportLine, style: &Style) -> String {
    let (_, paint) = super::status::sign(task.status);
    let text = line(&task.text);
    let about = if text.is_empty() { line(&task.title) } else { format!("{} — {text}", line(&task.title)) };
    let mut out = format!("- {} {about}\n", style.paint(paint, &format!("**{}**", task.path)));
    let details = details(task);
    if !details.is_empty() {
        out.push_str(&format!("  {}\n", style.paint(Paint::Quiet, &details)));
    }
    if let Some(left_out) = left_out(task) {
        out.push_str(&format!("  {left_out}\n"));
    }
    if let Some(next) = next(task) {
        out.push_str(&format!("  `{next}`\n"));
    }
    out
}

/// `claude · 2 attempts · 21m00s · $0.31 · 4 files · abcdef0123`.
pub fn details(task: &ReportLine) -> String {
    let parts = [
        task.agent.as_deref().map(line),
        (task.attempts > 1).then(|| count(task.attempts as usize, "attempt")),
        task.took_ms.map(|ms| human(Duration::from_millis(ms))),
        money(&task.usage),
        (task.files > 0).then(|| count(task.files as usize, "file")),
        task.commit.as_ref().map(|oid| oid.short().to_owned()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// What was not committed for the agent.
pub fn left_out(task: &ReportLine) -> Option<String> {
    let names: Vec<String> = task.left_out.iter().take(LEFT_OUT).map(|name| line(name)).collect();
    match task.left_out.len().saturating_sub(LEFT_OUT) {
        _ if names.is_empty() => None,
        0 => Some(format!("left out: {}", names.join(", "))),
        more => Some(format!("left out: {} and {more} more", names.join(", "))),
    }
}

/// The command to type.
pub fn next(task: &ReportLine) -> Option<String> {
    task.next.as_deref().map(|next| format!("overnight {}", line(next)))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn the_morning_looks_like_this() {
        assert_eq!(
            report(&fixtures::morning(), &Style::PLAIN),
            "# Night of 30 Nov – 1 Dec · my-repo · 7h41m

merged 1 · needs you 1 · failed 1 · still open 1 · at least $0.41 · at least 2.1 M tokens

> ! main and origin/main went apart

### Needs you

- **rename-config** The title of rename-config — asks: \"Keep the old key?\"
  claude · 2 attempts · 21m00s · $0.31 · 4 files
  `overnight answer rename-config \"yes, one release\"`

### Failed

- **split-parser** The title of split-parser — check test failed twice
  claude · 2 attempts · 21m00s · $0.31 · 4 files
  `overnight retry split-parser`

### Merged

- **add-lexer** The title of add-lexer — merged into overnight/main
  claude · 2 attempts · 21m00s · $0.31 · 4 files · abcdef0123
  left out: big.bin

### Still open

- **document-endpoints** The title of document-endpoints — waits for rename-config
  claude · 2 attempts · 21m00s · $0.31 · 4 files

### Task files that cannot be read

- tasks/x/README.md:3: unknown key

### Agents

- claude: 3 runs · at least $0.41 · at least 2.1 M tokens
- codex: 1 run · cost unknown · tokens unknown

17 commits in overnight/main that main does not have: `overnight diff`, then `overnight land`
"
        );
    }

    #[test]
    fn a_night_that_goes_on_or_never_was() {
        let mut view = fixtures::morning();
        view.night.as_mut().unwrap().ended = None;
        assert!(report(&view, &Style::PLAIN).starts_with("# Night of 30 Nov · my-repo · still going\n"));
        assert_eq!(report(&ReportView::default(), &Style::PLAIN), "# No night yet\n\nNothing was worked on.\n");
    }

    #[test]
    fn hostile_texts_cannot_act_or_start_a_line() {
        let shown = report(&fixtures::hostile_report(), &Style::PLAIN);
        assert!(!shown.chars().any(|c| c != '\n' && crate::domain::safe::is_unsafe(c)), "{shown:?}");
        assert_eq!(shown.lines().count(), report(&fixtures::morning(), &Style::PLAIN).lines().count() + 5);
    }
}
