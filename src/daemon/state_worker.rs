//! The one writer of a project's state repo. Asks queue up here; what waits together goes out together: claims in one push,
//! records, edits and boards in one commit. After each change, and when the folder or the remote may have changed, the
//! wishes are read and the person's folder is brought up.

#![expect(clippy::disallowed_methods, reason = "this worker has a pace of its own; no rule sees this clock")]

use super::guard::guarded;
use super::project::{ProjectCtx, lock};
use super::records;
use super::state_folder::Digest;
use super::wishes::WishReader;
use crate::decide::Event;
use crate::decide::ask::Record;
use crate::decide::event::{Answer, RequestId, SideAnswer, WishEdit};
use crate::domain::lease::{Claim, Held, claim_ref};
use crate::domain::{Epoch, Oid, TaskId, TaskPath};
use crate::git::claim_ref::ClaimMove;
use crate::git::folder_update::Imported;
use crate::git::state_absorb::Peer;
use crate::git::state_publish::{Batch, Op, OpResult, Pending, PublishOutcome};
use crate::text::board_file::Row;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

/// A record that nobody waits for is tried again after this long.
const LATER: Duration = Duration::from_secs(15);
/// The person's folder is brought up when nothing was asked for so long, and after the second span at the latest: each
/// time takes half a dozen git processes, which nobody who waits for a claim should wait for.
const QUIET: Duration = Duration::from_millis(400);
const LATEST: Duration = Duration::from_secs(2);
/// How often an unknown outcome is looked into before the asker is told that it failed; what was recorded all the same is
/// found when it is asked again.
const UNKNOWN_TRIES: u32 = 3;

/// What the worker is asked to do.
pub enum StateOp {
    Claim {
        task: TaskId,
        epoch: Epoch,
    },
    /// Record and, when `conclude`, give the claim back with it.
    Record {
        task: TaskId,
        epoch: Epoch,
        record: Box<Record>,
        conclude: bool,
    },
    Edit {
        epoch: Epoch,
        id: RequestId,
        path: TaskPath,
        edit: WishEdit,
        retry: u32,
    },
    Boards {
        epoch: Epoch,
        boards: Vec<(Option<TaskPath>, Vec<Row>)>,
    },
    /// Look at the person's folder and at our own clone; `whole` rereads every wish.
    Look {
        whole: bool,
    },
    /// Look at the person's branch, and at these files of the folder alone, by their paths from its top.
    Touched(BTreeSet<Vec<u8>>),
    /// Ask the remote for what is new.
    Fetch,
    /// Everything before this is done: say so, and end.
    Close(oneshot::Sender<()>),
}

pub struct StateWorker {
    pub(super) ctx: Arc<ProjectCtx>,
    pub(super) events: mpsc::UnboundedSender<Event>,
    pub(super) daemon: String,
    pub(super) owner: String,
    pub(super) reader: WishReader,
    /// Uncommitted task files that the last look at the folder found, and since when the folder may be behind.
    pub(super) imported: Vec<Imported>,
    pub(super) behind: Option<Instant>,
    /// Tasks that there were when files were refused last.
    pub(super) tasks: usize,
    /// What was taken in from each file of the folder last, until the folder is brought up.
    pub(super) taken: BTreeMap<Vec<u8>, Digest>,
    /// Saved files that clash with what was changed elsewhere, so that it is said once.
    pub(super) clashes: BTreeSet<Vec<u8>>,
    /// The folder was in no state to be compared with ours; a look at all its files is owed.
    pub(super) skipped: bool,
}

impl StateWorker {
    pub fn new(ctx: Arc<ProjectCtx>, events: mpsc::UnboundedSender<Event>, daemon: String, owner: String) -> Self {
        Self {
            ctx,
            events,
            daemon,
            owner,
            reader: WishReader::default(),
            imported: Vec::new(),
            behind: None,
            tasks: 0,
            taken: BTreeMap::new(),
            clashes: BTreeSet::new(),
            skipped: false,
        }
    }

    /// Serves until the channel closes.
    pub async fn run(mut self, mut ops: mpsc::UnboundedReceiver<StateOp>) {
        if let Err(e) = self.ctx.state.maintain().await {
            tracing::warn!(project = %self.ctx.id, "the clone of the state repo could not be packed: {}", super::chain(&e));
        }
        while let Some(first) = self.next(&mut ops).await {
            let mut batch = vec![first];
            while let Ok(more) = ops.try_recv() {
                batch.push(more);
            }
            let last = batch.iter().position(|op| matches!(op, StateOp::Close(_)));
            let mut rest = last.map_or_else(Vec::new, |n| batch.split_off(n));
            let unserved: Vec<Event> = batch.iter().filter_map(|op| self.unserved(op)).collect();
            if guarded(self.serve(batch)).await.is_err() {
                // What it knew of the files may be half of it.
                self.reader = WishReader::default();
                self.skipped = true;
                unserved.into_iter().for_each(|event| drop(self.events.send(event)));
            }
            if let Some(StateOp::Close(done)) = rest.drain(..).next() {
                self.bring_up().await;
                // Whoever asked may be gone.
                let _ = done.send(());
                return;
            }
        }
    }

    /// What whoever waits for this op is told after a fault of ours; an answer that went out already holds.
    fn unserved(&self, op: &StateOp) -> Option<Event> {
        let why = || "a fault in overnight itself; its log has the place".to_owned();
        let project = self.ctx.id.clone();
        Some(match op {
            StateOp::Claim { task, epoch } => {
                Event::Answer { task: task.clone(), epoch: *epoch, answer: Answer::ClaimUnknown { why: why() } }
            }
            StateOp::Record { task, epoch, conclude: true, .. } => {
                Event::Answer { task: task.clone(), epoch: *epoch, answer: Answer::Failed { why: why() } }
            }
            StateOp::Edit { epoch, id, .. } => {
                Event::Side { project, epoch: *epoch, answer: SideAnswer::EditRefused { id: *id, why: why() } }
            }
            StateOp::Boards { epoch, .. } => {
                Event::Side { project, epoch: *epoch, answer: SideAnswer::Failed { why: why() } }
            }
            // Nobody waits for a record of a task that goes on; a later one says it all.
            StateOp::Record { .. }
            | StateOp::Look { .. }
            | StateOp::Touched(_)
            | StateOp::Fetch
            | StateOp::Close(_) => return None,
        })
    }

    /// The next op; while none comes, the person's folder is brought up.
    async fn next(&mut self, ops: &mut mpsc::UnboundedReceiver<StateOp>) -> Option<StateOp> {
        if let Some(since) = self.behind {
            let now = Instant::now();
            if now < since + LATEST
                && let Ok(op) = timeout_at((now + QUIET).min(since + LATEST), ops.recv()).await
            {
                return op;
            }
            self.bring_up().await;
        }
        ops.recv().await
    }

    /// Does a batch: claims in one exchange, all that is to be written in another.
    async fn serve(&mut self, batch: Vec<StateOp>) {
        let (mut claims, mut late) = (Vec::new(), Vec::new());
        let mut writes = Vec::new();
        let mut look = None;
        let mut touched = None;
        let mut fetch = false;
        for op in batch {
            match op {
                StateOp::Claim { task, epoch } => {
                    // What was to be written of a task before its claim is written before it; of other tasks it matters not.
                    let of_it = |w: &StateOp| matches!(w, StateOp::Record { task: t, .. } if *t == task);
                    let behind = writes.iter().any(of_it);
                    (if behind { &mut late } else { &mut claims }).push((task, epoch));
                }
                StateOp::Look { whole } => look = Some(look.unwrap_or(false) || whole),
                StateOp::Touched(files) => touched.get_or_insert_with(BTreeSet::new).extend(files),
                // Once for all that wait: a remote that does not answer takes a minute each time.
                StateOp::Fetch => fetch = true,
                write => writes.push(write),
            }
        }
        if fetch {
            self.fetch().await;
            look.get_or_insert(false);
        }
        let writes = self.without_old(writes);
        // A claim at a remote reads the record, and what is new there is told.
        let claimed = !claims.is_empty() || !late.is_empty();
        let read = claimed && self.ctx.state.remote().is_some() || !writes.is_empty();
        self.claim(claims).await;
        self.write(writes).await;
        self.claim(late).await;
        match (look, touched) {
            (Some(whole), _) => self.look(whole).await,
            (None, Some(files)) => self.look_at(files).await,
            // That says nothing new of the person's folder.
            (None, None) if read => self.read_wishes(false),
            (None, None) => {}
        }
    }

    /// Without records of a task that waits here with a newer one: the newer one says it all, and must not be overwritten
    /// by one that was sent again.
    fn without_old(&self, writes: Vec<StateOp>) -> Vec<StateOp> {
        let mut newest: BTreeMap<TaskId, Epoch> = BTreeMap::new();
        for write in &writes {
            if let StateOp::Record { task, epoch, .. } = write {
                let last = newest.entry(task.clone()).or_insert(*epoch);
                *last = (*last).max(*epoch);
            }
        }
        let mut kept = Vec::new();
        for write in writes {
            match &write {
                StateOp::Record { task, epoch, conclude: false, .. } if newest.get(task) > Some(epoch) => {
                    self.answer(task.clone(), *epoch, Answer::Published);
                }
                _ => kept.push(write),
            }
        }
        kept
    }

    /// One commit, one push for all writes that wait.
    async fn write(&mut self, writes: Vec<StateOp>) {
        if writes.is_empty() {
            return;
        }
        let mut ops = Vec::new();
        for write in &writes {
            let claim = match write {
                StateOp::Record { task, record, conclude: true, .. } => {
                    self.release_of(task, record.held.as_ref()).await
                }
                _ => None,
            };
            ops.push(Op { claim });
        }
        let mut refused: Vec<(usize, String)> = Vec::new();
        let (mut answers, broken) = self.publish(&ops, &writes, &mut refused).await;
        if broken && writes.len() > 1 {
            // One that cannot be written at all would hold up all others, conclusions among them.
            refused.clear();
            answers.clear();
            for i in 0..writes.len() {
                let mut one = Vec::new();
                let (answer, _) = self.publish(&ops[i..=i], &writes[i..=i], &mut one).await;
                answers.extend(answer);
                refused.extend(one.into_iter().map(|(_, why)| (i, why)));
            }
        }
        for (i, write) in writes.into_iter().enumerate() {
            let answer = answers.get(i).cloned().unwrap_or_else(|| Err("no answer".into()));
            let refusal = refused.iter().find(|(n, _)| *n == i).map(|(_, why)| why.clone());
            self.written(write, answer, refusal);
        }
    }

    /// Publishes the writes, and after an unknown outcome once more with what is known of it: that is the way to find out.
    /// True beside the answers where our own clone refused what was to be written, not the remote.
    async fn publish(
        &mut self,
        ops: &[Op],
        writes: &[StateOp],
        refused: &mut Vec<(usize, String)>,
    ) -> (Vec<Result<OpResult, String>>, bool) {
        let mut broken = false;
        let mut pending = Pending::default();
        let mut last = String::new();
        for _ in 0..UNKNOWN_TRIES {
            let state = self.ctx.state.clone();
            let (daemon, owner) = (self.daemon.clone(), self.owner.clone());
            let refusals = &mut *refused;
            let by = self.ctx.identity();
            let build = |tip: Option<&Oid>, live: &[usize]| {
                refusals.clear();
                Ok(build(&state, &daemon, &owner, tip, live, writes, refusals))
            };
            match self.ctx.state.publish(ops, &by, pending, build).await {
                Ok(PublishOutcome::Published(done)) => {
                    *lock(&self.ctx.trouble) = None;
                    return (done.ops.into_iter().map(Ok).collect(), false);
                }
                Ok(PublishOutcome::Unknown(trouble, earlier)) => {
                    self.note_trouble(&trouble.text);
                    last = first_line(&trouble.text);
                    pending = earlier;
                }
                Ok(PublishOutcome::Failed(trouble)) => {
                    self.note_trouble(&trouble.text);
                    last = first_line(&trouble.text);
                    break;
                }
                Ok(PublishOutcome::GaveUp { pushes }) => {
                    last = format!("others were faster {pushes} times");
                    break;
                }
                Err(e) => {
                    last = super::chain(&e);
                    broken = true;
                    break;
                }
            }
        }
        (vec![Err(last); writes.len()], broken)
    }

    /// The claim that a conclusion gives back: the one that is held, or one of ours that a lost answer left behind.
    async fn release_of(&self, task: &TaskId, held: Option<&Held>) -> Option<ClaimMove> {
        let old = match held {
            Some(held) => held.commit.clone(),
            None => {
                let seen = self.ctx.state.list().await.ok()?.ok()?;
                let name = claim_ref(&task.path);
                let mine = |c: &Claim| c.daemon == self.daemon;
                seen.into_iter().find(|s| s.name == name && s.claim.as_ref().is_ok_and(mine))?.commit
            }
        };
        Some(ClaimMove { task: task.path.clone(), old: Some(old), to: None })
    }

    fn written(&self, write: StateOp, answer: Result<OpResult, String>, refusal: Option<String>) {
        match write {
            StateOp::Record { task, epoch, record, conclude: true } => {
                let tip = super::project::tip(&self.ctx.state);
                let is_in = || records::says(&self.ctx.state, tip.as_ref(), &task.path, epoch, &record, &self.owner);
                let answer = match answer {
                    Ok(OpResult::Done(_)) => Answer::Concluded,
                    // The claim went with this very conclusion, whose acknowledgement was lost.
                    Ok(OpResult::ClaimLost { .. }) if is_in() => Answer::Concluded,
                    Ok(OpResult::ClaimLost { .. }) => Answer::ClaimGone,
                    Err(why) => Answer::Failed { why },
                };
                self.answer(task, epoch, answer);
            }
            StateOp::Record { task, epoch, record, conclude: false } => match answer {
                Ok(_) => self.answer(task, epoch, Answer::Published),
                Err(_) => {
                    // Nobody waits for it: it goes along with a later one.
                    let ops = self.ctx.ops.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(LATER).await;
                        let _ = ops.send(StateOp::Record { task, epoch, record, conclude: false });
                    });
                }
            },
            StateOp::Edit { epoch, id, .. } => {
                let answer = match (answer, refusal) {
                    (_, Some(why)) | (Err(why), None) => SideAnswer::EditRefused { id, why },
                    (Ok(_), None) => SideAnswer::Edited { id },
                };
                self.side(epoch, answer);
            }
            StateOp::Boards { epoch, .. } => self.side(
                epoch,
                match answer {
                    Ok(_) => SideAnswer::BoardPublished,
                    Err(why) => SideAnswer::Failed { why },
                },
            ),
            StateOp::Claim { .. } | StateOp::Look { .. } | StateOp::Touched(_) | StateOp::Fetch | StateOp::Close(_) => {
            }
        }
    }

    /// What is new at the remote; false where it could not be asked. Without one there is nothing to ask.
    pub(super) async fn fetch(&mut self) -> bool {
        if self.ctx.state.remote().is_none() {
            return true;
        }
        match self.ctx.state.fetch().await {
            Ok(Ok(fetched)) => {
                *lock(&self.ctx.trouble) = None;
                match fetched.main {
                    Some(main) => self.take_in(&main, Peer::Authority).await,
                    None => true,
                }
            }
            Ok(Err(trouble)) => {
                self.note_trouble(&trouble.text);
                false
            }
            Err(e) => {
                self.note_trouble(&super::chain(&e));
                false
            }
        }
    }

    pub(super) async fn take_in(&self, theirs: &Oid, peer: Peer) -> bool {
        let by = self.ctx.identity();
        match self.ctx.state.take_in(theirs, peer, &by).await {
            Ok(absorbed) => {
                for kept in &absorbed.kept {
                    let (path, beside) =
                        (crate::domain::safe::bytes(&kept.path), crate::domain::safe::bytes(&kept.beside));
                    tracing::warn!(project = %self.ctx.id, "{path} was changed on both sides; one version is in {beside}");
                }
                true
            }
            Err(e) => {
                tracing::error!(project = %self.ctx.id, "a peer's commits could not be taken in: {}", super::chain(&e));
                false
            }
        }
    }

    /// Trouble with the remote is said once in the log, and stands among the project's alarms until it is over.
    pub(super) fn note_trouble(&mut self, text: &str) {
        let text = first_line(text);
        let before = lock(&self.ctx.trouble).replace(text.clone());
        if before.as_ref() != Some(&text) {
            tracing::warn!(project = %self.ctx.id, "the state remote: {}", crate::domain::safe::line(&text));
        }
    }

    pub(super) fn answer(&self, task: TaskId, epoch: Epoch, answer: Answer) {
        let _ = self.events.send(Event::Answer { task, epoch, answer });
    }

    fn side(&self, epoch: Epoch, answer: SideAnswer) {
        let _ = self.events.send(Event::Side { project: self.ctx.id.clone(), epoch, answer });
    }
}

/// The changes that the writes `live` make on `tip`.
fn build(
    state: &crate::git::state_repo::StateRepo,
    daemon: &str,
    owner: &str,
    tip: Option<&Oid>,
    live: &[usize],
    writes: &[StateOp],
    refusals: &mut Vec<(usize, String)>,
) -> Batch {
    let mut batch = Batch::default();
    let mut lines = Vec::new();
    for i in live {
        match &writes[*i] {
            StateOp::Record { task, epoch, record, .. } => {
                let nonce = record.held.as_ref().map(|h| h.nonce.as_str());
                batch.changes.extend(records::changes(state, tip, task, *epoch, record, owner, nonce));
                lines.push(format!("Overnight-Transition: {} {}@{} {daemon}", record.status, task.path, epoch));
            }
            StateOp::Edit { path, edit, retry, .. } => match records::edit(state, tip, path, edit, *retry) {
                Ok(Some(change)) => {
                    batch.changes.push(change);
                    lines.push(format!("Overnight-Edit: {} {path}", records::edit_word(edit)));
                }
                Ok(None) => {}
                Err(why) => refusals.push((*i, why)),
            },
            StateOp::Boards { boards, .. } => batch.changes.extend(records::boards(boards)),
            StateOp::Claim { .. } | StateOp::Look { .. } | StateOp::Touched(_) | StateOp::Fetch | StateOp::Close(_) => {
            }
        }
    }
    let subject = match lines.as_slice() {
        [] => "Render the boards".to_owned(),
        [one] => one
            .split_once(": ")
            .map_or(one.as_str(), |(_, rest)| rest)
            .rsplit_once(' ')
            .map_or_else(|| one.clone(), |(a, _)| a.to_owned()),
        many => format!("{} transitions", many.len()),
    };
    batch.message = if lines.is_empty() { subject } else { format!("{subject}\n\n{}\n", lines.join("\n")) };
    batch
}

pub(super) fn first_line(text: &str) -> String {
    let mut line = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("no answer").trim().to_owned();
    line.truncate(line.char_indices().nth(300).map_or(line.len(), |(i, _)| i));
    line
}
