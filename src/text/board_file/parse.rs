//! Reading boards that other tools, formatters and people have written: columns are known by their names, whatever
//! their order, and a row that makes no sense is reported by its line while the others go on.

use crate::domain::Wall;
use crate::domain::status::Status;
use crate::text::{markdown, stamp};

/// The columns of a board whose header row is missing.
const STANDARD: [Column; 7] =
    [Column::Task, Column::Status, Column::DependsOn, Column::Branch, Column::Agent, Column::Requester, Column::Time];

/// What a board holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Board {
    /// In file order, over all its tables.
    pub rows: Vec<BoardRow>,
    pub bad: Vec<BadRow>,
}

/// One readable row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardRow {
    /// Line in the file, from 1.
    pub line: u32,
    /// The task's name as written, which may be no legal one.
    pub task: String,
    /// What stands behind the name, Markdown escapes resolved.
    pub title: String,
    pub status: Status,
    pub depends_on: Vec<String>,
    pub branch: Option<String>,
    pub agent: Option<String>,
    pub requester: Option<String>,
    pub time: Option<Wall>,
    /// It stands in a table under the heading "Recently Finished".
    pub recent: bool,
    /// Cells of columns that are not ours: header and text.
    pub extra: Vec<(String, String)>,
}

/// A row that was passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRow {
    /// Line in the file, from 1.
    pub line: u32,
    pub reason: String,
}

/// Why no row of a file may be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Refused {
    /// Line in the file, from 1.
    pub line: u32,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Column {
    Task,
    Status,
    DependsOn,
    Branch,
    Agent,
    Requester,
    Time,
    Other(String),
}

/// Reads every table of tasks in `text`. Tables about something else are passed over; conflict markers refuse the file.
pub fn parse(text: &str) -> Result<Board, Refused> {
    let mut board = Board::default();
    let mut columns: Option<Vec<Column>> = None;
    let mut foreign = false;
    let mut recent = false;
    for line in markdown::lines(text, 1, 0).filter(|line| !line.fenced) {
        if markdown::is_conflict(line.text) {
            return Err(Refused { line: line.number, reason: "conflict markers of a merge".to_owned() });
        }
        if let Some((_, heading)) = markdown::heading(line.text) {
            recent = plain(heading).eq_ignore_ascii_case("recently finished");
        }
        let Some(cells) = cells(line.text) else {
            (columns, foreign) = (None, false);
            continue;
        };
        let is_rule = cells.iter().all(|c| !c.is_empty() && c.chars().all(|c| matches!(c, '-' | ':' | ' ')));
        if is_rule {
            // A rule whose header somebody deleted.
            if !foreign {
                columns.get_or_insert_with(|| STANDARD.to_vec());
            }
        } else if let Some(found) = header(&cells) {
            (columns, foreign) = (Some(found), false);
        } else if let Some(columns) = &columns {
            match row(&cells, columns, line.number, recent) {
                Ok(row) => board.rows.push(row),
                Err(reason) => board.bad.push(BadRow { line: line.number, reason }),
            }
        } else if !foreign {
            // The first row of a table decides what the table is about.
            foreign = true;
        }
    }
    refuse_doubles(&mut board);
    Ok(board)
}

/// A task that stands in two rows has no status that could be trusted; both lines are named.
fn refuse_doubles(board: &mut Board) {
    let mut seen = std::collections::BTreeMap::new();
    for row in &board.rows {
        seen.entry(row.task.clone()).or_insert_with(Vec::new).push(row.line);
    }
    seen.retain(|_, lines| lines.len() > 1);
    for (task, lines) in &seen {
        let all: Vec<String> = lines.iter().map(u32::to_string).collect();
        let reason = format!("{task:?} stands in several rows: lines {}", all.join(", "));
        board.bad.extend(lines.iter().map(|line| BadRow { line: *line, reason: reason.clone() }));
    }
    board.rows.retain(|row| !seen.contains_key(&row.task));
    board.bad.sort_by_key(|bad| bad.line);
}

/// The cells of a table row, trimmed; `None` for other lines. Pipes after a backslash belong to their cell.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?;
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for c in inner.chars() {
        if c == '|' && !escaped {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            cell.push(c);
        }
        escaped = c == '\\' && !escaped;
    }
    if cells.last().is_some_and(|c| c.trim().is_empty()) {
        cells.pop();
    }
    Some(cells.iter().map(|c| c.trim().to_owned()).collect())
}

fn header(cells: &[String]) -> Option<Vec<Column>> {
    let columns: Vec<Column> = cells
        .iter()
        .map(|cell| match plain(cell).trim_matches(['*', '_']).to_lowercase().as_str() {
            "task" => Column::Task,
            "status" => Column::Status,
            "depends on" | "dependencies" => Column::DependsOn,
            "branch" => Column::Branch,
            "agent" => Column::Agent,
            "requester" => Column::Requester,
            "time" => Column::Time,
            _ => Column::Other(plain(cell)),
        })
        .collect();
    (columns.contains(&Column::Task) && columns.contains(&Column::Status)).then_some(columns)
}

fn row(cells: &[String], columns: &[Column], line: u32, recent: bool) -> Result<BoardRow, String> {
    if cells.len() != columns.len() {
        return Err(format!("{} cells where the table has {} columns", cells.len(), columns.len()));
    }
    let mut row = BoardRow {
        line,
        task: String::new(),
        title: String::new(),
        status: Status::Planning,
        depends_on: Vec::new(),
        branch: None,
        agent: None,
        requester: None,
        time: None,
        recent,
        extra: Vec::new(),
    };
    for (cell, column) in cells.iter().zip(columns) {
        let text = plain(cell);
        let some = || Some(text.trim_matches('`').trim().to_owned()).filter(|t| !is_none(t));
        match column {
            Column::Task => (row.task, row.title) = task(&text)?,
            Column::Status => row.status = status(&text).ok_or_else(|| format!("{text:?} is no status"))?,
            Column::DependsOn => {
                let needs = text.split(',').map(|t| t.trim().trim_matches('`')).filter(|t| !is_none(t));
                row.depends_on = needs.map(str::to_owned).collect();
            }
            Column::Branch => row.branch = some(),
            Column::Agent => row.agent = some(),
            Column::Requester => row.requester = some(),
            Column::Time => {
                let time = some();
                row.time = time.as_deref().and_then(|t| stamp::parse_minute(t.get(..16)?));
                if time.is_some() && row.time.is_none() {
                    return Err(format!("{text:?} is no time"));
                }
            }
            Column::Other(name) => row.extra.push((name.clone(), cell.clone())),
        }
    }
    Ok(row)
}

/// Name and title in the first cell: a link, whose text is the name, and what follows it; or a bare name.
fn task(cell: &str) -> Result<(String, String), String> {
    let (name, rest) = match cell.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, rest)) => {
            let after = rest.strip_prefix('(').and_then(|r| r.split_once(')')).map_or(rest, |(_, after)| after);
            (name, after)
        }
        None => cell.split_once(' ').unwrap_or((cell, "")),
    };
    let name = name.trim().trim_matches('`');
    if is_none(name) { Err("the row names no task".to_owned()) } else { Ok((name.to_owned(), unescaped(rest.trim()))) }
}

/// The word between backticks, or all words where there are none; signs before them do not matter.
fn status(cell: &str) -> Option<Status> {
    let word = match cell.split('`').nth(1) {
        Some(word) => word,
        None => cell.trim_start_matches(|c: char| !c.is_ascii_alphabetic()),
    };
    Status::parse(&word.trim().to_lowercase().replace(' ', "_"))
}

/// The text of a cell with the ways of writing a blank made one: `&nbsp;`, no-break spaces, `<br>`.
fn plain(cell: &str) -> String {
    let text = cell.replace("&nbsp;", " ").replace('\u{a0}', " ");
    let text = ["<br>", "<br/>", "<br />"].iter().fold(text, |text, br| text.replace(br, " "));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_none(text: &str) -> bool {
    matches!(text, "" | "—" | "–" | "-")
}

/// A backslash before punctuation is taken off.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some(next)) if next.is_ascii_punctuation() => out.extend(chars.next()),
            _ => out.push(c),
        }
    }
    out
}
