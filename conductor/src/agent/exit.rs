//! How a process ended: a typed cause with the evidence, and the end of what is left of it.

use std::{
    fmt, os::unix::process::ExitStatusExt as _, path::PathBuf, process::ExitStatus, sync::Arc, time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::json;
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    DRAIN_GRACE, MAX_VIOLATIONS, Spec,
    process::{self, Guarded, Reason},
    strays,
};
use crate::{
    contain::Container,
    frame::MAX_FRAME,
    journal::Class,
    record::note,
    recorder::Recorder,
    redact::{Known, Redaction},
};

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
    /// What it is to be given of its user's is not to be had.
    NoSecrets(String),
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
    /// It took more memory than these bytes.
    TooMuchMemory(u64),
    /// It had more processes and threads than these.
    TooManyProcesses(u64),
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
        !matches!(self.cause, Cause::Asked(_) | Cause::NoDirectory(_) | Cause::NoSecrets(_))
    }

    /// The same without secrets: it is recorded, logged, and shown to everybody who waits for
    /// this agent.
    pub(super) fn redacted(self, redaction: &Redaction, known: &Known) -> Self {
        let clean = |text: String| redaction.text(known, &text).into_owned();
        let cause = match self.cause {
            Cause::NotStarted(why) => Cause::NotStarted(clean(why)),
            Cause::Handshake(why) => Cause::Handshake(clean(why)),
            Cause::Unfinished(after, text) => Cause::Unfinished(after, clean(text)),
            Cause::Violations(last) => Cause::Violations(clean(last)),
            cause => cause,
        };
        Self { cause, stderr: clean(self.stderr), ..self }
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
            Cause::NoSecrets(why) => format!("was not started: {why}"),
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
            Cause::TooMuchMemory(limit) => {
                format!("went over its memory limit of {} MiB and was ended", limit >> 20)
            }
            Cause::TooManyProcesses(limit) => {
                format!("went over its limit of {limit} processes and was ended")
            }
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

/// Ends what is left of a process and writes its exit record.
pub(super) async fn finish(
    spec: &Spec,
    container: &Container,
    pid: u32,
    (cause, status): (Cause, Option<ExitStatus>),
    guarded: &mut Guarded,
    closing: &CancellationToken,
    words: &mut JoinSet<String>,
) -> Exit {
    closing.cancel();
    let status = match status {
        Some(status) => Some(status),
        None => {
            // Only a process that merely was no longer needed is asked nicely.
            let patient = matches!(cause, Cause::Asked(_) | Cause::Itself);
            guarded.end(patient).await
        }
    };
    end_strays(pid, status).await;
    // What it was ended for shows itself as its own end, or as that of its output.
    let unexplained = matches!(cause, Cause::Itself | Cause::ClosedStdout | Cause::ClosedStdin);
    let reason = if unexplained { guarded.reason().await } else { None };
    let limits = &container.terms.limits;
    let cause = match reason {
        Some(Reason::Stopped) => Cause::Stopped,
        Some(Reason::Memory) => Cause::TooMuchMemory(limits.memory.unwrap_or_default()),
        Some(Reason::Processes) => Cause::TooManyProcesses(limits.processes.unwrap_or_default()),
        None => cause,
    };
    // Nothing holds the pipe any more, so its end is near.
    let stderr = match timeout(DRAIN_GRACE, words.join_next()).await {
        Ok(Some(Ok(text))) => text,
        _ => String::new(),
    };
    Exit { agent: spec.agent.clone(), pid, cause, status, stderr }
}

/// It may have been the guard that was killed: then what the agent had started is ended here,
/// before anything is waited for that it may hold.
pub(super) async fn end_strays(pid: u32, status: Option<ExitStatus>) {
    if status.is_some_and(|status| status.signal() == Some(Signal::SIGKILL as i32)) {
        strays::end(pid).await;
    }
}

/// Takes away what a process has left in its container.
pub(super) async fn clear(container: Arc<Container>) {
    tokio::task::spawn_blocking(move || container.clear()).await.ok();
}
