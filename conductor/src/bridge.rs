//! `conductor connect`: ACP on stdin and stdout ↔ the tunnel.
//!
//! Starts in milliseconds: one thread, no configuration, no logging set-up.
//! stdout carries ACP and nothing else. A tunnel that breaks is replaced, for
//! as long as the editor is there: to the editor a lost network is a pause.

mod in_flight;
mod recall;
mod relay;
mod stdio;
mod uplink;

use std::{path::PathBuf, pin::pin, process::ExitCode, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use self::relay::{Gone, Relay, say_goodbye};
use crate::{
    acp::{Refusal, code},
    agent::stdio::{Block, LineReader},
    cli::{ConnectArgs, Global},
    client::{Carry, Client, Former, Tunnel, Unreachable},
    frame::{Frame, Kind, MAX_FRAME},
    heap,
};

/// After the editor's last word, how long the service's may take.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// After the editor's last word, how long a lost service is looked for, to say
/// good-bye to it.
const FAREWELL: Duration = Duration::from_secs(1);

/// Pauses between attempts to get back begin with this and double, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Runs the bridge on this process's stdin and stdout.
pub fn run(global: &Global, args: &ConnectArgs) -> ExitCode {
    heap::keep_freed();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}")),
    };
    let code = runtime.block_on(async {
        let (input, output) = match (stdio::input(), stdio::output()) {
            (Ok(input), Ok(output)) => (input, output),
            (Err(error), _) | (_, Err(error)) => {
                return fail(&format!("no usable stdin and stdout: {error}"));
            }
        };
        let mut lines = LineReader::new(input, MAX_FRAME);
        let mut output = output;
        // Most editors start us in the project's directory.
        let way = Way { global, args, cwd: std::env::current_dir().unwrap_or_default() };
        match way.open(Carry::New).await {
            Ok(opened) => match carry(&mut lines, &mut output, opened, &way).await {
                Ok(()) => ExitCode::SUCCESS,
                Err(unreachable) => fail(&unreachable.message),
            },
            Err(unreachable) => {
                answer_first(&mut lines, &mut output, &unreachable).await;
                fail(&unreachable.message)
            }
        }
    });
    // A blocked read of a terminal must not keep the process alive.
    runtime.shutdown_background();
    code
}

#[allow(clippy::print_stderr, reason = "this is a program's message to its user")]
fn say(message: &str) {
    eprintln!("conductor connect: {message}");
}

fn fail(message: &str) -> ExitCode {
    say(message);
    ExitCode::FAILURE
}

/// The way to the service. It is looked up anew each time: a service that was
/// restarted may listen elsewhere.
struct Way<'a> {
    global: &'a Global,
    args: &'a ConnectArgs,
    cwd: PathBuf,
}

impl Way<'_> {
    async fn open(&self, carry: Carry<'_>) -> Result<(Client, Tunnel), Unreachable> {
        let client = Client::connect(self.global, &self.args.endpoint).await?;
        let tunnel = client.tunnel(&self.args.choice, "conductor-connect", &self.cwd, carry).await?;
        Ok((client, tunnel))
    }

    /// Tries until the service is there again, or will not have us.
    async fn find_back(&self, carry: Carry<'_>) -> Result<(Client, Tunnel), Unreachable> {
        let mut pause = FIRST_PAUSE;
        loop {
            // Not all at once: many editors lose the same service.
            sleep(pause.mul_f64(random())).await;
            match self.open(carry).await {
                Err(unreachable) if unreachable.passing => pause = (2 * pause).min(LONGEST_PAUSE),
                found => return found,
            }
        }
    }
}

/// Between 0 and 1.
fn random() -> f64 {
    let mut byte = [0];
    getrandom::fill(&mut byte).ok();
    f64::from(byte[0]) / 255.0
}

/// Tells the editor why nothing will work: in answer to its first request,
/// which is where editors show errors.
async fn answer_first(
    lines: &mut LineReader<impl AsyncRead + Unpin>,
    output: &mut (impl AsyncWrite + Unpin),
    unreachable: &Unreachable,
) {
    while let Ok(Block::Lines(block) | Block::End(block)) = lines.next().await {
        if block.is_empty() {
            return;
        }
        let parts = block.split(|byte| *byte == b'\n').map(Bytes::copy_from_slice);
        let request =
            parts.filter_map(|line| Frame::parse(line).ok()).find(|frame| frame.peek().kind == Kind::Request);
        if let Some(frame) = request {
            let refusal = Refusal::new(code::UNREACHABLE, unreachable.message.clone());
            tell(output, &refusal.frame(frame.get(frame.peek().id))).await;
            return;
        }
    }
}

async fn tell(output: &mut (impl AsyncWrite + Unpin), words: &[u8]) {
    output.write_all(words).await.ok();
    output.flush().await.ok();
}

/// Relays between the editor and the service, over one tunnel after the other.
async fn carry(
    lines: &mut LineReader<impl AsyncRead + Unpin>,
    output: &mut (impl AsyncWrite + Unpin),
    opened: (Client, Tunnel),
    way: &Way<'_>,
) -> Result<(), Unreachable> {
    let relay = Relay::default();
    // Refusals of our own go out between the service's frames.
    let (refusals, mut refused) = mpsc::channel(1);
    let mut hearing = pin!(hear(&relay, lines, refusals.clone()));
    // Once the editor has said its last word: until when there is time for ours.
    let mut until: Option<Instant> = None;
    let (mut client, mut tunnel) = opened;
    loop {
        let mut former = Former {
            connection_id: tunnel.welcome.connection_id.clone(),
            resume_key: tunnel.welcome.resume_key.clone(),
            last_seq: 0,
        };
        let Tunnel { outgoing, mut incoming, .. } = tunnel;
        let gone = {
            let acks = outgoing.downgrade();
            let mut up = pin!(relay.up(outgoing, refusals.clone()));
            let mut down = pin!(relay.down(&mut incoming, &mut refused, acks, output));
            let mut is_said = false;
            loop {
                tokio::select! {
                    () = &mut hearing, if until.is_none() => until = Some(Instant::now() + LAST_WORDS),
                    // The service sees the tunnel half closed and ends it with
                    // its last words.
                    () = &mut up, if !is_said => {
                        is_said = true;
                        until = Some(Instant::now() + LAST_WORDS);
                    }
                    gone = &mut down => break gone,
                    () = at(until), if is_said => return Ok(()),
                }
            }
        };
        let lost = match gone {
            Gone::Editor => {
                say_goodbye(&mut incoming, Instant::now() + FAREWELL).await;
                return Ok(());
            }
            Gone::Service(None) if until.is_some() => return Ok(()),
            Gone::Service(None) => None,
            Gone::Service(Some(status)) => Some(client.explain(&status)),
        };
        drop(incoming);
        if let Some(lost) = lost.as_ref().filter(|lost| !lost.passing) {
            return Err(give_up(&relay, output, &lost.message).await);
        }
        if until.is_none() {
            let why = lost.as_ref().map_or("the conductor ended the connection", |lost| &lost.message);
            say(&format!("{why}; trying to get back"));
        }
        former.last_seq = relay.state.borrow().taken;
        let found = {
            // One that cannot be carried on is named all the same, so that the
            // service knows of it.
            let mut found = pin!(way.find_back(Carry::On(&former)));
            loop {
                let farewell = until.map(|until| until.min(Instant::now() + FAREWELL));
                tokio::select! {
                    found = &mut found => break found,
                    () = &mut hearing, if until.is_none() => until = Some(Instant::now() + FAREWELL),
                    () = at(farewell), if until.is_some() => return Ok(()),
                }
            }
        };
        (client, tunnel) = match found {
            Ok(found) => found,
            Err(unreachable) => return Err(give_up(&relay, output, &unreachable.message).await),
        };
        if tunnel.welcome.resumed {
            relay.resumed(tunnel.welcome.resumed_from_seq);
            say("is back; nothing was lost");
        } else {
            let why = "the conductor was restarted before it answered; see what was done, and ask again";
            let words = relay.forgotten(why);
            tell(output, &words).await;
            say("is back, but the service was restarted; open sessions are reopened");
        }
    }
}

/// Listens to the editor until it wants us to go: it closes our stdin, or ends
/// us. Either way the service is to be told.
async fn hear(relay: &Relay, lines: &mut LineReader<impl AsyncRead + Unpin>, refusals: mpsc::Sender<Bytes>) {
    let ended = async {
        let signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)] = signals.map(signal) else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    };
    tokio::select! {
        () = relay.read(lines, refusals) => {}
        () = ended => relay.end(),
    }
}

async fn give_up(relay: &Relay, output: &mut (impl AsyncWrite + Unpin), why: &str) -> Unreachable {
    let words = relay.refusals(why);
    tell(output, &words).await;
    Unreachable { message: why.to_owned(), passing: false }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
