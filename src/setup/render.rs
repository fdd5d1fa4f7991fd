//! The `overnight.toml` that `init` writes: what was found, short and commented, with the settings a person most likely
//! changes.

use super::detect::Detected;
use crate::domain::chain::Command;
use crate::domain::policy::AgentKind;
use std::fmt::Write as _;

/// The configuration for project `name` that starts from branch `base`.
pub fn render_config(detected: &Detected, name: &str, base: &str) -> String {
    let agent = detected.agents.first().map_or(AgentKind::Claude, |agent| agent.kind).word();
    let into = format!("overnight/{base}");
    let mut out = format!(
        "# How this project is built, checked and merged by Overnight.\n\
         # What runs is the copy you approved: after a change by hand, `overnight config approve`.\n\
         \n\
         [project]\n\
         name = {name}\n\
         base = {base}   # work starts here; only `overnight land` moves it\n\
         agent = {agent}\n\
         #slots = 2        # tasks at once\n\
         #attempts = 3     # agent runs of one task in all\n\
         \n\
         [limits]\n\
         #wall = \"1h\"           # one agent run from start to end\n\
         #no_progress = \"20m\"   # silence\n\
         \n\
         [agents]\n\
         #script = false   # may tasks carry commands of their own?\n\
         \n",
        name = quoted(name),
        base = quoted(base),
        agent = quoted(agent),
    );
    out.push_str(
        "# Checks say whether a tree is good: after the agent, and again on the merged tree, in this order.\n",
    );
    if detected.checks.is_empty() {
        out.push_str(
            "# None was found. Without one, nothing tells good work from bad.\n\
             #[[checks]]\n#name = \"test\"\n#run = \"./test.sh\"\n\n",
        );
    }
    for check in &detected.checks {
        let _ = write!(out, "[[checks]]\nname = {}\nrun = {}\n\n", quoted(&check.name), command(&check.run));
    }
    let _ = write!(out, "[merge]\n#into = {}   # receives the finished work\n", quoted(&into));
    out
}

fn command(command: &Command) -> String {
    match command {
        Command::Shell(text) => quoted(text),
        Command::Argv(list) => format!("[{}]", list.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(", ")),
    }
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
