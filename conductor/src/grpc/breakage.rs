//! Tells a stream that its client ended from one that broke. To tonic, and to
//! hyper beneath it, a stream that was reset has merely come to its end.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, body::Body};

/// Whether the body of this request broke off. Found in the request's
/// extensions.
#[derive(Debug, Clone, Default)]
pub(super) struct Breakage(Arc<AtomicBool>);

impl Breakage {
    /// Watches the body of a request, which also breaks when it is `cut`.
    pub(super) fn watch(request: Request<Body>, cut: Option<CancellationToken>) -> Request<Body> {
        let breakage = Self::default();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(breakage.clone());
        let cut = cut.map(|cut| Box::pin(cut.cancelled_owned()));
        Request::from_parts(parts, Body::new(Watched { body, breakage, cut }))
    }

    pub(super) fn has_happened(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

struct Watched {
    body: Body,
    breakage: Breakage,
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(cut) = &mut self.cut
            && cut.as_mut().poll(cx).is_ready()
        {
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
