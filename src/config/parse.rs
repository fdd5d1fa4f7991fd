//! `overnight.toml` → `ProjectConfig`. Every section is read to its end whatever was wrong before, so that a person
//! sees all problems at once.

use super::branch::{check_branch, collide};
use super::profile::{MAX_SLOTS, agents};
use super::walk::{At, Doc, Either, Section, Span};
use super::{MAX_BYTES, Problem, ProjectConfig};
use crate::domain::chain::{Chain, Check, Command, OnFailure, Step, When};
use crate::domain::policy::{AgentKind, Limits, MergePolicy, Policy, Protect};
use crate::domain::{ProjectId, Slug};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;
use toml::de::{DeTable, DeValue};

const SLOTS: u32 = 2;
const ATTEMPTS: u32 = 3;
const MAX_ATTEMPTS: u32 = 20;
/// Bytes of a brief: well below what one argument of a program may have on Linux (128 KiB).
const BRIEF_BUDGET: u64 = 96 << 10;
const MAX_FILE: u64 = 20 << 20;
const CHECK_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const STEP_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// What the parser says of a second key or table with one name.
const DUPLICATE: &str = "duplicate key";
/// Most that is told of what the parser found.
const MAX_SYNTAX_ERRORS: usize = 50;
const SECOND: Duration = Duration::from_secs(1);

/// Reads the whole file, or says everything that is wrong with it.
pub(super) fn parse(bytes: &[u8]) -> Result<ProjectConfig, Vec<Problem>> {
    let whole = |text: String| vec![Problem { line: 0, column: 0, key: String::new(), text, help: None }];
    if bytes.len() > MAX_BYTES {
        return Err(whole(format!("is larger than {MAX_BYTES} bytes")));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let before = String::from_utf8_lossy(&bytes[..e.valid_up_to()]);
        let (line, column) = Doc::new(&before).place(before.len());
        vec![Problem { line, column, key: String::new(), text: "is not UTF-8".into(), help: None }]
    })?;
    let doc = Doc::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors.iter().take(MAX_SYNTAX_ERRORS) {
        syntax(&doc, text, table.get_ref(), error);
    }
    if errors.iter().any(|error| error.message() != DUPLICATE) {
        // What could not be read looks like what was not written: more would only mislead.
        return Err(doc.into_problems());
    }
    let root = Section::new(&doc, String::new(), table.get_ref(), 0..0);
    let config = read(&root, bytes);
    root.finish();
    drop(root);
    let problems = doc.into_problems();
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ if problems.is_empty() => Err(whole("cannot be used".into())),
        _ => Err(problems),
    }
}

fn syntax(doc: &Doc<'_>, text: &str, table: &DeTable<'_>, error: &toml::de::Error) {
    let span = error.span().unwrap_or(0..0);
    if error.message() != DUPLICATE {
        doc.problem(span.start, "", error.message(), None);
        return;
    }
    // The parser names only the second of the two.
    let (name, first) = match header(text, span.start) {
        Some(name) => (name, first_header(text, name, span.start)),
        None => {
            let name = text.get(span.clone()).unwrap_or_default().trim_matches(['"', '\'']);
            (name, last_key_before(table, name, span.start))
        }
    };
    let message = match first {
        Some(first) => format!("is there twice, first in line {}", doc.line(first)),
        None => "is there twice".into(),
    };
    doc.problem(span.start, name, message, None);
}

/// The name in the table header (`[name]`) that byte `at` stands in.
fn header(text: &str, at: usize) -> Option<&str> {
    let start = text.get(..at)?.rfind('\n').map_or(0, |i| i + 1);
    let line = text[start..].lines().next()?;
    Some(line.trim_start().strip_prefix('[')?.split(']').next()?.trim())
}

/// Where the first table header with this name stands, before byte `end`.
fn first_header(text: &str, name: &str, end: usize) -> Option<usize> {
    let mut at = 0;
    for line in text.get(..end)?.split_inclusive('\n') {
        if line.ends_with('\n') && header(text, at) == Some(name) {
            return Some(at);
        }
        at += line.len();
    }
    None
}

/// Where the last key called `name` before byte `end` stands.
fn last_key_before(table: &DeTable<'_>, name: &str, end: usize) -> Option<usize> {
    fn visit(value: &DeValue<'_>, name: &str, end: usize) -> Option<usize> {
        match value {
            DeValue::Table(table) => last_key_before(table, name, end),
            DeValue::Array(items) => items.iter().filter_map(|item| visit(item.as_ref(), name, end)).max(),
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => None,
        }
    }
    table
        .iter()
        .flat_map(|(key, value)| {
            let here = (key.as_ref() == name && key.span().start < end).then(|| key.span().start);
            [here, visit(value.as_ref(), name, end)]
        })
        .flatten()
        .max()
}

/// `[project]` as read.
struct ProjectSection {
    name: Option<ProjectId>,
    base: Option<At<String>>,
    state: Option<PathBuf>,
    slots: u32,
    attempts: u32,
    agent: Option<At<String>>,
    brief_budget: u64,
}

fn read(root: &Section<'_, '_>, bytes: &[u8]) -> Option<ProjectConfig> {
    let project = match root.table("project") {
        Some(section) => project(&section),
        None => {
            if !root.has("project") {
                root.missing("project", "[project] with at least `name` and `base`; `overnight init` writes both");
            }
            return None;
        }
    };
    let agents = agents(root.table("agents"), project.slots);
    let agent = project.agent.as_ref().map_or("claude", |at| &at.value).to_owned();
    if let Some(at) = &project.agent {
        match agents.profiles.get(&at.value) {
            None => {
                let known: Vec<_> = agents.profiles.keys().map(String::as_str).collect();
                let help = format!("there are {}; [agents.{}] would add one", known.join(", "), at.value);
                root.doc.problem(at.span.start, &at.key, format!("no agent is called {:?}", at.value), Some(help));
            }
            Some(profile) if profile.kind == AgentKind::Script && !agents.script_allowed => {
                root.doc.bad(at, "the script agent is off here", Some("set `script = true` under [agents]"));
            }
            Some(_) => {}
        }
    }
    let limits = root.table("limits").map_or_else(Limits::default, |section| limits(&section));
    let checks = checks(root);
    let chain = root.table("chain").map(|section| chain(&section)).unwrap_or_default();
    let merge = merge(root, project.base.as_ref());
    let (committer, max_file) = git(root);
    let protect = root.table("protect").map_or_else(Protect::default, |section| protect(&section));
    let env_pass = root.table("env").map(|section| {
        let names = variables(&section, "pass");
        section.finish();
        names
    });
    let name = project.name?;
    let state = project.state.unwrap_or_else(|| PathBuf::from(format!("../{name}-state")));
    let policy = Policy {
        hash: super::hash(bytes),
        base: project.base?.value,
        slots: project.slots,
        attempts: project.attempts,
        agent,
        agents: agents.profiles,
        limits,
        checks,
        chain,
        merge: merge?,
        script_allowed: agents.script_allowed,
        committer,
        brief_budget: usize::try_from(project.brief_budget).unwrap_or(usize::MAX),
        max_file,
        protect,
        env_pass: env_pass.unwrap_or_default(),
    };
    Some(ProjectConfig { name, state, policy })
}

fn project(section: &Section<'_, '_>) -> ProjectSection {
    let name = section.line("name");
    if name.is_none() && !section.has("name") {
        section.missing("name", "the project's name: a-z, 0-9 and '-'");
    }
    let base = section.line("base");
    if base.is_none() && !section.has("base") {
        section.missing("base", "the branch that work starts from, as in base = \"main\"");
    }
    let out = ProjectSection {
        name: name
            .filter(|at| slug(section.doc, at, "a project's name"))
            .and_then(|at| ProjectId::parse(&at.value).ok()),
        base: base.filter(|at| {
            let mut checked = check_branch(&at.value);
            if checked.is_ok() && at.value.starts_with("overnight/") {
                checked = Err(format!("{:?} is among the branches that finished work is merged into", at.value));
            }
            legal(section, at, checked)
        }),
        state: section.line("state").filter(|at| legal(section, at, state_path(&at.value))).map(|at| at.value.into()),
        slots: section.number("slots", 1..=MAX_SLOTS).unwrap_or(SLOTS),
        attempts: section.number("attempts", 1..=MAX_ATTEMPTS).unwrap_or(ATTEMPTS),
        agent: section.line("agent"),
        brief_budget: section.size("brief_budget", 4 << 10..=4 << 20).unwrap_or(BRIEF_BUDGET),
    };
    section.finish();
    out
}

fn state_path(path: &str) -> Result<(), String> {
    if path.starts_with('~') {
        return Err("`~` is not expanded: write the path from the root, or from the code repo (\"../x\")".into());
    }
    let mut parts = std::path::Path::new(path).components();
    if parts.all(|part| part == std::path::Component::CurDir) {
        return Err("the state repo cannot be the code repo itself".into());
    }
    Ok(())
}

fn limits(section: &Section<'_, '_>) -> Limits {
    let mut out = Limits::default();
    for (key, least, into) in [
        ("wall", SECOND, &mut out.wall),
        ("no_progress", SECOND, &mut out.no_progress),
        ("first_event", SECOND, &mut out.first_event),
        ("exit_grace", Duration::ZERO, &mut out.exit_grace),
        ("kill_grace", Duration::ZERO, &mut out.kill_grace),
    ] {
        if let Some(duration) = section.duration(key, least) {
            *into = duration;
        }
    }
    if let Some(calls) = section.number("repeats", 0..=1000) {
        out.repeats = calls;
    }
    if let Some(size) = section.size("transcript", 64 << 10..=64 << 30) {
        out.transcript = size;
    }
    section.finish();
    out
}

fn checks(root: &Section<'_, '_>) -> Vec<Check> {
    let mut names = HashMap::new();
    let mut out = Vec::new();
    for section in root.tables("checks") {
        let name = unique_name(&section, "check", &mut names);
        let run = command(&section, "run");
        if !section.has("run") {
            section.missing("run", "the command, as in run = \"cargo test\"");
        }
        let timeout = section.duration("timeout", SECOND).unwrap_or(CHECK_TIMEOUT);
        section.finish();
        if let (Some(name), Some(run)) = (name, run) {
            out.push(Check { name, run, timeout });
        }
    }
    out
}

/// Which list of the chain a step stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Before,
    After,
    Background,
    Finally,
}

fn chain(section: &Section<'_, '_>) -> Chain {
    let out = Chain {
        before: steps(section, "before", List::Before),
        after: steps(section, "after", List::After),
        background: steps(section, "background", List::Background),
        finally: steps(section, "finally", List::Finally),
    };
    section.finish();
    out
}

fn steps(chain: &Section<'_, '_>, key: &'static str, list: List) -> Vec<Step> {
    let mut names = HashMap::new();
    chain.tables(key).iter().filter_map(|section| step(section, list, &mut names)).collect()
}

fn step(section: &Section<'_, '_>, list: List, names: &mut HashMap<String, Span>) -> Option<Step> {
    let name = unique_name(section, "step", names);
    let run = command(section, "run");
    let prompt = section.text("prompt");
    match (section.has("run"), section.has("prompt")) {
        (false, false) => section.missing("run", "a step has `run` (a command) or `prompt` (for the task's agent)"),
        (true, true) => {
            let at = section.key_place("prompt");
            section.doc.problem(at, &section.name("prompt"), "a step has `run` or `prompt`, not both", None);
        }
        (true, false) | (false, true) => {}
    }
    if list == List::Background && section.has("prompt") {
        let at = section.key_place("prompt");
        section.doc.problem(at, &section.name("prompt"), "a background step is a command: the agent is at work", None);
    }
    let prompt = prompt.filter(|at| {
        let empty = at.value.trim().is_empty();
        if empty {
            section.doc.bad(at, "is empty", None);
        }
        !empty
    });
    let timeout = section.duration("timeout", SECOND).unwrap_or(STEP_TIMEOUT);
    let on_failure = on_failure(section, list);
    let when = when(section, list);
    section.finish();
    Some(Step { name: name?, run, prompt: prompt.map(|at| at.value), timeout, on_failure, when })
}

fn on_failure(section: &Section<'_, '_>, list: List) -> OnFailure {
    let words = [("stop", OnFailure::Stop), ("log", OnFailure::Log), ("retry", OnFailure::Retry)];
    match section.word("on_failure", &words) {
        Some(at) if list == List::Background && at.value != OnFailure::Log => {
            section.doc.bad(&at, "a background step's failure is only noted: \"log\" is all there is", None);
            OnFailure::Log
        }
        Some(at) if list == List::Finally && at.value == OnFailure::Retry => {
            section.doc.bad(&at, "a finally step runs once, whatever becomes of it: \"log\" is all there is", None);
            OnFailure::Log
        }
        Some(at) => at.value,
        None if list == List::Before => OnFailure::Stop,
        None => OnFailure::Log,
    }
}

fn when(section: &Section<'_, '_>, list: List) -> When {
    let words = [("always", When::Always), ("success", When::Success), ("failure", When::Failure)];
    let Some(at) = section.word("when", &words) else { return When::Always };
    let fits = match list {
        List::Before | List::Background => at.value == When::Always,
        List::After => at.value != When::Failure,
        List::Finally => true,
    };
    if !fits {
        let text = "does not fit here: after steps know \"always\" and \"success\", finally steps \"failure\" too";
        section.doc.bad(&at, text, None);
    }
    at.value
}

fn merge(root: &Section<'_, '_>, base: Option<&At<String>>) -> Option<MergePolicy> {
    let section = root.table("merge");
    let into = section.as_ref().and_then(|s| s.line("into"));
    let checks = section.as_ref().and_then(|s| s.boolean("checks")).is_none_or(|at| at.value);
    if let Some(section) = &section {
        section.finish();
    }
    let base = base?;
    let into = match into {
        Some(at) => {
            let checked = if at.value == base.value {
                Err(format!("{:?} is the base branch; only `overnight land` moves that", at.value))
            } else if collide(&at.value, &base.value) {
                Err(format!("git cannot hold {:?} beside the base branch {:?}", at.value, base.value))
            } else {
                check_branch(&at.value)
            };
            legal(root, &at, checked).then_some(at.value)?
        }
        None => {
            let into = format!("overnight/{}", base.value);
            if collide(&into, &base.value) {
                let text = format!("git cannot hold {into:?} beside the base branch {:?}", base.value);
                root.doc.bad(base, text, Some("name another branch under [merge] into"));
            }
            into
        }
    };
    Some(MergePolicy { into, checks })
}

fn protect(section: &Section<'_, '_>) -> Protect {
    let tests = section.boolean("tests").is_none_or(|at| at.value);
    let mut paths = Vec::new();
    for at in section.lines("paths").map(|at| at.value).unwrap_or_default() {
        if at.value.trim().is_empty() || at.value.starts_with(['!', '#']) {
            section.doc.bad(&at, "is no pattern of paths: `!` and `#` have no meaning here", None);
        } else {
            paths.push(at.value);
        }
    }
    section.finish();
    Protect { tests, paths }
}

fn git(root: &Section<'_, '_>) -> ((String, String), u64) {
    let (mut name, mut email, mut max_file) = ("Overnight".to_owned(), "overnight@localhost".to_owned(), MAX_FILE);
    let Some(section) = root.table("git") else { return ((name, email), max_file) };
    for (key, into) in [("name", &mut name), ("email", &mut email)] {
        if let Some(at) = section.line(key) {
            if at.value.contains(['<', '>']) {
                section.doc.bad(&at, "holds '<' or '>', which a commit cannot", None);
            } else {
                *into = at.value;
            }
        }
    }
    if let Some(size) = section.size("max_file", 1 << 10..=4 << 30) {
        max_file = size;
    }
    section.finish();
    ((name, email), max_file)
}

fn command(section: &Section<'_, '_>, key: &'static str) -> Option<Command> {
    match section.string_or_list(key)? {
        Either::One(at) if at.value.trim().is_empty() => section.doc.bad(&at, "is an empty command", None),
        Either::One(at) => return Some(Command::Shell(at.value)),
        Either::Many(list) if list.value.first().is_none_or(|first| first.value.trim().is_empty()) => {
            section.doc.bad(&list, "is an empty command", None);
        }
        Either::Many(list) => return Some(Command::Argv(list.value.into_iter().map(|at| at.value).collect())),
    }
    None
}

/// The `name` of a step or check: a slug that no other in the same list has.
fn unique_name(section: &Section<'_, '_>, what: &str, names: &mut HashMap<String, Span>) -> Option<String> {
    let Some(at) = section.line("name") else {
        if !section.has("name") {
            section.missing("name", &format!("every {what} has a name: a-z, 0-9 and '-'"));
        }
        return None;
    };
    if !slug(section.doc, &at, &format!("a {what}'s name")) {
        return None;
    }
    if let Some(first) = names.get(&at.value) {
        let line = section.doc.line(first.start);
        section.doc.bad(&at, format!("{:?} is already the name of the {what} in line {line}", at.value), None);
        return None;
    }
    names.insert(at.value.clone(), at.span);
    Some(at.value)
}

/// Whether the value is a legal slug; says so when not.
pub(super) fn slug(doc: &Doc<'_>, at: &At<String>, what: &str) -> bool {
    if Slug::parse(&at.value).is_ok() {
        return true;
    }
    let help = Slug::from_title(&at.value).map(|slug| format!("{:?} would do", slug.as_str()));
    let text = format!("{:?} is not {what}: a-z, 0-9 and '-' only, up to 64, and not \"lock\"", at.value);
    doc.problem(at.span.start, &at.key, text, help);
    false
}

fn legal(section: &Section<'_, '_>, at: &At<String>, checked: Result<(), String>) -> bool {
    match checked {
        Ok(()) => true,
        Err(why) => {
            section.doc.bad(at, why, None);
            false
        }
    }
}

/// A list of names of environment variables.
pub(super) fn variables(section: &Section<'_, '_>, key: &'static str) -> Vec<String> {
    let list = section.lines(key).map(|at| at.value).unwrap_or_default();
    list.into_iter().filter(|at| legal(section, at, variable(&at.value))).map(|at| at.value).collect()
}

/// A table of environment variables.
pub(super) fn environment(section: &Section<'_, '_>) -> BTreeMap<String, String> {
    let pairs = section.pairs().into_iter();
    pairs.filter(|(name, at)| legal(section, at, variable(name))).map(|(name, at)| (name, at.value)).collect()
}

fn variable(name: &str) -> Result<(), String> {
    let ours = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"];
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    if !name.starts_with(first) || !name.chars().all(|c| first(c) || c.is_ascii_digit()) {
        return Err(format!("{name:?} is no name of an environment variable"));
    }
    if name.starts_with("OVERNIGHT_") || ours.contains(&name) {
        return Err(format!("{name} is set by the daemon itself"));
    }
    Ok(())
}
