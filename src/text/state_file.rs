//! `tasks/<path>/state.json` and `log.jsonl`: what became of a task, as shared with other machines. Documents are
//! rewritten by programs of different ages, so keys that this one does not know are kept; a version it does not know is
//! an error, since what it means cannot be guessed.

use super::stamp;
use crate::domain::safe;
use crate::domain::status::{Outcome, Reason, Status};
use crate::domain::task::WishVerb;
use crate::domain::verdict::UsageSum;
use crate::domain::{Epoch, Oid, Wall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The version that is written. Keys may be added without a new one.
pub const VERSION: u32 = 1;
/// Larger documents are refused unread, in bytes.
pub const SIZE_MAX: usize = 1024 * 1024;

/// `state.json`. Times are RFC 3339 in UTC with milliseconds; what is `None` is not written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateDoc {
    pub version: u32,
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    #[serde(default)]
    pub epoch: Epoch,
    /// Attempts used so far.
    #[serde(default)]
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The daemon that holds or held the claim, as it names itself in claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The commit that the work started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Oid>,
    /// The merge commit on the target branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<Oid>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "stamp::optional")]
    pub claimed: Option<Wall>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "stamp::optional")]
    pub started: Option<Wall>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "stamp::optional")]
    pub ended: Option<Wall>,
    /// What the agent asked and nobody has answered yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    #[serde(default)]
    pub usage: UsageSum,
    #[serde(default)]
    pub observed: Observed,
    /// The nonce of the claim under which this was concluded: a claim that carries it is void.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concluded_nonce: Option<String>,
    /// The agent CLI's session to go on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Keys of newer programs, written back as they were.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Which generations of the wish this state answers to.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Observed {
    pub retry: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wish: Option<WishVerb>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Why a state document cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("state.json is larger than {SIZE_MAX} bytes")]
    TooLarge,
    #[error("state.json has version {0}, this program knows up to {VERSION}")]
    Newer(u64),
    #[error("state.json cannot be read: {0}")]
    Unreadable(String),
}

impl StateDoc {
    /// The state of a task of which nothing is known but its status.
    pub fn new(status: Status) -> Self {
        Self {
            version: VERSION,
            status,
            reason: None,
            outcome: None,
            epoch: Epoch::default(),
            attempts: 0,
            agent: None,
            model: None,
            owner: None,
            branch: None,
            base: None,
            merged: None,
            claimed: None,
            started: None,
            ended: None,
            question: None,
            usage: UsageSum::default(),
            observed: Observed::default(),
            concluded_nonce: None,
            session: None,
            other: Map::new(),
        }
    }
}

/// Reads `state.json`.
pub fn read(bytes: &[u8]) -> Result<StateDoc, StateError> {
    if bytes.len() > SIZE_MAX {
        return Err(StateError::TooLarge);
    }
    let unreadable = |e: serde_json::Error| StateError::Unreadable(safe::line(&e.to_string()));
    // The version first: a newer document may have other shapes for everything else.
    let version: Version = serde_json::from_slice(bytes).map_err(unreadable)?;
    if version.version > u64::from(VERSION) {
        return Err(StateError::Newer(version.version));
    }
    serde_json::from_slice(bytes).map_err(unreadable)
}

/// Writes `state.json`: indented, keys in the order of the struct, a line feed at the end.
pub fn write(doc: &StateDoc) -> String {
    let mut doc = doc.clone();
    doc.version = VERSION;
    if !doc.usage.cost.is_finite() {
        // JSON has no word for it, and an unknown price is not zero.
        doc.usage.cost = 0.0;
        doc.usage.partial = true;
    }
    // Nothing in the document can fail to be written: all maps have text for keys.
    let mut text = serde_json::to_string_pretty(&doc).unwrap_or_default();
    text.push('\n');
    text
}

/// One line of `log.jsonl`: a change of status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    #[serde(with = "stamp::required")]
    pub ts: Wall,
    /// The phase that was left; `None` for the first line of a task.
    pub from: Option<String>,
    /// The phase that was entered.
    pub to: String,
    pub epoch: Epoch,
    /// Who did it: a daemon's or a person's name.
    pub actor: String,
    /// Why, in words; may quote hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a log holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    pub lines: Vec<LogLine>,
    /// Lines that could not be read; blank ones do not count.
    pub bad: usize,
}

/// Reads a log as far as it can be read.
pub fn read_log(bytes: &[u8]) -> Log {
    let mut log = Log::default();
    for line in bytes.split(|b| *b == b'\n').filter(|l| !l.iter().all(u8::is_ascii_whitespace)) {
        match serde_json::from_slice(line) {
            Ok(line) => log.lines.push(line),
            Err(_) => log.bad += 1,
        }
    }
    log
}

/// The log `existing` with `lines` at its end. What is there stays byte for byte; a torn last line gets its line feed.
pub fn append_log(existing: &[u8], lines: &[LogLine]) -> Vec<u8> {
    let mut out = existing.to_vec();
    for line in lines {
        if out.last().is_some_and(|b| *b != b'\n') {
            out.push(b'\n');
        }
        out.extend(serde_json::to_vec(line).unwrap_or_default());
        out.push(b'\n');
    }
    out
}

#[derive(Deserialize)]
struct Version {
    version: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::status::ReasonClass;
    use proptest::prelude::*;

    fn full() -> StateDoc {
        let oid = |c: &str| Oid::parse(&c.repeat(40)).unwrap();
        StateDoc {
            reason: Some(Reason::new(ReasonClass::MergeConflict, "line\ntwo")),
            outcome: Some(Outcome::Merged { commit: oid("b") }),
            epoch: Epoch(7),
            attempts: 2,
            agent: Some("claude".into()),
            base: Some(oid("a")),
            merged: Some(oid("b")),
            claimed: Some(Wall(1_777_885_923_007)),
            usage: UsageSum { input: 5, cost: 0.25, runs: 1, ..UsageSum::default() },
            observed: Observed { retry: 2, wish: Some(WishVerb::Abort), other: Map::new() },
            concluded_nonce: Some("n1".into()),
            ..StateDoc::new(Status::Completed)
        }
    }

    #[test]
    fn the_bytes_of_a_state_are_fixed() {
        let text = write(&full());
        assert_eq!(
            text,
            r#"{
  "version": 1,
  "status": "completed",
  "reason": {
    "class": "merge_conflict",
    "text": "line\ntwo"
  },
  "outcome": {
    "outcome": "merged",
    "commit": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
  },
  "epoch": 7,
  "attempts": 2,
  "agent": "claude",
  "base": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
  "merged": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
  "claimed": "2026-05-04T09:12:03.007Z",
  "usage": {
    "input": 5,
    "output": 0,
    "cached": 0,
    "cost": 0.25,
    "partial": false,
    "runs": 1
  },
  "observed": {
    "retry": 2,
    "wish": "abort"
  },
  "concluded_nonce": "n1"
}
"#
        );
        assert_eq!(read(text.as_bytes()), Ok(full()));
    }

    #[test]
    fn keys_of_newer_programs_survive_a_rewrite() {
        let text =
            r#"{"version":1,"zeta":[1,{"a":null}],"status":"queued","observed":{"retry":1,"more":true},"alpha":"x"}"#;
        let doc = read(text.as_bytes()).unwrap();
        let again: Value = serde_json::from_str(&write(&doc)).unwrap();
        let before: Value = serde_json::from_str(text).unwrap();
        assert_eq!((&again["zeta"], &again["alpha"]), (&before["zeta"], &before["alpha"]));
        assert_eq!(again["observed"]["more"], true);
        assert_eq!(doc.other.keys().collect::<Vec<_>>(), ["zeta", "alpha"]);
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        assert_eq!(read(br#"{"version":2,"status":["new"]}"#), Err(StateError::Newer(2)));
        assert!(matches!(read(b"{"), Err(StateError::Unreadable(_))));
        assert!(matches!(read(br#"{"version":1,"status":"asleep"}"#), Err(StateError::Unreadable(_))));
        assert!(matches!(
            read(br#"{"version":1,"status":"queued","claimed":"tomorrow"}"#),
            Err(StateError::Unreadable(_))
        ));
        assert_eq!(read(&vec![b' '; SIZE_MAX + 1]), Err(StateError::TooLarge));
        let mut doc = full();
        doc.usage.cost = f64::NAN;
        assert!(read(write(&doc).as_bytes()).unwrap().usage.partial);
    }

    #[test]
    fn a_log_is_one_line_an_entry_and_survives_torn_lines() {
        let line = LogLine {
            ts: Wall(1_777_885_923_007),
            from: Some("queued".into()),
            to: "claiming".into(),
            epoch: Epoch(3),
            actor: "host\nforged".into(),
            reason: None,
        };
        let log = append_log(b"{\"torn\":", &[line.clone(), line.clone()]);
        assert_eq!(log.iter().filter(|b| **b == b'\n').count(), 3);
        assert_eq!(read_log(&log), Log { lines: vec![line.clone(), line], bad: 1 });
        assert_eq!(read_log(b"\n\n \r\n"), Log::default());
        let text = String::from_utf8(append_log(b"", &read_log(&log).lines[..1])).unwrap();
        assert_eq!(
            text,
            "{\"ts\":\"2026-05-04T09:12:03.007Z\",\"from\":\"queued\",\"to\":\"claiming\",\"epoch\":3,\"actor\":\"host\\nforged\"}\n"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            let _ = read_log(&bytes);
        }
    }
}
