//! Crashes and restarts: whatever is killed at whatever moment, every task settles once and its work is merged once.

use crate::rig::Rig;
use std::time::Duration;

/// The rig itself works: one task goes through and every end check holds.
#[test]
fn a_plain_task_is_merged_and_nothing_is_left() {
    let rig = Rig::new();
    rig.task("hello", &["echo hello > hello.txt"]);
    let daemon = rig.start();
    rig.until_word("hello", "completed", Duration::from_secs(10));
    assert_eq!(rig.on_target("hello.txt").as_deref(), Some("hello\n"));
    assert_eq!(rig.merges_of("hello"), 1, "{:?}", rig.merged());
    rig.end_checks();
    drop(daemon);
}
