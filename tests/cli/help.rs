//! Every command's help parses and has an example; bad arguments end with 2 and touch nothing.

use super::bench::Bench;
use overnight::cli::definition;

#[test]
fn definitions_are_sound_and_every_command_has_an_example() {
    definition().debug_assert();
    fn look(command: &clap::Command, name: &str) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let name = format!("{name} {}", sub.get_name());
            let help = sub.clone().render_long_help().to_string();
            assert!(help.contains("Example"), "{name} has no example:\n{help}");
            assert!(sub.get_about().is_some(), "{name} does not say what it does");
            look(sub, &name);
        }
    }
    look(&definition(), "overnight");
}

#[test]
fn examples_in_help_texts_are_commands_that_parse() {
    fn look(command: &clap::Command, seen: &mut usize) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter_map(|line| line.strip_prefix("  overnight ")) {
            let line = line.split("  ").next().unwrap_or_default();
            let line = line.split(" && ").next().unwrap_or_default();
            let line = line.split([' ']).take_while(|w| !matches!(*w, "|" | ">" | "<")).collect::<Vec<_>>().join(" ");
            let mut words = vec!["overnight".to_owned()];
            for (i, part) in line.split('"').enumerate() {
                if i % 2 == 1 {
                    words.push(part.to_owned());
                } else {
                    words.extend(part.split_whitespace().map(str::to_owned));
                }
            }
            if let Err(error) = definition().try_get_matches_from(&words) {
                panic!("{words:?}: {error}");
            }
            *seen += 1;
        }
        command.get_subcommands().for_each(|sub| look(sub, seen));
    }
    let mut seen = 0;
    look(&definition(), &mut seen);
    assert!(seen > 35, "{seen} examples");
}

#[test]
fn bad_arguments_end_with_2_and_ask_nothing() {
    let bench = Bench::new();
    bench.daemon(|_| panic!("nothing may be asked"));
    for args in [
        &["nope"][..],
        &["show"],
        &["show", "../../../etc/passwd"],
        &["logs", "../../../etc/passwd"],
        &["show", "%2e%2e/x"],
        &["show", "A"],
        &["why", ".git"],
        &["abort", "a//b"],
        &["abort", "-rf"],
        &["retry", " "],
        &["undo", "lock"],
        &["answer", "a\u{202e}b", "x"],
        &["answer", "a", " "],
        &["add", "  "],
        &["add", "T", "--slug", "../x"],
        &["add", "T", "--parent", "/etc"],
        &["add", "T", "--after", "a,../b"],
        &["add", "T", "--agent", "nobody"],
        &["add", "T", "--checks", "nothing"],
        &["add", "T", "--script", "true"],
        &["priority", "a", "high"],
        &["status", "--project", "../p"],
        &["status", "--color", "pink"],
        &["task", "list", "--status", "odd"],
        &["config", "get", "a b"],
        &["config", "approve", "--hash"],
        &["completions", "sh"],
        &["report", "--night", "-1"],
        &["report", "--html", "x", "--json"],
        &[],
    ] {
        let done = bench.run(args);
        assert_eq!(done.code, 2, "{args:?} {done:?}");
        assert_eq!(done.out, "", "{args:?}");
        assert!(!done.err.contains("root:") && !done.err.contains("panicked"), "{done:?}");
        assert!(!done.err.chars().any(|c| c != '\n' && c.is_control()), "{args:?} {done:?}");
    }
    assert!(bench.asked().is_empty());
}

#[test]
fn errors_for_programs_are_one_line_of_json_on_standard_error() {
    let bench = Bench::new();
    for (args, kind, code) in
        [(&["show", "../x", "--json"][..], "usage", 2), (&["--json", "status", "--project", "q"], "not_found", 3)]
    {
        let done = bench.run(args);
        assert_eq!((done.code, done.out.as_str()), (code, ""));
        let error: serde_json::Value = serde_json::from_str(&done.err).unwrap();
        assert_eq!(
            (error["error"]["kind"].as_str(), error["error"]["exit_code"].as_i64()),
            (Some(kind), Some(code.into()))
        );
        assert!(error["error"]["hint"].is_string());
    }
}

#[test]
fn completions_name_the_commands() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish"] {
        let done = bench.run(&["completions", shell]);
        assert_eq!(done.code, 0);
        assert!(done.out.contains("rescues") && done.out.contains("--project") || shell == "fish", "{shell}");
    }
}
