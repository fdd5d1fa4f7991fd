//! Framing: one JSON document a line, UTF-8, ended by a line feed, never longer than `MAX_LINE`. The splitter keeps no
//! more than that of what a peer sends, however it sends it.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest line either side takes, in bytes: a task file of a megabyte, escaped, still fits.
pub const MAX_LINE: usize = 4 << 20;

/// Why a line was not taken. The connection is closed after it.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a line is longer than {MAX_LINE} bytes")]
    TooLong,
    #[error("a line is not a message of this protocol: {0}")]
    Unreadable(String),
}

/// Splits what arrives into lines.
#[derive(Debug, Default)]
pub struct Frame {
    held: Vec<u8>,
}

impl Frame {
    /// Takes bytes as they arrive and gives the lines that are whole.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            if self.held.len() + part.len() > MAX_LINE {
                return Err(FrameError::TooLong);
            }
            self.held.extend_from_slice(part);
            if self.held.last() == Some(&b'\n') {
                self.held.pop();
                lines.push(std::mem::take(&mut self.held));
            }
        }
        Ok(lines)
    }
}

/// Reads one line. serde_json bounds the depth, so that nested brackets do not exhaust the stack.
pub fn read<T: DeserializeOwned>(line: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(line).map_err(|e| FrameError::Unreadable(e.to_string()))
}

/// Writes one line, its line feed included.
pub fn write<T: Serialize>(message: &T) -> Vec<u8> {
    // Our own messages have string keys and no failing serializers; an empty line would be refused, not misread.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_however_they_arrive() {
        let mut frame = Frame::default();
        assert!(frame.feed(b"{\"a\"").unwrap().is_empty());
        assert_eq!(frame.feed(b":1}\n{}\n{").unwrap(), [b"{\"a\":1}".to_vec(), b"{}".to_vec()]);
        assert_eq!(frame.feed(b"}\n").unwrap(), [b"{}".to_vec()]);
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_the_memory() {
        let mut frame = Frame::default();
        let chunk = vec![b'x'; 1 << 20];
        let taken = (0..100).take_while(|_| frame.feed(&chunk).is_ok()).count();
        assert!(taken <= MAX_LINE >> 20);
        assert!(read::<crate::protocol::Call>("[".repeat(100_000).as_bytes()).is_err());
    }
}
