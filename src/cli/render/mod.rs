//! Views as text: pure functions, so that a fixed view gives a fixed text. Every text of a view goes through `line` or
//! `block` first; colours and alignment are put around what they give.

pub mod diff;
pub mod events;
pub mod html;
pub mod report;
pub mod status;
pub mod task;

pub use crate::domain::safe::{block, line};

use crate::domain::Wall;
use crate::domain::verdict::UsageSum;
use time::{OffsetDateTime, UtcOffset};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// How text is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub colour: bool,
    /// Columns of the terminal; nothing is cut where there is none.
    pub width: Option<usize>,
    /// Of the person's clock.
    pub offset: UtcOffset,
}

/// What a piece of text stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    Good,
    Bad,
    Busy,
    Attention,
    Quiet,
    Strong,
}

impl Style {
    /// Without colours or a width, on UTC.
    pub const PLAIN: Self = Self { colour: false, width: None, offset: UtcOffset::UTC };

    /// `text` in the colour of `paint`, where colours are wanted.
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match paint {
            Paint::Good => "32",
            Paint::Bad => "31",
            Paint::Busy => "36",
            Paint::Attention => "33",
            Paint::Quiet => "2",
            Paint::Strong => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// `text` cut to what is left of the width after `used` columns, never below `least`.
    pub fn fit(&self, text: &str, used: usize, least: usize) -> String {
        match self.width {
            None => text.to_owned(),
            Some(width) => fit(text, width.saturating_sub(used).max(least)),
        }
    }

    /// `23:04:05`.
    pub fn clock(&self, at: Wall) -> String {
        self.local(at).map_or_else(|| "?".into(), |t| format!("{:02}:{:02}:{:02}", t.hour(), t.minute(), t.second()))
    }

    /// `30 Nov 23:04`.
    pub fn moment(&self, at: Wall) -> String {
        let Some(t) = self.local(at) else { return "?".into() };
        format!("{} {:02}:{:02}", self.day(at), t.hour(), t.minute())
    }

    /// `30 Nov`.
    pub fn day(&self, at: Wall) -> String {
        let Some(t) = self.local(at) else { return "?".into() };
        let month = t.month().to_string();
        format!("{} {}", t.day(), month.get(..3).unwrap_or(&month))
    }

    fn local(&self, at: Wall) -> Option<OffsetDateTime> {
        let nanos = i128::from(at.0).checked_mul(1_000_000)?;
        OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?.checked_to_offset(self.offset)
    }
}

/// Columns that `text` takes up on a terminal.
pub fn columns(text: &str) -> usize {
    text.width()
}

/// `text` filled up with blanks to `width` columns.
pub fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

/// `text` in at most `width` columns, ended by `…` where something is missing.
pub fn fit(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > width {
            break;
        }
        out.push(c);
    }
    out.truncate(out.trim_end().len());
    if width > 0 {
        out.push('…');
    }
    out
}

/// `1 task`, `2 tasks`.
pub fn count(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// What was spent: `$0.41`, `at least $0.41` for a partial sum, `cost unknown` where nothing was told, and `None`
/// where nothing ran.
pub fn money(usage: &UsageSum) -> Option<String> {
    match (usage.runs, usage.partial, usage.cost > 0.0) {
        (0, _, false) => None,
        (_, true, false) => Some("cost unknown".into()),
        (_, true, true) => Some(format!("at least ${:.2}", usage.cost)),
        (_, false, _) => Some(format!("${:.2}", usage.cost)),
    }
}

/// Tokens in and out, those read from a cache included: `2.1 M tokens`; `None` where nothing ran.
pub fn tokens(usage: &UsageSum) -> Option<String> {
    let total = usage.input.saturating_add(usage.output).saturating_add(usage.cached);
    match (usage.runs, total, usage.partial) {
        (0, 0, _) => None,
        (_, 0, true) => Some("tokens unknown".into()),
        (_, n, true) => Some(format!("at least {} tokens", amount(n))),
        (_, n, false) => Some(format!("{} tokens", amount(n))),
    }
}

/// A large number in three digits and a unit.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn amount(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..10_000 => format!("{:.1} k", n as f64 / 1e3),
        10_000..1_000_000 => format!("{} k", n / 1_000),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.1} G", n as f64 / 1e9),
    }
}

#[cfg(test)]
pub(crate) mod fixtures;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_by_columns_between_characters() {
        assert_eq!(fit("日本語", 6), "日本語");
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("one two", 5), "one…");
        assert_eq!((fit("ab", 1), fit("ab", 0)), ("…".into(), String::new()));
        assert_eq!(columns(&pad("日", 5)), 5);
    }

    #[test]
    fn unknown_is_not_zero() {
        let sum = |runs, cost, input, partial| UsageSum { runs, cost, input, partial, ..UsageSum::default() };
        assert_eq!((money(&sum(0, 0.0, 0, false)), tokens(&sum(0, 0.0, 0, false))), (None, None));
        assert_eq!(money(&sum(1, 0.0, 0, true)).as_deref(), Some("cost unknown"));
        assert_eq!(money(&sum(2, 0.414, 0, true)).as_deref(), Some("at least $0.41"));
        assert_eq!(money(&sum(2, 0.0, 5, false)).as_deref(), Some("$0.00"));
        assert_eq!(tokens(&sum(1, 0.0, 0, true)).as_deref(), Some("tokens unknown"));
        assert_eq!(tokens(&sum(1, 0.0, 2_140_000, false)).as_deref(), Some("2.1 M tokens"));
        assert_eq!(tokens(&sum(1, 0.0, 12_345, true)).as_deref(), Some("at least 12 k tokens"));
    }

    #[test]
    fn times_no_calendar_has_are_shown_as_unknown() {
        assert_eq!(Style::PLAIN.moment(Wall(1_796_079_845_000)), "30 Nov 23:04");
        assert_eq!(Style::PLAIN.moment(Wall(i64::MAX)), "?");
    }
}
