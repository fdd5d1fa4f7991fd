//! Text from outside made safe to show. Titles, paths, configuration, output of agents and remotes may hold characters
//! that move a cursor, start a new log line or turn the reading direction; shown through here they cannot.

use std::borrow::Cow;

/// `text` with every character that acts instead of showing replaced by its escape (`\n`, `\u{1b}`): control
/// characters, line and paragraph separators, and those that turn the direction or hide. Everything else is as it was.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Whether a terminal or log reader would act on `c` instead of showing it.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acting_characters_become_visible_and_the_rest_stays() {
        assert_eq!(shown("a\nb\x1b[31m\u{9b}\u{202e}"), "a\\nb\\u{1b}[31m\\u{9b}\\u{202e}");
        assert_eq!(shown("plain é 👩‍🚀 \\ \"x\""), "plain é 👩‍🚀 \\ \"x\"");
        assert!(matches!(shown("plain"), Cow::Borrowed(_)));
    }
}
