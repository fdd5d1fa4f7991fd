//! What `git status --porcelain=v2 -z` says, as values. Names are the exact bytes; nothing is read from text made for
//! people.

use crate::domain::Oid;

/// One tracked path that differs from HEAD or from the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: Vec<u8>,
    /// Index against HEAD, and work tree against index: git's letters, `.` for none.
    pub index: u8,
    pub tree: u8,
    /// Mode in HEAD, in octal as git prints it; `000000` for none.
    pub head_mode: u32,
    pub index_mode: u32,
}

/// A worktree's state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The commit of HEAD, `None` before the first.
    pub head: Option<Oid>,
    /// The branch that HEAD names, `None` when detached.
    pub branch: Option<Vec<u8>>,
    pub changed: Vec<Entry>,
    pub unmerged: Vec<Vec<u8>>,
    /// Untracked paths; a nested repository is one path that ends in `/`.
    pub untracked: Vec<Vec<u8>>,
    pub ignored: Vec<Vec<u8>>,
}

/// The arguments that [`parse`] expects the answer to. Renames are left to the tree comparison.
pub const ARGS: &[&str] = &[
    "status",
    "--porcelain=v2",
    "-z",
    "--branch",
    "--no-renames",
    "--untracked-files=all",
    "--ignore-submodules=dirty",
    "--no-ahead-behind",
];

impl Status {
    /// Nothing changed, nothing untracked, nothing ignored.
    pub fn is_spotless(&self) -> bool {
        !self.is_dirty() && self.ignored.is_empty()
    }

    /// Something that a commit could take.
    pub fn is_dirty(&self) -> bool {
        !(self.changed.is_empty() && self.unmerged.is_empty() && self.untracked.is_empty())
    }
}

/// Reads the records; lines of kinds that git may add later are passed over.
pub fn parse(stdout: &[u8]) -> Status {
    let mut s = Status::default();
    for record in stdout.split(|b| *b == 0).filter(|r| !r.is_empty()) {
        match record {
            [b'?', b' ', path @ ..] => s.untracked.push(path.to_vec()),
            [b'!', b' ', path @ ..] => s.ignored.push(path.to_vec()),
            [b'1', b' ', rest @ ..] => s.changed.extend(ordinary(rest)),
            [b'u', b' ', rest @ ..] => s.unmerged.extend(rest.splitn(10, |b| *b == b' ').nth(9).map(<[u8]>::to_vec)),
            [b'#', b' ', rest @ ..] => header(rest, &mut s),
            _ => {}
        }
    }
    s
}

fn header(rest: &[u8], s: &mut Status) {
    if let Some(oid) = rest.strip_prefix(b"branch.oid ") {
        s.head = Oid::parse(&String::from_utf8_lossy(oid)).ok();
    } else if let Some(name) = rest.strip_prefix(b"branch.head ") {
        s.branch = (name != b"(detached)").then(|| name.to_vec());
    }
}

/// `XY sub mH mI mW hH hI path`
fn ordinary(rest: &[u8]) -> Option<Entry> {
    let parts: Vec<&[u8]> = rest.splitn(8, |b| *b == b' ').collect();
    let [xy, _, head, index, _, _, _, path] = parts.as_slice() else { return None };
    let mode = |m: &[u8]| u32::from_str_radix(std::str::from_utf8(m).ok()?, 8).ok();
    Some(Entry {
        path: path.to_vec(),
        index: *xy.first()?,
        tree: *xy.get(1)?,
        head_mode: mode(head)?,
        index_mode: mode(index)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_and_line_breaks_are_exact() {
        let zeros = "0".repeat(40);
        let out = format!(
            "# branch.oid {zeros}\0# branch.head (detached)\x001 .M N... 100644 100644 100644 {zeros} {zeros} a b -> c\0? new\nline\0? lib/\0! x\0u UU N... 1 2 3 4 a b c two words\0"
        );
        let s = parse(out.as_bytes());
        assert_eq!(s.branch, None);
        assert_eq!(s.changed[0].path, b"a b -> c");
        assert_eq!((s.changed[0].index, s.changed[0].tree), (b'.', b'M'));
        assert_eq!(s.untracked, [b"new\nline".to_vec(), b"lib/".to_vec()]);
        assert_eq!(s.ignored, [b"x".to_vec()]);
        assert_eq!(s.unmerged, [b"two words".to_vec()]);
    }
}
