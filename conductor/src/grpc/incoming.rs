//! Accepting connections, never more than allowed: the permit comes before
//! the accept, so that what is too much waits in the kernel's backlog.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tracing::warn;

/// Pause after a failed accept: out of descriptors, most likely, and that
/// takes a moment to pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections as they come, at most `most` at once.
pub(super) fn incoming(listener: TcpListener, most: usize) -> impl Stream<Item = io::Result<Accepted>> {
    let permits = Arc::new(Semaphore::new(most));
    stream::unfold((listener, permits), |(listener, permits)| async move {
        let permit = permits.clone().acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // Frames are small and must not wait for company.
                    stream.set_nodelay(true).ok();
                    return Some((Ok(Accepted { stream, _permit: permit }), (listener, permits)));
                }
                Err(error) => {
                    warn!(%error, "cannot accept connections right now");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// A connection that holds its permit.
pub(super) struct Accepted {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl Connected for Accepted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
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
