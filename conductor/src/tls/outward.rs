//! Connections that we open: whom they trust, and with what they show who we
//! are. Nothing of it is loaded before it is needed: a system's CAs take
//! longer to read than a whole greeting takes without them.

use std::{io, path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    HTTP2,
    files::{Pair, TlsError, roots},
    listener::Fingerprint,
    provider,
};

/// Whose certificates are believed.
#[derive(Debug, Clone, Copy)]
pub enum Trust<'a> {
    /// Those of this host's CAs.
    Host,
    /// Those of the CAs in a file, and no others.
    File(&'a Path),
    /// This very one, whatever name it has: the service on this host has said
    /// so where only its own user can write.
    Only(Fingerprint),
}

/// What is spoken inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// HTTP/2, for gRPC.
    Http2,
    /// Plain HTTP, for an issuer's documents.
    Http1,
}

/// How to open connections.
#[derive(Clone)]
pub struct Outward {
    connector: TlsConnector,
}

impl Outward {
    /// Reads what is needed. `own` are the files of our own certificate and key.
    pub fn new(trust: Trust<'_>, own: Option<(&Path, &Path)>, inside: Inside) -> Result<Self, TlsError> {
        let provider = provider();
        let unusable = |path: &Path, error: rustls::Error| match error {
            rustls::Error::InconsistentKeys(_) => TlsError::Mismatch {
                cert: path.to_owned(),
                key: own.map(|(_, key)| key.to_owned()).unwrap_or_default(),
            },
            error => TlsError::Unusable { path: path.to_owned(), why: error.to_string() },
        };
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Library { why: error.to_string() })?;
        let builder = match trust {
            Trust::Host => builder.with_root_certificates(host_roots()),
            Trust::File(file) => builder.with_root_certificates(roots(file)?),
            Trust::Only(fingerprint) => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Only { fingerprint, provider }))
            }
        };
        let mut config = match own {
            Some((cert, key)) => {
                let pair = Pair::read(cert, key)?;
                let with = builder.with_client_auth_cert(pair.chain, pair.key);
                with.map_err(|error| unusable(cert, error))?
            }
            None => builder.with_no_client_auth(),
        };
        if inside == Inside::Http2 {
            config.alpn_protocols = vec![HTTP2.to_vec()];
        }
        Ok(Self { connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Shakes hands with a host that is expected to be called so.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned()).map_err(io::Error::other)?;
        self.connector.connect(name, stream).await
    }
}

/// The CAs that this host trusts. One that cannot be read is left out, as
/// everywhere else; if none is left, nobody is believed.
fn host_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Believes one certificate.
#[derive(Debug)]
struct Only {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Only {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if <[u8; 32]>::from(Sha256::digest(end_entity)) == self.fingerprint {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
