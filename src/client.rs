//! Talks to the daemon over its socket: one connection a request, its line of JSON out, lines of JSON back. Says apart
//! that no daemon is there, that one is there and does not answer, and that it speaks words this program does not know.

#![expect(clippy::disallowed_methods, reason = "the socket is read with a deadline of the caller's own")]

use crate::config::Places;
use crate::config::files::FileError;
use crate::domain::safe::shown;
use crate::error::CliError;
use crate::protocol::{Call, ErrorKind, Failure, Frame, FrameError, Reply, Request, frame};
use std::collections::VecDeque;
use std::io::{self, ErrorKind as Io, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a daemon may take to show that it lives.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no daemon is running")]
    NoDaemon,
    /// The socket's folder cannot be trusted.
    #[error("the daemon's socket cannot be used")]
    Folder(#[source] FileError),
    #[error("could not reach the daemon at {socket}")]
    Connect { socket: String, source: io::Error },
    /// Somebody listens and says nothing.
    #[error("the daemon{} does not answer", holder(*pid))]
    Silent { pid: Option<i32> },
    /// It went away before it had answered.
    #[error("the daemon ended while it was asked")]
    Gone,
    #[error("could not talk to the daemon")]
    Talk(#[source] io::Error),
    #[error("the daemon's answer cannot be read")]
    Words(#[source] FrameError),
}

fn holder(pid: Option<i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let (kind, hint) = match &error {
            ClientError::NoDaemon => (ErrorKind::WrongState, "`overnight start` starts one".to_owned()),
            ClientError::Folder(_) => (ErrorKind::Failed, "`overnight doctor` looks into it".to_owned()),
            ClientError::Silent { pid } => {
                let who = pid.map_or_else(|| "it".to_owned(), |pid| format!("process {pid}"));
                let hint = format!(
                    "it may be stopped or overloaded: look at {who} and at `overnight logs`; its agents go on without it"
                );
                (ErrorKind::WrongState, hint)
            }
            ClientError::Gone | ClientError::Connect { .. } | ClientError::Talk(_) => {
                (ErrorKind::Failed, "`overnight logs` shows its log, `overnight start` starts it again".to_owned())
            }
            ClientError::Words(FrameError::TooLong) => {
                (ErrorKind::Failed, "ask for less: one project with --project, or one task".to_owned())
            }
            ClientError::Words(FrameError::Unreadable(_)) => {
                (ErrorKind::Failed, "it is of another version: `overnight restart` starts this one".to_owned())
            }
        };
        Self::from_error(kind, &error).hint(hint)
    }
}

/// Asks the daemon and waits for its reply. A request that changes something may take as long as it takes, as long as the
/// daemon shows that it lives; one that reads has `PATIENCE`.
pub fn call(places: &Places, request: &Request) -> Result<Reply, ClientError> {
    let mut stream = Stream::open(places, request)?;
    let patient = !request.is_reading();
    loop {
        match stream.next(PATIENCE) {
            Ok(Some(Reply::Error(failure))) => return Ok(Reply::Error(explained(places, request, failure))),
            Ok(Some(reply)) => return Ok(reply),
            Ok(None) => return Err(ClientError::Gone),
            Err(ClientError::Silent { .. }) if patient && lives(places, PATIENCE) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Asks for a stream of replies.
pub fn follow(places: &Places, request: &Request) -> Result<Stream, ClientError> {
    Stream::open(places, request)
}

/// Whether a daemon answers within `patience`.
pub fn lives(places: &Places, patience: Duration) -> bool {
    ping(places, patience).is_ok()
}

/// The daemon's reply to a ping.
pub fn ping(places: &Places, patience: Duration) -> Result<Reply, ClientError> {
    let mut stream = Stream::open_within(places, &Request::Ping, patience)?;
    stream.next(patience)?.ok_or(ClientError::Gone)
}

/// A refusal without a remedy may come of an older daemon that does not know the verb.
fn explained(places: &Places, request: &Request, failure: Failure) -> Failure {
    let may_be_old = matches!(failure.kind, ErrorKind::Usage | ErrorKind::Unexpected) && *request != Request::Ping;
    if failure.hint.is_some() || !may_be_old {
        return failure;
    }
    match ping(places, Duration::from_secs(2)) {
        Ok(Reply::Pong { version, .. }) if version != env!("CARGO_PKG_VERSION") => {
            let hint = format!(
                "the daemon is version {}, this program {}: `overnight restart` brings them together",
                shown(&version),
                env!("CARGO_PKG_VERSION")
            );
            Failure { hint: Some(hint), ..failure }
        }
        _ => failure,
    }
}

/// Replies as they come over one connection.
#[derive(Debug)]
pub struct Stream {
    socket: UnixStream,
    frame: Frame,
    lines: VecDeque<Vec<u8>>,
    pid: Option<i32>,
}

impl Stream {
    fn open(places: &Places, request: &Request) -> Result<Self, ClientError> {
        Self::open_within(places, request, PATIENCE)
    }

    fn open_within(places: &Places, request: &Request, patience: Duration) -> Result<Self, ClientError> {
        let path = places.socket_to_call().map_err(ClientError::Folder)?.ok_or(ClientError::NoDaemon)?;
        let socket = match connect(&path, patience) {
            Ok(Some(socket)) => socket,
            Ok(None) => return Err(ClientError::Silent { pid: lock_holder(places) }),
            // Only these two prove that nobody listens.
            Err(e) if matches!(e.kind(), Io::NotFound | Io::ConnectionRefused) => return Err(ClientError::NoDaemon),
            Err(source) => {
                let socket = shown(&path.to_string_lossy()).into_owned();
                return Err(ClientError::Connect { socket, source });
            }
        };
        let pid = peer(&socket).or_else(|| lock_holder(places));
        socket.set_write_timeout(Some(patience)).map_err(ClientError::Talk)?;
        let mut stream = Self { socket, frame: Frame::default(), lines: VecDeque::new(), pid };
        let line = frame::write(&Call::new(request.clone()));
        match stream.socket.write_all(&line) {
            Ok(()) => Ok(stream),
            Err(e) if is_timeout(&e) => Err(ClientError::Silent { pid }),
            // What it said before it closed the connection is still there to be read.
            Err(e) if e.kind() == Io::BrokenPipe => Ok(stream),
            Err(e) => Err(ClientError::Talk(e)),
        }
    }

    /// The next reply; `None` when the daemon has closed the connection, `Silent` when nothing came in time.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Reply>, ClientError> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(line) = self.lines.pop_front() {
                return frame::read(&line).map(Some).map_err(ClientError::Words);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::Silent { pid: self.pid });
            }
            self.socket.set_read_timeout(Some(left)).map_err(ClientError::Talk)?;
            let mut chunk = [0; 16 << 10];
            match self.socket.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(n) => self.lines.extend(self.frame.feed(&chunk[..n]).map_err(ClientError::Words)?),
                Err(e) if e.kind() == Io::Interrupted || is_timeout(&e) => {}
                Err(e) if e.kind() == Io::ConnectionReset => return Ok(None),
                Err(e) => return Err(ClientError::Talk(e)),
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), Io::WouldBlock | Io::TimedOut)
}

/// Connects, or gives `None` after `patience`: with a stopped listener and a full queue, connecting waits for ever.
fn connect(path: &Path, patience: Duration) -> io::Result<Option<UnixStream>> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    std::thread::Builder::new().name("connect".into()).spawn(move || sender.send(UnixStream::connect(path)))?;
    receiver.recv_timeout(patience).ok().transpose()
}

/// Who listens at the other end, where the system says so.
#[cfg(target_os = "linux")]
fn peer(socket: &UnixStream) -> Option<i32> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    getsockopt(socket, PeerCredentials).ok().map(|who| who.pid()).filter(|pid| *pid > 0)
}

#[cfg(not(target_os = "linux"))]
fn peer(_socket: &UnixStream) -> Option<i32> {
    None
}

/// The number at the start of the lock file, where its holder wrote one.
fn lock_holder(places: &Places) -> Option<i32> {
    let mut text = String::new();
    std::fs::File::open(places.lock()).ok()?.take(64).read_to_string(&mut text).ok()?;
    text.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    fn home() -> (tempfile::TempDir, Places) {
        let top = tempfile::tempdir().unwrap();
        let places = Places::under(top.path());
        places.prepare().unwrap();
        (top, places)
    }

    #[test]
    fn nobody_there_is_told_apart_from_nobody_answering() {
        let (_top, places) = home();
        assert!(matches!(call(&places, &Request::Ping), Err(ClientError::NoDaemon)), "no socket");
        drop(UnixListener::bind(places.socket()).unwrap());
        assert!(matches!(call(&places, &Request::Ping), Err(ClientError::NoDaemon)), "one left behind");
        assert!(places.socket().exists(), "a client removes nothing");
        std::fs::remove_file(places.socket()).unwrap();
        let _deaf = UnixListener::bind(places.socket()).unwrap();
        let error = ping(&places, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, ClientError::Silent { .. }), "{error}");
        let told = CliError::from(error);
        assert_eq!(told.exit_code(), 4);
        #[cfg(target_os = "linux")]
        assert!(told.message.contains(&format!("pid {}", std::process::id())), "{told:?}");
    }

    #[test]
    fn replies_come_whole_and_foreign_words_are_said() {
        let (_top, places) = home();
        let listener = UnixListener::bind(places.socket()).unwrap();
        let answers: [&[u8]; 4] =
            [b"{\"reply\":\"done\",\"text\":\"a\"}\n", b"{\"reply\":\"sung\"}\n", b"", b"{\"reply\":\"why\",\"te"];
        let server = thread::spawn(move || {
            for answer in answers {
                let (mut socket, _) = listener.accept().unwrap();
                let mut seen = [0; 1024];
                let n = socket.read(&mut seen).unwrap();
                assert!(frame::read::<Call>(&seen[..n]).is_ok());
                for byte in answer {
                    socket.write_all(&[*byte]).unwrap();
                }
            }
        });
        let ask = || call(&places, &Request::Reload);
        assert_eq!(ask().unwrap(), Reply::Done { text: "a".into() });
        assert!(matches!(ask(), Err(ClientError::Words(_))));
        assert!(matches!(ask(), Err(ClientError::Gone)));
        assert!(matches!(ask(), Err(ClientError::Gone)));
        server.join().unwrap();
    }
}
