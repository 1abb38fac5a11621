//! The key that signs checkpoints: Ed25519, in a file of its own that only its
//! owner can read, and its public half, by which others check.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ring::{
    rand::SystemRandom,
    signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey},
};

use super::{EvidenceError, hex, sha256};

/// What stands before an Ed25519 key in the form that other programs read
/// (SubjectPublicKeyInfo, RFC 8410).
const PUBLIC_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// No key is nearly as long.
const LARGEST: u64 = 4096;

const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";

/// A key that signs.
pub struct Key {
    pair: Ed25519KeyPair,
    public: PublicKey,
    /// As it stands in its file.
    pem: String,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.public.id())
    }
}

/// Its public half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl Key {
    /// A new one.
    pub fn generate() -> Result<Self, String> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let document = made.map_err(|_| "the system has no random numbers".to_owned())?;
        Self::from_der(document.as_ref())
    }

    fn from_der(der: &[u8]) -> Result<Self, String> {
        // Other programs leave the public half out.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der)
            .map_err(|error| format!("is no Ed25519 key in PKCS#8: {error}"))?;
        let public = pair.public_key().as_ref().try_into().map_err(|_| "has no public half".to_owned())?;
        Ok(Self { pair, public: PublicKey(public), pem: pem(PRIVATE, der) })
    }

    /// The one in a file, or `None` if there is no file. One that others can
    /// read may be known to them and is refused.
    pub fn load(path: &Path) -> Result<Option<Self>, EvidenceError> {
        let refuse = |why: String| EvidenceError::Key { path: path.to_owned(), why };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refuse(format!("cannot be read: {error}; check its permissions"))),
        };
        let unreadable = |error: io::Error| refuse(format!("cannot be read: {error}"));
        let mode = file.metadata().map_err(unreadable)?.mode();
        if mode & 0o077 != 0 {
            let mode = mode & 0o7777;
            return Err(refuse(format!(
                "is open to other users (mode {mode:04o}) and may be known to them; take that right away \
                 (chmod 600) and make a new one with `conductor ledger key rotate`"
            )));
        }
        let mut bytes = Vec::new();
        file.take(LARGEST).read_to_end(&mut bytes).map_err(unreadable)?;
        let der = match std::str::from_utf8(&bytes).ok().and_then(|text| unpem(PRIVATE, text)) {
            Some(der) => der,
            None => bytes,
        };
        Self::from_der(&der).map(Some).map_err(refuse)
    }

    /// Writes it to a file that must not be there yet.
    pub fn save(&self, path: &Path) -> Result<(), EvidenceError> {
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(self.pem.as_bytes())?;
            file.sync_all()?;
            sync_directory(path)
        };
        write().map_err(|error| EvidenceError::Key {
            path: path.to_owned(),
            why: format!("cannot be written: {error}"),
        })
    }

    /// The public half.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The signature of bytes, in hexadecimal digits.
    pub(super) fn sign(&self, bytes: &[u8]) -> String {
        hex(self.pair.sign(bytes).as_ref())
    }
}

/// Where a new key waits until the log says that it counts.
pub fn waiting(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Puts the key that waits into its place.
pub fn put_in_place(path: &Path) -> Result<(), EvidenceError> {
    fs::rename(waiting(path), path).and_then(|()| sync_directory(path)).map_err(|error| EvidenceError::Key {
        path: path.to_owned(),
        why: format!("cannot be replaced by the new one beside it: {error}"),
    })
}

fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

impl PublicKey {
    /// From base64 of its 32 bytes, from PEM, or from base64 of what PEM holds.
    pub fn parse(text: &str) -> Result<Self, String> {
        let der = unpem(PUBLIC, text).or_else(|| BASE64.decode(text.trim()).ok());
        let wrong = || "is no public key: give the one that `conductor ledger key` shows".to_owned();
        let der = der.ok_or_else(wrong)?;
        let bytes = der.strip_prefix(&PUBLIC_PREFIX).unwrap_or(&der);
        bytes.try_into().map(Self).map_err(|_| wrong())
    }

    /// By what it is named: the beginning of its hash.
    pub fn id(&self) -> String {
        hex(&sha256(&self.0)[..16])
    }

    /// Its bytes in base64.
    pub fn base64(&self) -> String {
        BASE64.encode(self.0)
    }

    /// As other programs read it.
    pub fn pem(&self) -> String {
        pem(PUBLIC, &[&PUBLIC_PREFIX[..], &self.0].concat())
    }

    /// Whether it has signed bytes; the signature is in hexadecimal digits.
    pub(super) fn has_signed(&self, bytes: &[u8], signature: &str) -> bool {
        let Some((first, second)) = signature.split_at_checked(64) else { return false };
        let Some((first, second)) = super::unhex(first).zip(super::unhex(second)) else { return false };
        UnparsedPublicKey::new(&ED25519, self.0).verify(bytes, &[first, second].concat()).is_ok()
    }
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let lines: Vec<_> =
        (0..text.len()).step_by(64).filter_map(|at| text.get(at..text.len().min(at + 64))).collect();
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.join("\n"))
}

fn unpem(what: &str, text: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once(&format!("-----BEGIN {what}-----"))?;
    let (body, _) = rest.split_once(&format!("-----END {what}-----"))?;
    let body: String = body.split_whitespace().collect();
    BASE64.decode(body).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_comes_back_from_its_file_and_only_its_owner_can_read_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("checkpoint.key");
        assert!(Key::load(&path).unwrap().is_none());
        let key = Key::generate().unwrap();
        key.save(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let loaded = Key::load(&path).unwrap().unwrap();
        assert_eq!(loaded.public(), key.public());
        assert!(loaded.public().has_signed(b"text", &key.sign(b"text")));
        assert!(!loaded.public().has_signed(b"other", &key.sign(b"text")));
        assert!(key.save(&path).is_err(), "a key is never overwritten");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = Key::load(&path).unwrap_err().to_string();
        assert!(refused.contains("open to other users (mode 0640)"), "{refused}");
    }

    #[test]
    fn public_keys_are_read_in_every_form_that_is_shown() {
        let key = Key::generate().unwrap();
        let public = *key.public();
        for text in [public.base64(), public.pem(), format!("  {}\n", public.base64())] {
            assert_eq!(PublicKey::parse(&text), Ok(public));
        }
        for text in ["", "abc", "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----"] {
            assert!(PublicKey::parse(text).is_err(), "{text}");
        }
        assert_eq!(public.id().len(), 32);
        assert!(!format!("{key:?}").contains(&key.pem));
    }
}
