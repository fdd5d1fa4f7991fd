//! What the supervisor costs beside the work itself: time per task against a plain shell loop, from a saved task file to
//! the agent, at rest, in pushes, and in reading an agent's output. `cargo bench --bench overhead` prints tables and
//! writes to temporary folders only; words after `--` choose measurements (`tasks`, `start`, `rest`, `push`, `stream`).
//!
//! Machines differ and are busy: compare the two sides of one table, which take turns in one run.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench measures time, starts programs and lets the machine rest between two measurements"
)]
#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

#[path = "overhead/home.rs"]
mod home;
#[path = "overhead/proc.rs"]
mod proc;
#[path = "overhead/shell.rs"]
mod shell;

use home::{Home, Shape, Times, now_ms};
use shell::Shell;
use std::time::{Duration, Instant};

/// A measurement's name and what it does.
type Part = (&'static str, fn());

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let parts: [Part; 5] = [("tasks", tasks), ("start", start), ("rest", rest), ("push", push), ("stream", stream)];
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            part();
        }
    }
}

/// Rounds of one comparison, and tasks in each.
const ROUNDS: usize = 5;
const TASKS: usize = 12;

fn tasks() {
    println!("\nA task from queued to merged, its agent only commits; {ROUNDS} rounds of {TASKS}, sides alternating");
    println!("{:<26} {:>12} {:>12} {:>8}  one task, saved to merged", "", "overnight", "shell loop", "ratio");
    for (files, slots) in [(100, 1), (100, 8), (2000, 1), (2000, 8)] {
        let shape = Shape { files, slots, ..Shape::default() };
        let mut home = Home::new(shape);
        let shell = Shell::new(shape);
        // The first tasks make worktrees that the others find.
        home.work(&commits(usize::MAX, TASKS));
        let (mut ours, mut theirs, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let names: Vec<String> = (0..TASKS).map(|n| format!("shell-{round}-{n}")).collect();
            theirs.push(ms(shell.work(&names)));
            let times = home.work(&commits(round, TASKS));
            ours.push(per_task(times.values()));
            whole.extend(times.values().map(|t| float(t.merged - t.claiming)));
        }
        let (a, b) = (median(&mut ours), median(&mut theirs));
        let name = format!("{files} files, {slots} slots");
        println!("{name:<26} {a:>9.1} ms {b:>9.1} ms {:>8.2}  {:.0} ms from its claim on", a / b, median(&mut whole));
    }
}

/// From the first file saved to the last merge, by the number of tasks.
fn per_task<'a>(times: impl Iterator<Item = &'a Times> + Clone) -> f64 {
    let count = times.clone().count();
    let from = times.clone().map(|t| t.saved).min().unwrap();
    let to = times.map(|t| t.merged).max().unwrap();
    float(to - from) / float(i64::try_from(count).unwrap())
}

/// Tasks whose agent commits one new file.
fn commits(round: usize, count: usize) -> Vec<(String, Vec<String>)> {
    (0..count)
        .map(|n| {
            let name = if round == usize::MAX { format!("warm-{n}") } else { format!("task-{round}-{n}") };
            let script = format!("echo {name} >made-{name} && git add made-{name} && git commit -q -m {name}");
            (name, vec![script])
        })
        .collect()
}

fn start() {
    println!("\nFrom a task file saved to its agent running, one after the other");
    println!("{:<26} {:>12} {:>12} {:>12}", "", "p50", "p90", "most");
    for planning in [0, 10_000] {
        let mut home = Home::new(Shape { planning, ..Shape::default() });
        let stamp = home.dir.join("stamp");
        let mut took = Vec::new();
        for n in 0..31 {
            let name = format!("soon-{n}");
            let script =
                format!("date +%s%N >{}; echo {n} >made-{n}; git add made-{n}; git commit -q -m {n}", stamp.display());
            let times = home.work(&[(name.clone(), vec![script])]);
            let at: i64 = std::fs::read_to_string(&stamp).unwrap().trim().parse().unwrap();
            // The first one makes the worktree.
            if n > 0 {
                took.push(float(at / 1_000_000 - times[&name].saved));
            }
            // What the last one left to do is over: its board, and the folder brought up.
            std::thread::sleep(Duration::from_secs(1));
        }
        took.sort_by(f64::total_cmp);
        let name = format!("{planning} other tasks");
        println!("{name:<26} {:>9.0} ms {:>9.0} ms {:>9.0} ms", took[15], took[27], took[29]);
    }
}

fn rest() {
    const SPAN: Duration = Duration::from_secs(10);
    println!("\nAt rest for {} s", SPAN.as_secs());
    println!("{:<26} {:>12} {:>12} {:>12} {:>10}", "", "memory", "processor", "wake-ups", "threads");
    for planning in [10, 10_000] {
        let mut home = Home::new(Shape { planning, ..Shape::default() });
        home.work(&commits(0, 1));
        // The board is rendered a while after the last change.
        std::thread::sleep(Duration::from_secs(12));
        let Some(before) = proc::usage(home.pid) else { return println!("this system does not tell") };
        std::thread::sleep(SPAN);
        let after = proc::usage(home.pid).unwrap();
        let wakes = float(i64::try_from(after.wakes - before.wakes).unwrap()) / SPAN.as_secs_f64();
        let (memory, cpu) = (after.rss_kb / 1024, after.cpu_ms - before.cpu_ms);
        let name = format!("{planning} tasks");
        println!("{name:<26} {memory:>9} MB {cpu:>9} ms {wakes:>10.1}/s {:>10}", after.threads);
    }
}

fn push() {
    const COUNT: usize = 48;
    println!("\nPushes to the state remote (at a path), {COUNT} tasks queued at once, 8 slots");
    let mut home = Home::new(Shape { slots: 8, remote: true, ..Shape::default() });
    let (pushes, commits_before) = (home.pushes(), home.commits());
    let times = home.work(&commits(0, COUNT));
    // What nobody waits for follows.
    std::thread::sleep(Duration::from_secs(2));
    let of = |n: usize| float(i64::try_from(n).unwrap()) / float(i64::try_from(COUNT).unwrap());
    let (pushed, committed) = (of(home.pushes() - pushes), of(home.commits() - commits_before));
    println!("{pushed:.2} pushes and {committed:.2} commits a task, {:.1} ms a task", per_task(times.values()));
}

fn stream() {
    const MEGABYTES: usize = 100;
    println!("\n{MEGABYTES} MB of lines from an agent, stored and read along, against `cat` to a file; 3 rounds");
    let mut home = Home::new(Shape::default());
    let (mut ours, mut theirs, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    let printing = format!(
        "yes 'a line of output as an agent may print it, about a hundred bytes of it, more or less' | head -c {}",
        MEGABYTES << 20
    );
    for round in 0..3 {
        let begin = Instant::now();
        home::run("sh", &["-c", &format!("{printing} | cat >out")], &home.dir);
        theirs.push(ms(begin.elapsed()));
        let name = format!("loud-{round}");
        let (from, to) = (home.dir.join("from"), home.dir.join("to"));
        let script = format!(
            "date +%s%N >{}; {printing}; date +%s%N >{}; echo {name} >made-{name}; git add made-{name}; git commit -q -m {name}",
            from.display(),
            to.display()
        );
        let saved = now_ms();
        let times = home.work(&[(name.clone(), vec![script])]);
        let read =
            |at: &std::path::Path| std::fs::read_to_string(at).unwrap().trim().parse::<i64>().unwrap() / 1_000_000;
        ours.push(float(read(&to) - read(&from)));
        seen.push(float(times[&name].merged - saved));
    }
    let (a, b, c) = (median(&mut ours), median(&mut theirs), median(&mut seen));
    println!("printed in {a:.0} ms ({b:.0} ms into a file, ratio {:.2}); saved to merged {c:.0} ms", a / b);
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "times of day in milliseconds and small counts")]
fn float(n: i64) -> f64 {
    n as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
