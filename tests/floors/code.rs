//! Rust source read as text, as far as the floors need it: comments and literals blanked out, module names after `crate::`
//! and `super::`, functions and their lengths. A parser would know more, and this needs no more.

/// An offence in one file.
pub(super) struct Fault {
    pub line: usize,
    pub text: String,
}

/// The part before the unit tests.
pub(super) fn without_tests(text: &str) -> &str {
    match text.find("\n#[cfg(test)]") {
        Some(at) => &text[..=at],
        None => text,
    }
}

/// Lines of code without the unit tests; blank lines do not count.
pub(super) fn code_lines(text: &str) -> usize {
    without_tests(text).lines().filter(|l| !l.trim().is_empty()).count()
}

/// True when the file opens with `//!` lines that hold a full sentence.
pub(super) fn opening(text: &str) -> bool {
    let doc: Vec<&str> = text.lines().map_while(|l| l.strip_prefix("//!")).map(str::trim).collect();
    let doc = doc.join(" ");
    let full = |s: &str| s.trim().ends_with(['.', ':']) && s.split_whitespace().count() >= 4;
    doc.split_inclusive(['.', ':']).any(full)
}

/// The source with comments and literals blanked out; lines stay where they are.
pub(super) fn strip(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = skipped(rest, out.chars().next_back());
        if length == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            out.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    out
}

/// The length of the comment or literal that `rest` starts with, 0 where it starts with code.
fn skipped(rest: &str, before: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return rest.find("*/").map_or(rest.len(), |at| at + 2);
    }
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with('r') && !in_word {
        let hashes = rest[1..].bytes().take_while(|b| *b == b'#').count();
        if rest[1 + hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let from = 2 + hashes;
            return rest[from..].find(&end).map_or(rest.len(), |at| from + at + end.len());
        }
    }
    if rest.starts_with('"') {
        let mut escaped = false;
        for (at, c) in rest.char_indices().skip(1) {
            match c {
                '"' if !escaped => return at + 1,
                '\\' => escaped = !escaped,
                _ => escaped = false,
            }
        }
        return rest.len();
    }
    if let Some(after) = rest.strip_prefix('\'') {
        // A character and not a lifetime.
        let mut chars = after.char_indices();
        match (chars.next(), chars.next()) {
            (Some((_, '\\')), Some(_)) => return after[2..].find('\'').map_or(0, |at| at + 4),
            (Some(_), Some((at, '\''))) => return at + 2,
            _ => {}
        }
    }
    0
}

/// Every top-level module that `code` (stripped) names by `crate::`, `overnight::` or `super::`, with its line. `module`
/// is the path of the file's own module.
pub(super) fn uses(code: &str, module: &[String]) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let words = words(code);
    let mut depth = 0;
    // Brace depths at which inline modules were opened: `super` leaves these first.
    let mut inline: Vec<usize> = Vec::new();
    let mut i = 0;
    while i < words.len() {
        match words[i].1 {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inline.retain(|at| *at < depth + 1);
            }
            "mod" if words.get(i + 2).is_some_and(|w| w.1 == "{") => inline.push(depth + 1),
            "crate" | "overnight" if follows(&words, i) => out.extend(named(&words, i + 2)),
            "super" if follows(&words, i) => {
                let mut supers = 1;
                while words.get(i + 2).is_some_and(|w| w.1 == "super") && follows(&words, i + 2) {
                    supers += 1;
                    i += 2;
                }
                if supers == module.len() + inline.len() {
                    out.extend(named(&words, i + 2));
                }
                i += 1;
            }
            _ => {}
        }
        i += 1;
    }
    out
}

fn follows(words: &[(usize, &str)], i: usize) -> bool {
    words.get(i + 1).is_some_and(|w| w.1 == "::")
}

/// The name at `i`, or the first names of each item of the group that stands there.
fn named(words: &[(usize, &str)], i: usize) -> Vec<(usize, String)> {
    let own = |w: &(usize, &str)| (w.0, w.1.to_owned());
    match words.get(i) {
        Some((_, "{")) => {}
        Some(word) => return vec![own(word)],
        None => return vec![],
    }
    let (mut depth, mut first, mut out) = (1, true, Vec::new());
    for word in &words[i + 1..] {
        match word.1 {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            "," if depth == 1 => first = true,
            _ if depth == 1 && first => {
                out.push(own(word));
                first = false;
            }
            _ => {}
        }
    }
    out
}

/// The source cut into names, `::` and single signs, each with its line from 1.
fn words(code: &str) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    for (n, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(c) = rest.chars().next() {
            let length = if c.is_alphanumeric() || c == '_' {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                c.len_utf8()
            };
            out.push((n + 1, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    out
}

/// Every function with a body: line, name, and length in lines from `fn` to its closing brace, blank lines and comments not
/// counted.
pub(super) fn functions(code: &str) -> Vec<(usize, String, usize)> {
    let words = words(code);
    let lines: Vec<bool> = code.lines().map(|l| !l.trim().is_empty()).collect();
    let mut out = Vec::new();
    for (i, (line, word)) in words.iter().enumerate() {
        let Some((_, name)) = words.get(i + 1).filter(|(_, n)| n.starts_with(|c: char| c.is_alphabetic())) else {
            continue;
        };
        if *word != "fn" {
            continue;
        }
        let (mut depth, mut last) = (0, None);
        for (at, word) in &words[i..] {
            match *word {
                ";" if depth == 0 => break,
                "{" | "(" | "[" => depth += 1,
                ")" | "]" => depth -= 1,
                "}" => {
                    depth -= 1;
                    if depth == 0 {
                        last = Some(*at);
                        break;
                    }
                }
                _ => {}
            }
        }
        if let Some(last) = last {
            out.push((*line, (*name).to_owned(), lines[line - 1..last].iter().filter(|full| **full).count()));
        }
    }
    out
}
