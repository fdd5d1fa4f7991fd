//! Briefs: what an agent is told at the start of an attempt, put together from the board's facts and what stands in the
//! repositories, and kept beside the project so that every run of the attempt reads the same text.

use super::project::ProjectCtx;
use crate::decide::ask::{Brief, Prompt};
use crate::domain::TaskId;
use crate::git::land;
use crate::text::prompt::{self, Ancestor, BriefInput, Dependency, Failure, Question, Sibling};
use std::path::Path;

/// Dependencies whose files are looked up.
const LOOKED_UP: usize = 20;

/// Writes the brief of a task's attempt.
pub(super) async fn write(ctx: &ProjectCtx, task: &TaskId, brief: &Brief) -> Result<(), String> {
    let mut dependencies = Vec::new();
    for (path, title, commit) in &brief.needs {
        let mut commits = Vec::new();
        let mut files = Vec::new();
        if let (Some(commit), true) = (commit, dependencies.len() < LOOKED_UP) {
            let info = ctx.mirror.odb().ok().and_then(|odb| odb.info(commit).ok());
            if let Some(info) = info {
                commits.extend(info.message.lines().next().map(str::to_owned));
                if let Some(parent) = info.parents.first() {
                    let stat = land::diff_stat(&ctx.mirror, parent, commit).await.unwrap_or_default();
                    files = stat.into_iter().map(|f| f.path).collect();
                }
            }
        }
        dependencies.push(Dependency { path: path.clone(), title: title.clone(), commits, files });
    }
    let input = BriefInput {
        path: task.path.clone(),
        title: brief.title.clone(),
        body: brief.body.clone(),
        branch: task.path.branch(),
        attempt: brief.attempt,
        ancestors: brief
            .ancestors
            .iter()
            .map(|(path, title, body)| Ancestor { path: path.clone(), title: title.clone(), body: body.clone() })
            .collect(),
        siblings: brief
            .siblings
            .iter()
            .map(|(path, title, status)| Sibling { path: path.clone(), title: title.clone(), status: *status })
            .collect(),
        dependencies,
        questions: brief
            .answer
            .iter()
            .map(|answer| Question { question: "(asked earlier)".into(), answer: Some(answer.clone()) })
            .collect(),
        last: brief.last_failure.as_ref().map(|text| Failure {
            task_title: brief.title.clone(),
            stage: "last attempt".into(),
            command: None,
            ended: "not merged".into(),
            output: text.clone(),
            missing: 0,
        }),
    };
    let text = prompt::brief(&input, brief.budget);
    let file = ctx.brief(&task.path.dotted());
    let write = || {
        if let Some(folder) = file.parent() {
            crate::config::files::private_folder(folder)?;
        }
        crate::config::files::write_whole(&file, text.as_bytes())
    };
    write().map_err(|e| super::chain(&e))
}

/// The text of a prompt: the brief alone, a message alone where a session goes on, or both.
pub(super) fn text(brief: &Path, prompt: &Prompt, resumes: bool) -> Result<String, String> {
    let read =
        || std::fs::read_to_string(brief).map_err(|e| format!("the brief {} cannot be read: {e}", brief.display()));
    match prompt {
        Prompt::Brief => read(),
        Prompt::Follow(message) if resumes => Ok(message.clone()),
        Prompt::Follow(message) => Ok(format!("{}\n\n## Where it stands\n\n{message}\n", read()?)),
        Prompt::Step(text) => Ok(text.clone()),
    }
}
