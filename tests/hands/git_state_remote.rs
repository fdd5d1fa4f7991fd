//! The state repo with a remote authority: races, hooks that sleep, refuse and kill, and remotes that are not there.

use super::git_state::{by, claim_of, git, path, published, put, quick, text, won};
use overnight::domain::Oid;
use overnight::domain::lease::claim_ref;
use overnight::git::claim_ref::{ClaimAnswer, ClaimMove, MoveAnswer};
use overnight::git::state_commit::Change;
use overnight::git::state_publish::{Batch, Op, OpResult, PublishOutcome};
use overnight::git::state_remote::TroubleKind;
use overnight::git::state_repo::{StateRepo, Tries};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn bare(dir: &Path) -> PathBuf {
    let at = dir.join("remote.git");
    git(dir, &["init", "-q", "--bare", "-b", "main", "remote.git"]);
    at
}

fn hook(remote: &Path, name: &str, script: &str) {
    let at = remote.join("hooks").join(name);
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::fs::write(&at, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755)).unwrap();
}

async fn daemon(dir: &Path, name: &str, remote: &str) -> StateRepo {
    StateRepo::create(&dir.join(name), Some(remote)).await.unwrap().with_tries(quick()).without_sync()
}

async fn race(tasks: impl Fn(usize) -> String, slow: bool) -> (Vec<ClaimAnswer>, usize, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let remote = bare(dir.path());
    let log = dir.path().join("pushes");
    let sleep = if slow { "sleep 0.$(od -An -N1 -tu1 /dev/urandom | tr -d ' ')" } else { "" };
    hook(&remote, "pre-receive", &format!("echo x >> {}\n{sleep}\nexit 0", log.display()));
    let mut running = Vec::new();
    for i in 0..8 {
        let state = daemon(dir.path(), &format!("d{i}"), remote.to_str().unwrap()).await;
        // All the same but for the nonce, in the same second.
        let claim = claim_of(&tasks(i), &format!("nonce {i}"), "daemon");
        running.push(tokio::spawn(async move { state.claim(&[claim], &by(), |_| None).await.unwrap().remove(0) }));
    }
    let mut answers = Vec::new();
    for one in running {
        answers.push(one.await.unwrap());
    }
    let pushes = std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    (answers, pushes, dir)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_claim_one_task_and_one_wins() {
    for slow in [false, true] {
        let (answers, pushes, dir) = race(|_| "the/task".into(), slow).await;
        let winners: Vec<_> = answers.iter().filter(|a| matches!(a, ClaimAnswer::Won(_))).collect();
        assert_eq!(winners.len(), 1, "{answers:?}");
        let at = git(&dir.path().join("remote.git"), &["rev-parse", &claim_ref(&path("the/task"))]);
        let held = won(winners[0]);
        assert_eq!(held.commit.as_str(), at);
        for lost in answers.iter().filter(|a| !matches!(a, ClaimAnswer::Won(_))) {
            assert!(matches!(lost, ClaimAnswer::Lost { by: Some(by) } if by.nonce == held.nonce), "{lost:?}");
        }
        assert!(pushes <= 8, "{pushes} pushes reached the remote");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_claim_different_tasks_and_all_win_with_one_push_each() {
    let (answers, pushes, _dir) = race(|i| format!("t{i}"), true).await;
    assert!(answers.iter().all(|a| matches!(a, ClaimAnswer::Won(_))), "{answers:?}");
    assert_eq!(pushes, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_take_an_expired_claim_over_and_one_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let remote = bare(dir.path());
    let owner = daemon(dir.path(), "owner", remote.to_str().unwrap()).await;
    let held = won(&owner.claim(&[claim_of("x", "0", "owner")], &by(), |_| None).await.unwrap()[0]);
    let seen = owner.list().await.unwrap().unwrap().remove(0);
    let mut running = Vec::new();
    for i in 0..8 {
        let state = daemon(dir.path(), &format!("d{i}"), remote.to_str().unwrap()).await;
        let seen = seen.clone();
        running.push(tokio::spawn(async move {
            state.take_over(&seen, &claim_of("x", &format!("s{i}"), &format!("d{i}")), &by()).await.unwrap()
        }));
    }
    // The owner renews meanwhile: it or one of them has it.
    let renewed = owner.renew(&held, &claim_of("x", "0", "owner"), &by()).await.unwrap();
    let mut winners = u32::from(matches!(renewed, MoveAnswer::Moved(_)));
    for one in running {
        winners += u32::from(matches!(one.await.unwrap(), MoveAnswer::Moved(_)));
    }
    assert_eq!(winners, 1);
    assert_eq!(git(&remote, &["for-each-ref", "refs/overnight/claims"]).lines().count(), 1);
}

#[tokio::test]
async fn a_lost_claim_costs_the_rest_of_the_batch_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let remote = bare(dir.path());
    let a = daemon(dir.path(), "a", remote.to_str().unwrap()).await;
    let b = daemon(dir.path(), "b", remote.to_str().unwrap()).await;
    won(&a.claim(&[claim_of("x", "1", "a")], &by(), |_| None).await.unwrap()[0]);
    let batch = [claim_of("w", "2", "b"), claim_of("x", "3", "b"), claim_of("y", "4", "b")];
    let answers = b.claim(&batch, &by(), |_| None).await.unwrap();
    won(&answers[0]);
    assert_eq!(answers[1], ClaimAnswer::Lost { by: Some(claim_of("x", "1", "a")) });
    let y = won(&answers[2]);
    // The same claim once more is our own, not another's.
    won(&b.claim(&batch[2..], &by(), |_| None).await.unwrap()[0]);
    // Renewed, taken over, released: each only from what it was.
    let MoveAnswer::Moved(y2) = b.renew(&y, &batch[2], &by()).await.unwrap() else { panic!("not renewed") };
    assert_ne!(y.commit, y2.commit, "a ref that does not change is not sent");
    let seen = a.list().await.unwrap().unwrap();
    let of_y = seen.iter().find(|s| s.commit == y2.commit).unwrap();
    let thief = claim_of("y", "5", "a");
    assert!(matches!(a.take_over(of_y, &thief, &by()).await.unwrap(), MoveAnswer::Moved(_)));
    assert_eq!(b.renew(&y2, &batch[2], &by()).await.unwrap(), MoveAnswer::Lost { by: Some(thief.clone()) });
    assert_eq!(b.release(&path("y"), &y2.commit, &by()).await.unwrap(), MoveAnswer::Lost { by: Some(thief) });
    // A void claim is replaced at the remote too.
    won(&b.claim(&[claim_of("x", "6", "b")], &by(), |_| Some("1".into())).await.unwrap()[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_publish_at_once_and_nothing_is_lost_or_forced() {
    let dir = tempfile::tempdir().unwrap();
    let remote = bare(dir.path());
    hook(&remote, "pre-receive", "sleep 0.0$(od -An -N1 -tu1 /dev/urandom | tr -d ' ')\nexit 0");
    git(&remote, &["config", "receive.denyNonFastForwards", "true"]);
    let first = daemon(dir.path(), "first", remote.to_str().unwrap()).await;
    put(&first, vec![Change::write("tasks/README.md", "0")]).await;
    let mut running = Vec::new();
    for d in 0..4 {
        let state = daemon(dir.path(), &format!("d{d}"), remote.to_str().unwrap()).await;
        running.push(tokio::spawn(async move {
            let mut pushes = 0;
            for n in 0..5 {
                let claim = claim_of(&format!("t{d}-{n}"), &format!("{d}.{n}"), &format!("d{d}"));
                let held = won(&state.claim(std::slice::from_ref(&claim), &by(), |_| None).await.unwrap()[0]);
                let op = Op { claim: Some(ClaimMove { task: claim.task.clone(), old: Some(held.commit), to: None }) };
                // Every commit rewrites the board from the tip: an operation, not a text.
                let build = |tip: Option<&Oid>, _: &[usize]| {
                    let board = tip.map(|tip| state.read_file(tip, b"tasks/README.md")).transpose()?.flatten();
                    let n = match board {
                        Some(overnight::git::state_repo::Content::Bytes(b)) => {
                            String::from_utf8_lossy(&b).parse::<u32>().unwrap()
                        }
                        _ => 0,
                    };
                    let changes = vec![
                        Change::write("tasks/README.md", (n + 1).to_string()),
                        Change::write(format!("tasks/{}/state.json", claim.task), "done"),
                    ];
                    Ok(Batch { changes, message: format!("{}\n", claim.task) })
                };
                let done = published(state.publish(&[op], &by(), Default::default(), build).await.unwrap());
                assert_eq!(done.ops, [OpResult::Done(None)]);
                pushes += done.pushes;
            }
            pushes
        }));
    }
    let mut pushes = 0;
    for one in running {
        pushes += one.await.unwrap();
    }
    first.fetch().await.unwrap().unwrap();
    assert_eq!(git(&remote, &["cat-file", "-p", "main:tasks/README.md"]), "20");
    assert_eq!(git(&remote, &["rev-list", "--count", "main"]), "21", "one commit for each, none twice");
    assert_eq!(git(&remote, &["for-each-ref", "refs/overnight/claims"]), "");
    assert!(pushes < 150, "{pushes} pushes for 20 conclusions");
}

#[tokio::test]
async fn one_lost_claim_drops_its_own_op_and_the_rest_is_published() {
    let dir = tempfile::tempdir().unwrap();
    let remote = bare(dir.path());
    let a = daemon(dir.path(), "a", remote.to_str().unwrap()).await;
    let b = daemon(dir.path(), "b", remote.to_str().unwrap()).await;
    put(&a, vec![Change::write("tasks/README.md", "0")]).await;
    let batch = [claim_of("x", "1", "a"), claim_of("y", "2", "a")];
    let held: Vec<_> = a.claim(&batch, &by(), |_| None).await.unwrap().iter().map(won).collect();
    // b takes x over (a slept too long) and concludes it; a wakes up and concludes both.
    let seen = b.list().await.unwrap().unwrap();
    let x = seen.iter().find(|s| s.commit == held[0].commit).unwrap();
    let thief = claim_of("x", "3", "b");
    let MoveAnswer::Moved(_) = b.take_over(x, &thief, &by()).await.unwrap() else { panic!("not taken over") };
    let ops: Vec<_> = (0..2)
        .map(|i| {
            let renewed = (i == 1).then(|| batch[1].clone());
            Op {
                claim: Some(ClaimMove { task: batch[i].task.clone(), old: Some(held[i].commit.clone()), to: renewed }),
            }
        })
        .collect();
    let build = |_: Option<&Oid>, live: &[usize]| {
        let changes = live.iter().map(|i| Change::write(format!("tasks/{}/state.json", batch[*i].task), "a"));
        Ok(Batch { changes: changes.collect(), message: "both\n".into() })
    };
    let done = published(a.publish(&ops, &by(), Default::default(), build).await.unwrap());
    assert_eq!(done.ops[0], OpResult::ClaimLost { by: Some(thief) });
    let OpResult::Done(Some(y)) = &done.ops[1] else { panic!("{:?}", done.ops) };
    assert_eq!(git(&remote, &["rev-parse", &claim_ref(&path("y"))]), y.commit.as_str());
    assert_eq!(text(&a, "tasks/x/state.json"), None);
    assert_eq!(text(&a, "tasks/y/state.json").as_deref(), Some("a"));
    assert_eq!(git(&remote, &["rev-parse", "main"]), done.tip.as_str());
}

#[tokio::test]
async fn a_refusing_hook_is_a_refusal_with_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let remote = bare(dir.path());
    hook(&remote, "update", "echo 'Nur montags, bitte' >&2\nexit 1");
    let state = daemon(dir.path(), "a", remote.to_str().unwrap()).await;
    let answers = state.claim(&[claim_of("x", "1", "a")], &by(), |_| None).await.unwrap();
    let ClaimAnswer::Refused(trouble) = &answers[0] else { panic!("{answers:?}") };
    assert!(trouble.kind == TroubleKind::Refused && trouble.text.contains("Nur montags, bitte"));
    let build = |_: Option<&Oid>, _: &[usize]| {
        Ok(Batch { changes: vec![Change::write("tasks/README.md", "x")], message: "x\n".into() })
    };
    let outcome = state.publish(&[Op::default()], &by(), Default::default(), build).await.unwrap();
    let PublishOutcome::Failed(trouble) = outcome else { panic!("{outcome:?}") };
    assert!(trouble.kind == TroubleKind::Refused && trouble.text.contains("Nur montags, bitte"));
    assert_eq!(state.tip().unwrap(), None, "nothing of ours moved");
}

#[tokio::test]
async fn a_connection_killed_after_the_refs_moved_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let remote = bare(dir.path());
    // After the refs moved, before it is reported.
    hook(&remote, "reference-transaction", "[ $1 = committed ] && kill -9 $PPID\nexit 0");
    let state = daemon(dir.path(), "a", remote.to_str().unwrap()).await;
    let held = won(&state.claim(&[claim_of("x", "1", "a")], &by(), |_| None).await.unwrap()[0]);
    let op = Op { claim: Some(ClaimMove { task: path("x"), old: Some(held.commit), to: None }) };
    let build = |_: Option<&Oid>, _: &[usize]| {
        Ok(Batch { changes: vec![Change::append("tasks/x/log.jsonl", "once\n")], message: "x\n".into() })
    };
    let done = published(state.publish(&[op], &by(), Default::default(), build).await.unwrap());
    assert_eq!((done.ops, done.pushes), (vec![OpResult::Done(None)], 1));
    assert_eq!(text(&state, "tasks/x/log.jsonl").as_deref(), Some("once\n"));
    // Killed before: nothing moved, and it is tried again until that is plain.
    std::fs::remove_file(remote.join("hooks/reference-transaction")).unwrap();
    hook(&remote, "pre-receive", "kill -9 $PPID");
    let answers = state.claim(&[claim_of("y", "1", "a")], &by(), |_| None).await.unwrap();
    assert!(!matches!(answers[0], ClaimAnswer::Won(_) | ClaimAnswer::Lost { .. }), "{answers:?}");
}

#[tokio::test]
async fn an_unknown_outcome_is_settled_later() {
    let dir = tempfile::tempdir().unwrap();
    let remote = bare(dir.path());
    let state = daemon(dir.path(), "a", remote.to_str().unwrap()).await;
    put(&state, vec![Change::write("tasks/README.md", "0")]).await;
    // Accepts, and is gone before anybody can ask what became of it.
    let away = dir.path().join("away.git");
    let script = format!("[ $1 = committed ] || exit 0\nmv {} {}\nkill -9 $PPID", remote.display(), away.display());
    hook(&remote, "reference-transaction", &script);
    let build = |_: Option<&Oid>, _: &[usize]| {
        Ok(Batch { changes: vec![Change::append("tasks/x/log.jsonl", "once\n")], message: "x\n".into() })
    };
    let outcome = state.publish(&[Op::default()], &by(), Default::default(), build).await.unwrap();
    let PublishOutcome::Unknown(_, pending) = outcome else { panic!("{outcome:?}") };
    std::fs::remove_file(away.join("hooks/reference-transaction")).unwrap();
    assert!(matches!(state.settle(pending.clone(), &by()).await.unwrap(), PublishOutcome::Unknown(..)));
    std::fs::rename(&away, &remote).unwrap();
    assert!(matches!(state.settle(pending.clone(), &by()).await.unwrap(), PublishOutcome::Published(_)));
    assert_eq!(text(&state, "tasks/x/log.jsonl").as_deref(), Some("once\n"));
}

/// Serves HTTP on a port of its own: `answer` to each connection, or nothing for ever.
fn stub(answer: Option<&'static str>) -> (String, std::net::TcpListener) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x.git", listener.local_addr().unwrap());
    let mine = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for connection in mine.incoming() {
            let Ok(mut connection) = connection else { return };
            if let Some(answer) = answer {
                let _ = connection.read(&mut [0; 4096]);
                let _ = connection.write_all(answer.as_bytes());
            } else {
                open.push(connection);
            }
        }
    });
    (url, listener)
}

const CHALLENGE: &str = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\
                         Connection: close\r\n\r\n";

/// In an environment that wants to ask, and in German: the test below runs this one.
#[tokio::test]
async fn in_a_hostile_environment() {
    let Some(trap) = std::env::var_os("OVERNIGHT_TEST_TRAP") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (closed, listener) = stub(None);
    drop(listener);
    let closed = closed.replace("x.git", "closed.git");
    let (silent, _hold) = stub(None);
    let (login, _login) = stub(Some(CHALLENGE));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = format!("http://127.0.0.1:{free}/x.git");
    let limit = Duration::from_secs(2);
    let cases = [
        (nobody, TroubleKind::Unreachable),
        (closed, TroubleKind::TimedOut),
        (silent, TroubleKind::TimedOut),
        (login, TroubleKind::AuthNeeded),
    ];
    for (i, (url, kind)) in cases.into_iter().enumerate() {
        let state = daemon(dir.path(), &format!("d{i}"), &url).await;
        let state = state.with_tries(Tries { limit, ..quick() });
        let start = Instant::now();
        let trouble = state.fetch().await.unwrap().unwrap_err();
        assert!(start.elapsed() < limit + Duration::from_secs(15));
        assert_eq!(trouble.kind, kind, "{url}: {trouble:?}");
        if i == 2 {
            let answers = state.claim(&[claim_of("x", "1", "a")], &by(), |_| None).await.unwrap();
            assert!(matches!(&answers[0], ClaimAnswer::Unknown(t) if t.kind == kind), "{answers:?}");
        }
    }
    let alive = std::fs::read_dir("/proc").unwrap().flatten().filter(|p| {
        let words = std::fs::read(p.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        words.contains("remote-http") && words.contains("127.0.0.1")
    });
    assert_eq!(alive.count(), 0, "a helper of git's lives on");
    assert!(!Path::new(&trap).with_extension("called").exists(), "askpass was called");
    // A race is judged the same way in any language.
    let (answers, _, _dir) = race(|_| "t".into(), true).await;
    assert_eq!(answers.iter().filter(|a| matches!(a, ClaimAnswer::Won(_))).count(), 1, "{answers:?}");
}

#[test]
fn no_remote_can_make_us_wait_or_ask() {
    let dir = tempfile::tempdir().unwrap();
    let trap = dir.path().join("ask");
    std::fs::write(&trap, format!("#!/bin/sh\ntouch {}/ask.called\nsleep 600\n", dir.path().display())).unwrap();
    std::fs::set_permissions(&trap, std::fs::Permissions::from_mode(0o755)).unwrap();
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "git_state_remote::in_a_hostile_environment", "--nocapture"])
        .env("OVERNIGHT_TEST_TRAP", &trap)
        .envs([("GIT_ASKPASS", &trap), ("SSH_ASKPASS", &trap)])
        .envs([("SSH_ASKPASS_REQUIRE", "force"), ("DISPLAY", ":9"), ("LANG", "de_DE.UTF-8"), ("LC_ALL", "de_DE.UTF-8")])
        .envs([("LANGUAGE", "de"), ("GIT_DIR", "/nonexistent"), ("GIT_TRACE", "1")])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stdout).contains("1 passed"));
}
