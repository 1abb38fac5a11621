//! An editor's own end of `Acp.Connect`, written from the proto file alone: numbers,
//! acks, and a connection that outlives its streams. What the service says of numbers
//! is checked on the way.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use conductor::proto::{
    Ack, ConnectRequest, ConnectResponse, Hello, Run, Welcome, acp_client::AcpClient, connect_request,
    connect_response,
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming, transport::Endpoint};

use crate::{
    findings::{Kind, Trouble},
    shared::{Shared, Way},
};

/// Messages on their way to the service.
const QUEUE: usize = 64;

/// How long a stream may take to be opened. One through a stalled network never is.
const OPENING: Duration = Duration::from_secs(5);

/// How often the other side is asked whether it is there, and how long it may take to say so.
const PULSE: Duration = Duration::from_secs(2);

/// Between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// After our last word, how long the service's may take.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// A connection, whichever stream carries it.
#[derive(Default)]
struct Connection {
    /// Its id and its key; empty before the first welcome.
    id: String,
    key: String,
    /// The last frame that we have taken.
    taken: u64,
    /// The last frame that we have sent, and those that may have to be sent again.
    sent: u64,
    unacknowledged: VecDeque<(u64, String)>,
}

/// One stream.
struct Stream {
    sender: mpsc::Sender<ConnectRequest>,
    answers: Streaming<ConnectResponse>,
}

/// How a stream ended.
#[derive(PartialEq, Eq)]
enum End {
    /// The network or the service broke it.
    Broken,
    /// There is nothing more to carry.
    Over,
}

/// Carries lines until the editor leaves, or the service knows nothing of the connection.
pub async fn carry(
    shared: Arc<Shared>,
    way: Way,
    mut outgoing: mpsc::Receiver<String>,
    incoming: mpsc::Sender<Vec<u8>>,
) {
    let mut connection = Connection::default();
    loop {
        let is_first = connection.id.is_empty();
        let Ok(Ok((stream, welcome))) = timeout(OPENING, connection.open(&shared, &way)).await else {
            if outgoing.is_closed() {
                return;
            }
            sleep(PAUSE).await;
            continue;
        };
        if !is_first && !welcome.resumed {
            return;
        }
        connection.greeted(welcome);
        if connection.pass(&shared, stream, &mut outgoing, &incoming).await == End::Over {
            return;
        }
    }
}

impl Connection {
    async fn open(&self, shared: &Shared, way: &Way) -> Result<(Stream, Welcome)> {
        let channel = Endpoint::from_shared(format!("http://127.0.0.1:{}", shared.launch.port(way)))?
            .http2_keep_alive_interval(PULSE)
            .keep_alive_timeout(PULSE)
            .keep_alive_while_idle(true)
            .connect()
            .await?;
        let hello = Hello {
            client: "soak/1".to_owned(),
            agent: way.agent.to_owned(),
            connection_id: self.id.clone(),
            last_seq: self.taken,
            resume_key: self.key.clone(),
            resumable: true,
            ..Hello::default()
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        sender.try_send(ConnectRequest { kind: Some(connect_request::Kind::Hello(hello)) })?;
        let mut request = Request::new(ReceiverStream::new(receiver));
        request.metadata_mut().insert("authorization", format!("Bearer {}", shared.launch.token()).parse()?);
        let mut client = AcpClient::new(channel).max_decoding_message_size(64 << 20);
        let opened = client.connect(request).await.inspect_err(|status| broken_rule(shared, status));
        let mut answers = opened?.into_inner();
        let first = answers.message().await?.context("no welcome")?;
        let Some(connect_response::Kind::Welcome(welcome)) = first.kind else {
            anyhow::bail!("something else than a welcome")
        };
        Ok((Stream { sender, answers }, welcome))
    }

    fn greeted(&mut self, welcome: Welcome) {
        if welcome.resumed {
            self.acknowledged(welcome.resumed_from_seq);
        }
        (self.id, self.key) = (welcome.connection_id, welcome.resume_key);
    }

    fn acknowledged(&mut self, seq: u64) {
        self.unacknowledged.retain(|(sent, _)| *sent > seq);
    }

    /// Passes lines both ways until the stream ends.
    async fn pass(
        &mut self,
        shared: &Shared,
        Stream { sender, mut answers }: Stream,
        outgoing: &mut mpsc::Receiver<String>,
        incoming: &mpsc::Sender<Vec<u8>>,
    ) -> End {
        // What the service has not taken goes first.
        let mut again: VecDeque<_> = self.unacknowledged.clone();
        let mut acknowledged = self.taken;
        loop {
            tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(message)) => if !self.take(shared, message, incoming).await {
                        return End::Over;
                    },
                    Ok(None) => return End::Broken,
                    Err(status) => {
                        broken_rule(shared, &status);
                        return End::Broken;
                    }
                },
                permit = sender.reserve(), if !again.is_empty() || self.taken > acknowledged => {
                    let Ok(permit) = permit else { return End::Broken };
                    let kind = match again.pop_front() {
                        Some((seq, line)) => run(seq, &line),
                        None => {
                            acknowledged = self.taken;
                            connect_request::Kind::Ack(Ack { seq: acknowledged })
                        }
                    };
                    permit.send(ConnectRequest { kind: Some(kind) });
                }
                line = outgoing.recv(), if again.is_empty() => match line {
                    Some(line) => {
                        self.sent += 1;
                        self.unacknowledged.push_back((self.sent, line.clone()));
                        again.push_back((self.sent, line));
                    }
                    None => break,
                }
            }
        }
        // Half-closed: this is how an editor says that it is over.
        drop(sender);
        let rest = async { while let Ok(Some(_)) = answers.message().await {} };
        let _ = timeout(LAST_WORDS, rest).await;
        End::Over
    }

    /// Takes a message; `false` if nobody wants it.
    async fn take(
        &mut self,
        shared: &Shared,
        message: ConnectResponse,
        incoming: &mpsc::Sender<Vec<u8>>,
    ) -> bool {
        let run = match message.kind {
            Some(connect_response::Kind::Run(run)) => run,
            Some(connect_response::Kind::Ack(ack)) => {
                self.acknowledged(ack.seq);
                return true;
            }
            _ => return true,
        };
        let next = self.taken + 1;
        if run.first_seq != next {
            let kind = if run.first_seq > next { Kind::Lost } else { Kind::Duplicated };
            let words = format!("connection {}: frame {} came, {next} was due", self.id, run.first_seq);
            shared.findings.add(Trouble { kind, count: run.first_seq.abs_diff(next), words });
        }
        self.taken = run.first_seq + u64::from(run.count) - 1;
        for line in run.frames.split_inclusive(|byte| *byte == b'\n') {
            if incoming.send(line.to_vec()).await.is_err() {
                return false;
            }
        }
        true
    }
}

fn run(first_seq: u64, line: &str) -> connect_request::Kind {
    connect_request::Kind::Run(Run { first_seq, count: 1, frames: format!("{line}\n").into() })
}

/// We keep to the rules, so whoever says otherwise has lost count.
fn broken_rule(shared: &Shared, status: &Status) {
    if matches!(status.code(), Code::InvalidArgument | Code::Unauthenticated | Code::NotFound) {
        shared.findings.add(Trouble::one(Kind::Failed, format!("the tunnel was refused: {status}")));
    }
}
