//! Seeded simulation of whole nights against the rules. The world (agents, git, the state repo, the clock) is a plain
//! model that is late, fails, answers twice and crashes the daemon before, between and after its acts; after every step
//! the things that must always hold are looked at. `SIM_SEEDS` sets how many nights are played, `SIM_SEED` replays one.

#![expect(
    clippy::disallowed_methods,
    reason = "tests play the user and the machine: they start programs, wait with limits and read the environment"
)]
#![expect(unreachable_pub, reason = "a test crate has no outside")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../model/mod.rs"]
mod model;

mod rng;
mod world;

use world::World;

fn seeds() -> Vec<u64> {
    let number = |key: &str| std::env::var(key).ok().and_then(|v| v.parse::<u64>().ok());
    match number("SIM_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SIM_SEEDS").unwrap_or(1500)).collect(),
    }
}

fn play(seeds: &[u64]) -> world::Totals {
    let mut totals = world::Totals::default();
    for seed in seeds {
        match std::panic::catch_unwind(|| World::night(*seed)) {
            Ok(night) => totals.add(&night.totals),
            Err(_) => panic!("seed {seed} broke a rule; replay it with SIM_SEED={seed}"),
        }
    }
    totals
}

#[test]
fn every_night_ends_well() {
    let seeds = seeds();
    let hands = std::thread::available_parallelism().map_or(1, usize::from);
    let mut totals = world::Totals::default();
    std::thread::scope(|scope| {
        let parts = seeds.chunks(seeds.len().div_ceil(hands).max(1));
        let parts: Vec<_> = parts.map(|part| scope.spawn(|| play(part))).collect();
        for part in parts {
            match part.join() {
                Ok(part) => totals.add(&part),
                Err(cause) => std::panic::resume_unwind(cause),
            }
        }
    });
    println!("{totals:?}");
    // A simulation that never reaches the hard places proves nothing.
    if std::env::var("SIM_SEED").is_err() {
        for (what, n) in totals.reached() {
            assert!(n > 0, "no night reached: {what}");
        }
    }
}

#[test]
fn one_seed_is_one_night() {
    assert_eq!(World::traced(7).trace, World::traced(7).trace);
}
