//! An issuer's public keys (a JWK set, RFC 7517), and what each verifies. Keys
//! that tokens are not signed with, or of a kind that is not known, are passed
//! over: issuers publish those, too.

use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{
    self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

/// More keys than any issuer has.
const MOST_KEYS: usize = 200;

/// With what a token is signed. There is none without a signature and none
/// with a shared secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    const RSA: [Self; 6] = [Self::Rs256, Self::Rs384, Self::Rs512, Self::Ps256, Self::Ps384, Self::Ps512];

    /// Its name in tokens.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }
}

/// A public key and the one algorithm that it is used with.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) algorithm: Algorithm,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    Point(Vec<u8>),
}

impl Key {
    /// Whether the holder of the private key has signed this.
    pub(super) fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), &'static str> {
        let verified = match (&self.material, self.algorithm) {
            (Material::Rsa { n, e }, algorithm) => {
                RsaPublicKeyComponents { n, e }.verify(rsa(algorithm), message, signature)
            }
            (Material::Point(point), algorithm) => {
                UnparsedPublicKey::new(curve(algorithm), point).verify(message, signature)
            }
        };
        verified.map_err(|_| "a signature that is not the issuer's")
    }
}

/// Keys of fewer than 2048 bits verify nothing.
fn rsa(algorithm: Algorithm) -> &'static RsaParameters {
    match algorithm {
        Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
        Algorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
        Algorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => &signature::RSA_PKCS1_2048_8192_SHA256,
    }
}

fn curve(algorithm: Algorithm) -> &'static dyn VerificationAlgorithm {
    match algorithm {
        Algorithm::Es384 => &ECDSA_P384_SHA384_FIXED,
        Algorithm::EdDsa => &ED25519,
        _ => &ECDSA_P256_SHA256_FIXED,
    }
}

/// The keys of an issuer.
#[derive(Debug)]
pub struct KeySet {
    /// Whose they are.
    pub issuer: String,
    keys: HashMap<String, Key>,
    /// They are used no longer than this.
    pub(super) until: Option<Instant>,
}

impl KeySet {
    /// Reads a JWK set; else why it is none. One without a key that tokens could be
    /// signed with means that there is none: whoever takes the last key out of it
    /// wants nobody to be let in.
    pub(super) fn parse(json: &[u8], issuer: &str, until: Option<Instant>) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let Set { keys: given } =
            serde_json::from_slice(json).map_err(|_| "it is no set of keys".to_owned())?;
        if given.len() > MOST_KEYS {
            return Err(format!("it has more than {MOST_KEYS} keys"));
        }
        let mut keys = HashMap::new();
        for (kid, key) in given.into_iter().filter_map(usable) {
            // Two keys of one name: which is meant must not depend on who looks.
            keys.entry(kid).or_insert(key);
        }
        Ok(Self { issuer: issuer.to_owned(), keys, until })
    }

    /// How many keys there are.
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn get(&self, kid: &str) -> Option<&Key> {
        self.keys.get(kid)
    }

    pub(super) fn is_too_old(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

/// A key by its name, if tokens are signed with such.
fn usable(given: Value) -> Option<(String, Key)> {
    #[derive(Deserialize)]
    struct Jwk {
        kty: String,
        kid: String,
        alg: Option<String>,
        #[serde(rename = "use")]
        purpose: Option<String>,
        key_ops: Option<Vec<String>>,
        crv: Option<String>,
        n: Option<String>,
        e: Option<String>,
        x: Option<String>,
        y: Option<String>,
    }
    let jwk: Jwk = serde_json::from_value(given).ok()?;
    let signs = jwk.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
        && jwk.key_ops.as_ref().is_none_or(|uses| uses.iter().any(|it| it == "verify"));
    if !signs || jwk.kid.is_empty() {
        return None;
    }
    let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_ref()?).ok();
    let point = |length: usize| {
        let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
        (x.len() == length && y.len() == length).then(|| [&[4], x.as_slice(), &y].concat())
    };
    let (algorithm, material) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("RSA", _) => {
            let name = jwk.alg.as_deref().unwrap_or("RS256");
            let algorithm = Algorithm::RSA.into_iter().find(|algorithm| algorithm.name() == name)?;
            // Some write a zero in front, as big numbers with a sign have it.
            let number = |bytes: Vec<u8>| bytes.into_iter().skip_while(|byte| *byte == 0).collect();
            (algorithm, Material::Rsa { n: number(bytes(&jwk.n)?), e: number(bytes(&jwk.e)?) })
        }
        ("EC", Some("P-256")) => (Algorithm::Es256, Material::Point(point(32)?)),
        ("EC", Some("P-384")) => (Algorithm::Es384, Material::Point(point(48)?)),
        ("OKP", Some("Ed25519")) => (Algorithm::EdDsa, Material::Point(bytes(&jwk.x)?)),
        _ => return None,
    };
    // A key that says it is for something else is not used for this.
    if jwk.alg.is_some_and(|named| named != algorithm.name()) {
        return None;
    }
    Some((jwk.kid, Key { algorithm, material }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_keys_that_sign_are_kept_each_with_one_algorithm() {
        let x = URL_SAFE_NO_PAD.encode([1; 32]);
        let ec = json!({ "kty": "EC", "crv": "P-256", "x": x, "y": x, "kid": "ec" });
        let with = |base: &Value, name: &str, value: Value| {
            let mut key = base.clone();
            key[name] = value;
            key
        };
        let rsa = json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "rsa" });
        let parse = |keys: Value| KeySet::parse(json!({ "keys": keys }).to_string().as_bytes(), "i", None);
        let set = parse(json!([ec, rsa, with(&rsa, "alg", json!("PS512")), { "kty": "new" }, 7])).unwrap();
        assert_eq!(set.count(), 2);
        assert_eq!(set.get("ec").unwrap().algorithm, Algorithm::Es256);
        assert_eq!(set.get("rsa").unwrap().algorithm, Algorithm::Rs256, "the first of a name counts");
        for useless in [
            with(&ec, "use", json!("enc")),
            with(&ec, "alg", json!("ES384")),
            with(&ec, "alg", json!("HS256")),
            with(&ec, "key_ops", json!(["sign"])),
            with(&ec, "kid", json!("")),
            with(&ec, "x", json!("AQ")),
            with(&rsa, "alg", json!("none")),
            with(&rsa, "alg", json!("HS256")),
            json!({ "kty": "oct", "k": "AQAB", "kid": "secret" }),
        ] {
            assert_eq!(parse(json!([useless])).unwrap().count(), 0, "{useless}");
        }
        assert_eq!(parse(json!([])).unwrap().count(), 0);
        for garbage in ["", "null", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":null}"#, "<html>"] {
            assert!(KeySet::parse(garbage.as_bytes(), "i", None).is_err(), "{garbage}");
        }
    }
}
