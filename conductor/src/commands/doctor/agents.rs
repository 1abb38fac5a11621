//! The agents: each that is installed is started as the service would start
//! it, and ended again.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    task::{JoinError, JoinSet},
    time::Instant,
};

use super::report::{Check, Verdict};
use crate::{
    acp::AgentHello,
    agent::{
        Cause, Process,
        home::Belongings,
        process::path_variable,
        trial::{self, Refused, Trial},
    },
    cli::DoctorArgs,
    commands::{progress::ProgressLine, turn_usage::took},
    config::{Agent, Config, Secrets},
    contain::{Premises, cells::Cells},
    frame::escape,
    identity::{Caller, Person},
    options::{Category, Chooser},
    tasks::Tasks,
};

/// How much of one word of an agent is shown.
const SHOWN: usize = 100;

/// How many models or modes are shown.
const MOST_CHOICES: usize = 20;

/// What each agent is started with.
#[derive(Debug, Clone)]
struct Terms {
    premises: Premises,
    cwd: PathBuf,
    stall_timeout: Duration,
    with_session: bool,
}

/// Looks at every agent, or at those that are named.
pub(super) async fn check(config: &Config, state: &Path, args: &DoctorArgs) -> Vec<Check> {
    let terms = Terms {
        // A service on this host has the groups, and the name that they are known by.
        premises: Premises::new(state, Cells::none()),
        cwd: std::env::current_dir().unwrap_or_else(|_| "/".into()),
        stall_timeout: config.service.stall_timeout,
        with_session: args.sessions,
    };
    // No more at once than the service would start.
    let places = Arc::new(Semaphore::new(config.service.parallel_spawns));
    let mut running = JoinSet::new();
    let mut names = HashMap::new();
    let chosen = config.agents.iter().filter(|(name, _)| args.agent.is_empty() || args.agent.contains(name));
    for (position, (name, agent)) in chosen.enumerate() {
        let needed = args.agent.contains(name) || *name == config.default;
        let (name, agent, terms, places) = (name.clone(), agent.clone(), terms.clone(), places.clone());
        let (config, known) = (config.clone(), name.clone());
        let task = running.spawn(async move {
            let _place = places.acquire().await;
            (position, examine(&config, &name, &agent, &terms, needed).await)
        });
        names.insert(task.id(), (position, known));
    }
    let mut found = Vec::new();
    // One that does not answer takes as long as `start_timeout` allows.
    let (total, mut line) = (running.len() as u64, ProgressLine::new("agents"));
    line.tell(0, total);
    while let Some(ended) = running.join_next().await {
        found.push(ended.unwrap_or_else(|failed| unexamined(names.remove(&failed.id()), &failed)));
        line.tell(found.len() as u64, total);
    }
    line.clear();
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

/// What is said of an agent that could not be examined to the end.
fn unexamined(of: Option<(usize, String)>, failed: &JoinError) -> (usize, Check) {
    let (position, name) = of.unwrap_or_default();
    let check = Check::new("agents", name, Verdict::Broken, format!("it could not be examined: {failed}"));
    (position, check.remedy("this is a fault of the conductor's own; please report it"))
}

async fn examine(config: &Config, name: &str, agent: &Agent, terms: &Terms, needed: bool) -> Check {
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
    // Tried for whoever asks, with what they have of their own.
    let caller = Caller::local();
    let person = Person::owner(&caller.user, &caller);
    let own = match Belongings::if_personal(config, &person, agent).await {
        Ok(own) => own,
        Err(why) => {
            let detail = format!("its secrets are not to be had: {why}");
            return check(missing, detail).remedy("see [secrets] in agents.toml");
        }
    };
    let (cwd, stall) = (&terms.cwd, terms.stall_timeout);
    let spec = trial::spec(&terms.premises, agent, program, cwd, own.as_ref(), stall, None);
    let spec = match spec {
        Ok(spec) => spec,
        Err(error) => {
            return check(Verdict::Broken, format!("cannot be made ready: {error}"))
                .remedy(format!("see agents.{name}.home and agents.{name}.files"));
        }
    };
    let begun = Instant::now();
    let process = match Process::start(spec, &Tasks::default()).await {
        Ok(process) => process,
        Err(exit) => {
            let mut detail = exit.summary();
            if !exit.stderr.is_empty() {
                detail.push_str(&format!("\nlast on its stderr:\n{}", exit.stderr));
            }
            return check(Verdict::Broken, detail).remedy(trial::start_remedy(agent));
        }
    };
    let ready = begun.elapsed();
    let session = match terms.with_session {
        true => Some(Trial::open(&process, &terms.cwd, agent.start_timeout).await.map(|trial| trial.told)),
        false => None,
    };
    process.stop(Cause::Asked("the doctor has seen it"));
    process.exited().await;
    describe(name, agent, &process, own.as_ref(), ready, session)
}

fn describe(
    name: &str,
    agent: &Agent,
    process: &Process,
    own: Option<&Belongings>,
    ready: Duration,
    session: Option<Result<Value, Refused>>,
) -> Check {
    let hello = &process.hello;
    let info = &hello.result["agentInfo"];
    let word = |value: &Value| escape(value.as_str().unwrap_or_default().as_bytes(), SHOWN);
    let title = [&info["title"], &info["name"]].map(word).into_iter().find(|title| !title.is_empty());
    let title = title.or_else(|| agent.title.clone()).unwrap_or_else(|| name.to_string());
    let version = word(&info["version"]);
    let shown = if version.is_empty() { "without a version".to_string() } else { version };
    let mut detail = format!("{title} {shown}, ready in {}", took(ready));
    detail.push_str(&format!("\n{}", capabilities(hello)));
    let (mode, summary) = (process.sandbox.mode.to_string(), process.sandbox.summary());
    detail.push_str(&match mode == summary {
        true => format!("\nsandbox: {summary}"),
        false => format!("\nsandbox ({mode}): {summary}"),
    });
    for missing in &process.sandbox.missing {
        detail.push_str(&format!("\n  no {}: {}", missing.layer.name(), missing.why));
    }
    let methods = hello.result["authMethods"].as_array().map(Vec::as_slice).unwrap_or_default();
    let methods: Vec<String> = methods.iter().map(|method| word(&method["id"])).collect();
    if !methods.is_empty() {
        detail.push_str(&format!("\nways to log in: {}", methods.join(", ")));
    }
    let secrets = own.filter(|_| agent.secrets != Secrets::Off).map(Belongings::secret_names);
    if let Some(names) = &secrets {
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        detail.push_str(&format!("\nyour secrets: {names}"));
    }
    let mut data = json!({
        "version": info["version"],
        "ready_ms": u64::try_from(ready.as_millis()).unwrap_or(u64::MAX),
        "capabilities": hello.result["agentCapabilities"],
        "auth_methods": hello.result["authMethods"],
        "secrets": secrets,
        "sandbox": *process.sandbox,
    });
    let check = |verdict, detail: String, data| Check::new("agents", name, verdict, detail).data(data);
    match session {
        None => check(Verdict::Fine, detail, data),
        Some(Ok(opened)) => {
            for category in [Category::Model, Category::Mode] {
                let choices = Chooser::read(&opened, category).map(|found| found.choices).unwrap_or_default();
                let choices: Vec<String> = choices.into_iter().map(|choice| choice.value).collect();
                let category = category.name();
                if !choices.is_empty() {
                    detail.push_str(&format!("\n{category}s: {}", list(&choices)));
                }
                data[format!("{category}s")] = choices.into();
            }
            check(Verdict::Fine, detail, data)
        }
        Some(Err(refused)) => {
            let why = escape(refused.message.as_bytes(), 10 * SHOWN);
            detail.push_str(&format!("\nno session can be opened: {why}"));
            check(Verdict::Broken, detail, data).remedy(refused.remedy(name))
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

fn list(choices: &[String]) -> String {
    let shown: Vec<String> =
        choices.iter().take(MOST_CHOICES).map(|choice| escape(choice.as_bytes(), SHOWN)).collect();
    let more = choices.len().saturating_sub(MOST_CHOICES);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::commands::doctor::report;

    #[tokio::test]
    async fn an_agent_whose_examination_fails_is_not_passed_over() {
        let mut running = JoinSet::new();
        running.spawn(async { panic!("on purpose") });
        let failed = running.join_next().await.unwrap().unwrap_err();
        let (position, check) = unexamined(Some((3, "demo".into())), &failed);
        assert_eq!(position, 3);
        assert!(!report::is_fine(&[check]));
    }
}
