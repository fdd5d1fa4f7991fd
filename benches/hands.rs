//! What the hands cost by themselves: git on the code, the state repo, the database, the reader of boards. Prints figures;
//! `cargo bench --bench hands`, with the names of parts after `--` (`code`, `state`, `store`, `board`). `FILES` and `ROUNDS`
//! set how large the repository of `code` is and how often it is gone through.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench measures time, starts programs and reads how much it shall do from the environment"
)]
#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

#[path = "../tests/hands/main.rs"]
#[expect(dead_code, unused_imports, reason = "only the measurements of these files are made here, not their checks")]
mod hands;

use overnight::domain::status::Status;
use overnight::text::board_file::{Row, parse, render};
use std::time::Instant;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    hands::hermetic();
    if is_wanted("code") {
        runtime.block_on(hands::git_code::figures());
    }
    if is_wanted("state") {
        runtime.block_on(hands::git_state_figures::figures());
    }
    if is_wanted("store") {
        runtime.block_on(hands::store::figures());
    }
    if is_wanted("board") {
        board();
    }
}

/// Boards are written by the daemon at a pace, and read where people changed them.
fn board() {
    for rows in [20, 200, 2000] {
        let row = |n| Row {
            task: format!("task-{n}"),
            title: "Some title 🦀".into(),
            status: Status::Queued,
            depends_on: vec!["task-0".into()],
            branch: None,
            agent: None,
            requester: None,
            time: None,
        };
        let list: Vec<Row> = (0..rows).map(row).collect();
        let start = Instant::now();
        let text = render(&list, None);
        let written = start.elapsed();
        let start = Instant::now();
        assert_eq!(parse(&text).map(|board| board.rows.len()), Ok(rows));
        println!("board of {rows} rows: written in {written:?}, read in {:?}", start.elapsed());
    }
}
