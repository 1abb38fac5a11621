//! One tunnel after the other, for one editor.
//!
//! What the editor says is read all the time and kept until the service has
//! taken it; what the service says is acknowledged once the editor has it. So
//! the loss of a tunnel loses nothing: the next one goes on where it broke.

use std::{cell::RefCell, pin::pin};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::{Notify, mpsc},
    time::{Duration, Instant, sleep_until},
};
use tonic::{Status, Streaming};

use super::{in_flight::InFlight, recall::Recall, uplink::Uplink};
use crate::{
    acp::{Refusal, code},
    agent::stdio::{Block, LineReader},
    frame::MAX_FRAME,
    proto::{Ack, ConnectRequest, ConnectResponse, Run, connect_request, connect_response},
};

/// Bytes of the editor that may wait for the service's acks; then its input is
/// not read.
const KEEP_BYTES: usize = 1 << 20;

/// An ack goes out after so many bytes, or after this time.
const ACK_BYTES: usize = 128 << 10;
const ACK_DELAY: Duration = Duration::from_millis(100);

/// What both directions and all tunnels share.
#[derive(Debug, Default)]
pub(super) struct Relay {
    pub(super) state: RefCell<State>,
    /// The editor has said something, or the service may be told more.
    said: Notify,
    /// The service has taken something.
    room: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) up: Uplink,
    pub(super) open: InFlight,
    pub(super) recall: Recall,
    /// The service's last frame that the editor has.
    pub(super) taken: u64,
    /// What the editor is to be refused, and nobody has taken yet.
    refused: Option<Bytes>,
}

/// Why a tunnel is no more.
pub(super) enum Gone {
    /// The editor takes no more.
    Editor,
    /// The service ended it; without a status it said good-bye.
    Service(Option<Status>),
}

impl Relay {
    /// Reads what the editor says, until it closes its end.
    pub(super) async fn read(
        &self,
        lines: &mut LineReader<impl AsyncRead + Unpin>,
        refusals: mpsc::Sender<Bytes>,
    ) {
        loop {
            while self.state.borrow().up.bytes() >= KEEP_BYTES {
                self.room.notified().await;
            }
            let frames: Bytes = match lines.next().await {
                Ok(Block::Lines(block)) => block,
                Ok(Block::TooLong) => {
                    let text = format!("a line may have {} MiB at most", MAX_FRAME >> 20);
                    refusals.send(Refusal::new(code::INVALID_REQUEST, text).frame(b"null")).await.ok();
                    match lines.skip_line().await {
                        Ok(true) => continue,
                        _ => break,
                    }
                }
                Ok(Block::End(rest)) if !rest.is_empty() => [&rest, &b"\n"[..]].concat().into(),
                Ok(Block::End(_)) | Err(_) => break,
            };
            self.state.borrow_mut().up.push(frames);
            self.said.notify_one();
        }
        self.end();
    }

    /// The editor will say no more.
    pub(super) fn end(&self) {
        self.state.borrow_mut().up.ended = true;
        self.said.notify_one();
    }

    /// From the editor to the service, until all is said.
    pub(super) async fn up(&self, outgoing: mpsc::Sender<ConnectRequest>, refusals: mpsc::Sender<Bytes>) {
        loop {
            // Kept until it is taken: the tunnel may break while it waits for that.
            let refused = self.state.borrow().refused.clone();
            if let Some(refused) = refused {
                refusals.send(refused).await.ok();
                self.state.borrow_mut().refused = None;
            }
            let (run, all) = self.state.borrow_mut().next();
            match run {
                Some(run) => {
                    let message = ConnectRequest { kind: Some(connect_request::Kind::Run(run)) };
                    if outgoing.send(message).await.is_err() {
                        // The tunnel is lost; the other direction tells how.
                        std::future::pending::<()>().await;
                    }
                }
                None if self.state.borrow().refused.is_some() => {}
                None if all => return,
                None => self.said.notified().await,
            }
        }
    }

    /// From the service to the editor, until one of them goes.
    pub(super) async fn down(
        &self,
        incoming: &mut Streaming<ConnectResponse>,
        refused: &mut mpsc::Receiver<Bytes>,
        acks: mpsc::WeakSender<ConnectRequest>,
        output: &mut (impl AsyncWrite + Unpin),
    ) -> Gone {
        let (mut bytes, mut due) = (0, None::<Instant>);
        let mut recalls = false;
        loop {
            let (frames, last) = tokio::select! {
                message = incoming.message() => match message {
                    Ok(Some(ConnectResponse { kind: Some(connect_response::Kind::Run(run)) })) => {
                        let mut state = self.state.borrow_mut();
                        recalls = state.recall.is_waiting();
                        match state.heard(run) {
                            Ok(heard) => heard,
                            Err(status) => return Gone::Service(Some(status)),
                        }
                    }
                    Ok(Some(ConnectResponse { kind: Some(connect_response::Kind::Ack(ack)) })) => {
                        self.state.borrow_mut().up.acknowledged(ack.seq);
                        self.room.notify_one();
                        continue;
                    }
                    Ok(Some(_)) => continue,
                    Ok(None) => return Gone::Service(None),
                    Err(status) => return Gone::Service(Some(status)),
                },
                Some(refusal) = refused.recv() => (refusal, None),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = self.acknowledge(&acks);
                    bytes = 0;
                    continue;
                }
            };
            if output.write_all(&frames).await.is_err() || output.flush().await.is_err() {
                return Gone::Editor;
            }
            let Some(last) = last else { continue };
            self.state.borrow_mut().taken = last;
            // The answers to what was said again may have come.
            if recalls {
                self.said.notify_one();
            }
            bytes += frames.len();
            due = due.or_else(|| Some(Instant::now() + ACK_DELAY));
            if bytes >= ACK_BYTES {
                due = self.acknowledge(&acks);
                bytes = 0;
            }
        }
    }

    /// Acknowledges all that the editor has; when to try again if that fails.
    fn acknowledge(&self, acks: &mpsc::WeakSender<ConnectRequest>) -> Option<Instant> {
        let acks = acks.upgrade()?;
        let ack = Ack { seq: self.state.borrow().taken };
        let sent = acks.try_send(ConnectRequest { kind: Some(connect_request::Kind::Ack(ack)) });
        sent.is_err().then(|| Instant::now() + ACK_DELAY)
    }

    /// The service knows the connection, and has taken the editor's frames up to
    /// this number.
    pub(super) fn resumed(&self, seq: u64) {
        self.state.borrow_mut().up.resumed(seq);
        self.room.notify_one();
    }

    /// The service does not know the connection any more. Gives what the editor
    /// must hear.
    pub(super) fn forgotten(&self, why: &str) -> Vec<u8> {
        let mut state = self.state.borrow_mut();
        let State { up, open, recall, taken, .. } = &mut *state;
        let last_seq = std::mem::take(taken);
        let first = recall.again(|id| open.waits_for(id));
        let asks_again = recall.initialize_id();
        let mut words = open.refusals(why, last_seq, |id| asks_again.is_some_and(|asked| asked == id));
        words.extend_from_slice(&open.withdrawals());
        up.restarted(first);
        self.room.notify_one();
        words
    }

    /// The answers to all that the editor still waits for.
    pub(super) fn refusals(&self, why: &str) -> Vec<u8> {
        let mut state = self.state.borrow_mut();
        let State { up, open, recall, taken, .. } = &mut *state;
        for block in up.rest() {
            open.asked(block, recall);
        }
        open.refusals(why, *taken, |_| false)
    }
}

impl State {
    /// What the service gets next, and whether there will be no more. What the editor is refused
    /// is set aside.
    fn next(&mut self) -> (Option<Run>, bool) {
        let Self { up, open, recall, refused, .. } = self;
        if !up.is_first_ours()
            && let Some(mut block) = up.untried().cloned()
        {
            // The answers to what was said again must be there before anything
            // else is said.
            if recall.is_waiting() {
                let all = up.ended;
                return (None, all);
            }
            if let Some((rest, answers)) = recall.refuse(&block) {
                up.replace(rest.clone());
                block = rest;
                *refused = Some(answers).filter(|answers| !answers.is_empty());
            }
            open.asked(&block, recall);
        }
        let run = up.send();
        let all = run.is_none() && up.ended;
        (run, all)
    }

    /// Checks the numbers of a run. Every stream goes on exactly where the one
    /// before it was left, so anything else was damaged on the way, and comes
    /// again on the next. Gives the lines for the editor, and the number of the
    /// last.
    fn heard(&mut self, run: Run) -> Result<(Bytes, Option<u64>), Status> {
        let Run { first_seq, count, mut frames } = run;
        let lines = memchr::memchr_iter(b'\n', &frames).count();
        if lines != count as usize || frames.last() != Some(&b'\n') {
            return Err(Status::data_loss(format!("a run of {count} frames came that has {lines}")));
        }
        if first_seq != self.taken + 1 {
            let text = format!("frame {first_seq} came, but {} comes next", self.taken + 1);
            return Err(Status::data_loss(text));
        }
        let last = self.taken + u64::from(count);
        if self.recall.is_waiting() {
            frames = self.recall.swallow(&frames);
        }
        self.open.answered(&frames, &mut self.recall);
        Ok((frames, Some(last)))
    }
}

/// Half-closes a tunnel and waits a little for the service to take note: a
/// stream that merely breaks would leave the connection waiting for us.
pub(super) async fn say_goodbye(incoming: &mut Streaming<ConnectResponse>, until: Instant) {
    let mut ended = pin!(async { while let Ok(Some(_)) = incoming.message().await {} });
    tokio::select! {
        () = &mut ended => {}
        () = sleep_until(until) => {}
    }
}
