//! Boards: the table of tasks that people look at. They are rendered from facts and never read for truth; reading them
//! serves import and comparison with other tools, in both of their dialects.
//!
//! `tasks/README.md` is the root's board. A task with sub-tasks has one in `tasks/<path>/BOARD.md`: its README is a
//! person's wish, which is not edited.

mod parse;

pub use parse::{BadRow, Board, BoardRow, Refused, parse};

use super::stamp;
use crate::domain::Wall;
use crate::domain::safe;
use crate::domain::status::Status;

/// File name of a sub-task board within the folder of its task.
pub const SUB_BOARD: &str = "BOARD.md";
/// What stands for an empty cell.
const NONE: &str = "—";
/// Longest title in a row, in bytes.
const TITLE_MAX: usize = 120;

/// One task as a board shows it. All texts may be hostile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Path of the task, relative to the board's folder.
    pub task: String,
    pub title: String,
    pub status: Status,
    pub depends_on: Vec<String>,
    pub branch: Option<String>,
    pub agent: Option<String>,
    pub requester: Option<String>,
    /// When it reached this status; shown in UTC.
    pub time: Option<Wall>,
}

/// The board as a whole file. The table is the one that other tools write themselves, as strictly as their reader takes
/// it: seven columns, one table, the bare status word between backticks, no `|` inside a cell (their reader knows no
/// `\|`, so a look-alike stands for it). `title` names what the board is of; `None` is the root.
pub fn render(rows: &[Row], title: Option<&str>) -> String {
    let mut out =
        String::from("<!-- Written by overnight from the tasks below; changes made here are lost. -->\n# Tasks");
    if let Some(title) = title {
        out.push_str(": ");
        out.push_str(&prose(title));
    }
    out.push_str(
        "\n\n| Task | Status | Depends on | Branch | Agent | Requester | Time |\n|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let task = cell(&row.task).replace(['[', ']', '(', ')', ' '], "_");
        let title = prose(&row.title);
        let gap = if title.is_empty() { "" } else { " " };
        let needs: Vec<String> = row.depends_on.iter().map(|need| cell(need).replace(',', "_")).collect();
        let branch = row.branch.as_deref().map(|b| format!("`{}`", cell(b))).filter(|b| b != "``");
        let cells = [
            format!("[{task}]({task}/){gap}{title}"),
            format!("{} `{}`", row.status.sign(), row.status.word()),
            needs.join(", "),
            branch.unwrap_or_default(),
            row.agent.as_deref().map(cell).unwrap_or_default(),
            row.requester.as_deref().map(cell).unwrap_or_default(),
            row.time.map(stamp::minute).unwrap_or_default(),
        ];
        for text in cells {
            out.push_str("| ");
            out.push_str(if text.is_empty() { NONE } else { &text });
            out.push(' ');
        }
        out.push_str("|\n");
    }
    out
}

/// Text for a cell in which Markdown has no business.
fn cell(text: &str) -> String {
    safe::line(text).replace('|', "¦").replace('`', "'").replace('<', "‹").replace('>', "›").trim().to_owned()
}

/// Free text: Markdown in it is shown and not obeyed.
fn prose(text: &str) -> String {
    let text = safe::line(text);
    let mut out = String::with_capacity(text.len());
    for c in safe::cut(text.trim(), TITLE_MAX).chars() {
        match c {
            '|' => out.push('¦'),
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '&' | '~' | '!' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
