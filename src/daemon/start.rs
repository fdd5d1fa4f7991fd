//! Starting the daemon: the lock, the log, the socket, the databases, in this order; and the exit codes of a start that
//! failed, told apart for service managers.

use super::turn::Ring;
use super::{How, chain, lock as locks, socket};
use crate::config::Places;
use crate::store::Store;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;

/// Exit codes of a daemon that could not start, told apart for service managers.
pub(super) const EXIT_USAGE: u8 = 2;
pub(super) const EXIT_RUNNING: u8 = 4;
pub(super) const EXIT_DATA: u8 = 12;
pub(super) const EXIT_OTHER: u8 = 10;

/// What hands may still take to finish when the daemon ends.
pub(super) const LEAVE: Duration = Duration::from_secs(5);

/// A daemon could not be started.
pub(super) struct StartError {
    pub message: String,
    pub code: u8,
}

pub(super) fn fail(code: u8, message: impl Into<String>) -> StartError {
    StartError { message: message.into(), code }
}

/// Runs the daemon until it ends.
pub(super) fn run(places: &Places, how: &How) -> ExitCode {
    match start(places, how) {
        Ok(code) => code,
        Err(e) => {
            tracing::error!("{}", e.message);
            eprintln!("overnight: {}", crate::domain::safe::line(&e.message));
            ExitCode::from(e.code)
        }
    }
}

fn start(places: &Places, how: &How) -> Result<ExitCode, StartError> {
    places.prepare().map_err(|e| fail(EXIT_USAGE, chain(&e)))?;
    let _log = super::logs::init(places, how).map_err(|e| fail(EXIT_OTHER, e))?;
    let what = if *how == How::Background { "the daemon" } else { "overnight run" };
    let ours = locks::take_within(&places.lock(), what, locks::PATIENCE).map_err(|e| {
        let code = if matches!(e, locks::LockError::Held { .. }) { EXIT_RUNNING } else { EXIT_OTHER };
        fail(code, chain(&e))
    })?;
    let listener = socket::bind(&places.socket(), &ours).map_err(|e| fail(EXIT_USAGE, chain(&e)))?;
    let runtime = super::runtime().map_err(|e| fail(EXIT_OTHER, format!("the runtime could not be started: {e}")))?;
    let code = runtime.block_on(async {
        let mut ring = Ring::open(places, &ours).await?;
        ring.printer = super::logs::Printer::of(how);
        let (calls, incoming) = mpsc::channel(256);
        let connections = socket::Connections::default();
        let server = tokio::spawn(socket::serve(listener, calls, connections.clone()));
        ring.begin(how).await?;
        let code = ring.turn_until_exit(incoming, how).await;
        server.abort();
        ring.close().await;
        // Who has asked for the end is told of it before the process is gone.
        connections.end().await;
        Ok(code)
    });
    if ours.anchor().is_there() {
        let _ = std::fs::remove_file(places.socket());
    }
    runtime.shutdown_timeout(LEAVE);
    drop(ours);
    code
}

/// The store, and what people should know of the one before it.
pub(super) async fn open_store(places: &Places) -> Result<(Store, Option<String>), StartError> {
    match Store::open(&places.data).await {
        Ok(store) => Ok((store, None)),
        Err(e @ crate::store::StoreError::Damaged { .. }) => {
            // Set aside; a new one is filled again from the state repo and the run folders.
            tracing::error!("{}", chain(&e));
            let store = Store::open(&places.data).await.map_err(|e| fail(EXIT_DATA, chain(&e)))?;
            Ok((store, Some(REPLACED.to_owned())))
        }
        Err(e) => Err(fail(EXIT_DATA, chain(&e))),
    }
}

/// What is said of a database that was replaced, until the next start.
pub(super) const REPLACED: &str = "the database was damaged and is replaced: tasks and their work are whole, and reports of \
     what ended before are gone (the old file is beside the new one, board.db.damaged-…)";

pub(super) fn id_file(places: &Places) -> PathBuf {
    places.data.join("id")
}

/// A name of our own for this data folder, made once.
pub(super) fn own_id(places: &Places) -> Result<String, String> {
    let file = id_file(places);
    if let Ok(text) = std::fs::read_to_string(&file) {
        let text = text.trim().to_owned();
        if text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(text);
        }
    }
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| format!("no random numbers: {e}"))?;
    let id: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    crate::config::files::write_whole(&file, id.as_bytes()).map_err(|e| chain(&e))?;
    Ok(id)
}
