//! Our own notes, and the handshakes of processes and connections.

use uuid::Uuid;

use super::{
    LINE, NAME, PATH, Step, TEXT,
    json::{column, cut, dig, elements, int, pick, short, text},
    waiting::Waiting,
};
use crate::{
    frame::{Kind, Method},
    ledger::table::{
        BINDINGS, CONNECTIONS, DECISIONS, Fact, GRANT_USES, GRANTS, MODELS, PROCESSES, ROUTES_TAKEN, Value,
    },
    policy::text::join,
    record::{Origin, note},
};

/// Models, or modes, of one note that are kept; no agent has so many.
const MOST_CHOICES: usize = 1000;

/// Whether a column holds JSON exactly as it was recorded.
fn is_kept(json: Option<&str>, kept: &Value) -> bool {
    matches!((json, kept), (Some(json), Value::Json(kept)) if json == kept)
}

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
            note::LEFTOVERS_ENDED => self.leftovers_ended(params),
            note::PROCESS_ENDED => self.process_ended(params),
            note::CATALOGUE => self.catalogue(params),
            note::ROUTED => self.routed(params),
            note::SESSION_OPENED => self.opened(params),
            note::SESSION_BOUND => self.bound(params),
            note::SESSION_ENDED => self.ended(params),
            note::BY => {
                self.state.next = std::mem::take(&mut self.told);
                self.state.next.by = short(pick(params, ["user"])[0], NAME);
            }
            note::JUDGED => self.judged(params),
            note::ASKED => self.asked(params),
            note::ANSWERED => self.answered_by_people(params),
            note::GRANTED => self.granted(params),
            note::GRANT_USED => self.grant_used(params),
            note::GRANT_REVOKED => self.grant_revoked(params),
            note::UNMEDIATED => self.unmediated(params),
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
        let [ruled, subject, asks] = pick(params, ["ruled", "subject", "asks"]);
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
        let (actions, who) = ((actions, column(actions)), (subject, column(subject)));
        let terms = asks.map(|asks| (Some(asks), column(Some(asks))));
        // Rows of before say nothing of it.
        let all = || [&actions, &who].into_iter().chain(&terms);
        let is_whole = ruled.map(|_| all().all(|(json, kept)| is_kept(*json, kept)));
        fact.put("sub_actions", actions.1);
        fact.put("judging_us", took.and_then(int));
        fact.put("ruled", short(ruled, NAME));
        fact.put("subject", who.1);
        fact.put("is_whole", is_whole);
        fact.put("terms", terms.map_or(Value::Null, |(_, kept)| kept));
        self.facts.push(fact);
    }

    /// An answer is remembered.
    fn granted(&mut self, params: &str) {
        let [grant, scope, name, by, teams] = pick(params, ["grant", "scope", "scopeName", "by", "teams"]);
        let [what, parts, reason, expires, most] =
            pick(params, ["what", "parts", "reason", "expiresUs", "mostUses"]);
        let Some(grant) = grant.and_then(id) else { return };
        let scope = short(scope, NAME);
        let session = name.and_then(id).filter(|_| scope.as_deref() == Some("session"));
        let fact = Fact::new(GRANTS, [grant.into()]).set("scope", scope).set("scope_name", short(name, PATH));
        let fact = fact.set("session_id", session).set("author", short(by, NAME)).set("team", joined(teams));
        let fact = fact.set("reason", short(reason, LINE)).set("what", short(what, TEXT));
        let fact = fact.set("parts", column(parts)).set("given_us", self.at());
        let fact = fact.set("expires_us", expires.and_then(int)).set("most_uses", most.and_then(int));
        self.facts.push(fact.set("uses", 0i64));
    }

    fn grant_used(&mut self, params: &str) {
        let [grant, request, number, left, actions] =
            pick(params, ["grant", "seq", "number", "left", "subActions"]);
        let Some(grant) = grant.and_then(id) else { return };
        let number = number.and_then(int);
        let mut fact = self.row(GRANT_USES, [self.id().into(), self.seq().into()]);
        fact.put("grant_id", grant);
        fact.put("request", request.and_then(int));
        fact.put("number", number);
        fact.put("uses_left", left.and_then(int));
        fact.put("sub_actions", column(actions));
        fact.put("at_us", self.at());
        self.facts.push(fact);
        let of = Fact::new(GRANTS, [grant.into()]);
        self.facts.push(of.set("uses", number).set("last_used_us", self.at()));
    }

    fn grant_revoked(&mut self, params: &str) {
        let [grant, by, reason] = pick(params, ["grant", "by", "reason"]);
        let Some(grant) = grant.and_then(id) else { return };
        let fact = Fact::new(GRANTS, [grant.into()]).set("revoked_us", self.at());
        self.facts.push(fact.set("revoked_by", short(by, NAME)).set("end_reason", short(reason, LINE)));
    }

    fn process_started(&mut self, params: &str) {
        let [agent, command, args, cwd, pid, sandbox] =
            pick(params, ["agent", "command", "args", "cwd", "pid", "sandbox"]);
        let words = command.into_iter().chain(args.into_iter().flat_map(elements)).filter_map(text);
        let fact = self.process_row().set("agent", short(agent, NAME)).set("pid", pid.and_then(int));
        let fact = fact.set("command", cut(&join(words), TEXT)).set("cwd", short(cwd, PATH));
        let mut fact = fact.set("started_us", self.at());
        if let Some(sandbox) = sandbox.filter(|sandbox| sandbox.starts_with('{')) {
            let [mode, layers, missing] = pick(sandbox, ["mode", "layers", "missing"]);
            let layers = layers.into_iter().flat_map(elements).filter_map(text);
            let missing = missing.into_iter().flat_map(elements).filter_map(|missing| {
                let [layer, why] = pick(missing, ["layer", "why"]);
                Some(format!("{}: {}", short(layer, NAME)?, short(why, LINE)?))
            });
            let (layers, missing): (Vec<_>, Vec<_>) = (layers.collect(), missing.collect());
            let (layers, missing) = (layers.join(", "), missing.join("; "));
            fact = fact.set("sandbox_mode", short(mode, NAME)).set("sandbox", cut(&layers, LINE));
            fact = fact.set("sandbox_missing", cut(&missing, LINE));
        }
        self.facts.push(fact);
    }

    fn leftovers_ended(&mut self, params: &str) {
        let [processes] = pick(params, ["processes"]);
        let count = processes.into_iter().flat_map(elements).count();
        self.facts.push(self.process_row().set("leftovers", i64::try_from(count).unwrap_or(i64::MAX)));
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

    /// What an agent offers.
    fn catalogue(&mut self, params: &str) {
        let [agent, version, models, modes] = pick(params, ["agent", "version", "models", "modes"]);
        let Some(agent) = short(agent, NAME) else { return };
        let version = short(version, NAME);
        for (kind, list) in [("model", models), ("mode", modes)] {
            for entry in list.into_iter().flat_map(elements).take(MOST_CHOICES) {
                let [value, name] = pick(entry, ["value", "name"]);
                let Some(value) = short(value, NAME) else { continue };
                let key = [Value::from(agent.clone()), kind.into(), value.into()];
                let fact = Fact::new(MODELS, key).set("name", short(name, NAME));
                let fact = fact.set("agent_version", version.clone()).set("process_id", self.id());
                self.facts.push(fact.set("first_us", self.at()).set("last_us", self.at()));
            }
        }
    }

    /// Protected places that were changed and nobody was asked. Tool calls tell of themselves.
    fn unmediated(&mut self, params: &str) {
        for place in pick(params, ["paths"])[0].into_iter().flat_map(elements) {
            let [path, change] = pick(place, ["path", "change"]);
            let Some(path) = path.and_then(text) else { continue };
            let is_removed = short(change, NAME).as_deref() == Some("removed");
            self.access(&path, if is_removed { "delete" } else { "write" }, "survey", None);
        }
    }

    /// Where a prompt goes.
    fn routed(&mut self, params: &str) {
        // It stands between a prompt and the note that says whose it is.
        self.state.next = std::mem::take(&mut self.told);
        let [agent, from, model, mode, route] = pick(params, ["agent", "from", "model", "mode", "route"]);
        let [how, reason, attempt, failed] = pick(params, ["how", "reason", "attempt", "failed"]);
        let mut fact = self.row(ROUTES_TAKEN, [self.id().into(), self.seq().into()]);
        fact.put("agent", short(agent, NAME));
        fact.put("from_agent", short(from, NAME));
        fact.put("model", short(model, NAME));
        fact.put("mode", short(mode, NAME));
        fact.put("route", short(route, NAME));
        fact.put("how", short(how, NAME));
        fact.put("reason", short(reason, LINE));
        fact.put("attempt", attempt.and_then(int).unwrap_or(0));
        fact.put("failed", short(failed, LINE));
        fact.put("at_us", self.at());
        self.facts.push(fact);
    }

    fn opened(&mut self, params: &str) {
        // Whatever was under way when the record broke off is not any more.
        self.end_turns("the session was opened again before an answer came");
        self.interrupt_approvals("the session was opened again before anybody had answered");
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
        let why = format!("the session ended: {}", reason.as_deref().unwrap_or("no reason was given"));
        self.end_turns(&why);
        self.interrupt_approvals(&why);
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
pub(super) fn id(json: &str) -> Option<Uuid> {
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
