//! What must never be lost or left half done: objects that are delivered, what a rescue keeps beside the branch, and the
//! pool's own bookkeeping.

use super::git_code::*;
use overnight::domain::Oid;
use overnight::git::deliver::{Delivered, deliver};
use overnight::git::mirror::Mirror;
use overnight::git::pool::PoolError;
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
