//! Random projects: rules and task graphs, small enough to end and odd enough to hurt.

use super::*;

pub(super) fn policy(rng: &mut Rng) -> Policy {
    let s = Duration::from_secs;
    let check = |n: u64| Check { name: format!("c{n}"), run: Command::Shell("true".into()), timeout: s(300) };
    let step = |name: &str, on_failure| Step {
        name: name.into(),
        run: Some(Command::Shell("true".into())),
        prompt: None,
        timeout: s(120),
        on_failure,
        when: When::Always,
    };
    let mut some = |name: &str, on| (0..rng.below(2)).map(|_| step(name, on)).collect::<Vec<_>>();
    let chain = Chain {
        before: some("before", OnFailure::Stop),
        after: some("after", OnFailure::Retry),
        background: some("background", OnFailure::Log),
        finally: some("finally", OnFailure::Log),
    };
    let profile = Profile { slots: 2 + rng.below(3) as u32, ..Profile::bare(AgentKind::Claude) };
    Policy {
        hash: "sha256:one".into(),
        base: "main".into(),
        slots: 1 + rng.below(4) as u32,
        attempts: 1 + rng.below(3) as u32,
        agent: "claude".into(),
        agents: BTreeMap::from([("claude".to_owned(), profile)]),
        limits: Limits {
            wall: s(1800),
            no_progress: s(300),
            first_event: s(120),
            exit_grace: s(10),
            kill_grace: s(5),
            transcript: 1 << 20,
            repeats: 10,
        },
        checks: (0..rng.below(3)).map(check).collect(),
        chain,
        merge: MergePolicy { into: "overnight/main".into(), checks: true },
        script_allowed: false,
        committer: ("o".into(), "o@example.invalid".into()),
        brief_budget: 1000,
        max_file: 1000,
        protect: Default::default(),
        env_pass: vec![],
    }
}

pub(super) fn wishes(rng: &mut Rng) -> BTreeMap<TaskPath, Wish> {
    let n = 1 + rng.below(8);
    let mut paths: Vec<TaskPath> = Vec::new();
    for i in 0..n {
        let nested = !paths.is_empty() && rng.chance(20);
        let text =
            if nested { format!("{}/t{i}", paths[rng.below(paths.len() as u64) as usize]) } else { format!("t{i}") };
        paths.push(TaskPath::parse(&text).unwrap());
    }
    let mut wishes = BTreeMap::new();
    for (i, path) in paths.iter().enumerate() {
        let mut depends_on: Vec<TaskPath> = (0..i).filter(|_| rng.chance(25)).map(|j| paths[j].clone()).collect();
        if rng.chance(2) {
            depends_on.push(TaskPath::parse("nowhere").unwrap());
        }
        if rng.chance(2) {
            depends_on.push(paths[rng.below(n) as usize].clone());
        }
        // A task cannot wait for what contains it; that is a cycle, and one in fifty stays in to see it told.
        if rng.chance(98) {
            depends_on.retain(|d| !path.is_below(d) && d != path && !d.is_below(path));
        }
        depends_on.sort();
        depends_on.dedup();
        let wish = Wish {
            title: format!("task {i}"),
            status: if rng.chance(3) { WishStatus::Planning } else { WishStatus::Queued },
            depends_on,
            priority: rng.below(3) as i32,
            review: rng.chance(10).then_some(true),
            ..Wish::default()
        };
        wishes.insert(path.clone(), wish);
    }
    wishes
}
