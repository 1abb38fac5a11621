//! The `Agents` service: the pool as it is, restarts, and what can be chosen.

use std::{pin::Pin, sync::Arc};

use futures_util::{Stream, StreamExt as _};
use tokio::sync::Semaphore;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    login,
    looks::Looks,
    rights::{Admitted, caller},
};
use crate::{
    catalogue::{
        Offer,
        listing::{self, Listed},
    },
    config::{self, Secrets},
    connection::Hub,
    contain::Shown,
    identity::{Caller, Person},
    limits::turns::Turns,
    options::Category,
    pool::{self, AgentStatus},
    proto::{
        Agent, AgentModels, AgentState, ListAgentsRequest, ListAgentsResponse, ListModelsRequest,
        ListModelsResponse, LoginRequest, LoginResponse, MissingLayer, ModelChoice, Process, ProcessState,
        RestartAgentRequest, RestartAgentResponse, Sandbox, WatchAgentsRequest, WatchAgentsResponse,
        agents_server::Agents,
    },
};

/// Logins that may go on at the same time, and those of one user; each has a process of
/// its own.
const LOGINS: usize = 16;
const LOGINS_PER_USER: usize = 2;

#[derive(Debug)]
pub(super) struct AgentsService {
    hub: Hub,
    logins: Arc<Semaphore>,
    logins_of_users: Turns,
    looks: Looks,
}

impl AgentsService {
    pub(super) fn new(hub: Hub) -> Self {
        let logins = Arc::new(Semaphore::new(LOGINS));
        Self { hub, logins, logins_of_users: Turns::new(LOGINS_PER_USER), looks: Looks::default() }
    }

    /// Tells of each agent which secrets of the caller's its processes get.
    async fn tell_secrets(&self, caller: &Caller, agents: &mut [Agent]) {
        let config = self.hub.config.borrow().clone();
        let person = Person::owner(&caller.user, caller);
        for agent in agents {
            let settings = config.agents.get(&agent.name);
            let Some(settings) = settings.filter(|agent| agent.secrets != Secrets::Off) else { continue };
            match self.looks.look(self.hub.pool.vault(), &config, settings, &person).await {
                Ok(names) => agent.secrets = names,
                Err(why) => agent.secrets_problem = why,
            }
        }
    }
}

#[tonic::async_trait]
impl Agents for AgentsService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchAgentsResponse, Status>> + Send>>;

    type LoginStream = Pin<Box<dyn Stream<Item = Result<LoginResponse, Status>> + Send>>;

    async fn login(
        &self,
        request: Request<Streaming<LoginRequest>>,
    ) -> Result<Response<Self::LoginStream>, Status> {
        if self.hub.draining.is_cancelled() {
            return Err(Status::unavailable("the service is stopping; try again once it is back"));
        }
        let caller = caller(&request)?;
        let own = self.logins_of_users.of(&caller.user).try_acquire_owned().map_err(|_| {
            let user = &caller.user;
            let text = format!("{LOGINS_PER_USER} logins of user `{user}` go on already; end one of them");
            Status::resource_exhausted(text)
        })?;
        let full = |_| Status::resource_exhausted(format!("{LOGINS} logins go on already; try again later"));
        let place = self.logins.clone().try_acquire_owned().map_err(full)?;
        let told = login::serve(self.hub.clone(), caller, request.into_inner(), [own, place]);
        Ok(Response::new(Box::pin(told)))
    }

    async fn list(
        &self,
        request: Request<ListAgentsRequest>,
    ) -> Result<Response<ListAgentsResponse>, Status> {
        let who = Admitted::of(&request)?;
        let mut agents: Vec<Agent> =
            self.hub.pool.status().borrow().iter().map(|status| agent(status, &who)).collect();
        self.tell_secrets(&who.caller, &mut agents).await;
        Ok(Response::new(ListAgentsResponse { agents }))
    }

    async fn watch(
        &self,
        request: Request<WatchAgentsRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let who = Admitted::of(&request)?;
        let changes = WatchStream::new(self.hub.pool.status());
        let closing = self.hub.closing.clone();
        let messages = changes.map(move |all| {
            let agents = all.iter().map(|status| agent(status, &who)).collect();
            Ok(WatchAgentsResponse { agents })
        });
        Ok(Response::new(Box::pin(messages.take_until(closing.cancelled_owned()))))
    }

    async fn restart(
        &self,
        request: Request<RestartAgentRequest>,
    ) -> Result<Response<RestartAgentResponse>, Status> {
        let RestartAgentRequest { name, force } = request.into_inner();
        let done = self.hub.pool.restart(name.clone(), force).await;
        let done = done.ok_or_else(|| Status::not_found(format!("there is no agent `{name}`")))?;
        // Whatever kept it from telling may be mended now.
        self.hub.catalogue.ask_again(&name);
        Ok(Response::new(RestartAgentResponse {
            stopped: u32::try_from(done.stopped).unwrap_or(u32::MAX),
            quarantine_lifted: done.quarantine_lifted,
        }))
    }

    async fn list_models(
        &self,
        _: Request<ListModelsRequest>,
    ) -> Result<Response<ListModelsResponse>, Status> {
        let (config, offers) = (self.hub.config.borrow().clone(), self.hub.catalogue.offers());
        let statuses = self.hub.pool.status().borrow().clone();
        let known = statuses.iter().filter_map(|status| Some((status, config.agents.get(&*status.name)?)));
        let agents = known.map(|(status, settings)| models(status, settings, offers.get(&*status.name)));
        Ok(Response::new(ListModelsResponse { agents: agents.collect() }))
    }
}

fn models(status: &AgentStatus, settings: &config::Agent, offer: Option<&Offer>) -> AgentModels {
    let choices = |category| -> Vec<ModelChoice> {
        let listed = listing::list(category, settings, offer).into_iter();
        listed.map(|listed| choice(&status.name, listed)).collect()
    };
    AgentModels {
        name: status.name.to_string(),
        title: status.title.clone(),
        state: state(status.state).into(),
        reason: unusable(status, settings, offer),
        is_default: status.is_default,
        hidden: settings.hidden && !status.is_default,
        version: offer.map(|offer| offer.version.clone()).unwrap_or_default(),
        models: choices(Category::Model),
        modes: choices(Category::Mode),
    }
}

/// Why an agent cannot be used, or why it is not known what it offers.
fn unusable(status: &AgentStatus, settings: &config::Agent, offer: Option<&Offer>) -> String {
    match offer {
        _ if status.state != pool::AgentState::Ready => status.reason_told.clone(),
        Some(offer) => offer.problem.clone().unwrap_or_default(),
        None if settings.warm == 0 => {
            format!("not asked yet: agents.{}.warm is 0, so its first session tells", status.name)
        }
        None if settings.is_personal() => {
            "not asked yet: it runs with what each user has of their own, so its first session tells"
                .to_owned()
        }
        None => "not asked yet".to_owned(),
    }
}

fn choice(agent: &str, listed: Listed) -> ModelChoice {
    ModelChoice {
        value: format!("{agent}/{}", listed.value),
        own_value: listed.value,
        name: listed.name,
        description: listed.description.unwrap_or_default(),
        aliases: listed.aliases,
        hidden: listed.hidden,
        is_told: listed.is_told,
        is_default: listed.is_default,
    }
}

fn state(state: pool::AgentState) -> AgentState {
    match state {
        pool::AgentState::Ready => AgentState::Ready,
        pool::AgentState::Unavailable => AgentState::Unavailable,
        pool::AgentState::Quarantined => AgentState::Quarantined,
    }
}

fn agent(status: &AgentStatus, who: &Admitted) -> Agent {
    let hello = status.hellos.of(&Person::owner(&who.caller.user, &who.caller));
    // Where a process of others ran, and what it said, is not for everybody.
    let told = |all: &str, told: &str| if who.sees_all() { all } else { told }.to_owned();
    Agent {
        name: status.name.to_string(),
        title: status.title.clone(),
        state: state(status.state).into(),
        reason: told(&status.reason, &status.reason_told),
        command: status.command.clone(),
        is_default: status.is_default,
        processes: status.processes.iter().map(|status| process(status, who)).collect(),
        restarts: status.restarts,
        last_exit: told(&status.last_exit, &status.last_exit_told),
        max: u32::try_from(status.max).unwrap_or(u32::MAX),
        labels: status.labels.clone().into_iter().collect(),
        version: hello.map(|hello| hello.version().to_owned()).unwrap_or_default(),
        max_per_user: u32::try_from(status.max_per_user).unwrap_or(u32::MAX),
        waiting: u32::try_from(status.waiting).unwrap_or(u32::MAX),
        secrets: Vec::new(),
        secrets_problem: String::new(),
    }
}

fn process(status: &pool::ProcessStatus, who: &Admitted) -> Process {
    let state = match status.state {
        pool::ProcessState::Starting => ProcessState::Starting,
        pool::ProcessState::Spare => ProcessState::Spare,
        pool::ProcessState::Leased => ProcessState::Leased,
        pool::ProcessState::Stopping => ProcessState::Stopping,
    };
    // Where others work is theirs to tell, and a process without a session is
    // ready where somebody did.
    let is_told = who.sees_all() || status.users.iter().any(|user| **user == *who.caller.user);
    Process {
        id: status.id.to_string(),
        pid: status.pid,
        state: state.into(),
        age_ms: u64::try_from(status.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        sessions: u32::try_from(status.sessions).unwrap_or(u32::MAX),
        cwd: if is_told { status.cwd.display().to_string() } else { String::new() },
        sandbox: status.sandbox.as_deref().map(sandbox),
    }
}

fn sandbox(shown: &Shown) -> Sandbox {
    let missing = shown
        .missing
        .iter()
        .map(|missing| MissingLayer { layer: missing.layer.name().into(), why: missing.why.clone() });
    Sandbox {
        mode: shown.mode.into(),
        layers: shown.layers.iter().map(|layer| layer.name().into()).collect(),
        missing: missing.collect(),
    }
}
