//! `conductor agents`: the agents and their processes as a table or as JSON,
//! restarts, and logging in.

mod login;

use std::{
    io::stdout,
    process::ExitCode,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tonic::{Code, Status};

use self::login::Wanted;
use super::{
    finish::{finish, say},
    table::Table,
    terminal::{Style, harmless, in_json, print, write},
};
use crate::{
    cli::{AgentsAction, AgentsArgs, EndpointArgs, Global, ListArgs},
    client::Client,
    frame::escape,
    proto::{
        Agent, AgentState, ListAgentsRequest, MissingLayer, Process, ProcessState, RestartAgentRequest,
        Sandbox, WatchAgentsRequest,
    },
};

/// What messages are said under.
const COMMAND: &str = "agents";

/// Exit code for a command line that makes no sense, as clap has it.
const USAGE: u8 = 2;

/// How often a watching terminal is drawn again, because ages grow.
const REDRAW: Duration = Duration::from_secs(1);

/// How much of one value is shown in a table.
const SHOWN: usize = 300;

/// Runs the command.
pub fn run(global: &Global, args: &AgentsArgs) -> ExitCode {
    let list = &args.list;
    if list.watch && !matches!(args.action, None | Some(AgentsAction::Ls(_))) {
        say(COMMAND, "--watch goes with listing, and with nothing else");
        return ExitCode::from(USAGE);
    }
    // Flags stand before or after the action.
    finish(COMMAND, async {
        match &args.action {
            None => show(global, list, list.json, list.watch).await,
            Some(AgentsAction::Ls(ls)) => {
                show(global, ls, list.json || ls.json, list.watch || ls.watch).await
            }
            Some(AgentsAction::Restart { name, force, endpoint, json }) => {
                restart(global, endpoint, name, *force, *json || list.json).await
            }
            Some(AgentsAction::Login(args)) => {
                let (method, user) = (args.method.as_deref(), args.user.as_deref());
                let wanted = Wanted {
                    agent: &args.name,
                    method: method.unwrap_or_default(),
                    user: user.unwrap_or_default(),
                };
                print(&login::run(global, &args.endpoint, wanted).await?)
            }
        }
    })
}

/// Logs in to an agent, given as `AGENT/METHOD`.
pub fn log_in(global: &Global, endpoint: &EndpointArgs, way: &str) -> ExitCode {
    let (agent, method) = way.split_once('/').unwrap_or((way, ""));
    let wanted = Wanted { agent, method, user: "" };
    finish(COMMAND, async { print(&login::run(global, endpoint, wanted).await?) })
}

async fn show(global: &Global, args: &ListArgs, json: bool, watching: bool) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let explain = |status: Status| client.explain(&status).message;
    if watching {
        return watch(&client, json).await;
    }
    let listed = client.agents().list(ListAgentsRequest {}).await.map_err(explain)?;
    let agents = listed.into_inner().agents;
    print(&if json { in_json(&all_as_json(&agents)) } else { table(&agents, Style::of(&stdout())) })
}

async fn watch(client: &Client, json: bool) -> Result<(), String> {
    let explain = |status: Status| client.explain(&status).message;
    let mut changes = client.agents().watch(WatchAgentsRequest {}).await.map_err(explain)?.into_inner();
    let style = Style::of(&stdout());
    let redraws = style.is_terminal && !json;
    let mut tick = tokio::time::interval(REDRAW);
    let mut agents = Vec::new();
    let mut since = Instant::now();
    let mut first = true;
    loop {
        tokio::select! {
            change = changes.message() => match change.map_err(explain)? {
                Some(change) => (agents, since) = (change.agents, Instant::now()),
                None => return Err(format!("the conductor at {} is stopping", client.endpoint)),
            },
            _ = tick.tick(), if redraws && !first => grow(&mut agents, &mut since),
        }
        let shown = if json {
            harmless(format!("{}\n", all_as_json(&agents)))
        } else if redraws {
            screen(&table(&agents, style))
        } else {
            format!("{}{}", if first { "" } else { "\n" }, table(&agents, style))
        };
        if !write(shown.as_bytes())? {
            return Ok(());
        }
        first = false;
    }
}

/// Draws over what is there, without flicker: each line's rest is cleared as
/// it is written, and what is below afterwards.
fn screen(table: &str) -> String {
    format!("\x1b[H{}\x1b[J", table.replace('\n', "\x1b[K\n"))
}

/// Lets ages grow by the time that went by.
fn grow(agents: &mut [Agent], since: &mut Instant) {
    let passed = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    *since = Instant::now();
    for process in agents.iter_mut().flat_map(|agent| &mut agent.processes) {
        process.age_ms = process.age_ms.saturating_add(passed);
    }
}

async fn restart(
    global: &Global,
    endpoint: &EndpointArgs,
    name: &str,
    force: bool,
    json: bool,
) -> Result<(), String> {
    let client = Client::connect(global, endpoint).await.map_err(|error| error.message)?;
    let request = RestartAgentRequest { name: name.to_string(), force };
    let done = client.agents().restart(request).await.map_err(|status| {
        let message = client.explain(&status).message;
        match status.code() {
            Code::NotFound => format!("{message}; `conductor agents` lists those there are"),
            _ => message,
        }
    })?;
    let done = done.into_inner();
    print(&if json {
        let done =
            json!({ "name": name, "stopped": done.stopped, "quarantine_lifted": done.quarantine_lifted });
        in_json(&done)
    } else {
        restarted(name, done.stopped, done.quarantine_lifted)
    })
}

fn restarted(name: &str, stopped: u32, lifted: bool) -> String {
    let name = escape(name.as_bytes(), SHOWN);
    let processes = match stopped {
        0 => format!("no process of `{name}` had to end"),
        1 => format!("1 process of `{name}` ends"),
        many => format!("{many} processes of `{name}` end"),
    };
    format!("{processes}{}\n", if lifted { "; quarantine lifted" } else { "" })
}

fn table(agents: &[Agent], style: Style) -> String {
    // Those that can be used are what most people look for.
    let (ready, others): (Vec<&Agent>, Vec<&Agent>) =
        agents.iter().partition(|agent| agent.state() == AgentState::Ready);
    let agents = [ready, others].concat();
    let mut table = Table::new(0);
    table.row(["NAME", "STATE", "PROCESSES", "SESSIONS", "WAITING", "RESTARTS", "VERSION", "LAST EXIT"]);
    for agent in &agents {
        let sessions: u64 = agent.processes.iter().map(|process| u64::from(process.sessions)).sum();
        table.row([
            format!("{}{}", escape(agent.name.as_bytes(), SHOWN), if agent.is_default { "*" } else { "" }),
            state(agent).to_string(),
            summary(&agent.processes),
            sessions.to_string(),
            agent.waiting.to_string(),
            agent.restarts.to_string(),
            or_dash(&agent.version),
            or_dash(&agent.last_exit),
        ]);
    }
    let mut lines = table.lines().into_iter();
    let mut out = lines.next().map(|header| format!("{}\n", style.bold(&header))).unwrap_or_default();
    for (agent, line) in agents.iter().zip(lines) {
        let usable = agent.state() == AgentState::Ready;
        out.push_str(&if usable { format!("{line}\n") } else { format!("{}\n", style.dim(&line)) });
        if !usable && !agent.reason.is_empty() {
            let reason = format!("    {}", escape(agent.reason.as_bytes(), 4 * SHOWN));
            out.push_str(&format!("{}\n", style.dim(&reason)));
        }
        if let Some(told) = secrets(agent) {
            out.push_str(&format!("{}\n", style.dim(&format!("    {told}"))));
        }
        out.push_str(&processes(agent, style));
    }
    if agents.iter().any(|agent| agent.is_default) {
        out.push_str(&format!("{}\n", style.dim("* the default agent")));
    }
    out
}

/// Which secrets of one's own the agent gets, or why it gets none.
fn secrets(agent: &Agent) -> Option<String> {
    if !agent.secrets_problem.is_empty() {
        return Some(format!("your secrets: {}", escape(agent.secrets_problem.as_bytes(), 4 * SHOWN)));
    }
    let names: Vec<String> = agent.secrets.iter().map(|name| escape(name.as_bytes(), SHOWN)).collect();
    (!names.is_empty()).then(|| format!("your secrets: {}", names.join(", ")))
}

/// What holds a process, in a few words.
fn sandbox(sandbox: &Sandbox) -> String {
    if sandbox.mode == "off" {
        return "off".to_owned();
    }
    let mut text = if sandbox.layers.is_empty() { "none".to_owned() } else { sandbox.layers.join("+") };
    let missing: Vec<&str> = sandbox.missing.iter().map(|missing| missing.layer.as_str()).collect();
    if !missing.is_empty() {
        text.push_str(&format!(" (no {})", missing.join(", ")));
    }
    escape(text.as_bytes(), SHOWN)
}

fn processes(agent: &Agent, style: Style) -> String {
    if agent.processes.is_empty() {
        return String::new();
    }
    let mut table = Table::new(4);
    table.row(["PID", "STATE", "AGE", "SESSIONS", "SANDBOX", "CWD"]);
    for process in &agent.processes {
        table.row([
            if process.pid == 0 { "-".to_string() } else { process.pid.to_string() },
            process_state(process).to_string(),
            age(process.age_ms),
            process.sessions.to_string(),
            process.sandbox.as_ref().map_or_else(|| "-".to_owned(), sandbox),
            // Where others work is not told everybody.
            if process.cwd.is_empty() { "-".to_owned() } else { escape(process.cwd.as_bytes(), SHOWN) },
        ]);
    }
    let mut lines = table.lines();
    if let Some(header) = lines.first_mut() {
        *header = style.dim(header).into_owned();
    }
    lines.join("\n") + "\n"
}

/// For example `1 leased, 2 spare`.
fn summary(processes: &[Process]) -> String {
    let order = [ProcessState::Leased, ProcessState::Spare, ProcessState::Starting, ProcessState::Stopping];
    let count = |state: &ProcessState| processes.iter().filter(|process| process.state() == *state).count();
    let parts: Vec<String> = order
        .iter()
        .filter(|state| count(state) > 0)
        .map(|state| format!("{} {}", count(state), process_word(*state)))
        .collect();
    if parts.is_empty() { "-".into() } else { parts.join(", ") }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".into() } else { escape(text.as_bytes(), SHOWN) }
}

/// An age for people: its two largest parts.
fn age(ms: u64) -> String {
    let seconds = ms / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{}s", seconds % 60),
        3600..86_400 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

fn state(agent: &Agent) -> &'static str {
    match agent.state() {
        AgentState::Ready => "ready",
        AgentState::Unavailable => "unavailable",
        AgentState::Quarantined => "quarantined",
        AgentState::Unspecified => "unknown",
    }
}

fn process_state(process: &Process) -> &'static str {
    process_word(process.state())
}

fn process_word(state: ProcessState) -> &'static str {
    match state {
        ProcessState::Starting => "starting",
        ProcessState::Spare => "spare",
        ProcessState::Leased => "leased",
        ProcessState::Stopping => "stopping",
        ProcessState::Unspecified => "unknown",
    }
}

fn all_as_json(agents: &[Agent]) -> Value {
    agents.iter().map(as_json).collect()
}

/// The fields of the proto by their names there.
fn as_json(agent: &Agent) -> Value {
    let labels: std::collections::BTreeMap<_, _> = agent.labels.iter().collect();
    let process = |process: &Process| {
        json!({
            "id": process.id,
            "pid": process.pid,
            "state": process_state(process),
            "age_ms": process.age_ms,
            "sessions": process.sessions,
            "cwd": process.cwd,
            "sandbox": process.sandbox.as_ref().map(|sandbox| {
                let missing = |missing: &MissingLayer| json!({ "layer": missing.layer, "why": missing.why });
                json!({
                    "mode": sandbox.mode,
                    "layers": sandbox.layers,
                    "missing": sandbox.missing.iter().map(missing).collect::<Vec<_>>(),
                })
            }),
        })
    };
    json!({
        "name": agent.name,
        "title": agent.title,
        "state": state(agent),
        "reason": agent.reason,
        "command": agent.command,
        "is_default": agent.is_default,
        "processes": agent.processes.iter().map(process).collect::<Value>(),
        "restarts": agent.restarts,
        "last_exit": agent.last_exit,
        "max": agent.max,
        "max_per_user": agent.max_per_user,
        "waiting": agent.waiting,
        "labels": labels,
        "version": agent.version,
        "secrets": agent.secrets,
        "secrets_problem": agent.secrets_problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, state: ProcessState, age_ms: u64) -> Process {
        Process {
            pid,
            state: state.into(),
            age_ms,
            sessions: 1,
            cwd: "/p\u{1b}".into(),
            ..Process::default()
        }
    }

    #[test]
    fn the_table_shows_agents_and_their_processes() {
        let sandbox = Sandbox {
            mode: "preferred".into(),
            layers: vec!["seccomp".into()],
            missing: vec![MissingLayer { layer: "cgroup".into(), why: "none can be made".into() }],
        };
        let demo = Agent {
            name: "demo".into(),
            state: AgentState::Ready.into(),
            is_default: true,
            version: "1.0".into(),
            waiting: 3,
            processes: vec![
                process(7, ProcessState::Spare, 65_000),
                Process { sandbox: Some(sandbox), ..process(123, ProcessState::Leased, 3_600_000) },
            ],
            ..Agent::default()
        };
        let other = Agent {
            name: "other".into(),
            state: AgentState::Unavailable.into(),
            reason: "not found\r\n".into(),
            last_exit: "exit status 1".into(),
            ..Agent::default()
        };
        let expected = "\
NAME   STATE        PROCESSES          SESSIONS  WAITING  RESTARTS  VERSION  LAST EXIT
demo*  ready        1 leased, 1 spare  2         3        0         1.0      -
    PID  STATE   AGE   SESSIONS  SANDBOX              CWD
    7    spare   1m5s  1         -                    /p\\u{1b}
    123  leased  1h0m  1         seccomp (no cgroup)  /p\\u{1b}
other  unavailable  -                  0         0        0         -        exit status 1
    not found\\r\\n
* the default agent
";
        assert_eq!(table(&[demo, other], Style::default()), expected);
    }

    #[test]
    fn ages_have_two_parts_at_most() {
        let shown = [999, 59_999, 60_000, 3_599_000, 90_061_000].map(age);
        assert_eq!(shown, ["0s", "59s", "1m0s", "59m59s", "1d1h"]);
    }

    #[test]
    fn a_restart_says_what_it_did() {
        assert_eq!(restarted("demo", 2, true), "2 processes of `demo` end; quarantine lifted\n");
        assert_eq!(restarted("demo", 1, false), "1 process of `demo` ends\n");
        assert_eq!(restarted("demo", 0, false), "no process of `demo` had to end\n");
    }
}
