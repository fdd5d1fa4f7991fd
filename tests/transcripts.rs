//! Recorded runs of the real CLIs (Claude Code 2.1.332, Codex 0.171.0), each with the verdict, session and usage that it
//! must be read as, however its bytes are cut; and the same runs damaged at random, which must never panic or grow.

use overnight::agent::{Reader, Stream, describe};
use overnight::domain::Wall;
use overnight::domain::policy::{AgentKind, Profile};
use overnight::domain::verdict::{AgentEvent, AgentReport, Exit, RunEnd, Usage, Verdict};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Name, exit status, verdict, beginning of the session id, and tokens in, tokens out and dollars where told.
type Row = (&'static str, i32, &'static str, &'static str, Option<(u64, u64, f64)>);

/// The run did not end by itself and was sent SIGTERM.
const STOPPED: i32 = -1;

const CLAUDE: &[Row] = &[
    ("answer-only", 0, "finished", "0a0f7167-a906", Some((22_047, 10, 0.066291))),
    ("ask-question-text", 0, "finished", "9603a83a-c1a9", Some((22_054, 11, 0.066327))),
    ("ask-question", 0, "finished", "f0566b6d-a3cd", Some((22_048, 11, 0.066309))),
    ("auth-error-403", 1, "login_needed", "9ec442bf-8e5a", Some((0, 0, 0.000000))),
    ("auth-error", STOPPED, "login_needed", "8a90d50f-b41a", None),
    ("context-too-long", 1, "context_too_long", "c0c639de-0363", Some((0, 0, 0.000000))),
    ("cost-heavy", 0, "finished", "749c995a-6e4f", Some((240_000, 40_000, 1.320000))),
    ("edit-twice", 0, "finished", "5cf98d73-4819", Some((89_111, 109, 0.268968))),
    ("error-mid-stream", 1, "overloaded", "461de431-295a", Some((22_052, 1, 0.000000))),
    ("hang-body", STOPPED, "crashed", "dc075ed1-15dc", None),
    ("hang", STOPPED, "crashed", "011ad697-cb6c", None),
    ("malformed-empty", 1, "malformed", "5a673ccc-3dc0", Some((0, 0, 0.000000))),
    ("malformed-html", 1, "malformed", "7e7fbe8e-6c0a", Some((0, 0, 0.000000))),
    ("malformed-json", 1, "malformed", "f16c47b6-4e75", Some((22_053, 3, 0.066204))),
    ("malformed-truncate-1", 0, "finished", "cc2423cc-80b7", Some((44_280, 46, 0.133530))),
    ("malformed-truncate", 1, "malformed", "239f2fc9-b90d", Some((22_057, 1, 0.066186))),
    ("model-not-found", 1, "model_unknown", "e97619f4-0fc6", Some((0, 0, 0.000000))),
    ("overloaded-2", 0, "finished", "2a3436bb-ed81", Some((44_254, 44, 0.133422))),
    ("overloaded-always", 1, "overloaded", "a2bf3406-797f", Some((0, 0, 0.000000))),
    ("rate-limit-2", 0, "finished", "972cd591-baf7", Some((44_261, 44, 0.133443))),
    ("rate-limit-always", 1, "rate_limited", "f8b0efca-ebff", Some((0, 0, 0.000000))),
    ("run-shell", 0, "finished", "683e3e01-6ad8", Some((44_206, 27, 0.133023))),
    ("server-error", 1, "overloaded", "00dd7dbf-8f83", Some((0, 0, 0.000000))),
    ("slow-drip", 0, "finished", "3565e25f-554d", Some((22_051, 32, 0.066633))),
    ("stop-max-tokens", 1, "output_cut", "3be29076-ff52", Some((88_717, 8, 0.266271))),
    ("stop-refusal", 1, "refused", "b8fe949a-3cc4", Some((44_199, 4, 0.132657))),
    ("unknown-tool", 0, "finished", "564766df-50fb", Some((44_208, 8, 0.132744))),
    ("usage-limit-credit", 1, "no_credit", "9e869d66-b27e", Some((0, 0, 0.000000))),
    ("usage-limit", 1, "rate_limited", "cf5b837f-b589", Some((0, 0, 0.000000))),
    ("write-file", 0, "finished", "d96df940-1aa5", Some((44_247, 33, 0.133236))),
    ("x-auth401-noretry", 1, "login_needed", "11d1a508-e35d", Some((0, 0, 0.000000))),
    ("x-continue", 0, "finished", "6e4e307a-b5cd", Some((22_545, 10, 0.067785))),
    ("x-fork", 0, "finished", "8c6f8fd7-f3a2", Some((22_521, 10, 0.067713))),
    ("x-max-budget", 1, "limit_reached", "ff32ada1-2389", Some((120_000, 20_000, 0.660000))),
    ("x-max-turns", 1, "limit_reached", "212c824a-bd2d", Some((66_435, 36, 0.199845))),
    ("x-nogit2", 0, "finished", "9cd62697-e6e4", Some((21_874, 10, 0.065772))),
    ("x-nokey", 1, "login_needed", "f2a986ef-db05", Some((0, 0, 0.000000))),
    ("x-oauth-401", 1, "login_needed", "dd825939-9593", Some((0, 0, 0.000000))),
    ("x-oauth-usage-limit", 1, "usage_limit", "b6a50520-b609", Some((0, 0, 0.000000))),
    ("x-oauth-write", 0, "finished", "c68d913a-d478", Some((44_381, 33, 0.133638))),
    ("x-perm-accept-shell", 0, "finished", "30cf145f-a0a3", Some((44_217, 23, 0.132996))),
    ("x-perm-accept-write", 0, "finished", "939e6bcb-fff9", Some((44_266, 37, 0.133353))),
    ("x-perm-default", 0, "permission_denied", "244ea137-3a0c", Some((44_253, 35, 0.133284))),
    ("x-refused", 1, "overloaded", "77efee6b-bc81", Some((0, 0, 0.000000))),
    ("x-resume-bad", 1, "session_lost", "", Some((0, 0, 0.000000))),
    ("x-resume-other-dir", 0, "finished", "6e4e307a-b5cd", Some((22_685, 10, 0.068205))),
    ("x-resume1", 0, "finished", "229feb87-fe01", Some((44_246, 34, 0.133248))),
    ("x-resume2", 0, "finished", "229feb87-fe01", Some((44_722, 34, 0.134676))),
    ("x-resume3", 0, "finished", "6e4e307a-b5cd", Some((92_120, 87, 0.277665))),
    ("x-retries2", 1, "overloaded", "aa9bf83f-d590", Some((0, 0, 0.000000))),
    ("x-root-nosandbox", 1, "spawn_error", "", None),
    ("x-sleep", 0, "finished", "1afc138e-c7e1", Some((44_259, 23, 0.133122))),
    ("x-timeout-body", STOPPED, "crashed", "8cc7a17c-cde1", None),
    ("x-timeout", 1, "overloaded", "7469daff-d8f8", Some((0, 0, 0.000000))),
    ("x-worktree", 0, "finished", "f10fe653-ba67", Some((44_599, 40, 0.134397))),
];

const CODEX: &[Row] = &[
    ("answer-only", 0, "finished", "01a22e33-87c6", Some((9_583, 10, 0.000000))),
    ("ask-question-text", 0, "finished", "01a22e33-a13e", Some((9_592, 11, 0.000000))),
    ("ask-question", 0, "finished", "01a22e33-9fa4", Some((19_303, 57, 0.000000))),
    ("auth-error-403", 1, "login_needed", "01a22e33-fb9b", None),
    ("auth-error", 1, "login_needed", "01a22e33-fa61", None),
    ("context-too-long", 1, "context_too_long", "01a22e34-1d51", None),
    ("cost-heavy", 0, "finished", "01a22e33-a118", Some((240_000, 40_000, 0.000000))),
    ("edit-twice", 0, "finished", "01a22e33-8866", Some((39_224, 81, 0.000000))),
    ("error-mid-stream", 1, "overloaded", "01a22e34-56c7", None),
    ("hang-body", STOPPED, "crashed", "01a22e34-7551", None),
    ("hang", STOPPED, "crashed", "01a22e34-706c", None),
    ("malformed-empty", 1, "malformed", "01a22e34-4f00", None),
    ("malformed-html", 1, "malformed", "01a22e34-4950", None),
    ("malformed-json", 1, "malformed", "01a22e34-2515", None),
    ("malformed-tool-json", STOPPED, "crashed", "01a22e34-4bd5", None),
    ("malformed-truncate-1", 0, "finished", "01a22e34-3f3a", Some((19_351, 35, 0.000000))),
    ("malformed-truncate", 1, "malformed", "01a22e34-24fd", None),
    ("model-not-found", 1, "model_unknown", "01a22e34-1ceb", None),
    ("overloaded-2", 0, "finished", "01a22e33-e0c2", Some((19_325, 35, 0.000000))),
    ("overloaded-always", 1, "overloaded", "01a22e33-d7be", None),
    ("rate-limit-2", 0, "finished", "01a22e33-d083", Some((19_331, 35, 0.000000))),
    ("rate-limit-always", 1, "rate_limited", "01a22e33-d3eb", None),
    ("run-shell", 0, "finished", "01a22e33-87a4", Some((19_285, 18, 0.000000))),
    ("server-error", 1, "overloaded", "01a22e33-e8e1", None),
    ("slow-drip", 0, "finished", "01a22e33-a16d", Some((9_586, 32, 0.000000))),
    ("stop-max-tokens", 1, "output_cut", "01a22e33-c682", None),
    ("stop-refusal", 1, "refused", "01a22e33-ca48", None),
    ("unknown-tool", 0, "finished", "01a22e33-b3db", Some((19_255, 8, 0.000000))),
    ("usage-limit-credit", 1, "no_credit", "01a22e33-f2e1", None),
    ("usage-limit", 1, "usage_limit", "01a22e33-f2d5", None),
    ("write-file", 0, "finished", "01a22e33-882b", Some((19_317, 26, 0.000000))),
    ("x-fastfail", 1, "overloaded", "01a22e52-f286", None),
    ("x-idle-body", 1, "overloaded", "01a22e53-eae7", None),
    ("x-idle", STOPPED, "crashed", "01a22e52-fcf4", None),
    ("x-nogit", 0, "finished", "01a22e45-0179", Some((9_532, 10, 0.000000))),
    ("x-nogit2", 1, "spawn_error", "", None),
    ("x-nokey", 1, "login_needed", "01a22e41-b529", None),
    ("x-perm-default", 0, "permission_denied", "01a22e3c-3e87", Some((19_348, 27, 0.000000))),
    ("x-perm-ww", 0, "finished", "01a22e3c-450c", Some((19_846, 36, 0.000000))),
    ("x-refused", STOPPED, "overloaded", "01a22e41-d7d0", None),
    ("x-resume-bad", 1, "session_lost", "", None),
    ("x-resume-last", 0, "finished", "01a22e3b-ad90", Some((49_247, 64, 0.000000))),
    ("x-resume1", 0, "finished", "01a22e3b-ad90", Some((19_321, 27, 0.000000))),
    ("x-resume2", 0, "finished", "01a22e3b-ad90", Some((39_156, 54, 0.000000))),
    ("x-worktree-ww", 0, "finished", "01a22e4d-628b", Some((19_728, 26, 0.000000))),
    ("x-worktree", 0, "finished", "01a22e4d-3e8a", Some((19_323, 31, 0.000000))),
];

struct Recorded {
    kind: AgentKind,
    row: &'static Row,
    out: Vec<u8>,
    err: Vec<u8>,
}

fn folder(kind: AgentKind) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts").join(kind.word())
}

fn all() -> Vec<Recorded> {
    [(AgentKind::Claude, CLAUDE), (AgentKind::Codex, CODEX)]
        .into_iter()
        .flat_map(|(kind, rows)| rows.iter().map(move |row| load(kind, row)))
        .collect()
}

fn load(kind: AgentKind, row: &'static Row) -> Recorded {
    let out = fs::read(folder(kind).join(format!("{}.jsonl", row.0))).expect(row.0);
    let err = fs::read(folder(kind).join(format!("{}.stderr", row.0))).unwrap_or_default();
    Recorded { kind, row, out, err }
}

fn named(kind: AgentKind, name: &str) -> Recorded {
    all().into_iter().find(|r| r.kind == kind && r.row.0 == name).expect(name)
}

/// How the run of `row` ended: Claude Code answers SIGTERM with status 143, Codex dies of it.
fn exit(kind: AgentKind, row: &Row) -> Exit {
    match (row.1, kind) {
        (STOPPED, AgentKind::Claude) => Exit::Exited { code: 143 },
        (STOPPED, _) => Exit::Signalled { signal: 15 },
        (code, _) => Exit::Exited { code },
    }
}

fn end(exit: Exit) -> RunEnd {
    RunEnd { exit, took: Duration::from_secs(1), survivors: Vec::new(), tail: String::new(), bytes: 0, cut: 0 }
}

fn read(
    kind: AgentKind,
    out: &[u8],
    err: &[u8],
    exit: Exit,
    previous: Option<Usage>,
    mut size: impl FnMut() -> usize,
) -> (Vec<AgentEvent>, AgentReport) {
    let mut reader = Reader::new(kind, &Profile::bare(kind), previous);
    let mut events = Vec::new();
    for (stream, bytes) in [(Stream::Out, out), (Stream::Err, err)] {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(size().clamp(1, rest.len()));
            reader.feed(stream, chunk, &mut events);
            rest = after;
        }
    }
    (events, reader.finish(&end(exit)))
}

impl Recorded {
    fn read(&self, previous: Option<Usage>) -> AgentReport {
        read(self.kind, &self.out, &self.err, exit(self.kind, self.row), previous, || usize::MAX).1
    }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn every_file_in_the_folders_is_known() {
    for (kind, rows) in [(AgentKind::Claude, CLAUDE), (AgentKind::Codex, CODEX)] {
        let known: BTreeSet<String> = rows.iter().map(|r| r.0.to_owned()).collect();
        let found: BTreeSet<String> = fs::read_dir(folder(kind))
            .expect("folder")
            .map(|e| e.expect("entry").path().file_stem().expect("stem").to_string_lossy().into_owned())
            .collect();
        assert_eq!(found, known, "{kind:?}");
    }
}

#[test]
fn every_recorded_run_is_read_as_what_it_was() {
    for r in all() {
        let (name, _, word, session, usage) = r.row;
        let report = r.read(None);
        let at = format!("{:?} {name}: {report:?}", r.kind);
        assert_eq!(report.verdict.word(), *word, "{at}");
        match &report.session {
            Some(id) => assert!(!session.is_empty() && id.starts_with(session), "{at}"),
            None => assert!(session.is_empty(), "{at}"),
        }
        assert_eq!(report.usage.known, usage.is_some(), "{at}");
        if let Some((input, output, cost)) = usage {
            assert_eq!((report.usage.input, report.usage.output), (*input, *output), "{at}");
            match (r.kind, report.usage.cost) {
                (AgentKind::Claude, Some(told)) => assert!(close(told, *cost), "{at}"),
                (_, told) => assert_eq!(told, None, "{at}"),
            }
        }
        // Codex asks by a tool in the one that is not "text", and goes on without an answer.
        let asks = *name == "ask-question-text" || (*name == "ask-question" && r.kind == AgentKind::Claude);
        assert_eq!(report.asks.as_deref(), asks.then_some("Which colour should the button be, red or blue?"), "{at}");
    }
}

#[test]
fn an_instant_is_taken_where_it_is_told() {
    let report = named(AgentKind::Claude, "x-oauth-usage-limit").read(None);
    assert_eq!(report.verdict, Verdict::UsageLimit { until: Some(Wall(1_796_080_541_000)) });
    let report = named(AgentKind::Codex, "usage-limit").read(None);
    assert_eq!(report.verdict, Verdict::UsageLimit { until: None });
}

#[test]
fn sessions_that_go_on_are_counted_once() {
    let first = named(AgentKind::Claude, "x-resume1").read(None);
    let second = named(AgentKind::Claude, "x-resume2").read(first.session_total);
    assert_eq!((second.usage.input, second.usage.output), (44_722, 34));
    assert!(close(second.usage.cost.expect("cost"), 0.134_676), "{second:?}");
    let total = second.session_total.expect("total");
    assert_eq!((total.input, total.output), (88_968, 68));
    assert!(close(total.cost.expect("cost"), 0.267_924));

    let first = named(AgentKind::Codex, "x-resume1").read(None);
    let second = named(AgentKind::Codex, "x-resume2").read(first.session_total);
    let third = named(AgentKind::Codex, "x-resume-last").read(second.session_total);
    assert_eq!((second.usage.input, second.usage.output), (39_156 - 19_321, 27));
    assert_eq!((third.usage.input, third.usage.output), (49_247 - 39_156, 10));
    assert_eq!(third.session_total.expect("total").input, 49_247);

    // A run that told nothing leaves the totals as they were: the next difference covers it.
    for kind in [AgentKind::Claude, AgentKind::Codex] {
        let before = Usage { input: 5, output: 1, cost: Some(0.5), known: true, ..Usage::default() };
        let report = named(kind, "hang").read(Some(before));
        assert_eq!((report.session_total, report.usage.known), (Some(before), false));
    }
    // A session that failed before it was loaded tells a total of nothing.
    let before = Usage { input: 5, output: 1, cost: Some(0.5), known: true, ..Usage::default() };
    let report = named(AgentKind::Claude, "rate-limit-always").read(Some(before));
    assert_eq!((report.usage.cost, report.session_total.and_then(|t| t.cost)), (Some(0.0), Some(0.5)));
    assert_eq!(named(AgentKind::Claude, "x-resume-bad").read(Some(before)).session_total, None);
}

#[test]
fn what_the_logs_show() {
    let r = named(AgentKind::Claude, "write-file");
    let (events, _) = read(r.kind, &r.out, &r.err, Exit::Exited { code: 0 }, None, || usize::MAX);
    let lines: Vec<_> = events.iter().map(describe).collect();
    assert_eq!(
        lines,
        [
            "session d96df940-1aa5-4034-8e6a-8a44b2f8ae62 on claude-sonnet-4-5",
            "Writing a.txt.",
            "Write: /lab/run/m/repo-claude-write-file/a.txt",
            "Write: ok",
            "Wrote a.txt. Scripted run complete.",
            "used 44247 tokens in, 0 from cache, 33 out, $0.1332",
            "the agent ended its turn",
        ]
    );
    let r = named(AgentKind::Codex, "rate-limit-2");
    let (events, _) = read(r.kind, &r.out, &r.err, Exit::Exited { code: 0 }, None, || usize::MAX);
    let lines: Vec<_> = events.iter().map(describe).collect();
    assert!(lines[1].starts_with("retrying: Reconnecting... 1/5 (exceeded retry limit, last status: 429"), "{lines:?}");
    assert_eq!(lines[4], "edit: /lab/run/m/repo-codex-rate-limit-2/hello.txt");
    assert_eq!(lines[5], "edit: ok");
}

#[test]
fn chunks_do_not_change_what_is_read() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for r in all() {
        let exit = || exit(r.kind, r.row);
        let whole = read(r.kind, &r.out, &r.err, exit(), None, || usize::MAX);
        assert_eq!(read(r.kind, &r.out, &r.err, exit(), None, || 1), whole, "{} by bytes", r.row.0);
        for most in [3, 100, 5000] {
            let random = read(r.kind, &r.out, &r.err, exit(), None, || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                1 + (seed >> 33) as usize % most
            });
            assert_eq!(random, whole, "{} in chunks up to {most}", r.row.0);
        }
    }
}

#[test]
fn a_run_cut_at_any_line_is_never_finished() {
    for r in all() {
        let cuts = r.out.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1);
        for cut in std::iter::once(0).chain(cuts).filter(|cut| *cut < r.out.len()) {
            for exit in [Exit::Exited { code: 0 }, Exit::Exited { code: 143 }, Exit::Signalled { signal: 9 }] {
                let (_, report) = read(r.kind, &r.out[..cut], &[], exit, None, || usize::MAX);
                assert_ne!(report.verdict, Verdict::Finished, "{} cut at {cut}", r.row.0);
                assert!(!report.usage.known && report.asks.is_none());
            }
            // The end of a line does not decide either: a file's last line may lack it.
            let (_, whole) = read(r.kind, r.out.trim_ascii_end(), &[], Exit::Exited { code: 0 }, None, || usize::MAX);
            assert_eq!(whole, read(r.kind, &r.out, &[], Exit::Exited { code: 0 }, None, || usize::MAX).1);
        }
    }
}

/// One way to damage a recording.
#[derive(Debug, Clone)]
enum Damage {
    Set(usize, u8),
    Insert(usize, Vec<u8>),
    Delete(usize, usize),
    Double(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        prop::sample::select(vec![
            "\n",
            "\r",
            "\0",
            "{",
            "}",
            "[[[[[[[[",
            "\"",
            "\\u",
            "\\ud83d",
            "null",
            "1e999",
            "-1",
            "18446744073709551616",
            "{\"type\":\"result\"",
            ",\"type\":7",
            "\u{202e}€",
            "999999999999999999999999",
        ])
        .prop_map(|s| s.as_bytes().to_vec()),
    ];
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, b)| Damage::Set(at, b)),
        (any::<usize>(), bytes).prop_map(|(at, b)| Damage::Insert(at, b)),
        (any::<usize>(), 0_usize..400).prop_map(|(at, n)| Damage::Delete(at, n)),
        (any::<usize>(), 0_usize..4000).prop_map(|(at, n)| Damage::Double(at, n)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let len = bytes.len();
    let place = |at: usize| at % (len + 1);
    match damage {
        Damage::Set(at, b) => {
            if let Some(byte) = bytes.get_mut(place(*at)) {
                *byte = *b;
            }
        }
        Damage::Insert(at, more) => drop(bytes.splice(place(*at)..place(*at), more.iter().copied())),
        Damage::Delete(at, n) => drop(bytes.drain(place(*at)..(place(*at) + n).min(len))),
        Damage::Double(at, n) => {
            let copy = bytes[place(*at)..(place(*at) + n).min(len)].to_vec();
            bytes.extend(copy);
        }
    }
}

fn exits() -> impl Strategy<Value = Exit> {
    prop_oneof![
        (0..256).prop_map(|code| Exit::Exited { code }),
        (1..32).prop_map(|signal| Exit::Signalled { signal }),
        Just(Exit::DeadMan),
        Just(Exit::Lost),
        Just(Exit::NeverStarted { why: "x".into() }),
        ".{0,3000}".prop_map(|error| Exit::SpawnFailed { error }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_runs_neither_panic_nor_grow(
        pick in any::<prop::sample::Index>(),
        as_kind in prop::sample::select(AgentKind::ALL.to_vec()),
        damages in prop::collection::vec(damage(), 0..12),
        exit in exits(),
        sizes in prop::collection::vec(1_usize..9000, 1..8),
        gap in any::<bool>(),
        before in prop::option::of((any::<u64>(), any::<u64>(), any::<u64>(), prop::option::of(0.0..1e12))),
    ) {
        let runs = all();
        let r = &runs[pick.index(runs.len())];
        let mut out = r.out.clone();
        damages.iter().for_each(|d| apply(&mut out, d));
        let mut err = r.err.clone();
        damages.iter().for_each(|d| apply(&mut err, d));
        let previous = before.map(|(input, output, cached, cost)| Usage { input, output, cached, cost, turns: u32::MAX, known: true });
        let mut reader = Reader::new(as_kind, &Profile::bare(as_kind), previous);
        let mut events = Vec::new();
        let mut sizes = sizes.iter().cycle();
        for (stream, bytes) in [(Stream::Out, &out), (Stream::Err, &err)] {
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let size = sizes.next().copied().unwrap_or(1).min(rest.len());
                reader.feed(stream, &rest[..size], &mut events);
                rest = &rest[size..];
                if gap {
                    reader.gap();
                }
            }
        }
        for event in &events {
            prop_assert!(describe(event).len() <= 4096);
            prop_assert!(!describe(event).contains('\n'));
        }
        let report = reader.finish(&end(exit));
        prop_assert!(report.text.len() <= 16 << 10);
        prop_assert!(report.verdict.message().is_none_or(|m| m.len() <= 2 << 10));
        prop_assert!(report.asks.is_none_or(|q| q.len() <= 2 << 10));
        prop_assert!(report.session.is_none_or(|s| s.len() <= 128));
        prop_assert!(report.usage.cost.is_none_or(|c| c.is_finite() && c >= 0.0));
    }
}
