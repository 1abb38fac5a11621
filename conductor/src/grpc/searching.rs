//! `History.Search`: a request as a question to the ledger, and its answer.

use tonic::Status;
use uuid::Uuid;

use super::history::{id, some, unavailable};
use crate::{
    ledger::search::{Cursor, Filter, Hit, Hits, Kind, SearchError, Snippet},
    proto::{self, SearchRequest, SearchResponse},
};

/// What is asked, for someone who may see this much.
pub(super) fn question(
    request: SearchRequest,
    seen_by: Option<String>,
    shared: Vec<Uuid>,
) -> Result<(String, Filter), Status> {
    let kinds = request.kinds.iter().map(|name| {
        Kind::from_name(name).ok_or_else(|| {
            let name = crate::frame::escape(name.as_bytes(), 60);
            let known = Kind::ALL.map(Kind::name).join(", ");
            Status::invalid_argument(format!("kinds: there is no kind `{name}`; there are {known}"))
        })
    });
    let token = |token: String| {
        let wrong = || Status::invalid_argument("page_token: it is not one that was given out");
        Cursor::parse(&token).ok_or_else(wrong)
    };
    let filter = Filter {
        seen_by,
        shared,
        user: some(request.user),
        agent: some(request.agent),
        repository: some(request.repository),
        session: some(request.session_id).map(|text| id("session_id", &text)).transpose()?,
        since_us: Some(request.since_us).filter(|since| *since != 0),
        until_us: Some(request.until_us).filter(|until| *until != 0),
        kinds: kinds.collect::<Result<_, _>>()?,
        limit: request.page_size as usize,
        after: some(request.page_token).map(token).transpose()?,
        ..Filter::default()
    };
    Ok((request.text, filter))
}

/// Why nothing was searched for.
pub(super) fn refusal(error: &SearchError) -> Status {
    match error {
        SearchError::Refused(..) => Status::invalid_argument(error.to_string()),
        SearchError::Ledger(error) => unavailable(error),
    }
}

impl From<Hits> for SearchResponse {
    fn from(hits: Hits) -> Self {
        Self {
            hits: hits.items.into_iter().map(Into::into).collect(),
            next_page_token: hits.next.map(|next| next.token()).unwrap_or_default(),
            hint: hits.hint.unwrap_or_default().to_owned(),
        }
    }
}

impl From<Hit> for proto::Hit {
    fn from(hit: Hit) -> Self {
        // A snippet is short.
        let short = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let highlights = hit.snippet.ranges.into_iter();
        Self {
            session_id: hit.session_id,
            kind: hit.kind.name().to_owned(),
            seq: hit.seq,
            item: hit.item,
            turn: hit.turn,
            at_us: hit.at_us,
            user_name: hit.user_name,
            agent: hit.agent,
            title: hit.title,
            cwd: hit.cwd,
            repository: hit.repository,
            label: hit.label,
            score: hit.score,
            snippet: hit.snippet.text,
            highlights: highlights
                .map(|(start, end)| proto::Highlight { start: short(start), end: short(end) })
                .collect(),
        }
    }
}

impl From<proto::Hit> for Hit {
    fn from(hit: proto::Hit) -> Self {
        let ranges = hit.highlights.iter().map(|part| (part.start as usize, part.end as usize));
        Self {
            session_id: hit.session_id,
            // A newer service may know more kinds.
            kind: Kind::from_name(&hit.kind).unwrap_or(Kind::Message),
            seq: hit.seq,
            item: hit.item,
            turn: hit.turn,
            at_us: hit.at_us,
            user_name: hit.user_name,
            agent: hit.agent,
            title: hit.title,
            cwd: hit.cwd,
            repository: hit.repository,
            label: hit.label,
            score: hit.score,
            snippet: Snippet { ranges: ranges.collect(), text: hit.snippet },
        }
    }
}
