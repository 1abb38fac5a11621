//! What the service counts, and how that is shown: to Prometheus as text on the
//! admin listener, and to a collector by OTLP.
//!
//! [`Metrics`] is a cheap handle that is passed down to whoever has something to
//! count. There is no registry and no lock: a count is one atomic addition, made
//! per run, per commit or per event, never per byte. What a handle publishes
//! anyway (processes, the journal's status, the ledger's progress) is not counted
//! a second time but read when somebody asks, by [`Sources`](crate::admin::Sources).
//!
//! Labels come from closed sets and from the names of agents in the
//! configuration, so that no peer can grow the number of series. No text of a
//! frame, no path and no user stands in any of them.

mod labels;
mod numbers;
mod text;

use std::{ops::Deref, sync::Arc};

pub use self::{
    labels::{Answered, Branch, Decided, Label, Lost, Refused, Reloaded, TurnEnd},
    numbers::{By, Counter, Gauge, Histogram, Part, QUICK, Spread, TURNS},
    text::{CONTENT_TYPE, as_text},
};

/// The handle.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<Counts>);

impl Deref for Metrics {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.0
    }
}

impl Metrics {
    /// Somebody's part in a gauge, which ends with it.
    pub fn part(&self, which: fn(&Counts) -> &Gauge) -> Part {
        Part::new(self.clone(), which)
    }

    /// Takes note that something went on which might have been refused, or was
    /// left out.
    pub fn best_effort(&self, branch: Branch) {
        self.best_effort.of(branch).one();
    }
}

/// Everything that is counted.
#[derive(Debug)]
pub struct Counts {
    /// Sessions whose task runs.
    pub sessions: Gauge,
    /// Sessions that were opened, anew or again.
    pub sessions_opened: Counter,
    /// Turns that have ended, by how.
    pub turns: By<TurnEnd>,
    /// How long they took.
    pub turn_seconds: Histogram,
    /// Prompts and requests that wait for a turn to end or for an agent.
    pub prompts_waiting: Gauge,
    /// Frames that wait for room at an agent, or for the disk.
    pub to_agent_waiting: Gauge,
    /// Packets that wait for room at an editor, or for the disk.
    pub to_editor_waiting: Gauge,
    /// Requests of agents that nobody has answered yet.
    pub questions_open: Gauge,
    /// What the policy has decided.
    pub decisions: By<Decided>,
    /// How long it took to judge.
    pub decision_seconds: Histogram,
    /// What became of the questions that people were asked.
    pub answers: By<Answered>,
    /// How long they waited for that.
    pub answer_seconds: Histogram,
    /// How long effects waited for the disk, or for the ledger in strict mode.
    pub effect_seconds: Histogram,
    /// Effects that did not happen, because they could not be recorded.
    pub effects_refused: Counter,
    /// Tool calls that ended, and protected places that were changed, without anybody having been
    /// asked.
    pub unmediated: Counter,
    /// Tool calls that were changed after they were allowed.
    pub changed_calls: Counter,
    /// Turns that went on to another agent.
    pub fallbacks: Counter,
    /// Connections of editors, whether or not a stream carries them.
    pub connections: Gauge,
    /// Connections whose editor has no stream.
    pub editors_away: Gauge,
    /// Streams that broke without a word.
    pub streams_lost: Counter,
    /// Streams that carried a connection on.
    pub streams_resumed: Counter,
    /// Editors that were let go, by why.
    pub editors_dropped: By<Lost>,
    /// Seats that were let go because they fell behind.
    pub seats_dropped: Counter,
    /// Readers of typed events that were let go because they left them unread.
    pub readers_dropped: Counter,
    /// Calls without a valid token, by what was wrong with it.
    pub auth_failures: By<Refused>,
    /// Connections that could not be accepted at once.
    pub accept_failures: Counter,
    /// Audit events that were handed over.
    pub feed_events: Counter,
    /// Attempts to hand them over that failed.
    pub feed_failures: Counter,
    /// Whether they are not taken at the moment.
    pub feed_failing: Gauge,
    /// Tasks that have panicked.
    pub panics: Counter,
    /// Readings of configuration and policy after the start, by their outcome.
    pub reloads: By<Reloaded>,
    /// Everything that is done as well as it can be, or else left out.
    pub best_effort: By<Branch>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            sessions: Gauge::default(),
            sessions_opened: Counter::default(),
            turns: By::default(),
            turn_seconds: Histogram::new(numbers::TURNS),
            prompts_waiting: Gauge::default(),
            to_agent_waiting: Gauge::default(),
            to_editor_waiting: Gauge::default(),
            questions_open: Gauge::default(),
            decisions: By::default(),
            decision_seconds: Histogram::new(numbers::QUICK),
            answers: By::default(),
            answer_seconds: Histogram::new(numbers::TURNS),
            effect_seconds: Histogram::new(numbers::QUICK),
            effects_refused: Counter::default(),
            unmediated: Counter::default(),
            changed_calls: Counter::default(),
            fallbacks: Counter::default(),
            connections: Gauge::default(),
            editors_away: Gauge::default(),
            streams_lost: Counter::default(),
            streams_resumed: Counter::default(),
            editors_dropped: By::default(),
            seats_dropped: Counter::default(),
            readers_dropped: Counter::default(),
            auth_failures: By::default(),
            accept_failures: Counter::default(),
            feed_events: Counter::default(),
            feed_failures: Counter::default(),
            feed_failing: Gauge::default(),
            panics: Counter::default(),
            reloads: By::default(),
            best_effort: By::default(),
        }
    }
}

/// Samples of one name.
#[derive(Debug, Clone)]
pub struct Family {
    /// Its name, the same in Prometheus and OTLP.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// What may be done with its numbers.
    pub kind: Kind,
    /// The numbers.
    pub samples: Vec<Sample>,
}

/// What may be done with numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They only grow.
    Counter,
    /// They go up and down.
    Gauge,
    /// They are spread over buckets.
    Histogram,
}

/// One series at one moment.
#[derive(Debug, Clone)]
pub struct Sample {
    /// What tells it from its siblings.
    pub labels: Vec<(&'static str, String)>,
    /// What it is.
    pub value: Value,
}

/// A number, or many.
#[derive(Debug, Clone)]
pub enum Value {
    /// One number.
    Number(f64),
    /// Many, by size.
    Spread(Spread),
}
