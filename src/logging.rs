//! Tracing: JSON lines into files that change daily and at a size, and readable lines on a foreground's stderr. Values may
//! come from tasks, agents and remotes; in both forms every character that would act is escaped, so that no value can
//! start a line of its own or drive a terminal.
//!
//! tracing-appender changes files by date alone and prunes by a name's beginning and end, so the file side is ours: one
//! family of files has an exact pattern of names, and only those are ever removed. Its non-blocking writer carries the
//! lines there, so that a slow or full disk never holds the program.

use crate::domain::safe::{self, shown};
use std::fmt::{self, Write as _};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use time::macros::format_description;
use time::{Date, OffsetDateTime};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer as _};

/// A file is closed at this size, in bytes.
pub const MAX_BYTES: u64 = 16 << 20;
/// Files of one family that are kept, the current one included.
pub const MAX_FILES: usize = 14;
/// A longer record is left out, and its size said in its place.
const MAX_RECORD: usize = 256 << 10;
/// Lines that may wait for the disk; those beyond are dropped.
const MAX_WAITING: usize = 16_000;
/// What is logged where nothing is said.
const LEVELS: &str = "info,sqlx=warn,notify=warn,gix=warn";

/// Where lines go.
#[derive(Debug, Clone)]
pub struct Options {
    /// First part of the files' names: `daemon`, `cli`.
    pub family: &'static str,
    /// Folder of the files; `None` writes none.
    pub folder: Option<PathBuf>,
    /// Whether readable lines go to stderr.
    pub stderr: bool,
    /// Never colours; else they are used when stderr is a terminal.
    pub no_color: bool,
    /// Levels as in `OVERNIGHT_LOG`.
    pub levels: Option<String>,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("could not open a log file in {}", folder.display())]
    Open { folder: PathBuf, source: io::Error },
    #[error("logging was already set up")]
    Twice,
}

/// Writes out what waits when it is dropped; lives as long as the program.
#[derive(Debug)]
#[must_use]
pub struct Guard {
    _worker: Option<WorkerGuard>,
}

/// Sets up logging for the whole program.
pub fn init(options: &Options) -> Result<Guard, LogError> {
    let (subscriber, guard, bad_levels) = subscriber(options, io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Twice)?;
    if let Some(why) = bad_levels {
        tracing::warn!(%why, "OVERNIGHT_LOG cannot be read and is not used");
    }
    Ok(guard)
}

fn subscriber<W>(
    options: &Options,
    stderr: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, Guard, Option<String>), LogError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, bad_levels) = filter(options.levels.as_deref());
    let (json, worker) = match &options.folder {
        None => (None, None),
        Some(folder) => {
            let today = || OffsetDateTime::now_utc().date();
            let rolling = Rolling::open(folder, options.family, MAX_BYTES, MAX_FILES, today)
                .map_err(|source| LogError::Open { folder: folder.clone(), source })?;
            let (writer, worker) = NonBlockingBuilder::default()
                .buffered_lines_limit(MAX_WAITING)
                .lossy(true)
                .thread_name("log")
                .finish(rolling);
            (Some(tracing_subscriber::fmt::layer().json().with_writer(writer).log_internal_errors(false)), Some(worker))
        }
    };
    let readable = options.stderr.then(|| {
        tracing_subscriber::fmt::layer()
            .event_format(Readable)
            .fmt_fields(Fields)
            .with_ansi(!options.no_color && io::stderr().is_terminal())
            // The fallback of the library prints, and panics when stderr is closed.
            .log_internal_errors(false)
            .with_writer(stderr)
    });
    // The two keep their spans' fields apart by the type of their formatter.
    let subscriber = tracing_subscriber::registry().with(filter).with(readable.boxed()).with(json.boxed());
    Ok((subscriber, Guard { _worker: worker }, bad_levels))
}

fn filter(levels: Option<&str>) -> (EnvFilter, Option<String>) {
    // Regular expressions on values would let a setting cost time on every line.
    let builder = || EnvFilter::builder().with_regex(false);
    match levels.map(|levels| builder().parse(levels)) {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (builder().parse_lossy(LEVELS), Some(error.to_string())),
        None => (builder().parse_lossy(LEVELS), None),
    }
}

/// `23:04:05Z  INFO daemon::turn: claimed task=a/b` with values escaped.
struct Readable;

impl<S, N> FormatEvent<S, N> for Readable
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let meta = event.metadata();
        let clock = format_description!("[hour]:[minute]:[second]Z");
        let time = OffsetDateTime::now_utc().format(&clock).unwrap_or_default();
        let (dim, colour, end) = match (out.has_ansi_escapes(), *meta.level()) {
            (false, _) => ("", "", ""),
            (true, Level::ERROR) => ("\x1b[2m", "\x1b[31m", "\x1b[0m"),
            (true, Level::WARN) => ("\x1b[2m", "\x1b[33m", "\x1b[0m"),
            (true, Level::INFO) => ("\x1b[2m", "\x1b[32m", "\x1b[0m"),
            (true, _) => ("\x1b[2m", "\x1b[34m", "\x1b[0m"),
        };
        let target = meta.target().strip_prefix("overnight::").unwrap_or(meta.target());
        write!(out, "{dim}{time}{end} {colour}{:>5}{end} {dim}{}{end}: ", meta.level(), shown(target))?;
        Fields.format_fields(out.by_ref(), event)?;
        for span in ctx.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            match extensions.get::<FormattedFields<N>>().filter(|fields| !fields.is_empty()) {
                Some(fields) => write!(out, " {dim}{}{{{fields}}}{end}", shown(span.name()))?,
                None => write!(out, " {dim}{}{end}", shown(span.name()))?,
            }
        }
        out.write_char('\n')
    }
}

/// Fields as `message key=value`, escaped.
struct Fields;

impl<'w> FormatFields<'w> for Fields {
    fn format_fields<R: tracing_subscriber::field::RecordFields>(&self, out: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = FieldVisitor { out, first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct FieldVisitor<'w> {
    out: Writer<'w>,
    first: bool,
    result: fmt::Result,
}

impl FieldVisitor<'_> {
    fn put(&mut self, field: &Field, value: &str) {
        if self.result.is_err() {
            return;
        }
        let gap = if std::mem::take(&mut self.first) { "" } else { " " };
        let value = shown(value);
        self.result = match field.name() {
            "message" => write!(self.out, "{gap}{value}"),
            // Without quotes a value with a blank could pass for a second field.
            name if value.is_empty() || value.contains([' ', '=', '"']) => {
                write!(self.out, "{gap}{}=\"{}\"", shown(name), value.replace('"', "\\\""))
            }
            name => write!(self.out, "{gap}{}={value}", shown(name)),
        };
    }
}

impl Visit for FieldVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            let _ = write!(text, ": {cause}");
            source = cause.source();
        }
        self.put(field, &text);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, &format!("{value:?}"));
    }
}

/// The files of one family: `NAME.2026-11-30.jsonl` is written, `NAME.2026-11-30.0001.jsonl` was full. One `write` is one
/// record.
struct Rolling<C> {
    folder: PathBuf,
    family: &'static str,
    max_bytes: u64,
    max_files: usize,
    today: C,
    day: Date,
    file: File,
    bytes: u64,
    /// Records that could not be written since the last one that was.
    lost: u64,
}

impl<C: Fn() -> Date> Rolling<C> {
    fn open(folder: &Path, family: &'static str, max_bytes: u64, max_files: usize, today: C) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let day = today();
        let (file, bytes) = open_file(&folder.join(name(family, day, None)))?;
        let rolling =
            Self { folder: folder.to_owned(), family, max_bytes, max_files, today, day, file, bytes, lost: 0 };
        rolling.prune();
        Ok(rolling)
    }

    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let day = (self.today)();
        let full = self.bytes > 0 && self.bytes + record.len() as u64 > self.max_bytes;
        if day != self.day || full {
            if day == self.day {
                self.set_aside()?;
            }
            (self.file, self.bytes) = open_file(&self.folder.join(name(self.family, day, None)))?;
            self.day = day;
            self.prune();
        }
        if self.lost > 0 {
            // The first byte ends a line that was torn by the failure.
            let note =
                serde_json::json!({"level": "ERROR", "fields": {"message": "log lines lost", "lost": self.lost}});
            self.file.write_all(format!("\n{note}\n").as_bytes())?;
            self.lost = 0;
        }
        self.file.write_all(record)?;
        self.bytes += record.len() as u64;
        Ok(())
    }

    fn set_aside(&self) -> io::Result<()> {
        let taken = |n: &u32| self.folder.join(name(self.family, self.day, Some(*n))).exists();
        // Numbers only rise within a day, so that names sort by age also after the oldest were removed.
        let last = self.files().filter_map(|file| part_of(self.family, &file)).filter(|(day, _)| *day == self.day);
        let next = last.filter_map(|(_, part)| part).max().unwrap_or(0) + 1;
        let free = (next..).find(|n| !taken(n)).unwrap_or(next);
        let current = self.folder.join(name(self.family, self.day, None));
        fs::rename(current, self.folder.join(name(self.family, self.day, Some(free))))
    }

    fn files(&self) -> impl Iterator<Item = String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    }

    /// Removes the oldest files of this family, and of no other.
    fn prune(&self) {
        let mut files: Vec<_> = self
            .files()
            .filter_map(|file| part_of(self.family, &file).map(|(day, part)| (day, part.unwrap_or(u32::MAX), file)))
            .collect();
        files.sort();
        let over = files.len().saturating_sub(self.max_files);
        for (_, _, file) in &files[..over] {
            // What cannot be removed now is tried again at the next change of files.
            let _ = fs::remove_file(self.folder.join(file));
        }
    }
}

impl<C: Fn() -> Date> Write for Rolling<C> {
    /// Never fails: a log that cannot be written is counted and must not stop what it tells about.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let outcome = if record.len() > MAX_RECORD {
            let message = format!("a record of {} bytes was left out", record.len());
            let note = serde_json::json!({"level": "WARN", "fields": {"message": message}});
            self.append(format!("{note}\n").as_bytes())
        } else {
            let record = String::from_utf8_lossy(record);
            self.append((safe::json(record.strip_suffix('\n').unwrap_or(&record)) + "\n").as_bytes())
        };
        if outcome.is_err() {
            self.lost += 1;
        }
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn open_file(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

fn name(family: &str, day: Date, part: Option<u32>) -> String {
    match part {
        None => format!("{family}.{day}.jsonl"),
        Some(part) => format!("{family}.{day}.{part:04}.jsonl"),
    }
}

/// The day and number of a file of exactly this family.
fn part_of(family: &str, file: &str) -> Option<(Date, Option<u32>)> {
    let rest = file.strip_prefix(family)?.strip_prefix('.')?.strip_suffix(".jsonl")?;
    let (day, part) = match rest.split_once('.') {
        None => (rest, None),
        Some((day, part)) => (day, Some(part.parse().ok()?)),
    };
    let day = Date::parse(day, format_description!("[year]-[month]-[day]")).ok()?;
    (name(family, day, part) == file).then_some((day, part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::safe::is_unsafe;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::sync::{Arc, Mutex};
    use time::macros::date;

    fn names(folder: &Path) -> Vec<String> {
        let mut out: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        out.sort();
        out
    }

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Logs with `levels` and gives back what was on stderr and in the file.
    fn logged(levels: Option<&str>, log: impl FnOnce()) -> (String, String) {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("logs");
        let options = Options {
            family: "daemon",
            folder: Some(folder.clone()),
            stderr: true,
            no_color: true,
            levels: levels.map(str::to_owned),
        };
        let kept = Kept::default();
        let writer = kept.clone();
        let (subscriber, guard, _) = subscriber(&options, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, log);
        drop(guard);
        let file = names(&folder).iter().map(|n| fs::read_to_string(folder.join(n)).unwrap()).collect();
        let stderr = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        (stderr, file)
    }

    #[test]
    fn one_event_is_one_line_in_both_forms() {
        let (stderr, file) = logged(None, || {
            let span = tracing::info_span!("run", task = "a/b\n");
            let _in = span.enter();
            tracing::warn!(code = 3, text = "two words", "agent ended");
            tracing::debug!("not at this level");
        });
        let rest = stderr.split_once('Z').unwrap().1;
        assert_eq!(rest, "  WARN logging::tests: agent ended code=3 text=\"two words\" run{task=a/b\\n}\n");
        assert_eq!(file.lines().count(), 1);
        let json: serde_json::Value = serde_json::from_str(&file).unwrap();
        assert_eq!((&json["level"], &json["fields"]["code"]), (&"WARN".into(), &3.into()));
        assert_eq!(json["span"]["task"], "a/b\n");
    }

    #[test]
    fn levels_follow_the_setting_and_a_bad_one_is_told() {
        let log = || {
            tracing::debug!("d");
            tracing::info!("i");
        };
        assert_eq!(logged(Some("debug"), log).1.lines().count(), 2);
        assert_eq!(logged(Some("error"), log).1.lines().count(), 0);
        assert_eq!(logged(Some("overnight::logging=debug,error"), log).1.lines().count(), 2);
        assert_eq!(logged(Some("a=b=c=d"), log).1.lines().count(), 1, "the default is used");
        assert!(filter(Some("a=b=c=d")).1.is_some() && filter(Some("debug")).1.is_none());
    }

    #[test]
    fn a_chain_of_errors_is_shown_whole_and_escaped() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] io::Error);
        let error = Outer(io::Error::other("in\x1bner"));
        let (stderr, _) = logged(None, || {
            tracing::error!(error = &error as &dyn std::error::Error, "failed");
        });
        assert!(stderr.ends_with("failed error=\"outer: in\\u{1b}ner\"\n"), "{stderr}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_value_can_forge_a_line_or_drive_a_terminal(
            value in any::<String>(),
            sharp in "[\\x00-\\x1f\\x7f-\\xa0\u{2028}\u{202e}\u{e0041}\"\\\\a]{0,20}",
        ) {
            let value = format!("{value}{sharp}");
            let (stderr, file) = logged(None, || {
                let span = tracing::info_span!("s", v = %value, d = ?value);
                let _in = span.enter();
                tracing::info!(v = value.as_str(), d = ?value, p = %value, "{value}");
            });
            for text in [&stderr, &file] {
                prop_assert_eq!(text.matches('\n').count(), 1);
                prop_assert!(!text.trim_end_matches('\n').chars().any(is_unsafe), "{text:?}");
            }
            let json: serde_json::Value = serde_json::from_str(&file).unwrap();
            prop_assert_eq!(json["fields"]["v"].as_str(), Some(value.as_str()));
        }
    }

    #[test]
    fn files_change_by_day_and_size_and_only_the_oldest_of_the_family_go() {
        let top = tempfile::tempdir().unwrap();
        let others = ["daemon-web.2020-01-01.jsonl", "daemon.notes.jsonl", "daemon.2020-01-01.1.jsonl", "x"];
        for other in others {
            fs::write(top.path().join(other), "keep").unwrap();
        }
        let day = Cell::new(date!(2026 - 11 - 30));
        let mut log = Rolling::open(top.path(), "daemon", 10, 3, || day.get()).unwrap();
        for text in ["aaaa\n", "bbbb\n", "cccc\n"] {
            log.write_all(text.as_bytes()).unwrap();
        }
        let ours = |all: Vec<String>| all.into_iter().filter(|n| !others.contains(&&**n)).collect::<Vec<_>>();
        assert_eq!(ours(names(top.path())), ["daemon.2026-11-30.0001.jsonl", "daemon.2026-11-30.jsonl"]);
        assert_eq!(fs::read_to_string(top.path().join("daemon.2026-11-30.0001.jsonl")).unwrap(), "aaaa\nbbbb\n");
        day.set(date!(2026 - 12 - 01));
        log.write_all(b"dddd\n").unwrap();
        assert_eq!(ours(names(top.path())).len(), 3);
        log.write_all(b"a line longer than a file\n").unwrap();
        assert_eq!(
            ours(names(top.path())),
            ["daemon.2026-11-30.jsonl", "daemon.2026-12-01.0001.jsonl", "daemon.2026-12-01.jsonl"]
        );
        drop(log);
        let mut log = Rolling::open(top.path(), "daemon", 1000, 3, || day.get()).unwrap();
        log.write_all(b"more\n").unwrap();
        let current = fs::read_to_string(top.path().join("daemon.2026-12-01.jsonl")).unwrap();
        assert_eq!(current, "a line longer than a file\nmore\n", "a restart goes on with the day's file");
        assert!(others.iter().all(|other| top.path().join(other).exists()), "other families and files stay");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_said() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("logs");
        let day = Cell::new(date!(2026 - 11 - 30));
        let mut log = Rolling::open(&folder, "daemon", 1000, 3, || day.get()).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        day.set(date!(2026 - 12 - 01));
        log.write_all(b"lost\n").unwrap();
        log.write_all(b"lost\n").unwrap();
        fs::create_dir(&folder).unwrap();
        log.write_all(b"{}\n").unwrap();
        log.write_all(&vec![b'x'; MAX_RECORD + 1]).unwrap();
        let text = fs::read_to_string(folder.join("daemon.2026-12-01.jsonl")).unwrap();
        assert!(text.contains("\"lost\":2") && text.contains("\n{}\n") && text.contains("was left out"), "{text}");
    }
}
