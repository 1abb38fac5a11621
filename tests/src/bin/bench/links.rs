//! Editors without a process of their own: many connections of one client program, on the way that `conductor
//! connect` takes, each with a TCP connection of its own.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use conductor::{
    cli::{ChoiceArgs, EndpointArgs, Global},
    client::{Carry, Client, Former, Tunnel},
    proto::{ConnectRequest, Run, connect_request, connect_response},
};
use memchr::memmem;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::service::Service;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause after an attempt that failed.
const PAUSE: Duration = Duration::from_millis(50);

/// Where the service is, and with which agent its sessions are.
#[derive(Clone)]
pub struct Door {
    global: Global,
    endpoint: EndpointArgs,
    choice: ChoiceArgs,
    cwd: String,
}

impl Door {
    pub fn to(service: &Service, agent: &str) -> Self {
        Self {
            global: Global { state_dir: Some(service.state()) },
            endpoint: EndpointArgs { ca_file: service.ca(), ..EndpointArgs::default() },
            choice: ChoiceArgs { agent: Some(agent.into()), ..ChoiceArgs::default() },
            cwd: service.work().display().to_string(),
        }
    }

    async fn dial(&self, carry: Carry<'_>) -> Result<Tunnel> {
        loop {
            let dialled = async {
                let client = Client::connect(&self.global, &self.endpoint).await?;
                client.tunnel(&self.choice, "bench", Path::new(&self.cwd), carry).await
            };
            match dialled.await {
                // As `connect` does, but not as patiently.
                Err(unreachable) if unreachable.passing => sleep(PAUSE).await,
                dialled => return Ok(dialled?),
            }
        }
    }

    /// Many editors, each with a session, opened a few at a time.
    pub async fn open_many(&self, count: usize) -> Result<Vec<Link>> {
        let (mut opening, mut links) = (JoinSet::new(), Vec::with_capacity(count));
        for _ in 0..count {
            if opening.len() >= 16 {
                links.push(opening.join_next().await.context("none is opened")????);
            }
            let door = self.clone();
            opening.spawn(async move { timeout(PATIENCE, Link::open(&door)).await });
        }
        while let Some(opened) = opening.join_next().await {
            links.push(opened???);
        }
        Ok(links)
    }

    /// All of them come back at the same moment.
    pub async fn resume_all(&self, lost: Vec<Lost>) -> Result<Vec<Link>> {
        let mut coming: JoinSet<_> = lost
            .into_iter()
            .map(|lost| {
                let door = self.clone();
                async move { timeout(PATIENCE, lost.resume(&door)).await }
            })
            .collect();
        let mut links = Vec::with_capacity(coming.len());
        while let Some(back) = coming.join_next().await {
            links.push(back???);
        }
        Ok(links)
    }
}

/// One editor with a session.
pub struct Link {
    tunnel: Tunnel,
    former: Former,
    session: String,
    said: u64,
}

/// One whose stream is gone.
pub struct Lost {
    former: Former,
    session: String,
    said: u64,
}

impl Link {
    /// Does the handshake and opens a session.
    async fn open(door: &Door) -> Result<Self> {
        let tunnel = door.dial(Carry::New).await?;
        let former = Former {
            connection_id: tunnel.welcome.connection_id.clone(),
            resume_key: tunnel.welcome.resume_key.clone(),
            last_seq: 0,
        };
        let mut link = Self { tunnel, former, session: String::new(), said: 0 };
        link.ask("initialize", r#"{"protocolVersion":1,"clientCapabilities":{}}"#).await?;
        let cwd = serde_json::to_string(&door.cwd)?;
        let answer = link.ask("session/new", &format!(r#"{{"cwd":{cwd},"mcpServers":[]}}"#)).await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer)?;
        link.session = answer["result"]["sessionId"].as_str().context("no session")?.to_owned();
        Ok(link)
    }

    /// A short turn.
    pub async fn turn(&mut self) -> Result<()> {
        let prompt = r#"[{"type":"text","text":"n=1 size=64"}]"#;
        let params = format!(r#"{{"sessionId":"{}","prompt":{prompt}}}"#, self.session);
        timeout(PATIENCE, self.ask("session/prompt", &params)).await??;
        Ok(())
    }

    async fn ask(&mut self, method: &str, params: &str) -> Result<Vec<u8>> {
        self.said += 1;
        let id = self.said;
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n");
        let run = Run { first_seq: id, count: 1, frames: line.into() };
        let message = ConnectRequest { kind: Some(connect_request::Kind::Run(run)) };
        self.tunnel.outgoing.send(message).await.context("the stream is closed")?;
        let head = format!("\"id\":{id},");
        loop {
            let message = self.tunnel.incoming.message().await?.context("the stream has ended")?;
            let Some(connect_response::Kind::Run(run)) = message.kind else { continue };
            self.former.last_seq = run.first_seq + u64::from(run.count) - 1;
            let mut lines = run.frames.split(|byte| *byte == b'\n');
            if let Some(line) = lines.find(|line| memmem::find(line, head.as_bytes()).is_some()) {
                if memmem::find(line, b"\"result\":").is_none() {
                    bail!("{method} failed: {}", String::from_utf8_lossy(line));
                }
                return Ok(line.to_vec());
            }
        }
    }

    /// Loses the stream, its TCP connection and all.
    pub fn lose(self) -> Lost {
        Lost { former: self.former, session: self.session, said: self.said }
    }
}

impl Lost {
    async fn resume(self, door: &Door) -> Result<Link> {
        let tunnel = door.dial(Carry::On(&self.former)).await?;
        ensure!(tunnel.welcome.resumed, "the service does not know the connection any more");
        Ok(Link { tunnel, former: self.former, session: self.session, said: self.said })
    }
}
