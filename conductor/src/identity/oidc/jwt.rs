//! A JWT in its compact form (RFC 7515), taken apart as little as it takes to
//! verify it. Nothing in it is believed before.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use super::keys::Key;

/// Longer ones are refused unread. Those of real issuers with many groups have
/// a few kilobytes.
const LONGEST: usize = 12 << 10;

/// The longest name of a key.
const LONGEST_KID: usize = 256;

/// Kinds of tokens that say who somebody is. An issuer signs others with the
/// same key, which do not.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

/// A token, not verified yet.
#[derive(Debug)]
pub(super) struct Jwt<'a> {
    /// What the signature is over.
    signed: &'a [u8],
    payload: &'a [u8],
    signature: Vec<u8>,
    algorithm: String,
    /// The key that it says it is signed with.
    pub(super) kid: String,
}

impl<'a> Jwt<'a> {
    pub(super) fn parse(token: &'a [u8]) -> Result<Self, &'static str> {
        if token.len() > LONGEST {
            return Err("a token that is too long");
        }
        let mut parts = token.split(|byte| *byte == b'.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("a token without three parts");
        };
        let signed = &token[..header.len() + 1 + payload.len()];
        let header = object(&decoded(header)?)?;
        let text = |name: &str| header.get(name).and_then(Value::as_str);
        // Extensions that must be understood are not.
        if header.contains_key("crit") {
            return Err("a token with critical extensions");
        }
        if let Some(kind) = header.get("typ") {
            let kind = kind.as_str().map(str::to_ascii_lowercase);
            if !kind.is_some_and(|kind| TYPES.contains(&kind.as_str())) {
                return Err("a token of another type");
            }
        }
        let kid = text("kid").filter(|kid| !kid.is_empty() && kid.len() <= LONGEST_KID);
        Ok(Self {
            signed,
            payload,
            signature: decoded(signature)?,
            algorithm: text("alg").ok_or("a token that names no algorithm")?.to_owned(),
            kid: kid.ok_or("a token that names no key")?.to_owned(),
        })
    }

    /// What it says, if it was signed with this key.
    pub(super) fn verified_by(&self, key: &Key) -> Result<Map<String, Value>, &'static str> {
        if self.algorithm != key.algorithm.name() {
            return Err("signed with another algorithm than the key is for");
        }
        key.verify(self.signed, &self.signature)?;
        object(&decoded(self.payload)?)
    }
}

fn decoded(part: &[u8]) -> Result<Vec<u8>, &'static str> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| "a token that is not base64url")
}

fn object(json: &[u8]) -> Result<Map<String, Value>, &'static str> {
    serde_json::from_slice(json).map_err(|_| "a token that holds no JSON object")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn token(header: &str) -> Vec<u8> {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.{}", part(header), part("{}"), part("signature")).into_bytes()
    }

    #[test]
    fn only_whole_tokens_are_taken() {
        assert_eq!(Jwt::parse(&token(r#"{"alg":"RS256","kid":"a"}"#)).unwrap().kid, "a");
        assert!(Jwt::parse(&token(r#"{"alg":"RS256","kid":"a","typ":"at+JWT"}"#)).is_ok());
        let long = format!(r#"{{"alg":"RS256","kid":"{}"}}"#, "k".repeat(300));
        let huge = format!(r#"{{"alg":"RS256","kid":"a","x":"{}"}}"#, "x".repeat(LONGEST));
        for header in [
            "",
            "[]",
            "{}",
            r#"{"alg":"RS256"}"#,
            r#"{"kid":"a"}"#,
            r#"{"alg":1,"kid":"a"}"#,
            r#"{"alg":"RS256","kid":7}"#,
            r#"{"alg":"RS256","kid":""}"#,
            r#"{"alg":"RS256","kid":"a","crit":["b64"]}"#,
            r#"{"alg":"RS256","kid":"a","typ":"logout+jwt"}"#,
            &long,
            &huge,
        ] {
            assert!(Jwt::parse(&token(header)).is_err(), "{header}");
        }
        for whole in [&b""[..], b".", b"..", b"a.b", b"a.b.c.d", b"\xff.\xff.\xff", b"e30=.e30=.AA=="] {
            assert!(Jwt::parse(whole).is_err(), "{whole:?}");
        }
    }
}
