//! What happens to every call before its service sees it, as tower layers.

use std::task::{Context, Poll};

use futures_util::future::Either;
use http::{Request, Response, header::AUTHORIZATION};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body};
use tower::{Layer, Service};
use tracing::{Instrument as _, instrument::Instrumented};

use super::{
    breakage::Breakage,
    incoming::Admission,
    lease::{self, Leased},
};
use crate::identity::tokens::{Known, Tokens};

/// Calls that need no token: orchestrators probe health and have none.
const OPEN: &str = "/grpc.health.v1.Health/";

/// Requires a token and puts the caller that it stands for beside the call.
#[derive(Debug, Clone)]
pub(super) struct Authenticated {
    tokens: Tokens,
}

impl Authenticated {
    pub(super) fn new(tokens: Tokens) -> Self {
        Self { tokens }
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
        if request.uri().path().starts_with(OPEN) {
            return Either::Left(self.inner.call(request));
        }
        let presented = request.headers().get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let known = presented.ok_or("missing").and_then(|token| self.with.tokens.find(token));
        let Known { caller, lease } = match known {
            Ok(known) => known,
            Err(reason) => {
                // Which of them it was is nobody's business but the log's.
                tracing::debug!(reason, path = request.uri().path(), "call refused: no valid token");
                let text = "a valid token is required: one made with `conductor token create`, or the one in the \
                            file `token` of the service's state directory (set CONDUCTOR_TOKEN, or --state-dir \
                            on the same host)";
                let refused = Status::unauthenticated(text).into_http();
                return Either::Right(Either::Right(std::future::ready(Ok(refused))));
            }
        };
        if let Some(admission) = request.extensions().get::<Admission>() {
            admission.grant();
        }
        request.extensions_mut().insert(caller);
        match lease {
            None => Either::Left(self.inner.call(Breakage::watch(request, None))),
            Some(lease) => {
                let cut = CancellationToken::new();
                let call = self.inner.call(Breakage::watch(request, Some(cut.clone())));
                Either::Right(Either::Left(lease::leased(call, lease, cut)))
            }
        }
    }
}

/// The token in a header's value. The scheme's case does not matter (RFC 9110).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
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
