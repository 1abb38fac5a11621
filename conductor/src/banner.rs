//! What `serve` prints when it is ready: short, for people.

use std::{
    env,
    ffi::OsStr,
    io::{self, IsTerminal as _, Write as _, stderr, stdout},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use crate::pool::{AgentState, AgentStatus};

/// What stands in it.
#[derive(Debug)]
pub struct Banner<'a> {
    /// Where the service is.
    pub endpoint: &'a str,
    /// Where it listens, if that is more than one address.
    pub everywhere: Option<SocketAddr>,
    /// Its state directory.
    pub state: &'a Path,
    /// The configuration's file.
    pub config: Option<&'a Path>,
    /// Where one would be read from, if there is none.
    pub usual: Option<&'a Path>,
    /// The agents.
    pub agents: &'a [AgentStatus],
}

impl Banner<'_> {
    /// Prints it to stdout, or to stderr if stdout is for `others`.
    pub fn print(&self, others: bool) {
        let is_terminal = if others { stderr().is_terminal() } else { stdout().is_terminal() };
        let text = self.compose(&program(), is_terminal);
        let mut out: Box<dyn io::Write> = if others { Box::new(stderr()) } else { Box::new(stdout()) };
        // Nobody reading it is no reason not to serve.
        out.write_all(text.as_bytes()).ok();
        out.flush().ok();
    }

    fn compose(&self, program: &str, colour: bool) -> String {
        let paint =
            |code: &str, text: &str| if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() };
        let config = match (self.config, self.usual) {
            (Some(file), _) => file.display().to_string(),
            (None, Some(usual)) => format!("built-in defaults; none at {}", usual.display()),
            (None, None) => "built-in defaults".into(),
        };
        let everywhere = self.everywhere.map(|at| format!("  listens   {at}, every address of this host\n"));
        let mut out = format!(
            "conductor {} is ready\n  endpoint  {}\n{}  state     {}\n  config    {config}\n  agents\n",
            env!("CARGO_PKG_VERSION"),
            paint("1", self.endpoint),
            everywhere.unwrap_or_default(),
            self.state.display(),
        );
        let is_shown = |agent: &&AgentStatus| agent.state == AgentState::Ready || agent.is_default;
        let width = self.agents.iter().filter(is_shown).map(|agent| agent.name.len()).max().unwrap_or(0);
        for agent in self.agents.iter().filter(is_shown) {
            let (mark, note) = match agent.state {
                AgentState::Ready => (paint("32", "✓"), agent.title.clone()),
                AgentState::Unavailable | AgentState::Quarantined => (paint("31", "✗"), agent.reason.clone()),
            };
            let default = if agent.is_default { " (default)" } else { "" };
            out += &format!("    {mark} {:width$}  {note}{default}\n", agent.name);
        }
        let others: Vec<&str> =
            self.agents.iter().filter(|agent| !is_shown(agent)).map(|agent| &*agent.name).collect();
        if !others.is_empty() {
            let note = format!("not available: {}", others.join(", "));
            out += &format!("    {} {}\n", paint("2", "·"), paint("2", &note));
            out += &format!(
                "      {}\n",
                paint("2", &format!("`{program} agents` says why, and how to install them"))
            );
        }
        if self.agents.iter().any(|agent| agent.is_default && &*agent.name == "demo") {
            out += "  The default is the demo agent; set `default` in agents.toml, or use `--agent NAME`.\n";
        }
        out += &format!("  Try, in another terminal:  {}\n", paint("1", &format!("{program} prompt help")));
        out + &format!("  Editors start `{program} connect`.\n")
    }
}

/// How this program is called from a shell: by its name if `PATH` leads to it, as after
/// `cargo install`, and as it was called if not, as by `cargo run`.
fn program() -> String {
    let name = "conductor";
    let own = env::current_exe().and_then(|file| file.canonicalize()).ok();
    let is_on_path = env::var_os("PATH").and_then(|path| first(&path, name)) == own;
    match env::args().next() {
        Some(called) if !is_on_path => called,
        _ => name.into(),
    }
}

/// The file that a shell would run.
fn first(path: &OsStr, name: &str) -> Option<PathBuf> {
    env::split_paths(path).map(|directory| directory.join(name)).find_map(|file| file.canonicalize().ok())
}
