//! `conductor models`: what can be chosen, agent by agent.

use std::{io::stdout, process::ExitCode};

use serde_json::{Value, json};

use super::{
    finish::finish,
    table::Table,
    terminal::{Style, in_json, print},
};
use crate::{
    cli::{Global, ModelsArgs},
    client::Client,
    frame::escape,
    proto::{AgentModels, AgentState, ListModelsRequest, ModelChoice},
};

/// How much of one value is shown in a table.
const SHOWN: usize = 300;

/// Runs the command.
pub fn run(global: &Global, args: &ModelsArgs) -> ExitCode {
    finish("models", show(global, args))
}

async fn show(global: &Global, args: &ModelsArgs) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let listed = client.agents().list_models(ListModelsRequest {}).await;
    let listed = listed.map_err(|status| client.explain(&status).message)?;
    let agents = chosen(listed.into_inner().agents, args)?;
    print(&match args.json {
        true => in_json(&agents.iter().map(as_json).collect::<Value>()),
        false => text(&agents, Style::of(&stdout())),
    })
}

/// What was asked for, without what is hidden unless that was.
fn chosen(mut agents: Vec<AgentModels>, args: &ModelsArgs) -> Result<Vec<AgentModels>, String> {
    if let Some(name) = &args.agent {
        agents.retain(|agent| agent.name == *name);
        if agents.is_empty() {
            let name = escape(name.as_bytes(), SHOWN);
            return Err(format!("there is no agent `{name}`; `conductor agents` lists those there are"));
        }
    }
    if !args.all {
        // Who names an agent wants to see it.
        agents.retain(|agent| !agent.hidden || args.agent.is_some());
        for agent in &mut agents {
            agent.models.retain(|model| !model.hidden);
            agent.modes.retain(|mode| !mode.hidden);
        }
    }
    Ok(agents)
}

/// The models, then the modes if there are any, then the agents that cannot be used.
fn text(agents: &[AgentModels], style: Style) -> String {
    let models = table("MODEL", agents, |agent| &agent.models, true);
    let modes = table("MODE", agents, |agent| &agent.modes, false);
    let mut out = String::new();
    for lines in [models, modes].into_iter().filter(|lines| lines.len() > 1) {
        let gap = if out.is_empty() { "" } else { "\n" };
        out.push_str(&format!("{gap}{}\n{}\n", style.bold(&lines[0]), lines[1..].join("\n")));
    }
    // Below, since their reasons are longer than any column.
    let absent: Vec<&AgentModels> = agents.iter().filter(|agent| is_absent(agent)).collect();
    if !absent.is_empty() {
        let gap = if out.is_empty() { "" } else { "\n" };
        out.push_str(&format!("{gap}{}\n", style.bold("NOT AVAILABLE")));
        let mut table = Table::new(0);
        for agent in absent {
            let reason = escape(format!("{}: {}", state(agent), agent.reason).as_bytes(), 4 * SHOWN);
            table.row([named(agent), reason]);
        }
        table.lines().iter().for_each(|line| out.push_str(&format!("{}\n", style.dim(line))));
    }
    out
}

/// Whether nothing is known of an agent but that it cannot be used.
fn is_absent(agent: &AgentModels) -> bool {
    agent.state() != AgentState::Ready && agent.models.is_empty() && agent.modes.is_empty()
}

fn named(agent: &AgentModels) -> String {
    format!("{}{}", shown(&agent.name), if agent.is_default { "*" } else { "" })
}

fn shown(text: &str) -> String {
    if text.is_empty() { "-".into() } else { escape(text.as_bytes(), SHOWN) }
}

fn table(
    what: &str,
    agents: &[AgentModels],
    list: impl Fn(&AgentModels) -> &[ModelChoice],
    with_empty: bool,
) -> Vec<String> {
    let mut table = Table::new(0);
    table.row(["AGENT", what, "NAME", "ALIASES", "STATUS"]);
    for agent in agents.iter().filter(|agent| !is_absent(agent)) {
        let choices = list(agent);
        let name = named(agent);
        if choices.is_empty() && with_empty {
            let none =
                if agent.reason.is_empty() { "it offers none".to_owned() } else { status(agent, None) };
            table.row([name.clone(), "-".into(), "-".into(), "-".into(), none]);
        }
        for choice in choices {
            table.row([
                name.clone(),
                shown(&choice.own_value),
                shown(&choice.name),
                shown(&choice.aliases.join(", ")),
                status(agent, Some(choice)),
            ]);
        }
    }
    table.lines()
}

/// Whether it can be had, and if not, why.
fn status(agent: &AgentModels, choice: Option<&ModelChoice>) -> String {
    let mut words = Vec::new();
    if agent.state() != AgentState::Ready {
        words.push(format!("{}: {}", state(agent), agent.reason));
    } else if !agent.reason.is_empty() {
        words.push(agent.reason.clone());
    } else {
        words.push("available".to_owned());
    }
    if let Some(choice) = choice {
        let marks = [
            (choice.is_default, "the agent's default"),
            (choice.hidden, "hidden"),
            (!choice.is_told, "not told by the agent"),
        ];
        // What the agent has not told may not be there.
        if !choice.is_told && words[0] == "available" {
            words.clear();
        }
        words.extend(marks.iter().filter(|(holds, _)| *holds).map(|(_, mark)| (*mark).to_owned()));
    }
    escape(words.join(", ").as_bytes(), 4 * SHOWN)
}

fn state(agent: &AgentModels) -> &'static str {
    match agent.state() {
        AgentState::Ready => "ready",
        AgentState::Unavailable => "unavailable",
        AgentState::Quarantined => "quarantined",
        AgentState::Unspecified => "unknown",
    }
}

/// The fields of the proto by their names there.
fn as_json(agent: &AgentModels) -> Value {
    let choice = |choice: &ModelChoice| {
        json!({
            "value": choice.value,
            "own_value": choice.own_value,
            "name": choice.name,
            "description": choice.description,
            "aliases": choice.aliases,
            "hidden": choice.hidden,
            "is_told": choice.is_told,
            "is_default": choice.is_default,
        })
    };
    json!({
        "name": agent.name,
        "title": agent.title,
        "state": state(agent),
        "reason": agent.reason,
        "is_default": agent.is_default,
        "hidden": agent.hidden,
        "version": agent.version,
        "models": agent.models.iter().map(choice).collect::<Value>(),
        "modes": agent.modes.iter().map(choice).collect::<Value>(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn choice(value: &str, name: &str) -> ModelChoice {
        ModelChoice { own_value: value.into(), name: name.into(), is_told: true, ..ModelChoice::default() }
    }

    fn agents() -> Vec<AgentModels> {
        let ready = AgentModels { state: AgentState::Ready.into(), ..AgentModels::default() };
        vec![
            AgentModels {
                name: "claude".into(),
                is_default: true,
                models: vec![
                    ModelChoice { is_default: true, aliases: vec!["smart".into()], ..choice("opus", "Opus") },
                    ModelChoice { hidden: true, ..choice("old", "Old\u{1b}") },
                    ModelChoice { is_told: false, ..choice("beta", "beta") },
                ],
                modes: vec![choice("plan", "Plan")],
                ..ready.clone()
            },
            AgentModels {
                name: "codex".into(),
                state: AgentState::Unavailable.into(),
                reason: "not on PATH".into(),
                ..AgentModels::default()
            },
            AgentModels { name: "demo".into(), hidden: true, ..ready },
        ]
    }

    fn args(agent: Option<&str>, all: bool) -> ModelsArgs {
        let endpoint = crate::cli::EndpointArgs::default();
        ModelsArgs { endpoint, agent: agent.map(str::to_owned), all, json: false }
    }

    #[test]
    fn models_stand_before_modes_and_agents_that_cannot_be_used_below() {
        let expected = "\
AGENT    MODEL  NAME  ALIASES  STATUS
claude*  opus   Opus  smart    available, the agent's default
claude*  beta   beta  -        not told by the agent

AGENT    MODE  NAME  ALIASES  STATUS
claude*  plan  Plan  -        available

NOT AVAILABLE
codex  unavailable: not on PATH
";
        let shown = chosen(agents(), &args(None, false)).unwrap();
        assert_eq!(text(&shown, Style::default()), expected);
    }

    #[test]
    fn hidden_ones_are_shown_on_request() {
        let all = text(&chosen(agents(), &args(None, true)).unwrap(), Style::default());
        assert!(all.contains("claude*  old    Old\\u{1b}  -        available, hidden\n"), "{all}");
        assert!(all.contains("demo     -      -          -        it offers none\n"), "{all}");
        assert_eq!(chosen(agents(), &args(Some("demo"), false)).unwrap().len(), 1);
        assert!(
            chosen(agents(), &args(Some("none"), false)).unwrap_err().contains("there is no agent `none`")
        );
    }
}
