//! The `Grants` service: answers that are given ahead of time, shown and taken
//! back.

mod wishes;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use self::wishes::Wish;
use super::{history::id, policy::decision, rights::Admitted};
use crate::{
    clock::micros,
    connection::Hub,
    frame::escape,
    grants::{
        self, Book, Found, Grant, LONGEST_TIME, MOST_BYTES, MOST_OF_AUTHOR, MOST_OF_SCOPE, MOST_REASON,
        Scope, TooMany, USUAL_TIME,
    },
    identity::Relation,
    journal::Journal,
    proto::{
        self, CreateGrantRequest, CreateGrantResponse, GetGrantRequest, GetGrantResponse, GrantScope,
        GrantedPart, ListGrantsRequest, ListGrantsResponse, RevokeGrantRequest, RevokeGrantResponse,
        grant_scope, grants_server::Grants,
    },
};

/// Grants on a page unless somebody says so, and at most.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 500;

/// Bytes of grants on a page, unless one alone has more.
const PAGE_BYTES: usize = 2 << 20;

/// Sessions that are named to whoever gives a grant.
const MOST_SESSIONS: usize = 20;

/// Sessions that are looked at for those.
const LOOKED_AT: usize = 2000;

#[derive(Debug)]
pub(super) struct GrantsService {
    hub: Hub,
}

impl GrantsService {
    pub(super) fn new(hub: Hub) -> Self {
        Self { hub }
    }

    /// Those of these grants that somebody may know of: for a session that they may see, for
    /// themselves, a team of theirs or a directory in which they have a session, and their own.
    fn concerning<T>(&self, who: &Admitted, mut grants: Vec<(Arc<Grant>, T)>) -> Vec<(Arc<Grant>, T)> {
        let caller = &who.caller;
        if who.sees_all() {
            return grants;
        }
        let directories = self.hub.router.directories(caller, who.relation);
        grants.retain(|(grant, _)| {
            grant.by.user == caller.user
                || match &grant.scope {
                    Scope::Session(id) => self.hub.router.admit(*id, caller, who.relation).is_ok(),
                    Scope::Root(root) => directories.contains(root),
                    Scope::User(user) => *user == caller.user,
                    Scope::Team(team) => caller.teams.contains(team),
                }
        });
        grants
    }

    fn known(&self, who: &Admitted, given: &str) -> Result<(Arc<Grant>, u64), Status> {
        let found = given.parse().ok().and_then(|id: Uuid| self.hub.grants.get(id));
        self.concerning(who, found.into_iter().collect()).pop().ok_or_else(|| {
            let shown = escape(given.as_bytes(), 40);
            Status::not_found(format!(
                "there is no grant {shown} that holds, or it is not yours to see; `conductor grants ls` lists them"
            ))
        })
    }

    /// Some sessions that a grant would concern, and whether there are more.
    fn sessions(&self, who: &Admitted, scope: &Scope) -> (Vec<String>, bool) {
        let (cwd, owner) = match scope {
            Scope::Session(id) => return (vec![id.to_string()], false),
            Scope::Root(root) => (Some(root.as_path()), None),
            Scope::User(user) => (None, Some(user)),
            Scope::Team(_) => return (Vec::new(), false),
        };
        let listed = self.hub.router.list(&who.caller, who.relation, cwd, None, LOOKED_AT);
        let rows = listed.page.iter().filter(|(_, row, _)| owner.is_none_or(|owner| row.owner == *owner));
        let mut ids: Vec<String> = rows.map(|(id, ..)| id.to_string()).collect();
        let has_more = listed.has_more || ids.len() > MOST_SESSIONS;
        ids.truncate(MOST_SESSIONS);
        (ids, has_more)
    }

    /// Gives a grant, even if the caller does not wait: what is on record as given shall hold.
    async fn give(&self, grant: Grant) -> Result<Grant, Status> {
        let (done, is_done) = oneshot::channel();
        let (book, journal) = (self.hub.grants.clone(), self.hub.journal.clone());
        self.hub.tasks.start("grant", async move {
            // Nobody may be there to be told.
            done.send(given(&book, &journal, grant).await).ok();
        });
        let text = "whether it was granted is not known; the service's log says why";
        is_done.await.unwrap_or_else(|_| Err(Status::internal(text)))
    }

    /// Saves that a grant is revoked, then records it: what is on record no kill undoes. Both
    /// happen even if the caller does not wait. Whether it was saved.
    async fn end(&self, grant: Arc<Grant>, by: String, reason: String) -> bool {
        tracing::info!(grant.id = %grant.id, by, "a grant was revoked");
        let (done, is_done) = oneshot::channel();
        let (book, journal) = (self.hub.grants.clone(), self.hub.journal.clone());
        self.hub.tasks.start("grant", async move {
            let is_saved = book.is_saved().await;
            if let Ok(Some(ticket)) = grants::record_revoked(&journal, &grant, &by, &reason) {
                journal.released(ticket).await.ok();
            }
            // Nobody may be there to be told.
            done.send(is_saved).ok();
        });
        is_done.await.unwrap_or(false)
    }
}

/// Gives a grant: first on record, then in force, then saved.
async fn given(book: &Book, journal: &Journal, grant: Grant) -> Result<Grant, Status> {
    let unrecorded = |why: &dyn std::fmt::Display| Status::unavailable(format!("nothing was granted: {why}"));
    let ticket = grants::record_given(journal, &grant).map_err(|why| unrecorded(&why))?;
    if let Some(ticket) = ticket
        && let Err(refused) = journal.released(ticket).await
    {
        note_end(journal, &grant, "it could not be recorded in time");
        return Err(unrecorded(&refused.why));
    }
    let given = book.give(grant.clone()).map_err(|why| {
        let text = match why {
            TooMany::OfScope => format!("{} has {MOST_OF_SCOPE} grants already", grant.scope),
            TooMany::OfAuthor => format!("you have given {MOST_OF_AUTHOR} grants that still hold"),
        };
        note_end(journal, &grant, &text);
        Status::resource_exhausted(format!("{text}; revoke some first, or wait until they expire"))
    })?;
    if !book.is_saved().await {
        book.revoke(grant.id);
        note_end(journal, &grant, "it could not be saved");
        let text = "the grant could not be saved and is void; the service's log says why";
        return Err(Status::unavailable(text));
    }
    tracing::info!(grant.id = %grant.id, scope = grant.scope.parts().0, by = grant.by.user, "a grant was given");
    Ok((*given).clone())
}

/// What was recorded as given does not hold after all.
fn note_end(journal: &Journal, grant: &Grant, reason: &str) {
    if let Err(why) = grants::record_revoked(journal, grant, &grant.by.user, reason) {
        tracing::warn!(grant.id = %grant.id, %why, "that a grant has ended is recorded later");
    }
}

#[tonic::async_trait]
impl Grants for GrantsService {
    async fn create(
        &self,
        request: Request<CreateGrantRequest>,
    ) -> Result<Response<CreateGrantResponse>, Status> {
        let who = Admitted::of(&request)?;
        let mut request = request.into_inner();
        let scope = Wish::scope(&self.hub, &who, request.scope.clone())?;
        let time = match request.ttl_seconds {
            0 => USUAL_TIME,
            seconds => Duration::from_secs(seconds),
        };
        if time > LONGEST_TIME {
            return Err(Status::invalid_argument("a grant holds for 30 days at most; give it less time"));
        }
        let reason = reason(request.reason.clone())?;
        let (most_uses, is_trial) = ((request.max_uses > 0).then_some(request.max_uses), request.dry_run);
        let expected = std::mem::take(&mut request.expected_parts);
        let expected_digest = std::mem::take(&mut request.expected_digest);
        let wish = Wish::new(&self.hub, &who, scope, request).await?;
        let found = wish.judged(&self.hub, &who)?;
        let given = SystemTime::now();
        let mut grant = Grant {
            id: Uuid::now_v7(),
            scope: wish.scope,
            parts: found.iter().map(|found| found.part.clone()).collect(),
            by: who.caller.clone(),
            reason,
            given,
            expires: given + time,
            most_uses,
        };
        let kept = grants::kept(&grant.parts).ok_or_else(|| {
            Status::invalid_argument(format!(
                "what is to be granted has more than {MOST_BYTES} bytes, or a path that is no text; grant less at once"
            ))
        })?;
        let digest = digest(&kept);
        let is_other = !expected_digest.is_empty() && expected_digest != digest;
        if is_other || (!expected.is_empty() && !expected.iter().eq(&message(&grant, 0).parts)) {
            return Err(Status::aborted(
                "what would be granted has changed since it was shown; look at it again",
            ));
        }
        let (session_ids, more_sessions) = self.sessions(&who, &grant.scope);
        if is_trial {
            grant.id = Uuid::nil();
        } else {
            grant = self.give(grant).await?;
        }
        Ok(Response::new(CreateGrantResponse {
            grant: Some(message(&grant, 0)),
            parts: found.iter().map(part).collect(),
            session_ids,
            more_sessions,
            digest,
        }))
    }

    async fn list(
        &self,
        request: Request<ListGrantsRequest>,
    ) -> Result<Response<ListGrantsResponse>, Status> {
        let who = Admitted::of(&request)?;
        let ListGrantsRequest { session_id, page_size, page_token } = request.into_inner();
        let given = |field: &str, text: &str| (!text.is_empty()).then(|| id(field, text)).transpose();
        let (session, before) = (given("session_id", &session_id)?, given("page_token", &page_token)?);
        let size = if page_size == 0 { PAGE } else { (page_size as usize).min(LARGEST_PAGE) };
        let mut all = self.hub.grants.list();
        all.retain(|(grant, _)| {
            before.is_none_or(|before| grant.id < before)
                && session.is_none_or(|session| grant.scope == Scope::Session(session))
        });
        let seen = self.concerning(&who, all);
        let (mut page, mut bytes) = (Vec::new(), 0);
        for (grant, uses) in seen.iter().take(size) {
            let grant = message(grant, *uses);
            bytes += grant.encoded_len();
            if bytes > PAGE_BYTES && !page.is_empty() {
                break;
            }
            page.push(grant);
        }
        let last = page.last().filter(|_| page.len() < seen.len());
        Ok(Response::new(ListGrantsResponse {
            next_page_token: last.map(|grant| grant.id.clone()).unwrap_or_default(),
            grants: page,
        }))
    }

    async fn get(&self, request: Request<GetGrantRequest>) -> Result<Response<GetGrantResponse>, Status> {
        let who = Admitted::of(&request)?;
        let (grant, uses) = self.known(&who, &request.into_inner().id)?;
        Ok(Response::new(GetGrantResponse { grant: Some(message(&grant, uses)) }))
    }

    async fn revoke(
        &self,
        request: Request<RevokeGrantRequest>,
    ) -> Result<Response<RevokeGrantResponse>, Status> {
        let who = Admitted::of(&request)?;
        let RevokeGrantRequest { id: given, reason: why } = request.into_inner();
        let reason = reason(why)?;
        let (grant, uses) = self.known(&Admitted { relation: sees(&who), ..who.clone() }, &given)?;
        let is_own = match &grant.scope {
            Scope::Session(id) => self.hub.router.admit(*id, &who.caller, who.relation).is_ok(),
            _ => false,
        };
        if !(who.sees_all() || is_own || grant.by.user == who.caller.user) {
            return Err(Status::permission_denied(
                "you did not give this grant, and it is not for a session of yours; an approver or an administrator can \
                 revoke it",
            ));
        }
        // Somebody else may have been quicker: then it is gone all the same.
        let is_saved = match self.hub.grants.revoke(grant.id) {
            Some(_) => self.end(grant.clone(), who.caller.user, reason).await,
            None => self.hub.grants.is_saved().await,
        };
        if !is_saved {
            let text = "the grant allows nothing from now on, but that could not be saved: it will hold again after a \
                        restart; the service's log says why";
            return Err(Status::unavailable(text));
        }
        Ok(Response::new(RevokeGrantResponse { grant: Some(message(&grant, uses)) }))
    }
}

/// By which what was shown is known again, down to what the words for people leave out.
fn digest(kept: &str) -> String {
    Sha256::digest(kept.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What somebody may know of who may change some of it.
fn sees(who: &Admitted) -> Relation {
    who.relation.max(Relation::Seen)
}

fn reason(text: String) -> Result<String, Status> {
    if text.chars().count() > MOST_REASON {
        return Err(Status::invalid_argument(format!("reason: it may have {MOST_REASON} characters")));
    }
    if text.chars().any(char::is_control) {
        return Err(Status::invalid_argument("reason: it must be one line of text"));
    }
    Ok(text)
}

fn part(found: &Found) -> GrantedPart {
    GrantedPart {
        text: found.part.to_string(),
        decision: decision(found.decision).into(),
        rules: found.rules.clone(),
        reason: found.reason.clone(),
    }
}

fn message(grant: &Grant, uses: u64) -> proto::Grant {
    let scope = match &grant.scope {
        Scope::Session(id) => grant_scope::Scope::SessionId(id.to_string()),
        Scope::Root(root) => grant_scope::Scope::Root(root.display().to_string()),
        Scope::User(user) => grant_scope::Scope::User(user.clone()),
        Scope::Team(team) => grant_scope::Scope::Team(team.clone()),
    };
    proto::Grant {
        id: if grant.id.is_nil() { String::new() } else { grant.id.to_string() },
        scope: Some(GrantScope { scope: Some(scope) }),
        parts: grant.parts.iter().map(ToString::to_string).collect(),
        author: grant.by.user.clone(),
        reason: grant.reason.clone(),
        given_us: micros(grant.given),
        expires_us: micros(grant.expires),
        max_uses: grant.most_uses.unwrap_or_default(),
        uses,
    }
}
