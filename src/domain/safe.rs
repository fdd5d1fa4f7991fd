//! Text of unknown origin made fit to show: for one line of a terminal, log or table, for a block of several lines, and
//! for raw file names. Nothing is dropped but plain colours; what could steer a terminal, forge a line or turn the
//! reading direction becomes a visible escape such as `\u{202e}`. Logs and messages that quote a value use `shown`,
//! which drops not even a colour.

use std::borrow::Cow;
use std::fmt::Write as _;

/// `text` with every unsafe character replaced by its escape (`\n`, `\t`, `\u{1b}`), and nothing else changed: what was
/// there can still be told.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// JSON text with every unsafe character as a `\u` escape. Where JSON has them they stand inside strings, in which
/// the escape means the same.
pub fn json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Text for one line. Line ends become `\n` and `\r` as two visible characters each, tabs a blank, colour sequences
/// (SGR) vanish, and every other unsafe character becomes `\u{…}`. Applying it twice changes nothing more.
pub fn line(text: &str) -> String {
    escape(text, false)
}

/// Text of several lines: as `line`, but line feeds and tabs stay, and a carriage return before a line feed goes.
pub fn block(text: &str) -> String {
    escape(text, true)
}

/// A raw file name as text that can be turned back with `unbytes`: a backslash is doubled, and every byte of what is no
/// UTF-8 or is unsafe to show becomes `\xNN`.
pub fn bytes(raw: &[u8]) -> String {
    let mut out = String::with_capacity(raw.len());
    for chunk in raw.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' {
                out.push_str("\\\\");
            } else if is_unsafe(c) {
                let mut buffer = [0; 4];
                c.encode_utf8(&mut buffer).bytes().for_each(|b| push_hex(&mut out, b));
            } else {
                out.push(c);
            }
        }
        chunk.invalid().iter().for_each(|b| push_hex(&mut out, *b));
    }
    out
}

/// The bytes that `bytes` was given; `None` for text that it cannot have made.
pub fn unbytes(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        match (first, after) {
            (b'\\', [b'\\', after @ ..]) => {
                out.push(b'\\');
                rest = after;
            }
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
                out.push(digit(*high)? * 16 + digit(*low)?);
                rest = after;
            }
            (b'\\', _) => return None,
            (byte, after) => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    Some(out)
}

/// At most `max` bytes of `text`, cut between characters and ended by `…` where something is missing.
pub fn cut(text: &str, max: usize) -> Cow<'_, str> {
    const MARK: &str = "…";
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    match max.checked_sub(MARK.len()) {
        Some(room) => Cow::Owned(format!("{}{MARK}", head(text, room))),
        None => Cow::Borrowed(head(text, max)),
    }
}

/// At most `max` bytes of a text: its beginning and (the larger part) its end, with a line between them that says how
/// many bytes are missing. `missing` bytes between `first` and `last` are not there to begin with.
pub fn head_tail(first: &str, missing: u64, last: &str, max: usize) -> String {
    let whole = format!("{first}{last}");
    let total = missing.saturating_add(whole.len() as u64);
    let (first, last) = match missing {
        0 if whole.len() <= max => return whole,
        0 => (&*whole, &*whole),
        _ if whole.len() + cut_mark(missing).len() <= max => return format!("{first}{}{last}", cut_mark(missing)),
        _ => (first, last),
    };
    // The number of missing bytes never has more digits than the length of the whole text.
    let Some(room) = max.checked_sub(cut_mark(total).len()) else {
        return tail(last, max).to_owned();
    };
    let end = last.len().min(room - first.len().min(room / 3));
    let first = head(first, room - end);
    let last = tail(last, end);
    format!("{first}{}{last}", cut_mark(total - first.len() as u64 - last.len() as u64))
}

/// The line that stands for missing bytes.
fn cut_mark(missing: u64) -> String {
    format!("\n[cut {missing} bytes]\n")
}

/// The longest beginning of up to `max` bytes that ends between characters.
pub fn head(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

fn tail(text: &str, max: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(max))..]
}

/// Characters that steer terminals, end lines, turn the reading direction, or are invisible and can carry text.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn escape(text: &str, several_lines: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(length) = colour(rest) {
            rest = &rest[length..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            '\n' | '\t' if several_lines => out.push(c),
            '\r' if several_lines && rest.starts_with('\n') => {}
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push(' '),
            c if is_unsafe(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// The length of the colour sequence (`ESC [ digits ; : m`) that `text` starts with.
fn colour(text: &str) -> Option<usize> {
    let after = text.strip_prefix("\u{1b}[")?;
    let digits = after.bytes().take_while(|b| matches!(b, b'0'..=b'9' | b';' | b':')).count();
    (after.as_bytes().get(digits) == Some(&b'm')).then_some(2 + digits + 1)
}

fn push_hex(out: &mut String, byte: u8) {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    out.push_str("\\x");
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn everything_that_steers_a_terminal_becomes_visible() {
        for (hostile, shown) in [
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}[1A\u{1b}[2Kcomplete OK", "\\u{1b}[1A\\u{1b}[2Kcomplete OK"),
            ("\u{1b}]52;c;aGk=\u{7}x", "\\u{1b}]52;c;aGk=\\u{7}x"),
            ("\u{1b}]52;c;aGk=\u{1b}\\x", "\\u{1b}]52;c;aGk=\\u{1b}\\x"),
            ("\u{1b}]8;;http://x\u{1b}\\y", "\\u{1b}]8;;http://x\\u{1b}\\y"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("\u{1b}P+q\u{1b}\\", "\\u{1b}P+q\\u{1b}\\"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("a\u{8}\u{8}b\u{7f}", "a\\u{8}\\u{8}b\\u{7f}"),
            ("ok\rfail", "ok\\rfail"),
            ("one\ntwo\r\n", "one\\ntwo\\r\\n"),
            ("a\u{202e}b\u{2066}c\u{2069}", "a\\u{202e}b\\u{2066}c\\u{2069}"),
            ("a\u{2028}b\u{2029}", "a\\u{2028}b\\u{2029}"),
            ("\u{1b}[\u{1b}[31m31mx", "\\u{1b}[31mx"),
            ("äß 日本 🦀 👩‍👧", "äß 日本 🦀 👩‍👧"),
        ] {
            assert_eq!(line(hostile), shown, "{hostile:?}");
        }
        assert_eq!(block("a\r\n\tb\rc\u{1b}[2J"), "a\n\tb\\rc\\u{1b}[2J");
    }

    #[test]
    fn what_is_shown_can_still_be_told() {
        assert_eq!(shown("a\nb\x1b[31m\u{9b}\u{202e}"), "a\\nb\\u{1b}[31m\\u{9b}\\u{202e}");
        assert_eq!(shown("plain é 👩‍🚀 \\ \"x\""), "plain é 👩‍🚀 \\ \"x\"");
        assert!(matches!(shown("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn raw_names_come_back() {
        for raw in
            [&b"plain.txt"[..], b"\xff\xfe", b"new\nline", b"a\\x41", "ä\u{202e}".as_bytes(), b"\"q\"", b"\\303\\244"]
        {
            assert_eq!(unbytes(&bytes(raw)).as_deref(), Some(raw), "{}", bytes(raw));
        }
        assert_eq!(bytes(b"a/b-1"), "a/b-1");
        assert_eq!(bytes(b"\xff"), "\\xff");
        assert_eq!(unbytes("\\y"), None);
        assert_eq!(unbytes("\\x+1"), None);
    }

    #[test]
    fn cutting_keeps_characters_whole_and_counts_what_is_missing() {
        assert_eq!(cut("äöü", 10), "äöü");
        assert_eq!(cut("äöüäöü", 8), "äö…");
        assert_eq!(cut("äöü", 1), "");
        let long = format!("{}MIDDLE{}", "a".repeat(300), "z".repeat(300));
        let short = head_tail(&long, 0, "", 100);
        assert!(short.len() <= 100 && short.starts_with("aaa") && short.ends_with("zzz"), "{short}");
        assert!(short.contains("[cut 5"), "{short}");
        // What is missing to begin with counts, wherever it is missing.
        assert_eq!(head_tail("first", 7, "last", 100), "first\n[cut 7 bytes]\nlast");
        assert_eq!(head_tail("", 7, "last", 100), "\n[cut 7 bytes]\nlast");
        let both = head_tail(&"a".repeat(300), 1000, &"z".repeat(300), 100);
        let kept = both.matches(['a', 'z']).count() - "bytes".matches(['a', 'z']).count();
        assert!(both.len() <= 100 && both.contains(&format!("[cut {} bytes]", 1600 - kept)), "{both}");
        assert!(both.matches('z').count() > both.matches('a').count(), "{both}");
    }

    proptest! {
        #[test]
        fn what_is_shown_is_safe_and_stays_as_it_is(text in "(?s)(\u{1b}\\[[0-9;]{0,3}[mAK]?|\\PC|.){0,40}") {
            let shown = line(&text);
            prop_assert!(!shown.chars().any(is_unsafe), "{:?}", shown);
            prop_assert_eq!(line(&shown), shown.clone());
            let shown = block(&text);
            prop_assert!(!shown.chars().any(|c| is_unsafe(c) && c != '\n' && c != '\t'));
            prop_assert_eq!(block(&shown), shown.clone());
        }

        #[test]
        fn names_are_reversible(raw in proptest::collection::vec(any::<u8>(), 0..60)) {
            let shown = bytes(&raw);
            prop_assert!(!shown.chars().any(is_unsafe));
            prop_assert_eq!(unbytes(&shown), Some(raw));
        }

        #[test]
        fn cuts_never_exceed_their_room(text in ".{0,200}", max in 0usize..150) {
            prop_assert!(cut(&text, max).len() <= max);
            prop_assert!(head_tail(&text, 0, &text, max).len() <= max);
            prop_assert!(head_tail(&text, 3, "end", max).len() <= max);
            prop_assert!(head_tail("", 3, &text, max).len() <= max);
            let once = cut(&text, max).into_owned();
            prop_assert_eq!(cut(&once, max), once.as_str());
        }
    }
}
