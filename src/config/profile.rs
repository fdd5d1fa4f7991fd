//! The `[agents]` section: profiles that exist without being written, what a written one changes, and new ones.

use super::parse::{environment, slug, variables};
use super::walk::{At, Section};
use crate::domain::policy::{AgentKind, OutputFormat, Profile, PromptBy};
use std::collections::BTreeMap;

/// Most runs at once, of a project and of a profile.
pub(super) const MAX_SLOTS: u32 = 512;

/// Names of agent kinds as written in a configuration.
const KINDS: [(&str, AgentKind); 4] = [
    ("claude", AgentKind::Claude),
    ("codex", AgentKind::Codex),
    ("custom", AgentKind::Custom),
    ("script", AgentKind::Script),
];

/// What the claude CLI needs from the daemon's environment where it is set: keys, endpoints and its own folder.
const CLAUDE_ENV: [&str; 6] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "CLAUDE_CONFIG_DIR",
];
/// The same for codex.
const CODEX_ENV: [&str; 4] = ["OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY", "CODEX_HOME"];
/// What every agent that talks to a network may need.
const NETWORK_ENV: [&str; 8] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
];

/// `[agents]` as read.
pub(super) struct Agents {
    pub(super) script_allowed: bool,
    pub(super) profiles: BTreeMap<String, Profile>,
}

/// Reads `[agents]`; `slots` is the project's own number, which a profile without one may use in full.
pub(super) fn agents(section: Option<Section<'_, '_>>, slots: u32) -> Agents {
    let mut profiles: BTreeMap<String, Profile> = [AgentKind::Claude, AgentKind::Codex, AgentKind::Script]
        .into_iter()
        .map(|kind| (kind.word().to_owned(), built_in(kind, slots)))
        .collect();
    let Some(section) = section else { return Agents { script_allowed: false, profiles } };
    let script_allowed = section.boolean("script").is_some_and(|at| at.value);
    for (name, table) in section.others() {
        if !slug(table.doc, &name, "an agent's name") {
            continue;
        }
        if let Some(profile) = profile(&name, &table, slots, script_allowed) {
            profiles.insert(name.value, profile);
        }
    }
    Agents { script_allowed, profiles }
}

fn built_in(kind: AgentKind, slots: u32) -> Profile {
    let own: &[&str] = match kind {
        AgentKind::Claude => &CLAUDE_ENV,
        AgentKind::Codex => &CODEX_ENV,
        AgentKind::Custom | AgentKind::Script => &[],
    };
    let network: &[&str] = match kind {
        AgentKind::Claude | AgentKind::Codex | AgentKind::Custom => &NETWORK_ENV,
        AgentKind::Script => &[],
    };
    let bin = match kind {
        AgentKind::Claude | AgentKind::Codex => kind.word(),
        AgentKind::Custom => "",
        AgentKind::Script => "/bin/sh",
    };
    Profile {
        bin: bin.to_owned(),
        env_pass: own.iter().chain(network).map(|s| (*s).to_owned()).collect(),
        slots,
        ..Profile::bare(kind)
    }
}

fn profile(name: &At<String>, table: &Section<'_, '_>, slots: u32, script_allowed: bool) -> Option<Profile> {
    let kind = kind(name, table, script_allowed);
    let mut profile = built_in(kind.unwrap_or(AgentKind::Custom), slots);
    match table.line("bin") {
        Some(bin) => profile.bin = bin.value,
        None if kind == Some(AgentKind::Custom) && !table.has("bin") => {
            table.missing("bin", "a custom agent names the program to run");
        }
        None => {}
    }
    profile.model = table.line("model").map(|at| at.value);
    let args = table.lines("args");
    let resume = table.lines("resume");
    if let Some(by) =
        table.word("prompt", &[("stdin", PromptBy::Stdin), ("argument", PromptBy::Argument), ("file", PromptBy::File)])
    {
        profile.prompt_by = by.value;
        let names_file = args.as_ref().is_some_and(|a| a.value.iter().any(|a| a.value.contains("{prompt_file}")));
        if by.value == PromptBy::File && !names_file {
            table.doc.bad(&by, "needs `{prompt_file}` in args, in place of the file's path", None);
        }
    }
    if let Some(format) = output(table) {
        profile.output = format;
    }
    if let Some(resume) = &resume {
        check_resume(table, resume, &profile.output);
    }
    profile.args = words(args);
    profile.resume = words(resume);
    profile.env_pass.extend(variables(table, "env_pass"));
    if let Some(env) = table.table("env") {
        profile.env = environment(&env);
    }
    profile.slots = table.number("slots", 1..=MAX_SLOTS).unwrap_or(slots);
    profile.max_turns = table.number("max_turns", 1..=10_000);
    if kind.is_some_and(|kind| kind != AgentKind::Custom) {
        for key in ["prompt", "output", "resume"] {
            if table.has(key) {
                let text = "is only for agents of kind \"custom\"; the built-in adapters know their CLI";
                table.doc.problem(table.key_place(key), &table.name(key), text, None);
            }
        }
    }
    table.finish();
    kind.map(|_| profile)
}

fn kind(name: &At<String>, table: &Section<'_, '_>, script_allowed: bool) -> Option<AgentKind> {
    let built_in = [AgentKind::Claude, AgentKind::Codex].into_iter().find(|kind| kind.word() == name.value);
    let kind = match (table.word("kind", &KINDS), built_in) {
        (None, _) if table.has("kind") => return None,
        (None, Some(kind)) => kind,
        (None, None) => {
            table.doc.bad(name, "needs a kind", Some("kind = \"claude\", \"codex\", \"custom\" or \"script\""));
            return None;
        }
        (Some(at), Some(own)) if at.value != own => {
            let text = format!("[agents.{}] is the built-in agent; another kind needs another name", name.value);
            table.doc.bad(&at, text, None);
            return None;
        }
        (Some(at), _) => at.value,
    };
    if kind == AgentKind::Script && !script_allowed {
        table.doc.bad(name, "is a script agent, which is off here", Some("set `script = true` under [agents]"));
    }
    Some(kind)
}

fn output(table: &Section<'_, '_>) -> Option<OutputFormat> {
    const FORMATS: [(&str, bool); 2] = [("text", false), ("json_lines", true)];
    if !table.is_table("output") {
        let at = table.word("output", &FORMATS)?;
        return Some(format(at.value, |_| None));
    }
    let section = table.table("output")?;
    let Some(at) = section.word("format", &FORMATS) else {
        if !section.has("format") {
            section.missing("format", "format = \"text\" or \"json_lines\"");
        }
        return None;
    };
    let format = format(at.value, |key| field(&section, key));
    section.finish();
    Some(format)
}

fn format(json_lines: bool, field: impl Fn(&'static str) -> Option<String>) -> OutputFormat {
    if !json_lines {
        return OutputFormat::Text;
    }
    OutputFormat::JsonLines {
        session: field("session"),
        text: field("text"),
        input_tokens: field("input_tokens"),
        output_tokens: field("output_tokens"),
        cost: field("cost"),
        error: field("error"),
    }
}

/// A path of field names, `a.b.c`.
fn field(section: &Section<'_, '_>, key: &'static str) -> Option<String> {
    let at = section.line(key)?;
    if at.value.split('.').any(|part| part.trim().is_empty()) {
        section.doc.bad(&at, format!("{:?} is no path of fields", at.value), Some("as in \"message.usage.input\""));
        return None;
    }
    Some(at.value)
}

fn check_resume(table: &Section<'_, '_>, resume: &At<Vec<At<String>>>, output: &OutputFormat) {
    if resume.value.is_empty() {
        return;
    }
    if !resume.value.iter().any(|arg| arg.value.contains("{session}")) {
        table.doc.bad(resume, "needs `{session}` in one of its arguments", None);
    }
    if !matches!(output, OutputFormat::JsonLines { session: Some(_), .. }) {
        let help = "output = { format = \"json_lines\", session = \"…\" }";
        table.doc.bad(resume, "needs the session's field in output", Some(help));
    }
}

fn words(list: Option<At<Vec<At<String>>>>) -> Vec<String> {
    list.map(|at| at.value.into_iter().map(|word| word.value).collect()).unwrap_or_default()
}
