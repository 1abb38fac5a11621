//! How long calls may take to begin answering. Those that wait for a process of an agent's
//! have limits of their own, which the configuration sets: a call must not end before these,
//! which have a cause to tell.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tokio::{sync::watch, time::timeout};
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use crate::config::Config;

/// How long a call may take that waits for nobody.
const USUAL: Duration = Duration::from_secs(30);

/// Calls that open a session, or open it again first.
const AWAIT_AGENTS: [&str; 3] = [
    "/conductor.v1.Sessions/Create",
    "/conductor.v1.Sessions/SetConfigOption",
    "/conductor.v1.Sessions/SetMode",
];

/// Ends calls that are not answered in time, and says so.
#[derive(Debug, Clone)]
pub(super) struct Patient {
    config: watch::Receiver<Arc<Config>>,
}

impl Patient {
    pub(super) fn new(config: watch::Receiver<Arc<Config>>) -> Self {
        Self { config }
    }

    fn limit(&self, path: &str) -> Duration {
        if !AWAIT_AGENTS.contains(&path) {
            return USUAL;
        }
        // One agent may stand in for the other until the last has been tried.
        let config = self.config.borrow();
        let agents = config.agents.values().filter(|agent| agent.enabled);
        agents.fold(USUAL, |sum, agent| {
            sum.saturating_add(agent.queue_timeout).saturating_add(agent.start_timeout)
        })
    }
}

impl<S> Layer<S> for Patient {
    type Service = PatientService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        PatientService { inner, with: self.clone() }
    }
}

#[derive(Debug, Clone)]
pub(super) struct PatientService<S> {
    inner: S,
    with: Patient,
}

impl<S> Service<Request<Body>> for PatientService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let limit = self.with.limit(request.uri().path());
        let call = self.inner.call(request);
        Box::pin(async move {
            match timeout(limit, call).await {
                Ok(answered) => answered,
                Err(_) => Ok(late(limit).into_http()),
            }
        })
    }
}

fn late(limit: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "there was no answer within {} s, so the call was given up; what it asked for may have been done all the same",
        limit.as_secs()
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use tokio::time::sleep;
    use tonic::Code;

    use super::*;

    /// What comes of a call that takes so long.
    async fn called(path: &str, takes: Duration) -> Code {
        let config = Arc::new(Config::load(None, [("HOME".into(), "/".into())]).unwrap().config);
        let slow = tower::service_fn(move |_: Request<Body>| async move {
            sleep(takes).await;
            Ok::<_, std::convert::Infallible>(Status::ok("").into_http())
        });
        let mut service = Patient::new(watch::channel(config).1).layer(slow);
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let answer = service.call(request).await.unwrap();
        Status::from_header_map(answer.headers()).unwrap().code()
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_an_agent_may_wait_as_long_as_the_agents_may_take() {
        let minute = Duration::from_secs(60);
        for path in AWAIT_AGENTS {
            assert_eq!(called(path, minute).await, Code::Ok, "{path}");
        }
        assert_eq!(called("/conductor.v1.Sessions/List", minute).await, Code::DeadlineExceeded);
        assert_eq!(called("/conductor.v1.Sessions/List", minute / 4).await, Code::Ok);
        assert_eq!(called(AWAIT_AGENTS[0], 10_000 * minute).await, Code::DeadlineExceeded, "not for ever");
    }
}
