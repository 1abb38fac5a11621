//! `conductor ledger tail`: what happens, as it happens, for people and for machines that
//! keep a record of their own.

use std::time::Duration;

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};
use tonic::{Code, Status};

use super::{
    super::{
        finish::say,
        terminal::{harmless, write},
    },
    COMMAND,
};
use crate::{
    cli::{Global, TailArgs},
    client::Client,
    clock::micros,
    commands::terminal::clean,
    feed::line::time,
    proto::{TailEntry, TailFormat, TailRequest},
};

/// The pause before the service is looked for again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What people have room for: a kind, a user, an agent.
const KIND: usize = 19;
const NAME: usize = 10;

/// Why telling has ended.
enum End {
    /// All was told, or nobody reads any more, or Ctrl-C.
    Done,
    /// The service is away, and may come back.
    Away(String),
}

pub(super) async fn run(global: &Global, args: &TailArgs) -> Result<(), String> {
    let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
    let mut stop =
        Stop { interrupt: listen(SignalKind::interrupt())?, end: listen(SignalKind::terminate())? };
    let mut tail = Tail { args, request: request(args), is_begun: false, pause: FIRST_PAUSE, is_away: false };
    loop {
        let end = tokio::select! {
            biased;
            () = stop.asked() => End::Done,
            end = tail.tell(global) => end?,
        };
        match end {
            End::Done => break,
            End::Away(why) => {
                if !std::mem::replace(&mut tail.is_away, true) {
                    say(COMMAND, &format!("the service is away ({why}); it is waited for"));
                }
                let pause = tail.pause;
                tail.pause = (pause * 2).min(LONGEST_PAUSE);
                tokio::select! {
                    () = stop.asked() => break,
                    () = sleep(pause) => {}
                }
            }
        }
    }
    if args.follow && tail.is_begun {
        say(COMMAND, &format!("goes on with --from {}", tail.request.from));
    }
    Ok(())
}

fn request(args: &TailArgs) -> TailRequest {
    // At least the first microsecond: nothing is older, and 0 means no time.
    let since_us = args.since.map_or(0, |since| micros(since).max(1));
    let from = args.from.clone().unwrap_or_else(|| {
        let is_now = args.follow && args.since.is_none();
        if is_now { "now".to_owned() } else { String::new() }
    });
    let format = match (args.raw, args.ocsf) {
        (true, _) => TailFormat::Frames,
        (_, true) => TailFormat::Ocsf,
        _ => TailFormat::Conductor,
    };
    TailRequest {
        from,
        since_us,
        follow: args.follow,
        format: format.into(),
        include_text: args.text,
        session_id: args.session.clone().unwrap_or_default(),
        user: args.user.clone().unwrap_or_default(),
        agent: args.agent.clone().unwrap_or_default(),
        kinds: args.kind.clone(),
        stream_kind: String::new(),
    }
}

struct Stop {
    interrupt: Signal,
    end: Signal,
}

impl Stop {
    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.end.recv() => {}
        }
    }
}

struct Tail<'a> {
    args: &'a TailArgs,
    /// What to ask for next: behind all that was printed.
    request: TailRequest,
    /// The service has said where it begins.
    is_begun: bool,
    pause: Duration,
    is_away: bool,
}

impl Tail<'_> {
    /// Tells until the service ends it. Nothing is awaited between printing and taking note of
    /// the place behind it, so that this can be dropped at any time.
    async fn tell(&mut self, global: &Global) -> Result<End, String> {
        let client = match Client::connect(global, &self.args.endpoint).await {
            Ok(client) => client,
            // Whoever was let in once waits for the service to come back.
            Err(error) if self.is_begun => return Ok(End::Away(error.message)),
            Err(error) => return Err(error.message),
        };
        let asked = client.history().tail(self.request.clone()).await;
        let mut told = match asked {
            Ok(told) => told.into_inner(),
            Err(status) => return self.ended(&client, &status),
        };
        loop {
            let response = match told.message().await {
                Ok(Some(response)) => response,
                Ok(None) if self.args.follow => return Ok(End::Away("it has ended the call".to_owned())),
                Ok(None) => return Ok(End::Done),
                Err(status) => return self.ended(&client, &status),
            };
            if std::mem::take(&mut self.is_away) {
                say(COMMAND, "the service is back");
            }
            (self.is_begun, self.pause) = (true, FIRST_PAUSE);
            // A cursor says all from here on.
            self.request.since_us = 0;
            for entry in response.entries {
                let line = if self.args.json || self.args.ocsf { entry.json.clone() } else { shown(&entry) };
                let is_read = write(harmless(format!("{line}\n")).as_bytes())?;
                self.request.from = entry.cursor;
                if !is_read {
                    return Ok(End::Done);
                }
            }
            self.request.from = response.cursor;
        }
    }

    /// The call has ended with an error. One that will pass is waited for.
    fn ended(&self, client: &Client, status: &Status) -> Result<End, String> {
        let passes =
            matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Aborted);
        match self.args.follow && self.is_begun && passes {
            true => Ok(End::Away(status.message().to_owned())),
            false => Err(client.explain(status).message),
        }
    }
}

/// One line for people.
fn shown(entry: &TailEntry) -> String {
    let at = time(entry.at_us);
    let (session, user, agent) = (&entry.session_id, dash(&entry.user), dash(&entry.agent));
    // Sessions of one day begin with the same letters, and end with others.
    let short = session.get(session.len().saturating_sub(8)..).unwrap_or(session);
    let line = format!(
        "{} {user:NAME$} {agent:NAME$} {:8} {:KIND$} {}",
        at.get(..23).unwrap_or(&at),
        dash(short),
        entry.kind,
        entry.summary.lines().next().unwrap_or_default(),
    );
    clean(line.trim_end()).into_owned()
}

fn dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}
