//! The front matter of a task file as entries that know where they stand. It is read from the event stream of the YAML
//! parser instead of by serde: the events carry byte spans, which give exact lines for errors and exact places for
//! edits, and nothing is ever expanded, so aliases can be refused and no document costs more than its own length.

use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput, StructureStyle};
use std::ops::Range;

/// Deeper nesting is refused; known keys need two levels.
const DEPTH: usize = 16;
/// More keys are refused: nobody writes them, and each is compared with the others.
const KEYS_MAX: usize = 200;

/// Something wrong at a byte of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub at: usize,
    pub reason: String,
}

impl Fault {
    pub(super) fn new(at: usize, reason: impl Into<String>) -> Self {
        Self { at, reason: reason.into() }
    }
}

/// Where the parts of a task file are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Between the two `---` lines; `None` where there is no front matter.
    pub yaml: Option<Range<usize>>,
    /// Where the Markdown begins.
    pub body: usize,
}

/// A key of the front matter with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub key: String,
    /// Bytes of the key, its quotes included.
    pub place: Range<usize>,
    pub value: Value,
    /// Bytes of the value; empty, and somewhere after the key, where there is none.
    pub span: Range<usize>,
}

/// What a key has for value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Text {
        text: String,
        /// `|` or `>`, on several lines.
        block: bool,
    },
    List {
        items: Vec<Item>,
        /// `[a, b]` and not one item a line.
        flow: bool,
    },
    /// Mappings, lists of lists: no known key has such a value.
    Nested,
}

/// One item of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// `None` for an item that is empty or a collection.
    pub text: Option<String>,
    pub span: Range<usize>,
}

/// The entries in file order, duplicates included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Front {
    pub entries: Vec<Entry>,
    /// The whole front matter is one `{…}`.
    pub flow: bool,
}

/// Finds the front matter: the first line is `---`, and so is a later one. A byte order mark before it is let pass.
pub(super) fn layout(text: &str) -> Result<Layout, Fault> {
    let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut at = start;
    let mut yaml_start = None;
    for line in text[start..].split_inclusive('\n') {
        let is_rule = line.trim_end() == "---";
        match yaml_start {
            None if !is_rule => break,
            None => yaml_start = Some(at + line.len()),
            Some(from) if is_rule => return Ok(Layout { yaml: Some(from..at), body: at + line.len() }),
            Some(_) => {}
        }
        at += line.len();
    }
    match yaml_start {
        None => Ok(Layout { yaml: None, body: start }),
        Some(_) => Err(Fault::new(start, "the front matter that starts here is not closed by a line of three dashes")),
    }
}

/// Reads the front matter that `layout` found at `yaml` in `text`.
pub(super) fn parse(text: &str, yaml: &Range<usize>) -> Result<Front, Fault> {
    let source = &text[yaml.clone()];
    let mut options = Options::default();
    options.disallow_directives = true;
    options.flow_nesting_limit = DEPTH;
    options.block_nesting_limit = DEPTH;
    options.set_emit_comments(false);
    let parser = Parser::new_from_str_with_options(source, options);
    Reader { parser, source, base: yaml.start, end: yaml.start }.document()
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    source: &'a str,
    /// Where `source` starts in the file.
    base: usize,
    /// End of the last thing read that has an extent.
    end: usize,
}

impl<'a> Reader<'a> {
    fn document(mut self) -> Result<Front, Fault> {
        let mut front = Front::default();
        loop {
            let (event, place) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentStart(..) => {}
                Event::StreamEnd | Event::DocumentEnd => return Ok(front),
                Event::Scalar(text, ScalarStyle::Plain, ..) if is_null(&text) => {}
                Event::MappingStart(style, ..) => {
                    front.flow = style == StructureStyle::Flow;
                    break;
                }
                _ => return Err(Fault::new(place.start, "the front matter holds no `key: value` lines")),
            }
        }
        while let Some(entry) = self.entry()? {
            if front.entries.len() == KEYS_MAX {
                return Err(Fault::new(entry.place.start, format!("more than {KEYS_MAX} keys")));
            }
            front.entries.push(entry);
        }
        loop {
            let (event, place) = self.next()?;
            match event {
                Event::DocumentEnd => {}
                Event::StreamEnd => return Ok(front),
                _ => return Err(Fault::new(place.start, "a second YAML document in the front matter")),
            }
        }
    }

    fn entry(&mut self) -> Result<Option<Entry>, Fault> {
        let (event, place) = self.next()?;
        let key = match event {
            Event::MappingEnd => return Ok(None),
            Event::Scalar(text, ..) => text.into_owned(),
            _ => return Err(Fault::new(place.start, "a key must be one word")),
        };
        let (event, at) = self.next()?;
        let value = self.value(event, &at)?;
        let span = match value {
            Value::Null if at.is_empty() => place.end..place.end,
            Value::Text { block: true, .. } => self.block_scalar(place.end, &at),
            Value::Null | Value::Text { .. } => at,
            Value::List { .. } | Value::Nested => at.start..self.end.max(at.start),
        };
        Ok(Some(Entry { key, place, value, span }))
    }

    /// The parser's span of a block scalar is its content; an edit needs its header too, and not its last line end.
    fn block_scalar(&self, key_end: usize, content: &Range<usize>) -> Range<usize> {
        let text = |range: Range<usize>| &self.source[range.start - self.base..range.end - self.base];
        let start = text(key_end..content.start).find(['|', '>']).map_or(content.start, |at| key_end + at);
        start..start + text(start..content.end).trim_end().len()
    }

    fn value(&mut self, event: Event<'a>, place: &Range<usize>) -> Result<Value, Fault> {
        match event {
            Event::Scalar(text, ScalarStyle::Plain, ..) if is_null(&text) => Ok(Value::Null),
            Event::Scalar(text, style, ..) => {
                let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                Ok(Value::Text { text: text.into_owned(), block })
            }
            Event::SequenceStart(style, ..) => {
                let mut items = Vec::new();
                let mut nested = false;
                loop {
                    let (event, span) = self.next()?;
                    let text = match event {
                        Event::SequenceEnd => break,
                        Event::Scalar(text, ScalarStyle::Plain, ..) if is_null(&text) => None,
                        Event::Scalar(text, ..) => Some(text.into_owned()),
                        _ => {
                            self.skip()?;
                            nested = true;
                            None
                        }
                    };
                    items.push(Item { text, span });
                }
                let flow = style == StructureStyle::Flow;
                Ok(if nested { Value::Nested } else { Value::List { items, flow } })
            }
            Event::MappingStart(..) => self.skip().map(|()| Value::Nested),
            _ => Err(Fault::new(place.start, "a value is missing")),
        }
    }

    /// Reads on to the end of the collection whose start was just read.
    fn skip(&mut self) -> Result<(), Fault> {
        let mut depth = 1;
        while depth > 0 {
            match self.next()?.0 {
                Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
                Event::SequenceEnd | Event::MappingEnd => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<(Event<'a>, Range<usize>), Fault> {
        let (event, span) = match self.parser.next_event() {
            Some(Ok(next)) => next,
            Some(Err(error)) => {
                let marker = error.marker();
                let at = marker.byte_offset().unwrap_or_else(|| self.line_start(marker.line()));
                return Err(Fault::new(self.base + at.min(self.source.len()), format!("no YAML: {}", error.info())));
            }
            None => return Err(Fault::new(self.base, "no YAML: it ends early")),
        };
        let place = self.place(&span);
        match &event {
            Event::Scalar(_, _, 0, None) | Event::SequenceStart(_, 0, None) | Event::MappingStart(_, 0, None) => {}
            Event::Alias(_)
            | Event::UnresolvedAlias(_)
            | Event::Anchor(..)
            | Event::Scalar(..)
            | Event::SequenceStart(..)
            | Event::MappingStart(..) => {
                return Err(Fault::new(place.start, "anchors, aliases and tags are not taken in front matter"));
            }
            _ => {}
        }
        // The end of a block collection is where the next thing begins; only what has an extent counts.
        if !place.is_empty() {
            self.end = self.end.max(place.end);
        }
        Ok((event, place))
    }

    fn place(&self, span: &Span) -> Range<usize> {
        let inside = |at: Option<usize>| self.base + at.unwrap_or(0).min(self.source.len());
        let start = inside(span.start.byte_offset());
        start..inside(span.end.byte_offset()).max(start)
    }

    fn line_start(&self, line: usize) -> usize {
        self.source.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum()
    }
}

fn is_null(plain: &str) -> bool {
    matches!(plain, "" | "~" | "null" | "Null" | "NULL")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(text: &str) -> Vec<String> {
        let yaml = layout(text).unwrap().yaml.unwrap();
        let front = parse(text, &yaml).unwrap();
        front.entries.iter().map(|e| format!("{}={:?}", &text[e.place.clone()], &text[e.span.clone()])).collect()
    }

    #[test]
    fn spans_cover_exactly_the_values() {
        let text = "---\n# top\ntitle: A plain: no\n---\n";
        assert!(parse(text, &layout(text).unwrap().yaml.unwrap()).is_err());
        let text = "---\r\n# top\r\ntitle:   a b  # why\r\n\"status\" : 'queued'\r\nempty:\r\nnul: ~\r\nlist:\r\n  - a # x\r\n  - b\r\n# c\r\nflow: [a,\r\n  b]\r\ntext: |\r\n  one\r\n  two\r\n\r\n# after\r\nfold: >-\r\n  x\r\nmulti: a\r\n  b\r\n---\r\nbody";
        assert_eq!(
            dump(text),
            [
                "title=\"a b\"",
                "\"status\"=\"'queued'\"",
                "empty=\"\"",
                "nul=\"~\"",
                "list=\"- a # x\\r\\n  - b\"",
                "flow=\"[a,\\r\\n  b]\"",
                "text=\"|\\r\\n  one\\r\\n  two\"",
                "fold=\">-\\r\\n  x\"",
                "multi=\"a\\r\\n  b\"",
            ]
        );
    }

    #[test]
    fn aliases_anchors_tags_and_depth_are_refused_at_their_place() {
        for (yaml, at) in [
            ("a: &x [1]\n", 6),
            ("a: 1\nb: *x\n", 8),
            ("a: !!str 1\n", 9),
            ("a: b\n...\nc: d\n", 9),
            ("%YAML 1.2\n", 0),
            ("just words\n", 0),
            ("- a\n", 0),
            ("a: 'x\n", 3),
        ] {
            let text = format!("---\n{yaml}---\n");
            let fault = parse(&text, &layout(&text).unwrap().yaml.unwrap()).unwrap_err();
            assert_eq!(fault.at - 4, at, "{yaml:?}: {fault:?}");
        }
        let deep = format!("---\na: {}\n---\n", "[".repeat(100_000));
        assert!(parse(&deep, &layout(&deep).unwrap().yaml.unwrap()).is_err());
    }
}
