//! Fitting sections of text into a number of bytes: each has a share it may always fill, what others leave over is
//! given out in order of importance, and what does not fit is cut between characters with a mark that counts it.

use super::Output;
use crate::domain::safe;
use crate::text::markdown;

/// A section with a heading; one without pieces is left out.
pub(super) struct Section<'a> {
    pub heading: &'a str,
    /// Of the room, in hundredths.
    pub share: usize,
    pub pieces: Vec<Piece>,
}

/// A part of a section.
pub(super) enum Piece {
    /// Goes with the piece after it, never cut.
    Fixed(String),
    /// Taken whole or left out.
    Line(String),
    /// Not quoted; cut at its end.
    Prose(String),
    /// A quote; cut at its end.
    Head(String),
    /// A quote; cut in its middle.
    HeadTail(Output),
}

/// Room for a fence with its line ends, the line ends around a cut mark, and some digits.
const FENCE: usize = 32;
/// A quote with less room than this is not begun.
const QUOTE_MIN: usize = 64;

/// The sections in order, in at most `room` bytes where their headings allow it.
pub(super) fn fit(sections: &[Section<'_>], room: usize) -> String {
    let needs: Vec<usize> = sections.iter().map(|s| render(s, usize::MAX).len()).collect();
    let mut given: Vec<usize> =
        sections.iter().zip(&needs).map(|(s, need)| (*need).min(room.saturating_mul(s.share) / 100)).collect();
    let mut left = room.saturating_sub(given.iter().sum());
    // First the first (the task), then from the last (what went wrong) backwards.
    for n in std::iter::once(0).chain((1..sections.len()).rev()) {
        let more = (needs[n] - given[n]).min(left);
        given[n] += more;
        left -= more;
    }
    sections.iter().zip(given).map(|(section, bytes)| render(section, bytes)).collect()
}

fn render(section: &Section<'_>, room: usize) -> String {
    if section.pieces.is_empty() {
        return String::new();
    }
    let heading = if section.heading.is_empty() { String::new() } else { format!("\n# {}", section.heading) };
    let mut out = String::new();
    let mut left = room.saturating_sub(heading.len());
    let mut pending = String::new();
    let mut dropped = 0;
    for piece in &section.pieces {
        let text = match piece {
            Piece::Fixed(text) => {
                pending.push_str(text);
                continue;
            }
            Piece::Line(text) => Some(text.clone()).filter(|t| pending.len() + t.len() <= left),
            Piece::Prose(text) => prose(text, left.saturating_sub(pending.len())),
            Piece::Head(text) => quote(text, left.saturating_sub(pending.len())),
            Piece::HeadTail(output) => quote_ends(output, left.saturating_sub(pending.len())),
        };
        match text {
            Some(text) => {
                left -= pending.len() + text.len();
                out.push_str(&pending);
                out.push_str(&text);
            }
            None => dropped += 1,
        }
        pending.clear();
    }
    if pending.len() <= left {
        left -= pending.len();
        out.push_str(&pending);
    }
    if dropped > 0 {
        let mark = format!("[{dropped} more left out for want of room]\n");
        if mark.len() <= left {
            out.push_str(&mark);
        }
    }
    if out.is_empty() { out } else { heading + &out }
}

fn prose(text: &str, room: usize) -> Option<String> {
    if text.len() < room {
        return Some(format!("{text}\n"));
    }
    // A fence that the cut leaves open is closed, so that what follows is not part of it.
    let kept = safe::head(text, room.checked_sub(FENCE + 16).filter(|n| *n >= QUOTE_MIN)?);
    let mark = format!("[cut {} bytes]\n", text.len() - kept.len());
    match markdown::open_fence(kept) {
        Some(fence) if fence.len() + mark.len() + 3 + kept.len() <= room => Some(format!("{kept}\n{fence}\n{mark}")),
        Some(_) => None,
        None => Some(format!("{kept}\n{mark}")),
    }
}

fn quote(text: &str, room: usize) -> Option<String> {
    let whole = markdown::fenced(text, "text");
    if whole.len() <= room {
        return Some(whole);
    }
    let overhead = whole.len() - text.len();
    let inner = room.checked_sub(overhead + FENCE).filter(|n| *n >= QUOTE_MIN)?;
    let kept = safe::head(text, inner);
    Some(markdown::fenced(&format!("{kept}\n[cut {} bytes]", text.len() - kept.len()), "text"))
}

/// A quote of the beginning and the end.
fn quote_ends(output: &Output, room: usize) -> Option<String> {
    let text = |max| safe::head_tail(&output.first, output.missing, &output.last, max);
    let all = text(usize::MAX);
    let whole = markdown::fenced(&all, "text");
    if whole.len() <= room {
        return Some(whole);
    }
    let overhead = whole.len() - all.len();
    let inner = room.checked_sub(overhead + FENCE).filter(|n| *n >= QUOTE_MIN)?;
    Some(markdown::fenced(&text(inner), "text"))
}
