//! Claims, beside the state worker: made together in one exchange, read back where an earlier answer was lost, and given
//! back where the task turns out to be over.

use super::records;
use super::state_worker::{StateWorker, first_line};
use crate::decide::event::Answer;
use crate::domain::lease::{Claim, Held, claim_ref};
use crate::domain::{Epoch, Oid, TaskId, TaskPath};
use crate::git::claim_ref::{CLAIM_VERSION, ClaimAnswer, ClaimMove, MoveAnswer};

impl StateWorker {
    pub(super) async fn claim(&mut self, tasks: Vec<(TaskId, Epoch)>) {
        if tasks.is_empty() {
            return;
        }
        let by = self.ctx.identity();
        let claims: Vec<Claim> = tasks.iter().map(|(task, epoch)| self.new_claim(task, *epoch)).collect();
        let tip = super::project::tip(&self.ctx.state);
        let state = self.ctx.state.clone();
        let concluded = |path: &TaskPath| records::concluded_nonce(&state, tip.as_ref()?, path);
        let answers = match self.ctx.state.claim(&claims, &by, concluded).await {
            Ok(answers) => answers,
            Err(e) => {
                self.note_trouble(&super::chain(&e));
                vec![]
            }
        };
        let mut given = Vec::new();
        for (i, (task, epoch)) in tasks.into_iter().enumerate() {
            let answer = match answers.get(i).cloned() {
                None => Answer::ClaimUnknown { why: "the state repo could not be written".into() },
                Some(ClaimAnswer::Won(held)) => Answer::ClaimWon { held },
                Some(ClaimAnswer::Lost { by: Some(other) }) if other.daemon == self.daemon => {
                    self.reclaim(&claims[i]).await
                }
                Some(ClaimAnswer::Lost { by: other }) => {
                    Answer::ClaimLost { by: other.map_or_else(|| "somebody".into(), |c| c.owner) }
                }
                Some(ClaimAnswer::Unknown(trouble) | ClaimAnswer::Refused(trouble)) => {
                    self.note_trouble(&trouble.text);
                    Answer::ClaimUnknown { why: first_line(&trouble.text) }
                }
            };
            given.push((task, epoch, answer));
        }
        // A claim that could be made may be free because the task is over: whoever concluded it gave its claim back with
        // the record. So the record is read after the claim is made.
        let won = given.iter().any(|(_, _, answer)| matches!(answer, Answer::ClaimWon { .. }));
        let read = !won || self.fetch().await;
        for (task, epoch, answer) in given {
            let answer = match answer {
                Answer::ClaimWon { .. } if !read => {
                    Answer::ClaimUnknown { why: "the state repo could not be read after the claim".into() }
                }
                Answer::ClaimWon { held } => self.unless_over(&task.path, held).await,
                other => other,
            };
            self.answer(task, epoch, answer);
        }
    }

    /// A claim on a task that is over already is given back.
    async fn unless_over(&self, task: &TaskPath, held: Held) -> Answer {
        let tip = super::project::tip(&self.ctx.state);
        if !tip.is_some_and(|tip| records::is_over(&self.ctx.state, &tip, task)) {
            return Answer::ClaimWon { held };
        }
        match self.ctx.state.release(task, &held.commit, &self.ctx.identity()).await {
            Ok(MoveAnswer::Released | MoveAnswer::Lost { .. }) => {
                Answer::ClaimLost { by: "whoever has concluded it".into() }
            }
            Ok(MoveAnswer::Unknown(trouble) | MoveAnswer::Refused(trouble)) => {
                Answer::ClaimUnknown { why: first_line(&trouble.text) }
            }
            Ok(MoveAnswer::Moved(_)) => Answer::ClaimUnknown { why: "the claim could not be given back".into() },
            Err(e) => Answer::ClaimUnknown { why: super::chain(&e) },
        }
    }

    /// The claim is ours from before a crash: it is moved to the new one, by compare-and-swap.
    async fn reclaim(&self, claim: &Claim) -> Answer {
        let by = self.ctx.identity();
        let unknown = |why: String| Answer::ClaimUnknown { why };
        let old = match self.seen(&claim.task).await {
            Ok(old) => old,
            Err(why) => return unknown(why),
        };
        let to = ClaimMove { task: claim.task.clone(), old, to: Some(claim.clone()) };
        match self.ctx.state.move_claims(&[to], &by).await.map(|mut a| a.pop()) {
            Ok(Some(MoveAnswer::Moved(held))) => Answer::ClaimWon { held },
            Ok(Some(MoveAnswer::Lost { by })) => {
                Answer::ClaimLost { by: by.map_or_else(|| "somebody".into(), |c| c.owner) }
            }
            Ok(Some(MoveAnswer::Unknown(t) | MoveAnswer::Refused(t))) => unknown(first_line(&t.text)),
            Ok(Some(MoveAnswer::Released) | None) => unknown("the claim could not be moved".into()),
            Err(e) => unknown(super::chain(&e)),
        }
    }

    /// The commit that a task's claim ref points to at the authority, as far as it was seen.
    async fn seen(&self, task: &TaskPath) -> Result<Option<Oid>, String> {
        let name = claim_ref(task);
        match self.ctx.state.list().await {
            Ok(Ok(seen)) => Ok(seen.into_iter().find(|s| s.name == name).map(|s| s.commit)),
            Ok(Err(trouble)) => Err(first_line(&trouble.text)),
            Err(e) => Err(super::chain(&e)),
        }
    }

    fn new_claim(&self, task: &TaskId, epoch: Epoch) -> Claim {
        Claim {
            version: CLAIM_VERSION,
            task: task.path.clone(),
            epoch,
            // The same ask has the same nonce, so that an answer that was lost is found again; no other ask has it.
            nonce: records::nonce(&self.daemon, task, epoch),
            owner: self.owner.clone(),
            daemon: self.daemon.clone(),
            expires: None,
        }
    }
}
