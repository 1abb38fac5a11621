//! The `Identity` service: tells callers who they are here.

use tonic::{Request, Response, Status};

use super::rights::caller;
use crate::{
    clock::micros,
    identity::door::{Proof, ProofKind},
    proto::{self, WhoAmIRequest, WhoAmIResponse, identity_server::Identity},
};

#[derive(Debug)]
pub(super) struct IdentityService;

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn who_am_i(&self, request: Request<WhoAmIRequest>) -> Result<Response<WhoAmIResponse>, Status> {
        let caller = caller(&request)?;
        let proof = request.extensions().get::<Proof>();
        let kind = proof.map_or(proto::ProofKind::Unspecified, |proof| match proof.kind {
            ProofKind::Local => proto::ProofKind::Local,
            ProofKind::Token => proto::ProofKind::Token,
            ProofKind::Oidc => proto::ProofKind::Oidc,
            ProofKind::Certificate => proto::ProofKind::Certificate,
        });
        Ok(Response::new(WhoAmIResponse {
            user: caller.user,
            teams: caller.teams,
            roles: caller.roles.iter().map(|role| role.name().to_owned()).collect(),
            proof: kind.into(),
            proof_detail: proof.map(|proof| proof.detail.clone()).unwrap_or_default(),
            expires_us: proof.and_then(|proof| proof.expires).map(micros).unwrap_or_default(),
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }
}
