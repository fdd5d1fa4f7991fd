//! Stories: `NAME.txt` says what happens, line by line, and `NAME.out` what the rules made of it: the asks they handed out,
//! the journal, and on `show` how everything stands and why. `UPDATE_STORIES=1` writes the `.out` files anew; read the
//! difference before keeping it. `docs/testing.md` lists the words of a line.

#![expect(
    clippy::disallowed_methods,
    reason = "tests play the user and the machine: they start programs, wait with limits and read the environment"
)]
#![expect(unreachable_pub, reason = "a test crate has no outside")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../model/mod.rs"]
mod model;

mod hands;
mod line;
mod play;
mod shown;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories")
}

fn names(extension: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder()).unwrap();
    let paths = entries.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == extension));
    paths.map(|p| p.file_stem().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn every_story_ends_as_written() {
    let update = std::env::var_os("UPDATE_STORIES").is_some();
    let only = std::env::var("STORY").ok();
    let mut wrong = Vec::new();
    for name in names("txt").into_iter().filter(|n| only.as_ref().is_none_or(|o| o == n)) {
        let text = std::fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap();
        let played = std::panic::catch_unwind(|| play::Story::play(&text));
        let Ok(found) = played else {
            wrong.push(format!("{name}: the story broke off"));
            continue;
        };
        let place = folder().join(format!("{name}.out"));
        let expected = std::fs::read_to_string(&place).unwrap_or_default();
        if found == expected {
            continue;
        }
        if update {
            std::fs::write(&place, found).unwrap();
        } else {
            wrong.push(format!("{name}: {}", first_difference(&expected, &found)));
        }
    }
    assert!(wrong.is_empty(), "\n{}\nUPDATE_STORIES=1 writes them anew", wrong.join("\n"));
}

fn first_difference(expected: &str, found: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    let at = (0..old.len().max(new.len())).find(|i| old.get(*i) != new.get(*i)).unwrap_or(0);
    let told = new[..at.min(new.len())].iter().rev().find(|l| l.starts_with("> ")).unwrap_or(&"");
    let line = |of: &[&str]| of.get(at).copied().unwrap_or("(nothing)").to_owned();
    format!("line {} of its .out, after {told:?}\n    expected {}\n    found    {}", at + 1, line(&old), line(&new))
}

#[test]
fn every_outcome_has_its_story() {
    let stories = names("txt");
    let left: Vec<_> = names("out").into_iter().filter(|n| !stories.contains(n)).collect();
    assert!(left.is_empty(), "without a story: {left:?}");
    assert!(stories.len() >= 35, "only {} stories", stories.len());
}
