//! A login in a terminal: the agent's own program with the arguments that it has named
//! for that, on this host, in the home and with the secrets of who logs in.
//!
//! It is recorded who has logged in where, and how that ended. What is typed and shown
//! is nobody's business: codes and passwords are among it.

use std::{process::ExitStatus, sync::Arc, time::Duration};

use bytes::{Buf as _, Bytes};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::info;
use uuid::Uuid;

use super::{
    process::{self, Interactive, Launch, is_for_loader, spawn_in_terminal},
    pty::Size,
    strays,
};
use crate::{
    acp::login::{Method, TerminalMethod},
    contain::Shown,
    journal::{Class, Journal},
    record::{Stream, StreamKind, note},
    recorder::Recorder,
};

/// A person may have to act in a browser, and to find the other device first.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// After its end, how long what it wrote before may take to read.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// Read at once: a screen or so.
const READ_BYTES: usize = 16 << 10;

/// Who logs in where, and how.
#[derive(Debug)]
pub struct Login {
    agent: Arc<str>,
    user: String,
    method: String,
    launch: Launch,
}

/// What somebody says who logs in.
#[derive(Debug)]
pub enum Said {
    /// What was typed.
    Typed(Bytes),
    /// Their terminal has another size.
    Resized(Size),
}

/// How a login ended.
#[derive(Debug)]
pub enum End {
    /// By itself.
    Ended(Option<ExitStatus>),
    /// Whoever began it has gone.
    Left,
    /// The service ends.
    Stopped,
    /// It took too long.
    Late,
}

impl End {
    /// Whether somebody is logged in now.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Ended(Some(status)) if status.success())
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(status) => f.write_str(&process::describe(*status)),
            Self::Left => f.write_str("was ended, because whoever began it has gone"),
            Self::Stopped => f.write_str("was ended, because the service is stopping"),
            Self::Late => write!(f, "was ended after {} minutes", TIMEOUT.as_secs() / 60),
        }
    }
}

impl Login {
    /// Makes a login of how the agent is started for this user.
    pub fn new(
        agent: Arc<str>,
        user: String,
        method: &Method,
        terminal: &TerminalMethod,
        mut launch: Launch,
    ) -> Result<Self, String> {
        let TerminalMethod { args, env } = terminal;
        let nul = |text: &String| text.contains('\0');
        // The guard runs with the same environment.
        let is_bad = |name: &String| name.is_empty() || name.contains('=') || is_for_loader(name.as_bytes());
        if args.iter().chain(env.keys()).chain(env.values()).any(nul) || env.keys().any(is_bad) {
            return Err(format!("agent `{agent}` asks for arguments or variables that no program is given"));
        }
        launch.args.extend(args.iter().cloned());
        launch.env.extend(env.iter().map(|(name, value)| (name.into(), value.into())));
        Ok(Self { agent, user, method: method.id.clone(), launch })
    }

    /// Tells the program what kind of terminal it is in.
    pub fn term(&mut self, term: &str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
        if !term.is_empty() && term.len() <= 64 && term.chars().all(is_plain) {
            self.launch.env.insert("TERM".into(), term.into());
        }
    }

    /// Runs it to its end, which is recorded, or says why it cannot be run. It ends at the
    /// latest when whoever began it has `left`, or with the service.
    pub async fn run(
        self,
        size: Size,
        mut said: mpsc::Receiver<Said>,
        told: mpsc::Sender<Bytes>,
        left: CancellationToken,
        stopping: CancellationToken,
        journal: Journal,
    ) -> Result<End, String> {
        let id = Uuid::now_v7();
        let stream = Stream { id, kind: StreamKind::Process };
        let mut recorder = Recorder::new(Some(journal), stream);
        recorder.know_all(&self.launch.known);
        let container = self.launch.container(id).await?;
        let mut interactive = match spawn_in_terminal(&self.launch, &container, size).await {
            Ok(interactive) => interactive,
            Err(why) => {
                tokio::task::spawn_blocking(move || container.clear()).await.ok();
                return Err(why);
            }
        };
        let pid = interactive.pid;
        recorder.note(note::PROCESS_STARTED, &self.started(pid, &container.shown(&interactive.held)));
        recorder.commit(Class::Stop).ok();
        let end = tokio::select! {
            biased;
            // Also while it does not read what was typed.
            () = left.cancelled() => End::Left,
            () = stopping.cancelled() => End::Stopped,
            end = converse(&mut interactive, &mut said, &told) => end,
        };
        if !matches!(end, End::Ended(_)) {
            interactive.guarded.kill().await;
        }
        strays::end(pid).await;
        tokio::task::spawn_blocking(move || container.clear()).await.ok();
        let status = if let End::Ended(status) = &end { *status } else { None };
        let params = json!({
            "reason": end.to_string(),
            "code": status.and_then(|status| status.code()),
            "signal": null,
            "crashed": false,
            "stderr": "",
        });
        recorder.note(note::PROCESS_ENDED, &params);
        recorder.commit(Class::Stop).ok();
        info!(agent = %self.agent, user = self.user, method = self.method, how = %end, "a login has ended");
        Ok(end)
    }

    fn started(&self, pid: u32, sandbox: &Shown) -> serde_json::Value {
        json!({
            "agent": &*self.agent,
            "pid": pid,
            "command": self.launch.program.to_string_lossy(),
            "args": self.launch.args,
            "cwd": self.launch.cwd.to_string_lossy(),
            "sandbox": sandbox,
            "login": { "user": self.user, "method": self.method },
        })
    }
}

/// Passes on what is typed and shown. Neither side waits for the other: what does not
/// fit is held, and that side is not read meanwhile.
async fn converse(
    interactive: &mut Interactive,
    said: &mut mpsc::Receiver<Said>,
    told: &mpsc::Sender<Bytes>,
) -> End {
    let Interactive { pty, guarded, .. } = interactive;
    let late = Instant::now() + TIMEOUT;
    let mut buffer = vec![0; READ_BYTES];
    let (mut typed, mut shown) = (Bytes::new(), Bytes::new());
    let mut ended: Option<(Option<ExitStatus>, Instant)> = None;
    let mut open = true;
    loop {
        if let Some((status, drained_by)) = ended
            && (shown.is_empty() && !open || Instant::now() >= drained_by)
        {
            return End::Ended(status);
        }
        tokio::select! {
            permit = told.reserve(), if !shown.is_empty() => match permit {
                Ok(permit) => permit.send(std::mem::take(&mut shown)),
                Err(_) => return End::Left,
            },
            heard = said.recv(), if typed.is_empty() => match heard {
                Some(Said::Typed(bytes)) => typed = bytes,
                Some(Said::Resized(size)) => pty.resize(size),
                None => return End::Left,
            },
            count = pty.write(&typed), if !typed.is_empty() => match count {
                Ok(count) => typed.advance(count),
                Err(_) => typed.clear(),
            },
            count = pty.read(&mut buffer), if open && shown.is_empty() => match count {
                Ok(count @ 1..) => shown = Bytes::copy_from_slice(&buffer[..count]),
                _ => open = false,
            },
            status = guarded.wait(), if ended.is_none() => {
                ended = Some((status.ok(), Instant::now() + DRAIN_GRACE));
            }
            () = sleep_until(ended.map_or(late, |(_, drained_by)| drained_by)) => {
                if ended.is_none() {
                    return End::Late;
                }
            }
        }
    }
}
