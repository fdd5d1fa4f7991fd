//! Documents and values: what people and machines write into the state repo and what is said to agents, read and
//! written without touching a disk, a clock or the environment. Everything read here was written by somebody else and
//! is taken as hostile: sizes and depths are bounded, nothing is dropped without a word, and every error names a line.
//!
//! What must not be here: decisions about tasks (they are in the rules) and any I/O.

pub mod board_file;
pub mod lint;
mod markdown;
pub mod prompt;
mod stamp;
pub mod state_file;
pub mod task_file;
pub mod test_loss;
