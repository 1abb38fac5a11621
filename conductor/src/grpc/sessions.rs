//! The `Sessions` service: sessions for programs that do not speak ACP.

mod drive;
mod feed;
pub(super) mod inner;

use std::path::Path;

use serde_json::{Value, json};
use tonic::{Request, Response, Status};
use uuid::Uuid;

use self::{drive::Drive, feed::Sight};
use super::{
    events::{block_json, config_options, modes},
    history::{Messages, id},
    incoming::Admission,
    layers,
    rights::Admitted,
    tunnel::unknown_agent,
};
use crate::{
    clock::micros,
    connection::{Greeting, Hub},
    ledger::project::json::{pick, some as some_json, text},
    proto::{
        AnswerPermissionRequest, AnswerPermissionResponse, CancelQueuedRequest, CancelQueuedResponse,
        CancelRequest, CancelResponse, CloseSessionRequest, CloseSessionResponse, CreateSessionRequest,
        CreateSessionResponse, Event, ListQueueRequest, ListQueueResponse, ListRequest, ListResponse,
        ListedSession, ObserveRequest, PromptRequest, SetConfigOptionRequest, SetConfigOptionResponse,
        SetModeRequest, SetModeResponse, sessions_server::Sessions, set_config_option_request,
    },
    router::{Access, Listed},
    session::{Answered, Wish},
    store::Row,
    telemetry::trace::{self, TRACEPARENT},
};

/// What callers are called who do not say it.
const CLIENT: &str = "typed";

/// Sessions in one answer, unless the caller says so, and at most.
const PAGE: usize = 50;
const LARGEST_PAGE: usize = 1000;

#[derive(Debug)]
pub(super) struct SessionsService {
    hub: Hub,
}

impl SessionsService {
    pub(super) fn new(hub: Hub) -> Self {
        Self { hub }
    }

    /// The session that a call names, if the caller may make it there.
    fn session(&self, session_id: &str, who: &Admitted) -> Result<Uuid, Status> {
        let id = id("session_id", session_id)?;
        let admitted = self.hub.router.admit(id, &who.caller, who.relation);
        admitted.map(|_| id).map_err(|why| who.refusal(id, why))
    }

    /// The same, to be driven.
    fn drive(&self, session_id: &str, who: &Admitted) -> Result<Drive, Status> {
        let id = self.session(session_id, who)?;
        Ok(Drive { hub: self.hub.clone(), caller: who.caller.clone(), id })
    }

    fn not_draining(&self) -> Result<(), Status> {
        if self.hub.draining.is_cancelled() {
            return Err(Status::unavailable("the service is stopping; try again once it is back"));
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Sessions for SessionsService {
    type PromptStream = Messages<Event>;
    type ObserveStream = Messages<Event>;

    async fn create(
        &self,
        request: Request<CreateSessionRequest>,
    ) -> Result<Response<CreateSessionResponse>, Status> {
        let who = Admitted::of(&request)?;
        let is_remote = Admission::is_remote(request.extensions());
        let request = request.into_inner();
        if let Some(unknown) = unknown_agent(&self.hub, &request.agent) {
            return Err(Status::not_found(unknown));
        }
        self.not_draining()?;
        if request.cwd.is_empty() {
            return Err(Status::invalid_argument("cwd: it is empty; name the session's directory"));
        }
        let servers = match request.mcp_servers_json.as_str() {
            "" => Value::Array(Vec::new()),
            given => serde_json::from_str(given)
                .ok()
                .filter(Value::is_array)
                .ok_or_else(|| Status::invalid_argument("mcp_servers_json: it is not an array in JSON"))?,
        };
        let mut params = json!({ "cwd": request.cwd, "mcpServers": servers });
        if !request.additional_directories.is_empty() {
            params["additionalDirectories"] = request.additional_directories.into();
        }
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let name: String = request.client.chars().filter(|c| !c.is_control()).take(100).collect();
        let greeting = Greeting {
            client: some(name).unwrap_or_else(|| CLIENT.into()),
            agent: request.agent,
            cwd: Some(request.cwd.into()),
            wish: Wish { model: some(request.model), mode: some(request.mode) },
            lingers: true,
            is_remote,
            ..Greeting::default()
        };
        let opening = inner::request("session/new", &params)?;
        let result = inner::open(&self.hub, &who.caller, greeting, opening).await?;
        let [session_id, options, given_modes] = pick(&result, ["sessionId", "configOptions", "modes"]);
        let session_id = session_id.and_then(text).unwrap_or_default().into_owned();
        // Routes and fallbacks have had their say: the session knows where it was opened.
        let row = session_id.parse().ok().and_then(|id| self.hub.router.row(id));
        Ok(Response::new(CreateSessionResponse {
            session_id,
            agent: row.map(|row| row.agent.to_string()).unwrap_or_default(),
            config_options: config_options(options),
            modes: some_json(given_modes).map(modes),
            raw: result.clone().into_bytes(),
        }))
    }

    async fn prompt(&self, request: Request<PromptRequest>) -> Result<Response<Self::PromptStream>, Status> {
        let who = Admitted::of(&request)?;
        // Where traces are collected, the prompt goes on in the caller's.
        let traceparent = layers::traceparent(request.metadata()).filter(|_| trace::is_on());
        let PromptRequest { session_id, text, content } = request.into_inner();
        let drive = self.drive(&session_id, &who)?;
        let mut blocks = Vec::new();
        if !text.is_empty() {
            blocks.push(json!({ "type": "text", "text": text }));
        }
        for (at, block) in content.iter().enumerate() {
            let wrong = |why| Status::invalid_argument(format!("content[{at}]: {why}"));
            blocks.push(block_json(block).map_err(wrong)?);
        }
        if blocks.is_empty() {
            return Err(Status::invalid_argument("text: there is neither text nor content"));
        }
        let texts: Vec<_> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
        let texts = texts.join(" ");
        let mut params = json!({ "sessionId": drive.id.to_string(), "prompt": blocks });
        if let Some(traceparent) = traceparent {
            params["_meta"] = json!({ TRACEPARENT: traceparent.to_string() });
        }
        let prompt = inner::request("session/prompt", &params)?;
        Ok(Response::new(drive.prompt(prompt, texts)))
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let who = Admitted::of(&request)?;
        self.drive(&request.into_inner().session_id, &who)?.cancel().await?;
        Ok(Response::new(CancelResponse {}))
    }

    async fn answer_permission(
        &self,
        request: Request<AnswerPermissionRequest>,
    ) -> Result<Response<AnswerPermissionResponse>, Status> {
        let who = Admitted::of(&request)?;
        let AnswerPermissionRequest { session_id, request, option_id } = request.into_inner();
        let id = self.drive(&session_id, &who)?.id;
        let option = Some(option_id).filter(|option| !option.is_empty());
        let answered = match self.hub.router.live(id) {
            Some(handle) => handle.answer(who.caller, request, option).await,
            None => Answered::Unknown,
        };
        match answered {
            Answered::Taken => Ok(Response::new(AnswerPermissionResponse {})),
            Answered::TooLate { by: Some(by) } => {
                Err(Status::aborted(format!("{by} has answered request {request} already")))
            }
            Answered::TooLate { by: None } => {
                Err(Status::aborted(format!("nobody needs an answer to request {request} any more")))
            }
            Answered::NotTheirs(why) => {
                Err(Status::permission_denied(format!("you may not answer this: {why}")))
            }
            Answered::NotRecorded(why) => Err(Status::unavailable(format!(
                "it cannot be recorded now, so nobody can allow it; it stays open: {why}"
            ))),
            Answered::Unknown => Err(Status::not_found(format!(
                "no request {request} with such an option is open in session {id}"
            ))),
        }
    }

    async fn set_config_option(
        &self,
        request: Request<SetConfigOptionRequest>,
    ) -> Result<Response<SetConfigOptionResponse>, Status> {
        use set_config_option_request::Value::{Flag, Selected};
        let who = Admitted::of(&request)?;
        let SetConfigOptionRequest { session_id, config_id, value } = request.into_inner();
        let drive = self.drive(&session_id, &who)?;
        let mut params = json!({ "sessionId": drive.id.to_string(), "configId": config_id });
        match value {
            Some(Selected(value)) => params["value"] = value.into(),
            Some(Flag(value)) => {
                params["type"] = "boolean".into();
                params["value"] = value.into();
            }
            None => return Err(Status::invalid_argument("value: neither selected nor flag is set")),
        }
        let result = drive.ask("session/set_config_option", &params).await?;
        let options = config_options(pick(&result, ["configOptions"])[0]);
        Ok(Response::new(SetConfigOptionResponse { config_options: options }))
    }

    async fn set_mode(&self, request: Request<SetModeRequest>) -> Result<Response<SetModeResponse>, Status> {
        let who = Admitted::of(&request)?;
        let SetModeRequest { session_id, mode_id } = request.into_inner();
        let drive = self.drive(&session_id, &who)?;
        let params = json!({ "sessionId": drive.id.to_string(), "modeId": mode_id });
        drive.ask("session/set_mode", &params).await?;
        Ok(Response::new(SetModeResponse {}))
    }

    async fn observe(
        &self,
        request: Request<ObserveRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let who = Admitted::of(&request)?;
        let ObserveRequest { session_id, from_seq, history_only } = request.into_inner();
        let id = self.session(&session_id, &who)?;
        let sees_all = who.sees_all();
        let sight = Sight { hub: self.hub.clone(), caller: who.caller, sees_all, id };
        Ok(Response::new(feed::observe(&sight, from_seq.max(1), !history_only)))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let who = Admitted::of(&request)?;
        let ListRequest { cwd, page_size, page_token } = request.into_inner();
        let cwd = Some(cwd).filter(|cwd| !cwd.is_empty());
        let after = match page_token.as_str() {
            "" => None,
            token => Some(id("page_token", token)?),
        };
        let size = if page_size == 0 { PAGE } else { (page_size as usize).min(LARGEST_PAGE) };
        let Listed { page, has_more } =
            self.hub.router.list(&who.caller, who.relation, cwd.as_deref().map(Path::new), after, size);
        let last = page.last().filter(|_| has_more);
        let next_page_token = last.map(|(id, ..)| id.to_string()).unwrap_or_default();
        let sessions = page.into_iter().map(|(id, row, access)| listed(id, row, access)).collect();
        Ok(Response::new(ListResponse { sessions, next_page_token }))
    }

    async fn list_queue(
        &self,
        request: Request<ListQueueRequest>,
    ) -> Result<Response<ListQueueResponse>, Status> {
        let who = Admitted::of(&request)?;
        let id = self.session(&request.into_inner().session_id, &who)?;
        let prompts = match self.hub.router.live(id) {
            Some(handle) => handle.queue().await,
            None => Vec::new(),
        };
        let prompts = prompts.into_iter().map(drive::queued).collect();
        Ok(Response::new(ListQueueResponse { prompts }))
    }

    async fn cancel_queued(
        &self,
        request: Request<CancelQueuedRequest>,
    ) -> Result<Response<CancelQueuedResponse>, Status> {
        let who = Admitted::of(&request)?;
        let CancelQueuedRequest { session_id, entry } = request.into_inner();
        let id = self.drive(&session_id, &who)?.id;
        let is_taken_back = match self.hub.router.live(id) {
            Some(handle) => handle.unqueue(entry).await,
            None => false,
        };
        if is_taken_back {
            return Ok(Response::new(CancelQueuedResponse {}));
        }
        Err(Status::not_found(format!("no prompt {entry} waits in session {id}")))
    }

    async fn close(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let who = Admitted::of(&request)?;
        let id = id("session_id", &request.into_inner().session_id)?;
        let closed = self.hub.router.close(id, &who.caller, who.relation);
        closed.map(|()| Response::new(CloseSessionResponse {})).map_err(|why| who.refusal(id, why))
    }
}

fn listed(id: Uuid, row: Row, access: Access) -> ListedSession {
    ListedSession {
        session_id: id.to_string(),
        agent: row.agent.to_string(),
        cwd: row.cwd.display().to_string(),
        title: row.title.unwrap_or_default(),
        owner: row.owner,
        role: access.name().into(),
        created_us: micros(row.created),
        updated_us: micros(row.updated),
        is_live: row.is_live,
    }
}
