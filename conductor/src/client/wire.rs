//! Connections of the channel to a service that is reached by TLS. The channel
//! opens a new one by itself when the last has broken.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tower::Service;

use crate::tls::outward::Outward;

/// Opens connections and shakes hands.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) outward: Outward,
}

type Opening = Pin<Box<dyn Future<Output = io::Result<TokioIo<TlsStream<TcpStream>>>> + Send>>;

impl Service<Uri> for Wire {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Opening;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let outward = self.outward.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default();
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((bare, uri.port_u16().unwrap_or(443))).await?;
            // Frames are small and must not wait for company.
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(outward.connect(host, stream).await?))
        })
    }
}
