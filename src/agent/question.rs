//! Whether an agent's last words are a question to a person and little else. No CLI marks this: asked headless, each
//! prints its question as its answer and exits 0, just as after finished work.

use super::clip;

/// The word that an agent may put before a question to make it one beyond doubt.
pub const MARK: &str = "QUESTION:";

/// Longest text that can be "a question and little else", in bytes.
const LITTLE: usize = 1000;
/// Most lines of choices after the question.
const CHOICES: usize = 8;

/// Sentences that say the work is over; with one of them a question is politeness.
const DONE: [&str; 14] = [
    "done",
    "all done",
    "it's done",
    "task done",
    "complete",
    "completed",
    "all complete",
    "task complete",
    "task completed",
    "task is complete",
    "the task is complete",
    "finished",
    "work complete",
    "task_complete",
];

/// The question that `text` ends with, where it is one and little else. A last line beginning `QUESTION:` always asks.
pub fn asks(text: &str) -> Option<String> {
    if let Some(question) = marked(text) {
        return Some(question);
    }
    let text = text.trim();
    if text.is_empty() || text.len() > LITTLE || says_done(text) {
        return None;
    }
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let choices = lines.iter().rev().take_while(|l| is_choice(l) && !ends_asking(l)).count();
    if choices > CHOICES {
        return None;
    }
    let at = lines.len().checked_sub(choices + 1)?;
    let line = *lines.get(at)?;
    if !ends_asking(line) {
        return None;
    }
    let mut question = last_question(line).to_owned();
    for choice in lines.iter().skip(at + 1) {
        question.push('\n');
        question.push_str(choice);
    }
    Some(clip::event(&question))
}

/// What follows `QUESTION:` on the last line, where it is there.
pub(super) fn marked(text: &str) -> Option<String> {
    let last = text.lines().rev().map(str::trim).find(|l| !l.is_empty())?;
    let question = last.strip_prefix(MARK)?.trim();
    (!question.is_empty()).then(|| clip::event(question))
}

/// True where a line ends with a question mark that ends words, not an address or code.
fn ends_asking(line: &str) -> bool {
    let mut line = line.trim_end_matches(['*', '_', '"', '\'', '”', '’', ' ']);
    let bare = line.to_lowercase();
    for choice in ["(y/n)", "[y/n]", "(yes/no)", "[yes/no]"] {
        if bare.ends_with(choice) && line.len() > choice.len() && line.is_char_boundary(line.len() - choice.len()) {
            line = line[..line.len() - choice.len()].trim_end_matches(['*', '_', ' ']);
            break;
        }
    }
    let Some(words) = line.strip_suffix(['?', '？']).or_else(|| line.strip_suffix("?)")) else { return false };
    let last = words.split_whitespace().last().unwrap_or_default();
    let address = last.contains("://") || last.contains('/') && last.contains('.') || last.contains('`');
    !address && words.chars().filter(|c| c.is_alphabetic()).count() >= 2
}

fn is_choice(line: &str) -> bool {
    let after = |rest: &str| rest.starts_with(' ');
    if let Some(rest) = line.strip_prefix(['-', '*', '•', '+']) {
        return after(rest);
    }
    let line = line.strip_prefix('(').unwrap_or(line);
    let label = line.bytes().take_while(u8::is_ascii_alphanumeric).count();
    let numbered = line.bytes().take(label).all(|b| b.is_ascii_digit());
    (label == 1 || (label == 2 && numbered)) && line[label..].strip_prefix(['.', ')', ':']).is_some_and(after)
}

fn says_done(text: &str) -> bool {
    text.split(['\n', '.', '!']).any(|sentence| {
        let sentence = sentence.to_lowercase().replace('’', "'");
        let sentence = sentence.trim_matches(|c: char| !c.is_alphanumeric());
        DONE.contains(&sentence)
    })
}

/// The questions at the end of a line, without the statements before them.
fn last_question(line: &str) -> &str {
    let mut start = 0;
    let mut before = None;
    for (at, c) in line.char_indices() {
        if let Some(mark) = before
            && c == ' '
            && matches!(mark, '.' | '!' | ':')
            && line[at..].trim_start().chars().next().is_some_and(char::is_uppercase)
        {
            start = at + 1;
        }
        before = Some(c);
    }
    line[start..].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_and_little_else() {
        let table: &[(&str, &str)] = &[
            ("Which database should I use?", "Which database should I use?"),
            ("Which colour should the button be, red or blue?", "Which colour should the button be, red or blue?"),
            ("I found two databases. Which one should I use?", "Which one should I use?"),
            ("Two ways.\n\nShould I go on? Or wait?", "Should I go on? Or wait?"),
            ("**Which port should the server use?**", "**Which port should the server use?**"),
            ("Allow external_directory? (y/n)", "Allow external_directory? (y/n)"),
            ("Allow external_directory? [Y/n] ", "Allow external_directory? [Y/n]"),
            ("Which one?\n\n1. Postgres\n2. SQLite", "Which one?\n1. Postgres\n2. SQLite"),
            (
                "Which one?\n- the old (see https://a.b/?x)\n- the new",
                "Which one?\n- the old (see https://a.b/?x)\n- the new",
            ),
            ("どちらを使いますか？", "どちらを使いますか？"),
            ("I read https://x.example/a?b=1. Is it this one?", "Is it this one?"),
            ("QUESTION: the port", "the port"),
            ("Done.\nQUESTION: may I go on?", "may I go on?"),
        ];
        for (text, question) in table {
            assert_eq!(asks(text).as_deref(), Some(*question), "{text}");
        }
        let long = format!("{}\nQUESTION: which?", "report ".repeat(2000));
        assert_eq!(asks(&long).as_deref(), Some("which?"));
    }

    #[test]
    fn no_question() {
        let report = "The parser was slow. Why was it slow? It read every file twice, so I added a cache.\n".repeat(3);
        let long = format!("{} Does that make sense?", "I changed the parser and its tests. ".repeat(60));
        let table = [
            "",
            "?",
            "???",
            " \n ",
            "Wrote a.txt. Scripted run complete.",
            "See https://ci.example/build?id=7\ndone",
            "See https://ci.example/build?",
            "https://ci.example/search?",
            "Done. Anything else?",
            "All done! Would you like me to add more tests?",
            "It’s done. Shall I go on?",
            "✅ Task complete.\n\nShall I also update the docs?",
            "QUESTION:",
            "the operator is `?`",
            "Which one? I took SQLite.",
            "Steps:\n1. read\n2. write",
            report.as_str(),
            long.as_str(),
        ];
        for text in table {
            assert_eq!(asks(text), None, "{text}");
        }
    }
}
