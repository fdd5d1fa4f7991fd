//! What a claim with its conclusion costs without a remote, and what a push costs: `cargo bench --bench hands state`.

use super::git_state::{by, claim_of, git, path, published, quick, won};
use overnight::domain::Oid;
use overnight::git::claim_ref::ClaimMove;
use overnight::git::folder::Folder;
use overnight::git::state_commit::Change;
use overnight::git::state_publish::{Batch, Op};
use overnight::git::state_repo::{FileKind, StateRepo};
use std::path::Path;
use std::time::Instant;

fn name(n: usize, sharded: bool) -> String {
    if sharded { format!("s{:02x}/t{n}", n % 256) } else { format!("t{n}") }
}

async fn filled(state: &StateRepo, tasks: usize, sharded: bool) {
    let files = (0..tasks).flat_map(|n| {
        let at = format!("tasks/{}", name(n, sharded));
        [
            Change::write(format!("{at}/README.md"), format!("---\nstatus: queued\n---\n# Task {n}\n")),
            Change::write(format!("{at}/state.json"), format!("{{\"n\":{n}}}")),
        ]
    });
    let changes: Vec<_> = files.collect();
    let build = |_: Option<&Oid>, _: &[usize]| Ok(Batch { changes: changes.clone(), message: "fill\n".into() });
    published(state.publish(&[Op::default()], &by(), Default::default(), build).await.unwrap());
    git(state.path(), &["repack", "-adfq"]);
}

/// Claims `batch` tasks and concludes them, `rounds` times; gives the milliseconds of both halves per round.
async fn rounds(state: &StateRepo, sharded: bool, batch: usize, rounds: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut claims, mut conclusions) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let names: Vec<_> = (0..batch).map(|n| name(round * batch + n, sharded)).collect();
        let wanted: Vec<_> = names.iter().map(|n| claim_of(n, &format!("{round}"), "me")).collect();
        let start = Instant::now();
        let held: Vec<_> = state.claim(&wanted, &by(), |_| None).await.unwrap().iter().map(won).collect();
        claims.push(start.elapsed().as_secs_f64() * 1e3);
        let ops: Vec<_> = names
            .iter()
            .zip(&held)
            .map(|(n, h)| Op { claim: Some(ClaimMove { task: path(n), old: Some(h.commit.clone()), to: None }) })
            .collect();
        let build = |_: Option<&Oid>, _: &[usize]| {
            let changes = names.iter().flat_map(|n| {
                [
                    Change::write(format!("tasks/{n}/state.json"), "{\"status\":\"merged\"}"),
                    Change::append(format!("tasks/{n}/log.jsonl"), "{\"to\":\"merged\"}\n"),
                ]
            });
            Ok(Batch { changes: changes.collect(), message: "conclude\n".into() })
        };
        let start = Instant::now();
        published(state.publish(&ops, &by(), Default::default(), build).await.unwrap());
        conclusions.push(start.elapsed().as_secs_f64() * 1e3);
    }
    (claims, conclusions)
}

fn show(what: &str, mut ms: Vec<f64>) {
    ms.sort_by(f64::total_cmp);
    println!("{what:58} p50 {:7.2} ms  min {:7.2} ms", ms[ms.len() / 2], ms[0]);
}

async fn local(dir: &Path, sharded: bool) {
    let kind = if sharded { "sharded" } else { "flat" };
    let state = StateRepo::create(&dir.join(kind), None).await.unwrap().without_sync();
    filled(&state, 10_000, sharded).await;
    let (claims, conclusions) = rounds(&state, sharded, 1, 40).await;
    show(&format!("10k {kind}, no sync: claim"), claims);
    show(&format!("10k {kind}, no sync: conclude"), conclusions);
    let (_, conclusions) = rounds(&state, sharded, 10, 20).await;
    show(&format!("10k {kind}, no sync: conclude 10 in one commit"), conclusions);
    let state = StateRepo::open(&dir.join(kind)).unwrap();
    let (claims, conclusions) = rounds(&state, sharded, 1, 20).await;
    show(&format!("10k {kind}, synced: claim"), claims);
    show(&format!("10k {kind}, synced: conclude"), conclusions);
    let tip = state.tip().unwrap().unwrap();
    let start = Instant::now();
    assert_eq!(state.read_tasks(&tip, |kind| kind == FileKind::Wish).unwrap().count(), 10_000);
    show(&format!("10k {kind}: read every wish"), vec![start.elapsed().as_secs_f64() * 1e3]);
    let parent = Oid::parse(&git(state.path(), &["rev-parse", "main~1"])).unwrap();
    let diff = |_| {
        let start = Instant::now();
        assert!(!state.changed_since(Some(&parent), &tip).unwrap().is_empty());
        start.elapsed().as_secs_f64() * 1e3
    };
    show(&format!("10k {kind}: what changed"), (0..20).map(diff).collect());
    let folder = dir.join(format!("{kind}-folder"));
    git(dir, &["clone", "-q", kind, folder.to_str().unwrap()]);
    let folder = Folder::open(&folder, "refs/heads/main", &dir.join("record")).unwrap();
    let mut scans = Vec::new();
    let mut updates = Vec::new();
    for _ in 0..5 {
        rounds(&state, sharded, 1, 1).await;
        let start = Instant::now();
        folder.bring_up(&state, &state.tip().unwrap().unwrap(), &[]).await.unwrap();
        updates.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        assert!(folder.scan_wishes(None).unwrap().edits.is_empty());
        scans.push(start.elapsed().as_secs_f64() * 1e3);
    }
    show(&format!("10k {kind}: bring the folder up"), updates);
    show(&format!("10k {kind}: scan the whole folder"), scans);
}

pub(crate) async fn figures() {
    let dir = tempfile::tempdir().unwrap();
    for sharded in [true, false] {
        local(dir.path(), sharded).await;
        let kind = if sharded { "sharded" } else { "flat" };
        let remote = format!("{kind}-remote.git");
        git(dir.path(), &["init", "-q", "--bare", "-b", "main", &remote]);
        let remote = dir.path().join(&remote);
        let at = dir.path().join(format!("{kind}-there"));
        let there =
            StateRepo::create(&at, Some(remote.to_str().unwrap())).await.unwrap().with_tries(quick()).without_sync();
        filled(&there, 10_000, sharded).await;
        git(&remote, &["repack", "-adfq"]);
        let (claims, conclusions) = rounds(&there, sharded, 1, 15).await;
        show(&format!("10k {kind}, path remote: claim push"), claims);
        show(&format!("10k {kind}, path remote: conclude push"), conclusions);
        let (claims, conclusions) = rounds(&there, sharded, 8, 8).await;
        show(&format!("10k {kind}, path remote: claim 8 in one push"), claims);
        show(&format!("10k {kind}, path remote: conclude 8 in one push"), conclusions);
        let mut fetches = Vec::new();
        for _ in 0..10 {
            let start = Instant::now();
            there.fetch().await.unwrap().unwrap();
            fetches.push(start.elapsed().as_secs_f64() * 1e3);
        }
        show(&format!("10k {kind}, path remote: fetch, nothing new"), fetches);
    }
}
