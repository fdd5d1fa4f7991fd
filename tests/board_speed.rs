//! A board of two thousand rows is read in less than a tenth of a second, also without optimisation. It stands here
//! because the module itself knows no clock.

#![expect(
    clippy::disallowed_methods,
    reason = "tests play the user and the machine: they start programs, wait with limits and read the environment"
)]

use overnight::domain::status::Status;
use overnight::text::board_file::{Row, parse, render};

#[test]
fn two_thousand_rows_take_less_than_a_tenth_of_a_second() {
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
    let text = render(&(0..2000).map(row).collect::<Vec<_>>(), None);
    // The best of a few: other work on the machine is no fault of the reader.
    let best = (0..5).map(|_| {
        let start = std::time::Instant::now();
        assert_eq!(parse(&text).map(|board| board.rows.len()), Ok(2000));
        start.elapsed()
    });
    let best = best.min().unwrap_or_default();
    assert!(best.as_millis() < 100, "{best:?}");
}
