//! What a night does with work: outcomes of agents, checks and chains, merges, and the way home.

use crate::kit::Kit;

/// Night case 2: what an agent left uncommitted is kept and merged.
#[test]
fn case_2_uncommitted_work_is_taken_in() {
    let kit = Kit::new();
    kit.unhelpful("");
    kit.script_task("t1", "", &["mkdir src; echo new > src/new.txt; echo more >> a.txt; git add a.txt; echo all done"]);
    kit.up();
    kit.merged_task("t1");
    assert_eq!(kit.on_target("src/new.txt").as_deref(), Some("new\n"));
    assert!(kit.on_target("a.txt").unwrap().ends_with("more\n"));
    kit.close();
}
