//! Opening sessions: are the parameters good, may it work there, which
//! process does it need?

use std::{path::PathBuf, sync::Arc};

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use uuid::Uuid;

use super::{Connection, ONLY_WATCHED, Seat, guest};
use crate::{
    acp::{self, EditorCapabilities, OpenParams, Refusal, code},
    agent::Ended,
    config::{Config, OnDetach},
    frame::{self, Frame, Method},
    identity::Person,
    limits,
    metrics::Decided,
    pending::WireId,
    pool::{self, Key},
    redact::{self, Known},
    router::{Access, Found},
    routes::{self, Decision, Field},
    session::{
        self, Berth, Choice, EditorLink, Follower, Open, Opening, SeatRole, SessionEvent, SessionHandle,
        berth::{directory, key, roots_of},
    },
    store::Bound,
};

/// Where a session is to be: with which agent, in which directory, after which
/// process has ended, and whose it is.
struct Place {
    agent: Arc<str>,
    cwd: PathBuf,
    leaving: Option<Ended>,
    owner: String,
    choice: Choice,
    decision: Option<Decision>,
    bound: Vec<Bound>,
}

impl Connection {
    pub(super) fn open_new(&mut self, frame: &Frame) {
        let config = self.hub.config.borrow().clone();
        let opened = self.choose(&config, frame).and_then(|(choice, decision)| {
            let agent: Arc<str> = decision.targets[0].agent.as_str().into();
            let cwd = self.check(frame, &agent)?;
            Ok((choice, decision, agent, cwd))
        });
        match opened {
            Ok((choice, decision, agent, cwd)) => {
                let owner = self.caller.user.clone();
                let place = Place {
                    agent,
                    cwd,
                    leaving: None,
                    owner,
                    choice,
                    decision: Some(decision),
                    bound: Vec::new(),
                };
                self.start(frame, Uuid::now_v7(), Opening::New, place);
            }
            Err(refusal) => self.refuse(frame, refusal),
        }
    }

    /// What was chosen for a new session, by this connection and by the request,
    /// and where that leads.
    fn choose(&self, config: &Config, frame: &Frame) -> Result<(Choice, Decision), Refusal> {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let mut choice = Choice {
            agent: given(&self.greeting.agent),
            model: self.greeting.wish.model.clone(),
            mode: self.greeting.wish.mode.clone(),
            ..Choice::default()
        };
        choice.take_meta(frame)?;
        let params = frame.decode::<OpenParams<'_>>(frame.peek().params);
        let cwd = params.map(|params| PathBuf::from(&*params.cwd)).unwrap_or_default();
        let cwd = cwd.canonicalize().unwrap_or(cwd);
        let agents = self.hub.pool.status().borrow().clone();
        let offers = self.hub.catalogue.offers();
        let busy = |agent: &str| pool::sessions_of(&agents, agent);
        let asked = choice.asked(&self.caller, &cwd, None);
        let decision = routes::decide(&asked, &Field { config, offers: &offers, busy: &busy });
        let decision = decision.map_err(|why| Refusal::new(code::INVALID_PARAMS, why.to_string()))?;
        Ok((choice, decision))
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
                let place = Place {
                    agent: row.agent,
                    cwd,
                    leaving,
                    owner: row.owner,
                    choice: Choice::default(),
                    decision: None,
                    bound: row.bound,
                };
                self.start(frame, id, opening, place);
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
        let guest = guest(&self.hub, &self.caller, role);
        let Some((seat, seated)) = handle.take_seat(guest, Some(frame.clone())) else {
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
        let (cwd_map, closing) = (self.cwd_map.clone(), self.hub.closing.clone());
        let follower = Follower { session: id, link, role, replays, cwd_map, ended, closing };
        let following = session::follow(follower, seated, self.hub.history.clone());
        self.hub.tasks.start("seat", following.in_current_span());
        self.names.insert(format!("\"{id}\"").into(), slot);
        let opening = Some(frame.copy(frame.peek().id));
        let watches = role == SeatRole::Observer;
        self.seats
            .insert(slot, Seat { id, at: seat, leads: false, watches, opening, cancels: false, _here: here });
        self.sitting.insert(slot, frame.clone());
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
        if redact::has_marks(servers) {
            let text = format!(
                "mcpServers of {name} holds `<secret:…>`, which stands for a secret in the record; hand over the \
                 secret itself"
            );
            return Err(invalid(text));
        }
        if self.hub.draining.is_cancelled() {
            return Err(Refusal::new(code::LIMIT, "the service is stopping; try again once it is back"));
        }
        if let Some(why) = self.hub.journal.refusing() {
            return Err(Refusal::new(code::NOT_RECORDED, &*why));
        }
        if let Some(why) = limits::memory::short(self.hub.config.borrow().service.memory_high) {
            return Err(Refusal::new(code::LIMIT, why));
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

    fn start(&mut self, frame: &Frame, id: Uuid, opening: Opening, place: Place) {
        let Place { agent, cwd, leaving, owner, choice, decision, bound } = place;
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
        let person = Person::owner(&owner, &self.caller);
        let prepared = Berth::new(&config, &agent, &person, frame, &cwd, able).and_then(|berth| {
            let rules = self.rules(&config, &agent, &owner, &cwd, &berth.roots);
            let (asks_first, servers) = self.judge_opening(&config, frame, &rules, &berth.roots)?;
            let held = self.hub.router.limits().hold(limits::Kind::Sessions, &self.caller);
            let held = held.map_err(|reached| reached.refusal())?;
            Ok((berth, rules, asks_first, servers, held))
        });
        let (berth, rules, asks_first, servers, held) = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                if refusal.code == code::DENIED {
                    self.hub.metrics.decisions.of(Decided::Deny).one();
                }
                if !matches!(opening, Opening::New) {
                    self.hub.router.parked(id, None, leaving);
                }
                return self.refuse(frame, refusal);
            }
        };
        self.keep(id, frame);
        let settings = config.agents.get(&*agent);
        let cancels = settings.is_some_and(|agent| agent.on_detach == OnDetach::Cancel);
        let open = Open {
            id,
            opening,
            request: frame.clone(),
            caller: self.caller.clone(),
            owner,
            held,
            connection: self.id,
            traceparent: self.greeting.traceparent.clone(),
            berth,
            cwd,
            cwd_map: self.cwd_map.clone(),
            choice,
            decision,
            bound,
            config: self.hub.config.clone(),
            catalogue: self.hub.catalogue.clone(),
            approvals: self.hub.approvals.clone(),
            metrics: self.hub.metrics.clone(),
            close: CancellationToken::new(),
            ending: self.hub.closing.clone(),
            outlives_editor: !cancels && self.greeting.outlived,
            lingers: self.greeting.lingers,
            detached_ttl: config.service.detached_ttl,
            cancel_grace: config.service.cancel_grace,
            // The tether is the first to lose its patience; a session does only
            // if nobody takes its frames at all.
            editor_timeout: 2 * config.service.editor_timeout,
            handover_bytes: usize::try_from(config.service.handover_bytes).unwrap_or(usize::MAX),
            rules,
            servers,
            asks_first,
            injected: injected(&config),
            kept: self.hub.kept.clone(),
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
        self.names.insert(format!("\"{id}\"").into(), slot);
        let opening = Some(frame.copy(frame.peek().id));
        let left = CancellationToken::new();
        let here = left.clone().drop_guard();
        self.mind_access(id, slot, access, left);
        self.seats
            .insert(slot, Seat { id, at: lead, leads: true, watches: false, opening, cancels, _here: here });
    }

    /// Keeps what the session is given and its record does not hold, for when nobody is there
    /// to hand it over once more.
    fn keep(&self, id: Uuid, frame: &Frame) {
        let redaction = self.hub.journal.redaction();
        let servers = frame.get(frame.peek().mcp_servers);
        let whole = [b"{\"mcpServers\":", servers, b"}"].concat();
        if servers.starts_with(b"[") && redaction.frame(&Known::default(), &whole).is_some() {
            self.hub.kept.keep(id, servers);
        }
    }

    /// The agent that new sessions of this connection use.
    pub(super) fn agent(&self, config: &Config) -> Arc<str> {
        let name = &self.greeting.agent;
        if name.is_empty() { config.default.as_str().into() } else { name.as_str().into() }
    }

    /// The key that the connection's first session is likely to have.
    pub(super) fn likely_key(&self, able: EditorCapabilities) -> Key {
        let agent = self.agent(&self.hub.config.borrow());
        self.likely_key_of(agent, able)
    }

    /// The key that its first session with this agent is likely to have.
    pub(super) fn likely_key_of(&self, agent: Arc<str>, able: EditorCapabilities) -> Key {
        let config = self.hub.config.borrow().clone();
        let roots = roots_of(&config, &agent);
        let given = self.greeting.cwd.as_ref().map(|cwd| match &self.cwd_map {
            Some(map) => map.host_path(&cwd.to_string_lossy()),
            None => cwd.to_string_lossy().into_owned(),
        });
        let hint = given.and_then(|cwd| directory("cwd", &cwd, roots).ok());
        let cwd = hint.or_else(|| roots.first().cloned()).unwrap_or_else(|| "/".into());
        let caller = Person::owner(&self.caller.user, &self.caller);
        key(&config, agent, &caller, &cwd, able)
    }
}

/// The MCP servers that every session gets.
fn injected(config: &Config) -> Vec<Value> {
    let injected = config.mcp.iter().filter(|(_, server)| server.inject);
    injected.map(|(name, server)| server.to_acp(name)).collect()
}

fn too_many_sessions() -> Refusal {
    Refusal::new(code::LIMIT, "this connection has opened too many sessions; connect again")
}
