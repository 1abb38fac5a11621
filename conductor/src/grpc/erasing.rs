//! The calls of the `History` service that let go of sessions. Who changes the ledger makes
//! them, before and after: see [`crate::erasure`].

use std::collections::HashSet;

use futures_util::{StreamExt as _, stream};
use tonic::Status;
use uuid::Uuid;

use super::history::{Messages, id};
use crate::{
    connection::Hub,
    erasure,
    proto::{EraseSessionsRequest, EraseSessionsResponse, WithdrawSessionsRequest, WithdrawSessionsResponse},
};

fn ids<C: FromIterator<Uuid>>(field: &str, given: &[String]) -> Result<C, Status> {
    given.iter().map(|text| id(field, text)).collect()
}

pub(super) async fn withdraw(
    hub: &Hub,
    user: &str,
    request: &WithdrawSessionsRequest,
) -> Result<WithdrawSessionsResponse, Status> {
    let sessions: Vec<_> = ids("session_ids", &request.session_ids)?;
    let open = erasure::withdraw(hub, &sessions, user).await.map_err(Status::unavailable)?;
    Ok(WithdrawSessionsResponse { open_session_ids: open.iter().map(Uuid::to_string).collect() })
}

/// The answer comes when it is done, and that may take longer than a call may take to begin
/// its answer: hence a stream.
pub(super) fn erase(
    hub: Hub,
    request: &EraseSessionsRequest,
) -> Result<Messages<EraseSessionsResponse>, Status> {
    let sessions: Vec<_> = ids("session_ids", &request.session_ids)?;
    let streams: HashSet<_> = ids("stream_ids", &request.stream_ids)?;
    let erasing = async move {
        let erased = erasure::finish(&hub, sessions, streams).await;
        let journal_records = erased.map_err(Status::failed_precondition)?;
        Ok(EraseSessionsResponse { journal_records })
    };
    Ok(stream::once(erasing).boxed())
}
