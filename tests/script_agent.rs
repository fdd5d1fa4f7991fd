//! The script agent's fixed program under a real `/bin/sh`: commands run in turn as written, the first failure ends the
//! run with its status, and nothing in a command reaches the program around it.

#![expect(
    clippy::disallowed_methods,
    reason = "tests play the user and the machine: they start programs, wait with limits and read the environment"
)]

use overnight::agent::{Launch, command};
use overnight::domain::policy::{AgentKind, Profile};
use std::io::Write;
use std::process::{Command, Stdio};

fn run(script: &[&str], prompt: &str) -> (String, Option<i32>) {
    let profile = Profile { bin: String::new(), ..Profile::bare(AgentKind::Script) };
    let script: Vec<String> = script.iter().map(|s| (*s).to_owned()).collect();
    let line = command(&Launch {
        profile: &profile,
        model: None,
        prompt,
        prompt_file: None,
        session: None,
        attempt: 2,
        script: &script,
        is_root: false,
        tmp_dir: "/tmp",
    })
    .expect("command");
    let mut child = Command::new(&line.argv[0])
        .args(&line.argv[1..])
        .envs(&line.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh");
    // A script that does not read its input may be gone already.
    let _ = child.stdin.take().expect("stdin").write_all(&line.stdin.expect("input"));
    let output = child.wait_with_output().expect("wait");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

#[test]
fn commands_run_in_turn_until_one_fails() {
    let (out, code) = run(&["echo one; X=1", "echo \"${X:-none} $OVERNIGHT_ATTEMPT\"", "exit 7", "echo never"], "");
    assert_eq!(out, "$ echo one; X=1\none\n$ echo \"${X:-none} $OVERNIGHT_ATTEMPT\"\nnone 2\n$ exit 7\n");
    assert_eq!(code, Some(7));
}

#[test]
fn hostile_commands_stay_commands() {
    let (out, code) = run(&["echo '%s' \"'\" \\; done", "-c ':' || echo fine", "# nothing"], "");
    assert_eq!(out, "$ echo '%s' \"'\" \\; done\n%s ' ; done\n$ -c ':' || echo fine\nfine\n$ # nothing\n");
    assert_eq!(code, Some(0));
}

#[test]
fn feedback_is_standard_input() {
    let (out, code) = run(&["cat"], "-n the check failed\n");
    assert_eq!((out.as_str(), code), ("$ cat\n-n the check failed\n", Some(0)));
}
