//! The control socket: one JSON line in, one out, `events` excepted, which goes on until the client leaves. Mode 0600 from
//! its first moment, peers checked, lines and idle time bounded: nothing that is sent here can hurt the daemon.

#![expect(clippy::disallowed_methods, reason = "out of descriptors there is no event to wait for")]

use super::peer;
use crate::protocol::reply::ErrorKind;
use crate::protocol::{Call, Frame, Reply, Request, VERSION, frame};
use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Connections served at once. As many again wait for a place; more are refused with a word.
const CONNECTIONS: usize = 64;
/// How long a connection waits for a place: a burst of short questions is over within it.
const PLACE_WAIT: Duration = Duration::from_secs(2);
/// A client that says nothing for so long is left.
const IDLE: Duration = Duration::from_secs(60);
/// A client that takes nothing for so long is left.
const SLOW: Duration = Duration::from_secs(20);

/// Replies that wait for a client at most: a follower has room for what one turn over many events says.
const LINES: usize = 16_384;

/// How long the end of the daemon waits for replies that are on their way.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("{} is in the way: it is no socket, so it stays", .0.display())]
    InTheWay(PathBuf),
    #[error("the control socket {} could not be made", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// One request on its way to the ring, and where its replies go.
pub struct Incoming {
    pub request: Request,
    pub replies: mpsc::Sender<Reply>,
}

/// The connections that are served. Each ends by itself when the ring is gone and its last reply is out.
#[derive(Clone)]
pub struct Connections {
    places: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Default for Connections {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(CONNECTIONS)), waiting: Arc::new(Semaphore::new(CONNECTIONS)) }
    }
}

impl Connections {
    /// A place, at once or within `PLACE_WAIT`; none where all are taken and enough wait already.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Some(place);
        }
        let _waits = self.waiting.try_acquire().ok()?;
        tokio::time::timeout(PLACE_WAIT, self.places.clone().acquire_owned()).await.ok()?.ok()
    }

    /// Waits until all of them have ended, for a moment at most.
    pub async fn end(&self) {
        let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(LAST_WORDS, self.places.acquire_many(all)).await;
    }
}

/// Binds the socket. Only for whoever holds the lock: a socket that is there already is nobody's then, and is replaced.
/// Call it before other threads exist, since the mode is made by the process's umask.
pub fn bind(path: &Path, _proof: &super::lock::Ours) -> Result<UnixListener, SocketError> {
    let error = |source| SocketError::Io { path: path.to_owned(), source };
    match path.symlink_metadata() {
        Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(path).map_err(error)?,
        Ok(_) => return Err(SocketError::InTheWay(path.to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(error(e)),
    }
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    nix::sys::stat::umask(before);
    let listener = bound.map_err(error)?;
    listener.set_nonblocking(true).map_err(error)?;
    Ok(listener)
}

/// Serves until the receiver of the calls is gone.
pub async fn serve(listener: UnixListener, calls: mpsc::Sender<Incoming>, connections: Connections) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return tracing::error!("the control socket cannot be served: {e}"),
    };
    loop {
        let stream = tokio::select! {
            () = calls.closed() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(e) => {
                    // Out of descriptors, most likely: those that are open will end.
                    tracing::warn!("a connection could not be taken: {e}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            },
        };
        let calls = calls.clone();
        let connections = connections.clone();
        drop(tokio::spawn(async move {
            let mut stream = stream;
            match connections.place().await {
                Some(place) => {
                    connection(stream, calls).await;
                    drop(place);
                }
                None => {
                    let busy = Reply::error(ErrorKind::Failed, "too many connections at once; try again in a moment");
                    let _ = tokio::time::timeout(SLOW, stream.write_all(&frame::write(&busy))).await;
                }
            }
        }));
    }
}

async fn connection(mut stream: tokio::net::UnixStream, calls: mpsc::Sender<Incoming>) {
    let run = match judge(&stream) {
        Ok(run) => run,
        Err(why) => return send(&mut stream, &Reply::error(ErrorKind::NotAllowed, why)).await.unwrap_or(()),
    };
    let mut frame = Frame::default();
    let mut asked: VecDeque<Vec<u8>> = VecDeque::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = tokio::select! {
            read = tokio::time::timeout(IDLE, stream.read(&mut buffer)) => read,
            () = calls.closed() => return,
        };
        let read = match read {
            Ok(Ok(n)) if n > 0 => n,
            _ => return,
        };
        let lines = match frame.feed(&buffer[..read]) {
            Ok(lines) => lines,
            Err(e) => return send(&mut stream, &Reply::error(ErrorKind::Usage, e.to_string())).await.unwrap_or(()),
        };
        asked.extend(lines);
        while let Some(line) = asked.pop_front() {
            let request = match understand(&line, run.as_deref()) {
                Ok(request) => request,
                Err(reply) => return send(&mut stream, &reply).await.unwrap_or(()),
            };
            let (replies, mut answers) = mpsc::channel(LINES);
            if calls.send(Incoming { request, replies }).await.is_err() {
                return;
            }
            let mut told = false;
            loop {
                // Whoever follows and has left would else keep its place until something happens.
                let read = tokio::select! {
                    biased;
                    reply = answers.recv() => match reply {
                        None => break,
                        Some(reply) if send(&mut stream, &reply).await.is_ok() => {
                            told = true;
                            continue;
                        }
                        Some(_) => return,
                    },
                    read = stream.read(&mut buffer), if told => read,
                };
                match read.map(|n| frame.feed(&buffer[..n]).map(|lines| (n, lines))) {
                    Ok(Ok((n, lines))) if n > 0 => asked.extend(lines),
                    _ => return,
                }
            }
        }
    }
}

/// Whether the peer may speak at all, and the run that it belongs to.
fn judge(stream: &tokio::net::UnixStream) -> Result<Option<String>, String> {
    let peer = stream.peer_cred().map_err(|e| format!("your process cannot be told: {e}"))?;
    if peer.uid() != nix::unistd::geteuid().as_raw() {
        return Err("this daemon belongs to another user".into());
    }
    Ok(peer.pid().and_then(peer::run_of))
}

fn understand(line: &[u8], run: Option<&str>) -> Result<Request, Reply> {
    // The version first: a newer client's words may be unknown here, and that is what it should be told.
    #[derive(serde::Deserialize)]
    struct Version {
        v: u32,
    }
    let unreadable = |e: frame::FrameError| Reply::error(ErrorKind::Usage, e.to_string());
    let version: Version = frame::read(line).map_err(unreadable)?;
    let call: Call = frame::read(line).map_err(|e| {
        if version.v > VERSION {
            let text = format!("this daemon speaks version {VERSION} of the protocol, not {}; restart it", version.v);
            return Reply::error(ErrorKind::Usage, text);
        }
        unreadable(e)
    })?;
    match run {
        Some(run) if call.request.is_a_persons() => {
            let text = format!("{run} may not do this: it is for a person, outside of every run");
            Err(Reply::error(ErrorKind::NotAllowed, text))
        }
        _ => Ok(call.request),
    }
}

async fn send(stream: &mut tokio::net::UnixStream, reply: &Reply) -> io::Result<()> {
    match tokio::time::timeout(SLOW, stream.write_all(&frame::write(reply))).await {
        Ok(done) => done,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_burst_waits_for_places_and_a_flood_is_refused() {
        let connections = Connections::default();
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS {
            held.push(connections.place().await.unwrap());
        }
        let waiters: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let connections = connections.clone();
                tokio::spawn(async move { connections.place().await.is_some() })
            })
            .collect();
        while connections.waiting.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(connections.place().await.is_none(), "one more than may wait");
        held.clear();
        for waiter in waiters {
            assert!(waiter.await.unwrap());
        }
        assert_eq!(connections.waiting.available_permits(), CONNECTIONS);
        let kept: Vec<_> = (0..CONNECTIONS).map(|_| connections.places.try_acquire().unwrap()).collect();
        assert!(connections.place().await.is_none(), "it waited its time out");
        drop(kept);
    }
}
