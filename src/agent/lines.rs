//! Splits a byte stream into lines within a fixed memory bound. The bytes need not be UTF-8, a line need not end, and a
//! line longer than the bound is dropped (JSON) or handed on in pieces (text).

/// What becomes of a line over the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Long {
    /// Nobody can read half a JSON value: count it and wait for the next line.
    Drop,
    /// Each full buffer is a line of its own.
    Split,
}

/// The unfinished end of a stream.
#[derive(Debug)]
pub(super) struct Lines {
    held: Vec<u8>,
    max: usize,
    long: Long,
    /// In the rest of a line that was dropped.
    skipping: bool,
    dropped: u64,
}

/// Buffers up to this size are kept between lines.
const KEEP: usize = 64 << 10;

impl Lines {
    pub(super) fn new(max: usize, long: Long) -> Self {
        Self { held: Vec::new(), max, long, skipping: false, dropped: 0 }
    }

    /// Calls `each` for every line that `bytes` complete, without its line end.
    pub(super) fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        let mut rest = bytes;
        // `contains` is the fast search; most of a long line's bytes are looked at by it alone.
        while rest.contains(&b'\n')
            && let Some(end) = rest.iter().position(|b| *b == b'\n')
        {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            if self.held.is_empty() && !self.skipping && line.len() <= self.max {
                each(bare(line));
                continue;
            }
            self.hold(line, &mut each);
            if !self.skipping {
                each(bare(&self.held));
            }
            self.clear();
        }
        self.hold(rest, &mut each);
    }

    /// The unterminated last line, where there is one.
    pub(super) fn end(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.held);
        (!self.skipping && !line.is_empty()).then(|| bare(&line).to_vec())
    }

    /// Forgets an unfinished line: bytes that follow do not belong to it.
    pub(super) fn gap(&mut self) {
        self.clear();
    }

    /// Lines dropped for their length.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.held.capacity()
    }

    fn hold(&mut self, mut bytes: &[u8], each: &mut impl FnMut(&[u8])) {
        while !self.skipping && !bytes.is_empty() {
            let room = self.max - self.held.len();
            if bytes.len() <= room {
                self.held.extend_from_slice(bytes);
                return;
            }
            match self.long {
                Long::Drop => {
                    self.clear();
                    self.skipping = true;
                    self.dropped += 1;
                }
                Long::Split => {
                    self.held.extend_from_slice(&bytes[..room]);
                    bytes = &bytes[room..];
                    each(&self.held);
                    self.held.clear();
                }
            }
        }
    }

    fn clear(&mut self) {
        self.skipping = false;
        self.held.clear();
        if self.held.capacity() > KEEP {
            self.held = Vec::new();
        }
    }
}

/// Without the carriage return of a CRLF.
fn bare(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(max: usize, long: Long, chunks: &[&[u8]]) -> (Vec<String>, u64) {
        let mut lines = Lines::new(max, long);
        let mut out = Vec::new();
        for chunk in chunks {
            lines.feed(chunk, |l| out.push(String::from_utf8_lossy(l).into_owned()));
            assert!(lines.capacity() <= 2 * max.max(8));
        }
        let dropped = lines.dropped();
        out.extend(lines.end().map(|l| String::from_utf8_lossy(&l).into_owned()));
        (out, dropped)
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let text = b"one\r\ntwo\n\nthree\xff\nlast";
        let whole = split(100, Long::Drop, &[text]).0;
        assert_eq!(whole, ["one", "two", "", "three\u{fffd}", "last"]);
        for size in 1..text.len() {
            let chunks: Vec<_> = text.chunks(size).collect();
            assert_eq!(split(100, Long::Drop, &chunks).0, whole, "chunks of {size}");
            assert_eq!(split(100, Long::Split, &chunks).0, whole, "chunks of {size}");
        }
    }

    #[test]
    fn a_long_line_is_dropped_or_split() {
        let text = b"0123456789abcdef\nok\n0123456789";
        for size in 1..text.len() {
            let chunks: Vec<_> = text.chunks(size).collect();
            let (lines, dropped) = split(8, Long::Drop, &chunks);
            assert_eq!((lines.as_slice(), dropped), (["ok".to_owned()].as_slice(), 2), "chunks of {size}");
            let (lines, dropped) = split(8, Long::Split, &chunks);
            assert_eq!(
                (lines.join("|").as_str(), dropped),
                ("01234567|89abcdef|ok|01234567|89", 0),
                "chunks of {size}"
            );
        }
    }
}
