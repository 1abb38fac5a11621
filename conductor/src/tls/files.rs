//! Certificates and keys out of PEM files.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::identity::certificates::Presented;

/// No file of certificates is nearly as long; a whole system's CAs are a
/// quarter of it.
const LARGEST: u64 = 1 << 20;

/// Why a file of certificates or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The system refused.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others know the key.
    #[error(
        "the key {} is open to other users (mode {mode:04o}) and may be known to them; make a new pair, and keep its \
         key to its owner: chmod 600 {}",
        path.display(),
        path.display()
    )]
    Shared {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds something else.
    #[error("{} holds no {what} as PEM: {why}; name a file that has one", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
        /// What was found instead.
        why: String,
    },
    /// Certificate and key belong to two pairs.
    #[error(
        "the key {} does not belong to the certificate {}; name the two files of one pair",
        key.display(),
        cert.display()
    )]
    Mismatch {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// Its time is over.
    #[error("the certificate {} is good until {until} only, and that is over; renew it", path.display())]
    Expired {
        /// The file.
        path: PathBuf,
        /// When its time was over.
        until: String,
    },
    /// TLS itself, whatever the files.
    #[error("TLS cannot be set up: {why}; this is a fault of this program, please report it")]
    Library {
        /// Why not.
        why: String,
    },
    /// What was read makes no sense together.
    #[error("{} cannot be used: {why}; name another file", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

/// A certificate with those that lead to its CA, and its key.
#[derive(Debug)]
pub struct Pair {
    /// The certificate itself first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key. Shown by nothing.
    pub key: PrivateKeyDer<'static>,
}

impl Pair {
    /// Reads both. Whether they belong together is seen by who uses them.
    pub fn read(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        Ok(Self { chain: certificates(cert)?, key: private_key(key)? })
    }
}

/// The certificates in a file; there is at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let refuse = |why: String| TlsError::Pem { path: path.to_owned(), what: "certificate", why };
    let (_, text) = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| refuse(error.to_string()))?;
    match found.first() {
        Some(_) => Ok(found),
        None => Err(refuse("there is none in it".to_owned())),
    }
}

/// The CAs in a file.
pub fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::Unusable { path: path.to_owned(), why: error.to_string() })?;
    }
    Ok(roots)
}

/// What the first certificate of a file says.
pub fn describe(path: &Path, chain: &[CertificateDer<'_>]) -> Result<Presented, TlsError> {
    let unusable = |why: &str| TlsError::Unusable { path: path.to_owned(), why: why.to_owned() };
    let first = chain.first().ok_or_else(|| unusable("there is no certificate in it"))?;
    Presented::read(first).map_err(unusable)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let (file, text) = read(path)?;
    // One that belongs to root may be lent to a group, as distributions do.
    let mode = file.mode() & 0o7777;
    let forbidden = if file.uid() == 0 { 0o037 } else { 0o077 };
    if mode & forbidden != 0 {
        return Err(TlsError::Shared { path: path.to_owned(), mode });
    }
    // What the reader says names no bytes of the file.
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| TlsError::Pem {
        path: path.to_owned(),
        what: "private key",
        why: error.to_string(),
    })
}

/// The file that was read, as it was when it was opened, and what is in it.
fn read(path: &Path) -> Result<(std::fs::Metadata, Vec<u8>), TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mut text = Vec::new();
    file.take(LARGEST).read_to_end(&mut text).map_err(failed)?;
    Ok((metadata, text))
}

/// What files looked like, to see that they have changed. Links are followed:
/// orchestrators swap a link to change several files at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stamp(Vec<Option<Look>>);

/// What tells one content of a file from another, without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Stamp {
    /// As they are now.
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let look = |path: &Path| {
            let file = std::fs::metadata(path).ok()?;
            let changed = (file.ctime(), file.ctime_nsec());
            Some(Look { device: file.dev(), inode: file.ino(), size: file.size(), changed })
        };
        Self(paths.into_iter().map(look).collect())
    }
}
