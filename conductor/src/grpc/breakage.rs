//! Tells a stream that its client ended from one that broke. To tonic, and to
//! hyper beneath it, a stream that was reset has merely come to its end.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body};

use crate::identity::lease::Lease;

/// How long an answer may take to say that its lease is over.
const TELLING: Duration = Duration::from_secs(5);

/// Whether the body of this request broke off. Found in the request's
/// extensions.
#[derive(Debug, Clone, Default)]
pub(super) struct Breakage(Arc<AtomicBool>);

impl Breakage {
    /// Watches the body of a request, which also breaks when its lease is over: once the
    /// answer has said so, or after a moment. Whoever leaves the answer unread keeps it
    /// from noticing.
    pub(super) fn watch(request: Request<Body>, lease: Option<(Lease, CancellationToken)>) -> Request<Body> {
        let breakage = Self::default();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(breakage.clone());
        let over = lease.map(|(lease, told)| -> Over {
            Box::pin(async move {
                let is_late = async {
                    lease.over().await;
                    sleep(TELLING).await;
                };
                tokio::select! {
                    () = told.cancelled() => {}
                    () = is_late => {}
                }
            })
        });
        Request::from_parts(parts, Body::new(Watched { body, breakage, over }))
    }

    pub(super) fn has_happened(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

type Over = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Watched {
    body: Body,
    breakage: Breakage,
    over: Option<Over>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(over) = &mut self.over
            && over.as_mut().poll(cx).is_ready()
        {
            self.over = Some(Box::pin(std::future::ready(())));
            self.breakage.0.store(true, Ordering::Release);
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let broke = match &frame {
            Some(frame) => frame.is_err(),
            // Only the client's own word makes it so.
            None => !self.body.is_end_stream(),
        };
        if broke {
            self.breakage.0.store(true, Ordering::Release);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
