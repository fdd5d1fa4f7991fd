//! The loop. One turn: take the events at hand, turn the board, settle it, save what changed, and only then hand out what
//! it asks. A save that fails rolls everything back; the events stay, requests are still answered from memory, and the save
//! is tried again.

#![expect(clippy::disallowed_methods, reason = "this is the loop's own wait until `next_wake`")]

use super::backlog::Backlog;
use super::guard::guarded;
use super::hands::{self, Order};
use super::lock::{Anchor, Ours};
use super::manager::{self, Watchdog};
use super::project::lock;
use super::socket::Incoming;
use super::start::{EXIT_DATA, EXIT_OTHER, LEAVE, StartError, fail, id_file, open_store, own_id};
use super::state_worker::StateOp;
use super::{How, Shared, chain, sources, views, words};
use crate::config::Places;
use crate::decide::ask::{Ask, ProjectAsk};
use crate::decide::board::{JournalLine, Mode};
use crate::decide::event::{RequestId, Started};
use crate::decide::{Board, Event, publish};
use crate::domain::{Epoch, ProjectId, RunId};
use crate::process::{Runs, State};
use crate::protocol::{ErrorKind, Reply, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Events of one turn at most.
const BATCH: usize = 512;
/// How far a task's records may be ahead of its last run, in epochs.
const RECORDS_AHEAD: u64 = 1000;
/// Between two looks of a remote for new work.
const REMOTE_PACE: Duration = Duration::from_secs(10);

/// Somebody who follows the journal.
struct Follower {
    project: Option<ProjectId>,
    path: Option<crate::domain::TaskPath>,
    replies: mpsc::Sender<Reply>,
}

pub(super) struct Ring {
    pub board: Board,
    pub shared: Arc<Shared>,
    events: mpsc::UnboundedReceiver<Event>,
    order: Order,
    pub waiting: BTreeMap<RequestId, mpsc::Sender<Reply>>,
    pub next: u64,
    followers: Vec<Follower>,
    pub backlog: Backlog,
    pub alarms: BTreeMap<&'static str, String>,
    pub watched: BTreeMap<ProjectId, bool>,
    pub printer: Option<super::logs::Printer>,
    /// Projects that were closed since the start because they are off the list.
    pub removed: BTreeSet<ProjectId>,
    /// How each project's overnight.toml looked when it was read last: when it was changed, and its length.
    pub looked: BTreeMap<ProjectId, super::projects::Stamp>,
    /// Tasks that ended without being merged since the start.
    failed: BTreeSet<crate::domain::TaskId>,
    pub exit: bool,
    /// What must stay in place: our lock, and a file of our data folder.
    anchors: [Anchor; 2],
    /// The machine's present start, and the one in which the board was saved last.
    pub boot: String,
    saved_boot: Option<String>,
}

impl Ring {
    /// Opens the data folder, for whoever holds the lock.
    pub(super) async fn open(places: &Places, ours: &Ours) -> Result<Self, StartError> {
        let (store, replaced) = open_store(places).await?;
        let binary = crate::process::own_binary().map_err(|e| fail(EXIT_OTHER, format!("own binary: {e}")))?;
        let runs = Runs::open(&places.runs(), binary).map_err(|e| fail(EXIT_OTHER, chain(&e)))?;
        let saved = store.load().await.map_err(|e| fail(EXIT_DATA, chain(&e)))?;
        for row in &saved.unreadable {
            tracing::error!("a saved row cannot be read and is left alone: {}", crate::domain::safe::line(row));
        }
        let id = own_id(places).map_err(|e| fail(EXIT_OTHER, e))?;
        let anchor = Anchor::of(&id_file(places)).map_err(|e| fail(EXIT_OTHER, chain(&e)))?;
        let saved = super::projects::without_removed(saved, places);
        let board = Board::load(saved.tasks, saved.ended, saved.projects, saved.paused, saved.night);
        let (sender, events) = mpsc::unbounded_channel();
        let shared = Shared {
            places: places.clone(),
            runs,
            store: Arc::new(store),
            events: sender,
            projects: RwLock::default(),
            background: Mutex::default(),
            followed: Mutex::default(),
            env: crate::config::environment(),
            is_root: nix::unistd::geteuid().is_root(),
            id,
            owner: crate::host::owner(),
            closed: watch::channel(false).0,
            hands: tokio::sync::Semaphore::new(super::HANDS),
            full_seen: Mutex::default(),
            night: Mutex::new(board.night.as_ref().map(|n| n.number)),
        };
        Ok(Self {
            board,
            shared: Arc::new(shared),
            events,
            order: Order::default(),
            waiting: BTreeMap::new(),
            next: 0,
            followers: Vec::new(),
            backlog: Backlog::default(),
            alarms: replaced.map(|text| ("history", text)).into_iter().collect(),
            watched: BTreeMap::new(),
            printer: None,
            removed: BTreeSet::new(),
            looked: BTreeMap::new(),
            failed: BTreeSet::new(),
            exit: false,
            anchors: [ours.anchor().clone(), anchor],
            boot: crate::host::clock::boot_id().unwrap_or_default(),
            saved_boot: saved.boot_id,
        })
    }

    /// Looks around, then lets the board begin: inventory, adoption, and only then anything new.
    pub(super) async fn begin(&mut self, _how: &How) -> Result<(), StartError> {
        let runs = self.shared.runs.clone();
        let inventory = tokio::task::spawn_blocking(move || runs.inventory()).await;
        let inventory = inventory
            .map_err(|e| fail(EXIT_OTHER, format!("the runs could not be looked at: {e}")))?
            .map_err(|e| fail(EXIT_OTHER, chain(&e)))?;
        self.settle_missing().await;
        let (open, over): (Vec<_>, Vec<_>) =
            inventory.into_iter().partition(|f| matches!(f.state, State::Live | State::NeverStarted));
        // A new database beside old runs: theirs are the names that must not be used again. Records have gone a few phases
        // beyond them.
        let all = open.iter().chain(&over).filter_map(|f| f.run.epoch());
        let used = all.max().filter(|_| self.saved_boot.is_none()).map_or(Epoch(0), |e| Epoch(e.0 + RECORDS_AHEAD));
        let open: Vec<RunId> = open.into_iter().map(|f| f.run).collect();
        let over: Vec<RunId> = over.into_iter().map(|f| f.run).collect();
        super::retention::prune(&self.shared, &self.board, over);
        self.open_projects().await;
        let same_boot = self.is_same_boot();
        let slots = self.machine_slots();
        let started = Started { same_boot, only_serve: false, runs: open, slots, used };
        self.process(vec![Event::Started(started)]).await;
        if !same_boot && let Err(e) = self.shared.store.save_boot(&self.boot, &self.board).await {
            return Err(fail(EXIT_DATA, chain(&e)));
        }
        self.configure();
        for ctx in self.shared.all_projects() {
            let watched = sources::watch(&self.shared, &ctx);
            self.watched.insert(ctx.id.clone(), watched);
            sources::poll_remote(&self.shared, &ctx, REMOTE_PACE);
            let _ = ctx.ops.send(StateOp::Fetch);
            let _ = ctx.ops.send(StateOp::Look { whole: true });
        }
        tracing::info!(projects = self.shared.all_projects().len(), "overnight {} is up", env!("CARGO_PKG_VERSION"));
        Ok(())
    }

    /// A run that has shown signs of life and whose folder is gone began once, so it does not begin anew.
    async fn settle_missing(&self) {
        let beats = match self.shared.store.beats().await {
            Ok(beats) => beats,
            Err(e) => return tracing::warn!("the signs of life cannot be read: {}", chain(&e)),
        };
        let begun: BTreeSet<RunId> = beats.into_iter().map(|beat| beat.run).collect();
        for task in self.board.tasks.values().filter(|task| task.phase.child().is_some()) {
            let run = task.run.as_ref().map(|run| RunId::new(&task.id, run.epoch));
            if let Some(run) = run.filter(|run| begun.contains(run)) {
                self.shared.runs.settle_missing(&run);
            }
        }
    }

    /// Whether the machine still runs as when the board was saved.
    pub(super) fn is_same_boot(&self) -> bool {
        self.saved_boot.as_deref() == Some(self.boot.as_str())
    }

    /// Agents at once over all projects. A setting that cannot be read is an alarm, and the default holds.
    fn machine_slots(&mut self) -> u32 {
        match crate::config::Machine::load(&self.shared.places) {
            Ok(machine) => machine.slots,
            Err(e) => {
                tracing::error!("{}", chain(&e));
                self.alarms.insert("machine", chain(&e));
                crate::config::Machine::default().slots
            }
        }
    }

    pub(super) async fn turn_until_exit(&mut self, mut incoming: mpsc::Receiver<Incoming>, how: &How) -> ExitCode {
        let (reload, mut reloads) = mpsc::unbounded_channel();
        if let Err(e) = sources::signals(&self.shared, *how != How::Background, reload) {
            tracing::error!("signals cannot be taken: {e}");
        }
        let until_idle = matches!(how, How::Foreground { until_idle: true, .. });
        let mut watchdog = Watchdog::from_manager();
        manager::ready(self.shared.all_projects().len());
        let _watch = sources::watch_anchors(&self.shared, &self.anchors);
        while !self.exit && self.is_in_place() {
            let now = crate::host::clock::now();
            watchdog.lives(now);
            let wake = watchdog.wait(now).map_or_else(|| self.wake(), |wait| self.wake().min(wait));
            tokio::select! {
                biased;
                Some(call) = incoming.recv() => self.call(call).await,
                Some(()) = reloads.recv() => self.reload().await,
                event = self.events.recv() => {
                    let Some(event) = event else { break };
                    self.take_in(event).await;
                }
                () = tokio::time::sleep(wake) => {
                    let batch = self.backlog.take(BATCH);
                    self.process(batch).await;
                }
            }
            if until_idle && self.backlog.is_empty() && self.events.is_empty() && self.is_done() {
                self.process(vec![Event::Terminate { stop_agents: false }]).await;
            }
        }
        manager::stopping();
        self.exit_code(how)
    }

    async fn take_in(&mut self, event: Event) {
        if self.backlog.is_empty() {
            let batch = self.gather(event);
            self.process(batch).await;
        } else {
            self.put_off(event);
        }
    }

    /// Everything that waits already, in one turn.
    fn gather(&mut self, first: Event) -> Vec<Event> {
        let mut batch = vec![first];
        while batch.len() < BATCH {
            match self.events.try_recv() {
                Ok(event) => batch.push(event),
                Err(_) => break,
            }
        }
        batch
    }

    fn wake(&self) -> Duration {
        let now = crate::host::clock::now();
        if let Some(wait) = self.backlog.wait(now) {
            return wait;
        }
        // Without anything due there is nothing to wake for; a day is for ever.
        self.board.next_wake(now).map_or(Duration::from_secs(86_400), |at| at.since(now.mono))
    }

    /// Idle, and everything that people should see is out.
    pub(super) fn is_done(&self) -> bool {
        let now = crate::host::clock::now();
        let all_read =
            self.shared.all_projects().iter().all(|c| self.board.projects.get(&c.id).is_some_and(|p| p.read));
        let quiet = self.board.projects.values().all(|p| p.board_due.is_none() && p.board_busy.is_none());
        all_read && quiet && publish::is_idle(&self.board, now)
    }

    /// Whether lock and data folder are still those that we began with; if not, the ring turns no more. Another daemon may
    /// turn its own under their names by now. What runs is taken up from where its folder is.
    fn is_in_place(&mut self) -> bool {
        let gone = self.anchors.iter().find(|anchor| !anchor.is_there());
        if let Some(gone) = gone.filter(|_| !self.exit) {
            tracing::error!("{} is gone; the daemon ends", gone.path().display());
            self.exit = true;
        }
        gone.is_none()
    }

    fn exit_code(&mut self, how: &How) -> ExitCode {
        if !self.is_in_place() {
            return ExitCode::from(EXIT_OTHER);
        }
        let How::Foreground { until_idle: true, project, .. } = how else { return ExitCode::SUCCESS };
        let mine = |id: &ProjectId| project.as_ref().is_none_or(|p| p == id);
        let open = self.board.tasks.iter().any(|(id, t)| {
            mine(&id.project) && t.wish.status == crate::domain::task::WishStatus::Queued && t.wish.wish.is_none()
        });
        let failed = self.failed.iter().any(|id| mine(&id.project));
        if open || failed { ExitCode::from(1) } else { ExitCode::SUCCESS }
    }

    /// One turn over a batch of events.
    pub(super) async fn process(&mut self, batch: Vec<Event>) {
        if !self.is_in_place() {
            return;
        }
        let now = crate::host::clock::now();
        let whole = batch.iter().any(|e| matches!(e, Event::Wishes { news, .. } if news.whole));
        for event in &batch {
            self.board.turn(event.clone(), now);
        }
        self.board.settle(now);
        let changes = self.board.changes();
        let ended: Vec<_> =
            changes.ended.iter().map(|(id, c, _)| ((*id).clone(), c.is_some_and(|c| !c.outcome.satisfies()))).collect();
        let journal = self.board.journal();
        let night = self.board.night.as_ref().map(|n| n.number);
        let seqs = if changes.is_empty() && journal.is_empty() {
            Ok(0..0)
        } else {
            self.shared.store.save(&changes, journal, night, now).await
        };
        match seqs {
            Ok(seqs) => {
                self.board.saved();
                self.backlog.saved(now);
                for (id, failed) in ended {
                    let _ = if failed { self.failed.insert(id) } else { self.failed.remove(&id) };
                }
                self.alarms.remove("database");
                *lock(&self.shared.night) = night;
                let journal = self.board.take_journal();
                self.tell(journal, seqs.start);
                for ask in self.board.take_asks() {
                    self.hand_out(ask).await;
                }
            }
            Err(e) => {
                // As if the turn had not been: nothing is handed out, the events stay for the next try.
                self.board.roll_back();
                let text = chain(&e);
                if e.is_damage() {
                    self.renew_store().await;
                }
                if self.alarms.insert("database", text.clone()).as_ref() != Some(&text) {
                    tracing::error!("the board cannot be saved, nothing new is started until it can: {text}");
                }
                self.not_saved(batch, &text, now);
            }
        }
        if whole {
            crate::host::give_memory_back();
        }
    }

    async fn hand_out(&mut self, ask: Ask) {
        match ask {
            Ask::Reply { id, reply } => {
                if let Some(replies) = self.waiting.remove(&id) {
                    let _ = replies.try_send(words::judged(reply));
                }
            }
            Ask::Exit => self.exit = true,
            Ask::Project { project, epoch, what: ProjectAsk::PublishBoard } => {
                let Some(ctx) = self.shared.project(&project) else { return };
                let boards = views::boards(&self.board, &self.shared, &project).await;
                let _ = ctx.ops.send(StateOp::Boards { epoch, boards });
            }
            other => hands::dispatch(&self.shared, &mut self.order, other),
        }
    }

    /// Journal lines go to the log, to the terminal of a foreground run, and to whoever follows.
    fn tell(&mut self, journal: Vec<JournalLine>, first: u64) {
        for (seq, line) in (first..).zip(journal) {
            let task = line.task.as_ref().map(ToString::to_string).unwrap_or_default();
            let project = line.project.as_ref().map(ToString::to_string).unwrap_or_default();
            let text = crate::domain::safe::line(&line.text);
            tracing::info!(seq, project, task, epoch = line.epoch.0, kind = line.kind, "{text}");
            if let Some(printer) = &mut self.printer {
                printer.line(&self.board, &line);
            }
            self.followers.retain(|f| {
                let wanted =
                    (f.project.is_none() || f.project == line.project) && (f.path.is_none() || f.path == line.task);
                !wanted || f.replies.try_send(Reply::Event(words::event_line(seq, &line))).is_ok()
            });
            self.followers.retain(|f| !f.replies.is_closed());
        }
    }

    /// A request from a face: answered from memory, or turned into an event of the ring.
    pub(super) async fn call(&mut self, call: Incoming) {
        let Incoming { request, replies } = call;
        if let Request::Events { project, path, since, limit, follow } = request {
            let (lines, next) = views::events(&self.shared, project.as_ref(), path.as_ref(), since, limit).await;
            let _ = replies.try_send(Reply::Events { lines, next });
            if follow {
                self.followers.push(Follower { project, path, replies });
            }
            return;
        }
        if matches!(request, Request::Status { .. }) {
            self.look_at_configuration();
        }
        if let Some(answer) = views::repos::answer(self, &request) {
            tokio::spawn(async move {
                let reply = guarded(answer).await.unwrap_or_else(|why| Reply::error(ErrorKind::Unexpected, why));
                let _ = replies.try_send(reply);
            });
            return;
        }
        if let Some(reply) = views::answer(self, &request).await {
            let _ = replies.try_send(reply);
            return;
        }
        if request == Request::Reload {
            self.reload().await;
            let _ = replies.try_send(Reply::Done { text: "configuration and projects are read afresh".into() });
            return;
        }
        let Some(asked) = words::asked(request) else { return };
        self.next += 1;
        let id = RequestId(self.next);
        self.waiting.insert(id, replies);
        // In the order it came: what is under way already is turned first.
        self.shared.send(Event::Request { id, request: asked });
    }

    async fn reload(&mut self) {
        self.open_projects().await;
        self.configure();
        for ctx in self.shared.all_projects() {
            if !self.watched.contains_key(&ctx.id) && self.board.mode == Some(Mode::Working) {
                let watched = sources::watch(&self.shared, &ctx);
                self.watched.insert(ctx.id.clone(), watched);
                sources::poll_remote(&self.shared, &ctx, REMOTE_PACE);
                let _ = ctx.ops.send(StateOp::Look { whole: true });
            }
        }
    }

    /// Lets go of everything; what is under way is found again at the next start.
    pub(super) async fn close(self) {
        let _ = self.shared.closed.send(true);
        // Records on their way out are given a moment, and folders are brought up; else the next start does it.
        let mut ends = Vec::new();
        for ctx in self.shared.all_projects() {
            let (done, end) = oneshot::channel();
            let _ = ctx.ops.send(StateOp::Close(done));
            ends.push(end);
        }
        let all = async {
            for end in ends {
                let _ = end.await;
            }
        };
        if tokio::time::timeout(LEAVE, all).await.is_err() {
            tracing::warn!("the state repo is still busy; what is left is done at the next start");
        }
        tracing::info!("overnight ends");
    }

    /// The next event, for whoever turns the ring without a daemon.
    pub(super) async fn next_event(&mut self, within: Duration) -> bool {
        let wake = self.wake().min(within);
        tokio::select! {
            event = self.events.recv() => {
                let Some(event) = event else { return false };
                self.take_in(event).await;
            }
            () = tokio::time::sleep(wake) => {
                let batch = self.backlog.take(BATCH);
                self.process(batch).await;
            }
        }
        true
    }
}
