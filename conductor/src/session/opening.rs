//! How a session comes to be: the opening request, an entry in the table once
//! the agent has answered, and what is noted of it from the first word to the
//! last.

use std::{path::Path, time::SystemTime};

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use super::{Binding, Input, LEAD, Opening, Purpose, Request, Session, SessionEvent, Way};
use crate::{
    acp::Refusal,
    frame::splice,
    journal::Class,
    metrics::TurnEnd,
    record::{Destination, Origin, note},
    store::Row,
};

impl Session {
    /// Passes the opening request on to the agent.
    pub(super) fn ask_to_open(&mut self) {
        let Some(binding) = &self.binding else { return };
        let request = self.open.request.clone();
        let peek = request.peek();
        // Null means none; agents differ in whether they take it.
        let mcp = request.get(peek.mcp_servers);
        let (servers, with) = match self.with_injected(&request.decode(peek.mcp_servers).unwrap_or_default())
        {
            Some(all) => (peek.mcp_servers, all.to_string()),
            None if mcp == b"null" => (peek.mcp_servers, "[]".to_string()),
            None => (Default::default(), String::new()),
        };
        let name = binding.name.clone();
        let editor_id = request.copy(peek.id);
        let id = self.number(Request { editor_id, ..Request::ours(Purpose::Open) });
        let is_again = std::mem::replace(&mut self.is_asked, true);
        if !is_again {
            self.hand.outgoing.push((0, id.value()));
        }
        let mut out = BytesMut::new();
        splice(
            &mut out,
            request.bytes(),
            [(peek.id, id.to_string().as_bytes()), (peek.session, &name), (servers, with.as_bytes())],
        );
        // It is recorded once as the editor's; another agent is asked in our words.
        if is_again {
            self.say_agent(out.freeze(), Class::Effect);
            return self.commit(Input::Nothing);
        }
        self.relay_agent(out.freeze(), Class::Effect);
        self.commit(Input::Frame(LEAD, &request));
    }

    /// The MCP servers of a request and those that every session gets, as far as the
    /// agent can use them; `None` if there are no more.
    pub(super) fn with_injected(&self, servers: &Value) -> Option<Value> {
        let able = &self.binding.as_ref()?.process().hello.result["agentCapabilities"]["mcpCapabilities"];
        let mut all = servers.as_array().cloned().unwrap_or_default();
        let mut is_more = false;
        for server in &self.open.injected {
            let is_usable = server["type"].as_str().is_none_or(|transport| able[transport] == true);
            if is_usable {
                all.retain(|other| other["name"] != server["name"]);
                all.push(server.clone());
                is_more = true;
            }
        }
        is_more.then_some(Value::Array(all))
    }

    /// Answers the opening request, which nobody else has answered.
    pub(super) fn refuse_opening(&mut self, refusal: &Refusal) {
        let request = self.open.request.clone();
        self.answer_opening(refusal);
        let is_asked = std::mem::replace(&mut self.is_asked, true);
        self.commit(if is_asked { Input::Nothing } else { Input::Frame(LEAD, &request) });
    }

    pub(super) fn answer_opening(&mut self, refusal: &Refusal) {
        if std::mem::replace(&mut self.is_refused, true) {
            return;
        }
        self.requests.drain(|request| request.purpose == Purpose::Open);
        let request = self.open.request.clone();
        self.trace_answered(LEAD, &request, TurnEnd::Error);
        self.say_editor(refusal.frame(request.get(request.peek().id)));
        self.ended = true;
    }

    /// The agent has opened the session: from now on it has a place in the
    /// table.
    pub(super) fn opened(&mut self) {
        self.is_open = true;
        self.handle.opened();
        self.open.metrics.sessions_opened.one();
        self.trace_answered(LEAD, &self.open.request.clone(), TurnEnd::EndTurn);
        let id = self.open.id;
        if matches!(self.open.opening, Opening::New) {
            let now = SystemTime::now();
            let row = Row {
                owner: self.open.owner.clone(),
                agent: self.open.berth.key.agent.clone(),
                cwd: self.open.cwd.clone(),
                agent_session: self.agent_session.clone(),
                bound: self.routing.bound.clone(),
                title: None,
                created: now,
                updated: now,
                is_live: true,
                is_deleted: false,
                seq: 0,
            };
            self.router.opened(id, row, self.handle.clone());
        } else {
            self.router.reopened(id, self.first_seq - 1);
        }
        // The connection takes its events before anything else, so there is
        // room; should there be none, only its bookkeeping is late.
        self.link.events.try_send(SessionEvent::Opened(self.link.slot)).ok();
        self.seat_waiting();
    }

    /// The first words of the session's record.
    pub(super) fn note_opened(&mut self) {
        let open = &self.open;
        let how = match open.opening {
            Opening::New => "new",
            Opening::Load(_) => "load",
            Opening::Resume(_) => "resume",
        };
        let params = json!({
            "how": how,
            "user": open.caller.user,
            "teams": open.caller.teams,
            "agent": &*open.berth.key.agent,
            "cwd": open.cwd.to_string_lossy(),
            "repository": repository(&open.cwd).map(|path| path.to_string_lossy().into_owned()),
            "connection": open.connection.to_string(),
        });
        self.recorder.note(note::SESSION_OPENED, &params);
        self.note_narrowed_first();
        self.note_routed(None);
        self.commit(Input::Nothing);
    }

    /// Whom it is bound to; once the agent has agreed, also in which way.
    pub(super) fn note_bound(&mut self, binding: &Binding, way: Option<Way>) {
        let params = json!({
            "binding": binding.id.to_string(),
            "process": binding.process().id.to_string(),
            "agent": &*self.open.berth.key.agent,
            "number": way.map(|_| self.routing.number),
            "picker": self.picks(),
            "agentSession": way.and_then(|_| serde_json::from_slice::<String>(&binding.name).ok()),
            "how": way.map(Way::name),
        });
        self.recorder.note(note::SESSION_BOUND, &params);
    }

    /// The last words of the record, with those to the editor, if any.
    pub(super) fn note_ended(&mut self, closed: Option<&Bytes>) {
        self.commit(Input::Nothing);
        if let Some(line) = closed {
            self.recorder.frame(Origin::Conductor, Destination::Editor, None, line);
        }
        let reason = match (&self.exit, self.closed, self.is_open) {
            (_, true, _) => "closed",
            (Some(_), ..) => "agent ended",
            (None, false, false) => "never opened",
            (None, false, true) => "editor left",
        };
        self.recorder.note(note::SESSION_ENDED, &json!({ "reason": reason }));
        self.hand.class = Class::Stop;
        self.commit(Input::Nothing);
        self.recorder.leave();
    }
}

/// The innermost directory above `cwd` that a version control system calls its
/// own; sessions are audited by it.
fn repository(cwd: &Path) -> Option<&Path> {
    cwd.ancestors().find(|path| [".git", ".hg", ".jj"].iter().any(|mark| path.join(mark).exists()))
}
