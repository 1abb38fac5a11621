//! The editor's handshake: what the conductor can do together with its agents, and how
//! people log in to them.

use std::sync::Arc;

use serde_json::Value;

use super::{Connection, may_use};
use crate::{
    acp::{self, EditorCapabilities, Refusal, code, login},
    catalogue::listing::is_offered,
    frame::Frame,
    identity::Person,
    pool::{AgentStatus, Purpose},
};

impl Connection {
    pub(super) fn initialize(&mut self, frame: &Frame) {
        let params: Value = frame.decode(frame.peek().params).unwrap_or_default();
        if params["protocolVersion"].as_u64().is_none_or(|version| version > u64::from(u16::MAX)) {
            let text = "initialize needs protocolVersion, a number";
            return self.refuse(frame, Refusal::new(code::INVALID_PARAMS, text));
        }
        self.record(frame);
        // A second handshake is answered like the first and changes nothing.
        let able = *self.initialized.get_or_insert_with(|| EditorCapabilities::parse(&params));
        let id = frame.copy(frame.peek().id);
        let (pool, key) = (self.hub.pool.clone(), self.likely_key(able));
        let may_start = may_use(&self.hub, &self.caller, &key.agent).is_ok();
        if may_start && self.greeting.cwd.is_some() {
            pool.warm(key.clone());
        }
        let config = self.hub.config.borrow().clone();
        let person = Person::owner(&self.caller.user, &self.caller);
        let may_ask = |status: &&AgentStatus| {
            let has_ways = status.hellos.of(&person).is_some_and(|hello| !hello.methods().is_empty());
            (has_ways || status.name == key.agent) && may_use(&self.hub, &self.caller, &status.name).is_ok()
        };
        let agents = pool.status().borrow().clone();
        let allowed: Vec<Arc<str>> =
            agents.iter().filter(may_ask).map(|status| status.name.clone()).collect();
        self.answer_later(id.clone(), async move {
            let own = key.agent.clone();
            let hello = match may_start {
                true => pool.hello(key, &person.user, Purpose::Greeting).await.ok(),
                false => None,
            };
            let agents = pool.status().borrow().clone();
            let is_offered = |status: &&AgentStatus| {
                let agent = config.agents.get(&*status.name);
                agent.is_some_and(|agent| is_offered(agent, &config.default))
            };
            // To those that were never started for them nobody can have had to log in.
            let known = agents.iter().filter_map(|status| Some((status, status.hellos.of(&person)?)));
            let methods: Vec<Value> = known
                .filter(|(status, _)| is_offered(status) || status.name == own)
                .filter(|(status, _)| allowed.contains(&status.name))
                .flat_map(|(status, hello)| {
                    login::offered(&status.name, &status.title, hello, able.auth_terminal)
                })
                .collect();
            let others = agents.iter().filter(is_offered).filter_map(|status| status.hellos.of(&person));
            let answer = acp::initialize_editor(hello.as_deref(), others.map(|hello| &**hello), &methods);
            acp::result(&id, answer.to_string().as_bytes())
        });
    }
}
