//! How a process ended: a typed cause with the evidence.

use std::{
    fmt, os::unix::process::ExitStatusExt as _, path::PathBuf, process::ExitStatus, sync::Arc, time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::json;

use super::{MAX_VIOLATIONS, process};
use crate::{frame::MAX_FRAME, journal::Class, record::note, recorder::Recorder};

/// Why a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// By itself.
    Itself,
    /// It closed its stdout and was ended.
    ClosedStdout,
    /// It closed its stdin and was ended.
    ClosedStdin,
    /// It could not be started.
    NotStarted(String),
    /// The directory it was to run in is not there.
    NoDirectory(PathBuf),
    /// It did not finish the handshake in time.
    StartTimeout(Duration),
    /// Its handshake was not one we can work with.
    Handshake(String),
    /// It sent a line longer than a frame may be.
    LineTooLong,
    /// It left its input unread for so long.
    Unread(Duration),
    /// It left its input unread until no more fitted.
    Overrun,
    /// It left a line unfinished for so long; what there was of it.
    Unfinished(Duration, String),
    /// It breached the protocol too often; the last breach.
    Violations(String),
    /// It did not end a cancelled turn in time.
    CancelIgnored(Duration),
    /// It was stopped by a signal for too long.
    Stopped,
    /// We wanted it to; why.
    Asked(&'static str),
}

/// How a process ended: the cause with the evidence.
#[derive(Debug, Clone)]
pub struct Exit {
    /// The agent's name.
    pub agent: Arc<str>,
    /// Its process id; 0 if it never ran.
    pub pid: u32,
    /// Why it ended.
    pub cause: Cause,
    /// Its wait status, exactly.
    pub status: Option<ExitStatus>,
    /// Its last lines on stderr, escaped.
    pub stderr: String,
}

impl Exit {
    /// Whether it counts against the agent.
    pub fn is_crash(&self) -> bool {
        !matches!(self.cause, Cause::Asked(_) | Cause::NoDirectory(_))
    }

    /// Writes it down as the last words of the process.
    pub(super) fn record(&self, mut recorder: Recorder) {
        let signal = self.status.and_then(|status| status.signal()).and_then(|s| Signal::try_from(s).ok());
        let params = json!({
            "reason": self.summary(),
            "code": self.status.and_then(|status| status.code()),
            "signal": signal.map(Signal::as_str),
            "crashed": self.is_crash(),
            "stderr": self.stderr,
        });
        recorder.note(note::PROCESS_ENDED, &params);
        recorder.commit(Class::Stop).ok();
    }

    /// The cause and the status without the evidence, for one table cell.
    pub fn summary(&self) -> String {
        match &self.cause {
            Cause::Itself => process::describe(self.status),
            Cause::ClosedStdout => "closed its stdout and was ended".into(),
            Cause::ClosedStdin => "closed its stdin and was ended".into(),
            Cause::NotStarted(why) => format!("could not be started: {why}"),
            Cause::NoDirectory(path) => format!("cannot run in {}: it is not a directory", path.display()),
            Cause::StartTimeout(after) => format!("did not answer initialize within {after:?} and was ended"),
            Cause::Handshake(why) => format!("was ended after its handshake: {why}"),
            Cause::LineTooLong => format!("sent a line over {} MiB and was ended", MAX_FRAME >> 20),
            Cause::Unread(after) => format!("did not read its input for {after:?} and was ended"),
            Cause::Overrun => "did not read its input while the editor went on, and was ended".into(),
            Cause::Unfinished(after, text) => {
                format!("left a line unfinished for {after:?} and was ended; it began: {text}")
            }
            Cause::Violations(last) => {
                format!("breached the protocol {MAX_VIOLATIONS} times and was ended; the last time: {last}")
            }
            Cause::CancelIgnored(after) => {
                format!("did not end a cancelled turn within {after:?} and was ended")
            }
            Cause::Stopped => "was stopped by a signal for too long and was ended".into(),
            Cause::Asked(why) => format!("was ended: {why}"),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent `{}`", self.agent)?;
        if self.pid != 0 {
            write!(f, " (pid {})", self.pid)?;
        }
        write!(f, " {}", self.summary())?;
        if !self.stderr.is_empty() {
            write!(f, "; last on its stderr:\n{}", self.stderr)?;
        }
        Ok(())
    }
}
