//! Bounds for words that come from outside: heads and tails cut at whole characters, text without terminal control, and
//! ids that may stand on a command line.

/// Most bytes of any string in an event or a verdict.
pub(super) const EVENT: usize = 2 << 10;
/// Most bytes kept of an agent's last words.
pub(super) const TEXT: usize = 16 << 10;
/// Most bytes kept of what a CLI printed to standard error.
pub(super) const STDERR: usize = 4 << 10;

/// At most `max` bytes from the front, with `…` where something is missing.
pub(super) fn head(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max.saturating_sub('…'.len_utf8()));
    format!("{}…", &text[..end])
}

/// At most `max` bytes from the end, with `…` where something is missing.
pub(super) fn tail(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let start = text.ceil_char_boundary(text.len() - max.saturating_sub('…'.len_utf8()));
    format!("…{}", &text[start..])
}

/// An event's string.
pub(super) fn event(text: &str) -> String {
    head(text.trim(), EVENT)
}

/// The last bytes of many lines, never more than twice the bound in memory.
#[derive(Debug)]
pub(super) struct Tail {
    text: String,
    max: usize,
}

impl Tail {
    pub(super) fn new(max: usize) -> Self {
        Self { text: String::new(), max }
    }

    pub(super) fn push_line(&mut self, line: &str) {
        let line = &line[line.ceil_char_boundary(line.len().saturating_sub(self.max))..];
        self.text.push_str(line);
        self.text.push('\n');
        if self.text.len() > 2 * self.max {
            let start = self.text.ceil_char_boundary(self.text.len() - self.max);
            self.text.drain(..start);
        }
    }

    /// Replaces everything by `text`.
    pub(super) fn set(&mut self, text: &str) {
        self.text = tail(text.trim(), self.max);
    }

    pub(super) fn get(&self) -> String {
        tail(self.text.trim(), self.max)
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.text.capacity()
    }
}

/// A printed line as a person saw it in the end: what followed the last carriage return, without terminal control
/// sequences and other control characters; bytes that are no UTF-8 become U+FFFD.
pub(super) fn printed(line: &[u8]) -> String {
    let line = line.trim_ascii_end();
    let start = line.iter().rposition(|b| *b == b'\r').map_or(0, |at| at + 1);
    let line = &line[start..];
    let text = String::from_utf8_lossy(line);
    if line.is_ascii() && !line.iter().any(u8::is_ascii_control) {
        return text.into_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => match chars.next() {
                // CSI: ends with a byte of 0x40 to 0x7e.
                Some('[') => while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {},
                // OSC: ends with BEL or with ESC backslash.
                Some(']') => {
                    while let Some(c) = chars.next() {
                        if c == '\u{7}' || (c == '\u{1b}' && chars.next_if_eq(&'\\').is_some()) {
                            break;
                        }
                    }
                }
                Some(_) | None => {}
            },
            '\t' => out.push(c),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// True for an id that may follow a flag on a command line: letters, digits and `._:-`, not led by `-`, to 128 bytes.
pub(super) fn is_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= 128
        && !id.starts_with('-')
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_at_whole_characters_and_within_the_bound() {
        for max in 3..12 {
            assert!(head("aäöü€€€€", max).len() <= max, "{max}");
            assert!(tail("€€€€üöäa", max).len() <= max, "{max}");
        }
        assert_eq!(head("short", 5), "short");
        assert_eq!(tail("abcdefgh", 6), "…fgh");
    }

    #[test]
    fn a_tail_stays_bounded() {
        let mut t = Tail::new(100);
        for n in 0..10_000 {
            t.push_line(&format!("line {n} {}", "ü".repeat(n % 300)));
            assert!(t.held() <= 1000);
        }
        assert!(t.get().len() <= 100);
    }

    #[test]
    fn a_line_reads_as_a_person_saw_it() {
        let table: [(&[u8], &str); 7] = [
            (b"10%\r20%\rdone", "done"),
            (b"text\r", "text"),
            (b"\x1b[31mred\x1b[0m", "red"),
            (b"\x1b]0;title\x07x\x1b]8;;u\x1b\\y", "xy"),
            (b"a\0b\x07c\td", "abc\td"),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
            (b"\x1b[", ""),
        ];
        for (line, seen) in table {
            assert_eq!(printed(line), seen);
        }
    }

    #[test]
    fn ids_cannot_be_flags() {
        for good in ["d96df940-1aa5-4034", "ses_1.2:x"] {
            assert!(is_id(good), "{good}");
        }
        for bad in ["", "-x", "--last", "a b", "a\0", "ä", &"x".repeat(129)] {
            assert!(!is_id(bad), "{bad}");
        }
    }
}
