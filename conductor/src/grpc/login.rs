//! `Agents.Login`: messages of the stream ↔ a login of somebody to an agent.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream};
use serde_json::json;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::{sessions::inner, tunnel::no_agent};
use crate::{
    acp::{
        EditorCapabilities,
        login::{Method, TerminalMethod, shared_home},
    },
    agent::{
        login::{Login, Said},
        pty::Size,
    },
    config::{self, Home},
    connection::{Greeting, Hub, may_use},
    frame::escape,
    identity::{Caller, Person, Role, check_name},
    pool::{Key, Prepared, Purpose, Unavailable},
    proto::{
        LoginEnded, LoginRequest, LoginResponse, LoginStart, LoginStarted, WindowSize, login_request,
        login_response,
    },
    session::berth::{key, roots_of},
};

/// How long whoever opens the stream may take to say what for.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages that may wait for either side; a terminal that is not looked at stops.
const WAITING: usize = 8;

/// After its end, how long whoever began it may take to hear of it.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Bytes that may be typed at once.
const MOST_INPUT: usize = 64 << 10;

type Told = mpsc::Sender<Result<LoginResponse, Status>>;

/// Serves a login in a task of its own; what it says.
pub(super) fn serve(
    hub: Hub,
    caller: Caller,
    messages: Streaming<LoginRequest>,
    places: [OwnedSemaphorePermit; 2],
) -> impl Stream<Item = Result<LoginResponse, Status>> + Send {
    let (told, telling) = mpsc::channel(WAITING);
    hub.clone().tasks.start("login", async move {
        let last = match converse(&hub, caller, messages, &told).await {
            Ok(ended) => Ok(LoginResponse { kind: Some(login_response::Kind::Ended(ended)) }),
            Err(status) => Err(status),
        };
        timeout(LAST_WORDS, told.send(last)).await.ok();
        drop(places);
    });
    ReceiverStream::new(telling)
}

async fn converse(
    hub: &Hub,
    caller: Caller,
    mut messages: Streaming<LoginRequest>,
    told: &Told,
) -> Result<LoginEnded, Status> {
    let stopped = || Status::unavailable("the service is stopping; try again once it is back");
    let beginning = hub.closing.run_until_cancelled(begin(hub, caller, &mut messages));
    let (caller, start, agent, method) = beginning.await.ok_or_else(stopped)??;
    let has_terminal = method.terminal.is_some();
    let started = LoginStarted { method: method.id.clone(), user: caller.user.clone(), has_terminal };
    say(told, login_response::Kind::Started(started)).await;
    match &method.terminal {
        // It sees by itself that the service stops, since its end must be on record.
        Some(terminal) => {
            in_terminal(hub, &caller, &start, &agent, (&method, terminal), messages, told).await
        }
        None => {
            let asking = by_agent(hub, &caller, &agent, &method);
            hub.closing.run_until_cancelled(asking).await.ok_or_else(stopped)
        }
    }
}

/// Hears who is to be logged in where, and finds out how.
async fn begin(
    hub: &Hub,
    caller: Caller,
    messages: &mut Streaming<LoginRequest>,
) -> Result<(Caller, LoginStart, config::Agent, Method), Status> {
    let first = timeout(START_TIMEOUT, messages.message()).await;
    let first = first.map_err(|_| Status::invalid_argument("the stream did not begin in time"))??;
    let Some(LoginRequest { kind: Some(login_request::Kind::Start(start)) }) = first else {
        return Err(Status::invalid_argument("the first message must be `start`"));
    };
    let caller = whom(caller, &start)?;
    let (agent, method) = choose(hub, &caller, &start).await?;
    Ok((caller, start, agent, method))
}

async fn say(told: &Told, kind: login_response::Kind) {
    told.send(Ok(LoginResponse { kind: Some(kind) })).await.ok();
}

/// For whom it is.
fn whom(caller: Caller, start: &LoginStart) -> Result<Caller, Status> {
    if start.user.is_empty() || start.user == caller.user {
        return Ok(caller);
    }
    if !caller.is_admin() {
        return Err(Status::permission_denied("logging others in is for administrators; leave --user out"));
    }
    check_name("user", &start.user).map_err(Status::invalid_argument)?;
    Ok(Caller { user: start.user.clone(), teams: Vec::new(), roles: vec![Role::Developer] })
}

/// The agent, and the way to log in to it.
async fn choose(hub: &Hub, caller: &Caller, start: &LoginStart) -> Result<(config::Agent, Method), Status> {
    let config = hub.config.borrow().clone();
    let name = escape(start.agent.as_bytes(), 100);
    let unknown = || Status::not_found(no_agent(&config, &start.agent));
    let agent = config.agents.get(&start.agent).cloned().ok_or_else(unknown)?;
    may_use(hub, caller, &agent.name).map_err(|refusal| Status::permission_denied(refusal.message))?;
    let hello = hub.pool.hello(key_of(hub, caller, &agent), &caller.user, Purpose::Login).await;
    let hello = hello.map_err(|why| {
        let text = format!("agent `{name}` could not be asked how one logs in: {why}");
        match why {
            Unavailable::Full(_) => Status::resource_exhausted(text),
            Unavailable::Failed(_) => Status::failed_precondition(text),
        }
    })?;
    let methods = hello.methods();
    let list = |methods: &[Method]| {
        let ids: Vec<String> = methods.iter().map(|method| escape(method.id.as_bytes(), 100)).collect();
        ids.join(", ")
    };
    let method = match methods.as_slice() {
        [] => return Err(Status::failed_precondition(format!("agent `{name}` offers no way to log in"))),
        [only] if start.method.is_empty() => only.clone(),
        several if start.method.is_empty() => {
            let text = format!(
                "agent `{name}` has several ways to log in; choose one with --method: {}",
                list(several)
            );
            return Err(Status::failed_precondition(text));
        }
        several => several.iter().find(|method| method.id == start.method).cloned().ok_or_else(|| {
            let wanted = escape(start.method.as_bytes(), 100);
            Status::not_found(format!(
                "agent `{name}` has no way `{wanted}` to log in; its ways are: {}",
                list(several)
            ))
        })?,
    };
    check_home(&agent, caller)?;
    Ok((agent, method))
}

/// Refuses to let anybody but an administrator log in to a home that others share.
fn check_home(agent: &config::Agent, caller: &Caller) -> Result<(), Status> {
    if agent.home != Home::User && !caller.is_admin() {
        return Err(Status::permission_denied(shared_home(&agent.name)));
    }
    Ok(())
}

/// The key of the process that a session of theirs would have.
fn key_of(hub: &Hub, caller: &Caller, agent: &config::Agent) -> Key {
    let config = hub.config.borrow().clone();
    let cwd = roots_of(&config, &agent.name).first().cloned().unwrap_or_else(|| "/".into());
    let person = Person::owner(&caller.user, caller);
    key(&config, agent.name.as_str().into(), &person, &cwd, EditorCapabilities::default())
}

async fn in_terminal(
    hub: &Hub,
    caller: &Caller,
    start: &LoginStart,
    agent: &config::Agent,
    (method, terminal): (&Method, &TerminalMethod),
    mut messages: Streaming<LoginRequest>,
    told: &Told,
) -> Result<LoginEnded, Status> {
    let prepared = hub.pool.prepare(key_of(hub, caller, agent)).await;
    let Prepared { launch, agent } = prepared.map_err(|why| Status::failed_precondition(why.to_string()))?;
    // A reload may have made it a home that is shared.
    check_home(&agent, caller)?;
    let name: Arc<str> = agent.name.as_str().into();
    let login = Login::new(name, caller.user.clone(), method, terminal, launch);
    let mut login = login.map_err(Status::failed_precondition)?;
    login.term(&start.term);
    let size = start.window.map(size_of).unwrap_or_default();
    let left = CancellationToken::new();
    let (said, hearing) = mpsc::channel(WAITING);
    let (show, mut shown) = mpsc::channel::<Bytes>(1);
    let hearing_out = async {
        while let Ok(Some(message)) = messages.message().await {
            let heard = match message.kind {
                Some(login_request::Kind::Input(typed)) if typed.len() <= MOST_INPUT => {
                    Said::Typed(typed.into())
                }
                Some(login_request::Kind::Resized(window)) => Said::Resized(size_of(window)),
                _ => break,
            };
            if said.send(heard).await.is_err() {
                break;
            }
        }
        // Whoever stops talking has gone.
        left.cancel();
        std::future::pending::<Infallible>().await
    };
    let leaving = async {
        told.closed().await;
        left.cancel();
        std::future::pending::<Infallible>().await
    };
    let showing = async {
        while let Some(bytes) = shown.recv().await {
            say(told, login_response::Kind::Output(bytes.into())).await;
        }
    };
    let running = login.run(size, hearing, show, left.clone(), hub.closing.clone(), hub.journal.clone());
    let running_and_showing = async {
        let (mut running, mut showing) = (pin!(running), pin!(showing.fuse()));
        let end = loop {
            tokio::select! {
                end = &mut running => break end,
                () = &mut showing => {}
            }
        };
        // Whoever does not look at it is not waited for.
        timeout(LAST_WORDS, showing).await.ok();
        end
    };
    let end = tokio::select! {
        end = running_and_showing => end,
        never = hearing_out => match never {},
        never = leaving => match never {},
    };
    let end = end.map_err(Status::failed_precondition)?;
    if end.is_success() {
        hub.pool.replace(&agent.name, &caller.user).await;
        hub.catalogue.ask_again(&agent.name);
    }
    Ok(LoginEnded { is_logged_in: end.is_success(), how: end.to_string() })
}

fn size_of(window: WindowSize) -> Size {
    let least = |count: u32| u16::try_from(count.clamp(1, 1000)).unwrap_or(1);
    Size { columns: least(window.columns), rows: least(window.rows) }
}

/// Has the agent do it, as an editor would.
async fn by_agent(hub: &Hub, caller: &Caller, agent: &config::Agent, method: &Method) -> LoginEnded {
    let greeting =
        Greeting { client: "conductor-login".into(), agent: agent.name.clone(), ..Greeting::default() };
    let params = json!({ "methodId": format!("{}/{}", agent.name, method.id) });
    let done = match inner::request("authenticate", &params) {
        Ok(request) => inner::open(hub, caller, greeting, request).await,
        Err(status) => Err(status),
    };
    match done {
        Ok(_) => LoginEnded { is_logged_in: true, how: "the agent has agreed".into() },
        Err(status) => LoginEnded { is_logged_in: false, how: status.message().to_owned() },
    }
}
