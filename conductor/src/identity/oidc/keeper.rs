//! Brings the issuer's keys: at the start, every now and then, when the
//! configuration changes, and when somebody names a key that is not known, but
//! not as often as they like. While the issuer is down the old keys stay, until
//! they are too old.

use std::{path::Path, sync::Arc, time::Duration};

use serde::Deserialize;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use url::Url;

use super::keys::KeySet;
use crate::{
    config::{Config, Oidc},
    fetch,
    tls::{self, files::Stamp},
};

/// How often keys are fetched while all is well, at the latest.
const REFRESH: Duration = Duration::from_secs(3600);

/// How soon it is tried again after a failure.
const RETRY: Duration = Duration::from_secs(10);

/// Between two fetches that strangers cause by naming keys that are not known.
const SPACING: Duration = Duration::from_secs(5);

/// How often a file of keys is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// The largest file of keys.
const LARGEST: u64 = 512 << 10;

/// Brings keys; a task.
#[derive(Debug)]
pub struct Keeper {
    publish: watch::Sender<Option<Arc<KeySet>>>,
    unknown: Arc<Notify>,
}

impl Keeper {
    pub(super) fn new(publish: watch::Sender<Option<Arc<KeySet>>>, unknown: Arc<Notify>) -> Self {
        Self { publish, unknown }
    }

    /// Brings keys until `stop`.
    pub async fn run(self, mut config: watch::Receiver<Arc<Config>>, stop: CancellationToken) {
        let mut oidc = config.borrow_and_update().identity.oidc.clone();
        let mut due = Instant::now();
        let mut last = None;
        let mut seen = Stamp::default();
        let mut is_well = true;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = config.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    oidc = config.borrow_and_update().identity.oidc.clone();
                    (due, seen) = (Instant::now(), Stamp::default());
                    continue;
                }
                () = self.unknown.notified(), if oidc.jwks_file.is_none() => {
                    let soonest = last.map_or_else(Instant::now, |last| last + SPACING);
                    due = due.min(soonest);
                    continue;
                }
                () = sleep_until(due), if oidc.is_on() => {}
            }
            if let Some(file) = &oidc.jwks_file {
                due = Instant::now() + LOOK;
                let now = Stamp::of([file.as_path()]);
                if now == seen {
                    continue;
                }
                seen = now;
            }
            let loaded = tokio::select! {
                () = stop.cancelled() => return,
                loaded = load(&oidc) => loaded,
            };
            last = Some(Instant::now());
            match loaded {
                Ok(set) => {
                    let had_keys = self.publish.borrow().as_ref().is_none_or(|old| old.count() > 0);
                    if set.count() == 0 && had_keys {
                        warn!(
                            issuer = oidc.issuer,
                            "the issuer has no keys that tokens could be signed with (RS, PS, ES or EdDSA, with \
                             a kid); its tokens let in nobody until it has"
                        );
                    } else if !is_well || self.publish.borrow().as_ref().is_none_or(|old| old.count() == 0) {
                        info!(issuer = oidc.issuer, keys = set.count(), "the issuer's keys are known");
                    }
                    is_well = true;
                    self.publish.send_replace(Some(Arc::new(set)));
                    due = Instant::now() + if oidc.jwks_file.is_some() { LOOK } else { rest(&oidc) };
                }
                Err(why) => {
                    if is_well && oidc.jwks_file.is_some() {
                        error!(why, "the issuer's keys were not read; the old ones stay in use");
                    } else if is_well {
                        warn!(
                            why,
                            "the issuer's keys cannot be fetched; the old ones are used until they are too old"
                        );
                    } else {
                        debug!(why, "the issuer's keys still cannot be fetched");
                    }
                    is_well = oidc.jwks_file.is_some();
                    due =
                        Instant::now() + if oidc.jwks_file.is_some() { LOOK } else { RETRY.min(rest(&oidc)) };
                }
            }
        }
    }
}

/// How long keys are left alone while all is well: they must be new before the
/// old ones are too old.
fn rest(oidc: &Oidc) -> Duration {
    REFRESH.min(oidc.keys_max_age / 2)
}

/// The issuer's keys, from its file or from itself; else why not.
pub async fn load(oidc: &Oidc) -> Result<KeySet, String> {
    if let Some(file) = &oidc.jwks_file {
        // A file does not age: whoever takes a key out of it wants it to be so.
        let named = |why: String| format!("{}: {why}", file.display());
        let text = read(file).map_err(|error| named(error.to_string()))?;
        return KeySet::parse(&text, &oidc.issuer, None).map_err(named);
    }
    let began = Instant::now();
    let issuer = oidc.issuer.trim_end_matches('/');
    let about = address(&format!("{issuer}/.well-known/openid-configuration"))?;
    let document = fetch::get(&about, oidc.ca_file.as_deref()).await?;
    let Discovery { issuer, jwks_uri } =
        serde_json::from_slice(&document).map_err(|_| format!("{about}: it does not tell of an issuer"))?;
    if issuer != oidc.issuer {
        return Err(format!(
            "{about}: it tells of another issuer; `issuer` must be written exactly as there"
        ));
    }
    let keys = address(&jwks_uri)?;
    if !tls::is_protected(&keys) {
        return Err(format!("{keys}: the keys would come without TLS"));
    }
    let document = fetch::get(&keys, oidc.ca_file.as_deref()).await?;
    KeySet::parse(&document, &oidc.issuer, Some(began + oidc.keys_max_age))
        .map_err(|why| format!("{keys}: {why}"))
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

fn address(text: &str) -> Result<Url, String> {
    Url::parse(text).map_err(|error| format!("the issuer names an address that is none: {error}"))
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut text = Vec::new();
    std::fs::File::open(file)?.take(LARGEST).read_to_end(&mut text)?;
    Ok(text)
}
