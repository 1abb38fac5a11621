//! How things end in a session: a turn, a request of the agent, the process,
//! the session itself. Whatever ends, everyone who waits gets one answer.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;
use tracing::debug;

use super::{Ask, Input, Purpose, Request, Session, Waiting, flight::Held};
use crate::{
    acp::{self, Refusal, code},
    agent::Exit,
    approvals::How,
    frame::{Kind, Method, Run},
    journal::Class,
    metrics::{Answered, TurnEnd},
};

/// What an editor hears that is still listening after it has left.
pub(super) const NO_CONNECTION: &str = "the connection to the service has ended; connect again";

/// What an agent hears whose request nobody will answer any more.
const NOBODY: &str = "nobody is there to answer this any more";

/// The answer to a request that nobody will answer.
pub(super) fn unanswered(agent_id: &[u8], method: Method) -> Bytes {
    match method {
        Method::RequestPermission => acp::result(agent_id, acp::CANCELLED_PERMISSION),
        Method::ElicitationCreate => acp::result(agent_id, acp::CANCELLED_ELICITATION),
        _ => Refusal::new(code::CANCELLED, NOBODY).frame(agent_id),
    }
}

impl Session {
    /// Whatever the editor still waits for: the connection is ending.
    pub(super) fn answer_rest(&mut self) {
        let why = if self.closed { "this session was closed" } else { NO_CONNECTION };
        let refusal = Refusal::new(code::AGENT_ENDED, why);
        if !self.is_asked {
            self.refuse_opening(&refusal);
        }
        for request in self.requests.drain(|request| !request.editor_id.is_empty()) {
            let answer = match request.purpose {
                Purpose::Prompt => acp::result(&request.editor_id, acp::CANCELLED_TURN),
                _ => refusal.frame(&request.editor_id),
            };
            self.answer(request.seat, answer);
        }
        self.cancel_queued(None);
        self.cancel_waiting(None);
        self.refuse_waiting(&refusal);
    }

    /// What the agent asked and nobody has taken note of yet.
    pub(super) fn refuse_agent(&mut self, late: Option<Run>) {
        let mut output = self.output.take();
        if let Some(output) = &mut output {
            output.close();
        }
        for run in late.into_iter().chain(std::iter::from_fn(|| output.as_mut()?.try_recv())) {
            for (bytes, peek) in run.iter().filter(|(_, peek)| peek.kind == Kind::Request) {
                let refusal = Refusal::new(code::CANCELLED, NOBODY);
                self.say_agent(refusal.frame(peek.id.of(bytes)), Class::Stop);
            }
            self.commit(Input::Run(&run));
        }
    }

    /// What was answered last still has to reach the editor, within reason.
    pub(super) async fn flush_editor(&mut self) {
        let timeout = self.open.editor_timeout;
        while let Some(Waiting { packet, after, .. }) = self.to_editor.pop_front() {
            // An effect that waits for the disk is void now.
            if after.is_some() {
                continue;
            }
            match tokio::time::timeout(timeout, self.link.out.reserve(packet.frames.len())).await {
                Ok(Ok(permit)) => permit.send(packet),
                _ => return,
            }
        }
    }

    /// Leaves the agent in good order: the turn is cancelled, nothing it asked
    /// stays unanswered, its session is closed.
    pub(super) fn leave(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.turn_ended();
            self.count_turn(turn.began, TurnEnd::Cancelled);
            self.tell_agent("session/cancel");
        }
        self.answer_asks(|_| true);
        self.close_at_agent();
    }

    /// Tells the agent that its session is not needed any more.
    pub(super) fn close_at_agent(&mut self) {
        if let Some(binding) = &self.binding
            && self.exit.is_none()
            && (self.is_open || self.exists_at_agent)
            && binding.process().hello.can("close")
        {
            let params =
                json!({ "sessionId": serde_json::from_slice::<String>(&binding.name).unwrap_or_default() });
            let id = self.number(Request::ours(Purpose::Close));
            self.say_agent(acp::call(Some(id.to_string()), "session/close", &params), Class::Stop);
        }
        self.commit(Input::Nothing);
        if let Some(binding) = &self.binding {
            // The process will see the end of its input after these. An effect
            // that waits for the disk is void now.
            for Waiting { packet, .. } in self.to_agent.drain(..).filter(|waiting| waiting.after.is_none()) {
                if binding.process().input().try_send(packet.frames.len(), packet.frames).is_err() {
                    break;
                }
            }
        }
    }

    /// The process has ended, and nothing that it said is left.
    pub(super) async fn agent_gone(&mut self, exit: Arc<Exit>) {
        self.survey_last().await;
        let tools = self.open_tools().await;
        self.agent_ended(exit, &tools);
        self.commit(Input::Nothing);
    }

    /// The process has ended: every request in flight gets its one answer, and
    /// tool calls that were under way have failed. What has waited for it to
    /// end goes on with another one.
    fn agent_ended(&mut self, exit: Arc<Exit>, tools: &[String]) {
        debug!(%exit, "the session's process has ended");
        let gone = Refusal::new(code::AGENT_ENDED, exit.to_string());
        if self.way.is_some() && self.asks_another(&gone) {
            // It has not even begun, so somebody else may.
            self.requests.drain(|_| true);
            (self.binding, self.way) = (None, None);
            return;
        }
        self.fail_tools(tools);
        if self.turn.as_ref().is_some_and(|turn| turn.cancelled.is_some()) {
            self.end_turn_cancelled();
        }
        let refusal = Refusal::new(code::AGENT_ENDED, exit.to_string());
        for request in self.requests.drain(|_| true) {
            if !request.editor_id.is_empty() {
                self.answer(request.seat, refusal.frame(&request.editor_id));
            }
        }
        if let Some(turn) = self.turn.take() {
            self.turn_ended();
            self.count_turn(turn.began, TurnEnd::Error);
        }
        for queued in std::mem::take(&mut self.queued) {
            self.answer_queued(queued, |id| refusal.frame(id));
        }
        self.withdraw(|_| true);
        // Nobody is left who knows these terminals.
        self.host.stop();
        self.judge.calls.forget();
        self.watched.forget();
        self.to_agent.clear();
        self.terminals.clear();
        self.ended = !self.is_open;
        self.exit = Some(exit);
        if self.way.take().is_some() {
            // It was to serve these.
            self.refuse_waiting(&refusal);
        }
        self.binding = None;
        self.is_parked = false;
        if !self.waiting.is_empty() {
            self.wake();
        }
    }

    pub(super) fn turn_ended(&mut self) {
        self.judge.turn_ended();
        self.router.turn_ended(self.open.id, self.recorder.last_seq());
    }

    pub(super) fn end_turn_cancelled(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        self.turn_ended();
        self.count_turn(turn.began, TurnEnd::Cancelled);
        if let Some(request) = self.requests.complete(turn.number) {
            self.answer(request.seat, acp::result(&request.editor_id, acp::CANCELLED_TURN));
        }
    }

    /// Answers requests of the agent with the safe default, and takes them
    /// back from the editor.
    pub(super) fn answer_asks(&mut self, which: impl Fn(&Ask) -> bool) {
        for ask in self.withdraw(which) {
            match ask.held {
                Some(Held::Opening) => {
                    self.refuse_opening(&Refusal::new(code::CANCELLED, "the MCP servers were not allowed"));
                }
                _ => self.say_agent(unanswered(&ask.agent_id, ask.method), Class::Stop),
            }
        }
    }

    /// Takes requests out of the table and tells the editor not to bother.
    pub(super) fn withdraw(&mut self, which: impl Fn(&Ask) -> bool) -> Vec<Ask> {
        let mut taken = Vec::new();
        while let Some((number, _)) = self.asks.find(&which) {
            let Some(mut ask) = self.asks.complete(number) else { break };
            if ask.is_permission() {
                self.count_answered(&ask, Answered::Cancelled);
                if ask.is_shown {
                    self.withdraw_from(number, None, None);
                }
                self.end_approval(&mut ask, How::Cancelled, None, "it was withdrawn");
            } else {
                let params = json!({ "requestId": self.editor_id(number) });
                self.say_editor(acp::call(None, "$/cancel_request", &params));
            }
            taken.push(ask);
            // It was not the agent that was slow.
            self.heard = Instant::now();
        }
        taken
    }
}
