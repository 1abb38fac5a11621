//! What is written down, and how it is named: streams, sequence numbers,
//! origins, and the notes the conductor adds. No I/O.
//!
//! A frame is recorded once, as it came but for secrets, where it enters or where we
//! originate it. What happens without a frame (a process ended, a session was bound) is
//! recorded as a *note*: a notification of ours that is never forwarded, so
//! that the ledger's derived tables come from frames alone and can be rebuilt
//! from them.

use std::time::SystemTime;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::clock::micros;

/// What a frame belongs to and is numbered in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream {
    /// Which one.
    pub id: Uuid,
    /// What sort it is.
    pub kind: StreamKind,
}

/// The sorts of streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StreamKind {
    /// A conversation.
    Session = 1,
    /// One child of an agent: handshake, strays, its end.
    Process = 2,
    /// One editor's connection: handshake, what concerns no session.
    Connection = 3,
    /// A grant: who gave it, and how it ended.
    Grant = 4,
}

/// Who made a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Origin {
    /// It came from the editor.
    Editor = 1,
    /// It came from the agent.
    Agent = 2,
    /// We made it.
    Conductor = 3,
}

/// Whom a frame is for. What comes from the editor is for the agent and the
/// other way round, whether or not it was passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Destination {
    /// Nobody: a note.
    Record = 0,
    /// The editor.
    Editor = 1,
    /// The agent.
    Agent = 2,
}

macro_rules! codes {
    ($type:ty: $($code:literal $name:literal => $value:expr),+ $(,)?) => {
        impl $type {
            /// The value with this number in the journal.
            pub fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some($value),)+ _ => None }
            }

            /// Its name in the ledger.
            pub fn name(self) -> &'static str {
                match self as u8 { $($code => $name,)+ _ => "unknown" }
            }

            /// The value with this name in the ledger.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some($value),)+ _ => None }
            }
        }
    };
}

codes!(StreamKind: 1 "session" => Self::Session, 2 "process" => Self::Process, 3 "connection" => Self::Connection, 4 "grant" => Self::Grant);
codes!(Origin: 1 "editor" => Self::Editor, 2 "agent" => Self::Agent, 3 "conductor" => Self::Conductor);
codes!(Destination: 0 "record" => Self::Record, 1 "editor" => Self::Editor, 2 "agent" => Self::Agent);

/// The methods of our notes. Their params are documented at the places that
/// write them; `ledger::project` reads them.
pub mod note {
    /// An editor has connected: `user`, `teams`, `client`.
    pub const CONNECTED: &str = "_conductor/connected";
    /// It has gone: `reason`.
    pub const DISCONNECTED: &str = "_conductor/disconnected";
    /// The editor's stream broke, and it did not come back at once.
    pub const DETACHED: &str = "_conductor/detached";
    /// A new stream carries the connection on.
    pub const REATTACHED: &str = "_conductor/reattached";
    /// A process was started: `agent`, `command`, `args`, `cwd`, `pid`; `sandbox`, what holds
    /// it: `mode`, `layers` and `missing`, each with `layer` and `why`.
    pub const PROCESS_STARTED: &str = "_conductor/process_started";
    /// What it had started outlived it and the service, and was ended at the next start:
    /// `processes`, each with `pid` and `command`.
    pub const LEFTOVERS_ENDED: &str = "_conductor/leftovers_ended";
    /// It has ended: `reason`, `code`, `signal`, `crashed`, `stderr`.
    pub const PROCESS_ENDED: &str = "_conductor/process_ended";
    /// The process was started to be asked, and has told what the agent offers:
    /// `agent`, `version`, `models` and `modes`, each with `value` and `name`.
    pub const CATALOGUE: &str = "_conductor/catalogue";
    /// A session is opened: `how` (new, load, resume), `user`, `teams`, `agent`,
    /// `cwd`, `repository`, `connection`.
    pub const SESSION_OPENED: &str = "_conductor/session_opened";
    /// It has a process: `binding`, `process`, `agent`, `picker` (editors are shown
    /// options in our form); once the agent has agreed, `agentSession`, `how` (new,
    /// resume, load, handover, back) and `number`, the how many-th session of an
    /// agent's it is.
    pub const SESSION_BOUND: &str = "_conductor/session_bound";
    /// Where the next prompt goes was decided: `agent`; `how` (named, route, model,
    /// bound, default) and `reason`, the same in words; `route`, by its name; `model`
    /// and `mode` that the agent is set to; `from`, the agent before; `attempt`, 0 for
    /// the first choice; `failed`, why the one before could not take it.
    pub const ROUTED: &str = "_conductor/routed";
    /// The agent is told of the past in front of the prompt that follows: `text`.
    pub const HANDOVER: &str = "_conductor/handover";
    /// The prompt beside it was handed on with this `traceparent` in its `_meta`, because
    /// traces are collected.
    pub const TRACED: &str = "_conductor/traced";
    /// Its process was released because nothing happened: `after`, in seconds.
    pub const SESSION_PARKED: &str = "_conductor/session_parked";
    /// Someone took a seat beside its editor: `user`, `as` (driver, observer),
    /// `seat`.
    pub const SEATED: &str = "_conductor/seated";
    /// They have left it: `user`, `seat`.
    pub const UNSEATED: &str = "_conductor/unseated";
    /// The frame that comes next was said by this `user`, not the owner.
    pub const BY: &str = "_conductor/by";
    /// The answer that comes next does not count, because it chooses nothing and
    /// others may still decide, or because it was not for this `user` to give.
    pub const DECLINED: &str = "_conductor/declined";
    /// What a repository and users add to the rules: `rules`, each with `origin` and `text`.
    /// Decisions that were made with these name the frame.
    pub const NARROWED: &str = "_conductor/narrowed";
    /// The policy has judged a request, frame `seq`: `decision` (allow, ask, deny) as it counts,
    /// and `ruled`, the same before grants; `rule`, `rules`, `reason`, `revision`; `subject`, who
    /// asked, and `subActions`, which are all that was judged; `tookUs`, and the request's
    /// `method`.
    pub const JUDGED: &str = "_conductor/judged";
    /// A grant was given, in its own stream, or in that of the session in which somebody chose
    /// to be asked no more: `grant`, `scope` (session, root, user, team) and `scopeName`,
    /// `what` in words and as `parts`, `by` and their `teams`, `reason`, `expiresUs`, `mostUses`.
    pub const GRANTED: &str = "_conductor/granted";
    /// People are asked about a request, frame `seq`: `approval` (the question's id), `user`
    /// (for whom), `approvers` and `terms` (who may answer), `isShown` (in the session, too),
    /// `rule`, `reason`, `dueUs`.
    pub const ASKED: &str = "_conductor/asked";
    /// What became of that: `approval`, `outcome` (allowed, rejected, timed_out, cancelled),
    /// `by`, `via` (editor, approvals), `reason`.
    pub const ANSWERED: &str = "_conductor/answered";
    /// A grant has allowed what frame `seq` asks: `grant`, the `number` of this use, how many
    /// are `left`, and the `subActions` that it allowed.
    pub const GRANT_USED: &str = "_conductor/grant_used";
    /// A grant was taken back before its time: `grant`, `by`, `reason`.
    pub const GRANT_REVOKED: &str = "_conductor/grant_revoked";
    /// Something was done without asking. By a tool call: `toolCallId`. By whatever ran during the
    /// turn: `paths`, protected ones, each with `path` and `change` (appeared, changed, removed),
    /// and how many `more`.
    pub const UNMEDIATED: &str = "_conductor/unmediated";
    /// Not all that is protected could be looked at before and after a turn: `paths`.
    pub const UNSEEN: &str = "_conductor/unseen";
    /// The agent has changed a tool call after it was allowed: `toolCallId`, and the
    /// `subActions` that it would now do.
    pub const CHANGED: &str = "_conductor/changed";
    /// The agent shows no sign of work in the running turn: `after`, in seconds.
    pub const TURN_STALLED: &str = "_conductor/turn_stalled";
    /// It has ended: `reason`; if the conductor was killed, `lastSeq`, the last
    /// number then, and `interrupted`, the prompt whose turn ran.
    pub const SESSION_ENDED: &str = "_conductor/session_ended";
    /// It is shared: `with` (user:NAME or team:NAME), `as` (driver, observer), `by`.
    pub const SHARED: &str = "_conductor/shared";
    /// It is shared no longer: `with`, `by`.
    pub const UNSHARED: &str = "_conductor/unshared";
    /// Frames that could not be recorded: `from`, `to`, `count`, `reason`.
    pub const GAP: &str = "_conductor/gap";
    /// Recording stopped or went on again: `reason`.
    pub const RECORDING: &str = "_conductor/recording";
}

/// A note as a frame.
pub fn note(method: &str, params: &Value) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string().into_bytes()
}

/// Now, in microseconds since 1970.
pub fn now_us() -> i64 {
    micros(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_values_agree() {
        for code in 0..=255 {
            for back in [
                StreamKind::from_code(code).map(|value| value as u8),
                Origin::from_code(code).map(|value| value as u8),
                Destination::from_code(code).map(|value| value as u8),
            ] {
                assert!(back.is_none_or(|back| back == code));
            }
        }
        assert_eq!(Destination::Record.name(), "record");
        assert_eq!(Origin::from_code(0), None);
    }
}
