//! How long what somebody presented holds: a stream may be open for days, and
//! who is behind it is asked when it begins.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::sleep};

use super::{Caller, certificates::Certificate, oidc::Claims, tokens};
use crate::config::{Config, Identity};

/// How often the clock is looked at while a stream is open: it may be set, and
/// a machine may have slept.
const LOOK: Duration = Duration::from_secs(20);

/// How long what somebody presented holds.
#[derive(Debug, Clone)]
pub enum Lease {
    /// A token: until it expires or is revoked.
    Token(tokens::Hold),
    /// A certificate or an issuer's token: until it expires, or the
    /// configuration gives its bearer another part, or none, or does not trust
    /// whoever made it any more.
    Configured(Configured),
}

/// Something whose meaning stands in the configuration.
#[derive(Debug, Clone)]
pub struct Configured {
    /// The configuration that says so.
    pub config: watch::Receiver<Arc<Config>>,
    /// What was presented.
    pub presented: Evidence,
    /// Whom it let in.
    pub caller: Caller,
    /// It is good for nothing from then on.
    pub until: SystemTime,
}

/// What was presented, after it was found to be genuine.
#[derive(Debug, Clone)]
pub enum Evidence {
    /// A certificate.
    Certificate(Certificate),
    /// What an issuer said.
    Claims(Arc<Claims>),
}

impl Evidence {
    fn caller(&mut self, identity: &Identity) -> Option<Caller> {
        match self {
            Self::Certificate(certificate) => {
                let (caller, _) = certificate.says.caller(&identity.certificates).ok()?;
                certificate.vouched.holds().then_some(caller)
            }
            Self::Claims(claims) => claims.caller(&identity.oidc).ok(),
        }
    }
}

impl Lease {
    /// Waits until it holds no more.
    pub async fn over(mut self) {
        while let Some(until) = self.holds_until() {
            let left = until.duration_since(SystemTime::now()).unwrap_or_default();
            tokio::select! {
                // Without its source the service itself is ending.
                gone = self.changed() => if gone.is_err() { return },
                () = sleep(left.min(LOOK)) => {}
            }
        }
    }

    /// Whether it still holds.
    pub fn holds(&mut self) -> bool {
        self.holds_until().is_some()
    }

    /// Whether another one is of the same proof, so that both end together.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Token(one), Self::Token(other)) => one.is_like(other),
            (Self::Configured(one), Self::Configured(other)) => {
                one.until == other.until && one.caller == other.caller
            }
            _ => false,
        }
    }

    /// Until when it holds, if nothing happens; nothing if it holds no more.
    fn holds_until(&mut self) -> Option<SystemTime> {
        let until = match self {
            Self::Token(token) => token.until()?,
            Self::Configured(Configured { config, presented, caller, until }) => {
                let config = config.borrow_and_update();
                presented.caller(&config.identity).filter(|now| now == caller)?;
                *until
            }
        };
        (until > SystemTime::now()).then_some(until)
    }

    async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        match self {
            Self::Token(token) => token.changed().await,
            Self::Configured(Configured {
                config, presented: Evidence::Certificate(certificate), ..
            }) => {
                tokio::select! {
                    changed = config.changed() => changed,
                    // Certificates are not renewed any more while turns come to their end.
                    Ok(()) = certificate.vouched.changed() => Ok(()),
                }
            }
            Self::Configured(configured) => configured.config.changed().await,
        }
    }
}
