//! Ends what a call still says once what its caller presented holds no more: a
//! stream may be open for days, and its token or certificate is looked at when it
//! begins.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body};

use crate::identity::lease::Lease;

/// Parts of an answer that are still given when they are ready: whoever
/// revokes their own token shall read that it is revoked. A message and its
/// trailers are two.
const LAST_PARTS: u8 = 2;

/// A call whose answer ends with its lease.
pub(super) type Leased<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Makes the answer of a call end with its lease, and says when it has `told` so; what
/// the caller says ends then, too (see `breakage`).
pub(super) fn leased<E: 'static>(
    call: impl Future<Output = Result<Response<Body>, E>> + Send + 'static,
    lease: Lease,
    told: CancellationToken,
) -> Leased<Response<Body>, E> {
    Box::pin(async move {
        let (parts, body) = call.await?.into_parts();
        let body = Answer { body, left: Left::Leased(Box::pin(lease.over())), told };
        Ok(Response::from_parts(parts, Body::new(body)))
    })
}

struct Answer {
    body: Body,
    left: Left,
    told: CancellationToken,
}

enum Left {
    /// The lease holds until this comes.
    Leased(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// So many parts more.
    Parts(u8),
    Nothing,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Left::Leased(over) = &mut self.left
            && over.as_mut().poll(cx).is_ready()
        {
            self.left = Left::Parts(LAST_PARTS);
        }
        match self.left {
            Left::Leased(_) => return Pin::new(&mut self.body).poll_frame(cx),
            Left::Parts(parts @ 1..) => {
                self.left = Left::Parts(parts - 1);
                if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
                    return Poll::Ready(frame);
                }
            }
            Left::Parts(0) => {}
            Left::Nothing => return Poll::Ready(None),
        }
        self.left = Left::Nothing;
        self.told.cancel();
        let text =
            "the token or certificate has expired or was revoked; ask for a new one, then log in with it";
        let mut trailers = HeaderMap::new();
        let told = Status::unauthenticated(text).add_header(&mut trailers);
        Poll::Ready(Some(told.map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
