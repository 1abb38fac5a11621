//! What happens to every call before its service sees it, as tower layers.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::Either;
use http::{Request, Response, header::AUTHORIZATION};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, metadata::MetadataMap};
use tower::{Layer, Service};
use tracing::{Instrument as _, instrument::Instrumented};

use super::{
    breakage::Breakage,
    incoming::Admission,
    lease::{self, Leased},
    strangers::{Strangers, Turned},
};
use crate::{
    config::Config,
    grants::Book,
    identity::door::{Door, Known, ProofKind},
    limits::turns::Turns,
    metrics::{Metrics, Refused as Failure},
    telemetry::trace::{Parent, TRACEPARENT},
};

/// Calls that need no token: orchestrators probe health and have none.
const OPEN: &str = "/grpc.health.v1.Health/";

/// Whether a call needs no token.
pub(super) fn is_open<T>(request: &Request<T>) -> bool {
    request.uri().path().starts_with(OPEN)
}

/// Requires a token or a certificate and puts the caller that it stands for
/// beside the call, with how that was proven.
#[derive(Debug, Clone)]
pub(super) struct Authenticated {
    door: Door,
    grants: Book,
    config: watch::Receiver<Arc<Config>>,
    strangers: Strangers,
    /// The connections of every user.
    places: Turns,
    metrics: Metrics,
}

impl Authenticated {
    pub(super) fn new(
        door: Door,
        grants: Book,
        config: watch::Receiver<Arc<Config>>,
        metrics: Metrics,
    ) -> Self {
        let places = Turns::new(config.borrow().service.max_connections_per_user);
        Self { door, grants, config, strangers: Strangers::default(), places, metrics }
    }

    /// What somebody is told who may not come in.
    fn refusal(&self, request: &Request<Body>, reason: &'static str) -> Status {
        self.metrics.auth_failures.of(Failure::from_reason(reason)).one();
        let address = Admission::address(request.extensions());
        let per_minute = self.config.borrow().service.bad_tokens_per_minute;
        match self.strangers.turn(address, per_minute) {
            Turned::Answered => {
                // Which of them it was is nobody's business but the log's.
                tracing::debug!(reason, path = request.uri().path(), "call refused: nobody who may come in");
                return Status::unauthenticated(
                    "a valid token or certificate is required: log in with `conductor login`, or set \
                     CONDUCTOR_TOKEN to a token made with `conductor token create`; on the service's own \
                     host, --state-dir names the directory with the file `token`",
                );
            }
            Turned::AwayNow => {
                tracing::warn!(%address, per_minute, "too many calls without a valid token; they are turned away");
            }
            Turned::Away => {}
        }
        Status::resource_exhausted(
            "too many calls without a valid token come from this address; try again later",
        )
    }
}

impl<S> Layer<S> for Authenticated {
    type Service = AuthenticatedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AuthenticatedService { inner, with: self.clone() }
    }
}

#[derive(Debug, Clone)]
pub(super) struct AuthenticatedService<S> {
    inner: S,
    with: Authenticated,
}

type Refused<T, E> = std::future::Ready<Result<T, E>>;

impl<S> Service<Request<Body>> for AuthenticatedService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Either<Leased<S::Response, S::Error>, Refused<S::Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if is_open(&request) {
            return Either::Left(self.inner.call(request));
        }
        // A header that is no token counts as a bad one, not as none: what is
        // presented beside a certificate decides.
        let presented =
            request.headers().get(AUTHORIZATION).map(|value| bearer(value.as_bytes()).unwrap_or_default());
        let certificate = request.extensions().get::<Admission>().and_then(Admission::certificate);
        let Known { caller, proof, lease } = match self.with.door.find(presented, certificate) {
            Ok(known) => known,
            Err(reason) => {
                let refused = self.with.refusal(&request, reason).into_http();
                return Either::Right(Either::Right(std::future::ready(Ok(refused))));
            }
        };
        // Which tokens hold is known without their being presented.
        if matches!(proof.kind, ProofKind::Oidc | ProofKind::Certificate) {
            self.with.grants.saw(&caller);
        }
        if let Some(admission) = request.extensions().get::<Admission>() {
            // Who has the service's own token may do without the service, too.
            if lease.is_some() && !admission.place(&caller.user, &self.with.places) {
                let refused = crowded(&caller.user).into_http();
                return Either::Right(Either::Right(std::future::ready(Ok(refused))));
            }
            admission.grant(lease.as_ref());
        }
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(proof);
        match lease {
            None => Either::Left(self.inner.call(Breakage::watch(request, None))),
            Some(lease) => {
                let told = CancellationToken::new();
                let request = Breakage::watch(request, Some((lease.clone(), told.clone())));
                let call = self.inner.call(request);
                Either::Right(Either::Left(lease::leased(call, lease, told)))
            }
        }
    }
}

/// What somebody is told who has too many connections; this one ends if nobody else is let in.
fn crowded(user: &str) -> Status {
    tracing::warn!(user, "call refused: its user has too many connections");
    Status::resource_exhausted(format!(
        "user `{user}` has as many connections open as one may have (service.max_connections_per_user); \
         close some of them"
    ))
}

/// The token in a header's value. The scheme's case does not matter (RFC 9110).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// The trace that a call was made in, if its caller says so and it makes sense.
pub(super) fn traceparent(metadata: &MetadataMap) -> Option<Parent> {
    Parent::read(metadata.get(TRACEPARENT)?.to_str().ok()?)
}

/// Gives every call a span.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traced;

impl<S> Layer<S> for Traced {
    type Service = TracedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TracedService { inner }
    }
}

#[derive(Debug, Clone)]
pub(super) struct TracedService<S> {
    inner: S,
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for TracedService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Instrumented<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let span = tracing::info_span!("call", rpc.method = request.uri().path());
        self.inner.call(request).instrument(span)
    }
}
