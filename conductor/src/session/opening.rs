//! How a session comes to be: a lease, a place at the process, the opening
//! request, and an entry in the table once the agent has answered.

use std::{path::Path, pin::pin, time::SystemTime};

use bytes::{Bytes, BytesMut};
use serde_json::json;
use uuid::Uuid;

use super::{Binding, Input, MAX_QUEUED_PROMPTS, Opening, Purpose, Request, Session, SessionEvent, ending};
use crate::{
    acp::{AgentHello, Refusal, code},
    frame::{Frame, Method, Run, splice},
    journal::Class,
    pool::Pool,
    queue,
    record::{Destination, Origin, note},
    router::Entry,
};

impl Session {
    /// Leases a process and takes a place at it. What the editor says
    /// meanwhile is held.
    pub(super) async fn bind(
        &mut self,
        pool: Pool,
        input: &mut queue::Receiver<Frame>,
        held: &mut Vec<Frame>,
    ) -> Option<queue::Receiver<Run>> {
        let known = match &self.open.opening {
            Opening::New => None,
            Opening::Load(name) | Opening::Resume(name) => Some(name.clone()),
        };
        let key = self.open.key.clone();
        let name = known.clone().unwrap_or_default();
        let mut attached = pin!(async {
            let lease = pool.lease(key).await.map_err(|why| why.to_string())?;
            match lease.process.attach(known).await {
                Some(attachment) => Ok((lease, attachment)),
                None => Err(lease.process.exited().await.to_string()),
            }
        });
        loop {
            tokio::select! {
                attached = &mut attached => match attached {
                    Ok((lease, attachment)) => {
                        if let Some(refusal) = self.cannot_reopen(&lease.process.hello) {
                            self.refuse_opening(&refusal);
                            return None;
                        }
                        let binding = Binding { id: Uuid::now_v7(), lease, slot: attachment.slot, name };
                        self.note_bound(&binding);
                        self.binding = Some(binding);
                        return Some(attachment.output);
                    }
                    Err(why) => {
                        self.refuse_opening(&Refusal::new(code::AGENT_ENDED, why));
                        return None;
                    }
                },
                frame = input.recv() => {
                    let Some(frame) = frame else {
                        self.refuse_opening(&Refusal::new(code::AGENT_ENDED, ending::NO_CONNECTION));
                        return None;
                    };
                    let peek = frame.peek();
                    let opening = self.open.request.get(self.open.request.peek().id);
                    if peek.method == Method::CancelRequest && frame.get(peek.request_id) == opening {
                        let text = "cancelled before the agent was ready";
                        self.refuse_opening(&Refusal::new(code::CANCELLED, text));
                        self.commit(Input::Frame(&frame));
                        return None;
                    }
                    if held.len() < MAX_QUEUED_PROMPTS {
                        held.push(frame);
                    } else {
                        self.refuse(&frame, code::LIMIT, "too much is waiting for this session to open");
                        self.commit(Input::Frame(&frame));
                    }
                }
            }
        }
    }

    /// Why this agent cannot open the session in the way that is asked for.
    fn cannot_reopen(&self, hello: &AgentHello) -> Option<Refusal> {
        let (able, what) = match self.open.opening {
            Opening::New => return None,
            Opening::Load(_) => (hello.can_load(), "session/load"),
            Opening::Resume(_) => (hello.can("resume"), "session/resume"),
        };
        let text = || format!("agent `{}` does not offer {what}", self.open.key.agent);
        (!able).then(|| Refusal::new(code::METHOD_NOT_FOUND, text()))
    }

    /// Passes the opening request on to the agent.
    pub(super) fn ask_to_open(&mut self) {
        let Some(binding) = &self.binding else { return };
        let request = self.open.request.clone();
        let peek = request.peek();
        // Null means none; agents differ in whether they take it.
        let mcp = request.get(peek.mcp_servers);
        let servers = if mcp == b"null" { peek.mcp_servers } else { Default::default() };
        let name = binding.name.clone();
        let editor_id = request.copy(peek.id);
        let id = self.number(Request { purpose: Purpose::Open, editor_id });
        self.outgoing.push((0, id.value()));
        let mut out = BytesMut::new();
        splice(
            &mut out,
            request.bytes(),
            [(peek.id, id.to_string().as_bytes()), (peek.session, &name), (servers, b"[]")],
        );
        self.relay_agent(out.freeze(), Class::Effect);
        self.commit(Input::Frame(&request));
    }

    /// Answers the opening request, which has not been passed on.
    fn refuse_opening(&mut self, refusal: &Refusal) {
        let request = self.open.request.clone();
        self.answer_opening(refusal);
        self.commit(Input::Frame(&request));
    }

    pub(super) fn answer_opening(&mut self, refusal: &Refusal) {
        let request = self.open.request.clone();
        self.say_editor(refusal.frame(request.get(request.peek().id)));
        self.ended = true;
    }

    /// The agent has opened the session: from now on it has a place in the
    /// table.
    pub(super) fn opened(&mut self) {
        self.is_open = true;
        let Some(binding) = &self.binding else { return };
        let entry = Entry {
            owner: self.open.caller.user.clone(),
            agent: self.open.key.agent.clone(),
            cwd: self.open.cwd.clone(),
            agent_session: binding.name.clone(),
            title: None,
            updated: SystemTime::now(),
            live: Some(self.open.close.clone()),
        };
        if matches!(self.open.opening, Opening::New) {
            self.router.opened(self.open.id, entry);
        } else {
            self.router.reopened(self.open.id, self.open.close.clone());
        }
        // The connection takes its events before anything else, so there is
        // room; should there be none, only its bookkeeping is late.
        self.link.events.try_send(SessionEvent::Opened(self.link.slot)).ok();
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
            "agent": &*open.key.agent,
            "cwd": open.cwd.to_string_lossy(),
            "repository": repository(&open.cwd).map(|path| path.to_string_lossy().into_owned()),
            "connection": open.connection.to_string(),
        });
        self.recorder.note(note::SESSION_OPENED, &params);
    }

    fn note_bound(&mut self, binding: &Binding) {
        let params = json!({
            "binding": binding.id.to_string(),
            "process": binding.process().id.to_string(),
            "agentSession": serde_json::from_slice::<String>(&binding.name).ok(),
        });
        self.recorder.note(note::SESSION_BOUND, &params);
    }

    /// The last words of the record, with those to the editor, if any.
    pub(super) fn note_ended(&mut self, closed: Option<&Bytes>) {
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
        self.class = Class::Stop;
        self.commit(Input::Nothing);
        self.recorder.leave();
    }
}

/// The innermost directory above `cwd` that a version control system calls its
/// own; sessions are audited by it.
fn repository(cwd: &Path) -> Option<&Path> {
    cwd.ancestors().find(|path| [".git", ".hg", ".jj"].iter().any(|mark| path.join(mark).exists()))
}
