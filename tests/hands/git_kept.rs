//! What must never be lost or left half done: objects that are delivered, what a rescue keeps beside the branch, and the
//! pool's own bookkeeping.

use super::git_code::*;
use overnight::domain::Oid;
use overnight::git::deliver::{Delivered, deliver};
use overnight::git::mirror::Mirror;
use overnight::git::pool::{Lease, PoolError};
use overnight::git::rescue::rescue;
use overnight::git::worktree::{integration, remove_integration};
use std::path::Path;

/// Where a loose object stands in a git dir.
fn loose(git_dir: &Path, object: &Oid) -> std::path::PathBuf {
    let name = object.as_str();
    git_dir.join("objects").join(&name[..2]).join(&name[2..])
}

// ---- delivering ----

#[tokio::test]
async fn a_commit_that_is_there_without_its_files_is_brought_whole() {
    let r = rig().await;
    let lease = r.take("t1").await;
    write(&lease.path().join("new"), "new");
    let tip = commit_all(lease.path(), "new");
    // What a killed fetch may leave: the commit, and nothing that it leads to.
    let there = loose(&r.code.join(".git"), &tip);
    std::fs::create_dir_all(there.parent().unwrap()).unwrap();
    std::fs::copy(loose(r.mirror.git_dir(), &tip), &there).unwrap();
    assert_eq!(deliver(&r.mirror, "overnight/main", &tip, None).await.unwrap(), Delivered::Done);
    assert_eq!(oid(&r.code, "overnight/main"), tip);
    assert_eq!(git(&r.code, &["show", "overnight/main:new"]), "new");
    r.fsck();
}

#[tokio::test]
async fn tips_of_a_repository_with_another_ref_store_are_read_too() {
    let r = rig().await;
    let other = r.top.join("reftable");
    if !try_git(&r.top, &["init", "-q", "-b", "main", "--ref-format=reftable", "reftable"]).0 {
        return;
    }
    write(&other.join("a"), "a");
    let tip = commit_all(&other, "a");
    let mirror = Mirror::create(&other, &r.top.join("data/other.git")).await.unwrap();
    assert_eq!(mirror.user_tip("refs/heads/main").await.unwrap(), Some(tip.clone()));
    assert_eq!(mirror.user_tip("HEAD").await.unwrap(), Some(tip));
    assert_eq!(mirror.user_tip("refs/heads/none").await.unwrap(), None);
    std::fs::remove_dir_all(&other).unwrap();
    assert!(mirror.user_tip("refs/heads/main").await.is_err(), "not to be read is not absent");
}

// ---- what git shows ----

#[tokio::test]
async fn replaced_objects_are_seen_by_nobody() {
    let r = rig().await;
    let lease = r.take("t1").await;
    write(&lease.path().join("a.txt"), "harmless\n");
    let harmless = commit_all(lease.path(), "harmless");
    write(&lease.path().join("a.txt"), "harmful\n");
    let harmful = commit_all(lease.path(), "harmful");
    git(r.mirror.git_dir(), &["update-ref", &format!("refs/replace/{harmful}"), harmless.as_str()]);
    let odb = r.mirror.odb().unwrap();
    assert_eq!(odb.blob_at(&harmful, b"a.txt").unwrap().unwrap(), b"harmful\n");
    let got = take_up(&lease).await.unwrap();
    assert_eq!((got.tip, got.tree), (harmful.clone(), odb.info(&harmful).unwrap().tree));
    // Nor by an agent's own git.
    assert_eq!(git(lease.path(), &["show", "HEAD:a.txt"]), "harmful");
}

// ---- rescue ----

/// A worktree whose submodule `lib` is filled, with its remote.
async fn with_submodule(r: &Rig, path: &str) -> Lease {
    let remote = r.top.join("lib");
    std::fs::create_dir_all(&remote).unwrap();
    git(&remote, &["init", "-q", "-b", "main"]);
    write(&remote.join("f"), "f");
    commit_all(&remote, "f");
    let lease = r.take(path).await;
    git(lease.path(), &["submodule", "--quiet", "add", "--", remote.to_str().unwrap(), "lib"]);
    commit_all(lease.path(), "with lib");
    git(&lease.path().join("lib"), &["checkout", "-q", "--detach"]);
    lease
}

#[tokio::test]
async fn commits_on_a_detached_head_of_a_submodule_are_kept() {
    let r = rig().await;
    let lease = with_submodule(&r, "t1").await;
    let lib = lease.path().join("lib");
    write(&lib.join("f"), "left behind");
    let behind = commit_all(&lib, "behind");
    git(&lib, &["reset", "-q", "--hard", "HEAD~1"]);
    write(&lib.join("f"), "at its head");
    let head = commit_all(&lib, "head");
    let kept = r.done(lease, "t1").await;
    for commit in [behind, head] {
        assert!(kept.refs().iter().any(|(_, c)| *c == commit), "{:?}", kept.refs());
    }
    assert!(r.bytes_in_refs("left behind") && r.bytes_in_refs("at its head"));
    // A later life of the task counts its attempts from 1 again, and loses nothing of this one.
    let again = r.take("t1").await;
    git(again.path(), &["init", "-q", "-b", "main", "lib"]);
    write(&again.path().join("lib/f"), "of another life");
    commit_all(&again.path().join("lib"), "f");
    let more = r.done(again, "t1").await;
    assert!(
        more.refs().iter().any(|(n, _)| n == "refs/overnight/rescue/t1/1-nested-1.2/heads/main"),
        "{:?}",
        more.refs()
    );
    assert!(r.bytes_in_refs("left behind") && r.bytes_in_refs("of another life"));
    assert!(!git(r.mirror.git_dir(), &["for-each-ref"]).contains("rescue-draft"));
    r.fsck();
}

#[tokio::test]
async fn a_submodule_that_git_cannot_read_is_kept_as_it_is() {
    let r = rig().await;
    let lease = with_submodule(&r, "t1").await;
    let lib = lease.path().join("lib");
    write(&lib.join("f"), "precious");
    let tip = commit_all(&lib, "precious");
    let modules = lease.git_dir().join("modules/lib");
    // Half of its last commit is gone.
    std::fs::remove_file(loose(&modules, &oid(&lib, "HEAD^{tree}"))).unwrap();
    let kept = r.done(lease, "t1").await;
    assert_eq!(kept.set_aside().len(), 1);
    assert!(loose(&kept.set_aside()[0], &tip).exists());
}

#[tokio::test]
async fn a_commit_of_a_submodule_that_no_remote_has_is_named() {
    let r = rig().await;
    let lease = with_submodule(&r, "t1").await;
    assert!(take_up(&lease).await.unwrap().stray_gitlinks.is_empty());
    let lib = lease.path().join("lib");
    write(&lib.join("f"), "only here");
    commit_all(&lib, "only here");
    commit_all(lease.path(), "raise lib");
    assert_eq!(take_up(&lease).await.unwrap().stray_gitlinks, [b"lib".to_vec()]);
    git(&lib, &["push", "-q", "origin", "HEAD:refs/heads/raised"]);
    assert!(take_up(&lease).await.unwrap().stray_gitlinks.is_empty());
}

#[tokio::test]
async fn large_files_of_two_lives_of_a_task_are_both_kept() {
    let r = rig().await;
    let size = overnight::git::rescue::HUGE as usize + 1;
    let mut places = Vec::new();
    for byte in [b'1', b'2', b'2'] {
        let lease = r.take("t1").await;
        std::fs::write(lease.path().join("big"), vec![byte; size]).unwrap();
        places.extend(r.done(lease, "t1").await.set_aside().to_vec());
    }
    let first = |path: &Path| std::fs::read(path).unwrap()[0];
    assert_eq!(places.iter().map(|p| first(p)).collect::<Vec<_>>(), b"122");
    assert!(places[0] != places[1] && places[1] == places[2]);
    let drafts = r.top.join("data/mirror.git.kept/.keeping");
    assert_eq!(std::fs::read_dir(drafts).unwrap().count(), 0);
}

// ---- the pool ----

#[tokio::test]
async fn a_lending_that_cannot_be_noted_leaves_nothing_lent() {
    let r = rig().await;
    let lease = r.take("t1").await;
    let note = r.top.join("data/ lead trail /wt.notes").join(lease.number().to_string());
    r.done(lease, "t1").await;
    // No file can come to stand there, as on a full disk.
    std::fs::remove_file(&note).unwrap();
    std::fs::create_dir_all(note.join("x")).unwrap();
    assert!(matches!(r.pool.take(&task("t2").branch(), &r.base).await, Err(PoolError::Files { .. })));
    std::fs::remove_dir_all(&note).unwrap();
    let lease = r.take("t2").await;
    assert_eq!(lease.number(), 1);
}

#[tokio::test]
async fn a_worktree_for_checks_is_removed_with_its_registration_and_nothing_else_is() {
    let r = rig().await;
    let place = r.top.join("data/bg/t1.0");
    integration(&r.mirror, &place, &r.base).await.unwrap();
    let other = place.with_file_name("not ours");
    write(&other.join("f"), "f");
    assert!(remove_integration(&r.mirror, &place).unwrap());
    assert!(!place.exists());
    assert_eq!(git(r.mirror.git_dir(), &["worktree", "list"]).lines().count(), 1);
    for none in [&place, &other, &r.top.join("data/none/t1.0")] {
        assert!(!remove_integration(&r.mirror, none).unwrap());
    }
    assert!(other.join("f").exists());
    integration(&r.mirror, &place, &r.base).await.unwrap();
}

/// A project may keep its dependencies in git: what was changed in them is work like any other.
#[tokio::test]
async fn changes_of_tracked_dependencies_are_kept() {
    let r = rig().await;
    write(&r.code.join("node_modules/lib/index.js"), "one\n");
    git(&r.code, &["add", "-f", "node_modules"]);
    let base = commit_all(&r.code, "vendored");
    r.mirror.refresh().await.unwrap();
    let lease = r.pool.take(&task("t1").branch(), &base).await.unwrap();
    write(&lease.path().join("node_modules/lib/index.js"), "patched\n");
    write(&lease.path().join("node_modules/other/index.js"), "installed\n");
    let kept = rescue(&lease, &task("t1"), 1, None).await.unwrap();
    let commit = kept.refs().last().unwrap().1.clone();
    let show = |path: &str| try_git(r.mirror.git_dir(), &["show", &format!("{commit}:{path}")]);
    assert_eq!(show("node_modules/lib/index.js").1.trim(), "patched");
    assert!(!show("node_modules/other/index.js").0);
}
