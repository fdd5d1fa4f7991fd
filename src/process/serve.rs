//! A shim's work while its child lives: taking in output from both streams in turn, stops and the dead-man limit, orphans
//! to reap, signs of life. Everything happens in `turn`, which waits for one thing and takes it in.

#![expect(clippy::disallowed_methods, reason = "the shim keeps its own deadlines; no rule sees this clock")]

use super::folder::Stop;
use super::shim::{Child, Shim, is_full};
use super::transcript::Stream;
use super::tree::{self, Mark, Session, Sweep};
use super::{stage, system};
use crate::domain::Wall;
use crate::domain::verdict::Exit;
use bytes::{Bytes, BytesMut};
use futures::{FutureExt as _, StreamExt as _};
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;
use tokio::time::{Instant, sleep_until};
use tokio_process_stream::{Item, ProcessChunkStream};

/// At least this often something is looked at: the clock of the limit, a stop without a signal, the beat.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A beat is written this often even when nothing changed, and the tree is measured.
const BEAT_EVERY: Duration = Duration::from_secs(5);
/// Output taken in before anything else is looked at.
const BATCH: usize = 256 * 1024;

impl Shim {
    /// From the open gate to the last byte of output.
    pub(super) async fn serve(&mut self) -> Exit {
        while self.status().is_none() && !self.unkillable {
            self.turn(None).await;
        }
        let exit = self.exit();
        if matches!(exit, Exit::SpawnFailed { .. }) {
            return exit;
        }
        let drained = Instant::now() + self.spec.drain_grace;
        while self.is_printing() && Instant::now() < drained && self.stopped != Some(Stop::Kill) {
            self.turn(Some(drained)).await;
        }
        exit
    }

    pub(super) fn status(&self) -> Option<ExitStatus> {
        self.child.as_ref().and_then(|c| c.status)
    }

    pub(super) fn is_printing(&self) -> bool {
        self.child.as_ref().is_some_and(|c| c.out.is_some() || c.err.is_some())
    }

    fn exit(&self) -> Exit {
        let Some(child) = &self.child else { return Exit::Lost };
        if !child.words.is_empty() {
            return Exit::SpawnFailed { error: String::from_utf8_lossy(&child.words).into_owned() };
        }
        match child.status {
            _ if self.dead_man => Exit::DeadMan,
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => Exit::Exited { code },
                (None, signal) => Exit::Signalled { signal: signal.unwrap_or(0) },
            },
            // It could not even be killed; it is among the survivors.
            None => Exit::Signalled { signal: libc::SIGKILL },
        }
    }

    pub(super) fn mark(&self) -> Mark {
        let session = self.child.as_ref().map(|c| Session { id: c.pid, start: c.start, until: u64::MAX });
        Mark { key: self.spec.key.clone(), shim: i32::try_from(std::process::id()).ok(), session }
    }

    /// Waits for one thing to happen, until `until` at the latest, and takes it in.
    pub(super) async fn turn(&mut self, until: Option<Instant>) {
        let wake = until.map_or(self.next_look, |u| u.min(self.next_look));
        let Some(child) = &mut self.child else { return sleep_until(wake).await };
        let mut output = None;
        tokio::select! {
            item = next_out(&mut child.out) => output = child.took_out(item),
            read = next_err(&mut child.err) => output = child.took_err(read),
            _ = self.signals.child.recv() => self.look_after_children(),
            _ = self.signals.look.recv() => self.next_look = Instant::now(),
            _ = self.signals.term.recv() => self.stop(Stop::Term),
            () = sleep_until(wake) => {}
        }
        if let Some((stream, bytes)) = output {
            self.gather(stream, bytes);
        }
        if Instant::now() >= self.next_look {
            self.look();
        }
    }

    /// Stores what came and what else is there already, the streams in turn, in as few writes as possible.
    fn gather(&mut self, stream: Stream, bytes: Bytes) {
        self.last_output = Some(system::boottime_ms());
        let ms = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (mut of, mut batch, mut taken) = (stream, Vec::from(bytes), 0);
        while taken < BATCH {
            let Some((stream, bytes)) = self.child.as_mut().and_then(|c| c.ready(of)) else { break };
            taken += bytes.len();
            if stream != of {
                self.log.append(of, ms, &batch);
                batch.clear();
                of = stream;
            }
            batch.extend_from_slice(&bytes);
        }
        self.log.append(of, ms, &batch);
    }

    /// Reaps orphans one by one; the child's own end is only looked at, for its number must stay taken.
    pub(super) fn look_after_children(&mut self) {
        let Some(child) = &mut self.child else { return };
        for pid in tree::own_children() {
            if pid != child.pid {
                system::reap(pid);
            }
        }
        if child.status.is_none()
            && let Some(status) = system::peek_end(child.pid)
        {
            child.ended(status);
        }
    }

    /// What no signal tells of: a stop or a limit in the folder, time that has passed.
    fn look(&mut self) {
        self.look_after_children();
        let now = Instant::now();
        self.next_look = now + LOOK_EVERY;
        if self.status().is_none() {
            if let Some(how) = self.folder.stop() {
                self.stop(how);
            }
            // Without its folder no wish reaches it and nobody will learn how it ended: its time is over. One look may
            // fall between two renames.
            self.gone = if self.folder.is_gone() { self.gone + 1 } else { 0 };
            let left = if self.gone > 1 { Duration::ZERO } else { self.folder.limit(&self.spec).left(&self.boot_id) };
            if left.is_zero() && !self.dead_man && self.stopped.is_none() {
                self.dead_man = true;
                self.mark().terminate();
                self.kill_at = Some(now + self.spec.kill_grace);
            }
            if !left.is_zero() {
                self.next_look = self.next_look.min(now + left + Duration::from_millis(1));
            }
            if let Some(at) = self.kill_at {
                if now >= at {
                    self.stop(Stop::Kill);
                } else {
                    self.next_look = self.next_look.min(at);
                }
            }
            self.kill_on(now);
        } else {
            // The sweep acts on it.
            self.stopped = self.stopped.max(self.folder.stop());
        }
        self.write_beat(now);
    }

    /// Acts on a stop, once for each kind: a second request is no second TERM and restarts nothing.
    fn stop(&mut self, how: Stop) {
        if self.stopped >= Some(how) {
            return;
        }
        self.stopped = Some(how);
        match how {
            Stop::Term => self.mark().terminate(),
            Stop::Kill => {
                self.killing = Some(Sweep::kill(self.mark()));
                self.kill_at = None;
                self.next_look = Instant::now();
            }
        }
    }

    fn kill_on(&mut self, now: Instant) {
        let Some(sweep) = &mut self.killing else { return };
        if self.unkillable {
            return;
        }
        if let Some(wait) = sweep.step() {
            self.next_look = self.next_look.min(now + wait);
            return;
        }
        self.look_after_children();
        self.unkillable = self.status().is_none();
    }

    fn write_beat(&mut self, now: Instant) {
        let changed = self.beat.bytes != self.log.bytes();
        if now < self.next_beat || !changed && now < self.next_measure {
            return;
        }
        self.next_beat = now + LOOK_EVERY;
        if now >= self.next_measure {
            self.next_measure = now + BEAT_EVERY;
            let (cpu, rss, processes) = tree::usage();
            self.beat.cpu_ms = self.beat.cpu_ms.max(cpu + system::reaped_cpu_ms());
            (self.beat.rss_bytes, self.beat.processes) = (rss, processes);
        }
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        self.beat.at = Wall(i64::try_from(wall.as_millis()).unwrap_or(i64::MAX));
        self.beat.boottime_ms = system::boottime_ms();
        self.beat.last_output_ms = self.last_output;
        self.beat.bytes = self.log.bytes();
        // A beat that cannot be written is missed; the run goes on.
        if let Err(e) = self.folder.write_beat(&self.beat) {
            self.disk_full |= is_full(&e);
        }
    }
}

impl Child {
    fn took_out(&mut self, item: Option<Item<Bytes>>) -> Option<(Stream, Bytes)> {
        match item {
            Some(Item::Stdout(bytes)) => return Some((Stream::Out, bytes)),
            Some(Item::Stderr(bytes)) => return Some((Stream::Err, bytes)),
            Some(Item::Done(Ok(status))) if self.status.is_none() => self.ended(status),
            Some(Item::Done(_)) | None => {}
        }
        // Standard output has ended, and the child too.
        self.out = None;
        None
    }

    fn took_err(&mut self, read: io::Result<Bytes>) -> Option<(Stream, Bytes)> {
        match read {
            Ok(bytes) if !bytes.is_empty() => Some((Stream::Err, bytes)),
            _ => {
                self.err = None;
                None
            }
        }
    }

    /// Output that is there already, from the other stream than `last` if it has any.
    fn ready(&mut self, last: Stream) -> Option<(Stream, Bytes)> {
        let order = if last == Stream::Out { [Stream::Err, Stream::Out] } else { [Stream::Out, Stream::Err] };
        order.into_iter().find_map(|stream| match stream {
            Stream::Out => next_out(&mut self.out).now_or_never().and_then(|item| self.took_out(item)),
            Stream::Err => next_err(&mut self.err).now_or_never().and_then(|read| self.took_err(read)),
        })
    }

    /// The stage says why it did not execute before it ends, so its words are complete now.
    fn ended(&mut self, status: ExitStatus) {
        self.status = Some(status);
        let Some(errors) = self.errors.take() else { return };
        let mut words = vec![0; stage::MESSAGE_MAX];
        if let Ok(got) = nix::unistd::read(&errors, &mut words) {
            self.words = words[..got].to_vec();
        }
    }
}

async fn next_out(out: &mut Option<ProcessChunkStream>) -> Option<Item<Bytes>> {
    match out {
        Some(out) => out.next().await,
        None => std::future::pending().await,
    }
}

/// Empty at the stream's end.
async fn next_err(err: &mut Option<ChildStderr>) -> io::Result<Bytes> {
    let Some(err) = err else { return std::future::pending().await };
    let mut buf = BytesMut::with_capacity(32 * 1024);
    err.read_buf(&mut buf).await?;
    Ok(buf.freeze())
}
