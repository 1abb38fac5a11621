//! The admin listener: metrics for Prometheus and probes for orchestrators, over
//! plain HTTP/1.1 on a port of its own.
//!
//! It is off unless `service.admin` names an address. Whoever reaches it can read
//! numbers and the names of agents, and nothing else: there is no verb that
//! changes anything, no user, no path and no text of a session. Each connection
//! carries one request within a deadline, and there are few at once, so that a
//! prober that hangs costs nobody anything.

mod scrape;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

pub use self::scrape::Sources;
use crate::{
    journal::Journal,
    metrics::{CONTENT_TYPE, as_text},
    tasks::Tasks,
};

/// Connections at once; more wait in the kernel's backlog.
const CONNECTIONS: usize = 16;

/// How long one may take from its first byte to its last.
const DEADLINE: Duration = Duration::from_secs(10);

/// How long a request's head may take.
const HEAD: Duration = Duration::from_secs(5);

/// Bytes that a request's head may have.
const HEAD_BYTES: usize = 16 << 10;

/// Pause after a failed accept, as for editors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the probes look at.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Where the numbers come from.
    pub sources: Sources,
    /// The service takes no more sessions.
    pub draining: CancellationToken,
}

impl Admin {
    /// Serves until `stop`.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken, tasks: Tasks) {
        let admin = Arc::new(self);
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => return,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "cannot accept connections of probes right now");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (admin, stop) = (admin.clone(), stop.clone());
            tasks.start("admin", async move {
                tokio::select! {
                    () = admin.converse(stream) => {}
                    () = stop.cancelled() => {}
                }
                drop(permit);
            });
        }
    }

    async fn converse(self: Arc<Self>, stream: TcpStream) {
        let answer = service_fn(move |request: Request<Incoming>| {
            let answer = self.answer(request.method(), request.uri().path());
            async move { Ok::<_, Infallible>(answer) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(HEAD_BYTES)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), answer);
        match timeout(DEADLINE, connection).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "a probe's connection broke"),
            Err(_) => debug!("a probe took too long"),
        }
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let (status, kind, body) = match path {
            _ if method != Method::GET && method != Method::HEAD => {
                (StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET is understood here\n".to_owned())
            }
            "/metrics" => (StatusCode::OK, CONTENT_TYPE, as_text(&self.sources.families())),
            "/healthz" => (StatusCode::OK, PLAIN, "the process works\n".to_owned()),
            "/readyz" => match self.missing().as_slice() {
                [] => (StatusCode::OK, PLAIN, "ready\n".to_owned()),
                missing => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{}\n", missing.join("\n"))),
            },
            _ => (StatusCode::NOT_FOUND, PLAIN, "there are /metrics, /healthz and /readyz\n".to_owned()),
        };
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
        response
    }

    /// Why no session should be sent here. It listens as soon as anybody can ask.
    fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if self.draining.is_cancelled() {
            missing.push("draining: the service is stopping and takes no new sessions");
        }
        if is_refusing(&self.sources.journal) {
            missing.push("journal: effects are refused; `conductor doctor` says why");
        }
        missing
    }
}

/// Plain text, for people who look.
const PLAIN: &str = "text/plain; charset=utf-8";

/// Whether sessions could not do anything. The reason names files of this host
/// and stays here.
fn is_refusing(journal: &Journal) -> bool {
    journal.refusing().is_some()
}

/// What is to be said about an address that others can reach.
pub fn caution(address: SocketAddr) -> Option<&'static str> {
    let is_open = !address.ip().to_canonical().is_loopback();
    is_open.then_some(
        "the admin listener can be reached from other hosts, without TLS and without a token; \
         let only your monitoring reach it",
    )
}
