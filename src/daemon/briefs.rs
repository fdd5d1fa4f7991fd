//! Briefs: what an agent is told at the start of an attempt, put together from the board's facts and what stands in the
//! repositories, and kept beside the project so that every run of the attempt reads the same text.

use super::project::ProjectCtx;
use crate::decide::ask::{Brief, Prompt};
use crate::domain::TaskId;
use crate::domain::follow::{FailedCheck, Follow};
use crate::git::land;
use crate::process::Runs;
use crate::text::prompt::{self, Ancestor, BriefInput, Dependency, Failure, Output, Question, Sibling};
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
            output: Output { first: text.clone(), ..Output::default() },
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
pub(super) fn text(runs: &Runs, brief: &Path, prompt: &Prompt, resumes: bool) -> Result<String, String> {
    let read =
        || std::fs::read_to_string(brief).map_err(|e| format!("the brief {} cannot be read: {e}", brief.display()));
    match prompt {
        Prompt::Brief => read(),
        Prompt::Follow { follow, title, budget } => {
            let message = message(runs, follow, title, *budget);
            if resumes { Ok(message) } else { Ok(format!("{}\n# Where it stands\n\n{message}\n", read()?)) }
        }
        Prompt::Step(text) => Ok(text.clone()),
    }
}

fn message(runs: &Runs, follow: &Follow, title: &str, budget: usize) -> String {
    match follow {
        Follow::Said(text) => text.clone(),
        Follow::Failed(check) => {
            let failure = Failure {
                task_title: title.to_owned(),
                stage: format!("check {}", check.check),
                command: Some(check.command.clone()),
                ended: check.ended.clone(),
                output: output_of(runs, check, budget),
            };
            prompt::feedback(&failure, check.left, budget)
        }
    }
}

/// What a check printed, as far as it can be of use within `budget` bytes; from its exit record where its run folder is
/// gone.
fn output_of(runs: &Runs, check: &FailedCheck, budget: usize) -> Output {
    match runs.ends_of(&check.run, check.bytes, budget) {
        Ok((first, missing, last)) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Output { first: text(&first), missing, last: text(&last) }
        }
        Err(_) => Output {
            first: String::new(),
            missing: check.bytes.saturating_sub(check.tail.len() as u64),
            last: check.tail.clone(),
        },
    }
}
