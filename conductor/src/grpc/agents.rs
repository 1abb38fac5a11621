//! The `Agents` service: the pool as it is, and restarts.

use std::pin::Pin;

use futures_util::{Stream, StreamExt as _};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use super::history::caller;
use crate::{
    connection::Hub,
    pool::{self, AgentStatus},
    proto::{
        Agent, AgentState, ListAgentsRequest, ListAgentsResponse, Process, ProcessState, RestartAgentRequest,
        RestartAgentResponse, WatchAgentsRequest, WatchAgentsResponse, agents_server::Agents,
    },
};

#[derive(Debug)]
pub(super) struct AgentsService {
    hub: Hub,
}

impl AgentsService {
    pub(super) fn new(hub: Hub) -> Self {
        Self { hub }
    }
}

#[tonic::async_trait]
impl Agents for AgentsService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchAgentsResponse, Status>> + Send>>;

    async fn list(&self, _: Request<ListAgentsRequest>) -> Result<Response<ListAgentsResponse>, Status> {
        let agents = self.hub.pool.status().borrow().iter().map(agent).collect();
        Ok(Response::new(ListAgentsResponse { agents }))
    }

    async fn watch(&self, _: Request<WatchAgentsRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let changes = WatchStream::new(self.hub.pool.status());
        let closing = self.hub.closing.clone();
        let messages = changes.map(|all| Ok(WatchAgentsResponse { agents: all.iter().map(agent).collect() }));
        Ok(Response::new(Box::pin(messages.take_until(closing.cancelled_owned()))))
    }

    async fn restart(
        &self,
        request: Request<RestartAgentRequest>,
    ) -> Result<Response<RestartAgentResponse>, Status> {
        if !caller(&request)?.is_admin() {
            // It ends sessions, whosever they are.
            return Err(Status::permission_denied("restarting is for administrators; ask one"));
        }
        let RestartAgentRequest { name, force } = request.into_inner();
        let done = self.hub.pool.restart(name.clone(), force).await;
        let done = done.ok_or_else(|| Status::not_found(format!("there is no agent `{name}`")))?;
        Ok(Response::new(RestartAgentResponse {
            stopped: u32::try_from(done.stopped).unwrap_or(u32::MAX),
            quarantine_lifted: done.quarantine_lifted,
        }))
    }
}

fn agent(status: &AgentStatus) -> Agent {
    let state = match status.state {
        pool::AgentState::Ready => AgentState::Ready,
        pool::AgentState::Unavailable => AgentState::Unavailable,
        pool::AgentState::Quarantined => AgentState::Quarantined,
    };
    Agent {
        name: status.name.to_string(),
        title: status.title.clone(),
        state: state.into(),
        reason: status.reason.clone(),
        command: status.command.clone(),
        is_default: status.is_default,
        processes: status.processes.iter().map(process).collect(),
        restarts: status.restarts,
        last_exit: status.last_exit.clone(),
        max: u32::try_from(status.max).unwrap_or(u32::MAX),
        labels: status.labels.clone().into_iter().collect(),
        version: status.version.clone(),
    }
}

fn process(status: &pool::ProcessStatus) -> Process {
    let state = match status.state {
        pool::ProcessState::Starting => ProcessState::Starting,
        pool::ProcessState::Spare => ProcessState::Spare,
        pool::ProcessState::Leased => ProcessState::Leased,
        pool::ProcessState::Stopping => ProcessState::Stopping,
    };
    Process {
        id: status.id.to_string(),
        pid: status.pid,
        state: state.into(),
        age_ms: u64::try_from(status.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        sessions: u32::try_from(status.sessions).unwrap_or(u32::MAX),
        cwd: status.cwd.display().to_string(),
    }
}
