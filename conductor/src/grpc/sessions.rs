//! The `Sessions` service: steers sessions that are open.

use tonic::{Request, Response, Status};

use super::history::{caller, id, nothing};
use crate::{
    connection::Hub,
    proto::{CloseSessionRequest, CloseSessionResponse, sessions_server::Sessions},
};

#[derive(Debug)]
pub(super) struct SessionsService {
    hub: Hub,
}

impl SessionsService {
    pub(super) fn new(hub: Hub) -> Self {
        Self { hub }
    }
}

#[tonic::async_trait]
impl Sessions for SessionsService {
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
