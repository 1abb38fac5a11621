//! Our own notes, and the handshakes of processes and connections.

use uuid::Uuid;

use super::{
    LINE, NAME, PATH, Step, TEXT,
    json::{column, cut, dig, elements, int, pick, short, text},
    tools::join,
    waiting::Waiting,
};
use crate::{
    frame::{Kind, Method},
    ledger::table::{BINDINGS, CONNECTIONS, DECISIONS, Fact, PROCESSES, Value},
    record::{Origin, note},
};

impl Step<'_> {
    /// What we noted, in the stream it is about.
    pub(super) fn note(&mut self, method: &str) {
        let params = self.get(self.peek.params).unwrap_or_default();
        match method {
            note::CONNECTED => {
                let [user, teams, client] = pick(params, ["user", "teams", "client"]);
                let fact = self.connection_row().set("opened_us", self.at());
                let fact = fact.set("user_name", short(user, NAME)).set("team", joined(teams));
                self.facts.push(fact.set("client", client.and_then(product)));
            }
            note::DISCONNECTED => {
                let [reason] = pick(params, ["reason"]);
                let fact = self.connection_row().set("closed_us", self.at());
                self.facts.push(fact.set("close_reason", short(reason, LINE)));
            }
            note::PROCESS_STARTED => self.process_started(params),
            note::PROCESS_ENDED => self.process_ended(params),
            note::SESSION_OPENED => self.opened(params),
            note::SESSION_BOUND => self.bound(params),
            note::SESSION_ENDED => self.ended(params),
            note::BY => {
                self.state.next = std::mem::take(&mut self.told);
                self.state.next.by = short(pick(params, ["user"])[0], NAME);
            }
            note::JUDGED => self.judged(params),
            note::DECLINED => {
                self.state.next = std::mem::take(&mut self.told);
                self.state.next.is_declined = true;
            }
            // Who is seated, whom it is shared with: that is in the frames alone.
            _ => {}
        }
    }

    /// A frame of a process that concerns no session: its handshake tells who
    /// it is.
    pub(super) fn process(&mut self) {
        if self.peek.kind != Kind::Result || self.frame.origin != Origin::Agent {
            return;
        }
        let result = self.get(self.peek.outcome).unwrap_or_default();
        let [version, info] = pick(result, ["protocolVersion", "agentInfo"]);
        if version.is_some() {
            let [name, version] = info.map(|info| pick(info, ["name", "version"])).unwrap_or_default();
            let fact = self.process_row().set("ready_us", self.at());
            self.facts
                .push(fact.set("agent_name", short(name, NAME)).set("agent_version", short(version, NAME)));
        }
    }

    /// A frame of an editor that concerns no session.
    pub(super) fn connection(&mut self) {
        if self.peek.method != Method::Initialize || self.frame.origin != Origin::Editor {
            return;
        }
        let client = self.get(self.peek.params).and_then(|params| dig(params, &["clientInfo"]));
        self.facts.push(self.connection_row().set("client", client.and_then(product)));
    }

    fn connection_row(&self) -> Fact {
        Fact::new(CONNECTIONS, [self.id().into()])
    }

    fn process_row(&self) -> Fact {
        Fact::new(PROCESSES, [self.id().into()])
    }

    /// What the policy said to a request. Where that asks for a permission, its answer
    /// tells what was decided; all else is decided by the verdict.
    fn judged(&mut self, params: &str) {
        let [seq, method, verdict, rule, reason] =
            pick(params, ["seq", "method", "decision", "rule", "reason"]);
        let [rules, revision, actions, took] = pick(params, ["rules", "revision", "subActions", "tookUs"]);
        let Some(seq) = seq.and_then(int) else { return };
        let (method, verdict) = (short(method, NAME), short(verdict, NAME));
        let mut fact = self.row(DECISIONS, [self.id().into(), seq.into()]);
        if method.as_deref() != Some("session/request_permission") {
            fact.put("decision", if verdict.as_deref() == Some("deny") { "reject" } else { "allow" });
            // What the rules leave to people here, a person has asked for.
            let by = if verdict.as_deref() == Some("ask") { Origin::Editor } else { self.frame.origin };
            fact.put("decided_by", by.name());
            fact.put("asked_us", self.at());
            fact.put("decided_us", self.at());
        }
        fact.put("method", method);
        fact.put("verdict", verdict);
        fact.put("rule", short(rule, NAME));
        fact.put("reason", short(reason, LINE));
        fact.put("rules", column(rules));
        fact.put("policy_revision", short(revision, NAME));
        fact.put("sub_actions", column(actions));
        fact.put("judging_us", took.and_then(int));
        self.facts.push(fact);
    }

    fn process_started(&mut self, params: &str) {
        let [agent, command, args, cwd, pid] = pick(params, ["agent", "command", "args", "cwd", "pid"]);
        let words = command.into_iter().chain(args.into_iter().flat_map(elements)).filter_map(text);
        let fact = self.process_row().set("agent", short(agent, NAME)).set("pid", pid.and_then(int));
        let fact = fact.set("command", cut(&join(words), TEXT)).set("cwd", short(cwd, PATH));
        self.facts.push(fact.set("started_us", self.at()));
    }

    fn process_ended(&mut self, params: &str) {
        let [reason, code, signal, crashed, stderr] =
            pick(params, ["reason", "code", "signal", "crashed", "stderr"]);
        let crashed = match crashed {
            Some("true") => Value::Bool(true),
            Some("false") => Value::Bool(false),
            _ => Value::Null,
        };
        let fact = self.process_row().set("ended_us", self.at()).set("end_reason", short(reason, LINE));
        let fact = fact.set("exit_code", code.and_then(int)).set("exit_signal", signal.and_then(word));
        self.facts.push(fact.set("crashed", crashed).set("stderr_tail", short(stderr, TEXT)));
    }

    fn opened(&mut self, params: &str) {
        // Whatever was under way when the record broke off is not any more.
        self.end_turns("the session was opened again before an answer came");
        self.state.waiting = Waiting::default();
        let [how, user, teams, agent, cwd, repository, connection] =
            pick(params, ["how", "user", "teams", "agent", "cwd", "repository", "connection"]);
        self.state.how = short(how, NAME);
        if self.state.how.as_deref() == Some("new") {
            self.state.cost = None;
        }
        let again = std::mem::replace(&mut self.state.opened, true);
        // Whoever opens it again, it stays with the one who opened it first.
        if !again || self.state.user.is_none() {
            self.state.user = short(user, NAME).or(self.state.user.take());
            self.state.team = joined(teams).or(self.state.team.take());
        }
        self.state.agent = short(agent, NAME).or(self.state.agent.take());
        let at = self.at();
        let session = &mut self.session;
        session.put(if again { "reopened_us" } else { "opened_us" }, at);
        session.put("user_name", self.state.user.clone());
        session.put("team", self.state.team.clone());
        session.put("agent", self.state.agent.clone());
        session.put("cwd", short(cwd, PATH));
        session.put("repository", short(repository, PATH));
        session.put("connection_id", connection.and_then(id));
    }

    fn bound(&mut self, params: &str) {
        let [binding, process, agent_session, agent, how] =
            pick(params, ["binding", "process", "agentSession", "agent", "how"]);
        let Some(binding) = binding.and_then(id) else { return };
        if let Some(agent) = short(agent, NAME) {
            self.session.put("agent", agent.clone());
            self.state.agent = Some(agent);
        }
        if self.state.binding != Some(binding) {
            self.end_binding();
            self.state.forget_agent();
            self.state.binding = Some(binding);
        }
        let fact = Fact::new(BINDINGS, [binding.into()]).set("session_id", self.id()).set("seq", self.seq());
        let fact = fact.set("process_id", process.and_then(id)).set("agent", self.state.agent.clone());
        let fact = fact
            .set("agent_session", short(agent_session, NAME))
            .set("how", short(how, NAME).or(self.state.how.clone()));
        self.facts.push(fact.set("bound_us", self.at()));
    }

    fn ended(&mut self, params: &str) {
        let [reason] = pick(params, ["reason"]);
        let reason = short(reason, LINE);
        self.end_turns(&format!("the session ended: {}", reason.as_deref().unwrap_or("no reason was given")));
        self.end_binding();
        self.state.forget_agent();
        // Nobody is left who waits, and the ids of requests begin anew.
        self.state.waiting = Waiting::default();
        self.state.replaying = false;
        let (at, seq) = (self.at(), self.seq());
        self.session.put("ended_us", at);
        self.session.put("ended_seq", seq);
        self.session.put("end_reason", reason);
    }

    fn end_binding(&mut self) {
        if let Some(binding) = self.state.binding.take() {
            self.facts.push(Fact::new(BINDINGS, [binding.into()]).set("ended_us", self.at()));
        }
    }
}

/// An id of ours.
fn id(json: &str) -> Option<Uuid> {
    Uuid::parse_str(&text(json)?).ok()
}

/// Teams as one text.
fn joined(teams: Option<&str>) -> Option<String> {
    let teams: Vec<_> = elements(teams?).filter_map(|team| short(Some(team), NAME)).collect();
    (!teams.is_empty()).then(|| cut(&teams.join(","), NAME))
}

/// A signal, by its name or its number.
fn word(json: &str) -> Option<String> {
    short(Some(json), NAME).or_else(|| int(json).map(|number| number.to_string()))
}

/// Name and version of a program, or what stands there instead.
fn product(json: &str) -> Option<String> {
    let [name, version] = pick(json, ["name", "version"]);
    let name = short(name, NAME).or_else(|| short(Some(json), NAME))?;
    Some(match short(version, NAME) {
        Some(version) => format!("{name} {version}"),
        None => name,
    })
}
