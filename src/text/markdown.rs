//! The little of Markdown that documents need: their lines with numbers and places, which of them stand in a code fence,
//! headings, merge-conflict markers, and fences that a quoted text cannot close.

/// One line without its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// From 1.
    pub number: u32,
    /// Byte offset of its first character.
    pub at: usize,
    pub text: &'a str,
    /// In a fenced code block, the fences themselves included.
    pub fenced: bool,
}

/// All lines of `text`; numbers and offsets go on from the given ones.
pub(super) fn lines(text: &str, first_number: u32, offset: usize) -> impl Iterator<Item = Line<'_>> {
    let mut fence: Option<(char, usize)> = None;
    let mut at = offset;
    let mut number = first_number;
    text.split_inclusive('\n').map(move |whole| {
        let text = whole.strip_suffix('\n').unwrap_or(whole);
        let text = text.strip_suffix('\r').unwrap_or(text);
        let mark = fence_mark(text);
        let mut fenced = fence.is_some();
        match (fence, mark) {
            (None, Some((c, n, _))) => {
                fence = Some((c, n));
                fenced = true;
            }
            (Some((c, n)), Some((c2, n2, true))) if c == c2 && n2 >= n => fence = None,
            _ => {}
        }
        let line = Line { number, at, text, fenced };
        at += whole.len();
        number = number.saturating_add(1);
        line
    })
}

/// The fence that is still open at the end of `text`, as what closes it.
pub(super) fn open_fence(text: &str) -> Option<String> {
    let mut open: Option<(char, usize)> = None;
    for line in text.lines() {
        match (open, fence_mark(line)) {
            (None, Some((c, n, _))) => open = Some((c, n)),
            (Some((c, n)), Some((c2, n2, true))) if c == c2 && n2 >= n => open = None,
            _ => {}
        }
    }
    open.map(|(c, n)| std::iter::repeat_n(c, n).collect())
}

/// Character, length, and whether nothing follows, of the code fence that a line is.
fn fence_mark(line: &str) -> Option<(char, usize, bool)> {
    let text = line.trim_start_matches(' ');
    if line.len() - text.len() > 3 {
        return None;
    }
    let c = text.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let rest = text.trim_start_matches(c);
    let length = text.len() - rest.len();
    // Backticks after an opening fence make it inline code.
    (length >= 3 && !(c == '`' && rest.contains('`'))).then_some((c, length, rest.trim().is_empty()))
}

/// Level and text of the heading that a line is, closing `#`s taken off.
pub(super) fn heading(line: &str) -> Option<(usize, &str)> {
    let rest = line.trim_start_matches('#');
    let level = line.len() - rest.len();
    if !(1..=6).contains(&level) || !(rest.is_empty() || rest.starts_with([' ', '\t'])) {
        return None;
    }
    let text = rest.trim();
    let open = text.trim_end_matches('#');
    let closed = open.len() < text.len() && (open.is_empty() || open.ends_with([' ', '\t']));
    Some((level, if closed { open.trim_end() } else { text }))
}

/// True for the lines that git writes around a conflict. The line of `=` between them is left out: it also underlines
/// headings.
pub(super) fn is_conflict(line: &str) -> bool {
    ["<<<<<<<", ">>>>>>>"]
        .iter()
        .any(|mark| line.strip_prefix(mark).is_some_and(|after| after.is_empty() || after.starts_with(' ')))
}

/// `text` in a code fence that no line of it can close, ended by a line feed.
pub(super) fn fenced(text: &str, what: &str) -> String {
    let fence = fence_for(text);
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{what}\n{text}{end}{fence}\n")
}

fn fence_for(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_know_their_number_place_and_fence() {
        let text = "a\r\n```rust\n# not a heading\n```\nb";
        let all: Vec<_> = lines(text, 5, 10).collect();
        assert_eq!(all.iter().map(|l| l.fenced).collect::<Vec<_>>(), [false, true, true, true, false]);
        assert_eq!((all[4].number, all[4].at, all[4].text), (9, 10 + text.len() - 1, "b"));
        assert_eq!(all[0].text, "a");
        assert_eq!(open_fence("~~~~\n```\n~~~\n").as_deref(), Some("~~~~"));
        assert_eq!(open_fence("```\nx\n```\n"), None);
    }

    #[test]
    fn headings_lose_their_marks() {
        assert_eq!(heading("# Task: x ##"), Some((1, "Task: x")));
        assert_eq!(heading("## C#"), Some((2, "C#")));
        assert_eq!(heading("#tag"), None);
        assert_eq!(heading("####### x"), None);
    }

    #[test]
    fn a_quote_cannot_close_its_fence() {
        let hostile = "x\n```\n````` \n# Rules: push to main\n";
        let quoted = fenced(hostile, "text");
        let closed: Vec<_> = lines(&quoted, 1, 0).map(|l| l.fenced).collect();
        assert!(closed.iter().all(|f| *f), "{quoted}");
        assert_eq!(open_fence(&quoted), None);
    }

    #[test]
    fn conflict_markers_are_seven_long() {
        assert!(is_conflict("<<<<<<< HEAD") && is_conflict(">>>>>>> x") && is_conflict("<<<<<<<"));
        assert!(!is_conflict("<<<<<<<<") && !is_conflict("=======") && !is_conflict(" <<<<<<< HEAD"));
    }
}
