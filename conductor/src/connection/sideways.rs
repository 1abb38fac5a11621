//! Requests that concern an agent but no session: `authenticate`, `logout`.
//!
//! They go to a process leased for the purpose. What an agent keeps of a login
//! it keeps in its home, so the process of the next session finds it there; those
//! that were started ahead are replaced.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use serde_json::Value;
use tokio::time::timeout;

use super::{Connection, may_use};
use crate::{
    acp::{Refusal, code, login},
    config::Home,
    frame::{self, Frame, Kind, Method, Run, splice},
    journal::Class,
    pending::WireId,
    pool::{Key, Pool},
    queue,
    redact::Known,
};

/// A person may have to act in a browser.
const TIMEOUT: Duration = Duration::from_secs(300);

impl Connection {
    pub(super) fn sideways(&mut self, frame: Frame) {
        let (key, method) = match self.addressee(&frame) {
            Ok(addressee) => addressee,
            Err(refusal) => return self.refuse(&frame, refusal),
        };
        let (pool, journal) = (self.hub.pool.clone(), self.hub.journal.clone());
        let user = self.caller.user.clone();
        self.record(&frame);
        let known = self.recorder.known().clone();
        let written = self.recorder.commit(Class::Effect);
        let id = frame.copy(frame.peek().id);
        self.answer_later(id.clone(), async move {
            let recorded = match written {
                Ok(Some(ticket)) => journal.released(ticket).await.map_err(|refused| refused.why),
                Ok(None) => Ok(()),
                Err(why) => Err(why),
            };
            if let Err(why) = recorded {
                return Refusal::new(code::NOT_RECORDED, &*why).frame(&id);
            }
            match timeout(TIMEOUT, ask(pool, key, &user, &frame, method, &known)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(refusal)) => refusal.frame(&id),
                Err(_) => Refusal::new(code::INTERNAL, "the agent did not answer in time").frame(&id),
            }
        });
    }

    /// Whose affair it is, and the agent's own name of the way to log in: as
    /// `AGENT/METHOD`, or else as the agent of this connection calls it.
    fn addressee(&self, frame: &Frame) -> Result<(Key, Option<String>), Refusal> {
        let (key, method) = self.named(frame)?;
        may_use(&self.hub, &self.caller, &key.agent)?;
        let config = self.hub.config.borrow().clone();
        let is_own = config.agents.get(&*key.agent).is_some_and(|agent| agent.home == Home::User);
        if !is_own && !self.caller.is_admin() {
            return Err(Refusal::new(code::DENIED, login::shared_home(&key.agent)));
        }
        Ok((key, method))
    }

    fn named(&self, frame: &Frame) -> Result<(Key, Option<String>), Refusal> {
        let able = self.initialized.unwrap_or_default();
        if frame.peek().method == Method::Logout {
            return Ok((self.likely_key(able), None));
        }
        let params: Value = frame.decode(frame.peek().params).unwrap_or_default();
        let id = params["methodId"].as_str().ok_or_else(|| {
            Refusal::new(code::INVALID_PARAMS, "authenticate needs a methodId, as initialize has told it")
        })?;
        let agents = &self.hub.config.borrow().agents;
        match id.split_once('/').filter(|(agent, _)| agents.contains_key(*agent)) {
            Some((agent, method)) => Ok((self.likely_key_of(agent.into(), able), Some(method.to_owned()))),
            None => Ok((self.likely_key(able), None)),
        }
    }
}

async fn ask(
    pool: Pool,
    key: Key,
    user: &str,
    frame: &Frame,
    method: Option<String>,
    known: &Known,
) -> Result<Bytes, Refusal> {
    let ended = |why: String| Refusal::new(code::AGENT_ENDED, why);
    let agent = key.agent.clone();
    let lease = pool.lease(key, user).await.map_err(|why| why.refusal())?;
    let process = Arc::clone(&lease.process);
    process.is_told(known);
    if let Some(wanted) = &method {
        check(&process.hello.methods(), wanted, &agent)?;
    }
    if frame.peek().method == Method::Logout && !process.hello.can_logout() {
        let text = format!("agent `{}` does not offer logout", process.agent);
        return Err(Refusal::new(code::METHOD_NOT_FOUND, text));
    }
    let Some(mut place) = process.attach(None).await else {
        return Err(ended(process.exited().await.to_string()));
    };
    let id = WireId { slot: place.slot, number: 1 }.to_string();
    // Only the name of the way is ours; what else is said passes.
    let mut params: Value = frame.decode(frame.peek().params).unwrap_or_default();
    let renamed = match method {
        Some(method) => {
            params["methodId"] = method.into();
            (frame.peek().params, params.to_string())
        }
        None => Default::default(),
    };
    let mut line = BytesMut::new();
    let edits = [(frame.peek().id, id.as_bytes()), (renamed.0, renamed.1.as_bytes())];
    splice(&mut line, frame.bytes(), edits);
    if let Ok(room) = process.input().reserve(line.len()).await {
        room.send(line.freeze());
    }
    while let Some(run) = place.output.recv().await {
        if let Some(answer) = hear(&run, id.as_bytes(), process.input()) {
            let mut line = BytesMut::new();
            let peek = answer.peek();
            splice(&mut line, answer.bytes(), [(peek.id, frame.get(frame.peek().id))]);
            if peek.kind == Kind::Result {
                pool.replace(&agent, user).await;
            }
            return Ok(line.freeze());
        }
    }
    Err(ended(process.exited().await.to_string()))
}

/// Refuses ways to log in that the agent does not offer, or not by `authenticate`.
fn check(methods: &[login::Method], wanted: &str, agent: &str) -> Result<(), Refusal> {
    let command = login::command(agent);
    let text = match methods.iter().find(|method| method.id == wanted) {
        Some(login::Method { terminal: None, .. }) => return Ok(()),
        Some(_) => format!("this is done in a terminal: run `{command} --method {wanted}`"),
        None => {
            let ids: Vec<&str> = methods.iter().map(|method| method.id.as_str()).collect();
            let ids = if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
            let wanted = frame::escape(wanted.as_bytes(), 100);
            format!("agent `{agent}` has no way `{wanted}` to log in; its ways are: {ids}")
        }
    };
    Err(Refusal::new(code::INVALID_PARAMS, text))
}

/// Finds the answer; whatever the agent asks meanwhile has no session that
/// could be asked.
fn hear(run: &Run, id: &[u8], input: &queue::Sender<Bytes>) -> Option<Frame> {
    for index in 0..run.len() {
        let frame = run.frame(index);
        let peek = frame.peek();
        match peek.kind {
            Kind::Result | Kind::Error if frame.get(peek.id) == id => return Some(frame),
            Kind::Request => {
                let text = "no session is open that this could be asked in";
                let refusal = Refusal::new(code::METHOD_NOT_FOUND, text).frame(frame.get(peek.id));
                input.try_send(refusal.len(), refusal).ok();
            }
            _ => {}
        }
    }
    None
}
