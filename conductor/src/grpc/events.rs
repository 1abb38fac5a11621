//! Recorded frames → typed events: a pure fold over a session's record.
//!
//! The same frames give the same events wherever a reader begins, so a stream
//! that broke is carried on by folding the earlier frames again without telling
//! them. Names and outputs of tools, and which request an answer answers, are
//! the ledger's own rules. Frames may mean harm: nothing here panics, and what
//! is remembered is small and bounded. An update of a sort that is not known
//! passes as it is.

mod content;
mod replay;
mod update;

use uuid::Uuid;

pub(super) use self::content::{block_json, config_options, modes};
use self::{
    content::{blocks, list, permission_option, string, turn_usage},
    replay::Replay,
    update::Calls,
};
use crate::{
    frame::{self, Kind as FrameKind, Method, Peek},
    ledger::{
        history::Frame,
        project::{
            FrameView, LINE, NAME,
            json::{dig, int, pick, short, some, text},
            part,
            telling::Teller,
            waiting::Waiting,
        },
    },
    proto::{
        CancelRequested, ConfigOptions, Event, Modes, Other, PermissionRequested, PermissionResolved,
        SeatChanged, SessionBound, SessionEnded, SessionOpened, SessionParked, SharingChanged, TurnEnded,
        TurnStalled, TurnStarted, event::Kind,
    },
    record::{Destination, Origin, Stream, StreamKind, note},
};

/// Most options of a request for permission that are remembered.
const MOST_OPTIONS: usize = 32;

/// What has to be known of a session's earlier frames.
#[derive(Debug, Default)]
pub(super) struct Events {
    owner: String,
    by: Option<String>,
    /// The answer of an editor that comes next does not count.
    is_declined: bool,
    binding: Option<String>,
    /// Options are shown in our form, not in the agent's.
    picks: bool,
    turn: Option<Turn>,
    waiting: Waiting<What>,
    calls: Calls,
    replay: Replay,
}

#[derive(Debug)]
struct Turn {
    seq: u64,
    is_cancelled: bool,
}

/// What a request was for.
#[derive(Debug)]
enum What {
    /// A prompt, by its turn; `None` if its turn never came.
    Prompt(Option<u64>),
    Permission(Permission),
    /// A session that is opened at the agent, or an option that is set.
    Options,
    Mode(String),
    /// Something that passes as it is.
    Other,
}

#[derive(Debug)]
struct Permission {
    request: u64,
    /// The options on offer with their kinds.
    options: Vec<(String, String)>,
    /// Nobody is asked any more; an answer of the conductor's may follow.
    is_withdrawn: bool,
}

/// One frame at work.
struct Step<'a> {
    view: FrameView<'a>,
    text: &'a str,
    peek: &'a Peek,
    by: Option<String>,
    events: Vec<(Option<u64>, Kind)>,
}

impl<'a> Step<'a> {
    fn get(&self, span: frame::Span) -> Option<&'a str> {
        part(self.text, span)
    }

    fn id(&self) -> Option<&'a str> {
        self.get(self.peek.id)
    }

    fn params(&self) -> &'a str {
        self.get(self.peek.params).unwrap_or_default()
    }
}

impl Events {
    /// Of a session of this owner's, from somewhere in its record on.
    pub(super) fn of(owner: String) -> Self {
        Self { owner, ..Self::default() }
    }

    /// What a frame says, in events. Frames come in order.
    pub(super) fn hear(&mut self, frame: &Frame) -> Vec<Event> {
        let told = self.fold(frame);
        let last = told.len().saturating_sub(1);
        let event = |(at, (turn, kind)): (usize, (Option<u64>, Kind))| Event {
            seq: frame.seq,
            at_us: frame.at_us,
            turn: turn.unwrap_or_default(),
            more: at < last,
            raw: frame.raw.clone(),
            kind: Some(kind),
        };
        told.into_iter().enumerate().map(event).collect()
    }

    /// Takes note of a frame whose events nobody wants.
    pub(super) fn skip(&mut self, frame: &Frame) {
        // Most frames are these, and nothing is remembered of them.
        let is_chunk = frame::peek(&frame.raw).is_ok_and(|peek| {
            matches!(peek.update.of(&frame.raw), b"\"agent_message_chunk\"" | b"\"agent_thought_chunk\"")
        });
        if !is_chunk {
            self.fold(frame);
        }
    }

    fn fold(&mut self, frame: &Frame) -> Vec<(Option<u64>, Kind)> {
        let (Some(origin), Some(to)) =
            (Origin::from_name(&frame.origin), Destination::from_name(&frame.destination))
        else {
            return Vec::new();
        };
        let view = FrameView {
            stream: Stream { id: Uuid::nil(), kind: StreamKind::Session },
            seq: frame.seq,
            at_us: frame.at_us,
            origin,
            to,
            outgoing: frame.outgoing_id.and_then(|id| u64::try_from(id).ok()),
            raw: &frame.raw,
        };
        let (Ok(peek), Ok(text)) = (frame::peek(&frame.raw), std::str::from_utf8(&frame.raw)) else {
            return vec![(self.turn_seq(), other(origin, None, None))];
        };
        // An agent that the session has left may still speak; nobody is told.
        if (origin, to) == (Origin::Agent, Destination::Record) {
            if matches!(peek.kind, FrameKind::Result | FrameKind::Error) {
                self.waiting.answer(&view, part(text, peek.id));
            }
            return Vec::new();
        }
        let is_note = (origin, to) == (Origin::Conductor, Destination::Record);
        let is_said = origin == Origin::Editor || (origin, to) == (Origin::Conductor, Destination::Agent);
        let by = if is_said { self.by.take() } else { None };
        if origin == Origin::Editor && std::mem::take(&mut self.is_declined) {
            return Vec::new();
        }
        let mut step = Step { view, text, peek: &peek, by, events: Vec::new() };
        match peek.kind {
            _ if is_note => self.note(&mut step),
            FrameKind::Notification => self.notification(&mut step),
            FrameKind::Request => self.request(&mut step),
            FrameKind::Result | FrameKind::Error => self.answer(&mut step),
            FrameKind::Opaque => self.tell(&mut step, other(origin, None, None)),
        }
        step.events
    }

    /// The turn that runs.
    fn turn_seq(&self) -> Option<u64> {
        self.turn.as_ref().map(|turn| turn.seq)
    }

    fn tell(&self, step: &mut Step<'_>, kind: Kind) {
        step.events.push((self.turn_seq(), kind));
    }

    fn tell_other(&self, step: &mut Step<'_>) {
        let method = short(step.get(step.peek.name), NAME);
        let update = short(step.get(step.peek.update), NAME);
        self.tell(step, other(step.view.origin, method, update));
    }

    /// Who said it: someone else than the owner if a note said so before.
    fn speaker(&self, step: &Step<'_>) -> String {
        match step.view.origin {
            Origin::Editor => step.by.clone().unwrap_or_else(|| self.owner.clone()),
            Origin::Agent | Origin::Conductor => step.by.clone().unwrap_or_default(),
        }
    }

    fn notification(&mut self, step: &mut Step<'_>) {
        match (step.peek.method, step.view.to) {
            (Method::SessionUpdate, Destination::Editor) => {
                let kind = step.get(step.peek.update).and_then(text).unwrap_or_default();
                // The same was told when it happened.
                if step.view.origin == Origin::Agent && self.replay.swallows(&kind) {
                    return;
                }
                // Options are told in our form, right behind.
                let is_option = matches!(&*kind, "config_option_update" | "current_mode_update");
                if step.view.origin == Origin::Agent && self.picks && is_option {
                    return;
                }
                let update = dig(step.params(), &["update"]).unwrap_or_default();
                match self.update(step.view.seq, &kind, update) {
                    Some(told) => self.tell(step, told),
                    None => self.tell_other(step),
                }
            }
            // Editors do not tell agents what happened.
            (Method::SessionUpdate, _) => {}
            (Method::SessionCancel, Destination::Agent) => {
                if let Some(turn) = &mut self.turn {
                    turn.is_cancelled = true;
                }
                let user = self.speaker(step);
                self.tell(step, Kind::CancelRequested(CancelRequested { user }));
            }
            (Method::CancelRequest, Destination::Editor) if step.view.origin == Origin::Conductor => {
                let asked: Option<u64> = step.get(step.peek.request_id).and_then(|id| id.parse().ok());
                for what in self.waiting.iter_mut() {
                    if let What::Permission(permission) = what
                        && Some(permission.request) == asked
                    {
                        permission.is_withdrawn = true;
                    }
                }
                // In a turn an answer to the agent follows, or the turn's end.
                if self.turn.is_none() {
                    self.void(step, |permission| permission.is_withdrawn);
                }
            }
            (Method::CancelRequest, _) => {}
            _ => self.tell_other(step),
        }
    }

    fn request(&mut self, step: &mut Step<'_>) {
        self.replay.request(&step.view, step.peek, step.id());
        let what = match (step.peek.method, step.view.to) {
            // Another agent takes the turn over.
            (Method::SessionPrompt, Destination::Agent) if step.view.origin == Origin::Conductor => {
                What::Prompt(self.turn_seq())
            }
            (Method::SessionPrompt, Destination::Agent) => self.prompt(step),
            (Method::SessionNew | Method::SessionLoad | Method::SessionResume, Destination::Agent) => {
                What::Options
            }
            (Method::SessionSetConfigOption, Destination::Agent) => What::Options,
            (Method::SessionSetMode, Destination::Agent) => {
                What::Mode(string(pick(step.params(), ["modeId"])[0]))
            }
            (Method::RequestPermission, Destination::Editor) => match step.view.outgoing {
                Some(request) => self.permission(step, request),
                // Nobody was asked.
                None => return,
            },
            // What an agent does with files and terminals is told by its tool
            // calls.
            (Method::FsRead | Method::FsWrite | Method::TerminalCreate | Method::Terminal, _) => return,
            // Their answers must not be taken for those to another's request of the
            // same id.
            (Method::SessionClose | Method::SessionDelete | Method::SessionList, _) => What::Other,
            _ => {
                self.tell_other(step);
                What::Other
            }
        };
        let id = step.id();
        self.waiting.ask(&step.view, id, what);
    }

    fn prompt(&mut self, step: &mut Step<'_>) -> What {
        // One that was refused, or taken back before its turn came.
        if step.view.outgoing.is_none() {
            return What::Prompt(None);
        }
        // There can be no other; a record with a hole may look so.
        self.end_turn(
            step,
            TurnEnded { error: "no answer to it is on record".into(), ..TurnEnded::default() },
        );
        self.turn = Some(Turn { seq: step.view.seq, is_cancelled: false });
        let prompt = blocks(pick(step.params(), ["prompt"])[0]);
        let user = self.speaker(step);
        self.tell(step, Kind::TurnStarted(TurnStarted { user, prompt }));
        What::Prompt(Some(step.view.seq))
    }

    fn permission(&mut self, step: &mut Step<'_>, request: u64) -> What {
        let [tool_call, offered] = pick(step.params(), ["toolCall", "options"]);
        let tool_call = self.tool_call(step.view.seq, tool_call.unwrap_or_default(), Teller::Permission);
        let options = list(offered, permission_option);
        let kinds = options.iter().take(MOST_OPTIONS).map(|option| {
            let kept = |text: &str| text.chars().take(NAME).collect::<String>();
            (kept(&option.option_id), kept(&option.kind))
        });
        let permission = Permission { request, options: kinds.collect(), is_withdrawn: false };
        self.tell(step, Kind::PermissionRequested(PermissionRequested { request, tool_call, options }));
        What::Permission(permission)
    }

    fn answer(&mut self, step: &mut Step<'_>) {
        self.replay.answer(&step.view, step.peek, step.id());
        let Some(what) = self.waiting.answer(&step.view, step.id()) else { return };
        let outcome = step.get(step.peek.outcome).unwrap_or_default();
        let is_error = step.peek.kind == FrameKind::Error;
        match what {
            What::Prompt(Some(turn)) if self.turn_seq() == Some(turn) => {
                let is_cancelled = self.turn.as_ref().is_some_and(|turn| turn.is_cancelled);
                let end = match (is_cancelled, is_error) {
                    // The editor is told so, whatever the agent says.
                    (true, _) => TurnEnded { stop_reason: "cancelled".into(), ..TurnEnded::default() },
                    (false, true) => {
                        let [code, message] = pick(outcome, ["code", "message"]);
                        let error = short(message, LINE).filter(|message| !message.is_empty());
                        TurnEnded {
                            error: error.unwrap_or_else(|| "an error without a message".into()),
                            error_code: code.and_then(int).unwrap_or_default(),
                            ..TurnEnded::default()
                        }
                    }
                    (false, false) => TurnEnded {
                        stop_reason: short(pick(outcome, ["stopReason"])[0], NAME).unwrap_or_default(),
                        usage: turn_usage(outcome),
                        ..TurnEnded::default()
                    },
                };
                self.end_turn(step, end);
            }
            What::Prompt(_) => {}
            What::Permission(permission) => {
                let by = self.speaker(step);
                let resolved = decided(&permission, outcome, is_error, by);
                self.tell(step, Kind::PermissionResolved(resolved));
            }
            // What we pass on of it says nothing new.
            What::Options | What::Mode(_) if self.picks => {}
            What::Options if !is_error && step.view.origin == Origin::Agent => {
                let [given, options] = pick(outcome, ["modes", "configOptions"]).map(some);
                if options.is_some() {
                    let options = config_options(options);
                    self.tell(step, Kind::ConfigOptions(ConfigOptions { options }));
                }
                if let Some(given) = given {
                    self.tell(step, Kind::Modes(modes(given)));
                }
            }
            What::Mode(current_mode_id) if !is_error => {
                self.tell(step, Kind::Modes(Modes { current_mode_id, available: Vec::new() }));
            }
            What::Options | What::Mode(_) => {}
            What::Other => self.tell_other(step),
        }
    }

    fn end_turn(&mut self, step: &mut Step<'_>, end: TurnEnded) {
        if self.turn.is_none() {
            return;
        }
        self.void(step, |permission| permission.is_withdrawn);
        self.tell(step, Kind::TurnEnded(end));
        self.turn = None;
    }

    /// Requests for permission that nobody will answer any more.
    fn void(&mut self, step: &mut Step<'_>, which: impl Fn(&Permission) -> bool) {
        for what in self.waiting.take(|_, what| matches!(what, What::Permission(it) if which(it))) {
            if let What::Permission(Permission { request, .. }) = what {
                let outcome = "void".to_owned();
                let resolved = PermissionResolved { request, outcome, ..PermissionResolved::default() };
                self.tell(step, Kind::PermissionResolved(resolved));
            }
        }
    }

    /// Whoever waited for an answer does not any more; ids begin anew.
    fn break_off(&mut self, step: &mut Step<'_>, why: String) {
        self.end_turn(step, TurnEnded { error: why, ..TurnEnded::default() });
        self.forget_agent(step);
        self.waiting = Waiting::default();
    }

    /// The agent's process is another, or there is none.
    fn forget_agent(&mut self, step: &mut Step<'_>) {
        self.void(step, |_| true);
        self.calls.clear();
    }

    fn note(&mut self, step: &mut Step<'_>) {
        let params = step.params();
        let name = step.get(step.peek.name).and_then(text).unwrap_or_default();
        match name.as_ref() {
            note::DECLINED => {
                self.is_declined = true;
                self.tell_other(step);
            }
            note::BY => self.by = short(pick(params, ["user"])[0], NAME),
            note::SESSION_OPENED => {
                let [how, user, agent, cwd] = pick(params, ["how", "user", "agent", "cwd"]).map(string);
                // Whatever was under way when the record broke off is not any more.
                self.break_off(step, "the session was opened again before an answer came".into());
                if !user.is_empty() {
                    self.owner.clone_from(&user);
                }
                self.tell(step, Kind::SessionOpened(SessionOpened { how, user, agent, cwd }));
            }
            note::SESSION_BOUND => {
                let [binding, how, process_id] = pick(params, ["binding", "how", "process"]).map(string);
                self.picks = pick(params, ["picker"])[0] == Some("true");
                if self.binding.as_ref() != Some(&binding) {
                    self.forget_agent(step);
                    self.binding = Some(binding);
                }
                // Only then has the agent agreed.
                if !how.is_empty() {
                    self.tell(step, Kind::SessionBound(SessionBound { how, process_id }));
                }
            }
            note::SESSION_PARKED => self.tell(step, Kind::SessionParked(SessionParked {})),
            note::SESSION_ENDED => {
                let reason = string(pick(params, ["reason"])[0]);
                self.break_off(step, format!("the session ended: {reason}"));
                self.tell(step, Kind::SessionEnded(SessionEnded { reason }));
            }
            note::SHARED | note::UNSHARED => {
                let [with, role, by] = pick(params, ["with", "as", "by"]).map(string);
                self.tell(step, Kind::SharingChanged(SharingChanged { with, role, by }));
            }
            note::SEATED | note::UNSEATED => {
                let [user, role] = pick(params, ["user", "as"]).map(string);
                self.tell(step, Kind::SeatChanged(SeatChanged { user, role }));
            }
            note::TURN_STALLED => {
                let after = pick(params, ["after"])[0].and_then(int);
                let after_seconds = after.and_then(|after| u64::try_from(after).ok()).unwrap_or_default();
                self.tell(step, Kind::TurnStalled(TurnStalled { after_seconds }));
            }
            _ => self.tell_other(step),
        }
    }
}

fn decided(permission: &Permission, outcome: &str, is_error: bool, by: String) -> PermissionResolved {
    let [word, option] =
        dig(outcome, &["outcome"]).map(|outcome| pick(outcome, ["outcome", "optionId"])).unwrap_or_default();
    let option_id = string(option);
    let kind = permission.options.iter().find(|(id, _)| *id == option_id).map(|(_, kind)| kind.clone());
    let outcome = if is_error { "error".to_owned() } else { string(word) };
    PermissionResolved {
        request: permission.request,
        outcome,
        option_id,
        option_kind: kind.unwrap_or_default(),
        by,
    }
}

fn other(origin: Origin, method: Option<String>, update: Option<String>) -> Kind {
    Kind::Other(Other {
        origin: origin.name().to_owned(),
        method: method.unwrap_or_default(),
        update: update.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
