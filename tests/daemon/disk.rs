//! Night case 8: the disk fills during the night and later has room again. The case runs itself once more inside a mount
//! namespace of its own, with a small tmpfs as its temporary folder.

use crate::kit::{Kit, word, write};
use crate::rig::Setup;
use std::process::Command;
use std::time::Duration;

const INSIDE: &str = "OVERNIGHT_TEST_SMALL_DISK";

#[test]
fn case_8_a_full_disk_costs_nobody_anything() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let at = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=48m none \"$1\" || exit 77\nexport TMPDIR=\"$1\"\nshift\nexec \"$@\"";
    let output = Command::new("unshare")
        .args(["-Urm", "sh", "-c", script, "sh"])
        .arg(at.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "disk::case_8_a_full_disk_costs_nobody_anything", "--nocapture"])
        .env(INSIDE, "1")
        .output();
    let Ok(output) = output else { return println!("skipped: there is no unshare here") };
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) || said.contains("unshare failed") || said.contains("Operation not permitted") {
        return println!("skipped: no mount namespace may be made here: {said}");
    }
    assert!(output.status.success(), "{said}");
}

fn inside() {
    let kit = Kit::with(Setup { slots: 2, ..Setup::default() });
    let filler = kit.root().join("filler");
    kit.script_task(
        "fills",
        "priority: 5\n",
        &[&format!(
            "test -e $HOME/filled || {{ touch $HOME/filled; dd if=/dev/zero of={} bs=64k 2>/dev/null; }}; while test -e {}; do sleep 0.1; done; echo f > f.txt",
            filler.display(),
            filler.display()
        )],
    );
    kit.script_task("beside", "priority: 5\n", &["while test ! -e $HOME/full; do sleep 0.05; done; echo b > b.txt"]);
    for n in 0..3 {
        kit.script_task(&format!("t{n}"), "", &[&format!("echo {n} > t{n}.txt")]);
    }
    let pid = kit.up();
    let full = || nix::sys::statvfs::statvfs(kit.root()).is_ok_and(|s| s.blocks_available() < 16);
    kit.wait("the disk is full", || full().then_some(()));
    // One more byte is not to be had; what runs meets that, and the daemon goes on answering.
    let _ = std::fs::write(kit.home().join("full"), "");
    for _ in 0..30 {
        let status = kit.status();
        assert_eq!(status["daemon"], "working");
        assert!(status["alarms"].to_string().contains("is full"), "{}", status["alarms"]);
        std::thread::sleep(Duration::from_millis(100));
    }
    // Whoever asks for something is told at once; an end is an end, and what runs goes on without the daemon.
    for ask in [&["add", "late"][..], &["pause"], &["abort", "t0"]] {
        let refused = kit.run(ask);
        assert!(
            refused.code == 1 && refused.err.contains("nothing was changed") && refused.err.contains("full"),
            "{refused:?}"
        );
    }
    assert!(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok(), "another daemon than before");
    kit.ok(&["stop", "--keep-agents"]);
    std::fs::remove_file(&filler).unwrap();
    kit.up();
    kit.ok(&["add", "late", "--script", "echo late > late.txt"]);
    write(&kit.home().join("full"), "");
    for path in ["beside", "t0", "t1", "t2", "fills", "late"] {
        let facts = kit.merged_task(path);
        assert!(facts["line"]["attempt"].as_u64().unwrap() <= 1, "{}\n{}", facts["line"], kit.log());
        assert_eq!(word(&facts), "completed");
    }
    kit.close();
}
