//! The user's repository as the source of a mirror: what it is like, how its objects come over (hard links, or from its
//! remote where it is shallow or partial), and which part of its configuration a mirror takes over.

use super::mirror::{MirrorError, USER_REFS, user_heads};
use super::odb::Odb;
use super::{Git, GitError, seal};
use crate::domain::Oid;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// HEAD of a mirror: a branch that never comes to be.
const NO_BRANCH: &str = "ref: refs/heads/overnight/-none-\n";
/// Agents that push get git's own refusal of this scheme.
const NO_PUSH: &str = "pushing-is-off://overnight-merges-and-lands";

/// What a user's repository is like.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) common: PathBuf,
    pub(super) shallow: bool,
    pub(super) partial: bool,
    format: String,
    /// Local configuration in order; a key without a value is a bare `true`.
    config: Vec<(String, Option<Vec<u8>>)>,
}

impl Source {
    /// Two commands.
    pub(super) async fn inspect(path: &Path) -> Result<Self, MirrorError> {
        let place =
            path.canonicalize().map_err(|e| MirrorError::NotARepository { path: path.into(), text: e.to_string() })?;
        let refuse = |e: GitError| MirrorError::NotARepository { path: place.clone(), text: e.text() };
        let ask = Git::at(&place)
            .args(["-c", "safe.bareRepository=all", "rev-parse", "--is-shallow-repository", "--show-object-format"])
            .args(["--path-format=absolute", "--git-common-dir"]);
        let out = ask.run().await.map_err(refuse)?;
        let mut lines = out.stdout.splitn(3, |b| *b == b'\n');
        let mut line = || lines.next().unwrap_or_default();
        let shallow = line() == b"true";
        let format = String::from_utf8_lossy(line()).into_owned();
        let common = line();
        let common = PathBuf::from(OsString::from_vec(common.strip_suffix(b"\n").unwrap_or(common).to_vec()));
        let out = Git::bare(&common).args(["config", "--local", "--includes", "--list", "-z"]).run().await?;
        let config: Vec<_> = out
            .records()
            .map(|r| {
                let mut parts = r.splitn(2, |b| *b == b'\n');
                let key = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
                (key, parts.next().map(<[u8]>::to_vec))
            })
            .collect();
        let partial = config.iter().any(|(k, _)| k == "extensions.partialclone" || k.ends_with(".promisor"));
        Ok(Self { common, shallow, partial, format, config })
    }

    fn value(&self, key: &str) -> Option<&[u8]> {
        self.config.iter().rev().find(|(k, _)| k == key)?.1.as_deref()
    }

    /// Name and address of the remote that counts: `origin`, else the only one.
    fn remote(&self) -> Option<(String, Vec<u8>)> {
        let mut names: Vec<&str> =
            self.config.iter().filter_map(|(k, _)| k.strip_prefix("remote.")?.strip_suffix(".url")).collect();
        names.dedup();
        let name = if names.contains(&"origin") { "origin" } else { *names.first().filter(|_| names.len() == 1)? };
        let url = self.value(&format!("remote.{name}.url"))?.to_vec();
        // A path relative to the user's checkout would mean another place in the mirror.
        let relative = !url.starts_with(b"/") && !url.contains(&b':');
        let top = if self.common.ends_with(".git") { self.common.parent()? } else { &self.common };
        let url = if relative { top.join(OsString::from_vec(url)).into_os_string().into_vec() } else { url };
        Some((name.to_owned(), url))
    }

    /// A bare clone with hard links; a copy where the source's object folder holds links or is another file system.
    pub(super) async fn clone_into(&self, draft: &Path) -> Result<(), MirrorError> {
        let clone = |how: &str| {
            Git::at(draft.parent().unwrap_or(Path::new("/")))
                .env("GIT_DEFAULT_REF_FORMAT", "files")
                .args(["clone", "--quiet", "--bare", how, "--template=", "--"])
                .arg(&self.common)
                .arg(draft)
        };
        if clone("--local").run().await.is_err() {
            let _ = std::fs::remove_dir_all(draft);
            clone("--no-local").run().await?;
        }
        Ok(())
    }

    /// History that the user's repository lacks comes from its remote first; then its own branches fit on top.
    pub(super) async fn complete_into(&self, draft: &Path) -> Result<(), MirrorError> {
        let what = if self.shallow { "a shallow clone" } else { "a partial clone" };
        let fail = |reason: String| MirrorError::Incomplete { path: self.common.clone(), what, reason };
        let (_, url) = self.remote().ok_or_else(|| fail("it names no remote to complete it from".into()))?;
        Git::at(draft.parent().unwrap_or(Path::new("/")))
            .env("GIT_DEFAULT_REF_FORMAT", "files")
            .args(["init", "--quiet", "--bare", "--template=", "--object-format", &self.format, "--"])
            .arg(draft)
            .run()
            .await?;
        let fetch = |from: OsString, spec: &str| {
            Git::bare(draft)
                .args(["fetch", "--quiet", "--no-write-fetch-head", "--no-auto-maintenance"])
                .arg("--no-recurse-submodules")
                .arg("--")
                .arg(from)
                .arg(spec)
        };
        let whole = fetch(OsString::from_vec(url), "+refs/heads/*:refs/remotes/origin/*").network();
        whole.run().await.map_err(|e| fail(e.text()))?;
        let own = fetch(self.common.clone().into(), "+refs/heads/*:refs/heads/*");
        // Where the remote lacks a boundary commit, git refuses the branches that would make the mirror shallow too.
        own.env("GIT_NO_LAZY_FETCH", "1").run().await.map_err(|e| fail(e.text()))?;
        let theirs = user_heads(&self.common).await?;
        let got = Odb::open(draft)?.refs("refs/heads/")?;
        if let Some((name, _)) = theirs.iter().find(|(n, tip)| got.get(gix::bstr::BStr::new(n)) != Some(*tip)) {
            let name = String::from_utf8_lossy(name);
            return Err(fail(format!("the remote lacks part of the history of {name}")));
        }
        Ok(())
    }

    /// The remote-tracking refs and tags that the user's repository has. One command.
    pub(super) async fn remote_refs(&self) -> Result<BTreeMap<Vec<u8>, Oid>, MirrorError> {
        let Some((name, _)) = self.remote() else { return Ok(BTreeMap::new()) };
        let from = format!("refs/remotes/{name}/");
        let refs = for_each_ref(&self.common, &[&from]).await?;
        Ok(refs.into_iter().map(|(k, v)| ([b"refs/remotes/origin/", &k[from.len()..]].concat(), v)).collect())
    }

    /// Gives a fresh clone our ref layout, configuration and LFS objects.
    pub(super) fn furnish(&self, draft: &Path, remote_refs: BTreeMap<Vec<u8>, Oid>) -> Result<(), MirrorError> {
        let odb = Odb::open(draft)?;
        let mut refs: BTreeMap<Vec<u8>, Oid> = BTreeMap::new();
        for (name, tip) in odb.refs("refs/heads/")? {
            refs.insert([USER_REFS.as_bytes(), &name[b"refs/heads/".len()..]].concat(), tip);
        }
        if refs.is_empty() {
            std::fs::remove_dir_all(draft)?;
            return Err(MirrorError::NoCommits(self.common.clone()));
        }
        for prefix in ["refs/tags/", "refs/remotes/origin/"] {
            refs.extend(odb.refs(prefix)?.into_iter().map(|(k, v)| (k.to_vec(), v)));
        }
        refs.extend(remote_refs.into_iter().filter(|(_, tip)| odb.has(tip)));
        let mut packed = b"# pack-refs with: sorted \n".to_vec();
        for (name, tip) in &refs {
            packed.extend_from_slice(tip.as_str().as_bytes());
            packed.push(b' ');
            packed.extend_from_slice(name);
            packed.push(b'\n');
        }
        std::fs::remove_dir_all(draft.join("refs"))?;
        for folder in ["refs/heads", "refs/tags", "info", "hooks", "worktrees"] {
            std::fs::create_dir_all(draft.join(folder))?;
        }
        seal::write(&draft.join("packed-refs"), &packed)?;
        seal::write(&draft.join("HEAD"), NO_BRANCH.as_bytes())?;
        seal::write(&draft.join("config"), &self.mirror_config())?;
        link_tree(&self.common.join("lfs/objects"), &draft.join("lfs/objects"))?;
        Ok(())
    }

    fn mirror_config(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut set = |key: &str, value: Option<&[u8]>| config_line(&mut out, key, value);
        let sha1 = self.format == "sha1";
        set("core.repositoryformatversion", Some(if sha1 { b"0" } else { b"1" }));
        if !sha1 {
            set("extensions.objectformat", Some(self.format.as_bytes()));
        }
        set("core.bare", Some(b"true"));
        set("core.logallrefupdates", Some(b"true"));
        // An agent's git shows what ours merges, whatever another agent put in an object's place.
        set("core.usereplacerefs", Some(b"false"));
        // Housekeeping is the daemon's: an agent's commit must not start a repack, nor prune a registration.
        set("gc.auto", Some(b"0"));
        set("maintenance.auto", Some(b"false"));
        set("gc.worktreepruneexpire", Some(b"never"));
        for (key, value) in self.config.iter().filter(|(k, _)| is_copied(k)) {
            set(key, value.as_deref());
        }
        if let Some((_, url)) = self.remote() {
            set("remote.origin.url", Some(&url));
            set("remote.origin.pushurl", Some(NO_PUSH.as_bytes()));
            set("remote.origin.fetch", Some(b"+refs/heads/*:refs/remotes/origin/*"));
        }
        out
    }
}

/// The allow-list of local configuration that a mirror takes over. `extensions` are decided apart: the object format is
/// kept, the others speak of the user's own checkout or ref store.
fn is_copied(key: &str) -> bool {
    const SECTIONS: &[&str] =
        &["user.", "author.", "committer.", "filter.", "merge.", "lfs.", "submodule.", "commit.", "gpg."];
    const KEYS: &[&str] = &[
        "core.autocrlf",
        "core.eol",
        "core.safecrlf",
        "core.ignorecase",
        "core.filemode",
        "core.symlinks",
        "core.precomposeunicode",
        "core.longpaths",
    ];
    KEYS.contains(&key) || SECTIONS.iter().any(|s| key.starts_with(s))
}

fn config_line(out: &mut Vec<u8>, key: &str, value: Option<&[u8]>) {
    let (Some((section, _)), Some((rest, name))) = (key.split_once('.'), key.rsplit_once('.')) else { return };
    out.extend_from_slice(b"[");
    out.extend_from_slice(section.as_bytes());
    if let Some(sub) = rest.strip_prefix(section).and_then(|r| r.strip_prefix('.')) {
        out.extend_from_slice(b" \"");
        out.extend_from_slice(sub.replace('\\', "\\\\").replace('"', "\\\"").as_bytes());
        out.extend_from_slice(b"\"");
    }
    out.extend_from_slice(b"]\n\t");
    out.extend_from_slice(name.as_bytes());
    if let Some(value) = value {
        out.extend_from_slice(b" = \"");
        for byte in value {
            match byte {
                b'"' => out.extend_from_slice(b"\\\""),
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\t' => out.extend_from_slice(b"\\t"),
                other => out.push(*other),
            }
        }
        out.push(b'"');
    }
    out.push(b'\n');
}

/// Hard-links every regular file below `from` to the same place below `to`; copies across file systems.
fn link_tree(from: &Path, to: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(from) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    std::fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            link_tree(&entry.path(), &target)?;
        } else if kind.is_file() && std::fs::hard_link(entry.path(), &target).is_err() {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Refs of the user's repository as git lists them; symbolic ones are passed over.
pub(super) async fn for_each_ref(common: &Path, prefixes: &[&str]) -> Result<BTreeMap<Vec<u8>, Oid>, MirrorError> {
    let out = Git::bare(common)
        .args(["for-each-ref", "--format=%(objectname) %(symref) %(refname)"])
        .args(prefixes)
        .run()
        .await?;
    let mut refs = BTreeMap::new();
    for line in out.stdout.split(|b| *b == b'\n') {
        let mut parts = line.splitn(3, |b| *b == b' ');
        if let (Some(tip), Some(b""), Some(name)) = (parts.next(), parts.next(), parts.next())
            && let Ok(tip) = Oid::parse(&String::from_utf8_lossy(tip))
        {
            refs.insert(name.to_vec(), tip);
        }
    }
    Ok(refs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_written_so_that_git_reads_the_same_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut out = Vec::new();
        let hostile = b" a \"q\" \\ #x;\n[core]\thooksPath=evil ";
        config_line(&mut out, "filter.we\"ird\\.x.clean", Some(hostile));
        config_line(&mut out, "commit.gpgsign", None);
        std::fs::write(dir.path().join("c"), &out).unwrap();
        let read = |key: &str| {
            let mut c = std::process::Command::new("git");
            c.args(["config", "-z", "-f"]).arg(dir.path().join("c")).arg(key).output().unwrap().stdout
        };
        let mut want = hostile.to_vec();
        want.push(0);
        assert_eq!(read("filter.we\"ird\\.x.clean"), want);
    }

    #[test]
    fn only_the_allow_list_is_copied() {
        for key in ["user.name", "core.autocrlf", "filter.lfs.clean", "merge.ours.driver", "gpg.format"] {
            assert!(is_copied(key), "{key}");
        }
        for key in ["core.hookspath", "core.sshcommand", "alias.x", "include.path", "core.worktree", "remote.a.url"] {
            assert!(!is_copied(key), "{key}");
        }
    }
}
