//! A CA of a test's own, and certificates of every kind that it signs, good and
//! bad, as PEM files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
    date_time_ymd,
};
use serde_json::{Value, json};

/// A CA.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: PathBuf,
    /// Its certificate.
    pub file: PathBuf,
}

/// The files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// What a certificate says.
pub struct Certificate {
    params: CertificateParams,
}

impl Certificate {
    /// One of a service on this host.
    pub fn server() -> Self {
        Self::server_of("localhost").san(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)))
    }

    /// One of a service with this name.
    pub fn server_of(name: &str) -> Self {
        let cert = Self::new(ExtendedKeyUsagePurpose::ServerAuth);
        cert.san(SanType::DnsName(name.try_into().unwrap()))
    }

    /// One of a person.
    pub fn person(common_name: &str) -> Self {
        let mut cert = Self::new(ExtendedKeyUsagePurpose::ClientAuth);
        cert.params.distinguished_name.push(DnType::CommonName, common_name);
        cert
    }

    fn new(purpose: ExtendedKeyUsagePurpose) -> Self {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![purpose];
        Self { params }
    }

    fn san(mut self, name: SanType) -> Self {
        self.params.subject_alt_names.push(name);
        self
    }

    /// With another address.
    #[must_use]
    pub fn at(self, address: IpAddr) -> Self {
        self.san(SanType::IpAddress(address))
    }

    /// With a mail address.
    #[must_use]
    pub fn email(self, address: &str) -> Self {
        self.san(SanType::Rfc822Name(address.try_into().unwrap()))
    }

    /// With a URI.
    #[must_use]
    pub fn uri(self, uri: &str) -> Self {
        self.san(SanType::URI(uri.try_into().unwrap()))
    }

    /// Good until then, and since the year 2020.
    #[must_use]
    pub fn until(mut self, moment: SystemTime) -> Self {
        let since = moment.duration_since(UNIX_EPOCH).unwrap();
        self.params.not_before = date_time_ymd(2020, 1, 1);
        self.params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(since.as_secs());
        self
    }
}

impl Authority {
    /// A new one, whose files lie in this directory.
    pub fn new(dir: &Path, name: &str) -> Self {
        let dir = dir.join(name);
        fs::create_dir_all(&dir).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let file = dir.join("ca.pem");
        fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), dir, file }
    }

    /// Signs a certificate and writes it with its key.
    pub fn sign(&self, name: &str, certificate: &Certificate) -> Pair {
        let pair =
            Pair { cert: self.dir.join(format!("{name}.pem")), key: self.dir.join(format!("{name}.key")) };
        self.sign_into(&pair, certificate);
        pair
    }

    /// Signs a certificate and puts it in the place of another, as those do
    /// who renew them: each file whole, one after the other.
    pub fn sign_into(&self, pair: &Pair, certificate: &Certificate) {
        let key = KeyPair::generate().unwrap();
        let signed = certificate.params.signed_by(&key, &self.issuer).unwrap();
        replace(&pair.key, &key.serialize_pem());
        replace(&pair.cert, &signed.pem());
    }
}

fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(new, file).unwrap();
}

impl Pair {
    /// The table `[service.tls]` with it.
    pub fn tls(&self) -> Value {
        json!({ "cert": self.cert, "key": self.key })
    }

    /// The flags by which a client presents it.
    pub fn flags(&self) -> [&str; 4] {
        ["--client-cert", self.cert.to_str().unwrap(), "--client-key", self.key.to_str().unwrap()]
    }
}
