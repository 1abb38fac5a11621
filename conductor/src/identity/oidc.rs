//! Tokens of an OIDC issuer: JWTs, verified with keys that are already here. A
//! call never waits for the network; `keeper`, a task, fetches the keys.
//!
//! A key says with which algorithm it is used, exactly one, and a token that
//! names another is refused: so nobody can have a public key taken for a
//! shared secret, or a token for one that needs no signature.

mod claims;
mod jwt;
mod keeper;
mod keys;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::sync::{Notify, watch};

use self::jwt::Jwt;
pub use self::{
    claims::Claims,
    keeper::{Keeper, load},
    keys::KeySet,
};
use crate::config::Oidc;

/// By how much an issuer's clock may differ from ours.
pub const LEEWAY: Duration = Duration::from_secs(10);

/// Whether a bearer looks like an issuer's token: those that we make have no dot.
pub fn is_jwt(bearer: &[u8]) -> bool {
    bearer.contains(&b'.')
}

/// The issuer's keys as they are known now. Clones share them.
#[derive(Debug, Clone)]
pub struct Keys {
    set: watch::Receiver<Option<Arc<KeySet>>>,
    /// Somebody has named a key that is not known.
    unknown: Arc<Notify>,
}

impl Keys {
    /// None yet, and who brings them.
    pub fn new() -> (Self, Keeper) {
        let (publish, set) = watch::channel(None);
        let unknown = Arc::<Notify>::default();
        (Self { set, unknown: unknown.clone() }, Keeper::new(publish, unknown))
    }

    /// What a token says, if the issuer does; else why not, which is for the
    /// log alone.
    pub fn verify(&self, token: &[u8], oidc: &Oidc, now: SystemTime) -> Result<Claims, &'static str> {
        if !oidc.is_on() {
            return Err("an issuer's token, and no issuer is configured");
        }
        let jwt = Jwt::parse(token)?;
        let set = self.set.borrow().clone().filter(|set| set.issuer == oidc.issuer);
        let set = set.ok_or("the issuer's keys have not been read")?;
        if set.is_too_old() {
            return Err("the issuer's keys are too old, and it gives no new ones");
        }
        let Some(key) = set.get(&jwt.kid) else {
            // The one behind may be new. Who fetches decides how often.
            self.unknown.notify_one();
            return Err("signed with a key that the issuer is not known to have");
        };
        Claims::read(&jwt.verified_by(key)?, oidc, now)
    }
}
