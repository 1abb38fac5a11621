//! All numbers at one moment: what was counted, and what the handles of the
//! service publish anyway.

use crate::{
    journal::Journal,
    ledger::Ledger,
    metrics::{By, Counter, Family, Gauge, Histogram, Kind, Label, Metrics, Sample, Value},
    pool::{AgentState, AgentStatus, Pool, ProcessState},
    record::{Destination, Origin},
    router::Router,
};

/// Where numbers come from.
#[derive(Debug, Clone)]
pub struct Sources {
    /// What was counted.
    pub metrics: Metrics,
    /// The processes.
    pub pool: Pool,
    /// The sessions.
    pub router: Router,
    /// What is written down.
    pub journal: Journal,
    /// Where it goes.
    pub ledger: Ledger,
}

impl Sources {
    /// Every family there is, also those without a number yet.
    pub fn families(&self) -> Vec<Family> {
        let mut all = vec![gauge(
            "conductor_build_info",
            "The version that runs; always 1.",
            vec![labelled(&[("version", env!("CARGO_PKG_VERSION"))], 1.0)],
        )];
        self.sessions(&mut all);
        self.decisions(&mut all);
        self.processes(&mut all);
        self.record(&mut all);
        self.editors(&mut all);
        self.service(&mut all);
        all
    }

    fn sessions(&self, all: &mut Vec<Family>) {
        let counts = &*self.metrics;
        all.extend([
            level("conductor_sessions", "Sessions that somebody has open.", &counts.sessions),
            total(
                "conductor_sessions_opened_total",
                "Sessions opened, anew or again.",
                &counts.sessions_opened,
            ),
            gauge(
                "conductor_turns_running",
                "Turns that are running.",
                vec![number(self.router.turns() as f64)],
            ),
            by("conductor_turns_total", "Turns that have ended, by how.", "end", &counts.turns),
            spread("conductor_turn_seconds", "How long turns took.", &counts.turn_seconds),
            level(
                "conductor_prompts_waiting",
                "Prompts and requests that wait for a turn to end, or for an agent.",
                &counts.prompts_waiting,
            ),
            gauge(
                "conductor_queue_frames",
                "What waits in the sessions' outboxes for room or for the disk, by where it goes.",
                vec![
                    labelled(&[("to", "agent")], counts.to_agent_waiting.get() as f64),
                    labelled(&[("to", "editor")], counts.to_editor_waiting.get() as f64),
                ],
            ),
            total("conductor_fallbacks_total", "Prompts that went on to another agent.", &counts.fallbacks),
        ]);
    }

    fn decisions(&self, all: &mut Vec<Family>) {
        let counts = &*self.metrics;
        all.extend([
            by(
                "conductor_decisions_total",
                "Decisions of the policy, by outcome.",
                "outcome",
                &counts.decisions,
            ),
            spread("conductor_decision_seconds", "How long it took to judge.", &counts.decision_seconds),
            level(
                "conductor_questions_open",
                "Requests of agents that nobody has answered yet.",
                &counts.questions_open,
            ),
            by("conductor_answers_total", "What became of questions to people.", "outcome", &counts.answers),
            spread(
                "conductor_answer_seconds",
                "How long questions to people waited.",
                &counts.answer_seconds,
            ),
            total(
                "conductor_unmediated_total",
                "Tool calls that ended, and protected places that were changed, without anybody having been asked.",
                &counts.unmediated,
            ),
            total(
                "conductor_changed_calls_total",
                "Tool calls that were changed after they were allowed.",
                &counts.changed_calls,
            ),
        ]);
    }

    fn processes(&self, all: &mut Vec<Family>) {
        let agents = self.pool.status().borrow().clone();
        let of_each = |value: fn(&AgentStatus) -> f64| {
            agents.iter().map(|agent| labelled(&[("agent", &agent.name)], value(agent))).collect::<Vec<_>>()
        };
        let states = [
            (ProcessState::Starting, "starting"),
            (ProcessState::Spare, "spare"),
            (ProcessState::Leased, "leased"),
            (ProcessState::Stopping, "stopping"),
        ];
        let running = agents.iter().flat_map(|agent| {
            states.map(|(state, name)| {
                let count = agent.processes.iter().filter(|process| process.state == state).count();
                labelled(&[("agent", &agent.name), ("state", name)], count as f64)
            })
        });
        all.extend([
            gauge("conductor_processes", "Agent processes, by agent and state.", running.collect()),
            gauge(
                "conductor_process_requests_waiting",
                "Sessions that wait for a process, by agent.",
                of_each(|agent| agent.waiting as f64),
            ),
            counter(
                "conductor_process_restarts_total",
                "Processes that ended unasked, by agent.",
                of_each(|agent| agent.restarts as f64),
            ),
            counter(
                "conductor_quarantines_total",
                "How often an agent was quarantined.",
                of_each(|agent| agent.quarantines as f64),
            ),
            gauge(
                "conductor_agent_quarantined",
                "Whether an agent is quarantined now.",
                of_each(|agent| f64::from(u8::from(agent.state == AgentState::Quarantined))),
            ),
        ]);
    }

    fn record(&self, all: &mut Vec<Family>) {
        let counts = &*self.metrics;
        let journal = self.journal.status();
        let figures = self.journal.figures();
        let frames = [Origin::Editor, Origin::Agent, Origin::Conductor].into_iter().flat_map(|origin| {
            [Destination::Editor, Destination::Agent, Destination::Record]
                .map(|to| (origin, to, journal.frames.of(origin, to)))
        });
        let frames = frames.filter(|(origin, to, _)| origin.name() != to.name());
        let frames = frames
            .map(|(origin, to, count)| labelled(&[("from", origin.name()), ("to", to.name())], count as f64));
        let ledger = self.ledger.status();
        let progress = &ledger.progress;
        let bytes = |name, help, bytes: u64| gauge(name, help, vec![number(bytes as f64)]);
        all.extend([
            counter(
                "conductor_frames_total",
                "Frames recorded, by where from and where to.",
                frames.collect(),
            ),
            counter(
                "conductor_journal_appended_bytes_total",
                "Bytes written to the journal since the start.",
                vec![number(journal.appended as f64)],
            ),
            bytes("conductor_journal_bytes", "Bytes of the journal's segments.", journal.bytes),
            bytes(
                "conductor_journal_unsynced_bytes",
                "Bytes written but not yet on the medium.",
                journal.unsynced,
            ),
            bytes("conductor_journal_cap_bytes", "Bytes that the ledger may be behind.", journal.cap),
            spread("conductor_journal_sync_seconds", "How long a sync of the journal took.", &figures.syncs),
            total("conductor_journal_sync_failures_total", "Syncs that failed.", &figures.sync_failures),
            by(
                "conductor_journal_refusals_total",
                "Appends that were refused, by cause.",
                "cause",
                &figures.refusals,
            ),
            gauge(
                "conductor_journal_refusing",
                "Whether effects are refused now.",
                vec![number(f64::from(u8::from(self.journal.refusing().is_some())))],
            ),
            counter(
                "conductor_unrecorded_frames_total",
                "Frames that passed without being recorded, as recording = \"best-effort\" allows.",
                vec![number(journal.unrecorded as f64)],
            ),
            bytes(
                "conductor_journal_damaged_parts",
                "Parts of the journal that cannot be read.",
                journal.damaged,
            ),
            spread(
                "conductor_effect_seconds",
                "How long effects waited for their record.",
                &counts.effect_seconds,
            ),
            total(
                "conductor_effects_refused_total",
                "Effects that did not happen because they could not be recorded.",
                &counts.effects_refused,
            ),
            gauge(
                "conductor_ledger_up",
                "Whether the ledger can be written.",
                vec![number(f64::from(u8::from(progress.down.is_none())))],
            ),
            bytes(
                "conductor_ledger_behind_bytes",
                "Bytes that the ledger has not taken.",
                ledger.behind_bytes,
            ),
            gauge(
                "conductor_ledger_behind_seconds",
                "Age of the oldest record that the ledger has not taken.",
                vec![number(ledger.behind.as_secs_f64())],
            ),
            counter(
                "conductor_ledger_frames_total",
                "Frames that the ledger has taken.",
                vec![number(progress.written.new as f64)],
            ),
            counter(
                "conductor_ledger_stripped_total",
                "Frames that the ledger has without what the database refused.",
                vec![number(progress.written.stripped as f64)],
            ),
            counter(
                "conductor_ledger_batches_total",
                "Transactions that the ledger has committed.",
                vec![number(progress.batches as f64)],
            ),
            counter(
                "conductor_ledger_failures_total",
                "Attempts to reach or to write the ledger that failed.",
                vec![number(progress.failures as f64)],
            ),
            counter(
                "conductor_ledger_conflicts_total",
                "Frames that the ledger has otherwise than the journal.",
                vec![number(progress.written.conflicts as f64)],
            ),
        ]);
    }

    fn editors(&self, all: &mut Vec<Family>) {
        let counts = &*self.metrics;
        all.extend([
            level("conductor_connections", "Connections of editors.", &counts.connections),
            level(
                "conductor_editors_away",
                "Connections whose editor has lost its stream and may come back.",
                &counts.editors_away,
            ),
            total("conductor_streams_lost_total", "Streams of editors that broke.", &counts.streams_lost),
            total(
                "conductor_streams_resumed_total",
                "Streams that carried a connection on.",
                &counts.streams_resumed,
            ),
            by(
                "conductor_editors_dropped_total",
                "Editors that were let go, by why.",
                "reason",
                &counts.editors_dropped,
            ),
            total(
                "conductor_seats_dropped_total",
                "Seats let go because they fell behind.",
                &counts.seats_dropped,
            ),
            total(
                "conductor_readers_dropped_total",
                "Readers of events let go because they left them unread.",
                &counts.readers_dropped,
            ),
            by(
                "conductor_auth_failures_total",
                "Calls without valid credentials, by what was wrong.",
                "reason",
                &counts.auth_failures,
            ),
            total(
                "conductor_accept_failures_total",
                "Connections that could not be accepted at once.",
                &counts.accept_failures,
            ),
        ]);
    }

    fn service(&self, all: &mut Vec<Family>) {
        let counts = &*self.metrics;
        all.extend([
            total(
                "conductor_feed_events_total",
                "Audit events that [feed] has handed over.",
                &counts.feed_events,
            ),
            total(
                "conductor_feed_failures_total",
                "Attempts to hand audit events over that failed.",
                &counts.feed_failures,
            ),
            level(
                "conductor_feed_failing",
                "Whether audit events are not taken at the moment.",
                &counts.feed_failing,
            ),
            total("conductor_task_panics_total", "Tasks that have panicked.", &counts.panics),
            by(
                "conductor_reloads_total",
                "Files read again, by what became of it.",
                "outcome",
                &counts.reloads,
            ),
            by(
                "conductor_best_effort_total",
                "How often something went on, or was left out, that could not be done in full.",
                "branch",
                &counts.best_effort,
            ),
        ]);
    }
}

fn number(value: f64) -> Sample {
    Sample { labels: Vec::new(), value: Value::Number(value) }
}

fn labelled(labels: &[(&'static str, &str)], value: f64) -> Sample {
    let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Sample { labels, value: Value::Number(value) }
}

fn gauge(name: &'static str, help: &'static str, samples: Vec<Sample>) -> Family {
    Family { name, help, kind: Kind::Gauge, samples }
}

fn counter(name: &'static str, help: &'static str, samples: Vec<Sample>) -> Family {
    Family { name, help, kind: Kind::Counter, samples }
}

fn level(name: &'static str, help: &'static str, of: &Gauge) -> Family {
    gauge(name, help, vec![number(of.get() as f64)])
}

fn total(name: &'static str, help: &'static str, of: &Counter) -> Family {
    counter(name, help, vec![number(of.get() as f64)])
}

fn by<L: Label>(name: &'static str, help: &'static str, label: &'static str, of: &By<L>) -> Family {
    counter(name, help, of.all().map(|(value, count)| labelled(&[(label, value)], count as f64)).collect())
}

fn spread(name: &'static str, help: &'static str, of: &Histogram) -> Family {
    let sample = Sample { labels: Vec::new(), value: Value::Spread(of.spread()) };
    Family { name, help, kind: Kind::Histogram, samples: vec![sample] }
}
