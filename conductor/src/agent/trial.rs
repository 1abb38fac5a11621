//! A process that is started, and a session that is opened, only to see what an
//! agent tells of itself.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Attachment, Process, Spec, home::Belongings, process::Launch};
use crate::{
    acp::{self, WorkspaceCapabilities, code},
    config::Agent,
    contain::Premises,
    frame::{Frame, Kind},
    journal::Journal,
    pending::WireId,
};

/// How an agent is started in order to be tried: as for a session in `cwd`, of the user
/// whose belongings these are.
pub fn spec(
    premises: &Premises,
    agent: &Agent,
    program: PathBuf,
    cwd: &Path,
    own: Option<&Belongings>,
    stall_timeout: Duration,
    journal: Option<Journal>,
) -> io::Result<Spec> {
    let cwd = agent.cwd.clone().unwrap_or_else(|| cwd.to_path_buf());
    Ok(Spec {
        agent: agent.name.as_str().into(),
        launch: Launch::prepare(premises, agent, program, cwd, &[], own)?,
        capabilities: WorkspaceCapabilities::ALL,
        start_timeout: agent.start_timeout,
        stall_timeout,
        journal,
    })
}

/// What to do about an agent that does not start.
pub fn start_remedy(agent: &Agent) -> String {
    let command = std::iter::once(&agent.command).chain(&agent.args);
    let command: Vec<&str> = command.map(String::as_str).collect();
    let name = &agent.name;
    format!("run `{}` by hand, mend agents.{name}, or set its enabled = false", command.join(" "))
}

/// A session that was opened.
#[derive(Debug)]
pub struct Trial {
    /// What the agent answered.
    pub told: Value,
    attachment: Attachment,
}

/// Why none could be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// The error's code; 0 if it was none of the agent's.
    pub code: i64,
    /// Its words.
    pub message: String,
}

impl Refused {
    fn ended() -> Self {
        Self { code: 0, message: "it ended".into() }
    }

    fn late(patience: Duration) -> Self {
        Self { code: 0, message: format!("it did not answer within {patience:?}") }
    }

    /// What to do about it.
    pub fn remedy(&self, agent: &str) -> String {
        if self.code == code::AUTH_REQUIRED {
            let login = acp::login::command(agent);
            format!("log in with `{login}`, or name its key in agents.{agent}.env_from")
        } else {
            format!("see what the agent says; set agents.{agent}.enabled = false if it is not wanted")
        }
    }
}

impl Trial {
    /// Opens a session. What the agent asks meanwhile is not answered.
    pub async fn open(process: &Process, cwd: &Path, patience: Duration) -> Result<Self, Refused> {
        let ask = async {
            let mut attachment = process.attach(None).await.ok_or_else(Refused::ended)?;
            let params = json!({ "cwd": cwd, "mcpServers": [] });
            let answer = call(process, &mut attachment, 1, "session/new", &params).await?;
            let told = answer.decode(answer.peek().outcome).unwrap_or_default();
            Ok(Self { told, attachment })
        };
        timeout(patience, ask).await.unwrap_or_else(|_| Err(Refused::late(patience)))
    }

    /// Closes it, if the agent can do that.
    pub async fn close(mut self, process: &Process, patience: Duration) -> Result<(), Refused> {
        if !process.hello.can("close") {
            return Ok(());
        }
        let params = json!({ "sessionId": self.told["sessionId"] });
        let done = call(process, &mut self.attachment, 2, "session/close", &params);
        timeout(patience, done).await.unwrap_or_else(|_| Err(Refused::late(patience))).map(drop)
    }
}

/// Asks the agent something and waits for the answer.
async fn call(
    process: &Process,
    attachment: &mut Attachment,
    number: u32,
    method: &str,
    params: &Value,
) -> Result<Frame, Refused> {
    let id = WireId { slot: attachment.slot, number }.to_string();
    let frame = acp::call(Some(id.clone()), method, params);
    process.input().reserve(frame.len()).await.map_err(|_| Refused::ended())?.send(frame);
    loop {
        let run = attachment.output.recv().await.ok_or_else(Refused::ended)?;
        for frame in (0..run.len()).map(|index| run.frame(index)) {
            let peek = frame.peek();
            match peek.kind {
                Kind::Result if frame.get(peek.id) == id.as_bytes() => return Ok(frame),
                Kind::Error if frame.get(peek.id) == id.as_bytes() => {
                    let error: Value = frame.decode(peek.outcome).unwrap_or_default();
                    let message = process.redacted(error["message"].as_str().unwrap_or_default());
                    return Err(Refused { code: error["code"].as_i64().unwrap_or_default(), message });
                }
                _ => {}
            }
        }
    }
}
