//! Accepting connections, never more than allowed: the permit comes before
//! the accept, so that what is too much waits in the kernel's backlog. Whoever
//! has no token cannot keep a permit, or a few silent connections would lock
//! everybody out.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tonic::transport::server::Connected;
use tracing::warn;

/// Pause after a failed accept: out of descriptors, most likely, and that
/// takes a moment to pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection may last before its first call with a valid token.
/// Health probes, which need none, take less.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections as they come, at most `most` at once.
pub(super) fn incoming(listener: TcpListener, most: usize) -> impl Stream<Item = io::Result<Accepted>> {
    let permits = Arc::new(Semaphore::new(most));
    stream::unfold((listener, permits), |(listener, permits)| async move {
        let permit = permits.clone().acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    // Frames are small and must not wait for company.
                    stream.set_nodelay(true).ok();
                    let accepted = Accepted {
                        stream,
                        admission: Admission {
                            is_granted: Arc::default(),
                            is_remote: !peer.ip().to_canonical().is_loopback(),
                        },
                        until: Some(Box::pin(sleep(ADMISSION_TIMEOUT))),
                        _permit: permit,
                    };
                    return Some((Ok(accepted), (listener, permits)));
                }
                Err(error) => {
                    warn!(%error, "cannot accept connections right now");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// Whether a call with a valid token has come over a connection, and where that
/// comes from; it stands beside every call.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    is_granted: Arc<AtomicBool>,
    is_remote: bool,
}

impl Admission {
    /// Such a call has come.
    pub(super) fn grant(&self) {
        self.is_granted.store(true, Ordering::Relaxed);
    }

    /// Whether a call comes from another machine. One that does not say counts as such.
    pub(super) fn is_remote(extensions: &tonic::Extensions) -> bool {
        extensions.get::<Self>().is_none_or(|admission| admission.is_remote)
    }
}

/// A connection that holds its permit.
pub(super) struct Accepted {
    stream: TcpStream,
    admission: Admission,
    /// When it ends unless admitted; nothing once it is.
    until: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl Connected for Accepted {
    type ConnectInfo = Admission;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.admission.clone()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(until) = self.until.as_mut()
            && until.as_mut().poll(cx).is_ready()
        {
            self.until = None;
            if !self.admission.is_granted.load(Ordering::Relaxed) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
