//! Opening sessions: are the parameters good, may it work there, which
//! process does it need?

use std::{
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use uuid::Uuid;

use super::{Connection, ONLY_WATCHED, Seat};
use crate::{
    acp::{self, EditorCapabilities, OpenParams, Refusal, WorkspaceCapabilities, code},
    agent::Ended,
    config::{Config, OnDetach, OnStall, SpawnCwd, Workspace},
    frame::{self, Frame, Method},
    pending::WireId,
    pool::Key,
    router::{Access, Found},
    session::{
        self, EditorLink, Follower, Hosting, Open, Opening, SeatRole, SessionEvent, SessionHandle, Wish,
    },
    workspace::Roots,
};

/// Directories that a session may have beside its own; each is held open.
const MOST_DIRECTORIES: usize = 64;

/// Where a session is to be: with which agent, in which directory, after which
/// process has ended, and whose it is.
struct Place {
    agent: Arc<str>,
    cwd: PathBuf,
    leaving: Option<Ended>,
    owner: String,
}

impl Connection {
    pub(super) fn open_new(&mut self, frame: &Frame) {
        let agent = self.agent(&self.hub.config.borrow());
        match self.check(frame, &agent) {
            Ok(cwd) => {
                let place = Place { agent, cwd, leaving: None, owner: self.caller.user.clone() };
                self.start(frame, Uuid::now_v7(), Opening::New, place, self.greeting.wish.clone());
            }
            Err(refusal) => self.refuse(frame, refusal),
        }
    }

    pub(super) fn reopen(&mut self, frame: &Frame) {
        let peek = frame.peek();
        let id = acp::session_id(frame);
        // A session stays with its agent, which may have roots of its own.
        let agent = id.and_then(|id| self.hub.router.agent(id, &self.caller));
        let agent = agent.unwrap_or_else(|| self.agent(&self.hub.config.borrow()));
        let cwd = match self.check(frame, &agent) {
            Ok(cwd) => cwd,
            Err(refusal) => return self.refuse(frame, refusal),
        };
        let Some(id) = id else {
            let refusal = if peek.session.is_some() {
                Refusal::unknown_session(frame)
            } else {
                Refusal::new(code::INVALID_PARAMS, format!("{} needs a sessionId", frame.method_name()))
            };
            return self.refuse(frame, refusal);
        };
        // One's own session may be reopened at any time, for instance after
        // its process has ended.
        if let Some(slot) = self.seats.iter().find(|(_, seat)| seat.id == id).map(|(slot, _)| *slot) {
            self.dismiss(slot);
            self.reopening.insert(slot, frame.clone());
            return;
        }
        match self.hub.router.claim(id, &self.caller) {
            Found::Parked(row, leaving) => {
                let opening = match peek.method {
                    Method::SessionLoad => Opening::Load(row.agent_session),
                    _ => Opening::Resume(row.agent_session),
                };
                let place = Place { agent: row.agent, cwd, leaving, owner: row.owner };
                self.start(frame, id, opening, place, Wish::default());
            }
            Found::Live(handle, access) => {
                let params: Value = frame.decode(peek.params).unwrap_or_default();
                let drives = access.drives() && params["_meta"]["conductor"]["observe"] != true;
                let role = if drives { SeatRole::Driver } else { SeatRole::Observer };
                self.sit(frame, id, &handle, role, access);
            }
            Found::Claimed => {
                let text = "this session is being opened elsewhere at this moment; try again";
                self.refuse(frame, Refusal::new(code::LIMIT, text));
            }
            Found::Watched => {
                self.refuse(frame, Refusal::new(code::INVALID_PARAMS, ONLY_WATCHED));
            }
            Found::Nothing => self.refuse(frame, Refusal::unknown_session(frame)),
        }
    }

    /// Takes a seat at a session that somebody else has open.
    fn sit(&mut self, frame: &Frame, id: Uuid, handle: &SessionHandle, role: SeatRole, access: Access) {
        let Some(slot) = self.slot() else { return self.refuse(frame, too_many_sessions()) };
        let Some((seat, seated)) = handle.take_seat(self.caller.clone(), role, Some(frame.clone())) else {
            if handle.is_ending() {
                // Once it has ended, it is opened in the usual way.
                self.reopening.insert(slot, frame.clone());
                let (handle, events) = (handle.clone(), self.events.clone());
                let waiting = async move {
                    handle.over().await;
                    events.send(SessionEvent::Ended(slot)).await.ok();
                };
                self.hub.tasks.start("seat", waiting);
                return;
            }
            let text = "this session has all the editors it can take, or is too busy; try again later";
            return self.refuse(frame, Refusal::new(code::LIMIT, text));
        };
        let link = self.link(slot);
        let replays = frame.peek().method == Method::SessionLoad;
        let ended = CancellationToken::new();
        let here = ended.clone().drop_guard();
        self.mind_access(id, slot, access, ended.clone());
        let follower = Follower { session: id, link, role, replays, cwd_map: self.cwd_map.clone(), ended };
        let following = session::follow(follower, seated, self.hub.history.clone());
        self.hub.tasks.start("seat", following.in_current_span());
        self.names.insert(format!("\"{id}\"").into(), slot);
        let opening = Some(frame.copy(frame.peek().id));
        let watches = role == SeatRole::Observer;
        self.seats
            .insert(slot, Seat { id, at: seat, leads: false, watches, opening, cancels: false, _here: here });
        // Should it end before it has heard us, it is opened in the usual way.
        self.reopening.insert(slot, frame.clone());
    }

    /// A session of somebody else's is left when they may do less there than they
    /// `had`, until it is `left` anyway.
    fn mind_access(&self, id: Uuid, slot: u32, had: Access, left: CancellationToken) {
        if had == Access::Owner {
            return;
        }
        let lost = self.hub.router.lost(id, &self.caller, had);
        let events = self.events.clone();
        self.hub.tasks.start("access", async move {
            tokio::select! {
                () = lost => {
                    events.send(SessionEvent::Revoked(slot)).await.ok();
                }
                () = left.cancelled() => {}
            }
        });
    }

    fn link(&self, slot: u32) -> EditorLink {
        EditorLink {
            slot,
            out: self.out.clone(),
            capabilities: self.initialized.unwrap_or_default(),
            events: self.events.clone(),
            presence: self.presence.subscribe(),
        }
    }

    /// A number for one more session.
    fn slot(&mut self) -> Option<u32> {
        let slot = self.next_slot;
        self.next_slot += u32::from(slot <= WireId::MAX_SLOT);
        (slot <= WireId::MAX_SLOT).then_some(slot)
    }

    /// Checks what all opening requests have in common; gives the session's
    /// directory.
    fn check(&self, frame: &Frame, agent: &str) -> Result<PathBuf, Refusal> {
        let peek = frame.peek();
        let invalid = |text: String| Refusal::new(code::INVALID_PARAMS, text);
        let name = frame.method_name();
        let params: OpenParams<'_> =
            frame.decode(peek.params).ok_or_else(|| invalid(format!("{name} needs a cwd, a string")))?;
        let servers = frame.get(peek.mcp_servers);
        match servers.first() {
            None if peek.method == Method::SessionResume => {}
            None => return Err(invalid(format!("{name} needs mcpServers, an array; it may be empty"))),
            Some(b'[' | b'n') => {}
            Some(_) => return Err(invalid(format!("mcpServers of {name} must be an array"))),
        }
        if self.hub.draining.is_cancelled() {
            return Err(Refusal::new(code::LIMIT, "the service is stopping; try again once it is back"));
        }
        if let Some(why) = self.hub.journal.refusing() {
            return Err(Refusal::new(code::NOT_RECORDED, &*why));
        }
        let id = frame.get(peek.id);
        if self.seats.values().any(|seat| seat.opening.as_deref() == Some(id)) {
            let text = format!("a request with the id {} is already in flight", frame::escape(id, 100));
            return Err(Refusal::new(code::INVALID_REQUEST, text));
        }
        let config = self.hub.config.borrow().clone();
        let most = config.service.max_sessions_per_connection;
        if self.seats.len() >= most {
            let text = format!("this editor has {most} sessions open already; close one first");
            return Err(Refusal::new(code::LIMIT, text));
        }
        directory("cwd", &params.cwd, roots_of(&config, agent)).map_err(invalid)
    }

    fn start(&mut self, frame: &Frame, id: Uuid, opening: Opening, place: Place, wish: Wish) {
        let Place { agent, cwd, leaving, owner } = place;
        let Some(slot) = self.slot() else {
            if !matches!(opening, Opening::New) {
                self.hub.router.parked(id, None, leaving);
            }
            return self.refuse(frame, too_many_sessions());
        };
        let able = self.initialized.unwrap_or_default();
        // Who may open somebody else's session may drive it, and no more.
        let access = if owner == self.caller.user { Access::Owner } else { Access::Driver };
        let config = self.hub.config.borrow().clone();
        let hosting = match hosting(&config, &agent, frame, &cwd) {
            Ok(hosting) => hosting,
            Err(refusal) => {
                if !matches!(opening, Opening::New) {
                    self.hub.router.parked(id, None, leaving);
                }
                return self.refuse(frame, refusal);
            }
        };
        let roots = session_roots(frame, &cwd, roots_of(&config, &agent));
        let rules = self.rules(&config, &agent, &owner, &cwd, roots);
        let asks_first = match self.judge_opening(&config, frame, &rules) {
            Ok(asks_first) => asks_first,
            Err(refusal) => {
                if !matches!(opening, Opening::New) {
                    self.hub.router.parked(id, None, leaving);
                }
                return self.refuse(frame, refusal);
            }
        };
        let settings = config.agents.get(&*agent);
        let park_after = settings.map(|agent| agent.park_after).unwrap_or_default();
        let shares_process = settings.is_some_and(|agent| agent.sessions_per_process > 1);
        let cancels = settings.is_some_and(|agent| agent.on_detach == OnDetach::Cancel);
        let stall_timeout = settings.map(|agent| agent.turn_stall_timeout).unwrap_or_default();
        let cancels_stalled = settings.is_some_and(|agent| agent.on_stall == OnStall::Cancel);
        let key = key(&config, agent, &cwd, able);
        let open = Open {
            id,
            opening,
            request: frame.clone(),
            caller: self.caller.clone(),
            owner,
            connection: self.id,
            key,
            cwd,
            hosting,
            cwd_map: self.cwd_map.clone(),
            wish,
            close: CancellationToken::new(),
            ending: self.hub.closing.clone(),
            outlives_editor: !cancels && self.greeting.outlived,
            lingers: self.greeting.lingers,
            detached_ttl: config.service.detached_ttl,
            cancel_grace: config.service.cancel_grace,
            // The tether is the first to lose its patience; a session does only
            // if nobody takes its frames at all.
            editor_timeout: 2 * config.service.editor_timeout,
            park_after,
            stall_timeout,
            cancels_stalled,
            handover_bytes: usize::try_from(config.service.handover_bytes).unwrap_or(usize::MAX),
            shares_process,
            rules,
            asks_first,
            injected: injected(&config),
            leaving,
        };
        let link = self.link(slot);
        let lead = session::start(
            open,
            link,
            self.hub.pool.clone(),
            self.hub.router.clone(),
            self.hub.journal.clone(),
            self.hub.history.clone(),
            &self.hub.tasks,
        );
        let Some(lead) = lead else { return self.refuse(frame, too_many_sessions()) };
        self.names.insert(format!("\"{id}\"").into(), slot);
        let opening = Some(frame.copy(frame.peek().id));
        let left = CancellationToken::new();
        let here = left.clone().drop_guard();
        self.mind_access(id, slot, access, left);
        self.seats
            .insert(slot, Seat { id, at: lead, leads: true, watches: false, opening, cancels, _here: here });
    }

    /// The agent that new sessions of this connection use.
    pub(super) fn agent(&self, config: &Config) -> Arc<str> {
        let name = &self.greeting.agent;
        if name.is_empty() { config.default.as_str().into() } else { name.as_str().into() }
    }

    /// The key that the connection's first session is likely to have.
    pub(super) fn likely_key(&self, able: EditorCapabilities) -> Key {
        let config = self.hub.config.borrow().clone();
        let agent = self.agent(&config);
        let roots = roots_of(&config, &agent);
        let given = self.greeting.cwd.as_ref().map(|cwd| match &self.cwd_map {
            Some(map) => map.host_path(&cwd.to_string_lossy()),
            None => cwd.to_string_lossy().into_owned(),
        });
        let hint = given.and_then(|cwd| directory("cwd", &cwd, roots).ok());
        let cwd = hint.or_else(|| roots.first().cloned()).unwrap_or_else(|| "/".into());
        key(&config, agent, &cwd, able)
    }
}

/// The directories of a session, resolved; those that cannot be used are none.
fn session_roots(frame: &Frame, cwd: &Path, roots: &[PathBuf]) -> Vec<PathBuf> {
    let params = frame.decode::<OpenParams<'_>>(frame.peek().params);
    let more = params.map(|params| params.additional_directories).unwrap_or_default();
    let more = strings(&more).unwrap_or_default().into_iter().take(MOST_DIRECTORIES);
    let more = more.filter_map(|path| directory("additionalDirectories", path, roots).ok());
    std::iter::once(cwd.to_path_buf()).chain(more).collect()
}

/// The MCP servers that every session gets.
fn injected(config: &Config) -> Vec<Value> {
    let injected = config.mcp.iter().filter(|(_, server)| server.inject);
    injected.map(|(name, server)| server.to_acp(name)).collect()
}

fn too_many_sessions() -> Refusal {
    Refusal::new(code::LIMIT, "this connection has opened too many sessions; connect again")
}

fn key(config: &Config, agent: Arc<str>, cwd: &Path, able: EditorCapabilities) -> Key {
    let settings = config.agents.get(&*agent);
    let roots = roots_of(config, &agent);
    let cwd = match settings.map(|agent| agent.spawn_cwd) {
        Some(SpawnCwd::Root) => nearest_root(cwd, roots).unwrap_or_else(|| cwd.to_path_buf()),
        _ => cwd.to_path_buf(),
    };
    let capabilities = match settings.map(|agent| agent.workspace) {
        Some(Workspace::Editor) => able.workspace(),
        // The same for all editors, so that they share processes.
        _ => WorkspaceCapabilities::ALL,
    };
    Key { agent, cwd, capabilities }
}

/// Where an agent may work.
fn roots_of<'a>(config: &'a Config, agent: &str) -> &'a [PathBuf] {
    config.agents.get(agent).and_then(|agent| agent.roots.as_ref()).unwrap_or(&config.roots)
}

/// What this host does for a session of this agent: nothing, or all beneath the
/// directories that the opening request names.
fn hosting(config: &Config, agent: &str, frame: &Frame, cwd: &Path) -> Result<Option<Hosting>, Refusal> {
    let settings = config.agents.get(agent).filter(|agent| agent.workspace == Workspace::Host);
    let (Some(settings), Some(params)) = (settings, frame.decode::<OpenParams<'_>>(frame.peek().params))
    else {
        return Ok(None);
    };
    let invalid = |text: String| Refusal::new(code::INVALID_PARAMS, text);
    let more =
        strings(&params.additional_directories).filter(|more| more.len() <= MOST_DIRECTORIES).ok_or_else(
            || invalid(format!("additionalDirectories must be an array of at most {MOST_DIRECTORIES} paths")),
        )?;
    let mut directories = vec![(PathBuf::from(&*params.cwd), cwd.to_path_buf())];
    for given in more {
        let real = directory("additionalDirectories", given, roots_of(config, agent)).map_err(invalid)?;
        directories.push((given.into(), real));
    }
    let roots = Roots::open(directories).map_err(|why| Refusal::new(code::INTERNAL, why))?;
    Ok(Some(Hosting {
        roots: Arc::new(roots),
        prefer_client_fs: settings.prefer_client_fs,
        prefer_client_terminal: settings.prefer_client_terminal,
    }))
}

/// The texts of an optional array; `None` if it is something else.
fn strings(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// A directory of the session, resolved; or why it cannot be that.
fn directory(what: &str, given: &str, roots: &[PathBuf]) -> Result<PathBuf, String> {
    let shown = frame::escape(given.as_bytes(), 500);
    let path = Path::new(given);
    if !path.is_absolute() || given.contains('\0') {
        return Err(format!("{what} must be an absolute path, and `{shown}` is not"));
    }
    let resolved = path
        .canonicalize()
        .map_err(|error| format!("{what} `{shown}` cannot be used on the conductor's host: {error}"))?;
    if !resolved.is_dir() {
        return Err(format!("{what} `{shown}` is not a directory on the conductor's host"));
    }
    if nearest_root(&resolved, roots).is_none() {
        let list: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
        return Err(format!(
            "{what} `{shown}` lies outside the roots that this conductor allows ({}); \
             add one to `roots` in agents.toml",
            list.join(", ")
        ));
    }
    Ok(resolved)
}

/// The innermost root above a resolved path. Roots are compared component by
/// component: `app` is not above `app-evil`.
fn nearest_root(path: &Path, roots: &[PathBuf]) -> Option<PathBuf> {
    let resolved = roots.iter().filter_map(|root| root.canonicalize().ok());
    let above = resolved.filter(|root| path.starts_with(root));
    above.max_by_key(|root| root.components().filter(|part| matches!(part, Component::Normal(_))).count())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn sessions_stay_beneath_the_roots() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        for dir in ["app/inner", "app-evil"] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
        }
        std::os::unix::fs::symlink(base.join("app-evil"), base.join("app/link")).unwrap();
        let roots = [base.join("app")];
        let ok = |path: &str| directory("cwd", base.join(path).to_str().unwrap(), &roots);
        assert_eq!(ok("app/inner").unwrap(), base.join("app/inner"));
        assert_eq!(ok("app").unwrap(), base.join("app"));
        assert!(ok("app-evil").unwrap_err().contains("outside the roots"));
        assert!(ok("app/link").unwrap_err().contains("outside the roots"));
        assert!(ok("app/../app-evil").unwrap_err().contains("outside the roots"));
        assert!(ok("app/missing").unwrap_err().contains("cannot be used"));
        assert!(directory("cwd", "app", &roots).unwrap_err().contains("absolute"));
    }
}
