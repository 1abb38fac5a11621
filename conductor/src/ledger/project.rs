//! What a frame says, as facts: rows of the derived tables, or parts of them.
//!
//! A pure fold over the frames of one stream, in order. The same frames give
//! the same facts wherever the fold is cut, so a rebuild equals what was
//! recorded live, and a stream whose state was lost gets it back by folding its
//! earlier frames again.
//!
//! Frames come from agents and editors that may mean harm: nothing here
//! panics, state is bounded per stream, facts are bounded per frame, and every
//! value is one that both databases take. What is left out is still in the
//! frame itself.

mod approvals;
pub mod json;
mod notes;
mod options;
mod prompt;
mod requests;
pub mod telling;
mod tools;
mod updates;
pub mod waiting;

use std::collections::{HashMap, HashSet, VecDeque};

use uuid::Uuid;

pub use self::requests::tokens;
use self::waiting::Waiting;
use super::table::{Fact, SESSIONS, Value};
use crate::{
    frame::{self, Kind, Method, Peek, Span},
    record::{Destination, Origin, Stream, StreamKind},
};

/// Longest name or id that is kept: of users, tools, models, modes, methods.
pub const NAME: usize = 512;
/// Longest path. It is in an index, and Postgres' indices take 2.7 KB.
const PATH: usize = 2000;
/// Longest title or message of an error.
pub const LINE: usize = 4 << 10;
/// Longest text of any other column: prompts, command lines, last words.
const TEXT: usize = 256 << 10;
/// Most file accesses that one frame can tell of.
const MOST_ITEMS: i64 = 256;

/// A frame as it was recorded.
#[derive(Debug, Clone, Copy)]
pub struct FrameView<'a> {
    /// The stream it is numbered in.
    pub stream: Stream,
    /// Its number there.
    pub seq: u64,
    /// When it was recorded.
    pub at_us: i64,
    /// Who made it.
    pub origin: Origin,
    /// Whom it is for.
    pub to: Destination,
    /// The id it was passed on with.
    pub outgoing: Option<u64>,
    /// Its bytes, without a newline.
    pub raw: &'a [u8],
}

/// What a frame says.
#[derive(Debug)]
pub struct Projected {
    /// The rows it tells of.
    pub facts: Vec<Fact>,
    /// What `frames` has of it.
    pub envelope: Envelope,
}

/// The columns of `frames` that are read from the frame itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Envelope {
    /// request, notification, result, error, note or opaque.
    pub kind: &'static str,
    /// The method, if it has one.
    pub method: Option<String>,
    /// The id of a request or an answer, as JSON.
    pub request_id: Option<String>,
    /// The binding it belongs to.
    pub binding: Option<Uuid>,
    /// The frame, if Postgres takes it as `jsonb` and has the same then.
    pub json: Option<String>,
}

/// What has to be known of a stream's earlier frames.
#[derive(Debug, Default)]
pub struct State {
    user: Option<String>,
    team: Option<String>,
    agent: Option<String>,
    model: Option<String>,
    mode: Option<String>,
    how: Option<String>,
    opened: bool,
    binding: Option<Uuid>,
    /// What our notes say of the frame that comes next.
    next: Next,
    /// Prompts without an answer; the first is the turn that runs.
    turns: VecDeque<Turn>,
    had_turns: bool,
    /// A history is being replayed that we have recorded already.
    replaying: bool,
    waiting: Waiting<requests::What>,
    /// Questions that people have not answered.
    approvals: Vec<approvals::Open>,
    messages: updates::Messages,
    calls: HashMap<u64, tools::Call>,
    /// File accesses of this turn's tool calls that were told already.
    told: HashSet<u64>,
    /// Bytes of tool inputs that are kept for decisions.
    kept: usize,
    /// Commands of tool calls that no terminal runs yet: line, tool call.
    commands: VecDeque<(u64, u64)>,
    terminals: HashMap<u64, requests::Terminal>,
    cost: Option<f64>,
}

/// What notes say of the frame behind them.
#[derive(Debug, Default)]
struct Next {
    /// Who said it, if that was not the session's owner.
    by: Option<String>,
    /// It is an answer that was not passed on.
    is_declined: bool,
}

#[derive(Debug)]
struct Turn {
    seq: i64,
    began_us: i64,
    cancelled: bool,
}

/// A session has every frame of its stream, whatever it says.
fn counted(session: Fact, frame: &FrameView<'_>) -> Option<Fact> {
    let is_session = frame.stream.kind == StreamKind::Session;
    is_session.then(|| session.set("frames", 1i64).set("updated_us", frame.at_us))
}

/// Turns one frame into facts. Frames of one stream come in order.
pub fn project(state: &mut State, frame: &FrameView<'_>) -> Projected {
    let peek = frame::peek(frame.raw);
    let told = std::mem::take(&mut state.next);
    let (Ok(peek), Ok(text)) = (&peek, std::str::from_utf8(frame.raw)) else {
        let envelope = Envelope { kind: "opaque", binding: state.binding, ..Envelope::default() };
        let session = Fact::new(SESSIONS, [frame.stream.id.into()]);
        return Projected { facts: counted(session, frame).into_iter().collect(), envelope };
    };
    let is_note = frame.origin == Origin::Conductor && frame.to == Destination::Record;
    let mut step = Step {
        state,
        frame,
        text,
        peek,
        told,
        session: Fact::new(SESSIONS, [frame.stream.id.into()]),
        facts: Vec::new(),
        items: 0,
    };
    let method = json::short(step.get(peek.name), NAME);
    if is_note {
        step.note(method.as_deref().unwrap_or_default());
    } else {
        match frame.stream.kind {
            StreamKind::Session => step.session(),
            StreamKind::Process => step.process(),
            StreamKind::Connection => step.connection(),
            // It has notes only.
            StreamKind::Grant => {}
        }
    }
    let Step { session, mut facts, .. } = step;
    facts.extend(counted(session, frame));
    let kind = match peek.kind {
        _ if is_note => "note",
        Kind::Request => "request",
        Kind::Notification => "notification",
        Kind::Result => "result",
        Kind::Error => "error",
        Kind::Opaque => "opaque",
    };
    let request_id = part(text, peek.id).map(|id| json::cut(id, NAME));
    let envelope = Envelope {
        kind,
        method: method.map(|method| method.replace('\0', "\u{fffd}")),
        request_id,
        binding: state.binding,
        json: json::frame(text),
    };
    Projected { facts, envelope }
}

/// The text of a span; nothing if it is empty.
pub fn part(text: &str, span: Span) -> Option<&str> {
    if span.is_none() {
        return None;
    }
    std::str::from_utf8(span.of(text.as_bytes())).ok()
}

/// One frame at work.
struct Step<'a> {
    state: &'a mut State,
    frame: &'a FrameView<'a>,
    text: &'a str,
    peek: &'a Peek,
    /// What the notes in front of it say.
    told: Next,
    /// What it says of the session itself.
    session: Fact,
    facts: Vec<Fact>,
    /// File accesses so far.
    items: i64,
}

impl<'a> Step<'a> {
    fn get(&self, span: Span) -> Option<&'a str> {
        part(self.text, span)
    }

    fn id(&self) -> Uuid {
        self.frame.stream.id
    }

    fn seq(&self) -> i64 {
        i64::try_from(self.frame.seq).unwrap_or(i64::MAX)
    }

    fn at(&self) -> i64 {
        self.frame.at_us
    }

    /// The turn that runs.
    fn turn(&self) -> Option<i64> {
        self.state.turns.front().map(|turn| turn.seq)
    }

    /// A row of this session with the columns that say whose it is.
    fn row<const N: usize>(&self, table: usize, key: [Value; N]) -> Fact {
        Fact::new(table, key)
            .set("turn", self.turn())
            .set("user_name", self.state.user.clone())
            .set("team", self.state.team.clone())
            .set("agent", self.state.agent.clone())
    }

    /// A frame of a conversation.
    fn session(&mut self) {
        // What an agent says that the session has left is kept, and counts for nothing; an answer
        // that was kept back leaves its turn to another agent.
        if (self.frame.origin, self.frame.to) == (Origin::Agent, Destination::Record) {
            if matches!(self.peek.kind, Kind::Result | Kind::Error) {
                self.answered();
            }
            return;
        }
        let params = self.get(self.peek.params);
        match (self.peek.kind, params) {
            (Kind::Notification, Some(params)) => match self.peek.method {
                Method::SessionUpdate => self.update(params),
                Method::SessionCancel if self.frame.origin == Origin::Editor => {
                    self.state.turns.iter_mut().for_each(|turn| turn.cancelled = true);
                }
                _ => {}
            },
            (Kind::Request, Some(params)) => self.request(params),
            (Kind::Request, None) if self.frame.origin == Origin::Editor => self.wait(requests::What::Other),
            (Kind::Result, _) => self.answer(self.get(self.peek.outcome), None),
            (Kind::Error, _) => self.answer(None, self.get(self.peek.outcome)),
            _ => {}
        }
    }

    /// Remembers a request until its answer.
    fn wait(&mut self, what: requests::What) {
        let id = self.get(self.peek.id);
        self.state.waiting.ask(self.frame, id, what);
    }

    /// The request that this frame answers.
    fn answered(&mut self) -> Option<requests::What> {
        let id = self.get(self.peek.id);
        self.state.waiting.answer(self.frame, id)
    }
}

/// A short stand-in for a text that is only compared: hostile texts are long,
/// and who finds two with the same only confuses their own session.
pub fn digest(parts: &[&str]) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
