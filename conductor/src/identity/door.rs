//! Everything by which somebody may be let in, asked in one place: the local
//! token, API tokens, an issuer's tokens, certificates.
//!
//! Whoever presents a token is who the token says, and is refused if it is no
//! good, whatever certificate the connection has. The certificate counts only
//! where there is no token beside it.
//!
//! The name of the user the service runs as is nobody else's to have: an issuer's
//! token or a certificate that nobody wrote down would own that user's sessions.

use std::{sync::Arc, time::SystemTime};

use tokio::sync::watch;

use super::{
    Caller,
    certificates::Certificate,
    lease::{Configured, Evidence, Lease},
    oidc::{Keys, LEEWAY, is_jwt},
    tokens::Tokens,
};
use crate::config::Config;

/// Somebody who proved who they are.
#[derive(Debug)]
pub struct Known {
    /// Who it is.
    pub caller: Caller,
    /// How they proved it.
    pub proof: Proof,
    /// How long that holds; the local token always does.
    pub lease: Option<Lease>,
}

/// How somebody proved who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The way.
    pub kind: ProofKind,
    /// Which one of its kind: the id of a token, the name in a certificate,
    /// the issuer. Never a secret.
    pub detail: String,
    /// When it ends.
    pub expires: Option<SystemTime>,
}

/// The ways to prove who one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofKind {
    /// The token in the state directory.
    Local,
    /// An API token.
    Token,
    /// An issuer's token.
    Oidc,
    /// A certificate.
    Certificate,
}

/// Knows everything by which somebody may be let in. Clones share it.
#[derive(Debug, Clone)]
pub struct Door {
    tokens: Tokens,
    keys: Keys,
    config: watch::Receiver<Arc<Config>>,
}

impl Door {
    /// One for these.
    pub fn new(tokens: Tokens, keys: Keys, config: watch::Receiver<Arc<Config>>) -> Self {
        Self { tokens, keys, config }
    }

    /// The API tokens.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Who presents this; else why nobody does, which is for the log alone.
    pub fn find(
        &self,
        bearer: Option<&[u8]>,
        certificate: Option<&Certificate>,
    ) -> Result<Known, &'static str> {
        match (bearer, certificate) {
            (Some(token), _) => match self.tokens.find(token) {
                Err(_) if is_jwt(token) => self.by_issuer(token),
                found => found,
            },
            (None, Some(certificate)) => self.by_certificate(certificate),
            (None, None) => Err("missing"),
        }
    }

    fn by_issuer(&self, jwt: &[u8]) -> Result<Known, &'static str> {
        let config = self.config.borrow();
        let oidc = &config.identity.oidc;
        let claims = Arc::new(self.keys.verify(jwt, oidc, SystemTime::now())?);
        let caller = claims.caller(oidc)?;
        if caller.user == self.tokens.me().user {
            return Err("a token with the name of the user the service runs as");
        }
        let until = claims.expires + LEEWAY;
        let proof =
            Proof { kind: ProofKind::Oidc, detail: oidc.issuer.clone(), expires: Some(claims.expires) };
        drop(config);
        Ok(self.known(caller, proof, Evidence::Claims(claims), until))
    }

    fn by_certificate(&self, certificate: &Certificate) -> Result<Known, &'static str> {
        let mut certificate = certificate.clone();
        let until = certificate.says.not_after;
        if until <= SystemTime::now() {
            return Err("a certificate that is expired");
        }
        let config = self.config.borrow();
        let known = &config.identity.certificates;
        let (caller, name) = certificate.says.caller(known)?;
        // Whoever is on the list is there because somebody wants it so.
        if caller.user == self.tokens.me().user && !known.users.contains_key(&name) {
            return Err("a certificate with the name of the user the service runs as");
        }
        drop(config);
        if !certificate.vouched.holds() {
            return Err("a certificate of a CA that is not trusted any more");
        }
        let proof = Proof { kind: ProofKind::Certificate, detail: name, expires: Some(until) };
        Ok(self.known(caller, proof, Evidence::Certificate(certificate), until))
    }

    fn known(&self, caller: Caller, proof: Proof, presented: Evidence, until: SystemTime) -> Known {
        let config = self.config.clone();
        let lease = Lease::Configured(Configured { config, presented, caller: caller.clone(), until });
        Known { caller, proof, lease: Some(lease) }
    }
}
