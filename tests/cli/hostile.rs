//! Texts that would drive a terminal, in every view, shown on a real one: `script` gives the command a pseudo terminal
//! and keeps every byte that reached it.

use super::bench::{Bench, line, status, view};
use overnight::protocol::{Reply, Request};
use std::process::Command;

const HOSTILE: &str = "\u{1b}[31mred\u{1b}[0m \u{1b}[1A\u{1b}[2Kcomplete OK \u{1b}]52;c;aGk=\u{7} \u{1b}]8;;http://x\u{1b}\\y \
    \u{1b}]0;title\u{7} \u{1b}P+q544e\u{1b}\\ \u{9b}2J ding\u{7} pass\u{8}\u{8}fail a\u{202e}b a\u{2028}b fail\rpass \
    one\n\u{2713} forged";

/// What is left when plain colours are taken out.
fn without_colours(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("\u{1b}[") {
        out.push_str(&rest[..at]);
        let after = &rest[at + 2..];
        let digits = after.bytes().take_while(|b| b.is_ascii_digit() || *b == b';').count();
        if after.as_bytes().get(digits) == Some(&b'm') {
            rest = &after[digits + 1..];
        } else {
            out.push('\u{1b}');
            rest = &rest[at + 1..];
        }
    }
    out + rest
}

#[test]
fn nothing_from_a_view_acts_on_a_terminal() {
    if Command::new("script").arg("--version").output().is_err() {
        return;
    }
    let bench = Bench::new();
    bench.daemon(|request| match request {
        Request::Status { .. } => {
            let mut view = status(vec![line("a", HOSTILE)]);
            view.alarms = vec![HOSTILE.into()];
            view.projects[0].into = Some(HOSTILE.into());
            Reply::Status(Box::new(view))
        }
        Request::Show { .. } => Reply::Task(Box::new(view("a", HOSTILE))),
        Request::Why { .. } => Reply::Why { text: HOSTILE.into() },
        Request::Abort { .. } => Reply::error(overnight::protocol::ErrorKind::WrongState, HOSTILE),
        _ => Reply::Done { text: HOSTILE.into() },
    });
    let logs = bench.places.logs();
    std::fs::create_dir_all(&logs).unwrap();
    let record =
        serde_json::json!({ "timestamp": "t", "level": "INFO", "target": "x", "fields": { "message": HOSTILE } });
    std::fs::write(logs.join("daemon.2026-11-30.jsonl"), format!("{record}\nraw {}\n", HOSTILE.replace('\n', " ")))
        .unwrap();
    let program = env!("CARGO_BIN_EXE_overnight");
    for (args, least) in [
        ("status", 3),
        ("show a", 8),
        ("why a", 1),
        ("retry a", 1),
        ("abort a", 1),
        ("status --json", 10),
        ("show a --json", 10),
        ("task list", 1),
        ("logs", 2),
    ] {
        let mut command = Command::new("script");
        command.args(["-qec", &format!("{program} {args}"), "/dev/null"]).current_dir(&bench.code);
        command.env("OVERNIGHT_HOME", bench.code.parent().unwrap().join("home")).env_remove("NO_COLOR");
        let output = command.env("TERM", "xterm").output().unwrap();
        let shown = without_colours(&output.stdout).replace("\r\n", "\n");
        let acting: Vec<char> =
            shown.chars().filter(|c| *c != '\n' && overnight::domain::safe::is_unsafe(*c)).collect();
        assert!(acting.is_empty(), "{args}: {acting:?}\n{shown}");
        assert!(!shown.lines().any(|line| line.starts_with('\u{2713}')), "{args}: forged\n{shown}");
        assert!(shown.lines().count() >= least, "{args}: {shown}");
    }
}
