//! From frames to events: a pure fold over the frames of one stream, in order.
//!
//! What a frame says of the ledger's tables is asked of `ledger::project`, so that events
//! and rows cannot contradict each other; the few notes that no table has are read here.

use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use super::{
    event::{Event, Kind, details, text, value},
    rows::{Change, Rows},
};
use crate::{
    ledger::{
        project::{self, FrameView, State},
        table::{
            APPROVALS, COMMANDS, CONNECTIONS, DECISIONS, FILE_ACCESSES, Fact, GRANT_USES, GRANTS, PROCESSES,
            ROUTES_TAKEN, SESSIONS, TOOL_CALLS, TURNS, Value,
        },
    },
    record::{Destination, Origin, StreamKind, note},
};

/// What is known of a stream, in order to tell of its next frame.
#[derive(Debug)]
pub struct Telling {
    state: State,
    rows: Rows,
    about: About,
}

/// Whose stream it is.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The user.
    pub user: Option<String>,
    /// Their team.
    pub team: Option<String>,
    /// The agent.
    pub agent: Option<String>,
}

impl Telling {
    /// Of a stream that begins; `with_words`: what people, models and files say is told, too.
    pub fn new(with_words: bool) -> Self {
        Self { state: State::default(), rows: Rows::new(with_words), about: About::default() }
    }

    /// Whose it is, as far as that is known.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// What a frame tells of.
    pub fn tell(&mut self, frame: &FrameView<'_>) -> Vec<Event> {
        let projected = project::project(&mut self.state, frame);
        let mut events = Vec::new();
        for fact in projected.facts {
            self.learn(&fact);
            let table = fact.table;
            if kinds_of(table).is_empty() || table == SESSIONS && is_count(&fact) {
                continue;
            }
            let change = self.rows.change(fact);
            for kind in kinds(table, frame, &change) {
                events.push(event(kind, frame, &change, &self.about));
            }
        }
        if (frame.origin, frame.to) == (Origin::Conductor, Destination::Record)
            && let Some(kind) = projected.envelope.method.as_deref().and_then(noted_kind)
        {
            events.extend(noted(kind, frame, &self.about));
        }
        for (item, event) in (0..).zip(&mut events) {
            event.item = item;
        }
        events
    }

    fn learn(&mut self, fact: &Fact) {
        if !matches!(fact.table, SESSIONS | CONNECTIONS | PROCESSES) {
            return;
        }
        let About { user, team, agent } = &mut self.about;
        for (known, column) in [(user, "user_name"), (team, "team"), (agent, "agent")] {
            if let Some(told) = text(fact, column) {
                *known = Some(told.to_owned());
            }
        }
    }
}

/// Whether nothing is said of a session but that it has one more frame.
fn is_count(session: &Fact) -> bool {
    // Its id, the number and the time.
    session.values.iter().filter(|value| **value != Value::Null).count() <= 3
}

/// The kinds of events that changes of a table's rows can be.
fn kinds_of(table: usize) -> &'static [Kind] {
    use Kind as K;
    match table {
        SESSIONS => &[K::SessionOpened, K::SessionReopened, K::SessionEnded],
        TURNS => &[K::PromptSent, K::PromptEnded],
        ROUTES_TAKEN => &[K::PromptRouted],
        TOOL_CALLS => &[K::ToolCalled, K::ToolEnded],
        COMMANDS => &[K::CommandStarted, K::CommandChanged, K::CommandEnded],
        FILE_ACCESSES => &[
            K::FileRead,
            K::FileWrite,
            K::FileDelete,
            K::FileMove,
            K::FileMention,
            K::FileTouch,
            K::FileFailed,
        ],
        DECISIONS => &[K::PermissionDecided],
        APPROVALS => &[K::ApprovalAsked, K::ApprovalAnswered],
        GRANTS => &[K::GrantGiven, K::GrantRevoked],
        GRANT_USES => &[K::GrantUsed],
        PROCESSES => &[K::ProcessStarted, K::ProcessEnded, K::ProcessCrashed, K::ProcessLeftovers],
        CONNECTIONS => &[K::EditorConnected, K::EditorDisconnected],
        _ => &[],
    }
}

/// What a change of a row is.
fn kinds(table: usize, frame: &FrameView<'_>, change: &Change<'_>) -> Vec<Kind> {
    kinds_of(table).iter().copied().filter(|kind| is_told(*kind, frame, change)).collect()
}

fn is_told(kind: Kind, frame: &FrameView<'_>, change: &Change<'_>) -> bool {
    let crashed = || value(change.now, "crashed") == &Value::Bool(true);
    let access = |name: &str| change.sets("path") && text(change.now, "access") == Some(name);
    match kind {
        Kind::SessionOpened => change.sets("opened_us"),
        // A session ends and is opened again as often as somebody likes.
        Kind::SessionReopened => is_now(frame, change, "reopened_us"),
        Kind::SessionEnded => is_now(frame, change, "ended_us"),
        Kind::PromptSent | Kind::ToolCalled => change.sets("began_us"),
        Kind::PromptEnded => change.sets("ended_us"),
        // A call that goes on after its end may end again, and its row says so.
        Kind::ToolEnded => is_now(frame, change, "ended_us"),
        Kind::PromptRouted | Kind::GrantUsed => change.sets("at_us"),
        // Its row is named by the frame that tells of it first.
        Kind::CommandStarted => {
            change.sets("began_us")
                && matches!(change.now.key(), [_, Value::Int(seq)] if u64::try_from(*seq) == Ok(frame.seq))
        }
        Kind::CommandChanged => change.alters("line") || change.alters("source"),
        Kind::CommandEnded => {
            let was_over = |before: &Fact| {
                ["ended_us", "error"].iter().any(|column| value(before, column) != &Value::Null)
            };
            (change.sets("ended_us") || change.sets("error")) && !change.before.as_ref().is_some_and(was_over)
        }
        Kind::FileRead => access("read"),
        Kind::FileWrite => access("write"),
        Kind::FileDelete => access("delete"),
        Kind::FileMove => access("move"),
        Kind::FileMention => access("mention"),
        Kind::FileTouch => access("touch"),
        Kind::FileFailed => change.sets("error"),
        Kind::PermissionDecided => change.sets("decision"),
        Kind::ApprovalAsked => change.sets("asked_us"),
        Kind::ApprovalAnswered => change.sets("outcome"),
        Kind::GrantGiven => change.sets("given_us"),
        Kind::GrantRevoked => change.sets("revoked_us"),
        Kind::ProcessStarted => change.sets("started_us"),
        Kind::ProcessEnded => change.sets("ended_us") && !crashed(),
        Kind::ProcessCrashed => change.sets("ended_us") && crashed(),
        Kind::ProcessLeftovers => change.sets("leftovers"),
        Kind::EditorConnected => change.sets("opened_us"),
        Kind::EditorDisconnected => change.sets("closed_us"),
        _ => false,
    }
}

/// Whether this frame has set a time that may be set more than once.
fn is_now(frame: &FrameView<'_>, change: &Change<'_>, column: &str) -> bool {
    let now = Value::Int(frame.at_us);
    value(change.now, column) == &now
        && change.before.as_ref().is_none_or(|before| value(before, column) != &now)
}

fn event(kind: Kind, frame: &FrameView<'_>, change: &Change<'_>, about: &About) -> Event {
    let row = change.now;
    let own = |column: &str| text(row, column).map(ToOwned::to_owned);
    let by = match kind {
        Kind::PermissionDecided => own("decided_user"),
        Kind::ApprovalAnswered => own("answered_by"),
        Kind::GrantGiven => own("author"),
        Kind::GrantRevoked => own("revoked_by"),
        _ => None,
    };
    let user = own("user_name").or_else(|| about.user.clone()).or_else(|| own("author"));
    let mut told = details(row);
    if change.is_cut {
        told.insert("is_cut".into(), true.into());
    }
    let session = match value(row, "session_id") {
        Value::Id(id) => Some(*id),
        _ => session_of(frame),
    };
    // A driver's prompt is the driver's, and nobody knows the driver's team.
    let is_other = user.is_some() && about.user.is_some() && user != about.user;
    Event {
        kind,
        at_us: frame.at_us,
        stream: frame.stream,
        seq: frame.seq,
        item: 0,
        session,
        by: by.filter(|by| Some(by) != user.as_ref()),
        team: own("team").or_else(|| about.team.clone().filter(|_| !is_other)),
        agent: own("agent").or_else(|| about.agent.clone()),
        user,
        details: told,
    }
}

fn session_of(frame: &FrameView<'_>) -> Option<Uuid> {
    (frame.stream.kind == StreamKind::Session).then_some(frame.stream.id)
}

/// The notes that no table has.
fn noted_kind(method: &str) -> Option<Kind> {
    Some(match method {
        note::SHARED => Kind::SessionShared,
        note::UNSHARED => Kind::SessionUnshared,
        note::SEATED => Kind::SessionJoined,
        note::UNSEATED => Kind::SessionLeft,
        note::CHANGED => Kind::ToolChanged,
        note::UNMEDIATED => Kind::ActionUnmediated,
        note::UNSEEN => Kind::ActionUnseen,
        note::GAP => Kind::RecordingGap,
        note::RECORDING => Kind::RecordingChanged,
        note::DETACHED => Kind::EditorDetached,
        note::REATTACHED => Kind::EditorReattached,
        _ => return None,
    })
}

/// What such a note tells.
fn noted(kind: Kind, frame: &FrameView<'_>, about: &About) -> Option<Event> {
    let told: Json = serde_json::from_slice(frame.raw).ok()?;
    let params = told.get("params").and_then(Json::as_object).cloned().unwrap_or_default();
    let said = |name: &str| params.get(name).and_then(Json::as_str).map(ToOwned::to_owned);
    let by = match kind {
        Kind::SessionShared | Kind::SessionUnshared => said("by"),
        Kind::SessionJoined | Kind::SessionLeft => said("user"),
        _ => None,
    };
    Some(Event {
        kind,
        at_us: frame.at_us,
        stream: frame.stream,
        seq: frame.seq,
        item: 0,
        session: session_of(frame),
        by: by.filter(|by| Some(by) != about.user.as_ref()),
        user: about.user.clone(),
        team: about.team.clone(),
        agent: about.agent.clone(),
        details: bounded(params),
    })
}

/// What a note says of paths and actions may be long; it stands in the ledger.
fn bounded(mut params: Map<String, Json>) -> Map<String, Json> {
    const LONGEST: usize = 16 << 10;
    let long: Vec<_> = params
        .iter()
        .filter(|(_, value)| value.to_string().len() > LONGEST)
        .map(|(name, _)| name.clone())
        .collect();
    for name in &long {
        params.remove(name);
    }
    if !long.is_empty() {
        params.insert("is_cut".into(), json!(true));
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Stream;

    const SESSION: Stream = Stream { id: Uuid::from_u128(1), kind: StreamKind::Session };

    /// What notes tell, in order; and the same if the fold is begun anew before each of them.
    fn told(notes: &[(&str, Json)]) -> Vec<Event> {
        let raw: Vec<_> = notes.iter().map(|(method, params)| note(method, params)).collect();
        let frame = |at: usize| FrameView {
            stream: SESSION,
            seq: at as u64 + 1,
            at_us: 1000 + i64::try_from(at).unwrap_or_default(),
            origin: Origin::Conductor,
            to: Destination::Record,
            outgoing: None,
            raw: &raw[at],
        };
        let mut whole = Telling::new(false);
        let events: Vec<Vec<Event>> = (0..raw.len()).map(|at| whole.tell(&frame(at))).collect();
        for at in 0..raw.len() {
            let mut anew = Telling::new(false);
            let parts: Vec<_> = (0..=at).map(|at| anew.tell(&frame(at))).collect();
            assert_eq!(parts[at], events[at], "{:?}", notes[at]);
        }
        events.into_iter().flatten().collect()
    }

    #[test]
    fn notes_tell_what_no_frame_does() {
        let approval = Uuid::from_u128(5).to_string();
        let events = told(&[
            (
                note::SESSION_OPENED,
                json!({ "how": "new", "user": "ann", "teams": ["a"], "agent": "demo", "cwd": "/w" }),
            ),
            (
                note::JUDGED,
                json!({ "seq": 1, "method": "fs/write_text_file", "decision": "deny", "rule": "r",
                "reason": "no", "revision": "v" }),
            ),
            (note::ASKED, json!({ "approval": approval, "seq": 2, "user": "ann", "approvers": "leads" })),
            (
                note::ANSWERED,
                json!({ "approval": approval, "outcome": "allowed", "by": "lea", "via": "approvals" }),
            ),
            (note::UNMEDIATED, json!({ "toolCallId": "call-1" })),
            (note::UNMEDIATED, json!({ "paths": [{ "path": "/w/.git/config", "change": "changed" }] })),
            (note::GAP, json!({ "from": 4, "to": 6, "count": 3, "reason": "the disk is full" })),
            (note::SHARED, json!({ "with": "user:bob", "as": "driver", "by": "ann" })),
            (note::SESSION_ENDED, json!({ "reason": "closed" })),
            (note::SESSION_OPENED, json!({ "how": "resume", "user": "bob", "agent": "demo", "cwd": "/w" })),
            (note::SESSION_ENDED, json!({ "reason": "closed again" })),
        ]);
        let kinds: Vec<_> = events.iter().map(|event| event.kind.name()).collect();
        assert_eq!(
            kinds,
            [
                "session.opened",
                "permission.decided",
                "approval.asked",
                "permission.decided",
                "approval.answered",
                "action.unmediated",
                "file.write",
                "action.unmediated",
                "recording.gap",
                "session.shared",
                "session.ended",
                "session.reopened",
                "session.ended",
            ]
        );
        assert!(events.iter().all(|event| event.user.as_deref() == Some("ann")), "{events:#?}");
        let by: Vec<_> = events.iter().filter_map(|event| event.by.as_deref()).collect();
        assert_eq!(by, ["lea", "lea"], "whoever owns it needs no second name");
        assert_eq!(events[1].text("rule"), Some("r"));
        assert_eq!(events[12].text("end_reason"), Some("closed again"));
        assert_eq!((events[6].item, events[7].item), (0, 1));
    }

    #[test]
    fn what_is_no_json_tells_nothing_and_stops_nothing() {
        let mut telling = Telling::new(true);
        for raw in [b"\xff\xfe".as_slice(), b"", b"{}", b"[1]", b"{\"method\":\"_conductor/gap\"}"] {
            let frame = FrameView {
                stream: SESSION,
                seq: 1,
                at_us: 1,
                origin: Origin::Conductor,
                to: Destination::Record,
                outgoing: None,
                raw,
            };
            assert!(telling.tell(&frame).len() <= 1);
        }
    }
}
