//! What a session is opened under: the rules that hold for its agent, and what
//! they say to opening it at all.

use std::{
    fs::File,
    io::Read as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{Connection, Hub};
use crate::{
    acp::{Refusal, code},
    config::Config,
    frame::Frame,
    identity::{Caller, Role, file_name},
    policy::{
        Absent, Action, Disk, Effect, Ground, Narrowing, Policy, ServerFact, Subject, Verdict,
        has_duplicate_keys, normalise, text::shown,
    },
    session::{Guest, Rules, SeatRole, berth::roots_of, denied, meta_actions},
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
        roots: &[PathBuf],
    ) -> Rules {
        let subject = subject(&self.caller, agent, cwd);
        let mut narrowing = Vec::new();
        for root in roots {
            // An agent may have written it, so it cannot be what keeps people from working.
            narrowing.extend(read_narrowing(&root.join(REPOSITORY_FILE), Effect::Ask));
        }
        // Whoever drives it, the owner's limits hold, too.
        let mut people = vec![owner, &self.caller.user];
        people.dedup();
        narrowing.extend(people.into_iter().filter_map(|user| own_rules(config, user)));
        let ask_timeout = config.policy.ask_timeout;
        let (policy, grants) = (self.hub.policy.policy.clone(), self.hub.grants.clone());
        Rules { policy, narrowing, own: None, subject, grants, ask_timeout }
    }

    /// Judges the opening itself: the agent that is chosen, what the request would set
    /// there, and the MCP servers that come along. What somebody has to allow first is
    /// given back.
    pub(super) fn judge_opening(
        &self,
        config: &Config,
        frame: &Frame,
        rules: &Rules,
        roots: &[PathBuf],
    ) -> Result<(AsksFirst, Vec<ServerFact>), Refusal> {
        let unread = || Refusal::new(code::INVALID_PARAMS, "the parameters of this request cannot be read");
        let params: Value = frame.decode(frame.peek().params).ok_or_else(unread)?;
        if has_duplicate_keys(frame.get(frame.peek().params)) {
            return Err(Refusal::new(code::INVALID_PARAMS, "a name stands twice in the parameters"));
        }
        let mut actions = vec![Action::Agent(rules.subject.agent.clone())];
        actions.extend(meta_actions(frame)?);
        let policy = rules.narrow(&rules.policy.borrow());
        let disk = Disk::resolved(roots.to_vec(), Vec::new(), Absent::default());
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
            return Ok((None, facts));
        }
        let verdict = policy.evaluate(&rules.subject, &brought);
        match verdict.decision {
            Effect::Allow => Ok((None, facts)),
            // Over the typed API nobody can be asked before the session is there.
            Effect::Ask if self.greeting.lingers => Err(unknown_servers(&verdict)),
            Effect::Ask => {
                let unknown = facts.iter().filter(|fact| fact.known.is_none());
                let list: Vec<String> =
                    unknown.map(|fact| format!("{}: {}", fact.name, fact.shown)).collect();
                let shown = list.join("\n");
                Ok((Some((verdict, shown)), facts))
            }
            Effect::Deny => Err(unknown_servers(&verdict)),
        }
    }

    /// What is to be known of an MCP server that an editor brings.
    fn fact(&self, config: &Config, server: &Value) -> ServerFact {
        let known = config.mcp.iter().find(|(_, known)| known.equals(server)).map(|(name, _)| name.clone());
        // People are shown it, and it is kept.
        let clean = self.recorder.redacted_value(&json!({ "mcpServers": [server] }));
        let server = clean.as_ref().map_or(server, |clean| &clean["mcpServers"][0]);
        let text = |key: &str| server[key].as_str().unwrap_or_default();
        // Whatever else it calls itself: agents start what has a command, or is of no kind
        // that they know.
        let transport = match server["type"].as_str() {
            Some(kind @ ("http" | "sse")) if server.get("command").is_none() => kind,
            _ => "stdio",
        };
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

/// Whether somebody may use an agent at all, wherever that is.
pub fn may_use(hub: &Hub, caller: &Caller, agent: &str) -> Result<(), Refusal> {
    let config = hub.config.borrow().clone();
    let roots = roots_of(&config, agent);
    let cwd = roots.first().cloned().unwrap_or_else(|| "/".into());
    // What a repository says is about sessions in it.
    let own = own_rules(&config, &caller.user);
    let subject = subject(caller, agent, &cwd);
    let policy = hub.policy.current().narrowed_by(own.as_slice());
    let disk = Disk::resolved(roots.to_vec(), Vec::new(), Absent::default());
    let ground = Ground { cwd: &cwd, resolver: &disk };
    let verdict = policy.evaluate(&subject, &normalise(&Action::Agent(agent.to_owned()), &ground));
    match verdict.decision {
        Effect::Deny => Err(denied(verdict.rule.as_deref(), &verdict.reason)),
        _ => Ok(()),
    }
}

/// The rules in force where somebody works in these directories: narrowed by what the
/// repositories there and the user add.
pub fn rules_in(hub: &Hub, directories: &[PathBuf], user: Option<&str>) -> Arc<Policy> {
    let config = hub.config.borrow().clone();
    let own = user.and_then(|user| own_rules(&config, user));
    let repositories =
        directories.iter().filter_map(|root| read_narrowing(&root.join(REPOSITORY_FILE), Effect::Ask));
    let narrowing: Vec<_> = repositories.chain(own).collect();
    hub.policy.current().narrowed_by(&narrowing)
}

/// Somebody who takes a seat at a session. Whoever drives it brings what narrows the rules
/// for them, read now; who only watches is not judged.
pub fn guest(hub: &Hub, caller: &Caller, role: SeatRole) -> Guest {
    let config = hub.config.borrow().clone();
    let own = (role == SeatRole::Driver).then(|| own_rules(&config, &caller.user)).flatten();
    Guest { caller: caller.clone(), role, own }
}

/// Whom the rules are asked about.
fn subject(caller: &Caller, agent: &str, cwd: &Path) -> Subject {
    let role = caller.role().map(Role::name).unwrap_or_default();
    Subject {
        user: caller.user.clone(),
        teams: caller.teams.clone(),
        role: role.into(),
        agent: agent.into(),
        mode: None,
        model: None,
        cwd: cwd.to_path_buf(),
    }
}

fn unknown_servers(verdict: &Verdict) -> Refusal {
    let mut refusal = denied(verdict.rule.as_deref(), &verdict.reason);
    refusal.message.push_str("; add the MCP server to [mcp.NAME] in agents.toml, or leave it out");
    refusal
}

/// A file that narrows the rules, if it is there. One that cannot be read is passed on as
/// one that cannot be used.
fn read_narrowing(path: &Path, otherwise: Effect) -> Option<Narrowing> {
    let origin = path.display().to_string();
    let found = |text| Some(Narrowing { origin: origin.clone(), text, otherwise });
    let unusable = |why: &str| found(Err(why.to_owned()));
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
        Ok(_) if content.len() as u64 <= LARGEST => found(Ok(content)),
        Ok(_) => unusable("too large"),
        Err(error) => unusable(&error.to_string()),
    }
}

/// What somebody's own file adds to the rules, if users have one.
fn own_rules(config: &Config, user: &str) -> Option<Narrowing> {
    config.policy.users.as_ref().and_then(|directory| user_file(directory, user))
}

/// The file of one user. Whom it narrows could allow themselves what they are asked about,
/// so one that cannot be used denies everything; and so does a directory that is not there,
/// since nobody knows then what would be in it.
fn user_file(directory: &Path, user: &str) -> Option<Narrowing> {
    let path = directory.join(format!("{}.toml", file_name(user)));
    let found = read_narrowing(&path, Effect::Deny);
    if found.is_some() || directory.is_dir() {
        return found;
    }
    let origin = directory.display().to_string();
    Some(Narrowing { origin, text: Err("there is no such directory".to_owned()), otherwise: Effect::Deny })
}
