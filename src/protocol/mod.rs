//! What goes over the control socket: requests, replies and views as JSON lines, each line of bounded length and each
//! conversation opened with a version. Words are only ever added; `tests/wire.rs` holds the exact bytes.

pub mod frame;
pub mod reply;
pub mod request;
pub mod view;

pub use frame::{Frame, FrameError, MAX_LINE};
pub use reply::{ErrorKind, Failure, Reply};
pub use request::{Call, Request, VERSION};
