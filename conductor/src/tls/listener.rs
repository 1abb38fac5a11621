//! What new connections are greeted with, and its renewal: the files are read
//! again when they change, and on SIGHUP. Connections that are open keep what
//! they began with, except for the trust in their client's CA; a pair that cannot
//! be used changes nothing.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, UnixTime},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::watch,
    time::sleep,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    HTTP2,
    files::{Pair, Stamp, TlsError, describe, roots},
    provider,
};
use crate::{
    clock::rfc3339,
    config::{ClientAuth, Config, Tls},
};

/// How often the files are looked at. A look is a handful of `stat`s.
const LOOK: Duration = Duration::from_secs(2);

/// Reads after which a peer that goes on talking is not listened to any more.
const LAST_WORDS: usize = 64;

/// A certificate that ends sooner is worth a warning when it is read.
pub const SOON: Duration = Duration::from_secs(14 * 86_400);

/// By what the clients on this host know the certificate: its SHA-256.
pub type Fingerprint = [u8; 32];

/// A certificate that can be served with.
#[derive(Debug)]
pub struct Served {
    config: Arc<ServerConfig>,
    trust: Arc<Trust>,
    /// The files as they were before they were read.
    stamp: Stamp,
    /// By what it is known.
    pub fingerprint: Fingerprint,
    /// When its time is over.
    pub until: SystemTime,
}

impl Served {
    /// Reads the files. Nothing if TLS is off.
    pub fn read(tls: &Tls) -> Result<Option<Self>, TlsError> {
        let Some((cert, key)) = tls.pair() else { return Ok(None) };
        let stamp = stamp(tls);
        let pair = Pair::read(cert, key)?;
        let until = describe(cert, &pair.chain)?.not_after;
        if until <= SystemTime::now() {
            let until = rfc3339(until).unwrap_or_default();
            return Err(TlsError::Expired { path: cert.clone(), until });
        }
        let fingerprint = fingerprint(pair.chain.first());
        let versions = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = versions.map_err(|error| TlsError::Library { why: error.to_string() })?;
        let trust = match tls.client_ca.as_deref() {
            Some(file) => Trust(Some(verifier(file, tls.client_auth)?)),
            None => Trust(None),
        };
        let mut config = match &trust.0 {
            Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
            None => builder.with_no_client_auth(),
        }
        .with_single_cert(pair.chain, pair.key)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => TlsError::Mismatch { cert: cert.clone(), key: key.clone() },
            error => unusable(cert, &error),
        })?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Some(Self { config: Arc::new(config), trust: Arc::new(trust), stamp, fingerprint, until }))
    }
}

/// Whose certificates clients may present; nobody's without a CA.
#[derive(Debug)]
struct Trust(Option<Arc<dyn ClientCertVerifier>>);

impl Trust {
    /// Whether hands would be shaken with whoever presents these now.
    fn takes(&self, chain: &[CertificateDer<'static>]) -> bool {
        let (Some(verifier), Some((leaf, others))) = (&self.0, chain.split_first()) else { return false };
        verifier.verify_client_cert(leaf, others, UnixTime::now()).is_ok()
    }
}

/// Certificates that a client presented and that were found good, and whether they
/// still would be: the connection may be older than what is trusted now.
#[derive(Debug, Clone)]
pub struct Vouched {
    chain: Vec<CertificateDer<'static>>,
    by: Arc<Trust>,
    served: watch::Receiver<Arc<Served>>,
}

impl Vouched {
    /// The client's own.
    pub fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }

    /// Whether they still are good. A comparison, as long as what is served has not
    /// been renewed.
    pub fn holds(&mut self) -> bool {
        let trust = self.served.borrow_and_update().trust.clone();
        Arc::ptr_eq(&trust, &self.by) || trust.takes(&self.chain)
    }

    /// Waits until something else is served.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.served.changed().await
    }
}

fn verifier(file: &Path, auth: ClientAuth) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(file)?), provider());
    let builder = match auth {
        ClientAuth::Optional => builder.allow_unauthenticated(),
        ClientAuth::Required => builder,
    };
    builder.build().map_err(|error| unusable(file, &error))
}

fn unusable(path: &Path, error: &dyn std::error::Error) -> TlsError {
    TlsError::Unusable { path: path.to_owned(), why: error.to_string() }
}

fn fingerprint(certificate: Option<&CertificateDer<'_>>) -> Fingerprint {
    Sha256::digest(certificate.map(AsRef::as_ref).unwrap_or_default()).into()
}

/// Greets connections with what is served at the moment. Clones share it.
#[derive(Debug, Clone)]
pub struct Listener {
    served: watch::Receiver<Arc<Served>>,
}

impl Listener {
    /// Begins with what was read.
    pub fn new(served: Served) -> (Self, Renewal) {
        let (publish, served) = watch::channel(Arc::new(served));
        (Self { served }, Renewal { publish })
    }

    /// Shakes hands; also gives back what the client presented. Whoever waits for it
    /// sets the deadline. If nothing comes of it, the peer is to be [parted](part) with.
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<(TlsStream<TcpStream>, Option<Vouched>), (io::Error, TcpStream)> {
        let served = self.served.borrow().clone();
        let stream = TlsAcceptor::from(served.config.clone()).accept(stream).into_fallible().await?;
        let presented = stream.get_ref().1.peer_certificates();
        let vouched = presented.map(|chain| Vouched {
            chain: chain.iter().map(|certificate| certificate.clone().into_owned()).collect(),
            by: served.trust.clone(),
            served: self.served.clone(),
        });
        Ok((stream, vouched))
    }
}

/// Hears a peer out that was told why it is refused: a connection that is closed
/// with something unread is reset, and the peer may never read the reason.
pub async fn part(mut stream: TcpStream) {
    stream.shutdown().await.ok();
    let mut unread = [0; 4096];
    let mut left = LAST_WORDS;
    while let Ok(1..) = stream.read(&mut unread).await
        && left > 0
    {
        left -= 1;
    }
}

/// Replaces what is served.
#[derive(Debug)]
pub struct Renewal {
    publish: watch::Sender<Arc<Served>>,
}

impl Renewal {
    /// Reads the files again whenever they change, or the configuration was
    /// reloaded, until `stop`; `tell` hears of what is served from then on.
    pub async fn run(
        self,
        mut config: watch::Receiver<Arc<Config>>,
        tell: impl Fn(&Served) + Send,
        stop: CancellationToken,
    ) {
        let mut seen = self.publish.borrow().stamp.clone();
        loop {
            let asked = tokio::select! {
                () = stop.cancelled() => return,
                changed = config.changed() => match changed {
                    Ok(()) => true,
                    Err(_) => return,
                },
                () = sleep(LOOK) => false,
            };
            let tls = config.borrow_and_update().service.tls.clone();
            let now = stamp(&tls);
            if !asked && now == seen {
                continue;
            }
            // What is half written now has another stamp when it is whole.
            seen = now;
            match Served::read(&tls) {
                Ok(Some(served)) => {
                    say(&served);
                    tell(&served);
                    self.publish.send_replace(Arc::new(served));
                }
                // The reload has said that this waits for the next start.
                Ok(None) => {}
                Err(refused) => {
                    error!(%refused, "the certificate was not reloaded; the old one stays in use");
                }
            }
        }
    }
}

/// Tells the log what is served.
pub fn say(served: &Served) {
    let until = rfc3339(served.until).unwrap_or_default();
    info!(until, "the certificate is in use for new connections");
    if served.until < SystemTime::now() + SOON {
        warn!(until, "the certificate's time is nearly over; renew it");
    }
}

fn stamp(tls: &Tls) -> Stamp {
    let files = [&tls.cert, &tls.key, &tls.client_ca];
    Stamp::of(files.into_iter().flatten().map(PathBuf::as_path))
}
