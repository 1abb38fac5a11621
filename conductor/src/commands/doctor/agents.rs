//! The agents: each that is installed is started as the service would start
//! it, and ended again.

use std::{path::Path, path::PathBuf, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::report::{Check, Verdict};
use crate::{
    acp::{self, AgentHello, WorkspaceCapabilities},
    agent::{
        Cause, Process, Spec,
        process::{Launch, path_variable},
    },
    cli::DoctorArgs,
    commands::usage::took,
    config::{Agent, Config},
    frame::{Kind, escape},
    pending::WireId,
    tasks::Tasks,
};

/// How much of one word of an agent is shown.
const SHOWN: usize = 100;

/// How many models or modes are shown.
const MOST_CHOICES: usize = 20;

/// ACP's code for an agent that nobody is logged in to.
const AUTH_REQUIRED: i64 = -32000;

/// What each agent is started with.
#[derive(Debug, Clone)]
struct Trial {
    homes: PathBuf,
    cwd: PathBuf,
    stall_timeout: Duration,
    with_session: bool,
}

/// Looks at every agent, or at those that are named.
pub(super) async fn check(config: &Config, homes: &Path, args: &DoctorArgs) -> Vec<Check> {
    let trial = Trial {
        homes: homes.to_path_buf(),
        cwd: std::env::current_dir().unwrap_or_else(|_| "/".into()),
        stall_timeout: config.service.stall_timeout,
        with_session: args.sessions,
    };
    // No more at once than the service would start.
    let places = Arc::new(Semaphore::new(config.service.parallel_spawns));
    let mut running = JoinSet::new();
    let chosen = config.agents.iter().filter(|(name, _)| args.agent.is_empty() || args.agent.contains(name));
    for (position, (name, agent)) in chosen.enumerate() {
        let needed = args.agent.contains(name) || *name == config.default;
        let (name, agent, trial, places) = (name.clone(), agent.clone(), trial.clone(), places.clone());
        running.spawn(async move {
            let _place = places.acquire().await;
            (position, examine(&name, &agent, &trial, needed).await)
        });
    }
    let mut found = Vec::new();
    while let Some(ended) = running.join_next().await {
        found.extend(ended.ok());
    }
    found.sort_by_key(|(position, _)| *position);
    let mut checks: Vec<Check> = found.into_iter().map(|(_, check)| check).collect();
    let unknown = args.agent.iter().filter(|name| !config.agents.contains_key(*name));
    checks.extend(unknown.map(|name| {
        let known: Vec<&str> = config.agents.keys().map(String::as_str).collect();
        Check::new("agents", escape(name.as_bytes(), SHOWN), Verdict::Broken, "there is no such agent")
            .remedy(format!("name one of these, or add it to agents.toml: {}", known.join(", ")))
    }));
    checks
}

async fn examine(name: &str, agent: &Agent, trial: &Trial, needed: bool) -> Check {
    let check = |verdict, detail: String| Check::new("agents", name, verdict, detail);
    let missing = if needed { Verdict::Broken } else { Verdict::Info };
    if !agent.enabled {
        return check(missing, "disabled".into()).remedy(if needed {
            format!("set agents.{name}.enabled = true")
        } else {
            String::new()
        });
    }
    let program = match agent.resolve(path_variable().as_deref()) {
        Ok(program) => program,
        Err(unavailable) => return check(missing, unavailable.why).remedy(unavailable.remedy),
    };
    let cwd = agent.cwd.clone().unwrap_or_else(|| trial.cwd.clone());
    let launch = match Launch::prepare(name, agent, program, cwd, &trial.homes) {
        Ok(launch) => launch,
        Err(error) => {
            return check(Verdict::Broken, format!("cannot be made ready: {error}"))
                .remedy(format!("see agents.{name}.home and agents.{name}.files"));
        }
    };
    let spec = Spec {
        agent: name.into(),
        launch,
        capabilities: WorkspaceCapabilities { fs_read: true, fs_write: true, terminal: true },
        start_timeout: agent.start_timeout,
        stall_timeout: trial.stall_timeout,
        journal: None,
    };
    let begun = Instant::now();
    let process = match Process::start(spec, &Tasks::default()).await {
        Ok(process) => process,
        Err(exit) => {
            let mut detail = exit.summary();
            if !exit.stderr.is_empty() {
                detail.push_str(&format!("\nlast on its stderr:\n{}", exit.stderr));
            }
            let command = std::iter::once(&agent.command).chain(&agent.args);
            let command: Vec<&str> = command.map(String::as_str).collect();
            return check(Verdict::Broken, detail).remedy(format!(
                "run `{}` by hand, mend agents.{name}, or set its enabled = false",
                command.join(" ")
            ));
        }
    };
    let ready = begun.elapsed();
    let session = match trial.with_session {
        true => Some(open(&process, &trial.cwd, agent.start_timeout).await),
        false => None,
    };
    process.stop(Cause::Asked("the doctor has seen it"));
    process.exited().await;
    describe(name, agent, &process.hello, ready, session)
}

/// Opens a session; gives the answer, or the error's code and words.
async fn open(process: &Process, cwd: &Path, patience: Duration) -> Result<Value, (i64, String)> {
    let ended = || (0, "it ended".to_string());
    let ask = async {
        let mut attachment = process.attach(None).await.ok_or_else(ended)?;
        let id = WireId { slot: attachment.slot, number: 1 }.to_string();
        let params = json!({ "cwd": cwd, "mcpServers": [] });
        let frame = acp::call(Some(id.clone()), "session/new", &params);
        process.input().reserve(frame.len()).await.map_err(|_| ended())?.send(frame);
        loop {
            let run = attachment.output.recv().await.ok_or_else(ended)?;
            for frame in (0..run.len()).map(|index| run.frame(index)) {
                let peek = frame.peek();
                let outcome = || frame.decode::<Value>(peek.outcome).unwrap_or_default();
                match peek.kind {
                    Kind::Result if frame.get(peek.id) == id.as_bytes() => return Ok(outcome()),
                    Kind::Error if frame.get(peek.id) == id.as_bytes() => {
                        let error = outcome();
                        let text = error["message"].as_str().unwrap_or_default().to_string();
                        return Err((error["code"].as_i64().unwrap_or_default(), text));
                    }
                    _ => {}
                }
            }
        }
    };
    let late = || Err((0, format!("it did not answer within {patience:?}")));
    timeout(patience, ask).await.unwrap_or_else(|_| late())
}

fn describe(
    name: &str,
    agent: &Agent,
    hello: &AgentHello,
    ready: Duration,
    session: Option<Result<Value, (i64, String)>>,
) -> Check {
    let info = &hello.result["agentInfo"];
    let word = |value: &Value| escape(value.as_str().unwrap_or_default().as_bytes(), SHOWN);
    let title = [&info["title"], &info["name"]].map(word).into_iter().find(|title| !title.is_empty());
    let title = title.or_else(|| agent.title.clone()).unwrap_or_else(|| name.to_string());
    let version = word(&info["version"]);
    let shown = if version.is_empty() { "without a version".to_string() } else { version };
    let mut detail = format!("{title} {shown}, ready in {}", took(ready));
    detail.push_str(&format!("\n{}", capabilities(hello)));
    let methods = hello.result["authMethods"].as_array().map(Vec::as_slice).unwrap_or_default();
    let methods: Vec<String> = methods.iter().map(|method| word(&method["id"])).collect();
    if !methods.is_empty() {
        detail.push_str(&format!("\nways to log in: {}", methods.join(", ")));
    }
    let mut data = json!({
        "version": info["version"],
        "ready_ms": u64::try_from(ready.as_millis()).unwrap_or(u64::MAX),
        "capabilities": hello.result["agentCapabilities"],
        "auth_methods": hello.result["authMethods"],
    });
    let check = |verdict, detail: String, data| Check::new("agents", name, verdict, detail).data(data);
    match session {
        None => check(Verdict::Fine, detail, data),
        Some(Ok(opened)) => {
            for category in ["model", "mode"] {
                let choices = choices(&opened, category);
                if !choices.is_empty() {
                    detail.push_str(&format!("\n{category}s: {}", list(&choices)));
                }
                data[format!("{category}s")] = choices.into();
            }
            check(Verdict::Fine, detail, data)
        }
        Some(Err((code, why))) => {
            let why = escape(why.as_bytes(), 10 * SHOWN);
            detail.push_str(&format!("\nno session can be opened: {why}"));
            check(Verdict::Broken, detail, data).remedy(if code == AUTH_REQUIRED {
                format!("log in with the agent's own program on this host, or name its key in agents.{name}.env_from")
            } else {
                format!("see what the agent says; set agents.{name}.enabled = false if it is not wanted")
            })
        }
    }
}

/// What the agent says it can do, in words.
fn capabilities(hello: &AgentHello) -> String {
    let can = &hello.result["agentCapabilities"];
    let names = |value: &Value| -> Vec<String> {
        let able = |value: &Value| value.is_object() || value == true;
        let members = value.as_object().into_iter().flatten();
        members
            .filter(|(name, value)| able(value) && *name != "_meta")
            .map(|(name, _)| escape(name.as_bytes(), SHOWN))
            .collect()
    };
    let mut sessions = names(&can["sessionCapabilities"]);
    if hello.can_load() {
        sessions.insert(0, "load".into());
    }
    let parts = [
        ("sessions", sessions),
        ("prompts", names(&can["promptCapabilities"])),
        ("mcp", names(&can["mcpCapabilities"])),
    ];
    let parts = parts.iter().filter(|(_, names)| !names.is_empty());
    let parts: Vec<String> = parts.map(|(what, names)| format!("{what}: {}", names.join(", "))).collect();
    if parts.is_empty() { "only what every agent can do".into() } else { parts.join("; ") }
}

/// The values of a config option, or of the older lists.
fn choices(opened: &Value, category: &str) -> Vec<String> {
    // No value is empty, so this names all of them.
    let mut found = acp::find_option(opened, category, "").err().unwrap_or_default();
    if found.is_empty() {
        let (list, id) = match category {
            "model" => (&opened["models"]["availableModels"], "modelId"),
            _ => (&opened["modes"]["availableModes"], "id"),
        };
        let entries = list.as_array().map(Vec::as_slice).unwrap_or_default();
        found = entries.iter().filter_map(|entry| entry[id].as_str().map(str::to_string)).collect();
    }
    found
}

fn list(choices: &[String]) -> String {
    let shown: Vec<String> =
        choices.iter().take(MOST_CHOICES).map(|choice| escape(choice.as_bytes(), SHOWN)).collect();
    let more = choices.len().saturating_sub(MOST_CHOICES);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}
