//! A small OIDC issuer on loopback: it tells of itself, gives out its keys, signs
//! tokens, and misbehaves when a test says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    io::{BufRead as _, BufReader, Read, Write},
    net::TcpListener,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    hmac,
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
        RsaKeyPair, RsaPublicKeyComponents,
    },
};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};

use crate::certificates::Pair;

/// How the issuer answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// As it should.
    Well,
    /// Not at all: it hangs up.
    Down,
    /// With something else.
    Garbage,
    /// With more than anybody wants to read.
    Endless,
}

/// A private key.
pub enum Signer {
    /// ES256.
    Ec(Box<EcdsaKeyPair>),
    /// EdDSA.
    Ed(Box<Ed25519KeyPair>),
    /// RS256.
    Rsa(Box<RsaKeyPair>),
}

impl Signer {
    /// A new ES256 key.
    pub fn ec() -> Self {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random);
        Self::Ec(Box::new(key.unwrap()))
    }

    /// A new EdDSA key.
    pub fn ed() -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed(Box::new(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap()))
    }

    /// A new RS256 key, made by `openssl`; nothing where that is not installed.
    pub fn rsa() -> Option<Self> {
        let options = ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-outform", "DER"];
        let made = Command::new("openssl").args(options).stderr(Stdio::null()).output().ok()?;
        // Which of the two forms it writes depends on its version.
        let key = RsaKeyPair::from_pkcs8(&made.stdout).or_else(|_| RsaKeyPair::from_der(&made.stdout));
        Some(Self::Rsa(Box::new(key.unwrap())))
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Ec(_) => "ES256",
            Self::Ed(_) => "EdDSA",
            Self::Rsa(_) => "RS256",
        }
    }

    fn jwk(&self, kid: &str) -> Value {
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Ec(key) => {
                let point = key.public_key().as_ref();
                json!({ "kty": "EC", "crv": "P-256", "use": "sig", "kid": kid,
                        "x": part(&point[1..33]), "y": part(&point[33..]) })
            }
            Self::Ed(key) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": part(key.public_key().as_ref()) })
            }
            Self::Rsa(key) => {
                let public = RsaPublicKeyComponents::<Vec<u8>>::from(key.public());
                let (n, e) = (part(&public.n), part(&public.e));
                json!({ "kty": "RSA", "alg": "RS256", "use": "sig", "kid": kid, "n": n, "e": e })
            }
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Ec(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Ed(key) => key.sign(message).as_ref().to_vec(),
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
        }
    }

    /// The bytes of the public key, as somebody has them who knows the JWK set.
    fn public(&self) -> Vec<u8> {
        match self {
            Self::Ec(key) => key.public_key().as_ref().to_vec(),
            Self::Ed(key) => key.public_key().as_ref().to_vec(),
            Self::Rsa(key) => key.public().as_ref().to_vec(),
        }
    }
}

/// A running issuer.
pub struct Issuer {
    /// What it is called.
    pub url: String,
    signer: Signer,
    kid: String,
    told: Arc<Mutex<Told>>,
    asked: Arc<AtomicUsize>,
}

struct Told {
    mood: Mood,
    keys: Value,
}

impl Issuer {
    /// Starts one.
    pub fn start(signer: Signer) -> Self {
        Self::start_with(signer, None)
    }

    /// Starts one that is reached by TLS.
    pub fn start_tls(signer: Signer, pair: &Pair) -> Self {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(&pair.cert).unwrap().collect();
        let key = PrivateKeyDer::from_pem_file(&pair.key).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.unwrap(), key);
        Self::start_with(signer, Some(Arc::new(config.unwrap())))
    }

    fn start_with(signer: Signer, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let kid = "first".to_owned();
        let keys = json!({ "keys": [signer.jwk(&kid)] });
        let told = Arc::new(Mutex::new(Told { mood: Mood::Well, keys }));
        let asked = Arc::<AtomicUsize>::default();
        let (shared, counted, name) = (told.clone(), asked.clone(), url.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                counted.fetch_add(1, Ordering::SeqCst);
                let answer = {
                    let told = shared.lock().unwrap();
                    (told.mood, told.keys.clone())
                };
                match &tls {
                    None => serve(stream, &name, &answer),
                    Some(tls) => {
                        let tls = ServerConnection::new(tls.clone()).unwrap();
                        serve(StreamOwned::new(tls, stream), &name, &answer);
                    }
                }
            }
        });
        Self { url, signer, kid, told, asked }
    }

    /// The table `[identity.oidc]` for it.
    pub fn config(&self) -> Value {
        json!({ "issuer": self.url, "audience": "conductor" })
    }

    /// How it answers from now on.
    pub fn be(&self, mood: Mood) {
        self.told.lock().unwrap().mood = mood;
    }

    /// How often it was asked for something.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Signs with another key from now on, and gives out only that one.
    pub fn rotate(&mut self, kid: &str, signer: Signer) {
        kid.clone_into(&mut self.kid);
        self.told.lock().unwrap().keys = json!({ "keys": [signer.jwk(kid)] });
        self.signer = signer;
    }

    /// The keys that it gives out.
    pub fn keys(&self) -> String {
        self.told.lock().unwrap().keys.to_string()
    }

    /// Claims that are good, for this user and a number of seconds.
    pub fn claims(&self, user: &str, seconds: i64) -> Value {
        json!({ "iss": self.url, "aud": "conductor", "sub": user, "exp": now() + seconds, "iat": now() })
    }

    /// The header of its tokens.
    pub fn header(&self) -> Value {
        json!({ "typ": "JWT", "alg": self.signer.algorithm(), "kid": self.kid })
    }

    /// A good token.
    pub fn token(&self, user: &str, seconds: i64) -> String {
        self.sign(&self.header(), &self.claims(user, seconds))
    }

    /// A token with this header and these claims, signed with the key in use.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = self.signer.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// A token that is signed with the public key, as if that were a secret.
    pub fn sign_with_public_key(&self, claims: &Value) -> String {
        let header = json!({ "typ": "JWT", "alg": "HS256", "kid": self.kid });
        let signed = format!("{}.{}", part(&header), part(claims));
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.signer.public());
        let signature = hmac::sign(&key, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

/// One part of a token.
pub fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// Seconds since 1970.
pub fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

fn serve(stream: impl Read + Write, url: &str, (mood, keys): &(Mood, Value)) {
    let mut stream = BufReader::new(stream);
    let mut lines = stream.by_ref().lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    lines.find(String::is_empty);
    let body = match mood {
        Mood::Down => return,
        Mood::Garbage => "<html>sign in first</html>".to_owned(),
        Mood::Endless => "x".repeat(4 << 20),
        Mood::Well if first.contains("/.well-known/openid-configuration ") => {
            json!({ "issuer": url, "jwks_uri": format!("{url}/keys") }).to_string()
        }
        Mood::Well if first.contains("/keys ") => keys.to_string(),
        Mood::Well => "{}".to_owned(),
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    // Who has heard enough hangs up.
    stream.get_mut().write_all((head + &body).as_bytes()).and_then(|()| stream.get_mut().flush()).ok();
}
