//! The state repo on one machine: commits, reading, publishing, claims and absorbing, against real git.

use overnight::domain::lease::{Claim, Held, claim_ref};
use overnight::domain::{Epoch, Oid, TaskPath, Wall};
use overnight::git::claim_ref::{ClaimAnswer, ClaimMove, MoveAnswer};
use overnight::git::state_absorb::Peer;
use overnight::git::state_commit::{Change, Identity};
use overnight::git::state_publish::{Batch, Op, OpResult, PublishOutcome, Published};
use overnight::git::state_repo::{Content, FileKind, StateError, StateRepo, Tries, init_folder};
use std::path::Path;
use std::time::Duration;

pub(crate) fn by() -> Identity {
    Identity { name: "Overnight".into(), mail: "overnight@localhost".into(), at: Wall(1_790_000_000_000) }
}

pub(crate) fn path(text: &str) -> TaskPath {
    TaskPath::parse(text).unwrap()
}

pub(crate) fn claim_of(task: &str, nonce: &str, daemon: &str) -> Claim {
    Claim {
        version: 1,
        task: path(task),
        epoch: Epoch(1),
        nonce: nonce.into(),
        owner: "host/daemon".into(),
        daemon: daemon.into(),
        expires: Some(Wall(1_790_000_900_000)),
    }
}

/// Runs git as a person would, with nothing of ours in the way.
pub(crate) fn git(at: &Path, args: &[&str]) -> String {
    let out = std::process::Command::new("git")
        .current_dir(at)
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs([("GIT_AUTHOR_NAME", "Pat"), ("GIT_AUTHOR_EMAIL", "pat@example.org")])
        .envs([("GIT_COMMITTER_NAME", "Pat"), ("GIT_COMMITTER_EMAIL", "pat@example.org")])
        .output()
        .unwrap();
    assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
}

pub(crate) fn quick() -> Tries {
    Tries { most: 60, pause: Duration::from_millis(5), cap: Duration::from_millis(300), limit: Duration::from_secs(20) }
}

pub(crate) fn published(outcome: PublishOutcome) -> Published {
    match outcome {
        PublishOutcome::Published(published) => published,
        other => panic!("not published: {other:?}"),
    }
}

pub(crate) fn won(answer: &ClaimAnswer) -> Held {
    match answer {
        ClaimAnswer::Won(held) => held.clone(),
        other => panic!("not won: {other:?}"),
    }
}

pub(crate) fn text(state: &StateRepo, at: &str) -> Option<String> {
    let tip = state.tip().unwrap()?;
    match state.read_file(&tip, at.as_bytes()).unwrap()? {
        Content::Bytes(bytes) => Some(String::from_utf8(bytes).unwrap()),
        other => panic!("{at}: {other:?}"),
    }
}

/// Publishes changes that stand under no claim.
pub(crate) async fn put(state: &StateRepo, changes: Vec<Change>) -> Published {
    let build = |_: Option<&Oid>, _: &[usize]| Ok(Batch { changes: changes.clone(), message: "put\n".into() });
    published(state.publish(&[Op::default()], &by(), Default::default(), build).await.unwrap())
}

async fn local(dir: &Path) -> StateRepo {
    let state = StateRepo::create(&dir.join("state.git"), None).await.unwrap();
    put(&state, vec![Change::write("tasks/README.md", "# Tasks\n"), Change::write("tasks/a/README.md", "a\n")]).await;
    state
}

#[tokio::test]
async fn changes_become_trees_that_git_agrees_with() {
    let dir = tempfile::tempdir().unwrap();
    let state = local(dir.path()).await;
    let first = state.tip().unwrap().unwrap();
    let changes = [
        Change::write("tasks/a/state.json", "{}"),
        Change::append("tasks/a/log.jsonl", "1\n"),
        Change::append("tasks/a/log.jsonl", "2\n"),
        Change::write("tasks/a-b/README.md", "x"),
        Change::write("tasks/a.b", "a file that sorts between"),
        Change::write("tasks/a/b/README.md", "child"),
        Change::write("tasks/gone/README.md", "x"),
        Change::delete("tasks/gone/README.md"),
        Change::delete("nothing/here"),
    ];
    let second = state.commit(Some(&first), &changes, "second\n", &by()).unwrap();
    assert_eq!(state.commit(Some(&second), &changes[..1], "same\n", &by()).unwrap(), second, "unchanged is no commit");
    assert_eq!(state.commit(Some(&first), &changes, "second\n", &by()).unwrap(), second, "equal input, equal commit");
    let third = state.commit(
        Some(&second),
        &[
            Change::append("tasks/a/log.jsonl", "3\n"),
            Change::move_to("tasks/a", "archive/2026-11/30/a"),
            Change::write("tasks/a/README.md", "anew"),
        ],
        "third\n",
        &by(),
    );
    let third = third.unwrap();
    let files = git(state.path(), &["ls-tree", "-r", "--name-only", third.as_str()]);
    assert_eq!(
        files.lines().collect::<Vec<_>>(),
        [
            "archive/2026-11/30/a/README.md",
            "archive/2026-11/30/a/b/README.md",
            "archive/2026-11/30/a/log.jsonl",
            "archive/2026-11/30/a/state.json",
            "tasks/README.md",
            "tasks/a-b/README.md",
            "tasks/a.b",
            "tasks/a/README.md",
        ]
    );
    let log = format!("{third}:archive/2026-11/30/a/log.jsonl");
    assert_eq!(git(state.path(), &["cat-file", "-p", &log]), "1\n2\n3");
    git(state.path(), &["update-ref", "refs/heads/check", third.as_str()]);
    git(state.path(), &["fsck", "--strict", "--no-dangling"]);
    let changed = state.changed_since(Some(&first), &second).unwrap();
    let differs = git(state.path(), &["diff-tree", "-r", "--name-only", first.as_str(), second.as_str()]);
    assert_eq!(changed.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect::<Vec<_>>().join("\n"), differs);
    assert_eq!(state.changed_since(None, &third).unwrap().len(), 8);
    let relation = state.relation(&first, &third).unwrap();
    assert_eq!((relation.ahead, relation.behind), (0, 2));
}

#[tokio::test]
async fn nothing_is_written_over_a_thing_of_another_kind_or_outside() {
    let dir = tempfile::tempdir().unwrap();
    let state = local(dir.path()).await;
    let tip = state.tip().unwrap().unwrap();
    let refused = |change: Change| state.commit(Some(&tip), &[change], "no\n", &by()).unwrap_err();
    for bad in ["../x", "tasks//x", "", "tasks/.git/config", "tasks/.GIT/x", "/x", "tasks/./x"] {
        assert!(matches!(refused(Change::write(bad, "x")), StateError::BadPath(_)), "{bad:?} was taken");
    }
    for way in ["tasks/a/README.md/state.json", "tasks/a"] {
        assert!(matches!(refused(Change::write(way, "x")), StateError::InTheWay(_)), "{way:?} was taken");
    }
    assert!(matches!(refused(Change::move_to("tasks/README.md", "tasks/a/README.md")), StateError::InTheWay(_)));
}

#[tokio::test]
async fn task_files_are_read_with_their_limits() {
    let dir = tempfile::tempdir().unwrap();
    let state = local(dir.path()).await;
    put(
        &state,
        vec![
            Change::write("tasks/big/README.md", vec![b'x'; 1024 * 1024 + 1]),
            Change::write("tasks/a/state.json", "{}"),
            Change::write(b"tasks/\xff\xfe/README.md".to_vec(), "odd"),
            Change::write("tasks/a/notes.txt", "mine"),
        ],
    )
    .await;
    let tip = state.tip().unwrap().unwrap();
    let all: Vec<_> = state.read_tasks(&tip, |_| true).unwrap().map(Result::unwrap).collect();
    let kinds: Vec<_> = all.iter().map(|f| (f.folder.as_slice(), f.kind)).collect();
    assert_eq!(
        kinds,
        [
            (&b""[..], FileKind::Board),
            (b"a", FileKind::Wish),
            (b"a", FileKind::Other),
            (b"a", FileKind::State),
            (b"big", FileKind::Wish),
            (b"\xff\xfe", FileKind::Wish),
        ]
    );
    assert_eq!(all[4].content, Content::TooLarge(1024 * 1024 + 1));
    let wishes = state.read_tasks(&tip, |kind| kind == FileKind::Wish).unwrap();
    assert_eq!(wishes.count(), 3);
}

#[tokio::test]
async fn a_conclusion_is_recorded_only_under_the_claim() {
    let dir = tempfile::tempdir().unwrap();
    let state = local(dir.path()).await;
    let claims = [claim_of("a", "n1", "me"), claim_of("b", "n2", "me")];
    let answers = state.claim(&claims, &by(), |_| None).await.unwrap();
    let (a, b) = (won(&answers[0]), won(&answers[1]));
    let again = state.claim(&[claim_of("a", "n3", "other")], &by(), |_| None).await.unwrap();
    assert_eq!(again, [ClaimAnswer::Lost { by: Some(claims[0].clone()) }]);

    // Somebody takes b over; our conclusions of a and b are published together.
    let seen = state.list().await.unwrap().unwrap();
    let seen_b = seen.iter().find(|s| s.name == claim_ref(&path("b"))).unwrap();
    let thief = claim_of("b", "n4", "thief");
    assert!(matches!(state.take_over(seen_b, &thief, &by()).await.unwrap(), MoveAnswer::Moved(_)));
    assert_eq!(state.renew(&b, &claims[1], &by()).await.unwrap(), MoveAnswer::Lost { by: Some(thief.clone()) });
    let ops: Vec<_> = [("a", &a), ("b", &b)]
        .map(|(task, held)| Op {
            claim: Some(ClaimMove { task: path(task), old: Some(held.commit.clone()), to: None }),
        })
        .into();
    let build = |_: Option<&Oid>, live: &[usize]| {
        let changes = live.iter().map(|i| Change::write(format!("tasks/{}/state.json", ["a", "b"][*i]), "done"));
        Ok(Batch { changes: changes.collect(), message: "conclude\n".into() })
    };
    let done = published(state.publish(&ops, &by(), Default::default(), build).await.unwrap());
    assert_eq!(done.ops, [OpResult::Done(None), OpResult::ClaimLost { by: Some(thief) }]);
    assert_eq!(done.pushes, 1);
    assert_eq!(text(&state, "tasks/a/state.json").as_deref(), Some("done"));
    assert_eq!(text(&state, "tasks/b/state.json"), None);
    assert_eq!(state.ref_value(&claim_ref(&path("a"))).unwrap(), None);
    assert_eq!(state.list().await.unwrap().unwrap().len(), 1);
    state.maintain().await.unwrap();
    assert_eq!(state.list().await.unwrap().unwrap().len(), 1);
    put(&state, vec![Change::write("tasks/a/state.json", "after packing")]).await;
    assert_eq!(text(&state, "tasks/a/state.json").as_deref(), Some("after packing"));
}

#[tokio::test]
async fn a_void_claim_is_replaced_and_a_malformed_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let state = local(dir.path()).await;
    won(&state.claim(&[claim_of("a", "old", "gone")], &by(), |_| None).await.unwrap()[0]);
    let mine = [claim_of("a", "new", "me")];
    let lost = state.claim(&mine, &by(), |_| Some("another".into())).await.unwrap();
    assert!(matches!(lost[0], ClaimAnswer::Lost { .. }));
    won(&state.claim(&mine, &by(), |_| Some("old".into())).await.unwrap()[0]);

    let tree = git(state.path(), &["hash-object", "-t", "tree", "-w", "/dev/null"]);
    for (task, message) in [("b", "garbage"), ("c", ""), ("d", r#"{"version":9,"task":"d"}"#)] {
        let commit = git(state.path(), &["commit-tree", "-m", message, &tree]);
        let name = claim_ref(&path(task));
        git(state.path(), &["update-ref", &name, &commit]);
        let answer = state.claim(&[claim_of(task, "n", "me")], &by(), |_| None).await.unwrap();
        assert_eq!(answer, [ClaimAnswer::Lost { by: None }]);
    }
    let seen = state.list().await.unwrap().unwrap();
    assert_eq!(seen.iter().filter(|s| s.claim.is_err()).count(), 3);
    for bad in seen.iter().filter(|s| s.claim.is_err()) {
        assert_eq!(state.clear(&bad.name, &bad.commit).await.unwrap(), Ok(true));
    }
    assert_eq!(state.list().await.unwrap().unwrap().len(), 1);
}

/// A folder and our clone of it; the folder's tip is taken in.
pub(crate) async fn with_folder(dir: &Path) -> (std::path::PathBuf, StateRepo) {
    let folder = dir.join("folder");
    let files = [
        ("tasks/README.md", b"# Tasks\n".to_vec()),
        ("tasks/a/README.md", b"one\ntwo\nthree\nfour\nfive\n".to_vec()),
        ("tasks/b/README.md", b"b\n".to_vec()),
        ("tasks/c/README.md", b"c\n".to_vec()),
    ];
    init_folder(&folder, &files, "Pat", "pat@example.org").await.unwrap();
    let state = StateRepo::create(&dir.join("state.git"), None).await.unwrap().without_sync();
    take_in_folder(&state, &folder).await;
    (folder, state)
}

pub(crate) async fn take_in_folder(state: &StateRepo, folder: &Path) -> overnight::git::state_absorb::Absorbed {
    let theirs = state.fetch_folder(folder, "refs/heads/main").await.unwrap();
    state.take_in(&theirs, Peer::Folder, &by()).await.unwrap()
}

fn write(folder: &Path, at: &str, text: &str) {
    let at = folder.join(at);
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::fs::write(at, text).unwrap();
}

fn commit_all(folder: &Path) {
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-qm", "person", "--allow-empty"]);
}

#[tokio::test]
async fn what_both_changed_is_merged_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, state) = with_folder(dir.path()).await;
    put(
        &state,
        vec![
            Change::write("tasks/a/state.json", "machine"),
            Change::append("tasks/a/log.jsonl", "machine\n"),
            Change::write("tasks/a/README.md", "ONE\ntwo\nthree\nfour\nfive\n"),
            Change::write("tasks/b/README.md", "b by a verb\n"),
            Change::write("tasks/c/README.md", "c by a verb\n"),
            Change::write("tasks/d/README.md", "ours\n"),
            Change::write("tasks/dir/README.md", "a folder here\n"),
        ],
    )
    .await;
    write(&folder, "tasks/a/README.md", "one\ntwo\nthree\nfour\nFIVE\n");
    write(&folder, "tasks/b/README.md", "b by hand\n");
    write(&folder, "tasks/a/state.json", "forged");
    write(&folder, "tasks/README.md", "scribbled on the board");
    write(&folder, "tasks/dir", "a file there\n");
    write(&folder, "notes.md", "mine\n");
    std::fs::remove_file(folder.join("tasks/c/README.md")).unwrap();
    commit_all(&folder);
    let absorbed = take_in_folder(&state, &folder).await;
    let has = |at| text(&state, at);
    assert_eq!(has("tasks/a/README.md").as_deref(), Some("ONE\ntwo\nthree\nfour\nFIVE\n"));
    assert_eq!(has("tasks/a/state.json").as_deref(), Some("machine"));
    assert_eq!(has("tasks/README.md").as_deref(), Some("# Tasks\n"));
    assert_eq!(has("tasks/b/README.md").as_deref(), Some("b by hand\n"));
    assert_eq!(has("tasks/c/README.md").as_deref(), Some("c by a verb\n"), "a change outlives a removal");
    assert_eq!(has("tasks/dir/README.md").as_deref(), Some("a folder here\n"));
    assert_eq!(has("notes.md").as_deref(), Some("mine\n"));
    let kept: Vec<_> =
        absorbed.kept.iter().map(|k| text(&state, std::str::from_utf8(&k.beside).unwrap()).unwrap()).collect();
    assert_eq!(kept.len(), 2);
    assert!(kept.contains(&"b by a verb\n".into()) && kept.contains(&"a file there\n".into()));
    assert_eq!(absorbed.restored, [b"tasks/README.md".to_vec(), b"tasks/a/state.json".to_vec()]);
    // Both can move forward to it, and doing it again changes nothing.
    let theirs = Oid::parse(&git(&folder, &["rev-parse", "HEAD"])).unwrap();
    assert!(state.is_ancestor(&theirs, &absorbed.tip).unwrap());
    assert_eq!(take_in_folder(&state, &folder).await.tip, absorbed.tip);
    git(state.path(), &["fsck", "--strict", "--no-dangling"]);
}

#[tokio::test]
async fn a_commit_on_top_of_ours_is_taken_as_it_is_unless_it_touches_the_machines_files() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, state) = with_folder(dir.path()).await;
    write(&folder, "tasks/new/README.md", "new\n");
    commit_all(&folder);
    let head = git(&folder, &["rev-parse", "HEAD"]);
    assert_eq!(take_in_folder(&state, &folder).await.tip.as_str(), head, "a plain step forward");
    write(&folder, "tasks/new/state.json", "forged");
    commit_all(&folder);
    let absorbed = take_in_folder(&state, &folder).await;
    assert_eq!(text(&state, "tasks/new/state.json"), None);
    assert!(state.is_ancestor(&Oid::parse(&git(&folder, &["rev-parse", "HEAD"])).unwrap(), &absorbed.tip).unwrap());
    // A file gives way to a folder of the same name.
    write(&folder, "thing", "a file");
    commit_all(&folder);
    take_in_folder(&state, &folder).await;
    std::fs::remove_file(folder.join("thing")).unwrap();
    write(&folder, "thing/inside", "now a folder");
    commit_all(&folder);
    take_in_folder(&state, &folder).await;
    assert_eq!(text(&state, "thing/inside").as_deref(), Some("now a folder"));
}
