//! Following the daemon's stream of events, for `events --follow` and for `run` beside a daemon that works already.

use super::context::{Context, unexpected};
use crate::client::{self, ClientError};
use crate::error::CliError;
use crate::protocol::view::EventLine;
use crate::protocol::{Reply, Request};
use std::time::Duration;

/// How long the stream may be silent before the daemon is asked whether it lives.
const SILENCE: Duration = Duration::from_secs(10);

/// Hands each line of the stream on, and `None` where it was silent for a while, until `take` has enough (false) or the
/// daemon ends it. False where no daemon runs.
pub(super) fn events(
    cx: &Context,
    request: &Request,
    take: &mut dyn FnMut(Option<&EventLine>) -> Result<bool, CliError>,
) -> Result<bool, CliError> {
    let mut stream = match client::follow(&cx.places, request) {
        Ok(stream) => stream,
        Err(ClientError::NoDaemon) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    loop {
        let reply = match stream.next(SILENCE) {
            Ok(Some(reply)) => reply,
            Ok(None) => {
                cx.note("the daemon has ended");
                return Ok(true);
            }
            Err(ClientError::Silent { .. }) if client::lives(&cx.places, client::PATIENCE) => {
                if take(None)? {
                    continue;
                }
                return Ok(true);
            }
            Err(error) => return Err(error.into()),
        };
        let lines = match reply {
            Reply::Event(line) => vec![line],
            Reply::Events { lines, .. } => lines,
            Reply::Error(failure) => return Err(failure.into()),
            reply => return Err(unexpected(&reply)),
        };
        for line in &lines {
            if !take(Some(line))? {
                return Ok(true);
            }
        }
    }
}
