//! Requests without a daemon: the same ring, turned in the CLI's own process under the same lock, adopting and starting
//! nothing, until what was asked is saved and, for a while, published.

#![expect(
    clippy::disallowed_methods,
    reason = "a person at the terminal waits with a deadline; no rule sees this clock"
)]

use super::lock::{self as locks, LockError, PATIENCE};
use super::peer;
use super::socket::Incoming;
use super::start::StartError;
use super::state_worker::StateOp;
use super::turn::Ring;
use crate::config::Places;
use crate::decide::Event;
use crate::decide::event::Started;
use crate::domain::Epoch;
use crate::protocol::reply::{ErrorKind, Failure};
use crate::protocol::{Reply, Request};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long reading the state repo may take before the request is judged all the same.
const READ: Duration = Duration::from_secs(30);
/// How long the effects may take to be published.
const PUBLISH: Duration = Duration::from_secs(10);
/// A landing runs checks, which take their time.
const LAND: Duration = Duration::from_secs(3600);

/// Serves one request in this process. Blocks; makes its own runtime.
pub fn serve(places: &Places, request: Request) -> Reply {
    if request.is_a_persons()
        && let Some(run) = i32::try_from(std::process::id()).ok().and_then(peer::run_of)
    {
        let text = format!("{run} may not do this: it is for a person, outside of every run");
        return Reply::error(ErrorKind::NotAllowed, text);
    }
    if let Err(e) = places.prepare() {
        return Reply::error(ErrorKind::Usage, super::chain(&e));
    }
    let ours = match locks::take_within(&places.lock(), "a command", PATIENCE) {
        Ok(ours) => ours,
        Err(LockError::Held { path, holder }) => {
            return Reply::Error(Failure {
                kind: ErrorKind::WrongState,
                message: format!("{holder} holds {} and does not answer", path.display()),
                hint: Some("wait for it to end, or end that process".into()),
            });
        }
        Err(e) => return Reply::error(ErrorKind::Unexpected, super::chain(&e)),
    };
    let runtime = match super::runtime() {
        Ok(runtime) => runtime,
        Err(e) => return Reply::error(ErrorKind::Unexpected, format!("the runtime could not be started: {e}")),
    };
    let reply = runtime.block_on(async {
        match serve_in(places, &ours, request).await {
            Ok(reply) => reply,
            Err(StartError { message, .. }) => Reply::error(ErrorKind::Unexpected, message),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(2));
    reply
}

async fn serve_in(places: &Places, ours: &locks::Ours, request: Request) -> Result<Reply, StartError> {
    let mut ring = Ring::open(places, ours).await?;
    ring.open_projects().await;
    let started = Started { same_boot: ring.is_same_boot(), only_serve: true, runs: vec![], slots: 0, used: Epoch(0) };
    ring.process(vec![Event::Started(started)]).await;
    ring.configure();
    for ctx in ring.shared.all_projects() {
        let _ = ctx.ops.send(StateOp::Look { whole: true });
    }
    let until = Instant::now() + READ;
    while Instant::now() < until && !ring.shared.all_projects().iter().all(|c| is_read(&ring, &c.id)) {
        ring.next_event(Duration::from_millis(200)).await;
    }
    let reading = request.is_reading();
    let of_git = matches!(request, Request::Land { .. } | Request::Diff { .. } | Request::Undo { .. });
    let patience = if of_git { LAND } else { READ };
    let reply = ask(&mut ring, request, patience).await;
    if !reading && !matches!(reply, Reply::Error(_)) {
        let settled = ask(&mut ring, Request::Settle, PUBLISH).await;
        if let (Reply::Error(_), Reply::Done { text }) = (settled, &reply) {
            let text =
                format!("{text}{}saved here, published at the next start", if text.is_empty() { "" } else { "; " });
            ring.close().await;
            return Ok(Reply::Done { text });
        }
    }
    ring.close().await;
    Ok(reply)
}

fn is_read(ring: &Ring, id: &crate::domain::ProjectId) -> bool {
    ring.board.projects.get(id).is_some_and(|p| p.read)
}

/// Asks the ring and turns it until it has answered.
async fn ask(ring: &mut Ring, request: Request, patience: Duration) -> Reply {
    let (replies, mut answers) = mpsc::channel(4);
    ring.call(Incoming { request, replies }).await;
    let until = Instant::now() + patience;
    loop {
        match answers.try_recv() {
            Ok(reply) => return reply,
            Err(mpsc::error::TryRecvError::Disconnected) => {
                return Reply::error(ErrorKind::Usage, "this needs a running daemon: `overnight start`");
            }
            Err(mpsc::error::TryRecvError::Empty) => {}
        }
        if Instant::now() >= until {
            return Reply::error(ErrorKind::Failed, "no answer in time");
        }
        ring.next_event(Duration::from_millis(20)).await;
    }
}
