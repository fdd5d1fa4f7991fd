//! The code side of git against real repositories: mirror, pool, collecting, rescue, merging and landing, with agents
//! that do what agents have done at night.

use super::hermetic;
use overnight::domain::{Epoch, Oid, TaskPath};
use overnight::git::Who;
use overnight::git::collect::{CollectError, Collected, CommitRules, Strayed, Unfinished, Why, collect, foreign};
use overnight::git::deliver::{Delivered, deliver};
use overnight::git::land::{self, Busy, Landed, land, squashed};
use overnight::git::merge::{Candidate, Merged, Moved, move_branch, try_merge};
use overnight::git::mirror::{Mirror, MirrorError, Refreshed};
use overnight::git::odb::{ChangeKind, Odb};
use overnight::git::pool::{Found, Lease, Pool, PoolError};
use overnight::git::rescue::{Rescued, rescue, rescue_branch, rescues};
use overnight::git::worktree::{WorktreeError, integration};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Git as an agent or a person calls it.
pub(super) fn git(at: &Path, args: &[&str]) -> String {
    let (ok, text) = try_git(at, args);
    assert!(ok, "git {args:?} in {}: {text}", at.display());
    text
}

pub(super) fn try_git(at: &Path, args: &[&str]) -> (bool, String) {
    let mut c = Command::new("git");
    c.arg("-C").arg(at).args(["-c", "protocol.file.allow=always"]).args(args);
    c.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    c.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env("LC_ALL", "C");
    for key in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
        c.env(key, "agent@example");
    }
    let out = c.output().unwrap();
    let text = [&out.stdout[..], &out.stderr[..]].concat();
    (out.status.success(), String::from_utf8_lossy(&text).trim_end().to_owned())
}

pub(super) fn oid(at: &Path, rev: &str) -> Oid {
    Oid::parse(&git(at, &["rev-parse", rev])).unwrap()
}

pub(super) fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

pub(super) fn commit_all(at: &Path, message: &str) -> Oid {
    git(at, &["add", "-A"]);
    git(at, &["commit", "-q", "-m", message]);
    oid(at, "HEAD")
}

pub(super) fn task(path: &str) -> TaskPath {
    TaskPath::parse(path).unwrap()
}

pub(super) fn who() -> Who {
    Who { name: "Overnight".into(), mail: "night@example".into() }
}

pub(super) struct Rig {
    /// Removed at the end of the test.
    _dir: tempfile::TempDir,
    pub(super) top: PathBuf,
    pub(super) code: PathBuf,
    pub(super) mirror: Mirror,
    pub(super) pool: Pool,
    pub(super) base: Oid,
}

/// A repository with a few files, its mirror and its pool, below a folder with a difficult name.
pub(super) async fn rig() -> Rig {
    rig_in("ü x'$(id)\" -n lead ").await
}

pub(super) async fn rig_in(name: &str) -> Rig {
    hermetic();
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap().join(name);
    let code = top.join("-rf");
    std::fs::create_dir_all(&code).unwrap();
    git(&code, &["init", "-q", "-b", "main"]);
    for f in ["a.txt", "b.txt", "src/lib.rs"] {
        let lines: String = (1..30).map(|n| format!("{f} line {n}\n")).collect();
        write(&code.join(f), &lines);
    }
    write(&code.join(".gitignore"), "target/\ndata\nobj\nro/\n");
    commit_all(&code, "first");
    let mirror = Mirror::create(&code, &top.join("data/mirror.git")).await.unwrap();
    let pool = Pool::open(&mirror, &top.join("data/ lead trail /wt")).unwrap();
    let base = mirror.base_tip("main").unwrap();
    Rig { _dir: dir, top, code, mirror, pool, base }
}

impl Rig {
    pub(super) async fn take(&self, path: &str) -> Lease {
        self.pool.take(&task(path).branch(), &self.base).await.unwrap()
    }

    pub(super) async fn done(&self, lease: Lease, path: &str) -> Rescued {
        let kept = rescue(&lease, &task(path), 1, None).await.unwrap();
        self.pool.give_back(lease, &kept).await.unwrap();
        kept
    }

    pub(super) async fn merge(&self, target: &Oid, work: &Oid, path: &str) -> Merged {
        let task = task(path);
        let (who, epoch) = (who(), Epoch(7));
        let ask = Candidate {
            target,
            work,
            message: "Merge it",
            committer: &who,
            task: &task,
            epoch,
            since: Some(&self.base),
        };
        try_merge(&self.mirror, ask).await.unwrap()
    }

    pub(super) fn bytes_in_refs(&self, text: &str) -> bool {
        let refs = git(self.mirror.git_dir(), &["for-each-ref", "--format=%(refname)"]);
        refs.lines().any(|r| try_git(self.mirror.git_dir(), &["grep", "-q", "-F", text, r]).0)
    }

    pub(super) fn fsck(&self) {
        git(self.mirror.git_dir(), &["fsck", "--connectivity-only", "--no-dangling"]);
        git(&self.code, &["fsck", "--connectivity-only", "--no-dangling"]);
    }
}

pub(super) async fn take_up(lease: &Lease) -> Result<Collected, CollectError> {
    collect(lease, "leftovers\n", &who(), CommitRules::default(), &overnight::git::collect::Leftovers::default()).await
}

pub(super) fn clean_merge(m: Merged) -> (Oid, Oid) {
    match m {
        Merged::Clean { commit, tree } => (commit, tree),
        other => panic!("{other:?}"),
    }
}

pub(super) fn names(list: &[(impl AsRef<[u8]>, Why)]) -> Vec<(String, Why)> {
    list.iter().map(|(p, w)| (String::from_utf8_lossy(p.as_ref()).into_owned(), w.clone())).collect()
}

// ---- mirror ----

#[tokio::test]
async fn a_mirror_has_our_ref_layout_and_only_allowed_configuration() {
    hermetic();
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    let (remote, code) = (top.join("remote.git"), top.join("code"));
    git(&top, &["init", "-q", "--bare", "-b", "main", "remote.git"]);
    git(&top, &["clone", "-q", "remote.git", "code"]);
    write(&code.join("a"), "1");
    git(&code, &["checkout", "-q", "-b", "main"]);
    commit_all(&code, "one");
    git(&code, &["push", "-q", "origin", "main"]);
    git(&code, &["tag", "-a", "-m", "x", "v1"]);
    git(&code, &["branch", "feat/x"]);
    for (key, value) in [
        ("user.name", "Me"),
        ("core.autocrlf", "input"),
        ("core.hooksPath", ".husky/_"),
        ("filter.lfs.clean", "git-lfs clean -- %f"),
        ("alias.x", "!evil"),
        ("core.sshCommand", "evil"),
    ] {
        git(&code, &["config", key, value]);
    }
    write(&code.join(".git/lfs/objects/ab/cd/abcd"), "lfs");
    let at = top.join("p/mirror.git");
    // A linked worktree of the repository stands for it.
    git(&code, &["worktree", "add", "-q", "--detach", "../linked"]);
    let mirror = Mirror::create(&top.join("linked"), &at).await.unwrap();
    let refs = git(&at, &["for-each-ref", "--format=%(refname)"]);
    assert_eq!(
        refs, "refs/remotes/origin/main\nrefs/remotes/user/feat/x\nrefs/remotes/user/main\nrefs/tags/v1",
        "no branch of ours yet"
    );
    let config = std::fs::read_to_string(at.join("config")).unwrap();
    assert!(config.contains("git-lfs clean -- %f") && config.contains("autocrlf"));
    for word in ["evil", "husky", code.to_str().unwrap()] {
        assert!(!config.contains(word), "{word} in {config}");
    }
    assert_eq!(git(&at, &["config", "remote.origin.url"]), remote.to_str().unwrap());
    assert!(!try_git(&at, &["push", "origin", "refs/remotes/user/main:refs/heads/evil"]).0);
    assert!(at.join("lfs/objects/ab/cd/abcd").exists());
    assert!(!at.join("hooks").read_dir().unwrap().any(|_| true));
    assert_eq!(mirror.base_tip("main").unwrap(), oid(&code, "main"));
    assert!(matches!(mirror.base_tip("nope"), Err(MirrorError::NoSuchBranch(_))));
    assert!(matches!(mirror.base_tip("-x..y"), Err(MirrorError::BadBranch(_))));
    assert!(matches!(Mirror::create(&code, &at).await, Err(MirrorError::Exists(_))));
    Mirror::open(&at, &code).await.unwrap();
    git(&at, &["fsck", "--connectivity-only"]);
}

#[tokio::test]
async fn refreshing_follows_the_user_and_prunes_only_their_branches() {
    let r = rig().await;
    assert_eq!(r.mirror.refresh().await.unwrap(), Refreshed::Unchanged);
    let lease = r.take("t1").await;
    git(&r.code, &["branch", "gone"]);
    write(&r.code.join("new"), "x");
    let tip = commit_all(&r.code, "two");
    assert_eq!(r.mirror.refresh().await.unwrap(), Refreshed::Fetched);
    assert_eq!(r.mirror.base_tip("main").unwrap(), tip);
    git(&r.code, &["branch", "-D", "gone"]);
    git(&r.code, &["checkout", "-q", "--detach"]);
    assert_eq!(r.mirror.refresh().await.unwrap(), Refreshed::Fetched);
    assert!(r.mirror.base_tip("gone").is_err());
    assert_eq!(r.mirror.branch_tip(lease.branch()).unwrap().as_ref(), Some(&r.base));
    assert!(git(&r.code, &["for-each-ref", "refs/heads/overnight-task"]).is_empty());
}

#[tokio::test]
async fn sources_of_every_kind_are_taken_or_refused_with_the_reason() {
    hermetic();
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    git(&top, &["init", "-q", "-b", "trunk", "unborn"]);
    let e = Mirror::create(&top.join("unborn"), &top.join("m/0")).await.unwrap_err();
    assert!(matches!(e, MirrorError::NoCommits(_)), "{e}");
    std::fs::create_dir(top.join("plain")).unwrap();
    let e = Mirror::create(&top.join("plain"), &top.join("m/1")).await.unwrap_err();
    assert!(matches!(e, MirrorError::NotARepository { .. }), "{e}");
    git(&top, &["init", "-q", "-b", "trunk", "src"]);
    for n in 1..5 {
        write(&top.join("src/f"), &n.to_string());
        commit_all(&top.join("src"), "c");
    }
    git(&top, &["config", "-f", "src/.git/config", "uploadpack.allowFilter", "true"]);
    git(&top, &["clone", "-q", "--bare", "src", "bare.git"]);
    let m = Mirror::create(&top.join("bare.git"), &top.join("m/2")).await.unwrap();
    assert_eq!(m.base_tip("trunk").unwrap(), oid(&top.join("src"), "trunk"));
    let url = format!("file://{}/src", top.display());
    git(&top, &["clone", "-q", "--depth", "1", &url, "shallow"]);
    write(&top.join("shallow/mine"), "x");
    let tip = commit_all(&top.join("shallow"), "mine");
    let m = Mirror::create(&top.join("shallow"), &top.join("m/3")).await.unwrap();
    assert_eq!(m.base_tip("trunk").unwrap(), tip);
    assert!(!m.git_dir().join("shallow").exists());
    assert_eq!(git(m.git_dir(), &["rev-list", "--count", "refs/remotes/user/trunk"]), "5");
    git(&top, &["clone", "-q", "--filter=blob:none", &url, "partial"]);
    write(&top.join("partial/mine"), "x");
    commit_all(&top.join("partial"), "mine");
    let m = Mirror::create(&top.join("partial"), &top.join("m/4")).await.unwrap();
    assert_eq!(git(m.git_dir(), &["show", "refs/remotes/user/trunk~3:f"]), "2");
    std::fs::rename(top.join("src"), top.join("src-away")).unwrap();
    for (n, name) in ["shallow", "partial"].iter().enumerate() {
        let e = Mirror::create(&top.join(name), &top.join(format!("m/5{n}"))).await.unwrap_err();
        assert!(matches!(e, MirrorError::Incomplete { .. }), "{e}");
    }
}

#[tokio::test]
async fn sha256_repositories_work_from_end_to_end() {
    hermetic();
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    git(&top, &["init", "-q", "-b", "main", "--object-format=sha256", "code"]);
    write(&top.join("code/a"), "1\n");
    let base = commit_all(&top.join("code"), "one");
    assert_eq!(base.as_str().len(), 64);
    let mirror = Mirror::create(&top.join("code"), &top.join("m.git")).await.unwrap();
    let pool = Pool::open(&mirror, &top.join("wt")).unwrap();
    let lease = pool.take("overnight-task/t", &base).await.unwrap();
    write(&lease.path().join("new"), "x");
    let got = take_up(&lease).await.unwrap();
    let (who, t) = (who(), task("t"));
    let ask = Candidate {
        target: &base,
        work: &got.tip,
        message: "m",
        committer: &who,
        task: &t,
        epoch: Epoch(1),
        since: None,
    };
    let (commit, _) = clean_merge(try_merge(&mirror, ask).await.unwrap());
    assert_eq!(move_branch(&mirror, "overnight/main", &commit, None).await.unwrap(), Moved::Moved);
    assert_eq!(deliver(&mirror, "overnight/main", &commit, None).await.unwrap(), Delivered::Done);
}

#[tokio::test]
async fn names_that_cannot_exist_beside_the_users_are_told() {
    let r = rig().await;
    r.mirror.names_fit("overnight/main").await.unwrap();
    r.mirror.names_fit("feat/deep/x").await.unwrap();
    git(&r.code, &["branch", "overnight/main"]);
    r.mirror.may_receive("overnight/main", true).await.unwrap();
    let e = r.mirror.may_receive("overnight/main", false).await.unwrap_err().to_string();
    assert!(e.contains("yours already:"), "{e}");
    git(&r.code, &["switch", "-q", "-c", "develop"]);
    let e = r.mirror.may_receive("develop", false).await.unwrap_err().to_string();
    assert!(e.contains("\"develop\" is yours already (checked out in "), "{e}");
    git(&r.code, &["switch", "-q", "main"]);
    git(&r.code, &["branch", "-m", "overnight/main", "overnight"]);
    let e = r.mirror.names_fit("overnight/main").await.unwrap_err().to_string();
    assert!(e.contains("\"overnight\"") && e.contains("overnight/main"), "{e}");
    git(&r.code, &["branch", "-m", "overnight", "Overnight-Task"]);
    assert!(matches!(r.mirror.names_fit("overnight/main").await, Err(MirrorError::NameTaken { .. })));
    git(&r.code, &["branch", "-m", "Overnight-Task", "overnight/main/deeper"]);
    assert!(matches!(r.mirror.names_fit("overnight/main").await, Err(MirrorError::NameTaken { .. })));
    assert!(matches!(r.mirror.names_fit("a..b").await, Err(MirrorError::BadBranch(_))));
}

#[tokio::test]
async fn what_an_agent_changes_of_the_sealed_files_is_put_back() {
    let r = rig().await;
    let lease = r.take("t1").await;
    let m = r.mirror.git_dir().to_owned();
    let before = std::fs::read(m.join("config")).unwrap();
    git(lease.path(), &["config", "core.fsmonitor", "touch /tmp/evil"]);
    git(lease.path(), &["config", "filter.x.clean", "evil"]);
    write(&m.join("hooks/post-checkout"), "#!/bin/sh\n");
    write(&m.join("info/attributes"), "* filter=x\n");
    write(&m.join("shallow"), &format!("{}\n", r.base));
    std::fs::remove_dir_all(m.join("info")).unwrap();
    symlink(&r.code, m.join("info")).unwrap();
    write(&m.join("HEAD"), "ref: refs/heads/overnight-task/t1\n");
    let restored: Vec<_> =
        r.mirror.verify_seal().unwrap().into_iter().map(|r| r.path.to_string_lossy().into_owned()).collect();
    for path in ["config", "hooks/post-checkout", "shallow", "info", "HEAD"] {
        assert!(restored.iter().any(|r| r == path), "{path} in {restored:?}");
    }
    assert_eq!(std::fs::read(m.join("config")).unwrap(), before);
    assert!(r.code.join("a.txt").exists());
    assert!(r.mirror.verify_seal().unwrap().is_empty());
    assert_eq!(r.mirror.take_restored().len(), restored.len());
    assert!(take_up(&lease).await.unwrap().no_change);
}

// ---- pool ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_worktrees_at_once_while_config_lock_is_held() {
    let r = rig().await;
    let lock = r.mirror.git_dir().join("config.lock");
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let holder = std::thread::spawn(move || {
        while stopped.recv_timeout(std::time::Duration::from_millis(20)).is_err() {
            if std::fs::OpenOptions::new().write(true).create_new(true).open(&lock).is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(500));
                let _ = std::fs::remove_file(&lock);
            }
        }
    });
    let takes = (0..40).map(|n| {
        let (pool, base) = (r.pool.clone(), r.base.clone());
        tokio::spawn(async move { pool.take(&format!("overnight-task/p.t{n}"), &base).await })
    });
    let mut leases = Vec::new();
    for t in takes.collect::<Vec<_>>() {
        leases.push(t.await.unwrap().unwrap());
    }
    let mut paths: Vec<_> = leases.iter().map(|l| l.path().to_owned()).collect();
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 40);
    for lease in &leases {
        assert_eq!(git(lease.path(), &["status", "--porcelain", "--ignored"]), "");
        assert_eq!(git(lease.path(), &["symbolic-ref", "HEAD"]), format!("refs/heads/{}", lease.branch()));
    }
    assert!(!try_git(r.mirror.git_dir(), &["config", "--get-regexp", "^branch\\."]).0);
    for (n, lease) in leases.into_iter().enumerate() {
        r.done(lease, &format!("p/t{n}")).await;
    }
    assert_eq!(git(r.mirror.git_dir(), &["for-each-ref", "refs/heads", "refs/overnight"]), "");
    r.pool.drain(0).await.unwrap();
    assert_eq!(git(r.mirror.git_dir(), &["worktree", "list"]).lines().count(), 1);
    stop.send(()).unwrap();
    holder.join().unwrap();
    r.fsck();
}

#[tokio::test]
async fn a_returned_worktree_is_clean_for_the_next_attempt() {
    let r = rig().await;
    let lease = r.take("t1").await;
    let p = lease.path().to_owned();
    write(&p.join("target/cache"), "stale");
    write(&p.join("a.txt"), "mine\n");
    write(&p.join("deep/new.txt"), "n");
    std::fs::remove_file(p.join("b.txt")).unwrap();
    git(&p, &["config", "core.hooksPath", "x"]);
    r.done(lease, "t1").await;
    write(&r.code.join("a.txt"), "newer\n");
    let next = commit_all(&r.code, "newer");
    r.mirror.refresh().await.unwrap();
    let lease = r.pool.take("overnight-task/t2", &next).await.unwrap();
    assert_eq!(lease.path(), p, "the same folder again");
    assert_eq!(git(&p, &["rev-parse", "HEAD"]), next.as_str());
    assert_eq!(git(&p, &["status", "--porcelain", "--ignored"]), "");
    assert_eq!(std::fs::read_to_string(p.join("a.txt")).unwrap(), "newer\n");
    assert!(matches!(r.pool.take("overnight-task/t2", &next).await, Err(PoolError::InUse { .. })));
    let (a, b) = tokio::join!(r.pool.take("overnight-task/t3", &next), r.pool.take("overnight-task/t3", &next));
    assert!(a.is_ok() != b.is_ok(), "one branch is lent once");
}

#[tokio::test]
async fn hidden_changes_and_rewritten_links_lead_to_a_rebuild() {
    let r = rig().await;
    for what in ["assume", "skip", "link", "commondir", "config"] {
        let lease = r.take("t").await;
        let (p, admin, number) = (lease.path().to_owned(), lease.git_dir().to_owned(), lease.number());
        r.done(lease, "t").await;
        // An agent's leftover process comes back to the idle folder.
        match what {
            "assume" => drop(git(&p, &["update-index", "--assume-unchanged", "a.txt"])),
            "skip" => drop(git(&p, &["update-index", "--skip-worktree", "a.txt"])),
            "link" => write(&p.join(".git"), &format!("gitdir: {}\n", r.code.join(".git").display())),
            "commondir" => write(&admin.join("commondir"), "/nowhere\n"),
            _ => write(&admin.join("config.worktree"), "[core]\n\tfsmonitor = evil\n"),
        }
        write(&p.join("a.txt"), "hidden\n");
        let lease = r.take("t").await;
        assert_eq!(lease.number(), number, "{what}");
        assert_eq!(git(&p, &["ls-files", "-v", "a.txt"]), "H a.txt");
        assert!(std::fs::read_to_string(p.join("a.txt")).unwrap().starts_with("a.txt line 1\n"), "{what}");
        assert_eq!(git(&p, &["rev-parse", "--git-common-dir"]), r.mirror.git_dir().to_str().unwrap());
        r.done(lease, "t").await;
    }
}

#[tokio::test]
async fn links_and_read_only_folders_are_cleaned_without_touching_what_they_lead_to() {
    let r = rig().await;
    let precious = r.top.join("precious");
    write(&precious.join("f"), "keep");
    let (one, two) = (r.take("t1").await, r.take("t2").await);
    let (p1, p2) = (one.path().to_owned(), two.path().to_owned());
    symlink(&precious, p1.join("data")).unwrap();
    symlink(r.code.join(".git/objects"), p1.join("obj")).unwrap();
    write(&p1.join("ro/x/y"), "");
    std::fs::set_permissions(p1.join("ro"), std::fs::Permissions::from_mode(0o555)).unwrap();
    std::fs::remove_dir_all(p1.join("src")).unwrap();
    symlink(&precious, p1.join("src")).unwrap();
    // The other moves its folder away and puts a link to the first in its place.
    std::fs::rename(&p2, r.top.join("moved")).unwrap();
    symlink(&p1, &p2).unwrap();
    assert!(matches!(take_up(&two).await, Err(CollectError::Worktree(WorktreeError::Broken { .. }))));
    r.done(two, "t2").await;
    assert!(p2.symlink_metadata().is_err(), "the link is gone");
    assert!(p1.join("a.txt").exists(), "its target is not");
    r.done(one, "t1").await;
    r.pool.drain(0).await.unwrap();
    assert!(p1.symlink_metadata().is_err());
    assert_eq!(std::fs::read_to_string(precious.join("f")).unwrap(), "keep");
    r.fsck();
}

#[tokio::test]
async fn what_cannot_be_removed_is_set_aside_and_foreign_folders_are_left() {
    let r = rig().await;
    let root = r.top.join("data/ lead trail /wt");
    write(&root.join("1/old"), "foreign");
    write(&root.join("notes/x"), "foreign");
    let lease = r.take("t1").await;
    assert_eq!(lease.number(), 2, "the foreign folder's number is not used");
    let p = lease.path().to_owned();
    let kept = rescue(&lease, &task("t1"), 1, None).await.unwrap();
    // A folder that cannot be removed: changed link, so that it must be removed, and an immutable file.
    write(&p.join("fixed"), "x");
    std::fs::remove_file(p.join(".git")).unwrap();
    let fixed = Command::new("chattr").args(["+i"]).arg(p.join("fixed")).status().is_ok_and(|s| s.success());
    if !fixed {
        eprintln!("skipped in part: no chattr here");
        return;
    }
    let e = r.pool.give_back(lease, &kept).await.unwrap_err();
    assert!(matches!(e, PoolError::SetAside { n: 2, .. }), "{e}");
    let other = r.take("t1").await;
    assert_eq!(other.number(), 3);
    let found = r.pool.inventory().unwrap();
    assert!(found.iter().any(|f| matches!(f, Found::Aside { n: 2, .. })), "{found:?}");
    assert_eq!(found.iter().filter(|f| matches!(f, Found::Foreign { .. })).count(), 2, "{found:?}");
    assert_eq!(r.pool.retry_aside().await.unwrap().len(), 1);
    assert!(Command::new("chattr").args(["-i"]).arg(p.join("fixed")).status().unwrap().success());
    assert!(r.pool.retry_aside().await.unwrap().is_empty());
    assert!(!p.exists() && root.join("1/old").exists());
}

#[tokio::test]
async fn after_a_restart_the_pool_knows_what_stands_where() {
    let r = rig().await;
    let (one, two, three) = (r.take("t1").await, r.take("t2").await, r.take("t3").await);
    write(&one.path().join("w"), "work of t1");
    std::fs::remove_dir_all(two.path()).unwrap();
    std::fs::remove_file(three.path().join(".git")).unwrap();
    let idle = r.take("t4").await;
    r.done(idle, "t4").await;
    let numbers = (one.number(), two.number(), three.number());
    drop((one, two, three));
    let pool = Pool::open(&r.mirror, &r.top.join("data/ lead trail /wt")).unwrap();
    let mut leased = None;
    for f in pool.inventory().unwrap() {
        match f {
            Found::Leased(l) => {
                assert_eq!((l.number(), l.branch(), l.base()), (numbers.0, "overnight-task/t1", &r.base));
                leased = Some(*l);
            }
            Found::Missing { n, .. } => assert_eq!(n, numbers.1),
            Found::Broken { lease, .. } => assert_eq!(lease.number(), numbers.2),
            Found::Idle { n } => assert_eq!(n, 4),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(pool.take("overnight-task/t1", &r.base).await, Err(PoolError::InUse { .. })));
    let kept = rescue(&leased.unwrap(), &task("t1"), 1, None).await.unwrap();
    pool.give_back(pool.adopt(numbers.0).unwrap(), &kept).await.unwrap();
    assert!(r.bytes_in_refs("work of t1"));
    let again = pool.take("overnight-task/t1", &r.base).await.unwrap();
    assert_eq!(git(again.path(), &["status", "--porcelain", "--ignored"]), "");
    // The missing one's branch was left over; its next attempt gets it afresh.
    pool.take("overnight-task/t2", &r.base).await.unwrap();
}

#[tokio::test]
async fn a_leftover_branch_is_rescued_before_it_is_taken_anew() {
    let r = rig().await;
    let lease = r.take("a/b").await;
    write(&lease.path().join("f"), "x");
    let old = commit_all(lease.path(), "work");
    // Given back, and then somebody brings the branch back.
    r.done(lease, "a/b").await;
    git(r.mirror.git_dir(), &["update-ref", "refs/heads/overnight-task/a.b", old.as_str()]);
    let lease = r.take("a/b").await;
    assert_eq!(git(lease.path(), &["rev-parse", "HEAD"]), r.base.as_str());
    let kept = rescues(&r.mirror, &task("a/b")).unwrap();
    assert!(kept.iter().any(|k| k.commit == old && k.name.ends_with("/a.b/left")), "{kept:?}");
    // Nested tasks have branches side by side.
    r.take("a").await;
    r.take("a/b/c").await;
}

#[tokio::test]
async fn a_mount_inside_a_worktree_is_never_emptied() {
    let r = rig().await;
    let precious = r.top.join("precious");
    write(&precious.join("f"), "keep");
    let lease = r.take("t1").await;
    let inside = lease.path().join("m");
    std::fs::create_dir(&inside).unwrap();
    let bound = Command::new("mount").arg("--bind").args([&precious, &inside]).output();
    if !bound.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: no right to mount here");
        return;
    }
    let kept = rescue(&lease, &task("t1"), 1, None).await.unwrap();
    let given = r.pool.give_back(lease, &kept).await;
    let still = precious.join("f").exists();
    let status = Command::new("umount").arg(&inside).status().unwrap();
    assert!(status.success() && still, "{given:?}");
    assert!(matches!(given, Err(PoolError::SetAside { .. })), "{given:?}");
    assert!(r.pool.retry_aside().await.unwrap().is_empty());
    assert!(precious.join("f").exists());
}

#[test]
fn inherited_git_variables_reach_no_git_of_ours() {
    hermetic();
    let dir = tempfile::tempdir().unwrap();
    let decoy = dir.path().join("decoy");
    git(dir.path(), &["init", "-q", "decoy"]);
    write(&decoy.join("f"), "f");
    commit_all(&decoy, "f");
    let print = |at: &Path| {
        let c = Command::new("sh").arg("-c").arg("find . -type f -exec cksum {} + | sort").current_dir(at).output();
        c.unwrap().stdout
    };
    let before = print(&decoy);
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "git_code::merges_make_two_parents_a_trailer_and_touch_no_worktree"])
        .args(["git_code::uncommitted_work_is_committed_and_rubbish_is_left_out_by_name", "--test-threads=1"])
        .env("GIT_DIR", decoy.join(".git"))
        .env("GIT_INDEX_FILE", decoy.join(".git/index"))
        .env("GIT_WORK_TREE", &decoy)
        .env("GIT_AUTHOR_NAME", "evil")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "core.bare")
        .env("GIT_CONFIG_VALUE_0", "true")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("2 passed"), "{text}");
    assert_eq!(print(&decoy), before);
}

// ---- collecting ----

#[tokio::test]
async fn uncommitted_work_is_committed_and_rubbish_is_left_out_by_name() {
    let r = rig().await;
    let lease = r.take("t1").await;
    let p = lease.path().to_owned();
    write(&p.join("src/new.txt"), "fresh");
    write(&p.join("a.txt"), "edited\n");
    git(&p, &["add", "src/new.txt"]);
    for (name, text) in [
        (".env", "CANARY"),
        ("id_rsa", "CANARY"),
        ("staged.pem", "CANARY"),
        ("node_modules/x/index.js", "x"),
        (".claude/settings.json", "{}"),
        (".env.example", "fine"),
    ] {
        write(&p.join(name), text);
    }
    git(&p, &["add", "-f", "staged.pem"]);
    std::fs::write(p.join("core.123"), b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0rest").unwrap();
    std::fs::File::create(p.join("dump.sql")).unwrap().set_len(300 << 20).unwrap();
    nix_fifo(&p.join("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(p.join("s")).unwrap();
    let got = take_up(&lease).await.unwrap();
    assert_eq!(got.committed_by_us.as_ref(), Some(&got.tip));
    let changed: Vec<_> = got.changed.iter().map(|c| String::from_utf8_lossy(&c.path).into_owned()).collect();
    assert_eq!(changed, [".env.example", "a.txt", "src/new.txt"]);
    let mut left: Vec<_> = got.left_out.iter().map(|l| (l.path.clone(), l.why.clone())).collect();
    left.sort_by(|a, b| a.0.cmp(&b.0));
    let want: &[(&[u8], Why)] = &[
        (b".claude/settings.json", Why::AgentFiles),
        (b".env", Why::Secret),
        (b"core.123", Why::CoreDump),
        (b"dump.sql", Why::Large { size: 300 << 20 }),
        (b"id_rsa", Why::Secret),
        (b"node_modules/x/index.js", Why::Dependencies),
        (b"pipe", Why::Special),
        (b"s", Why::Special),
        (b"staged.pem", Why::Secret),
    ];
    assert_eq!(names(&left), names(want));
    assert!(!try_git(&p, &["grep", "-q", "CANARY", got.tip.as_str()]).0);
    assert_eq!(git(&p, &["log", "-1", "--format=%an <%ae>"]), "Overnight <night@example>");
    // Everything else is kept in the mirror alone.
    let kept = r.done(lease, "t1").await;
    assert!(r.bytes_in_refs("CANARY"));
    assert_eq!(kept.set_aside().len(), 1);
    assert!(kept.set_aside()[0].ends_with("t1/1/dump.sql") && kept.set_aside()[0].exists());
    deliver(&r.mirror, "overnight/main", &got.tip, None).await.unwrap();
    let all = git(&r.code, &["cat-file", "--batch-all-objects", "--batch-check"]);
    for line in all.lines().filter(|l| l.contains("blob")) {
        let id = line.split(' ').next().unwrap();
        assert!(!git(&r.code, &["cat-file", "blob", id]).contains("CANARY"));
    }
}

fn nix_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[tokio::test]
async fn work_on_the_wrong_branch_is_refused_and_kept() {
    let r = rig().await;
    let strayed = |e: Result<Collected, CollectError>| match e.unwrap_err() {
        CollectError::WrongBranch { found, .. } => found,
        other => panic!("{other}"),
    };
    // Detached.
    let lease = r.take("t1").await;
    git(lease.path(), &["checkout", "-q", "--detach"]);
    write(&lease.path().join("d"), "detached work");
    let at = commit_all(lease.path(), "d");
    assert_eq!(strayed(take_up(&lease).await), Strayed::Detached(at.clone()));
    r.done(lease, "t1").await;
    assert!(r.bytes_in_refs("detached work"));
    // A branch of its own, and commits that were amended away.
    let lease = r.take("t2").await;
    write(&lease.path().join("e"), "first try");
    let first = commit_all(lease.path(), "e");
    write(&lease.path().join("e"), "second try");
    git(lease.path(), &["commit", "-q", "-a", "--amend", "-m", "e2"]);
    git(lease.path(), &["checkout", "-q", "-b", "mine"]);
    write(&lease.path().join("g"), "on mine");
    commit_all(lease.path(), "g");
    assert_eq!(strayed(take_up(&lease).await), Strayed::OtherBranch("mine".into()));
    r.done(lease, "t2").await;
    for text in ["first try", "second try", "on mine"] {
        assert!(r.bytes_in_refs(text), "{text}");
    }
    assert!(rescues(&r.mirror, &task("t2")).unwrap().iter().any(|k| k.commit == first));
    assert_eq!(git(r.mirror.git_dir(), &["for-each-ref", "refs/heads"]), "", "no branch of an agent's is left");
    // History rewritten below the base.
    let lease = r.take("t3").await;
    git(lease.path(), &["checkout", "-q", "--orphan", "tmp"]);
    write(&lease.path().join("o"), "orphan");
    let orphan = commit_all(lease.path(), "o");
    git(lease.path(), &["checkout", "-q", "overnight-task/t3"]);
    git(lease.path(), &["reset", "-q", "--hard", "tmp"]);
    assert_eq!(strayed(take_up(&lease).await), Strayed::Rewritten { base: r.base.clone(), tip: orphan });
    r.done(lease, "t3").await;
    // Moved by another agent from its own worktree.
    let (one, two) = (r.take("t4").await, r.take("t5").await);
    write(&two.path().join("own"), "t5's own");
    let own = commit_all(two.path(), "own");
    write(&one.path().join("x"), "t4's");
    let theirs = commit_all(one.path(), "x");
    git(one.path(), &["update-ref", "refs/heads/overnight-task/t5", theirs.as_str()]);
    assert_eq!(strayed(take_up(&two).await), Strayed::MovedByOthers { left_at: own.clone(), now: theirs });
    let kept = rescue(&two, &task("t5"), 1, None).await.unwrap();
    assert!(kept.refs().iter().any(|(_, c)| *c == own), "{kept:?}");
    assert!(take_up(&one).await.is_ok());
    // Killed between moving the branch and writing HEAD's log: the commit is ours, and taken up again as it is.
    let lease = r.take("t6").await;
    write(&lease.path().join("left"), "in no commit yet");
    let log = PathBuf::from(git(lease.path(), &["rev-parse", "--absolute-git-dir"])).join("logs/HEAD");
    let before = std::fs::read(&log).unwrap();
    let first = take_up(&lease).await.unwrap().tip;
    assert_ne!(std::fs::read(&log).unwrap(), before);
    std::fs::write(&log, &before).unwrap();
    assert_eq!(take_up(&lease).await.unwrap().tip, first);
    assert_eq!(take_up(&lease).await.unwrap().tip, first, "the log has been completed");
    r.fsck();
}

#[tokio::test]
async fn a_removed_or_rewritten_git_link_is_noticed_and_the_files_are_kept() {
    let r = rig().await;
    let head = oid(&r.code, "HEAD");
    for how in ["gone", "users", "own"] {
        let lease = r.take("t").await;
        let p = lease.path().to_owned();
        std::fs::remove_file(p.join(".git")).unwrap();
        write(&p.join("x"), &format!("files of {how}"));
        match how {
            "users" => write(&p.join(".git"), &format!("gitdir: {}\n", r.code.join(".git").display())),
            "own" => {
                git(&p, &["init", "-q"]);
                commit_all(&p, "oops");
                write(&p.join("y"), "later file");
            }
            _ => {}
        }
        let e = take_up(&lease).await.unwrap_err();
        assert!(matches!(e, CollectError::Worktree(WorktreeError::Broken { .. })), "{how}: {e}");
        let kept = r.done(lease, "t").await;
        assert!(!kept.refs().is_empty());
        assert!(r.bytes_in_refs(&format!("files of {how}")), "{how}: {kept:?}");
    }
    assert!(r.bytes_in_refs("later file"));
    assert_eq!(oid(&r.code, "HEAD"), head);
    assert_eq!(git(&r.code, &["status", "--porcelain"]), "");
    r.fsck();
}

#[tokio::test]
async fn nested_repositories_are_named_kept_and_removed() {
    let r = rig().await;
    let lease = r.take("t1").await;
    let p = lease.path().to_owned();
    let lib = p.join("vendor/lib");
    std::fs::create_dir_all(&lib).unwrap();
    git(&lib, &["init", "-q"]);
    write(&lib.join("in"), "committed inside");
    let inner = commit_all(&lib, "in");
    write(&lib.join("open"), "not committed inside");
    git(&p, &["worktree", "add", "-q", "./sub", "-b", "mine"]);
    write(&p.join("sub/s"), "in the nested worktree");
    commit_all(&p.join("sub"), "s");
    write(&p.join("sub/t"), "left in the nested worktree");
    write(&p.join("good"), "good");
    let got = take_up(&lease).await.unwrap();
    let left: Vec<_> =
        got.left_out.iter().map(|l| (String::from_utf8_lossy(&l.path).into_owned(), l.why.clone())).collect();
    assert_eq!(left, [("sub/".into(), Why::NestedRepository), ("vendor/lib/".into(), Why::NestedRepository)]);
    assert!(!git(&p, &["ls-tree", "-r", "HEAD"]).contains("160000"));
    let kept = r.done(lease, "t1").await;
    assert!(kept.refs().iter().any(|(_, c)| *c == inner));
    for text in ["not committed inside", "in the nested worktree", "left in the nested worktree"] {
        assert!(r.bytes_in_refs(text), "{text}");
    }
    assert!(!lib.exists() && !p.join("sub").exists());
    let list = git(r.mirror.git_dir(), &["worktree", "list"]);
    assert_eq!(list.lines().count(), 2, "{list}");
    // An agent that commits the reference itself.
    let lease = r.take("t2").await;
    git(lease.path(), &["init", "-q", "lib"]);
    write(&lease.path().join("lib/f"), "f");
    commit_all(&lease.path().join("lib"), "f");
    commit_all(lease.path(), "gitlink");
    let got = take_up(&lease).await.unwrap();
    assert_eq!(got.stray_gitlinks, [b"lib".to_vec()]);
    r.done(lease, "t2").await;
    let lease = r.take("t3").await;
    assert!(!lease.path().join("lib").exists());
    r.fsck();
}

#[tokio::test]
async fn hostile_file_names_are_exact_everywhere() {
    let r = rig().await;
    let lease = r.take("t1").await;
    let raw: &[&[u8]] = &[
        "ä.txt".as_bytes(),
        b"a b",
        b"\"q\"",
        b"tab\tx",
        b"new\nline",
        b"a -> b",
        b"x b/y",
        b" lead",
        b"-n",
        b"\\303\\244",
        b"\xff\xfe",
        b":(glob)*",
        b"*",
    ];
    for name in raw {
        let path = lease.path().join(OsStr::from_bytes(name));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, name).unwrap();
    }
    let got = take_up(&lease).await.unwrap();
    let mut want: Vec<_> = raw.iter().map(|n| n.to_vec()).collect();
    want.sort();
    assert_eq!(got.changed.iter().map(|c| c.path.clone()).collect::<Vec<_>>(), want);
    let stat = land::diff_stat(&r.mirror, &r.base, &got.tip).await.unwrap();
    assert_eq!(stat.len(), want.len());
    assert!(stat.iter().any(|s| s.path == b"\xff\xfe"));
    let patch = land::diff_patch(&r.mirror, &r.base, &got.tip).await.unwrap();
    let patch = String::from_utf8_lossy(&patch);
    assert!(patch.contains("b/a b") && !patch.contains('\u{1b}'));
    let (_, tree) = clean_merge(r.merge(&r.base, &got.tip, "t1").await);
    assert_eq!(tree, got.tree);
    let kept = r.done(lease, "t1").await;
    assert_eq!(kept.refs().len(), 1);
}

#[tokio::test]
async fn every_kind_of_change_is_told_and_hidden_edits_are_seen() {
    let r = rig().await;
    let lease = r.take("t1").await;
    let p = lease.path().to_owned();
    git(&p, &["update-index", "--assume-unchanged", "a.txt"]);
    write(&p.join("a.txt"), "hidden edit\n");
    std::fs::set_permissions(p.join("b.txt"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(p.join("lib")).unwrap();
    std::fs::rename(p.join("src/lib.rs"), p.join("lib/lib.rs")).unwrap();
    std::fs::remove_dir(p.join("src")).unwrap();
    symlink("../outside", p.join("link")).unwrap();
    std::fs::write(p.join("bin"), [0_u8, 1, 2]).unwrap();
    write(&p.join("empty"), "");
    let got = take_up(&lease).await.unwrap();
    let kinds: Vec<_> =
        got.changed.iter().map(|c| (String::from_utf8_lossy(&c.path).into_owned(), c.kind.clone())).collect();
    let want = [
        ("a.txt", ChangeKind::Modified),
        ("b.txt", ChangeKind::Mode),
        ("bin", ChangeKind::Added),
        ("empty", ChangeKind::Added),
        ("lib/lib.rs", ChangeKind::Renamed { from: b"src/lib.rs".to_vec() }),
        ("link", ChangeKind::Added),
    ];
    assert_eq!(kinds, want.map(|(n, k)| (n.to_owned(), k)));
}

#[tokio::test]
async fn an_operation_that_was_not_ended_is_told_and_its_files_are_kept() {
    let r = rig().await;
    let lease = r.take("t1").await;
    let p = lease.path().to_owned();
    write(&p.join("a.txt"), "ours\n");
    commit_all(&p, "ours");
    git(&p, &["checkout", "-q", "-b", "side", r.base.as_str()]);
    write(&p.join("a.txt"), "theirs\n");
    commit_all(&p, "theirs");
    git(&p, &["checkout", "-q", "overnight-task/t1"]);
    assert!(!try_git(&p, &["merge", "side"]).0);
    write(&p.join("half"), "half resolved");
    let got = take_up(&lease).await.unwrap();
    assert_eq!((got.unfinished, got.committed_by_us), (Some(Unfinished::Merge), None));
    r.done(lease, "t1").await;
    assert!(r.bytes_in_refs("half resolved") && r.bytes_in_refs("<<<<<<< HEAD"));
    let lease = r.take("t2").await;
    assert!(!lease.git_dir().join("MERGE_HEAD").exists());
    // A git that was killed leaves its lock files.
    write(&lease.git_dir().join("index.lock"), "");
    write(&lease.path().join("z"), "z");
    assert!(take_up(&lease).await.unwrap().committed_by_us.is_some());
}

#[tokio::test]
async fn commits_of_another_unmerged_task_are_noticed() {
    let r = rig().await;
    let (one, three) = (r.take("t1").await, r.take("t3").await);
    write(&one.path().join("one"), "1");
    let tip1 = commit_all(one.path(), "one");
    git(three.path(), &["merge", "-q", "--no-edit", "overnight-task/t1"]);
    write(&three.path().join("three"), "3");
    let tip3 = commit_all(three.path(), "three");
    let others = [("t1".to_owned(), tip1.clone()), ("t2".to_owned(), r.base.clone())];
    let found = foreign(&r.mirror, &tip3, std::slice::from_ref(&r.base), &others).unwrap();
    assert_eq!(found, [("t1".to_owned(), vec![tip1.clone()])]);
    assert_eq!(
        foreign(&r.mirror, &tip1, std::slice::from_ref(&r.base), &others).unwrap().len(),
        1,
        "nothing of its own"
    );
    // Once t1 is merged into the target, its commits are nobody's any more.
    assert!(foreign(&r.mirror, &tip3, &[r.base.clone(), tip1], &others).unwrap().is_empty());
}

// ---- rescue ----

#[tokio::test]
async fn rescuing_twice_makes_nothing_new() {
    let r = rig().await;
    let lease = r.take("a/b").await;
    write(&lease.path().join("c"), "committed");
    let tip = commit_all(lease.path(), "c");
    write(&lease.path().join("a.txt"), "staged\n");
    git(lease.path(), &["add", "a.txt"]);
    write(&lease.path().join("a.txt"), "unstaged\n");
    write(&lease.path().join("b.txt"), "stashed\n");
    git(lease.path(), &["stash", "push", "-q", "b.txt"]);
    let before = git(lease.path(), &["status", "--porcelain"]);
    let one = rescue(&lease, &task("a/b"), 1, None).await.unwrap();
    assert_eq!(git(lease.path(), &["status", "--porcelain"]), before, "nothing in the worktree moved");
    let two = rescue(&lease, &task("a/b"), 1, None).await.unwrap();
    assert_eq!(one.refs(), two.refs());
    for text in ["staged\n", "unstaged", "stashed"] {
        assert!(r.bytes_in_refs(text.trim()), "{text}");
    }
    let kept = rescues(&r.mirror, &task("a/b")).unwrap();
    assert_eq!(kept[0].name, "refs/overnight/rescue/a.b/1");
    assert_eq!(kept[0].commit, tip);
    // A proof of another worktree is refused.
    let other = r.take("other").await;
    assert!(matches!(r.pool.give_back(other, &one).await, Err(PoolError::WrongProof(_))));
    r.pool.give_back(lease, &one).await.unwrap();
    assert_eq!(r.mirror.branch_tip("overnight-task/a.b").unwrap(), None);
    // Nor is one of an earlier lending of the same worktree to the same task.
    let later = r.take("a/b").await;
    assert!(matches!(r.pool.give_back(later.clone(), &one).await, Err(PoolError::WrongProof(_))));
    r.done(later, "a/b").await;
    git(r.mirror.git_dir(), &["branch", "overnight-task/a.b", &kept[0].name]);
    let again = rescue_branch(&r.mirror, "overnight-task/a.b", &task("a/b"), 1).unwrap();
    assert_eq!(again.refs(), [("refs/overnight/rescue/a.b/1".to_owned(), tip)]);
}

#[tokio::test]
async fn merged_work_needs_no_rescue_ref() {
    let r = rig().await;
    let lease = r.take("t1").await;
    write(&lease.path().join("c"), "committed");
    let tip = commit_all(lease.path(), "c");
    let (merged, _) = clean_merge(r.merge(&r.base, &tip, "t1").await);
    let kept = rescue(&lease, &task("t1"), 1, Some(&merged)).await.unwrap();
    assert!(kept.refs().is_empty());
    r.pool.give_back(lease, &kept).await.unwrap();
}

// ---- merging ----

#[tokio::test]
async fn merges_make_two_parents_a_trailer_and_touch_no_worktree() {
    let r = rig().await;
    let lease = r.take("a/t1").await;
    write(&lease.path().join("c"), "c");
    let tip = commit_all(lease.path(), "c");
    let (commit, tree) = clean_merge(r.merge(&r.base, &tip, "a/t1").await);
    assert_eq!(tree, oid(lease.path(), "HEAD^{tree}"));
    let info = Odb::open(r.mirror.git_dir()).unwrap().info(&commit).unwrap();
    assert_eq!(info.parents, [r.base.clone(), tip.clone()]);
    assert_eq!(info.message, "Merge it\n\nOvernight-Task: a/t1@7\n");
    assert_eq!(
        git(r.mirror.git_dir(), &["log", "-1", "--format=%(trailers:key=Overnight-Task,valueonly)", commit.as_str()]),
        "a/t1@7"
    );
    assert_eq!(move_branch(&r.mirror, "overnight/main", &commit, None).await.unwrap(), Moved::Moved);
    assert_eq!(r.merge(&commit, &tip, "a/t1").await, Merged::AlreadyIn { commit: commit.clone() });
    assert_eq!(
        move_branch(&r.mirror, "overnight/main", &tip, Some(&r.base)).await.unwrap(),
        Moved::Overtaken { now: Some(commit.clone()) }
    );
    // Another epoch or a task whose name begins alike is another merge.
    assert!(matches!(r.merge(&commit, &tip, "a/t").await, Merged::Clean { .. }));
    assert_eq!(git(&r.code, &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn conflicts_name_their_files_and_other_failures_are_errors() {
    let r = rig().await;
    let (one, two) = (r.take("t1").await, r.take("t2").await);
    for (lease, text) in [(&one, "one\n"), (&two, "two\n")] {
        write(&lease.path().join("a.txt"), text);
        write(&lease.path().join("new\nö"), text);
        commit_all(lease.path(), text);
    }
    let (t1, t2) = (oid(one.path(), "HEAD"), oid(two.path(), "HEAD"));
    let (target, _) = clean_merge(r.merge(&r.base, &t1, "t1").await);
    let Merged::Conflict { mut files } = r.merge(&target, &t2, "t2").await else { panic!("no conflict") };
    files.sort();
    assert_eq!(files, [b"a.txt".to_vec(), "new\nö".as_bytes().to_vec()]);
    git(two.path(), &["checkout", "-q", "--orphan", "x"]);
    let orphan = commit_all(two.path(), "unrelated");
    let Merged::Error { text } = r.merge(&target, &orphan, "t2").await else { panic!("no error") };
    assert!(text.contains("unrelated histories"), "{text}");
    assert_eq!(r.mirror.branch_tip("overnight/main").unwrap(), None);
}

#[tokio::test]
async fn merges_know_renames_modes_line_ends_and_the_targets_attributes() {
    let r = rig().await;
    write(&r.code.join("CHANGES"), "top\n");
    write(&r.code.join(".gitattributes"), "CHANGES merge=union\n*.dat binary\n");
    std::fs::write(r.code.join("x.dat"), [0_u8; 64]).unwrap();
    write(&r.code.join("crlf"), "one\r\ntwo\r\nthree\r\n");
    let base = commit_all(&r.code, "attributes");
    r.mirror.refresh().await.unwrap();
    let one = r.pool.take("overnight-task/t1", &base).await.unwrap();
    let two = r.pool.take("overnight-task/t2", &base).await.unwrap();
    git(one.path(), &["mv", "a.txt", "renamed.txt"]);
    write(&one.path().join("CHANGES"), "top\nby one\n");
    write(&one.path().join("crlf"), "ONE\r\ntwo\r\nthree\r\n");
    std::fs::set_permissions(one.path().join("b.txt"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let text = std::fs::read_to_string(two.path().join("a.txt")).unwrap().replace("line 3\n", "line three\n");
    write(&two.path().join("a.txt"), &text);
    write(&two.path().join("CHANGES"), "top\nby two\n");
    write(&two.path().join("crlf"), "one\r\ntwo\r\nthree\r\nfour\r\n");
    // The task's branch drops the attributes; the target's count.
    std::fs::remove_file(two.path().join(".gitattributes")).unwrap();
    let (t1, t2) = (commit_all(one.path(), "1"), commit_all(two.path(), "2"));
    let (target, _) = clean_merge(r.merge(&base, &t1, "t1").await);
    let (merged, _) = clean_merge(r.merge(&target, &t2, "t2").await);
    let show = |path: &str| git(r.mirror.git_dir(), &["show", &format!("{merged}:{path}")]);
    assert!(show("renamed.txt").contains("line three"));
    assert_eq!(show("CHANGES"), "top\nby one\nby two");
    assert_eq!(show("crlf"), "ONE\r\ntwo\r\nthree\r\nfour");
    assert!(git(r.mirror.git_dir(), &["ls-tree", merged.as_str(), "b.txt"]).starts_with("100755"));
    // Binary content that both changed conflicts.
    for (lease, byte) in [(&one, 1_u8), (&two, 2)] {
        std::fs::write(lease.path().join("x.dat"), [byte; 64]).unwrap();
        commit_all(lease.path(), "bin");
    }
    let (t1, t2) = (oid(one.path(), "HEAD"), oid(two.path(), "HEAD"));
    let (target, _) = clean_merge(r.merge(&merged, &t1, "t3").await);
    assert_eq!(r.merge(&target, &t2, "t4").await, Merged::Conflict { files: vec![b"x.dat".to_vec()] });
}

#[tokio::test]
async fn merge_drivers_come_from_the_sealed_configuration_only() {
    let r = rig().await;
    write(&r.code.join(".gitattributes"), "a.txt merge=evil\n");
    let base = commit_all(&r.code, "driver");
    r.mirror.refresh().await.unwrap();
    let lease = r.pool.take("overnight-task/t1", &base).await.unwrap();
    let mark = r.top.join("ran");
    write(&lease.path().join("a.txt"), "x\n");
    let tip = commit_all(lease.path(), "x");
    git(r.mirror.git_dir(), &["config", "merge.evil.driver", &format!("touch '{}'; true", mark.display())]);
    write(&r.code.join("a.txt"), "y\n");
    let target = commit_all(&r.code, "y");
    r.mirror.refresh().await.unwrap();
    assert!(matches!(r.merge(&target, &tip, "t1").await, Merged::Conflict { .. }));
    assert!(!mark.exists());
}

// ---- delivering and landing ----

#[tokio::test]
async fn delivery_runs_no_hook_and_leaves_what_is_checked_out_or_was_moved() {
    let r = rig().await;
    let mark = r.top.join("hook-ran");
    for hook in ["reference-transaction", "post-receive", "update", "post-checkout", "post-merge", "post-rewrite"] {
        let path = r.code.join(".git/hooks").join(hook);
        write(&path, "#!/bin/sh\ntouch \"$(dirname \"$0\")/../../../hook-ran\"\n");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let lease = r.take("t1").await;
    write(&lease.path().join("c"), "c");
    let tip = commit_all(lease.path(), "c");
    let b = "overnight/main";
    assert_eq!(deliver(&r.mirror, b, &tip, None).await.unwrap(), Delivered::Done);
    assert_eq!(deliver(&r.mirror, b, &tip, None).await.unwrap(), Delivered::Already);
    assert!(!mark.exists());
    assert_eq!(oid(&r.code, b), tip);
    assert!(!r.code.join(".git/FETCH_HEAD").exists());
    write(&lease.path().join("c"), "d");
    let next = commit_all(lease.path(), "d");
    git(&r.code, &["-c", "core.hooksPath=/dev/null", "worktree", "add", "-q", "../look", b]);
    let got = deliver(&r.mirror, b, &next, Some(&tip)).await.unwrap();
    assert!(matches!(got, Delivered::CheckedOut { .. }), "{got:?}");
    git(&r.code, &["-c", "core.hooksPath=/dev/null", "worktree", "remove", "../look"]);
    git(&r.code, &["-c", "core.hooksPath=/dev/null", "branch", "-f", b, "main"]);
    assert_eq!(
        deliver(&r.mirror, b, &next, Some(&tip)).await.unwrap(),
        Delivered::MovedThere { now: Some(r.base.clone()) }
    );
    assert_eq!(deliver(&r.mirror, b, &next, Some(&r.base)).await.unwrap(), Delivered::Done);
    assert!(!mark.exists());
    let config = std::fs::read_to_string(r.code.join(".git/config")).unwrap();
    assert!(!config.contains("overnight"), "{config}");
}

#[tokio::test]
async fn landing_moves_a_clean_checkout_forward_and_nothing_else() {
    let r = rig().await;
    let lease = r.take("t1").await;
    write(&lease.path().join("c"), "c\n");
    write(&lease.path().join("out.txt"), "from the task\n");
    git(lease.path(), &["rm", "-q", "b.txt"]);
    let tip = commit_all(lease.path(), "c");
    assert_eq!(land(&r.mirror, "main", &r.base).await.unwrap(), Landed::Already);
    // Dirty.
    write(&r.code.join("a.txt"), "mine\n");
    let got = land(&r.mirror, "main", &tip).await.unwrap();
    assert_eq!(got, Landed::Dirty { at: r.code.clone(), files: vec![b"a.txt".to_vec()] });
    git(&r.code, &["checkout", "-q", "a.txt"]);
    // An untracked file in the way, and another that is not.
    write(&r.code.join("out.txt"), "mine\n");
    write(&r.code.join("scratch"), "mine\n");
    let got = land(&r.mirror, "main", &tip).await.unwrap();
    assert!(matches!(&got, Landed::Refused { text, .. } if text.contains("out.txt")), "{got:?}");
    assert_eq!(std::fs::read_to_string(r.code.join("out.txt")).unwrap(), "mine\n");
    assert_eq!(oid(&r.code, "main"), r.base);
    assert!(r.code.join("b.txt").exists());
    std::fs::remove_file(r.code.join("out.txt")).unwrap();
    // In the middle of something.
    write(&r.code.join(".git/MERGE_HEAD"), &format!("{}\n", r.base));
    let got = land(&r.mirror, "main", &tip).await.unwrap();
    assert!(matches!(got, Landed::Busy { what: Busy::Unfinished(Unfinished::Merge), .. }), "{got:?}");
    std::fs::remove_file(r.code.join(".git/MERGE_HEAD")).unwrap();
    let got = land(&r.mirror, "main", &tip).await.unwrap();
    assert_eq!(got, Landed::Forward { old: r.base.clone(), new: tip.clone(), at: Some(r.code.clone()) });
    assert_eq!(git(&r.code, &["status", "--porcelain"]), "?? scratch");
    assert!(!r.code.join("b.txt").exists());
    assert_eq!(land(&r.mirror, "main", &tip).await.unwrap(), Landed::Already);
    // The user went on: not forward any more.
    write(&r.code.join("mine"), "x");
    let mine = commit_all(&r.code, "mine");
    write(&lease.path().join("c"), "d\n");
    let next = commit_all(lease.path(), "d");
    assert_eq!(land(&r.mirror, "main", &next).await.unwrap(), Landed::NotForward { base: mine });
    // Checked out nowhere.
    git(&r.code, &["branch", "-q", "rel", tip.as_str()]);
    assert_eq!(land(&r.mirror, "rel", &next).await.unwrap(), Landed::Forward { old: tip, new: next.clone(), at: None });
    assert_eq!(oid(&r.code, "rel"), next);
    r.fsck();
}

#[tokio::test]
async fn squashed_content_is_known_although_other_commits_came_since() {
    let r = rig().await;
    let lease = r.take("t1").await;
    write(&lease.path().join("c"), "c\n");
    commit_all(lease.path(), "c");
    let text = std::fs::read_to_string(lease.path().join("a.txt")).unwrap().replace("line 3\n", "line three\n");
    write(&lease.path().join("a.txt"), &text);
    let tip = commit_all(lease.path(), "a");
    assert!(!squashed(&r.mirror, &r.base, &tip).await.unwrap());
    write(&r.code.join("c"), "c\n");
    write(&r.code.join("a.txt"), &text);
    let squash = commit_all(&r.code, "squash");
    r.mirror.refresh().await.unwrap();
    assert!(squashed(&r.mirror, &squash, &tip).await.unwrap());
    write(&r.code.join("a.txt"), &text.replace("line 25\n", "line twenty-five\n"));
    let later = commit_all(&r.code, "later");
    r.mirror.refresh().await.unwrap();
    assert!(squashed(&r.mirror, &later, &tip).await.unwrap());
}

#[tokio::test]
async fn an_integration_worktree_is_reused_and_spotless_each_time() {
    let r = rig().await;
    let lease = r.take("t1").await;
    write(&lease.path().join("c"), "c\n");
    let tip = commit_all(lease.path(), "c");
    let at = r.top.join("data/check/1");
    let w = integration(&r.mirror, &at, &r.base).await.unwrap();
    write(&w.path().join("target/cache"), "built by an agent's code");
    write(&w.path().join("a.txt"), "scribbled");
    let w = integration(&r.mirror, &at, &tip).await.unwrap();
    assert_eq!(git(w.path(), &["status", "--porcelain", "--ignored"]), "");
    assert_eq!(oid(w.path(), "HEAD"), tip);
    std::fs::remove_file(w.path().join(".git")).unwrap();
    let w = integration(&r.mirror, &at, &r.base).await.unwrap();
    assert_eq!(oid(w.path(), "HEAD"), r.base);
    // A kill while it is made leaves the folder, at most with its link, and no registration.
    let link = std::fs::read(w.path().join(".git")).unwrap();
    for left in [Some(&link[..]), Some(&link[..9]), None] {
        std::fs::remove_dir_all(w.git_dir()).unwrap();
        std::fs::remove_dir_all(w.path()).unwrap();
        std::fs::create_dir(w.path()).unwrap();
        if let Some(left) = left {
            std::fs::write(w.path().join(".git"), left).unwrap();
        }
        assert_eq!(oid(integration(&r.mirror, &at, &tip).await.unwrap().path(), "HEAD"), tip);
    }
    write(&r.top.join("mine/file"), "x");
    assert!(matches!(integration(&r.mirror, &r.top.join("mine"), &tip).await, Err(WorktreeError::Taken(_))));
}

/// Prints what each operation costs: `cargo bench --bench hands code`.
#[allow(dead_code, reason = "for benches/hands.rs")]
pub(crate) async fn figures() {
    let files: usize = std::env::var("FILES").ok().and_then(|f| f.parse().ok()).unwrap_or(100);
    let rounds: usize = std::env::var("ROUNDS").ok().and_then(|f| f.parse().ok()).unwrap_or(15);
    let r = rig().await;
    for n in 0..files {
        write(&r.code.join(format!("d{}/f{n}", n % 100)), &format!("content of {n}\n"));
    }
    let base = commit_all(&r.code, "many");
    r.mirror.refresh().await.unwrap();
    let mut times: std::collections::BTreeMap<&str, Vec<f64>> = std::collections::BTreeMap::new();
    let mut target = base.clone();
    let mut delivered = None;
    for round in 0..rounds {
        let mut clock = std::time::Instant::now();
        let mut lap = |what: &'static str| {
            let ms = clock.elapsed().as_secs_f64() * 1000.0;
            times.entry(what).or_default().push(ms);
            clock = std::time::Instant::now();
        };
        let name = format!("t{round}");
        let lease = r.pool.take(&task(&name).branch(), &target).await.unwrap();
        lap(if round == 0 { "1 take, new" } else { "2 take, aged" });
        write(&lease.path().join(&name), "x");
        if round % 2 == 0 {
            commit_all(lease.path(), "agent");
        }
        lap("0 agent");
        let got = take_up(&lease).await.unwrap();
        lap(if round % 2 == 0 { "3 collect, committed" } else { "4 collect, leftovers" });
        let (who, t) = (who(), task(&name));
        let ask = Candidate {
            target: &target,
            work: &got.tip,
            message: "m",
            committer: &who,
            task: &t,
            epoch: Epoch(1),
            since: Some(&base),
        };
        let (commit, _) = clean_merge(try_merge(&r.mirror, ask).await.unwrap());
        lap("5 try_merge");
        let old = r.mirror.branch_tip("overnight/main").unwrap();
        assert_eq!(move_branch(&r.mirror, "overnight/main", &commit, old.as_ref()).await.unwrap(), Moved::Moved);
        lap("6 move_branch");
        let done = deliver(&r.mirror, "overnight/main", &commit, delivered.as_ref()).await.unwrap();
        assert_eq!(done, Delivered::Done);
        delivered = Some(commit.clone());
        target = commit;
        lap("7 deliver");
        let kept = rescue(&lease, &t, 1, Some(&target)).await.unwrap();
        lap("8 rescue, merged");
        r.pool.give_back(lease, &kept).await.unwrap();
        lap("9 give_back");
    }
    for (what, mut ms) in times {
        ms.sort_by(f64::total_cmp);
        println!("{what}: p50 {:.1} min {:.1} ms", ms[ms.len() / 2], ms[0]);
    }
}

/// What git neither lists nor cleans, and what it may not read: no later task finds it, and no work in it is lost.
#[tokio::test]
async fn pipes_empty_folders_and_closed_folders_reach_no_later_task() {
    let r = rig().await;
    let lease = r.take("t1").await;
    let path = lease.path().to_owned();
    nix::unistd::mkfifo(&path.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::create_dir_all(path.join("empty/deep")).unwrap();
    write(&path.join("closed/sub/work"), "work\n");
    for folder in ["closed/sub", "closed", "empty"] {
        std::fs::set_permissions(path.join(folder), std::fs::Permissions::from_mode(0o000)).unwrap();
    }
    let got = take_up(&lease).await.unwrap();
    assert_eq!(git(r.mirror.git_dir(), &["show", &format!("{}:closed/sub/work", got.tip)]), "work");
    r.done(lease, "t1").await;
    let again = r.take("t2").await;
    assert_eq!(again.path(), path, "the pool lends it again");
    for left in ["pipe", "empty", "closed"] {
        assert!(path.join(left).symlink_metadata().is_err(), "{left}");
    }
    assert_eq!(git(&path, &["status", "--porcelain", "--ignored"]), "");
}

/// A worktree that is lent again has its files as the commit's own attributes want them, also those that did not change.
#[tokio::test]
async fn other_attributes_write_unchanged_files_anew() {
    let r = rig().await;
    write(&r.code.join("lines.txt"), "one\ntwo\n");
    let plain = commit_all(&r.code, "plain");
    write(&r.code.join(".gitattributes"), "* text eol=crlf\n");
    let crlf = commit_all(&r.code, "crlf");
    r.mirror.refresh().await.unwrap();
    let at = r.top.join("check");
    for (commit, text) in [(&plain, "one\ntwo\n"), (&crlf, "one\r\ntwo\r\n"), (&plain, "one\ntwo\n")] {
        let w = integration(&r.mirror, &at, commit).await.unwrap();
        assert_eq!(std::fs::read_to_string(w.path().join("lines.txt")).unwrap(), text);
    }
    for (n, (commit, text)) in
        [(&plain, "one\ntwo\n"), (&crlf, "one\r\ntwo\r\n"), (&plain, "one\ntwo\n")].iter().enumerate()
    {
        let name = format!("t{n}");
        let lease = r.pool.take(&task(&name).branch(), commit).await.unwrap();
        assert_eq!(std::fs::read_to_string(lease.path().join("lines.txt")).unwrap(), *text, "{name}");
        r.done(lease, &name).await;
    }
}
