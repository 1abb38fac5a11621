//! What a session is opened under: the rules that hold for its agent, and what
//! they say to opening it at all.

use std::{
    fs::File,
    io::Read as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::Connection;
use crate::{
    acp::{Refusal, code},
    config::Config,
    frame::Frame,
    policy::{
        Action, Disk, Effect, Ground, ServerFact, Subject, Verdict, has_duplicate_keys, normalise,
        text::shown,
    },
    session::{Rules, denied, meta_actions},
};

/// Where a repository says what agents must not do in it.
const REPOSITORY_FILE: &str = ".conductor/policy.toml";

/// Bytes of a file that narrows the rules; a longer one is not read and counts as one
/// that cannot be used.
const LARGEST: u64 = 256 << 10;

/// MCP servers that an editor may bring.
const MOST_SERVERS: usize = 64;

/// Characters of a server's command line that people are shown.
const SHOWN: usize = 300;

/// What somebody has to allow first: the verdict, and the servers it is about.
pub(super) type AsksFirst = Option<(Verdict, String)>;

impl Connection {
    /// The rules for a session of this user with this agent.
    pub(super) fn rules(
        &self,
        config: &Config,
        agent: &str,
        owner: &str,
        cwd: &Path,
        roots: Vec<PathBuf>,
    ) -> Rules {
        let role = if self.caller.is_admin() { "admin" } else { "developer" };
        let subject = Subject {
            user: self.caller.user.clone(),
            teams: self.caller.teams.clone(),
            role: role.into(),
            agent: agent.into(),
            mode: None,
            model: None,
            cwd: cwd.to_path_buf(),
        };
        let mut narrowing = Vec::new();
        for root in &roots {
            narrowing.extend(read_narrowing(&root.join(REPOSITORY_FILE)));
        }
        // Whoever drives it, the owner's limits hold, too.
        let mut people = vec![owner, &self.caller.user];
        people.dedup();
        for user in people {
            if let Some(directory) = &config.policy.users {
                narrowing.extend(user_file(directory, user));
            }
        }
        let ask_timeout = config.policy.ask_timeout;
        Rules { policy: self.hub.policy.policy.clone(), narrowing, subject, roots, ask_timeout }
    }

    /// Judges the opening itself: the agent that is chosen, what the request would set
    /// there, and the MCP servers that come along. What somebody has to allow first is
    /// given back.
    pub(super) fn judge_opening(
        &self,
        config: &Config,
        frame: &Frame,
        rules: &Rules,
    ) -> Result<AsksFirst, Refusal> {
        let unread = || Refusal::new(code::INVALID_PARAMS, "the parameters of this request cannot be read");
        let params: Value = frame.decode(frame.peek().params).ok_or_else(unread)?;
        if has_duplicate_keys(frame.get(frame.peek().params)) {
            return Err(Refusal::new(code::INVALID_PARAMS, "a name stands twice in the parameters"));
        }
        let mut actions = vec![Action::Agent(rules.subject.agent.clone())];
        actions.extend(meta_actions(frame)?);
        let policy = rules.narrow(&rules.policy.borrow());
        let disk = Disk { roots: rules.roots.clone(), search: Vec::new() };
        let ground = Ground { cwd: &rules.subject.cwd, resolver: &disk };
        for action in &actions {
            // Who opens a session is a person, so there is nobody else to ask.
            let verdict = policy.evaluate(&rules.subject, &normalise(action, &ground));
            if verdict.decision == Effect::Deny {
                return Err(denied(verdict.rule.as_deref(), &verdict.reason));
            }
        }
        let servers = params["mcpServers"].as_array().map(Vec::as_slice).unwrap_or_default();
        if servers.len() > MOST_SERVERS {
            let text = format!(
                "a session may have {MOST_SERVERS} MCP servers, and this one brings {}",
                servers.len()
            );
            return Err(Refusal::new(code::LIMIT, text));
        }
        let facts: Vec<ServerFact> = servers.iter().map(|server| self.fact(config, server)).collect();
        let brought: Vec<_> =
            facts.iter().flat_map(|fact| normalise(&Action::Server(fact.clone()), &ground)).collect();
        if brought.is_empty() {
            return Ok(None);
        }
        let verdict = policy.evaluate(&rules.subject, &brought);
        match verdict.decision {
            Effect::Allow => Ok(None),
            // Over the typed API nobody can be asked before the session is there.
            Effect::Ask if self.greeting.lingers => Err(unknown_servers(&verdict)),
            Effect::Ask => {
                let unknown = facts.iter().filter(|fact| fact.known.is_none());
                let list: Vec<String> =
                    unknown.map(|fact| format!("{}: {}", fact.name, fact.shown)).collect();
                Ok(Some((verdict, list.join("\n"))))
            }
            Effect::Deny => Err(unknown_servers(&verdict)),
        }
    }

    /// What is to be known of an MCP server that an editor brings.
    fn fact(&self, config: &Config, server: &Value) -> ServerFact {
        let known = config.mcp.iter().find(|(_, known)| known.equals(server)).map(|(name, _)| name.clone());
        let text = |key: &str| server[key].as_str().unwrap_or_default();
        let transport = server["type"].as_str().unwrap_or("stdio");
        let args = server["args"].as_array().map(Vec::as_slice).unwrap_or_default();
        let words = [text("command"), text("url")].into_iter().chain(args.iter().filter_map(Value::as_str));
        let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        ServerFact {
            name: shown(text("name"), SHOWN),
            known,
            transport: transport.to_string(),
            is_remote: self.greeting.is_remote,
            shown: shown(&line, SHOWN),
        }
    }
}

fn unknown_servers(verdict: &Verdict) -> Refusal {
    let mut refusal = denied(verdict.rule.as_deref(), &verdict.reason);
    refusal.message.push_str("; add the MCP server to [mcp.NAME] in agents.toml, or leave it out");
    refusal
}

/// A file that narrows the rules, if it is there. One that cannot be read is passed on as
/// one that cannot be used, which makes everything at best ask.
fn read_narrowing(path: &Path) -> Option<(String, String)> {
    let origin = path.display().to_string();
    let unusable = |why: &str| Some((origin.clone(), format!("= {why}")));
    // A pipe would be waited for for ever.
    let opened =
        File::options().read(true).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => return unusable(&error.to_string()),
    };
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return unusable("not a file");
    }
    let mut content = String::new();
    match file.take(LARGEST + 1).read_to_string(&mut content) {
        Ok(_) if content.len() as u64 <= LARGEST => Some((origin, content)),
        Ok(_) => unusable("too large"),
        Err(error) => unusable(&error.to_string()),
    }
}

/// The file of one user. Names are theirs, so only those that cannot lead elsewhere
/// have one.
fn user_file(directory: &Path, user: &str) -> Option<(String, String)> {
    if user.is_empty() || user.starts_with('.') || user.contains(['/', '\0']) {
        return None;
    }
    read_narrowing(&directory.join(format!("{user}.toml")))
}
