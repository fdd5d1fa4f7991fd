//! Projects that come and go while the daemon works, and those who look on.

use crate::kit::Kit;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A project that is taken off the list is let go by a running daemon, and keeps no later `run` waiting.
#[test]
fn a_removed_project_is_let_go() {
    let kit = Kit::new();
    kit.wish("t1", "---\ntitle: t1\nstatus: planning\n---\n\nText.\n");
    kit.up();
    kit.wait("it is seen", || (kit.facts("t1")["line"]["title"] == "t1").then_some(()));
    kit.ok(&["project", "remove", "code", "--yes"]);
    kit.wait("it is let go", || (kit.status()["projects"] == serde_json::json!([])).then_some(()));
    kit.script_task("t1", "", &["echo t1 > t1.txt"]);
    kit.down();
    // Another project, whose run ends although the first one is still in the database.
    let other = kit.root().join("second");
    std::fs::create_dir_all(&other).unwrap();
    kit.git(&other, &["init", "-q", "-b", "main"]);
    kit.git(&other, &["commit", "-q", "--allow-empty", "-m", "Begin"]);
    let there =
        |args: &[&str]| kit.command("timeout").arg("25").arg(crate::rig::BIN).current_dir(&other).args(args).output();
    assert!(there(&["init", "--state", kit.root().join("second-state").to_str().unwrap()]).unwrap().status.success());
    let ran = there(&["run"]).unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert_eq!(kit.on_target("t1.txt"), None);
}

/// `run` beside a daemon ends when only a person can go on.
#[test]
fn run_beside_a_paused_daemon_ends() {
    let kit = Kit::new();
    kit.up();
    kit.ok(&["pause"]);
    kit.script_task("t1", "", &["echo t1 > t1.txt"]);
    kit.wait("it is seen", || (kit.facts("t1")["line"]["title"] == "t1").then_some(()));
    kit.wait("all is quiet", || (kit.status()["idle"] == true).then_some(()));
    let ran =
        kit.command("timeout").arg("25").arg(crate::rig::BIN).current_dir(kit.code()).arg("run").output().unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    kit.ok(&["resume"]);
    kit.merged_task("t1");
    kit.close();
}

/// A branch of the person's own is never moved, so finished work cannot be sent there; the name is refused beforehand.
#[test]
fn finished_work_goes_to_no_branch_of_the_persons() {
    let kit = Kit::new();
    kit.git(&kit.code(), &["branch", "develop"]);
    kit.remember();
    let file = kit.code().join("overnight.toml");
    let before = std::fs::read(&file).unwrap();
    for name in ["develop", "develop/night"] {
        let refused = kit.run(&["config", "set", "merge.into", name]);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.err.contains("\"develop\"") && refused.err.contains("`[merge] into`"), "{refused:?}");
        assert_eq!(std::fs::read(&file).unwrap(), before, "a refused change wrote nothing");
    }
    kit.ok(&["config", "set", "merge.into", "night/work"]);
    kit.script_task("t1", "", &["echo t1 > t1.txt"]);
    kit.up();
    kit.merged_task("t1");
    kit.wait("it arrives", || {
        kit.git(&kit.code(), &["branch", "--list", "night/work"]).contains("night/work").then_some(())
    });
    // It is there by us now.
    kit.ok(&["config", "set", "merge.into", "other/work"]);
    kit.ok(&["config", "set", "merge.into", "night/work"]);
    // That file is the person's own change.
    kit.remember();
    kit.close();
}

/// Those who followed and have left take no place from others.
#[test]
fn followers_that_left_take_no_place() {
    let kit = Kit::new();
    kit.up();
    let socket = crate::kit::find(kit.root(), &|name| name.ends_with(".sock")).pop().unwrap();
    let ask = b"{\"v\":1,\"request\":{\"verb\":\"events\",\"project\":null,\"path\":null,\"since\":null,\"limit\":1,\"follow\":true}}\n";
    for _ in 0..80 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(ask).unwrap();
        let mut bytes = [0; 4096];
        let n = stream.read(&mut bytes).unwrap();
        assert!(!String::from_utf8_lossy(&bytes[..n]).contains("too many"));
    }
    kit.ok(&["status"]);
    kit.close();
}

/// Somebody who is asked for a review sees the work, and one that is over says where its rest is.
#[test]
fn the_work_of_one_task_is_shown() {
    let kit = Kit::new();
    kit.script_task("t1", "review: true\n", &["echo t1 > t1.txt"]);
    kit.up();
    kit.wait("it waits for a review", || (kit.facts("t1")["line"]["phase"] == "waiting").then_some(()));
    assert!(kit.ok(&["diff", "t1"]).contains("t1.txt"));
    assert!(kit.ok(&["diff", "t1", "--patch"]).contains("+t1"));
    assert_eq!(kit.run(&["diff", "nosuch"]).code, 3);
    kit.ok(&["abort", "t1"]);
    kit.wait("it is over", || (kit.facts("t1")["line"]["phase"] == "ended").then_some(()));
    let told = kit.run(&["undo", "t1", "--attempt", "9"]);
    assert!(told.code == 3 && told.err.contains("kept is attempt 1"), "{told:?}");
    assert!(kit.ok(&["rescues", "t1"]).contains("overnight undo t1"));
    kit.close();
}

/// A file that was changed by hand is said by the next `status`, without anybody telling the daemon to look.
#[test]
fn a_changed_configuration_is_said_by_status() {
    let kit = Kit::new();
    kit.up();
    assert_eq!(kit.status()["alarms"], serde_json::json!([]));
    let good = crate::kit::read(&kit.code().join("overnight.toml"));
    kit.write_config(&good.replace("slots = 4", "slots = 13"));
    assert!(kit.status()["alarms"].to_string().contains("not approved"));
    kit.write_config("slots = ");
    assert!(kit.status()["alarms"].to_string().contains("not valid"));
    kit.write_config(&good);
    assert_eq!(kit.status()["alarms"], serde_json::json!([]));
    kit.close();
}
