//! What the fake agent is told to do, as data: a script for the whole process,
//! and steps that scripts and prompts are made of.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::attempt::Attempt;

/// How a process behaves. Read from `FAKE_AGENT_SCRIPT`, which holds the JSON
/// itself or names a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Seed of the `random` step.
    pub seed: u64,
    /// Steps before anything is read.
    pub start: Vec<Step>,
    /// Steps before the answer to a method.
    pub before: BTreeMap<String, Vec<Step>>,
    /// Steps in place of the usual answer to a method.
    pub instead: BTreeMap<String, Vec<Step>>,
    /// Steps after the answer to a method.
    pub after: BTreeMap<String, Vec<Step>>,
    /// `protocolVersion` in the answer to `initialize`; 1 if absent.
    pub version: Option<Value>,
    /// `agentCapabilities`; load, resume, list and close if absent.
    pub capabilities: Option<Value>,
    /// `authMethods`, unless the home has others in `.fake-methods.json`; none if absent.
    pub auth_methods: Option<Value>,
    /// No session is opened until somebody has logged in, which is kept in the home.
    pub needs_login: bool,
    /// Members added to the result of `session/new`, `load` and `resume`.
    pub session: Option<Value>,
    /// Session ids count from "0" in each process, as some agents do.
    pub reuse_session_ids: bool,
    /// Ids of requests are UUIDs, not integers from 0.
    pub uuid_request_ids: bool,
    /// How a cancelled turn ends.
    pub cancel: CancelStyle,
    /// Stay alive when stdin ends.
    pub ignore_eof: bool,
    /// Stay alive on SIGTERM.
    pub ignore_sigterm: bool,
}

/// How a cancelled turn ends.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelStyle {
    /// `stopReason: cancelled`, as the protocol asks.
    #[default]
    Cancelled,
    /// One more update, then `cancelled`.
    UpdateFirst,
    /// `stopReason: end_turn`.
    EndTurn,
    /// Error -32800.
    Error,
    /// Not at all.
    Never,
    /// By the death of the process.
    Die,
}

/// A prompt whose text is such an object is run as steps.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Directive {
    /// The steps; the request is answered after them unless one did so.
    #[serde(rename = "do")]
    pub steps: Vec<Step>,
}

/// One thing to do. In texts, `$sid` is the session's id, `$id` the id of the
/// request being handled and `$terminal` that of the newest terminal.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Streams message chunks.
    Update(Chunks),
    /// Streams chunks of random sizes in writes of random sizes, from the seed.
    Random(usize),
    /// Writes the text and a newline.
    Line(String),
    /// Writes the text and a newline, each byte with its own write.
    Trickle(String),
    /// Writes bytes, given in hexadecimal, verbatim.
    Bytes(String),
    /// Writes one byte value so many times, verbatim.
    Fill(u8, usize),
    /// Runs steps several times.
    Repeat(usize, Vec<Step>),
    /// Sends a request, and by default waits for the answer and streams it
    /// back as a chunk `answer LINE`.
    Request(Request),
    /// Sends a notification.
    Notify(Notify),
    /// Sends `$/cancel_request` for the newest request of this turn.
    CancelRequest,
    /// Waits for the answer of the newest request of this turn and streams it.
    AwaitAnswer,
    /// Answers the request being handled.
    Answer(Answer),
    /// Waits, unless cancelled.
    Sleep(u64),
    /// Waits for `session/cancel`.
    WaitCancel,
    /// Waits until a file exists, unless cancelled.
    WaitFile(String),
    /// Creates a file.
    Touch(String),
    /// Writes a file by itself, and makes the directories above it: path, text.
    Plant(String, String),
    /// Puts a link in the place of whatever file is there: path, target.
    Link(String, String),
    /// Does nothing for ever; not even cancel ends it.
    Hang,
    /// Ends the process.
    Exit(i32),
    /// Ends the process with status 1 if its home has a file of this name.
    ExitIfHomeHas(String),
    /// Sends itself a signal, by number.
    Signal(i32),
    /// Aborts.
    Abort,
    /// Leaves a descendant behind.
    Fork(Fork),
    /// Leaves so many dead children unreaped; streams their pids.
    Zombies(usize),
    /// Writes text to stderr.
    Stderr(String),
    /// Writes so many MiB of lines to stderr.
    StderrFlood(usize),
    /// Closes stdout.
    CloseStdout,
    /// Reads nothing from now on.
    StopReading,
    /// Reads again.
    StartReading,
    /// Survives SIGTERM from now on.
    IgnoreSigterm,
    /// Streams the names in its environment, its working directory and its
    /// open descriptors.
    Describe,
    /// Steps to run after the answer.
    After(Vec<Step>),
    /// Tries things past the protocol, by itself; streams what came of them as one
    /// chunk: a list with `{"ok":…}` or `{"error":"EACCES"}` for each.
    Try(Vec<Attempt>),
    /// Runs steps while another thread swaps what lies at two paths, all the time.
    Swapping(Swapping),
}

/// Steps to run while two paths are swapped.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swapping {
    /// One path.
    pub one: PathBuf,
    /// The other, in the same directory.
    pub other: PathBuf,
    /// The steps.
    pub steps: Vec<Step>,
}

/// Message chunks to stream.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Chunks {
    /// How many.
    pub n: usize,
    /// Number of the first.
    pub first: usize,
    /// At least how long each text is.
    pub size: usize,
    /// What each text starts with; its number follows.
    pub text: String,
    /// Session to name, if not this one.
    pub session: Option<String>,
}

impl Default for Chunks {
    fn default() -> Self {
        Self { n: 1, first: 0, size: 0, text: "chunk ".to_owned(), session: None }
    }
}

/// A request to the editor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Method.
    pub method: String,
    /// Parameters, sent verbatim.
    pub params: Option<Box<RawValue>>,
    /// Id, sent verbatim; the next one if absent.
    pub id: Option<Box<RawValue>>,
    /// Do not wait for the answer.
    #[serde(default)]
    pub forget: bool,
    /// Wait for the answer, but do not stream it: it is in the ledger all the same.
    #[serde(default)]
    pub quiet: bool,
}

/// A notification to the editor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notify {
    /// Method.
    pub method: String,
    /// Parameters, sent verbatim.
    pub params: Option<Box<RawValue>>,
}

/// An answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Result, sent verbatim; `{"stopReason":"end_turn"}` if nothing is given.
    pub result: Option<Box<RawValue>>,
    /// Error, sent verbatim.
    pub error: Option<Box<RawValue>>,
    /// Id, sent verbatim, in place of the right one.
    pub id: Option<Box<RawValue>>,
    /// How often it is sent.
    #[serde(default = "once")]
    pub times: usize,
}

fn once() -> usize {
    1
}

/// A descendant to leave behind: it sleeps for an hour.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fork {
    /// In its own session, its parent gone.
    pub detach: bool,
    /// With no environment at all, as `env -i` leaves it.
    pub clear_env: bool,
    /// Keeps our stdout open.
    pub hold_stdout: bool,
    /// Survives SIGTERM.
    pub ignore_sigterm: bool,
}
