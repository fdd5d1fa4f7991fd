//! What a run printed: both streams in the order in which they came, byte for byte, in files that stay within a cap.
//! Below the cap nothing is left out; above it the first half stays and the rest is a window that moves along, and
//! whoever reads along live still sees all of it. The layout is described in `docs/run-folder.md`.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"ONIDX\0\0\x01";
/// Size of an index's head and of each of its records.
const RECORD: u64 = 16;
/// Bytes of output at the end that the exit record repeats.
const TAIL: usize = 4096;
/// Segments of the moving window, the one being written included.
const WINDOW: usize = 4;
const LEAST_CAP: u64 = 64 * 1024;
const KIND_OUT: u8 = 1;
const KIND_ERR: u8 = 2;
const KIND_LOST: u8 = 3;
const TIME_MASK: u64 = (1 << 56) - 1;

/// Which of the child's streams some bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// A piece of a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes as they came; `at` counts all bytes before them, `ms` is the run's age in milliseconds. Not cut at lines or
    /// characters.
    Bytes { stream: Stream, at: u64, ms: u64, data: Vec<u8> },
    /// So many bytes are gone: beyond the cap, or never stored because the disk was full.
    Gap { at: u64, bytes: u64 },
}

fn log_path(folder: &Path, n: u64) -> PathBuf {
    folder.join(format!("out.{n}.log"))
}

fn index_path(folder: &Path, n: u64) -> PathBuf {
    folder.join(format!("out.{n}.idx"))
}

/// The beginning and the end of the transcript in a run folder, at most `each` bytes of both, and how many bytes of the
/// `total` are missing between them.
pub(super) fn ends_of(folder: &Path, total: u64, each: usize) -> io::Result<(Vec<u8>, u64, Vec<u8>)> {
    let mut first = Vec::new();
    let mut reader = Reader::new(folder, 0);
    while first.len() < each {
        match reader.read(each - first.len())? {
            Some(Piece::Bytes { data, .. }) => first.extend(data),
            Some(Piece::Gap { .. }) | None => break,
        }
    }
    let begun = first.len() as u64;
    let mut last = Vec::new();
    let mut reader = Reader::new(folder, total.saturating_sub(each as u64).max(begun));
    while let Some(piece) = reader.read(each)? {
        match piece {
            Piece::Bytes { data, .. } => last.extend(data),
            Piece::Gap { .. } => last.clear(),
        }
    }
    let missing = total.saturating_sub(begun + last.len() as u64);
    if missing > 0 && first.is_empty() && last.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok((first, missing, last))
}

/// Writes a transcript; one per run, in its shim.
#[derive(Debug)]
pub(super) struct Writer {
    folder: PathBuf,
    /// Stored bytes (index included) of the first segment, and of each later one.
    head: u64,
    each: u64,
    segment: Option<Segment>,
    next: u64,
    /// Full segments of the window, oldest first: number and bytes of output.
    window: VecDeque<(u64, u64)>,
    bytes: u64,
    cut: u64,
    /// Bytes that could not be stored and that no record tells of yet.
    lost: u64,
    tail: Vec<u8>,
}

#[derive(Debug)]
struct Segment {
    n: u64,
    /// Position of its first byte in the whole output.
    start: u64,
    log: File,
    index: File,
    /// Bytes in each file.
    logged: u64,
    indexed: u64,
    /// Lost bytes that its records tell of.
    told: u64,
}

impl Writer {
    /// A new transcript that stores at most about `cap` bytes (at least 64 KiB), index included.
    pub(super) fn new(folder: &Path, cap: u64) -> Self {
        let cap = cap.max(LEAST_CAP);
        Self {
            folder: folder.to_owned(),
            head: cap / 2,
            each: cap / 2 / WINDOW as u64,
            segment: None,
            next: 0,
            window: VecDeque::new(),
            bytes: 0,
            cut: 0,
            lost: 0,
            tail: Vec::new(),
        }
    }

    /// Takes in what came. A full disk is no reason to end a run: what cannot be stored is counted as cut.
    pub(super) fn append(&mut self, stream: Stream, ms: u64, mut data: &[u8]) {
        self.bytes += data.len() as u64;
        self.remember(data);
        while !data.is_empty() {
            match self.store(stream, ms, data) {
                Ok(stored) => data = &data[stored..],
                Err(_) => {
                    self.cut += data.len() as u64;
                    self.lost += data.len() as u64;
                    return;
                }
            }
        }
    }

    fn remember(&mut self, data: &[u8]) {
        let keep = &data[data.len().saturating_sub(TAIL)..];
        self.tail.extend_from_slice(keep);
        if self.tail.len() > 16 * TAIL {
            self.tail.drain(..self.tail.len() - TAIL);
        }
    }

    /// Stores as much of `data` as the segment has room for.
    fn store(&mut self, stream: Stream, ms: u64, data: &[u8]) -> io::Result<usize> {
        let full = self.segment.as_ref().is_none_or(|s| {
            let limit = if s.n == 0 { self.head } else { self.each };
            s.logged + s.indexed + 3 * RECORD > limit
        });
        if full {
            self.rotate()?;
        }
        let (head, each, lost) = (self.head, self.each, self.lost);
        let Some(s) = self.segment.as_mut() else { return Err(io::ErrorKind::NotFound.into()) };
        if lost > 0 {
            let told = lost.min(u64::from(u32::MAX));
            s.record_lost(ms, told)?;
            self.lost -= told;
        }
        let room = (if s.n == 0 { head } else { each }).saturating_sub(s.logged + s.indexed + RECORD);
        let take = data.len().min(usize::try_from(room).unwrap_or(usize::MAX)).clamp(1, 1 << 30);
        let kind = match stream {
            Stream::Out => KIND_OUT,
            Stream::Err => KIND_ERR,
        };
        s.write(kind, ms, &data[..take])?;
        Ok(take)
    }

    /// Closes the segment, opens the next one, and lets go of the oldest of a full window.
    fn rotate(&mut self) -> io::Result<()> {
        let start = self.bytes_before_next();
        let segment = Segment::create(&self.folder, self.next, start)?;
        self.next += 1;
        if let Some(old) = self.segment.replace(segment)
            && old.n > 0
        {
            self.window.push_back((old.n, old.logged));
        }
        if self.window.len() >= WINDOW
            && let Some((n, bytes)) = self.window.pop_front()
        {
            // The index first: a reader that finds no index looks for the next segment.
            let _ = std::fs::remove_file(index_path(&self.folder, n));
            let _ = std::fs::remove_file(log_path(&self.folder, n));
            self.cut += bytes;
        }
        Ok(())
    }

    /// Position in the whole output at which the next segment starts: what no segment has yet is still to come.
    fn bytes_before_next(&self) -> u64 {
        self.segment.as_ref().map_or(0, |s| s.start + s.logged + s.told)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn cut(&self) -> u64 {
        self.cut
    }

    /// The last few kilobytes, for people.
    pub(super) fn tail(&self) -> String {
        let from = self.tail.len().saturating_sub(TAIL);
        String::from_utf8_lossy(&self.tail[from..]).into_owned()
    }

    /// Makes sure that what was stored outlives a power cut.
    pub(super) fn sync(&self) -> io::Result<()> {
        for n in segments(&self.folder)? {
            File::open(log_path(&self.folder, n))?.sync_data()?;
            File::open(index_path(&self.folder, n))?.sync_data()?;
        }
        Ok(())
    }
}

impl Segment {
    fn create(folder: &Path, n: u64, start: u64) -> io::Result<Self> {
        let create = |path| OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
        let log = create(log_path(folder, n))?;
        let index = create(index_path(folder, n))?;
        let mut head = [0; RECORD as usize];
        head[..8].copy_from_slice(&MAGIC);
        head[8..].copy_from_slice(&start.to_le_bytes());
        index.write_all_at(&head, 0)?;
        Ok(Self { n, start, log, index, logged: 0, indexed: RECORD, told: 0 })
    }

    /// The bytes first, then the record that makes readers look at them. Positions are our own, so that a half-done
    /// write is written over by the next.
    fn write(&mut self, kind: u8, ms: u64, data: &[u8]) -> io::Result<()> {
        self.log.write_all_at(data, self.logged)?;
        self.put(kind, ms, data.len() as u64)?;
        self.logged += data.len() as u64;
        Ok(())
    }

    fn record_lost(&mut self, ms: u64, bytes: u64) -> io::Result<()> {
        self.put(KIND_LOST, ms, bytes)?;
        self.told += bytes;
        Ok(())
    }

    fn put(&mut self, kind: u8, ms: u64, len: u64) -> io::Result<()> {
        let mut record = [0; RECORD as usize];
        record[..8].copy_from_slice(&len.to_le_bytes());
        record[8..].copy_from_slice(&(u64::from(kind) << 56 | ms & TIME_MASK).to_le_bytes());
        let done = self.index.write_all_at(&record, self.indexed);
        if done.is_err() {
            // A torn record would be taken for a whole one once the next is written after it.
            let _ = self.index.set_len(self.indexed);
            return done;
        }
        self.indexed += RECORD;
        Ok(())
    }
}

/// Numbers of the segments there are, in order.
fn segments(folder: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let n: Option<u64> = name.to_str().and_then(|n| n.strip_prefix("out.")?.strip_suffix(".idx")?.parse().ok());
        found.extend(n);
    }
    found.sort_unstable();
    Ok(found)
}

/// Reads a transcript from any position, while it is being written or later.
#[derive(Debug)]
pub struct Reader {
    folder: PathBuf,
    open: Option<Open>,
    pos: u64,
    /// Where the caller wants to begin; records before it are passed over.
    from: u64,
}

/// The segment being read.
#[derive(Debug)]
struct Open {
    n: u64,
    start: u64,
    log: File,
    index: File,
    indexed: u64,
    logged: u64,
    /// The record being read: kind, age, bytes left.
    record: Option<(u8, u64, u64)>,
}

impl Reader {
    /// Reads the transcript in a run folder from position `from` on, which counts all bytes of both streams.
    pub fn new(folder: &Path, from: u64) -> Self {
        Self { folder: folder.to_owned(), open: None, pos: 0, from }
    }

    /// The next piece of at most `max` bytes; `None` when there is no more for now.
    pub fn read(&mut self, max: usize) -> io::Result<Option<Piece>> {
        loop {
            if self.open.is_none() && !self.advance(None)? {
                return Ok(None);
            }
            if let Some(piece) = self.next_in_segment(max)? {
                return Ok(Some(piece));
            }
            let at = self.open.as_ref().map(|o| o.n);
            if segments(&self.folder)?.last().copied() <= at {
                return Ok(None);
            }
            // What was written to this one before its successor came.
            if let Some(piece) = self.next_in_segment(max)? {
                return Ok(Some(piece));
            }
            if !self.advance(at)? {
                return Ok(None);
            }
        }
    }

    fn next_in_segment(&mut self, max: usize) -> io::Result<Option<Piece>> {
        if let Some(gap) = self.gap_before_segment() {
            return Ok(Some(gap));
        }
        while let Some(piece) = self.read_segment(max)? {
            if let Some(piece) = self.after_start(piece) {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    fn gap_before_segment(&mut self) -> Option<Piece> {
        let start = self.open.as_ref()?.start;
        let (at, bytes) = (self.pos, start.checked_sub(self.pos).filter(|b| *b > 0)?);
        self.pos = start;
        self.after_start(Piece::Gap { at, bytes })
    }

    /// Drops what lies before the position asked for.
    fn after_start(&self, piece: Piece) -> Option<Piece> {
        let from = self.from;
        match piece {
            Piece::Gap { at, bytes } if at + bytes <= from => None,
            Piece::Gap { at, bytes } if at < from => Some(Piece::Gap { at: from, bytes: at + bytes - from }),
            Piece::Bytes { at, data, .. } if at + data.len() as u64 <= from => None,
            Piece::Bytes { stream, at, ms, data } if at < from => {
                let skip = usize::try_from(from - at).unwrap_or(usize::MAX);
                Some(Piece::Bytes { stream, at: from, ms, data: data[skip..].to_vec() })
            }
            piece => Some(piece),
        }
    }

    /// Opens the oldest segment after `n`, or, to begin with, the last one that starts before the wanted position.
    fn advance(&mut self, n: Option<u64>) -> io::Result<bool> {
        for candidate in segments(&self.folder)? {
            if n.is_some_and(|n| candidate <= n) {
                continue;
            }
            let Some(open) = Open::segment(&self.folder, candidate)? else { continue };
            if n.is_none() && self.open.is_some() && open.start > self.from {
                break;
            }
            if n.is_none() {
                // What lies before it is not asked for.
                self.pos = open.start.min(self.from);
            }
            self.open = Some(open);
            if n.is_some() {
                return Ok(true);
            }
        }
        Ok(self.open.is_some() && n.is_none())
    }

    fn read_segment(&mut self, max: usize) -> io::Result<Option<Piece>> {
        let Some(open) = self.open.as_mut() else { return Ok(None) };
        let Some((kind, ms, left)) = open.record()? else { return Ok(None) };
        let at = self.pos;
        let stream = match kind {
            KIND_OUT => Stream::Out,
            KIND_ERR => Stream::Err,
            _ => {
                open.record = None;
                self.pos += left;
                return Ok(Some(Piece::Gap { at, bytes: left }));
            }
        };
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(max.max(1));
        let mut data = vec![0; want];
        let got = read_up_to(&open.log, &mut data, open.logged)?;
        data.truncate(got);
        if got == 0 {
            // The record is there and its bytes are not: torn by a power cut.
            open.record = None;
            self.pos += left;
            return Ok(Some(Piece::Gap { at, bytes: left }));
        }
        open.logged += got as u64;
        self.pos += got as u64;
        open.record = (left > got as u64).then_some((kind, ms, left - got as u64));
        Ok(Some(Piece::Bytes { stream, at, ms, data }))
    }
}

impl Open {
    /// `None` when it was removed meanwhile or has no head yet.
    fn segment(folder: &Path, n: u64) -> io::Result<Option<Self>> {
        let open = |path| match File::open(path) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        };
        let (Some(index), Some(log)) = (open(index_path(folder, n))?, open(log_path(folder, n))?) else {
            return Ok(None);
        };
        let mut head = [0; RECORD as usize];
        if read_up_to(&index, &mut head, 0)? < head.len() || head[..8] != MAGIC {
            return Ok(None);
        }
        let start = word(&head[8..]);
        Ok(Some(Self { n, start, log, index, indexed: RECORD, logged: 0, record: None }))
    }

    fn record(&mut self) -> io::Result<Option<(u8, u64, u64)>> {
        if self.record.is_none() {
            let mut record = [0; RECORD as usize];
            if read_up_to(&self.index, &mut record, self.indexed)? < record.len() {
                return Ok(None);
            }
            self.indexed += RECORD;
            let (len, tag) = (word(&record[..8]), word(&record[8..]));
            self.record = Some(((tag >> 56) as u8, tag & TIME_MASK, len));
        }
        Ok(self.record)
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn read_up_to(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buf.len() {
        match file.read_at(&mut buf[got..], at + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// Bytes written in all as far as the folder tells, how many of them are gone, and the last few kilobytes. For runs whose
/// shim left no record.
pub(super) fn summary(folder: &Path) -> io::Result<(u64, u64, String)> {
    let mut reader = Reader::new(folder, 0);
    let (mut bytes, mut cut, mut tail) = (0, 0, Vec::new());
    while let Some(piece) = reader.read(1 << 20)? {
        match piece {
            Piece::Gap { bytes: gone, .. } => {
                bytes += gone;
                cut += gone;
            }
            Piece::Bytes { data, .. } => {
                bytes += data.len() as u64;
                tail.extend_from_slice(&data[data.len().saturating_sub(TAIL)..]);
                let surplus = tail.len().saturating_sub(TAIL);
                tail.drain(..surplus);
            }
        }
    }
    Ok((bytes, cut, String::from_utf8_lossy(&tail).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(folder: &Path, from: u64) -> (Vec<u8>, u64) {
        let mut reader = Reader::new(folder, from);
        let (mut bytes, mut gone) = (Vec::new(), 0);
        while let Some(piece) = reader.read(1000).unwrap() {
            match piece {
                Piece::Bytes { data, .. } => bytes.extend(data),
                Piece::Gap { bytes, .. } => gone += bytes,
            }
        }
        (bytes, gone)
    }

    fn stored(folder: &Path) -> u64 {
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum()
    }

    #[test]
    fn below_the_cap_all_is_kept_with_stream_and_order() {
        let dir = tempfile::tempdir().unwrap();
        let mut w = Writer::new(dir.path(), 1 << 20);
        for i in 0..1000u64 {
            w.append(
                if i % 2 == 0 { Stream::Out } else { Stream::Err },
                i,
                format!(
                    "{i}
"
                )
                .as_bytes(),
            );
        }
        let mut reader = Reader::new(dir.path(), 0);
        for i in 0..1000u64 {
            let Some(Piece::Bytes { stream, ms, data, .. }) = reader.read(100).unwrap() else { panic!() };
            assert_eq!(
                (data, ms),
                (
                    format!(
                        "{i}
"
                    )
                    .into_bytes(),
                    i
                )
            );
            assert_eq!(stream, if i % 2 == 0 { Stream::Out } else { Stream::Err });
        }
        assert_eq!(w.cut(), 0);
        assert_eq!(all(dir.path(), 0).0.len() as u64, w.bytes());
        assert_eq!(
            all(dir.path(), w.bytes() - 4).0,
            b"999
"
        );
    }

    #[test]
    fn the_cap_holds_for_long_lines_and_for_single_bytes_and_nothing_is_miscounted() {
        for chunk in [100_000, 1] {
            let dir = tempfile::tempdir().unwrap();
            let cap = 256 * 1024;
            let mut w = Writer::new(dir.path(), cap);
            let mut written = 0;
            while written < 3_000_000 / if chunk == 1 { 10 } else { 1 } {
                w.append(if written % 2 == 0 { Stream::Out } else { Stream::Err }, 0, &vec![b'x'; chunk]);
                written += chunk as u64;
            }
            w.append(Stream::Out, 0, b"the end");
            written += 7;
            assert!(stored(dir.path()) <= cap, "{} stored", stored(dir.path()));
            let (bytes, gone) = all(dir.path(), 0);
            assert!(bytes.ends_with(b"the end"));
            assert_eq!(bytes.len() as u64 + gone, written);
            assert_eq!((w.bytes(), w.cut()), (written, gone));
            let (b, c, tail) = summary(dir.path()).unwrap();
            assert_eq!((b, c), (written, gone));
            assert!(tail.ends_with("the end") && w.tail().ends_with("the end") && tail.len() <= TAIL);
            let from = written - 5000;
            assert_eq!(all(dir.path(), from), (bytes[bytes.len() - 5000..].to_vec(), 0));
        }
    }

    #[test]
    fn a_reader_that_keeps_up_sees_everything() {
        let dir = tempfile::tempdir().unwrap();
        let mut w = Writer::new(dir.path(), LEAST_CAP);
        let mut reader = Reader::new(dir.path(), 0);
        let mut seen = Vec::new();
        let mut expected = Vec::new();
        for i in 0..20_000u64 {
            let line = format!(
                "line {i}
"
            );
            w.append(Stream::Out, i, line.as_bytes());
            expected.extend(line.into_bytes());
            if i % 50 == 0 || i == 19_999 {
                while let Some(piece) = reader.read(333).unwrap() {
                    let Piece::Bytes { data, .. } = piece else { panic!("a gap") };
                    seen.extend(data);
                }
            }
        }
        assert!(seen == expected && w.cut() > 0);
    }
}
