//! The `Sharing` service: who else may see and drive a session.

use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::{history::id, rights::Admitted};
use crate::{
    clock::micros,
    connection::Hub,
    identity::{Party, check_name},
    journal::Ticket,
    proto::{
        self, ListSharesRequest, ListSharesResponse, SessionShare, ShareRole, ShareSessionRequest,
        ShareSessionResponse, UnshareSessionRequest, UnshareSessionResponse, party, sharing_server::Sharing,
    },
    router::{Access, MOST_SHARES, NotShared, Share},
};

#[derive(Debug)]
pub(super) struct SharingService {
    hub: Hub,
}

impl SharingService {
    pub(super) fn new(hub: Hub) -> Self {
        Self { hub }
    }

    /// What has changed is on disk, in the record and in the store.
    async fn kept(&self, ticket: Option<Ticket>) -> Result<(), Status> {
        if let Some(ticket) = ticket {
            let released = self.hub.journal.released(ticket).await;
            released.map_err(|refused| {
                Status::unavailable(format!("it counts, but is not recorded: {}", refused.why))
            })?;
        }
        if !self.hub.router.is_saved().await {
            let text =
                "it counts until the service stops, but could not be saved; the service's log says why";
            return Err(Status::unavailable(text));
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Sharing for SharingService {
    async fn share(
        &self,
        request: Request<ShareSessionRequest>,
    ) -> Result<Response<ShareSessionResponse>, Status> {
        let who = Admitted::of(&request)?;
        let request = request.into_inner();
        let id = id("session_id", &request.session_id)?;
        let access = match request.role() {
            ShareRole::Driver => Access::Driver,
            ShareRole::Observer => Access::Observer,
            ShareRole::Unspecified => {
                return Err(Status::invalid_argument("role: it must be driver or observer"));
            }
        };
        let with = party(request.with)?;
        let shared = self.hub.router.share(id, &who.caller, who.relation, with, access, &self.hub.journal);
        let (share, ticket) = shared.map_err(|why| refusal(&who, id, why))?;
        self.kept(ticket).await?;
        Ok(Response::new(ShareSessionResponse { share: Some((&share).into()) }))
    }

    async fn unshare(
        &self,
        request: Request<UnshareSessionRequest>,
    ) -> Result<Response<UnshareSessionResponse>, Status> {
        let who = Admitted::of(&request)?;
        let request = request.into_inner();
        let id = id("session_id", &request.session_id)?;
        let with = party(request.with)?;
        let router = &self.hub.router;
        let done = router.unshare(id, &who.caller, who.relation, &with, &self.hub.journal, &self.hub.metrics);
        self.kept(done.map_err(|why| refusal(&who, id, why))?).await?;
        Ok(Response::new(UnshareSessionResponse {}))
    }

    async fn list_shares(
        &self,
        request: Request<ListSharesRequest>,
    ) -> Result<Response<ListSharesResponse>, Status> {
        let who = Admitted::of(&request)?;
        let id = id("session_id", &request.into_inner().session_id)?;
        let shares =
            self.hub.router.shares(id, &who.caller, who.relation).map_err(|why| refusal(&who, id, why))?;
        Ok(Response::new(ListSharesResponse { shares: shares.iter().map(Into::into).collect() }))
    }
}

fn refusal(who: &Admitted, id: Uuid, why: NotShared) -> Status {
    match why {
        NotShared::NotAdmitted(why) => who.refusal(id, why),
        NotShared::OwnersOwn => Status::invalid_argument("with: it is that user's own session"),
        NotShared::TooMany => Status::resource_exhausted(format!(
            "a session can be shared with {MOST_SHARES} users and teams; take one back first, or share with a team"
        )),
        NotShared::NotRecorded(why) => Status::unavailable(why.to_string()),
    }
}

fn party(given: Option<proto::Party>) -> Result<Party, Status> {
    let (what, party) = match given.and_then(|party| party.party) {
        Some(party::Party::User(user)) => ("user", Party::User(user)),
        Some(party::Party::Team(team)) => ("team", Party::Team(team)),
        None => return Err(Status::invalid_argument("with: it must name a user or a team")),
    };
    let (Party::User(name) | Party::Team(name)) = &party;
    check_name(what, name).map_err(|why| Status::invalid_argument(format!("with: {why}")))?;
    Ok(party)
}

impl From<&Share> for SessionShare {
    fn from(share: &Share) -> Self {
        let party = match &share.with {
            Party::User(user) => party::Party::User(user.clone()),
            Party::Team(team) => party::Party::Team(team.clone()),
        };
        let role = if share.access.drives() { ShareRole::Driver } else { ShareRole::Observer };
        Self {
            with: Some(proto::Party { party: Some(party) }),
            role: role.into(),
            shared_by: share.by.clone(),
            shared_us: micros(share.since),
        }
    }
}
