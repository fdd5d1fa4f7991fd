//! The projects of the ring: opened and closed as the list of them says, with their approved configurations, and a word
//! where a file differs from its approved copy.

use super::project::ProjectCtx;
use super::state_worker::{StateOp, StateWorker};
use super::turn::Ring;
use super::{chain, registry};
use crate::config::Places;
use crate::decide::Event;
use crate::decide::event::{Request as Asked, RequestId};
use crate::domain::ProjectId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::oneshot;

/// When a file was changed last, and its length; `None` for one that is not there.
pub(super) type Stamp = Option<(SystemTime, u64)>;

impl Ring {
    /// Opens projects that are registered and not open yet. One that cannot be opened is an alarm, not an end.
    pub(super) async fn open_projects(&mut self) {
        let list = match registry(&self.shared.places).list() {
            Ok(list) => list,
            Err(e) => {
                self.alarms.insert("projects", chain(&e));
                return;
            }
        };
        self.close_removed(&list);
        for entry in list {
            if self.shared.project(&entry.id).is_some() {
                continue;
            }
            match ProjectCtx::open(&self.shared.places, &entry).await {
                Ok((ctx, ops)) => {
                    let ctx = Arc::new(ctx);
                    if let Err(e) = ctx.load_policy(&self.shared.places) {
                        tracing::error!(project = %ctx.id, "{}", chain(&e));
                    }
                    let worker = StateWorker::new(
                        ctx.clone(),
                        self.shared.events.clone(),
                        self.shared.id.clone(),
                        self.shared.owner.clone(),
                    );
                    tokio::spawn(worker.run(ops));
                    if self.removed.remove(&ctx.id) {
                        self.ask_itself(Asked::Resume { project: Some(ctx.id.clone()) });
                    }
                    self.shared.put_project(ctx);
                }
                Err(e) => {
                    tracing::error!(project = %entry.id, "it cannot be opened: {}", chain(&e));
                    self.alarms.insert("project", format!("project {} cannot be opened: {}", entry.id, chain(&e)));
                }
            }
        }
    }

    /// Lets go of projects that are off the list: nothing of theirs starts or is written any more. What runs may end, and
    /// is settled when the project comes back.
    fn close_removed(&mut self, list: &[crate::config::Project]) {
        for ctx in self.shared.all_projects() {
            if list.iter().any(|entry| entry.id == ctx.id) {
                continue;
            }
            tracing::info!(project = %ctx.id, "it is off the list of projects, and closed");
            self.ask_itself(Asked::Pause { project: Some(ctx.id.clone()) });
            // Nobody waits for its last records.
            let _ = ctx.ops.send(StateOp::Close(oneshot::channel().0));
            self.shared.take_project(&ctx.id);
            self.watched.remove(&ctx.id);
            self.removed.insert(ctx.id.clone());
        }
    }

    /// A request of the daemon's own; nobody waits for the reply.
    fn ask_itself(&mut self, request: Asked) {
        self.next += 1;
        self.shared.send(Event::Request { id: RequestId(self.next), request });
    }

    /// Tells the board each project's approved configuration.
    pub(super) fn configure(&mut self) {
        self.alarms.remove("configuration");
        self.looked = self.stamps();
        for ctx in self.shared.all_projects() {
            match ctx.load_policy(&self.shared.places) {
                Ok(Some(policy)) => {
                    self.shared.send(Event::Configured { project: ctx.id.clone(), policy: Box::new(policy) });
                }
                Ok(None) => tracing::warn!(project = %ctx.id, "no approved configuration: nothing is started"),
                Err(e) => tracing::error!(project = %ctx.id, "{}", chain(&e)),
            }
            self.say_unapproved(&ctx);
        }
    }

    /// A file that differs from its approved copy is said, and does not run.
    fn say_unapproved(&mut self, ctx: &ProjectCtx) {
        let file = ctx.code.join(crate::config::FILE);
        let text = match std::fs::read(&file) {
            Err(e) => format!("overnight.toml cannot be read, the last approved one stays: {e}"),
            Ok(bytes) => match crate::config::parse(&file, &bytes) {
                Err(e) => format!("overnight.toml is not valid, the last approved one stays: {e}"),
                Ok(_) => {
                    let approvals = crate::config::Approvals::new(self.shared.places.data.clone());
                    match approvals.status(&ctx.id, &bytes) {
                        Ok(crate::config::approve::Status::Same) => return,
                        _ => "overnight.toml was changed and not approved; the last approved copy runs \
                              (`overnight config approve`)"
                            .to_owned(),
                    }
                }
            },
        };
        tracing::warn!(project = %ctx.id, "{}", crate::domain::safe::line(&text));
        // Several projects may have one each.
        let all = self.alarms.entry("configuration").or_default();
        if !all.is_empty() {
            all.push_str("; ");
        }
        all.push_str(&format!("{}: {text}", ctx.id));
    }

    /// What was changed by hand since the files were read last is said, as it is at the start. Cheap where nothing was.
    pub(super) fn look_at_configuration(&mut self) {
        let stamps = self.stamps();
        if stamps == self.looked {
            return;
        }
        self.looked = stamps;
        self.alarms.remove("configuration");
        for ctx in self.shared.all_projects() {
            self.say_unapproved(&ctx);
        }
    }

    fn stamps(&self) -> BTreeMap<ProjectId, Stamp> {
        let stamp = |ctx: &ProjectCtx| {
            let meta = std::fs::metadata(ctx.code.join(crate::config::FILE)).ok()?;
            Some((meta.modified().ok()?, meta.len()))
        };
        self.shared.all_projects().iter().map(|ctx| (ctx.id.clone(), stamp(ctx))).collect()
    }
}

/// What was saved of projects that are off the list says nothing any more, and nobody would ever read their wishes.
pub(super) fn without_removed(mut saved: crate::store::Saved, places: &Places) -> crate::store::Saved {
    // A list that cannot be read is said when the projects are opened; it is no proof of anything.
    if let Ok(list) = registry(places).list() {
        let known = |id: &ProjectId| list.iter().any(|entry| entry.id == *id);
        saved.tasks.retain(|task| known(&task.id.project));
        saved.ended.retain(|(id, _)| known(&id.project));
        saved.projects.retain(|(id, _)| known(id));
    }
    saved
}
