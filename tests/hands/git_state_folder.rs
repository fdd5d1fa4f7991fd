//! A person's folder as a peer: what is read from it, how it is brought up, what a kill in the middle leaves behind, and
//! that no order of a person's and the machine's steps loses anything of either.

use super::git_state::{by, git, put, quick, take_in_folder, text, with_folder};
use overnight::domain::Oid;
use overnight::git::folder::Folder;
use overnight::git::folder_update::{BroughtUp, Imported, LeftAlone};
use overnight::git::state_commit::Change;
use overnight::git::state_repo::StateRepo;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const MAIN: &str = "refs/heads/main";

/// What a person does, in words and as an act.
type Kind = (&'static str, fn(&Path));

fn open(folder: &Path) -> Folder {
    Folder::open(folder, MAIN, &folder.with_extension("record")).unwrap()
}

fn write(folder: &Path, at: &str, text: &str) {
    let at = folder.join(at);
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::fs::write(at, text).unwrap();
}

fn read(folder: &Path, at: &str) -> Option<String> {
    std::fs::read_to_string(folder.join(at)).ok()
}

async fn bring_up(folder: &Path, state: &StateRepo, imported: &[Imported]) -> BroughtUp {
    let tip = state.tip().unwrap().unwrap();
    open(folder).bring_up(state, &tip, imported).await.unwrap()
}

fn head(folder: &Path) -> String {
    git(folder, &["rev-parse", "HEAD"])
}

#[tokio::test]
async fn a_scan_finds_edits_and_follows_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (at, _state) = with_folder(dir.path()).await;
    let folder = open(&at);
    assert_eq!(folder.scan_wishes(None).unwrap(), Default::default());
    write(&at, "tasks/b/README.md", "edited\n");
    write(&at, "tasks/new/README.md", "untracked\n");
    write(&at, "tasks/new/deep/README.md", "untracked, deep\n");
    write(&at, "tasks/staged/README.md", "staged\n");
    git(&at, &["add", "tasks/staged"]);
    std::fs::remove_file(at.join("tasks/c/README.md")).unwrap();
    for leftover in [".README.md.swp", "4913", "README.md~", "#README.md#", "README.md.tmp"] {
        write(&at, &format!("tasks/a/{leftover}"), "leftover");
    }
    let secret = dir.path().join("secret");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("README.md"), "secret").unwrap();
    std::os::unix::fs::symlink(&secret, at.join("tasks/linked")).unwrap();
    std::fs::create_dir(at.join("tasks/link")).unwrap();
    std::os::unix::fs::symlink(secret.join("README.md"), at.join("tasks/link/README.md")).unwrap();
    std::fs::create_dir(at.join("tasks/pipe")).unwrap();
    nix::unistd::mkfifo(&at.join("tasks/pipe/README.md"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::create_dir_all(at.join("tasks/folder/README.md")).unwrap();
    write(&at, "tasks/big/README.md", &"x".repeat(1024 * 1024 + 1));
    let scan = folder.scan_wishes(None).unwrap();
    let edits: Vec<_> = scan.edits.iter().map(|e| String::from_utf8_lossy(&e.path).into_owned()).collect();
    let expected = ["b", "new", "new/deep", "staged"].map(|t| format!("tasks/{t}/README.md"));
    let sorted = |mut v: Vec<String>| {
        v.sort();
        v
    };
    assert_eq!(sorted(edits), expected);
    assert_eq!(scan.deleted, [b"tasks/c/README.md".to_vec()]);
    let skipped: Vec<_> = scan.skipped.iter().map(|(_, why)| *why).collect();
    assert_eq!(skipped, ["larger than 1 MiB", "no regular file", "a symbolic link", "no regular file"]);
    let first = &scan.edits.iter().find(|e| e.bytes == b"edited\n").unwrap().blob;
    assert_eq!(git(&at, &["hash-object", "tasks/b/README.md"]), first.as_str());
    // The same by name; through a linked folder there is nothing.
    let names: Vec<_> = ["b", "new", "link", "linked", "pipe", "c", "nowhere"]
        .map(|t| format!("tasks/{t}/README.md").into_bytes())
        .into();
    let named = folder.scan_wishes(Some(&names)).unwrap();
    assert_eq!(named.edits.len(), 2);
    assert_eq!(named.deleted, scan.deleted);
    // An edit of equal length within the index's own tick is seen too.
    git(&at, &["add", "tasks/b/README.md"]);
    git(&at, &["commit", "-qm", "b", "--", "tasks/b/README.md"]);
    write(&at, "tasks/b/README.md", "EDITED\n");
    let named = folder.scan_wishes(Some(&names[..1])).unwrap();
    assert_eq!(named.edits.len(), 1);
}

/// Everything of a person's that is not committed.
fn uncommitted(folder: &Path) -> String {
    let staged = git(folder, &["diff", "--cached", "--no-renames", "--", ".", ":!*state.json"]);
    let status = git(folder, &["status", "--porcelain", "-uall", "--no-renames"]);
    let files = status.lines().filter(|l| !l.starts_with("D ")).map(|l| {
        let at = l[3..].trim_matches('"');
        format!("{at}: {:?}\n", read(folder, at))
    });
    // Hunks name blobs and lines that may move on; the changed lines may not.
    let lines = staged.lines().filter(|l| l.starts_with(['+', '-']));
    format!("{status}\n{}\n{}", lines.collect::<Vec<_>>().join("\n"), files.collect::<String>())
}

#[tokio::test]
async fn edits_of_every_kind_stay_while_the_machines_files_move() {
    let dir = tempfile::tempdir().unwrap();
    let (at, state) = with_folder(dir.path()).await;
    let kinds: [Kind; 9] = [
        ("none", |_| {}),
        ("unstaged", |at| write(at, "tasks/b/README.md", "unstaged\n")),
        ("staged", |at| {
            write(at, "tasks/b/README.md", "staged\n");
            git(at, &["add", "-A"]);
        }),
        ("staged, then edited again", |at| {
            write(at, "tasks/b/README.md", "staged\n");
            git(at, &["add", "-A"]);
            write(at, "tasks/b/README.md", "and more\n");
        }),
        ("untracked", |at| write(at, "tasks/fresh/README.md", "untracked\n")),
        ("added", |at| {
            write(at, "tasks/fresh/README.md", "added\n");
            git(at, &["add", "-A"]);
        }),
        ("deleted", |at| std::fs::remove_file(at.join("tasks/b/README.md")).unwrap()),
        ("deleted and staged", |at| {
            git(at, &["rm", "-q", "tasks/b/README.md"]);
        }),
        ("renamed", |at| {
            git(at, &["mv", "tasks/b", "tasks/renamed"]);
        }),
    ];
    for (n, (what, edit)) in kinds.iter().enumerate() {
        edit(&at);
        let before = uncommitted(&at);
        let fresh = vec![
            Change::write("tasks/a/state.json", n.to_string()),
            Change::append("tasks/a/log.jsonl", format!("{n}\n")),
            Change::write("tasks/README.md", format!("# Tasks\n{n}\n")),
            Change::write(format!("tasks/m{n}/README.md"), "from elsewhere\n"),
        ];
        put(&state, fresh).await;
        let answer = bring_up(&at, &state, &[]).await;
        assert!(matches!(answer, BroughtUp::Moved { .. }), "{what}: {answer:?}");
        assert_eq!(uncommitted(&at), before, "{what}");
        assert_eq!(head(&at), state.tip().unwrap().unwrap().as_str());
        assert_eq!(read(&at, "tasks/a/state.json").unwrap(), n.to_string());
        assert_eq!(read(&at, &format!("tasks/m{n}/README.md")).as_deref(), Some("from elsewhere\n"));
        assert!(!at.join(".git/index.lock").exists());
        // A commit of what was edited takes nothing of the machine's back.
        git(&at, &["add", "-A"]);
        git(&at, &["commit", "-qm", "person", "--allow-empty"]);
        take_in_folder(&state, &at).await;
        assert_eq!(text(&state, "tasks/a/state.json").unwrap(), n.to_string());
        git(&at, &["reset", "-q", "--hard", "HEAD~1"]);
        git(&at, &["clean", "-qfdx"]);
        // The next round starts from a folder and a state repo that agree.
        let tip = state.tip().unwrap().unwrap();
        git(&at, &["fetch", "-q", state.path().to_str().unwrap(), tip.as_str()]);
        git(&at, &["reset", "-q", "--hard", tip.as_str()]);
        put(
            &state,
            vec![
                Change::write("tasks/b/README.md", "b\n"),
                Change::delete("tasks/fresh"),
                Change::delete("tasks/renamed"),
            ],
        )
        .await;
        assert!(matches!(bring_up(&at, &state, &[]).await, BroughtUp::Moved { .. } | BroughtUp::UpToDate));
    }
    assert_eq!(git(&at, &["status", "--porcelain"]), "");
    let left: Vec<_> = std::fs::read_dir(at.join(".git")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("overnight")), "{left:?}");
    assert!(!at.join(".git/FETCH_HEAD").exists() || std::fs::metadata(at.join(".git/FETCH_HEAD")).is_ok());
    assert_eq!(git(&at, &["for-each-ref", "--format=%(refname)"]), "refs/heads/main", "no ref of ours there");
}

#[tokio::test]
async fn an_imported_edit_becomes_part_of_head_and_later_edits_stay_on_top() {
    let dir = tempfile::tempdir().unwrap();
    let (at, state) = with_folder(dir.path()).await;
    let folder = open(&at);
    write(&at, "tasks/b/README.md", "edited\n");
    write(&at, "tasks/new/README.md", "untracked\n");
    write(&at, "tasks/c/README.md", "first\n");
    write(&at, "tasks/a/README.md", "one\ntwo\nthree\nfour\nFIVE\n");
    git(&at, &["add", "tasks/a"]);
    let scan = folder.scan_wishes(None).unwrap();
    assert_eq!(scan.edits.len(), 4);
    let imported: Vec<_> = scan.edits.iter().map(|e| Imported { path: e.path.clone(), blob: e.blob.clone() }).collect();
    let changes = scan.edits.iter().map(|e| Change::write(e.path.clone(), e.bytes.clone()));
    put(&state, changes.collect()).await;
    // A verb changed one of them after that, and the person another.
    put(&state, vec![Change::write("tasks/b/README.md", "edited\nretry\n")]).await;
    write(&at, "tasks/c/README.md", "second\n");
    assert!(matches!(bring_up(&at, &state, &imported).await, BroughtUp::Moved { .. }));
    assert_eq!(git(&at, &["status", "--porcelain"]), " M tasks/c/README.md");
    assert_eq!(read(&at, "tasks/b/README.md").unwrap(), "edited\nretry\n");
    assert_eq!(read(&at, "tasks/c/README.md").unwrap(), "second\n");
    assert_eq!(git(&at, &["show", "HEAD:tasks/c/README.md"]), "first");
    // What is said to be imported and never was is not replaced.
    let blob = git(&at, &["hash-object", "tasks/c/README.md"]);
    let lie = [Imported { path: b"tasks/c/README.md".to_vec(), blob: Oid::parse(&blob).unwrap() }];
    put(&state, vec![Change::write("tasks/c/README.md", "third\n")]).await;
    let answer = bring_up(&at, &state, &lie).await;
    assert_eq!(answer, BroughtUp::LeftAlone(LeftAlone::Clash(vec![])), "git sees the edit");
    assert_eq!(read(&at, "tasks/c/README.md").unwrap(), "second\n");
}

#[tokio::test]
async fn a_folder_that_does_not_go_together_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (at, state) = with_folder(dir.path()).await;
    let clashes: [Kind; 7] = [
        ("unstaged", |at| write(at, "tasks/b/README.md", "mine\n")),
        ("staged", |at| {
            write(at, "tasks/b/README.md", "mine\n");
            git(at, &["add", "-A"]);
        }),
        ("staged, restored on disk", |at| {
            write(at, "tasks/b/README.md", "mine\n");
            git(at, &["add", "-A"]);
            write(at, "tasks/b/README.md", "b\n");
        }),
        ("deleted", |at| std::fs::remove_file(at.join("tasks/b/README.md")).unwrap()),
        ("untracked in the way", |at| write(at, "tasks/new/README.md", "mine\n")),
        ("ignored in the way", |at| {
            write(at, "tasks/new/README.md", "mine\n");
            write(at, ".git/info/exclude", "new\n");
        }),
        ("a file where a folder is to be", |at| write(at, "tasks/new", "mine\n")),
    ];
    for (what, edit) in clashes {
        put(&state, vec![Change::write("tasks/b/README.md", "b\n"), Change::delete("tasks/new")]).await;
        git(&at, &["clean", "-qfdx"]);
        git(&at, &["reset", "-q", "--hard"]);
        assert!(matches!(bring_up(&at, &state, &[]).await, BroughtUp::Moved { .. } | BroughtUp::UpToDate));
        put(
            &state,
            vec![
                Change::write("tasks/b/README.md", what),
                Change::write("tasks/new/README.md", "from elsewhere\n"),
                Change::write("tasks/a/state.json", what),
            ],
        )
        .await;
        edit(&at);
        let (before, was) = (uncommitted(&at), head(&at));
        let answer = bring_up(&at, &state, &[]).await;
        assert!(matches!(answer, BroughtUp::LeftAlone(LeftAlone::Clash(_))), "{what}: {answer:?}");
        assert_eq!((uncommitted(&at), head(&at)), (before, was), "{what}");
        assert!(!at.join(".git/index.lock").exists());
    }
    git(&at, &["reset", "-q", "--hard"]);
    git(&at, &["clean", "-qfdx"]);
    write(&at, ".git/info/exclude", "");
    let left = |answer| match answer {
        BroughtUp::LeftAlone(why) => why,
        other => panic!("{other:?}"),
    };
    write(&at, ".git/index.lock", "another program's");
    assert_eq!(left(bring_up(&at, &state, &[]).await), LeftAlone::IndexLocked);
    assert_eq!(read(&at, ".git/index.lock").as_deref(), Some("another program's"));
    std::fs::remove_file(at.join(".git/index.lock")).unwrap();
    write(&at, ".git/MERGE_HEAD", &head(&at));
    assert_eq!(left(bring_up(&at, &state, &[]).await), LeftAlone::Busy("merge"));
    std::fs::remove_file(at.join(".git/MERGE_HEAD")).unwrap();
    git(&at, &["checkout", "-q", "--detach"]);
    assert_eq!(left(bring_up(&at, &state, &[]).await), LeftAlone::Detached);
    git(&at, &["checkout", "-q", "-b", "other"]);
    assert_eq!(left(bring_up(&at, &state, &[]).await), LeftAlone::OtherBranch("refs/heads/other".into()));
    git(&at, &["checkout", "-q", "main"]);
    git(&at, &["commit", "-q", "--allow-empty", "-m", "mine"]);
    assert_eq!(left(bring_up(&at, &state, &[]).await), LeftAlone::Diverged);
    take_in_folder(&state, &at).await;
    assert!(matches!(bring_up(&at, &state, &[]).await, BroughtUp::Moved { .. }));
    let status = open(&at).status(state.tip().unwrap().as_ref()).unwrap();
    assert_eq!((status.branch.as_deref(), status.busy), (Some(MAIN), None));
    assert_eq!(status.relation.map(|r| (r.ahead, r.behind)), Some((0, 0)));
}

/// Brings a folder up for ever, for the test below to kill.
#[tokio::test]
async fn bring_up_until_killed() {
    let Some(dir) = std::env::var_os("OVERNIGHT_TEST_FOLDER").map(PathBuf::from) else { return };
    let state = StateRepo::open(&dir.join("state.git")).unwrap().with_tries(quick()).without_sync();
    loop {
        let n = text(&state, "tasks/a/state.json").and_then(|t| t.parse::<u64>().ok()).unwrap_or(0) + 1;
        let many =
            (0..40).map(|i| Change::write(format!("tasks/x{i}/state.json"), format!("{n} {}", "y".repeat(20_000))));
        let one = [
            Change::write("tasks/a/state.json", n.to_string()),
            Change::write("tasks/b/README.md", format!("{n}\n")),
            Change::write(format!("tasks/n{n}/README.md"), "new\n"),
        ];
        put(&state, many.chain(one).collect()).await;
        bring_up(&dir.join("folder"), &state, &[]).await;
    }
}

#[tokio::test]
async fn a_kill_at_any_moment_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let (at, state) = with_folder(dir.path()).await;
    drop(state);
    write(&at, "tasks/c/README.md", "a person's edit\n");
    write(&at, "tasks/fresh/README.md", "untracked\n");
    let mut half_done = 0;
    for n in 0..16_u64 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "git_state_folder::bring_up_until_killed"])
            .env("OVERNIGHT_TEST_FOLDER", dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(200 + n * 23 % 97)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        half_done += u32::from(at.join(".git/index.lock").exists());
        let state = StateRepo::open(&dir.path().join("state.git")).unwrap().without_sync();
        state.clear_stale_locks().unwrap();
        let folder = open(&at);
        assert!(folder.repair().await.unwrap());
        assert_eq!(git(&at, &["status", "--porcelain", "-uall"]), " M tasks/c/README.md\n?? tasks/fresh/README.md");
        let answer = bring_up(&at, &state, &[]).await;
        assert!(matches!(answer, BroughtUp::Moved { .. } | BroughtUp::UpToDate), "{answer:?}");
        assert_eq!(read(&at, "tasks/c/README.md").as_deref(), Some("a person's edit\n"));
        assert!(!at.join(".git/index.lock").exists());
    }
    assert!(half_done > 0, "no kill came in the middle");
}

/// A seeded generator, so that a failure can be run again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// What a person's files are in the work tree.
fn persons_files(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in std::fs::read_dir(&at).unwrap().map(Result::unwrap) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().unwrap().is_dir() {
                if name != ".git" {
                    todo.push(entry.path());
                }
            } else if name == "README.md" && at != folder.join("tasks") || name == "notes.txt" {
                let path = entry.path().strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                found.insert(path, std::fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    found
}

/// The machine's side of one round: take in, import, write, bring up.
async fn machine(folder: &Path, state: &StateRepo, dice: &mut Dice, n: u64, log: &mut Vec<String>) -> BroughtUp {
    if dice.roll(4) > 0 {
        take_in_folder(state, folder).await;
    }
    let mut imported = Vec::new();
    if dice.roll(2) == 0 {
        // Only what stands on our tip can be imported as it is; else the commits come first.
        let tip = state.tip().unwrap().unwrap();
        let theirs = Oid::parse(&head(folder)).unwrap();
        let scan = open(folder).scan_wishes(None).unwrap();
        let in_step = |path: &[u8]| {
            let theirs = state.is_ancestor(&theirs, &tip).unwrap().then(|| state.read_file(&theirs, path).unwrap());
            theirs == Some(state.read_file(&tip, path).unwrap())
        };
        for edit in scan.edits.into_iter().filter(|e| in_step(&e.path)) {
            put(state, vec![Change::write(edit.path.clone(), edit.bytes)]).await;
            imported.push(Imported { path: edit.path, blob: edit.blob });
        }
    }
    let task = format!("t{}", dice.roll(4));
    log.push(format!("machine {n}"));
    put(
        state,
        vec![
            Change::append(format!("tasks/{task}/log.jsonl"), format!("machine {n}\n")),
            Change::write(format!("tasks/{task}/state.json"), n.to_string()),
            Change::write("tasks/README.md", format!("# Tasks {n}\n")),
        ],
    )
    .await;
    bring_up(folder, state, &imported).await
}

/// One step of a person; `lines` are those that must be somewhere in the end.
fn person(folder: &Path, dice: &mut Dice, n: u64, lines: &mut Vec<String>) {
    let file = match dice.roll(6) {
        5 => "notes.txt".to_owned(),
        t => format!("tasks/t{t}/README.md"),
    };
    match dice.roll(10) {
        0..5 => {
            let old = read(folder, &file).unwrap_or_default();
            write(folder, &file, &format!("{old}person {n}\n"));
            lines.push(format!("person {n}"));
        }
        5 => write(folder, &format!("tasks/t{}/state.json", dice.roll(4)), "forged"),
        6 => {
            git(folder, &["add", "--ignore-errors", "--", "."]);
        }
        7 => {
            git(folder, &["commit", "-qm", "staged", "--allow-empty"]);
        }
        8 => {
            git(folder, &["add", "-A"]);
            git(folder, &["commit", "-qm", "all", "--allow-empty"]);
        }
        // A stash that cannot be made (nothing tracked changed) is no step.
        _ if git(folder, &["status", "--porcelain", "-uno"]).is_empty() => {}
        _ => {
            git(folder, &["stash", "-q"]);
            git(folder, &["stash", "pop", "-q", "--index"]);
        }
    }
}

#[tokio::test]
async fn no_order_of_steps_loses_anything_of_either_side() {
    let seed = std::env::var("OVERNIGHT_TEST_SEED").ok().and_then(|s| s.parse().ok());
    let (mut moved, mut alone) = (0, 0);
    for seed in seed.map_or(1..5, |seed: u64| seed..seed + 1) {
        let dir = tempfile::tempdir().unwrap();
        let (at, state) = with_folder(dir.path()).await;
        let (mut lines, mut log) = (Vec::new(), Vec::new());
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for n in 0..70 {
            if dice.roll(3) > 0 {
                person(&at, &mut dice, n, &mut lines);
            } else {
                let before = persons_files(&at);
                match machine(&at, &state, &mut dice, n, &mut log).await {
                    BroughtUp::Moved { .. } => moved += 1,
                    BroughtUp::LeftAlone(_) => alone += 1,
                    BroughtUp::UpToDate => {}
                }
                assert_eq!(persons_files(&at), before, "seed {seed}, step {n}");
            }
        }
        git(&at, &["checkout", "-q", "HEAD", "--", "tasks/README.md"]);
        git(&at, &["add", "-A"]);
        git(&at, &["commit", "-qm", "last", "--allow-empty"]);
        take_in_folder(&state, &at).await;
        let answer = bring_up(&at, &state, &[]).await;
        assert!(!matches!(answer, BroughtUp::LeftAlone(_)), "seed {seed}: {answer:?}");
        assert_eq!(git(&at, &["status", "--porcelain"]), "", "seed {seed}");
        let tip = state.tip().unwrap().unwrap();
        assert_eq!(head(&at), tip.as_str());
        let all = git(state.path(), &["grep", "-h", "-e", "", tip.as_str()]);
        let plain = git(state.path(), &["grep", "-h", "-e", "", tip.as_str(), "--", ":!*.kept-*"]);
        for line in lines.iter().chain(&log) {
            assert!(all.lines().any(|l| l == line), "seed {seed}: {line:?} is lost");
            assert!(plain.lines().filter(|l| l == line).count() <= 1, "seed {seed}: {line:?} is doubled");
        }
        assert!(!all.contains("forged") && !all.contains("<<<<") && !all.contains(">>>>"), "seed {seed}");
        git(state.path(), &["fsck", "--strict", "--no-dangling"]);
    }
    assert!(seed.is_some() || (moved > 10 && alone > 0), "moved {moved}, left alone {alone}");
}

#[tokio::test]
async fn init_makes_a_repo_and_keeps_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("folder");
    write(&at, "README.md", "mine");
    write(&at, "other.txt", "not to be committed");
    let files = [("README.md", b"ours".to_vec()), ("tasks/README.md", b"# Tasks\n".to_vec())];
    let first = overnight::git::state_repo::init_folder(&at, &files, "Pat", "pat@example.org").await.unwrap();
    assert_eq!(git(&at, &["log", "--format=%H %an"]), format!("{first} Pat"));
    assert_eq!(git(&at, &["ls-files"]), ".gitignore\nREADME.md\ntasks/README.md");
    assert_eq!(read(&at, "README.md").as_deref(), Some("mine"));
    for leftover in [".README.md.swp", "4913", "README.md~", "#README.md#", ".#README.md"] {
        write(&at, &format!("tasks/{leftover}"), "leftover");
    }
    assert_eq!(git(&at, &["status", "--porcelain", "-uall"]), "?? other.txt");
    let _ = by();
}
