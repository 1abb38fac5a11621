//! The `Sessions` service: sessions for programs that do not speak ACP.

mod feed;

use std::path::Path;

use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::history::{Messages, caller, id, nothing};
use crate::{
    connection::Hub,
    identity::Caller,
    proto::{
        AnswerPermissionRequest, AnswerPermissionResponse, CancelQueuedRequest, CancelQueuedResponse,
        CancelRequest, CancelResponse, CloseSessionRequest, CloseSessionResponse, CreateSessionRequest,
        CreateSessionResponse, Event, ListQueueRequest, ListQueueResponse, ListRequest, ListResponse,
        ListedSession, ObserveRequest, PromptRequest, SetConfigOptionRequest, SetConfigOptionResponse,
        SetModeRequest, SetModeResponse, sessions_server::Sessions,
    },
    store::{self, Row},
};

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

    /// A session that the caller may at least watch.
    fn visible(&self, session_id: &str, caller: &Caller) -> Result<Uuid, Status> {
        let id = id("session_id", session_id)?;
        match self.hub.router.agent(id, caller) {
            Some(_) => Ok(id),
            None => Err(nothing(id)),
        }
    }
}

#[tonic::async_trait]
impl Sessions for SessionsService {
    type PromptStream = Messages<Event>;
    type ObserveStream = Messages<Event>;

    async fn create(
        &self,
        _request: Request<CreateSessionRequest>,
    ) -> Result<Response<CreateSessionResponse>, Status> {
        Err(Status::unimplemented("this comes with seats"))
    }

    async fn prompt(&self, _request: Request<PromptRequest>) -> Result<Response<Self::PromptStream>, Status> {
        Err(Status::unimplemented("this comes with seats"))
    }

    async fn cancel(&self, _request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        Err(Status::unimplemented("this comes with seats"))
    }

    async fn answer_permission(
        &self,
        _request: Request<AnswerPermissionRequest>,
    ) -> Result<Response<AnswerPermissionResponse>, Status> {
        Err(Status::unimplemented("this comes with seats"))
    }

    async fn set_config_option(
        &self,
        _request: Request<SetConfigOptionRequest>,
    ) -> Result<Response<SetConfigOptionResponse>, Status> {
        Err(Status::unimplemented("this comes with seats"))
    }

    async fn set_mode(&self, _request: Request<SetModeRequest>) -> Result<Response<SetModeResponse>, Status> {
        Err(Status::unimplemented("this comes with seats"))
    }

    async fn observe(
        &self,
        request: Request<ObserveRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let caller = caller(&request)?;
        let ObserveRequest { session_id, from_seq, history_only } = request.into_inner();
        let id = self.visible(&session_id, &caller)?;
        Ok(Response::new(feed::observe(&self.hub, id, from_seq.max(1), !history_only)))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let caller = caller(&request)?;
        let ListRequest { cwd, page_size, page_token } = request.into_inner();
        let cwd = Some(cwd).filter(|cwd| !cwd.is_empty());
        let after = match page_token.as_str() {
            "" => None,
            token => Some(id("page_token", token)?),
        };
        let size = if page_size == 0 { PAGE } else { (page_size as usize).min(LARGEST_PAGE) };
        let all = self.hub.router.list(&caller, cwd.as_deref().map(Path::new));
        let mut rest = all.into_iter().filter(|(id, _)| after.is_none_or(|after| *id < after));
        let page: Vec<_> = rest.by_ref().take(size).collect();
        let last = rest.next().and_then(|_| page.last());
        let next_page_token = last.map(|(id, _)| id.to_string()).unwrap_or_default();
        let sessions = page.into_iter().map(|(id, row)| listed(id, row)).collect();
        Ok(Response::new(ListResponse { sessions, next_page_token }))
    }

    async fn list_queue(
        &self,
        _request: Request<ListQueueRequest>,
    ) -> Result<Response<ListQueueResponse>, Status> {
        Err(Status::unimplemented("this comes with seats"))
    }

    async fn cancel_queued(
        &self,
        _request: Request<CancelQueuedRequest>,
    ) -> Result<Response<CancelQueuedResponse>, Status> {
        Err(Status::unimplemented("this comes with seats"))
    }

    async fn close(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let caller = caller(&request)?;
        let id = id("session_id", &request.into_inner().session_id)?;
        if self.hub.router.close(id, &caller) {
            Ok(Response::new(CloseSessionResponse {}))
        } else {
            Err(nothing(id))
        }
    }
}

fn listed(id: Uuid, row: Row) -> ListedSession {
    ListedSession {
        session_id: id.to_string(),
        agent: row.agent.to_string(),
        cwd: row.cwd.display().to_string(),
        title: row.title.unwrap_or_default(),
        owner: row.owner,
        role: "owner".into(),
        created_us: store::micros(row.created),
        updated_us: store::micros(row.updated),
        is_live: row.is_live,
    }
}
