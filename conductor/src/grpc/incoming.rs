//! Accepting connections, never more than allowed: the permit comes before
//! the accept, so that what is too much waits in the kernel's backlog. Whoever
//! has not proved who they are cannot keep a permit, or a few silent connections
//! would lock everybody out; nor can they whose proof holds no more.
//!
//! With TLS, hands are shaken beside the accepting, under the same permit and
//! the same deadline: a peer that is slow at it holds up nobody.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{Instant, Sleep, sleep, sleep_until, timeout_at},
};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use crate::{
    identity::{certificates::Certificate, lease::Lease},
    limits::turns::Turns,
    metrics::Metrics,
    tls::listener::{self, Listener},
};

/// Pause after a failed accept: out of descriptors, most likely, and that
/// takes a moment to pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection may last before its first call by somebody who is let
/// in, shaking hands included. Health probes, which nobody has to be for, take
/// less.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(5);

/// How often it is looked whether what somebody was let in by still holds. Who was
/// let in by the local token is not asked again.
const LOOK: Duration = Duration::from_secs(20);

/// Proofs that one connection is known by. Most have one; one that comes beyond that
/// makes the oldest forgotten.
const MOST_PROOFS: usize = 8;

/// Connections as they come, at most `most` at once, those that still shake
/// hands among them.
pub(super) fn incoming(
    listener: TcpListener,
    tls: Option<Listener>,
    most: usize,
    metrics: Metrics,
) -> impl Stream<Item = io::Result<Accepted>> {
    let permits = Arc::new(Semaphore::new(most));
    let entrance = Entrance { listener, tls, permits, greeting: JoinSet::new(), metrics };
    stream::unfold(entrance, |mut entrance| async move {
        let accepted = entrance.next().await?;
        Some((Ok(accepted), entrance))
    })
}

struct Entrance {
    listener: TcpListener,
    tls: Option<Listener>,
    permits: Arc<Semaphore>,
    /// Those that shake hands. Each holds a permit, so they are no more than
    /// there are permits.
    greeting: JoinSet<Option<Accepted>>,
    metrics: Metrics,
}

impl Entrance {
    async fn next(&mut self) -> Option<Accepted> {
        loop {
            let arrived = tokio::select! {
                Some(greeted) = self.greeting.join_next(), if !self.greeting.is_empty() => {
                    match greeted {
                        Ok(Some(accepted)) => return Some(accepted),
                        Ok(None) => continue,
                        Err(error) => {
                            warn!(%error, "a greeting failed");
                            continue;
                        }
                    }
                }
                arrived = arrive(&self.listener, &self.permits, &self.metrics) => arrived?,
            };
            match &self.tls {
                None => return Some(arrived.plain()),
                Some(tls) => drop(self.greeting.spawn(arrived.greet(tls.clone()))),
            }
        }
    }
}

/// Waits for room, then for somebody.
async fn arrive(listener: &TcpListener, permits: &Arc<Semaphore>, metrics: &Metrics) -> Option<Arrived> {
    let permit = permits.clone().acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Frames are small and must not wait for company.
                stream.set_nodelay(true).ok();
                let address = peer.ip().to_canonical();
                let until = Instant::now() + ADMISSION_TIMEOUT;
                return Some(Arrived { stream, address, until, permit });
            }
            Err(error) => {
                metrics.accept_failures.one();
                warn!(%error, "cannot accept connections right now");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection over which nothing was said yet.
struct Arrived {
    stream: TcpStream,
    address: IpAddr,
    until: Instant,
    permit: OwnedSemaphorePermit,
}

impl Arrived {
    fn plain(self) -> Accepted {
        let Self { stream, address, until, permit } = self;
        Accepted::new(Either::Left(stream), address, None, until, permit)
    }

    /// Shakes hands; nothing comes of it if that fails or takes too long.
    async fn greet(self, tls: Listener) -> Option<Accepted> {
        let Self { stream, address, until, permit } = self;
        let (stream, vouched) = match timeout_at(until, tls.accept(stream)).await {
            Ok(Ok(greeted)) => greeted,
            Ok(Err((error, stream))) => {
                debug!(%error, "connection refused: no hands were shaken");
                timeout_at(until, listener::part(stream)).await.ok();
                return None;
            }
            Err(_) => {
                debug!("connection refused: shaking hands took too long");
                return None;
            }
        };
        // One that was verified and still cannot be read lets nobody in; a
        // token beside it may.
        let certificate = vouched.and_then(|vouched| {
            let read = Certificate::read(vouched);
            read.inspect_err(|why| debug!(why, "a client's certificate cannot be read")).ok()
        });
        let wire = Either::Right(Box::new(stream));
        Some(Accepted::new(wire, address, certificate, until, permit))
    }
}

/// By what those were let in whose calls have come over a connection, where that
/// comes from, and which certificate was presented; it stands beside every call.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    // Not for its receivers: a call looks at it for a moment.
    granted: Arc<watch::Sender<Granted>>,
    /// Users whose calls have come, each with a place among their connections.
    places: Arc<watch::Sender<Vec<(String, OwnedSemaphorePermit)>>>,
    address: IpAddr,
    certificate: Option<Certificate>,
}

/// For how long a connection may last.
#[derive(Debug)]
enum Granted {
    /// As long as one of these holds.
    While(Vec<Lease>),
    /// As long as it likes.
    Always,
}

/// What is to become of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Nobody,
    While,
    Always,
}

impl Admission {
    /// A call by somebody has come who is let in for as long as this holds.
    pub(super) fn grant(&self, lease: Option<&Lease>) {
        self.granted.send_if_modified(|granted| {
            match (granted, lease) {
                (Granted::Always, _) => {}
                (granted, None) => *granted = Granted::Always,
                (Granted::While(known), Some(lease)) => {
                    if !known.iter().any(|known| known.is_like(lease)) {
                        known.retain_mut(Lease::holds);
                        known.truncate(MOST_PROOFS - 1);
                        known.insert(0, lease.clone());
                    }
                }
            }
            false
        });
    }

    /// Whether this connection is one of those that a user may have.
    pub(super) fn place(&self, user: &str, turns: &Turns) -> bool {
        let mut has_place = false;
        self.places.send_if_modified(|places| {
            has_place = places.iter().any(|(known, _)| known == user);
            if !has_place && let Ok(place) = turns.of(user).try_acquire_owned() {
                places.truncate(MOST_PROOFS - 1);
                places.insert(0, (user.to_owned(), place));
                has_place = true;
            }
            false
        });
        has_place
    }

    fn standing(&self) -> Standing {
        let mut standing = Standing::Nobody;
        self.granted.send_if_modified(|granted| {
            standing = match granted {
                Granted::Always => Standing::Always,
                Granted::While(leases) => {
                    leases.retain_mut(Lease::holds);
                    if leases.is_empty() { Standing::Nobody } else { Standing::While }
                }
            };
            false
        });
        standing
    }

    /// The certificate that the client presented, found good.
    pub(super) fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref()
    }

    /// Whether a call comes from another machine. One that does not say counts as such.
    pub(super) fn is_remote(extensions: &tonic::Extensions) -> bool {
        extensions.get::<Self>().is_none_or(|admission| !admission.address.is_loopback())
    }

    /// Where a call comes from; nowhere if it does not say.
    pub(super) fn address(extensions: &http::Extensions) -> IpAddr {
        extensions.get::<Self>().map_or(Ipv4Addr::UNSPECIFIED.into(), |admission| admission.address)
    }
}

/// The bytes, without or with TLS around them.
type Wire = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A connection that holds its permit.
pub(super) struct Accepted {
    wire: Wire,
    admission: Admission,
    /// When it is looked at whether somebody is let in; nothing once that needs no
    /// other look.
    until: Option<Pin<Box<Sleep>>>,
    /// Whether somebody was at the last look.
    was_granted: bool,
    _permit: OwnedSemaphorePermit,
}

impl Accepted {
    fn new(
        wire: Wire,
        address: IpAddr,
        certificate: Option<Certificate>,
        until: Instant,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let granted = Arc::new(watch::channel(Granted::While(Vec::new())).0);
        let admission = Admission { granted, places: Arc::default(), address, certificate };
        let until = Some(Box::pin(sleep_until(until)));
        Self { wire, admission, until, was_granted: false, _permit: permit }
    }

    /// Fails once nobody was let in for too long. Asked by whatever is done first: a
    /// peer that takes nothing keeps what is above from reading, too.
    fn in_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(until) = self.until.as_mut()
            && until.as_mut().poll(cx).is_ready()
        {
            let standing = self.admission.standing();
            let next = match standing {
                Standing::Always => {
                    self.until = None;
                    break;
                }
                Standing::While => LOOK,
                // Somebody may come with a new proof.
                Standing::Nobody if self.was_granted => ADMISSION_TIMEOUT,
                Standing::Nobody => return Err(io::ErrorKind::TimedOut.into()),
            };
            self.was_granted = standing == Standing::While;
            until.as_mut().reset(Instant::now() + next);
        }
        Ok(())
    }
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
        self.in_time(cx)?;
        Pin::new(&mut self.wire).poll_read(cx, buf)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.in_time(cx)?;
        Pin::new(&mut self.wire).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_time(cx)?;
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_time(cx)?;
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.in_time(cx)?;
        Pin::new(&mut self.wire).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::{
        identity::{Caller, tokens::Tokens},
        state::Token,
    };

    async fn accepted() -> Accepted {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let permits = Arc::new(Semaphore::new(1));
        arrive(&listener, &permits, &Metrics::default()).await.unwrap().plain()
    }

    async fn lasts(accepted: &mut Accepted, time: Duration) -> bool {
        tokio::time::advance(time).await;
        poll_fn(|cx| Poll::Ready(accepted.in_time(cx))).await.is_ok()
    }

    #[tokio::test]
    async fn a_connection_lasts_as_long_as_somebody_is_let_in() {
        let tokens = Tokens::new(Token::random().unwrap(), Vec::new());
        let lease_of = |user: &str| {
            let caller = Caller { user: user.into(), teams: Vec::new(), roles: Vec::new() };
            let (token, issued) = tokens.issue(caller, tokens.me(), Duration::from_secs(3600)).unwrap();
            (tokens.find(token.expose().as_bytes()).unwrap().lease, issued.id)
        };
        let ((ann, of_ann), (bob, of_bob)) = (lease_of("ann"), lease_of("bob"));
        let [mut silent, mut used, mut trusted] = [accepted().await, accepted().await, accepted().await];
        tokio::time::pause();
        used.admission.grant(ann.as_ref());
        used.admission.grant(bob.as_ref());
        trusted.admission.grant(None);
        let late = ADMISSION_TIMEOUT + Duration::from_secs(1);
        assert!(!lasts(&mut silent, late).await, "nobody has come");
        assert!(lasts(&mut used, Duration::ZERO).await && lasts(&mut trusted, Duration::ZERO).await);
        assert!(trusted.until.is_none(), "it is not looked at again");
        tokens.revoke(of_ann).unwrap();
        assert!(lasts(&mut used, LOOK).await, "bob still is there");
        tokens.revoke(of_bob).unwrap();
        assert!(lasts(&mut used, LOOK).await, "somebody may come with a new token");
        let (cleo, of_cleo) = lease_of("cleo");
        used.admission.grant(cleo.as_ref());
        assert!(lasts(&mut used, late).await && lasts(&mut used, LOOK).await);
        tokens.revoke(of_cleo).unwrap();
        assert!(lasts(&mut used, LOOK).await);
        assert!(!lasts(&mut used, late).await, "nobody has");
    }

    #[tokio::test]
    async fn one_proof_is_kept_once() {
        let tokens = Tokens::new(Token::random().unwrap(), Vec::new());
        let accepted = accepted().await;
        for _ in 0..2 * MOST_PROOFS {
            let (token, _) = tokens.issue(tokens.me().clone(), tokens.me(), Duration::from_secs(60)).unwrap();
            for _ in 0..2 {
                accepted.admission.grant(tokens.find(token.expose().as_bytes()).unwrap().lease.as_ref());
            }
        }
        let granted = accepted.admission.granted.borrow();
        assert!(matches!(&*granted, Granted::While(leases) if leases.len() == MOST_PROOFS), "{granted:?}");
    }
}
