//! Agents that a session has left but keeps for a while, in case it comes back.
//! What they still say is recorded and shown to nobody; what they ask is
//! answered with no.

use std::{future::poll_fn, task::Poll};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Binding, Session, Settled, Way, ending::unanswered, outbox::Input, picker::Told};
use crate::{
    acp,
    frame::{Kind, Run},
    pending::WireId,
    queue,
    record::{Destination, Origin},
};

/// Agents that one session keeps; the one it left first is let go for another.
const MOST: usize = 4;

/// The number of the last request to an agent that is let go. Nobody waits for its
/// answer.
const CLOSING: u32 = u32::MAX;

/// A binding that is not in use.
#[derive(Debug)]
pub(super) struct Resting {
    agent: String,
    binding: Binding,
    output: queue::Receiver<Run>,
    /// What it offers and is set to.
    options: Value,
    told: Told,
    shares_process: bool,
    until: Instant,
}

impl Session {
    /// Leaves the agent, which is kept for a while if it is worth that.
    pub(super) fn rest(&mut self) {
        let agent = self.agent().to_owned();
        let linger = self.open.berth.linger;
        let is_kept = !linger.is_zero() && self.exit.is_none() && self.way.is_none();
        if is_kept && let (Some(binding), Some(output)) = (self.binding.take(), self.output.take()) {
            if self.resting.len() >= MOST {
                let first = self.resting.remove(0);
                self.let_go(first);
            }
            self.to_agent.clear();
            let (options, told) = (self.options.take(), std::mem::take(&mut self.told));
            let until = Instant::now() + linger;
            let shares_process = self.open.berth.shares_process;
            self.resting.push(Resting { agent, binding, output, options, told, shares_process, until });
            return;
        }
        self.close_at_agent();
        self.unbind();
        if let Some(ended) = self.leaving.take() {
            self.ending.insert(agent, ended);
        }
    }

    /// Goes back to the agent at hand, if it was kept and lives; whether it does.
    pub(super) fn go_back(&mut self) -> bool {
        let agent = self.agent().to_owned();
        let Some(at) = self.resting.iter().position(|resting| resting.agent == agent) else { return false };
        let resting = self.resting.remove(at);
        if resting.binding.process().is_ending() {
            self.let_go(resting);
            return false;
        }
        let Resting { binding, output, options, told, .. } = resting;
        self.agent_session = binding.name.clone();
        (self.options, self.told) = (options, told);
        (self.binding, self.output) = (Some(binding), Some(output));
        (self.way, self.exit) = (Some(Way::Back), None);
        self.settled = Some(Settled { way: Way::Back, answer: None });
        true
    }

    /// When the next one is let go.
    pub(super) fn rest_due(&self) -> Option<Instant> {
        self.resting.iter().map(|resting| resting.until).min()
    }

    /// Lets go those whose time is over, or all.
    pub(super) fn release_resting(&mut self, all: bool) {
        let now = Instant::now();
        let (gone, stays) =
            std::mem::take(&mut self.resting).into_iter().partition(|resting| all || resting.until <= now);
        self.resting = stays;
        let gone: Vec<Resting> = gone;
        gone.into_iter().for_each(|resting| self.let_go(resting));
    }

    fn let_go(&mut self, mut resting: Resting) {
        let process = resting.binding.process().clone();
        resting.output.close();
        while let Some(run) = resting.output.try_recv() {
            self.late(&resting, &run);
        }
        if process.hello.can("close") && !process.is_ending() {
            let id = WireId { slot: resting.binding.slot, number: CLOSING }.to_string();
            let name: String = serde_json::from_slice(&resting.binding.name).unwrap_or_default();
            let line = acp::call(Some(id), "session/close", &json!({ "sessionId": name }));
            self.recorder.frame(Origin::Conductor, Destination::Agent, None, &line);
            process.input().try_send(line.len(), line).ok();
        }
        if !resting.shares_process {
            self.ending.insert(resting.agent, process.ended());
        }
        self.commit(Input::Nothing);
    }

    /// Something that an agent says which was left.
    pub(super) fn heard_late(&mut self, at: usize, run: Option<Run>) {
        if at >= self.resting.len() {
            return;
        }
        let resting = self.resting.remove(at);
        match run {
            Some(run) => {
                self.late(&resting, &run);
                self.resting.insert(at, resting);
            }
            None => self.let_go(resting),
        }
        self.commit(Input::Nothing);
    }

    fn late(&mut self, resting: &Resting, run: &Run) {
        self.recorder.run(Origin::Agent, Destination::Record, &[], run);
        for (bytes, peek) in run.iter().filter(|(_, peek)| peek.kind == Kind::Request) {
            let answer = unanswered(peek.id.of(bytes), peek.method);
            self.recorder.frame(Origin::Conductor, Destination::Agent, None, &answer);
            resting.binding.process().input().try_send(answer.len(), answer).ok();
        }
    }
}

/// The next thing that one of them says, and which one; `None` for its end.
pub(super) async fn late_word(resting: &mut [Resting]) -> (usize, Option<Run>) {
    poll_fn(|cx| {
        for (at, resting) in resting.iter_mut().enumerate() {
            if let Poll::Ready(run) = resting.output.poll_recv(cx) {
                return Poll::Ready((at, run));
            }
        }
        Poll::Pending
    })
    .await
}
