//! What `serve` prints when it is ready: short, for people.

use std::{
    io::{self, IsTerminal as _, Write as _, stderr, stdout},
    path::Path,
};

use crate::pool::{AgentState, AgentStatus};

/// Prints the banner to stdout, or to stderr if stdout is for `others`.
pub fn print(endpoint: &str, state: &Path, config: Option<&Path>, agents: &[AgentStatus], others: bool) {
    let is_terminal = if others { stderr().is_terminal() } else { stdout().is_terminal() };
    let text = compose(endpoint, state, config, agents, is_terminal);
    let mut out: Box<dyn io::Write> = if others { Box::new(stderr()) } else { Box::new(stdout()) };
    // Nobody reading it is no reason not to serve.
    out.write_all(text.as_bytes()).ok();
    out.flush().ok();
}

fn compose(
    endpoint: &str,
    state: &Path,
    config: Option<&Path>,
    agents: &[AgentStatus],
    colour: bool,
) -> String {
    let paint =
        |code: &str, text: &str| if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() };
    let config = config.map_or("built-in defaults".into(), |path| path.display().to_string());
    let mut out = format!(
        "conductor {} is ready\n  endpoint  {}\n  state     {}\n  config    {config}\n  agents\n",
        env!("CARGO_PKG_VERSION"),
        paint("1", endpoint),
        state.display(),
    );
    let width = agents.iter().map(|agent| agent.name.len()).max().unwrap_or(0);
    for agent in agents {
        let (mark, note) = match agent.state {
            AgentState::Ready if agent.is_default => (paint("32", "✓"), format!("{} (default)", agent.title)),
            AgentState::Ready => (paint("32", "✓"), agent.title.clone()),
            AgentState::Unavailable | AgentState::Quarantined => (paint("2", "·"), paint("2", &agent.reason)),
        };
        out += &format!("    {mark} {:width$}  {note}\n", agent.name);
    }
    if agents.iter().any(|agent| agent.is_default && &*agent.name == "demo") {
        out += "  The default is the demo agent; set `default` in agents.toml, or use `--agent NAME`.\n";
    }
    out += "  Try `conductor prompt help`, or point an editor at `conductor connect`.\n";
    out
}
