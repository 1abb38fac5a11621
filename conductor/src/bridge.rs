//! `conductor connect`: ACP on stdin and stdout ↔ the tunnel.
//!
//! Starts in milliseconds: one thread, no configuration, no logging set-up.
//! stdout carries ACP and nothing else.

mod in_flight;
mod stdio;

use std::{cell::RefCell, pin::pin, process::ExitCode, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
    time::timeout,
};
use tonic::{Status, Streaming};

use self::in_flight::InFlight;
use crate::{
    acp::{Refusal, code},
    agent::stdio::{Block, LineReader},
    cli::{ConnectArgs, Global},
    client::{Client, Tunnel, Unreachable},
    frame::{Frame, Kind, MAX_FRAME},
    proto::{Ack, ConnectRequest, ConnectResponse, Run, connect_request, connect_response},
};

/// An ack goes out after so many frames.
const ACK_EVERY: u64 = 4096;

/// After the editor's last word, how long the service's may take.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Runs the bridge on this process's stdin and stdout.
pub fn run(global: &Global, args: &ConnectArgs) -> ExitCode {
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
        // Most editors start us in the project's directory.
        let cwd = std::env::current_dir().unwrap_or_default();
        let mut lines = LineReader::new(input, MAX_FRAME);
        let mut output = output;
        let tunnel = match Client::connect(global, &args.endpoint).await {
            Ok(client) => {
                client.tunnel(&args.choice, "conductor-connect", &cwd).await.map(|tunnel| (client, tunnel))
            }
            Err(unreachable) => Err(unreachable),
        };
        match tunnel {
            Ok((client, tunnel)) => match relay(&mut lines, &mut output, tunnel, &client).await {
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
fn fail(message: &str) -> ExitCode {
    eprintln!("conductor connect: {message}");
    ExitCode::FAILURE
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
            output.write_all(&refusal.frame(frame.get(frame.peek().id))).await.ok();
            output.flush().await.ok();
            return;
        }
    }
}

async fn relay(
    lines: &mut LineReader<impl AsyncRead + Unpin>,
    output: &mut (impl AsyncWrite + Unpin),
    tunnel: Tunnel,
    client: &Client,
) -> Result<(), Unreachable> {
    let Tunnel { outgoing, incoming, .. } = tunnel;
    let open = RefCell::new(InFlight::default());
    // Weak, so that the end of the editor's input closes the tunnel.
    let acks = outgoing.downgrade();
    // Refusals of our own go out between the service's frames.
    let (refusals, refused) = mpsc::channel(1);
    let ended = {
        let mut up = pin!(upstream(lines, outgoing, refusals, &open));
        let mut down = pin!(downstream(incoming, refused, acks, output, &open));
        tokio::select! {
            // The editor closed our stdin: it wants us to go. The service sees
            // the tunnel half closed and ends it with its last words.
            () = &mut up => timeout(LAST_WORDS, down).await.unwrap_or(Ok(())),
            ended = &mut down => ended,
        }
    };
    let Err(status) = ended else { return Ok(()) };
    let lost = client.explain(&status);
    let refusals = open.borrow_mut().refusals(&lost.message);
    output.write_all(&refusals).await.ok();
    output.flush().await.ok();
    Err(lost)
}

/// From the editor to the service, until the editor closes its end.
async fn upstream(
    lines: &mut LineReader<impl AsyncRead + Unpin>,
    outgoing: mpsc::Sender<ConnectRequest>,
    refusals: mpsc::Sender<Bytes>,
    open: &RefCell<InFlight>,
) {
    let mut sent = 0;
    loop {
        let frames: Bytes = match lines.next().await {
            Ok(Block::Lines(block)) => block,
            Ok(Block::TooLong) => {
                let text = format!("a line may have {} MiB at most", MAX_FRAME >> 20);
                refusals.send(Refusal::new(code::INVALID_REQUEST, text).frame(b"null")).await.ok();
                match lines.skip_line().await {
                    Ok(true) => continue,
                    _ => return,
                }
            }
            Ok(Block::End(rest)) if !rest.is_empty() => [&rest, &b"\n"[..]].concat().into(),
            Ok(Block::End(_)) | Err(_) => return,
        };
        open.borrow_mut().asked(&frames);
        let count = memchr::memchr_iter(b'\n', &frames).count() as u32;
        let run = Run { first_seq: sent + 1, count, frames };
        sent += u64::from(count);
        let message = ConnectRequest { kind: Some(connect_request::Kind::Run(run)) };
        if outgoing.send(message).await.is_err() {
            return;
        }
    }
}

/// From the service to the editor, until the service ends the tunnel or the
/// editor takes no more.
async fn downstream(
    mut incoming: Streaming<ConnectResponse>,
    mut refused: mpsc::Receiver<Bytes>,
    acks: mpsc::WeakSender<ConnectRequest>,
    output: &mut (impl AsyncWrite + Unpin),
    open: &RefCell<InFlight>,
) -> Result<(), Status> {
    let mut acked = 0;
    loop {
        let (frames, last) = tokio::select! {
            message = incoming.message() => match message? {
                Some(ConnectResponse { kind: Some(connect_response::Kind::Run(run)) }) => {
                    let last = (run.first_seq + u64::from(run.count)).saturating_sub(1);
                    (run.frames, last)
                }
                Some(_) => continue,
                None => return Ok(()),
            },
            Some(refusal) = refused.recv() => (refusal, acked),
        };
        open.borrow_mut().answered(&frames);
        if output.write_all(&frames).await.is_err() || output.flush().await.is_err() {
            return Ok(());
        }
        if last.saturating_sub(acked) >= ACK_EVERY {
            acked = last;
            let ack = ConnectRequest { kind: Some(connect_request::Kind::Ack(Ack { seq: last })) };
            // A full queue means that another one will follow soon.
            acks.upgrade().and_then(|acks| acks.try_send(ack).ok());
        }
    }
}
