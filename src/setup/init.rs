//! `overnight init`: makes a repository a project. Finds what it is made of, writes its configuration and approves what it
//! wrote (never what it found), makes the state repo and the daemon's mirror, and tries the names it will use.

use crate::config::{self, Approvals, FILE, Places, Project, Registry};
use crate::daemon::chain;
use crate::domain::policy::Policy;
use crate::domain::{ProjectId, Slug};
use crate::git::Git;
use crate::git::mirror::Mirror;
use crate::git::state_repo::{StateRepo, init_folder};
use crate::protocol::ErrorKind;
use crate::setup::{Detected, detect, render_config};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an agent may take to tell its version.
const VERSION_LIMIT: Duration = Duration::from_secs(5);

/// What `init` is told.
#[derive(Debug, Clone)]
pub struct InitOptions {
    /// The code repository, or a folder inside.
    pub repo: PathBuf,
    pub name: Option<String>,
    pub base: Option<String>,
    /// The state repo's folder; `../<name>-state` where nothing is said.
    pub state: Option<PathBuf>,
    pub places: Places,
}

/// What was done, as labels and texts.
#[derive(Debug, Clone, Default)]
pub struct InitDone {
    pub lines: Vec<(String, String)>,
}

/// A step that could not be done.
#[derive(Debug, Clone)]
pub struct SetupError {
    pub kind: ErrorKind,
    pub message: String,
    pub hint: Option<String>,
}

impl SetupError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Makes a repository a project; safe to repeat. Blocks; makes its own runtime.
pub fn init(options: &InitOptions) -> Result<InitDone, SetupError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| SetupError::new(ErrorKind::Unexpected, format!("the runtime could not be started: {e}")))?;
    runtime.block_on(init_in(options))
}

async fn init_in(options: &InitOptions) -> Result<InitDone, SetupError> {
    let failed = |e: &dyn std::error::Error| SetupError::new(ErrorKind::Failed, chain(e));
    options.places.prepare().map_err(|e| SetupError::new(ErrorKind::Usage, chain(&e)))?;
    let repo = top_of(&options.repo).await?;
    let path_var = config::Surroundings::from_env().path.to_string_lossy().into_owned();
    let mut found = detect(&repo, &path_var);
    found.ask_versions(&path_var, VERSION_LIMIT);
    let mut done = InitDone::default();
    let mut say = |label: &str, text: String| done.lines.push((label.to_owned(), text));
    let file = repo.join(FILE);
    let existing = std::fs::read(&file).ok();
    let bytes = match &existing {
        Some(bytes) => bytes.clone(),
        None => {
            let base = base_of(options, &found)?;
            let name = name_of(options, &repo)?;
            render_config(&found, name.as_str(), &base).into_bytes()
        }
    };
    let parsed = config::parse(&file, &bytes).map_err(|e| SetupError::new(ErrorKind::Usage, e.to_string()))?;
    let id = parsed.name.clone();
    let base = parsed.policy.base.clone();
    let state = options.state.clone().unwrap_or_else(|| parsed.state_folder(&repo));
    let state = std::path::absolute(&state).map_err(|e| failed(&e))?;
    // The names are tried before anything is written.
    let at = options.places.project(&id).join("code.git");
    let mirror = match at.join("HEAD").exists() {
        true => Mirror::open(&at, &repo).await,
        false => Mirror::create(&repo, &at).await,
    };
    let mirror = mirror.map_err(|e| mirror_error(&e, &repo))?;
    mirror.base_tip(&base).map_err(|e| {
        SetupError::new(ErrorKind::Usage, chain(&e)).hint("commit something first, or name the branch with --base")
    })?;
    may_receive(&mirror, &parsed.policy).await?;
    say("found", found_line(&found, &base));
    let approvals = Approvals::new(options.places.data.clone());
    if existing.is_none() {
        std::fs::write(&file, &bytes).map_err(|e| failed(&e))?;
        approvals.approve(&id, &bytes).map_err(|e| failed(&e))?;
        say("wrote", format!("{FILE:<34} how this project is built, checked and merged"));
    } else {
        say("kept", format!("{FILE:<34} it was there already"));
    }
    let made = make_state(&state, &parsed.policy.committer).await?;
    let verb = if made { "made" } else { "kept" };
    say(verb, format!("{:<34} the state repo (git): tasks and what became of them", shown(&repo, &state)));
    make_clone(&options.places, &id).await?;
    Registry::new(options.places.data.clone()).add(id, &repo, &state).map_err(|e| failed(&e))?;
    say("checks", checks_line(&parsed.policy));
    for warning in &found.warnings {
        say("note", warning.clone());
    }
    let approved = matches!(approvals.status(&parsed.name, &bytes), Ok(config::Status::Same));
    if approved {
        say("next", "overnight add \"…\"   then   overnight start".into());
    } else {
        say(
            "next",
            format!("overnight config approve            {FILE} was not written by this command; look at it first"),
        );
    }
    Ok(done)
}

/// Whether finished work may go where a configuration says. Blocks; makes its own runtime.
pub fn judge_target(places: &Places, project: &Project, policy: &Policy) -> Result<(), SetupError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| SetupError::new(ErrorKind::Unexpected, format!("the runtime could not be started: {e}")))?;
    runtime.block_on(async {
        let at = places.project(&project.id).join("code.git");
        let mirror = Mirror::open(&at, &project.code).await.map_err(|e| mirror_error(&e, &project.code))?;
        may_receive(&mirror, policy).await
    })
}

async fn may_receive(mirror: &Mirror, policy: &Policy) -> Result<(), SetupError> {
    let is_default = policy.merge.into == format!("overnight/{}", policy.base);
    mirror.may_receive(&policy.merge.into, is_default).await.map_err(|e| {
        let hint = "rename that branch, or set `[merge] into` to another name";
        SetupError::new(ErrorKind::Failed, chain(&e)).hint(hint)
    })
}

fn mirror_error(e: &crate::git::mirror::MirrorError, repo: &Path) -> SetupError {
    SetupError::new(ErrorKind::Failed, format!("{} cannot be mirrored: {}", repo.display(), chain(e)))
}

/// The top of the work tree (or the bare repository) that `path` is in.
async fn top_of(path: &Path) -> Result<PathBuf, SetupError> {
    let bare = Git::at(path).args(["rev-parse", "--is-bare-repository"]).run().await;
    let none = || {
        SetupError::new(ErrorKind::Usage, format!("{} is in no git repository", path.display()))
            .hint("git init, commit, and try again")
    };
    let word = if bare.map_err(|_| none())?.text() == "true" { "--absolute-git-dir" } else { "--show-toplevel" };
    let out = Git::at(path).args(["rev-parse", word]).run().await.map_err(|_| none())?;
    Ok(PathBuf::from(out.text()))
}

fn base_of(options: &InitOptions, found: &Detected) -> Result<String, SetupError> {
    if let Some(base) = &options.base {
        return Ok(base.clone());
    }
    found.base.clone().ok_or_else(|| {
        let known = if found.bases.is_empty() { String::new() } else { format!(" ({})", found.bases.join(", ")) };
        SetupError::new(ErrorKind::Usage, format!("it is not clear which branch is the base{known}"))
            .hint("name it: overnight init --base BRANCH")
    })
}

fn name_of(options: &InitOptions, repo: &Path) -> Result<ProjectId, SetupError> {
    let text = options.name.clone().unwrap_or_else(|| {
        let folder = repo.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folder = folder.trim_end_matches(".git").to_owned();
        Slug::from_title(&deunicode::deunicode(&folder)).map_or(folder, |s| s.as_str().to_owned())
    });
    ProjectId::parse(&text)
        .map_err(|e| SetupError::new(ErrorKind::Usage, e.to_string()).hint("name it: overnight init --name NAME"))
}

/// Makes the person's folder of the state repo where there is none. True when it was made.
async fn make_state(folder: &Path, committer: &(String, String)) -> Result<bool, SetupError> {
    if folder.join(".git").exists() {
        return Ok(false);
    }
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        let text = format!("{} is not empty and no git repository", folder.display());
        return Err(SetupError::new(ErrorKind::Usage, text).hint("name another folder: overnight init --state FOLDER"));
    }
    let board = crate::text::board_file::render(&[], None).into_bytes();
    let files = [("README.md", STATE_README.as_bytes().to_vec()), ("tasks/README.md", board)];
    init_folder(folder, &files, &committer.0, &committer.1)
        .await
        .map_err(|e| SetupError::new(ErrorKind::Failed, chain(&e)))?;
    Ok(true)
}

/// Our own clone of the state repo, empty until the daemon first looks.
async fn make_clone(places: &Places, id: &ProjectId) -> Result<(), SetupError> {
    let at = places.project(id).join("state.git");
    if at.join("HEAD").exists() {
        return Ok(());
    }
    StateRepo::create(&at, None).await.map_err(|e| SetupError::new(ErrorKind::Failed, chain(&e)))?;
    Ok(())
}

/// A path as seen from the repository, where that is short.
fn shown(repo: &Path, path: &Path) -> String {
    match (repo.parent(), path.parent(), path.file_name()) {
        (Some(a), Some(b), Some(name)) if a == b => format!("../{}", name.to_string_lossy()),
        _ => path.display().to_string(),
    }
}

fn found_line(found: &Detected, base: &str) -> String {
    let mut parts: Vec<String> =
        found.languages.iter().map(|l| format!("{} ({})", l.language.word(), l.tool)).collect();
    parts.push(format!("main branch `{base}`"));
    let agents: Vec<String> = found
        .agents
        .iter()
        .map(|a| format!("{}{}", a.kind.word(), a.version.as_ref().map(|v| format!(" {v}")).unwrap_or_default()))
        .collect();
    if !agents.is_empty() {
        parts.push(format!("{} on PATH", agents.join(" and ")));
    }
    parts.join(", ")
}

fn checks_line(policy: &crate::domain::policy::Policy) -> String {
    if policy.checks.is_empty() {
        return format!("none found: nothing is tested before it is merged until you add some to {FILE}");
    }
    let list: Vec<String> = policy.checks.iter().map(|c| format!("{}: {}", c.name, c.run.shown())).collect();
    format!("{}      (edit them in {FILE})", list.join(" · "))
}

/// The README that a new state repo begins with.
const STATE_README: &str = "# State of an Overnight project

What shall be done, and what became of it. One folder below `tasks/` is one task:

- `README.md` is the wish. Write it, change it, commit it or just save it; the daemon takes it in.
- `state.json` and `log.jsonl` say what became of it, and are written by the daemon alone.
- `tasks/README.md` is a board for reading, rendered anew all the time.

A task begins like this:

```markdown
---
title: Add a health endpoint
status: queued
depends_on: [routes]
---

What to do, in your own words.

## Acceptance criteria

- `GET /health` answers 200
```
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_in_the_state_readme_is_a_valid_task() {
        let from = STATE_README.find("---").unwrap();
        let example = STATE_README[from..].trim_end().trim_end_matches("```");
        let path = crate::domain::TaskPath::parse("health").unwrap();
        let wish = crate::text::task_file::read(example.as_bytes(), &path, &|_| true).unwrap();
        assert_eq!((wish.title.as_str(), wish.depends_on.len()), ("Add a health endpoint", 1));
    }
}
