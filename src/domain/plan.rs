//! What one attempt will do, settled when the task is claimed: no later hand or configuration change has a choice left.

use super::chain::{Chain, Check};
use super::policy::{Limits, Policy, Profile};
use super::status::{Reason, ReasonClass};
use super::task::Wish;
use serde::{Deserialize, Serialize};

/// A settled attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Hash of the approved configuration that it was made from.
    pub policy: String,
    pub profile_name: String,
    pub profile: Profile,
    pub model: Option<String>,
    /// Agent runs in all.
    pub attempts: u32,
    pub limits: Limits,
    pub checks: Vec<Check>,
    pub chain: Chain,
    pub script: Vec<String>,
    /// The branch that receives the work.
    pub into: String,
    /// The checks of the merged tree: all of the project's, whatever the task picked for itself.
    pub merge_checks: Vec<Check>,
}

impl Plan {
    /// Settles `wish` under `policy`, or says why it cannot be run.
    pub fn settle(wish: &Wish, policy: &Policy) -> Result<Self, Reason> {
        let bad = |text: String| Reason::new(ReasonClass::InvalidTask, text);
        let name = match &wish.agent {
            Some(name) => name.clone(),
            None if !wish.script.is_empty() => "script".into(),
            None => policy.agent.clone(),
        };
        let profile = policy
            .agents
            .get(&name)
            .ok_or_else(|| {
                let known: Vec<_> = policy.agents.keys().map(String::as_str).collect();
                bad(format!("agent {name:?} is not configured; overnight.toml has {}", known.join(", ")))
            })?
            .clone();
        if profile.kind == super::policy::AgentKind::Script {
            if !policy.script_allowed {
                return Err(Reason::new(
                    ReasonClass::Policy,
                    "the script agent is off in this project: set `script = true` under [agents] in overnight.toml",
                ));
            }
            if wish.script.is_empty() {
                return Err(bad("the script agent needs `script: [commands]` in the task".into()));
            }
        }
        let checks = match &wish.checks {
            None => policy.checks.clone(),
            Some(names) => {
                for name in names {
                    if !policy.checks.iter().any(|c| &c.name == name) {
                        return Err(bad(format!("check {name:?} is not defined in overnight.toml")));
                    }
                }
                policy.checks.iter().filter(|c| names.contains(&c.name)).cloned().collect()
            }
        };
        let mut limits = policy.limits;
        if let Some(timeout) = wish.timeout {
            limits.wall = timeout;
        }
        Ok(Self {
            policy: policy.hash.clone(),
            model: wish.model.clone().or_else(|| profile.model.clone()),
            profile_name: name,
            profile,
            attempts: wish.attempts.unwrap_or(policy.attempts).max(1),
            limits,
            checks,
            chain: policy.chain.clone(),
            script: wish.script.clone(),
            into: policy.merge.into.clone(),
            merge_checks: if policy.merge.checks { policy.checks.clone() } else { Vec::new() },
        })
    }
}
