//! Requests that concern the agent but no session: `authenticate`, `logout`.
//!
//! They go to a process leased for the purpose. What an agent keeps of a login
//! it keeps in its home, so the process of the next session finds it there.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::time::timeout;

use super::Connection;
use crate::{
    acp::{Refusal, code},
    frame::{Frame, Kind, Method, Run, splice},
    journal::Class,
    pending::WireId,
    pool::{Key, Pool},
    queue,
};

/// A person may have to act in a browser.
const TIMEOUT: Duration = Duration::from_secs(300);

impl Connection {
    pub(super) fn sideways(&mut self, frame: Frame) {
        let key = self.likely_key(self.initialized.unwrap_or_default());
        let (pool, journal) = (self.hub.pool.clone(), self.hub.journal.clone());
        self.record(&frame);
        let written = self.recorder.commit(Class::Effect);
        self.answers.spawn(async move {
            let id = frame.copy(frame.peek().id);
            let recorded = match written {
                Ok(Some(ticket)) => journal.released(ticket).await.map_err(|refused| refused.why),
                Ok(None) => Ok(()),
                Err(why) => Err(why),
            };
            if let Err(why) = recorded {
                return Refusal::new(code::NOT_RECORDED, &*why).frame(&id);
            }
            match timeout(TIMEOUT, ask(pool, key, &frame)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(refusal)) => refusal.frame(&id),
                Err(_) => Refusal::new(code::INTERNAL, "the agent did not answer in time").frame(&id),
            }
        });
    }
}

async fn ask(pool: Pool, key: Key, frame: &Frame) -> Result<Bytes, Refusal> {
    let ended = |why: String| Refusal::new(code::AGENT_ENDED, why);
    let lease = pool.lease(key).await.map_err(|why| ended(why.to_string()))?;
    let process = Arc::clone(&lease.process);
    if frame.peek().method == Method::Logout && !process.hello.can_logout() {
        let text = format!("agent `{}` does not offer logout", process.agent);
        return Err(Refusal::new(code::METHOD_NOT_FOUND, text));
    }
    let Some(mut place) = process.attach(None).await else {
        return Err(ended(process.exited().await.to_string()));
    };
    let id = WireId { slot: place.slot, number: 1 }.to_string();
    let mut line = BytesMut::new();
    splice(&mut line, frame.bytes(), [(frame.peek().id, id.as_bytes())]);
    if let Ok(room) = process.input().reserve(line.len()).await {
        room.send(line.freeze());
    }
    while let Some(run) = place.output.recv().await {
        if let Some(answer) = hear(&run, id.as_bytes(), process.input()) {
            let mut line = BytesMut::new();
            let peek = answer.peek();
            splice(&mut line, answer.bytes(), [(peek.id, frame.get(frame.peek().id))]);
            return Ok(line.freeze());
        }
    }
    Err(ended(process.exited().await.to_string()))
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
