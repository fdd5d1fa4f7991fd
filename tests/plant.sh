#!/usr/bin/env bash
# Plants one fault at a time into a copy of the rules and demands that the simulation, the stories or the unit tests name
# it. A fault that nobody names is a hole in the tests. Prints a table; ends with 1 when a fault survived or no longer
# applies. PLANT=word plays only faults whose name has the word; SIM_SEEDS sets how many nights each gets (400).
set -u
cd "$(dirname "$0")/.." || exit 1
copy=$(mktemp -d) || exit 1
trap 'rm -rf "$copy"' EXIT
tree="$copy/tree" pure="$copy/pure"
export CARGO_TARGET_DIR="${PLANT_TARGET:-$copy/target}" SIM_SEEDS="${SIM_SEEDS:-400}" RUST_BACKTRACE=0
# The rules and the words alone, as a crate of their own: small enough to be built anew for each fault. `pure` stays as it
# is, so that work in this folder meanwhile changes nothing.
mkdir -p "$pure/src" "$pure/tests"
cp -r src/domain src/decide "$pure/src"
cp -r tests/model tests/sim tests/stories "$pure/tests"
cp Cargo.lock "$pure"
cat >"$pure/src/lib.rs" <<'RUST'
pub mod decide;
pub mod domain;
RUST
{
    printf '[package]\nname = "overnight"\nversion = "0.1.0"\nedition = "2024"\n\n[dependencies]\n'
    grep -E '^(serde|serde_json|sha2|thiserror) =' Cargo.toml
    printf '\n[dev-dependencies]\n'
    grep -E '^proptest =' Cargo.toml
    printf '\n[profile.dev]\ndebug = false\n'
    for test in sim stories; do printf '\n[[test]]\nname = "%s"\npath = "tests/%s/main.rs"\n' $test $test; done
} >"$pure/Cargo.toml"
cp -r "$pure" "$tree"
bad=0

# plant NAME FILE PERL: the substitution must change the file.
plant() {
    local name=$1 file=$2 edit=$3 log="$copy/log" named rc
    case "$name" in *"${PLANT:-}"*) ;; *) return ;; esac
    perl -0pi -e "$edit" "$tree/$file"
    if cmp -s "$pure/$file" "$tree/$file"; then
        printf '%-44s DOES NOT APPLY\n' "$name"
        bad=1
        return
    fi
    (cd "$tree" && timeout 300 cargo test --no-fail-fast --lib --test stories --test sim) >"$log" 2>&1
    rc=$?
    cp "$pure/$file" "$tree/$file"
    touch "$tree/$file"
    if grep -qE '^error(\[|: could not compile)' "$log"; then
        printf '%-44s DOES NOT COMPILE\n' "$name"
        grep -m 3 -A 4 '^error' "$log"
        bad=1
    elif [ $rc = 0 ]; then
        printf '%-44s SURVIVED\n' "$name"
        bad=1
    else
        named=$(grep -E 'broke a rule|no night reached' "$log" | head -n 1 | sed 's/;.*//')
        [ -n "$named" ] && named="simulation: $(grep -B 1 -A 1 'panicked at tests/sim/world' "$log" | grep -v -e panicked -e '^--' -e '^$' -e '^stack' | head -n 1 | cut -c 1-70)"
        stories=$(sed -n 's/^\([a-z_]*\): \(line [0-9]* of its .out\|the story broke off\).*/\1/p' "$log" | sort -u)
        [ -n "$stories" ] && named="stories: $(echo "$stories" | wc -l) ($(echo "$stories" | head -n 3 | paste -sd ' '))${named:+; $named}"
        [ $rc = 124 ] && named="${named:+$named; }a simulation that does not end"
        [ -n "$named" ] || named=$(grep -m 1 -E '^test .*FAILED' "$log")
        printf '%-44s caught by %s\n' "$name" "$(echo "$named" | cut -c 1-150)"
    fi
}

(cd "$tree" && cargo test --lib --test stories --test sim) >"$copy/log" 2>&1 || {
    tail -n 30 "$copy/log"
    echo 'the tests fail without any fault'
    exit 1
}
d=src/decide
plant 'stale answers are taken' $d/advance.rs 's/_ if epoch != task.epoch => \{\}/_ if epoch.0 > task.epoch.0 => {}/'
plant 'the end of another run is taken' $d/advance.rs 's/Some\(epoch\) == expected && run == RunId::new\(id, epoch\) && //'
plant 'restart spawns instead of adopting' $d/recover.rs 's/(    super::advance::)ask_again\(board, id, now\);/    let phase = board.tasks.get(id).map(|t| t.phase.clone());\n    if let Some(phase) = phase { return super::advance::enter(board, id, phase, "again", now); }\n$1ask_again(board, id, now);/'
plant 'restart asks nothing' $d/recover.rs 's/        resume\(board, &id, now\);/        let _ = (&id, resume as fn(&mut Board, &TaskId, Now));/'
plant 'orphans are left alone' $d/recover.rs 's/filter\(\|run\| !known.contains\(\*run\)\)/filter(|run| !known.contains(*run) && false)/'
plant 'two trains at once' $d/merge.rs 's/ && !target::train\(board, id\)//'
plant 'dependencies are ignored' $d/schedule.rs 's/Need::Missing => return Err\(Hold::Missing\(path.clone\(\)\)\),\n(.*\n).*OnItsWay => \{/Need::Missing => return Err(Hold::Missing(path.clone())),\n$1            Need::OnItsWay if true => {}\n            Need::OnItsWay => {/'
plant 'merges in no order of needs' $d/merge.rs 's/\(behind\(t\), /(!behind(t), /'
plant 'slots: one too many over all' $d/schedule.rs 's/if counts.all >= board.slots \{\n        return Err/if counts.all > board.slots {\n        return Err/; s/(if counts.all >)= board.slots/$1 board.slots/g'
plant 'slots: one too many in a project' $d/schedule.rs 's/>= policy.slots/> policy.slots/'
plant 'slots: one too many of a profile' $d/schedule.rs 's/>= plan.profile.slots/> plan.profile.slots/'
plant 'an answered question takes any slot' $d/requests.rs 's/Phase::Backoff \{ again: Again::Run \}, why, now\);/Phase::Running, why, now);/'
plant 'the kill has no deadline' $d/deadline.rs 's/            Some\(\(at, _\)\) => want\(at\),/            Some((_, Due::Kill)) => {}\n            Some((at, _)) => want(at),/; s/alive \|= task.phase.child\(\).is_some\(\);/alive |= task.phase.child().is_some() && !matches!(task.phase, Phase::Stopping { .. });/'
plant 'KILL is never sent' $d/deadline.rs 's/Due::Kill => super::advance::kill\(board, &id, now\),/Due::Kill => {}/'
plant 'what cannot be killed is waited for' $d/deadline.rs 's/Due::GiveUp => give_up\(board, &id, now\),/Due::GiveUp => { let _ = give_up as fn(&mut Board, &TaskId, Now); }/'
plant 'the unkillable gets company' $d/deadline.rs 's/if !matches!\(child, Child::MergeCheck/if false \&\& !matches!(child, Child::MergeCheck/'
plant 'wall limit is not looked at' $d/deadline.rs 's/vec!\[\(wall\(limits.wall\), StopCause::WallLimit\)\]/vec![(wall(limits.wall * 9), StopCause::WallLimit)]/'
plant 'chatter counts as progress' $d/advance.rs 's/moved \|= event.is_progress\(\);/moved = true;/'
plant 'progress does not count' $d/advance.rs 's/        run.last_progress = now.mono;/        run.last_output = now.mono;/'
plant 'doomed tasks are not recognised' $d/schedule.rs 's/Some\(\(need, why\)\) => Hold::Doomed \{ need, why \},/Some((need, why)) if false => Hold::Doomed { need, why },\n                    Some(_) => Hold::Needs(path.clone()),/'
plant 'cycles are not recognised' $d/schedule.rs 's/return Err\(Hold::Cycle\(cycle.clone\(\)\)\);/let _ = cycle;/'
plant 'abort is ignored while running' $d/requests.rs 's/super::advance::stop\(board, key, StopCause::Abort, now\);/let _ = StopCause::Abort;/'
plant 'abort overrides what is settled' $d/requests.rs 's/if matches!\(task.end, Some\(AttemptEnd::Over \{ .. \}\)\) \{\n        return;/if false {\n        return;/; s/        Phase::Finally \{ .. \} => \{\}\n//; s/(        \| Phase::Collecting \{ .. \}\n        \| Phase::Waiting \{ .. \}\n)(        \| Phase::MergeQueued\n        \| Phase::Merging \{ stage)/$1        | Phase::Finally { .. }\n$2/'
plant 'what a parent contains outlives its abort' $d/requests.rs 's/for id in &below \{/for id in below.iter().take(0) {/; s/!queued \|\| below.is_empty\(\)/true/'
plant 'attempts of good runs are not counted' $d/verdicts.rs 's/task.attempts \+= 1;\n    task.tries = 0;\n    task.follow/task.tries = 0;\n    task.follow/'
plant 'failed attempts are not counted' $d/verdicts.rs 's/task.attempts \+= 1;\n    task.tries = 0;\n    if fresh/task.tries = 0;\n    if fresh/'
plant 'limits spend attempts' $d/verdicts.rs 's/(let project = board.project_mut\(&id.project\);\n    let before)/board.task_mut(id).map(|t| t.attempts += 1);\n    $1/'
plant 'the same failure again goes on' $d/children.rs 's/if n == 0 && task.work/if n == 99 \&\& task.work/'
plant 'a red check passes' $d/children.rs 's/CheckVerdict::Fail \{ why \} => \(format/CheckVerdict::Fail { .. } => return checking(board, id, n + 1, "passes", now),\n        #[expect(unreachable_patterns, reason = "planted")]\n        CheckVerdict::Fail { why } => (format/'
plant 'merge without a green check' $d/merge.rs 's/\(true, false\) => \(MergeStage::Check \{ n: 0 \}/(true, false) if false => (MergeStage::Check { n: 0 }, ""),\n                (true, false) => (MergeStage::Move/'
plant 'a red merge is merged' $d/merge.rs 's/CheckVerdict::Fail \{ why \} => \{\n/CheckVerdict::Fail { .. } if !timed_out => super::advance::enter(board, id, Phase::Merging { stage: MergeStage::Move }, "", now),\n        CheckVerdict::Fail { why } => {\n/'
plant 'green is kept for another configuration' $d/facts.rs 's/t == tree && \*hash == policy.hash/t == tree \&\& !hash.is_empty()/'
plant 'the base is joined unchecked' $d/target.rs 's/if !project.is_green\(tree\) \{/if !project.is_green(tree) \&\& false {/'
plant 'a red base starts tasks' $d/schedule.rs 's/red: Some\(reason\), .. \}\) => Err\(Hold::Baseline\(reason.clone\(\)\)\)/red: Some(_), .. }) => Ok(())/'
plant 'a gap moves no clock' $d/board.rs 's/        self.shift\(gap.saturating_add\(CATCH_UP\)\);\n/        let _ = CATCH_UP;\n/; s/    fn shift/    #[expect(dead_code, reason = "planted")]\n    fn shift/'
plant 'review is skipped' $d/children.rs 's/    if task.needs_review\(\) \{/    if task.needs_review() \&\& false {/'
plant 'a lost claim is won' $d/advance.rs 's/Answer::ClaimLost \{ by \} => \{/Answer::ClaimLost { .. } => enter(board, id, Phase::Preparing, "", now),\n        #[expect(unreachable_patterns, reason = "planted")]\n        Answer::ClaimLost { by } => {/'
plant 'an unknown claim is won' $d/advance.rs 's/Answer::ClaimUnknown \{ why \} \| Answer::Failed \{ why \} => \{/Answer::ClaimUnknown { .. } => enter(board, id, Phase::Preparing, "", now),\n        Answer::Failed { why } => {/'
plant 'a claim that is gone is ignored' $d/advance.rs 's/Answer::ClaimGone => claim_gone\(board, id, now\),/Answer::ClaimGone => { let _ = claim_gone as fn(&mut Board, &TaskId, Now); }/'
plant 'roll back keeps tasks' $d/board.rs 's/Some\(task\) => drop\(self.tasks.insert\(id, task\)\),/Some(task) => drop((id, task)),/'
plant 'roll back keeps soft changes' $d/board.rs 's/self.tasks.extend\(undo.soft_tasks\);/drop(undo.soft_tasks);/; s/self.projects.extend\(undo.soft_projects\);/drop(undo.soft_projects);/'
plant 'roll back loses notices' $d/board.rs 's/            self.noticed = memory.noticed;/            drop(memory.noticed);/'
plant 'changes are not saved' $d/board.rs 's/self.undo.tasks.entry\(id.clone\(\)\).or_insert_with\(\|\| Some\(task.clone\(\)\)\);\n/if task.phase != crate::domain::phase::Phase::Running { self.undo.tasks.entry(id.clone()).or_insert_with(|| Some(task.clone())); }\n/'
plant 'a failed trial holds its profile for ever' $d/schedule.rs 's/    free_trials\(board, &counts\);\n/    let _ = free_trials as fn(&mut Board, &Counts);\n/'
plant 'all try a held profile at once' $d/schedule.rs 's/if !over \|\| hold.trial/if !over/'
plant 'a pause starts tasks' $d/schedule.rs 's/    if board.paused \|\| project.paused \{/    if board.paused \&\& project.paused {/'
plant 'a landing overtakes the merge' $d/requests.rs 's/    if matches!\(one.target, Target::Ready \{ .. \} \| Target::Blocked \{ .. \}\) \{/    if matches!(one.target, Target::Blocked { .. }) {/'
plant 'an outdated check gives a verdict' $d/target.rs 's/    if check.void \{/    if check.void \&\& false {/'
plant 'parents are never done' $d/schedule.rs 's/all > 0 && open == 0 && failed.is_none\(\)/all > 0 \&\& open == 99 \&\& failed.is_none()/'
plant 'parents are done with failed children' $d/schedule.rs 's/open == 0 && failed.is_none\(\)/open == 0 \&\& (failed.is_none() || failed.is_some())/'
plant 'the priority is turned round' $d/schedule.rs 's/ready.push\(\(-i64::from/ready.push((i64::from/'
plant 'one project takes all turns' $d/schedule.rs 's/\*n \+= 1;\n            \(\*n, item\)/let _ = n;\n            (0, item)/'
plant 'work is not rescued' $d/ending.rs 's/CleanStage::Rescue if !task.prepared/CleanStage::Rescue if task.prepared || !task.prepared/'
plant 'worktrees are not given back' $d/ending.rs 's/CleanStage::Remove if !task.prepared/CleanStage::Remove if task.prepared || !task.prepared/'
plant 'a conclusion that failed is forgotten' $d/ending.rs 's/if stage == CleanStage::Remove && task.tries/if stage != CleanStage::Rescue \&\& task.tries + 9/'
plant 'stopping starts new children' $d/advance.rs 's/\(true, Some\(Mode::Stopping \| Mode::Serving\), Some\(child\)\) =/(false, Some(Mode::Stopping), Some(child)) =/'
plant 'what is protected needs no yes' $d/facts.rs 's/self.wish.review.unwrap_or_else\(\|\| self/self.wish.review.unwrap_or_else(|| false \&\& self/'
plant 'a halted project merges on' $d/target.rs 's/project.halted.is_none\(\)\n        && matches/matches/'
plant 'a halted project starts tasks' $d/schedule.rs 's/if let Some\(what\) = &project.halted \{/if let (Some(what), true) = (\&project.halted, false) {/'
plant 'an answered task stays blocked for others' $d/publish.rs 's/told.epoch < t.claimed \|\| told.waits/told.epoch < t.claimed/'
plant 'an absence counts against the wall limit' $d/recover.rs 's/            run.taken_up = Some\(now.mono\);\n//'
plant 'a look without a daemon judges runs' $d/deadline.rs 's/matches!\(board.mode, Some\(Mode::Working \| Mode::Stopping\)\)/board.mode.is_some()/'
plant 'a need is met while its sub-tasks run' $d/schedule.rs 's/outcome.satisfies\(\) && children\(board, &id\).1 > 0/outcome.satisfies() \&\& children(board, \&id).1 > 9999/'
plant 'merges go by the rules of the claim' $d/merge.rs 's/            take_present_rules\(board, &task\);\n/            let _ = take_present_rules;\n/'
plant 'an outside kill is charged' $d/verdicts.rs 's/if cause.is_none\(\) && matches!\(end.exit, Exit::Signalled/if cause.is_some() \&\& matches!(end.exit, Exit::Signalled/'
plant 'a yes holds for every try' $d/facts.rs 's/self.wish.approved.is_some_and\(\|of\| of >= self.retry.max\(self.wish.retry\)\)/self.wish.approved.is_some()/'
plant 'a child that never began is charged' $d/verdicts.rs 's/(fn never_started.*?task.tries \+= 1;)/$1\n    task.attempts += 1;/s'
plant 'a failed check is not told' $d/verdicts.rs 's/    task.follow = Some\(Follow::Failed\(Box::new\(FailedCheck \{ left, ..check \}\)\)\);/    drop((check, left));/'
plant 'the last try is forgotten' $d/ending.rs 's/        self.failure = last.map\(Failure::of_earlier\);/        drop(last);\n        self.failure = None;/; s/let failure = ended.outcome.reason\(\).map\(Failure::of_earlier\);/let failure = None;\n        let _ = ended;/'
plant 'landing asks for no checks' $d/target.rs 's/Target::Ready \{ tree, .. \} if !project.is_green\(tree\) => \{/Target::Ready { tree, .. } if !project.is_green(tree) \&\& false => {/'
plant 'the breaker never opens' $d/breaker.rs 's/BREAK_AFTER: u32 = 3/BREAK_AFTER: u32 = 99/'
plant 'a failed trial rests no longer' $d/breaker.rs 's/before.is_some\(\) && !trial/before.is_some()/'
plant 'the breaker never closes' $d/breaker.rs 's/project_mut\(project\).failing.remove\(name\);/project_soft(project).failing.get(name);/'
plant 'a loop is not stopped' $d/advance.rs 's/            stop\(board, id, StopCause::Looping, now\);\n//'
plant 'a change is no reason to repeat' $d/habits.rs 's/        self.last = \[None, None\];\n//; s/(fn changed.*?)        self.repeated = 0;\n/$1        self.told |= false;\n/s'
exit $bad
