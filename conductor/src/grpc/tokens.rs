//! The `Tokens` service: who else may use this one. For administrators.

use std::time::Duration;

use tonic::{Request, Response, Status};

use super::rights::caller;
use crate::{
    clock::micros,
    frame::escape,
    identity::{
        Caller, MOST_TEAMS, Role, check_name,
        tokens::{Issued, Standing, Tokens as Known},
    },
    proto::{
        ApiToken, CreateTokenRequest, CreateTokenResponse, ListTokensRequest, ListTokensResponse,
        RevokeTokenRequest, RevokeTokenResponse, TokenState, tokens_server::Tokens,
    },
};

/// How long a token is good unless somebody says so, and at most.
const USUAL_TTL: Duration = Duration::from_secs(90 * 86_400);
const LONGEST_TTL: Duration = Duration::from_secs(3653 * 86_400);

#[derive(Debug)]
pub(super) struct TokensService {
    tokens: Known,
}

impl TokensService {
    pub(super) fn new(tokens: Known) -> Self {
        Self { tokens }
    }
}

#[tonic::async_trait]
impl Tokens for TokensService {
    async fn create(
        &self,
        request: Request<CreateTokenRequest>,
    ) -> Result<Response<CreateTokenResponse>, Status> {
        let admin = caller(&request)?;
        let CreateTokenRequest { user, teams, role, ttl_seconds } = request.into_inner();
        let wish = wish(user, teams, &role).map_err(Status::invalid_argument)?;
        let ttl = if ttl_seconds == 0 { USUAL_TTL } else { Duration::from_secs(ttl_seconds) };
        if ttl > LONGEST_TTL {
            return Err(Status::invalid_argument("a token is good for ten years at most; give it less time"));
        }
        let (token, issued) =
            self.tokens.issue(wish, &admin, ttl).map_err(|error| Status::internal(error.to_string()))?;
        if !self.tokens.is_saved().await {
            // Nobody has it, so nobody shall be let in with it.
            self.tokens.revoke(issued.id);
            let text = "the token could not be saved and is void; the service's log says why";
            return Err(Status::unavailable(text));
        }
        tracing::info!(token.id = %issued.id, user = issued.caller.user, by = issued.by, "a token was made");
        Ok(Response::new(CreateTokenResponse { token: token.expose().to_owned(), info: Some(info(&issued)) }))
    }

    async fn list(&self, _: Request<ListTokensRequest>) -> Result<Response<ListTokensResponse>, Status> {
        let tokens = self.tokens.list().iter().map(info).collect();
        Ok(Response::new(ListTokensResponse { tokens }))
    }

    async fn revoke(
        &self,
        request: Request<RevokeTokenRequest>,
    ) -> Result<Response<RevokeTokenResponse>, Status> {
        let admin = caller(&request)?;
        let given = request.into_inner().id;
        let found = given.parse().ok().and_then(|id| self.tokens.revoke(id));
        let issued = found.ok_or_else(|| {
            // Somebody may have given the token itself, which nobody shall read.
            let shown = if given.len() > 40 { "this".to_owned() } else { escape(given.as_bytes(), 40) };
            Status::not_found(format!(
                "there is no token with the id {shown}; `conductor token ls` lists them"
            ))
        })?;
        tracing::info!(token.id = %issued.id, user = issued.caller.user, by = admin.user, "a token was revoked");
        if !self.tokens.is_saved().await {
            let text = "the token is refused from now on, but that could not be saved: it will hold again after a \
                        restart; the service's log says why";
            return Err(Status::unavailable(text));
        }
        Ok(Response::new(RevokeTokenResponse { info: Some(info(&issued)) }))
    }
}

/// Whom a token is wanted for.
fn wish(user: String, mut teams: Vec<String>, role: &str) -> Result<Caller, String> {
    check_name("user", &user)?;
    teams.sort();
    teams.dedup();
    if teams.len() > MOST_TEAMS {
        return Err(format!("a user may be in {MOST_TEAMS} teams at most"));
    }
    teams.iter().try_for_each(|team| check_name("team", team))?;
    Ok(Caller { user, teams, roles: vec![Role::given(role)?] })
}

fn info(issued: &Issued) -> ApiToken {
    let state = match issued.standing() {
        Standing::Valid => TokenState::Valid,
        Standing::Expired => TokenState::Expired,
        Standing::Revoked => TokenState::Revoked,
    };
    ApiToken {
        id: issued.id.to_string(),
        user: issued.caller.user.clone(),
        teams: issued.caller.teams.clone(),
        roles: issued.caller.roles.iter().map(|role| role.name().to_owned()).collect(),
        created_by: issued.by.clone(),
        created_us: micros(issued.created),
        expires_us: micros(issued.expires),
        revoked_us: issued.revoked.map(micros).unwrap_or_default(),
        state: state.into(),
    }
}
