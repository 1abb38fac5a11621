//! The `History` service: what sessions did, for those who may know.

use std::pin::Pin;

use futures_util::{Stream, StreamExt as _, stream};
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::{
    erasing,
    rights::{Admitted, nothing},
    searching,
    tail::Tails,
};
use crate::{
    connection::Hub,
    ledger::{
        LedgerError,
        history::{FileFilter, FilePlace, Filter, Frame},
    },
    proto::{
        EraseSessionsRequest, EraseSessionsResponse, GetRecordStatusRequest, GetRecordStatusResponse,
        GetSessionRequest, GetSessionResponse, ListFileAccessesRequest, ListFileAccessesResponse,
        ListSessionsRequest, ListSessionsResponse, ReadFramesRequest, ReadFramesResponse, SearchRequest,
        SearchResponse, TailRequest, TailResponse, WithdrawSessionsRequest, WithdrawSessionsResponse,
        get_session_response::Entry, history_server::History,
    },
    router::{Access, NotAdmitted},
};

pub(super) type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Debug)]
pub(super) struct HistoryService {
    hub: Hub,
    tails: Tails,
}

impl HistoryService {
    pub(super) fn new(hub: Hub) -> Self {
        Self { hub, tails: Tails::default() }
    }

    /// What is told of a session, which ends when it is not shared with the reader any
    /// more; in that case like that of one that is not there.
    fn while_shared<T: Send + 'static>(
        &self,
        messages: impl Stream<Item = Result<T, Status>> + Send + 'static,
        shared: Option<Access>,
        id: Uuid,
        who: Admitted,
    ) -> Messages<T> {
        let messages = match shared {
            Some(_) => {
                let router = self.hub.router.clone();
                let lost = router.lost(id, &who.caller, Access::Observer);
                let refused = move |()| router.access(id, &who.caller).is_none().then(|| Err(nothing(id)));
                let last = stream::once(async {}).filter_map(move |end| std::future::ready(refused(end)));
                messages.take_until(lost).chain(last).boxed()
            }
            None => messages.boxed(),
        };
        let closing = self.hub.closing.clone();
        Box::pin(messages.take_until(closing.cancelled_owned()))
    }

    /// Whether the caller may know of a session. What is open, and what is
    /// shared, the caller sees even before the ledger knows of it. Gives what
    /// they only see as long as it is shared with them.
    async fn check(&self, id: Uuid, who: &Admitted) -> Result<Option<Access>, Status> {
        if who.sees_all() {
            return Ok(None);
        }
        match self.hub.router.admit(id, &who.caller, who.relation) {
            Ok(access) => return Ok(Some(access).filter(|access| *access < Access::Owner)),
            Err(NotAdmitted::Nothing) => {}
            Err(why) => return Err(who.refusal(id, why)),
        }
        let session = self.hub.history.session(id).await.map_err(|error| unavailable(&error))?;
        match session {
            Some(session) if session.user_name.as_deref() == Some(&who.caller.user) => Ok(None),
            _ => Err(who.refusal(id, NotAdmitted::Nothing)),
        }
    }
}

#[tonic::async_trait]
impl History for HistoryService {
    type GetSessionStream = Messages<GetSessionResponse>;
    type ReadFramesStream = Messages<ReadFramesResponse>;
    type EraseSessionsStream = Messages<EraseSessionsResponse>;
    type TailStream = Messages<TailResponse>;

    async fn withdraw_sessions(
        &self,
        request: Request<WithdrawSessionsRequest>,
    ) -> Result<Response<WithdrawSessionsResponse>, Status> {
        let user = Admitted::of(&request)?.caller.user;
        Ok(Response::new(erasing::withdraw(&self.hub, &user, request.get_ref()).await?))
    }

    async fn erase_sessions(
        &self,
        request: Request<EraseSessionsRequest>,
    ) -> Result<Response<Self::EraseSessionsStream>, Status> {
        Ok(Response::new(erasing::erase(self.hub.clone(), request.get_ref())?))
    }

    async fn tail(&self, request: Request<TailRequest>) -> Result<Response<Self::TailStream>, Status> {
        let told = self.tails.follow(&self.hub, request.into_inner()).await?;
        let closing = self.hub.closing.clone();
        Ok(Response::new(Box::pin(told.take_until(closing.cancelled_owned()))))
    }

    async fn get_record_status(
        &self,
        _: Request<GetRecordStatusRequest>,
    ) -> Result<Response<GetRecordStatusResponse>, Status> {
        let journal = self.hub.journal.status();
        let ledger = self.hub.ledger.status();
        Ok(Response::new(GetRecordStatusResponse {
            recording: self.hub.journal.recording().name().into(),
            refusing: journal.refusing.as_deref().unwrap_or_default().into(),
            behind_bytes: ledger.behind_bytes,
            behind_us: u64::try_from(ledger.behind.as_micros()).unwrap_or(u64::MAX),
            cap_bytes: journal.cap,
            journal_bytes: journal.bytes,
            unrecorded_frames: journal.unrecorded,
            damaged_parts: journal.damaged,
            ledger: ledger.place,
            ledger_down: ledger.progress.down.as_deref().unwrap_or_default().into(),
            conflicts: ledger.progress.written.conflicts,
        }))
    }

    async fn list_sessions(
        &self,
        request: Request<ListSessionsRequest>,
    ) -> Result<Response<ListSessionsResponse>, Status> {
        let who = Admitted::of(&request)?;
        let request = request.into_inner();
        let after = some(request.page_token).map(|token| id("page_token", &token)).transpose()?;
        let filter = Filter {
            shared: self.hub.router.shared_with(&who.caller),
            seen_by: sight(who),
            user: some(request.user),
            agent: some(request.agent),
            model: some(request.model),
            since_us: Some(request.since_us).filter(|since| *since != 0),
            text: some(request.text),
            path: some(request.path),
            id_prefix: some(request.id_prefix),
            limit: request.page_size as usize,
            after,
        };
        self.hub.ledger.settle().await;
        let page = self.hub.history.sessions(&filter).await.map_err(|error| unavailable(&error))?;
        let last = page.items.last().filter(|_| page.more);
        let next_page_token = last.map(|session| session.session_id.clone()).unwrap_or_default();
        let is_cut = page.is_cut;
        let sessions = page.items.into_iter().map(Into::into).collect();
        Ok(Response::new(ListSessionsResponse { sessions, next_page_token, is_cut }))
    }

    async fn search(&self, request: Request<SearchRequest>) -> Result<Response<SearchResponse>, Status> {
        let who = Admitted::of(&request)?;
        let shared = self.hub.router.shared_with(&who.caller);
        let (text, filter) = searching::question(request.into_inner(), sight(who), shared)?;
        self.hub.ledger.settle_index().await;
        let hits =
            self.hub.history.search(&text, &filter).await.map_err(|error| searching::refusal(&error))?;
        Ok(Response::new(hits.into()))
    }

    async fn get_session(
        &self,
        request: Request<GetSessionRequest>,
    ) -> Result<Response<Self::GetSessionStream>, Status> {
        let who = Admitted::of(&request)?;
        let id = id("session_id", &request.into_inner().session_id)?;
        let shared = self.check(id, &who).await?;
        self.hub.ledger.settle().await;
        let session = self.hub.history.session(id).await.map_err(|error| unavailable(&error))?;
        let session = session.ok_or_else(|| nothing(id))?;
        let entries = self.hub.history.entries(id);
        let rest = stream::try_unfold(entries, |mut entries| async {
            let some = entries.next().await.map_err(|error| unavailable(&error))?;
            Ok((!some.is_empty()).then_some((some, entries)))
        });
        let rest = rest.flat_map(|some| match some {
            Ok(some) => stream::iter(some).map(|entry| Ok(entry.into())).boxed(),
            Err(status) => stream::iter([Err(status)]).boxed(),
        });
        let all = stream::iter([Ok(Entry::Session(session.into()))]).chain(rest);
        let messages = all.map(|entry| entry.map(|entry| GetSessionResponse { entry: Some(entry) }));
        Ok(Response::new(self.while_shared(messages, shared, id, who)))
    }

    async fn read_frames(
        &self,
        request: Request<ReadFramesRequest>,
    ) -> Result<Response<Self::ReadFramesStream>, Status> {
        let who = Admitted::of(&request)?;
        let ReadFramesRequest { stream_id, from_seq, limit, follow } = request.into_inner();
        let id = id("stream_id", &stream_id)?;
        let shared = self.check(id, &who).await?;
        if !self.hub.history.has_stream(id).await.map_err(|error| unavailable(&error))? {
            return Err(nothing(id));
        }
        let limit = (limit > 0).then_some(limit);
        let reading = self.hub.history.frames(id, from_seq, limit, follow);
        let messages = stream::try_unfold(reading, |mut reading| async {
            let frames = reading.next().await.map_err(|error| unavailable(&error))?;
            Ok((!frames.is_empty()).then(|| (message(frames), reading)))
        });
        Ok(Response::new(self.while_shared(messages, shared, id, who)))
    }

    async fn list_file_accesses(
        &self,
        request: Request<ListFileAccessesRequest>,
    ) -> Result<Response<ListFileAccessesResponse>, Status> {
        let who = Admitted::of(&request)?;
        let request = request.into_inner();
        let filter = FileFilter {
            shared: self.hub.router.shared_with(&who.caller),
            seen_by: sight(who),
            path: some(request.path),
            user: some(request.user),
            agent: some(request.agent),
            session: some(request.session_id).map(|text| id("session_id", &text)).transpose()?,
            access: some(request.access),
            since_us: Some(request.since_us).filter(|since| *since != 0),
            limit: request.page_size as usize,
            after: some(request.page_token).map(|token| place(&token)).transpose()?,
        };
        self.hub.ledger.settle().await;
        let page = self.hub.history.files(&filter).await.map_err(|error| unavailable(&error))?;
        let last = page.items.last().filter(|_| page.more);
        let next_page_token = last
            .map(|last| {
                format!("{}.{}.{}.{}", last.at_us.unwrap_or_default(), last.session_id, last.seq, last.item)
            })
            .unwrap_or_default();
        let file_accesses = page.items.into_iter().map(Into::into).collect();
        Ok(Response::new(ListFileAccessesResponse { file_accesses, next_page_token }))
    }
}

fn message(frames: Vec<Frame>) -> ReadFramesResponse {
    ReadFramesResponse { frames: frames.into_iter().map(Into::into).collect() }
}

/// Whose sessions a caller may see: their own, or all.
fn sight(who: Admitted) -> Option<String> {
    (!who.sees_all()).then_some(who.caller.user)
}

pub(super) fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// An id that a field holds.
pub(super) fn id(field: &str, text: &str) -> Result<Uuid, Status> {
    text.parse().map_err(|_| {
        let text = crate::frame::escape(text.as_bytes(), 100);
        Status::invalid_argument(format!("{field}: `{text}` is no id; ids have 36 characters"))
    })
}

/// Where a page of accesses ended.
fn place(token: &str) -> Result<FilePlace, Status> {
    let parts: Vec<_> = token.split('.').collect();
    let place = match parts.as_slice() {
        [at_us, session, seq, item] => (|| {
            Some(FilePlace {
                at_us: at_us.parse().ok()?,
                session: session.parse().ok()?,
                seq: seq.parse().ok()?,
                item: item.parse().ok()?,
            })
        })(),
        _ => None,
    };
    place.ok_or_else(|| Status::invalid_argument("page_token: it is not one that was given out"))
}

pub(super) fn unavailable(error: &LedgerError) -> Status {
    Status::unavailable(format!("history unavailable: {error}"))
}
