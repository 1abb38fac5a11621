//! API tokens: who was given one, until when, and who has lost it again.
//!
//! They are looked up in memory with every call, so a call never waits for the
//! store, and a token that is revoked is refused from that moment on. Kept is
//! a SHA-256 of each. A slow hash would add nothing: a token is 256 random
//! bits, which nobody finds by trying.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use sha2::{Digest as _, Sha256};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use uuid::Uuid;

use super::Caller;
use crate::state::{StateError, Token};

/// By this a token is recognised where it should not be, for instance by
/// programs that look for secrets in repositories.
const MARK: &str = "cdt_";

/// How long the store may take to write something that is waited for.
const SAVING: Duration = Duration::from_secs(5);

/// How often the clock is looked at while a stream is open: it may be set, and
/// a machine may have slept.
const LOOK: Duration = Duration::from_secs(20);

/// What is kept of a token.
pub type Hash = [u8; 32];

/// A token that was given out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// Its name: no secret.
    pub id: Uuid,
    /// Its hash.
    pub hash: Hash,
    /// Whom it lets in.
    pub caller: Caller,
    /// Who made it.
    pub by: String,
    /// When it was made.
    pub created: SystemTime,
    /// It is good for nothing from then on.
    pub expires: SystemTime,
    /// When it was revoked, if it was.
    pub revoked: Option<SystemTime>,
}

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It lets its bearer in.
    Valid,
    /// Its time is over.
    Expired,
    /// It was taken back.
    Revoked,
}

impl Issued {
    /// What it is good for now.
    pub fn standing(&self) -> Standing {
        if self.revoked.is_some() {
            Standing::Revoked
        } else if self.expires <= SystemTime::now() {
            Standing::Expired
        } else {
            Standing::Valid
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    issued: HashMap<Hash, Issued>,
    /// Tokens that the store has not been told of.
    changed: HashSet<Hash>,
    /// Counts changes.
    version: u64,
}

/// All tokens that let somebody in. Clones share them.
#[derive(Debug, Clone)]
pub struct Tokens {
    table: Arc<watch::Sender<Table>>,
    saved: Arc<watch::Sender<u64>>,
    local: Arc<Token>,
    me: Caller,
}

/// Somebody who presented a good token.
#[derive(Debug)]
pub struct Known {
    /// Who it is.
    pub caller: Caller,
    /// How long the token holds; the local one always does.
    pub lease: Option<Lease>,
}

/// How long a token holds.
#[derive(Debug, Clone)]
pub struct Lease {
    table: watch::Receiver<Table>,
    hash: Hash,
}

impl Tokens {
    /// The local token, and those that the store has.
    pub fn new(local: Token, issued: Vec<Issued>) -> Self {
        let issued = issued.into_iter().map(|issued| (issued.hash, issued)).collect();
        Self {
            table: Arc::new(watch::channel(Table { issued, ..Table::default() }).0),
            saved: Arc::new(watch::channel(0).0),
            local: Arc::new(local),
            me: Caller::local(),
        }
    }

    /// Who presents this; else why nobody does, which is for the log alone.
    pub fn find(&self, presented: &[u8]) -> Result<Known, &'static str> {
        if self.local.matches(presented) {
            return Ok(Known { caller: self.me.clone(), lease: None });
        }
        // Which hashes there are cannot be learnt from the time this takes:
        // nobody can choose the hash of what they present.
        let hash = hash(presented);
        let table = self.table.borrow();
        let issued = table.issued.get(&hash).ok_or("unknown")?;
        match issued.standing() {
            Standing::Valid => {}
            Standing::Expired => return Err("expired"),
            Standing::Revoked => return Err("revoked"),
        }
        let caller = issued.caller.clone();
        drop(table);
        Ok(Known { caller, lease: Some(Lease { table: self.table.subscribe(), hash }) })
    }

    /// Makes a token for somebody. It counts once it is saved.
    pub fn issue(&self, caller: Caller, by: &Caller, ttl: Duration) -> Result<(Token, Issued), StateError> {
        let token = Token::random_with(MARK)?;
        let created = SystemTime::now();
        let issued = Issued {
            id: Uuid::now_v7(),
            hash: hash(token.expose().as_bytes()),
            caller,
            by: by.user.clone(),
            created,
            expires: created + ttl,
            revoked: None,
        };
        self.put(issued.clone());
        Ok((token, issued))
    }

    fn put(&self, issued: Issued) {
        self.table.send_modify(|table| {
            table.changed.insert(issued.hash);
            table.issued.insert(issued.hash, issued);
            table.version += 1;
        });
    }

    /// Takes a token back, from now on; once more is fine. `None` if there is
    /// none of this id.
    pub fn revoke(&self, id: Uuid) -> Option<Issued> {
        let mut issued = self.table.borrow().issued.values().find(|issued| issued.id == id)?.clone();
        issued.revoked.get_or_insert_with(SystemTime::now);
        self.put(issued.clone());
        Some(issued)
    }

    /// All that were given out, newest first.
    pub fn list(&self) -> Vec<Issued> {
        let mut all: Vec<_> = self.table.borrow().issued.values().cloned().collect();
        all.sort_by_key(|issued| std::cmp::Reverse(issued.id));
        all
    }

    /// Waits until something is to be saved.
    pub async fn changed(&self) {
        let saved = *self.saved.borrow();
        self.table.subscribe().wait_for(|table| table.version > saved).await.ok();
    }

    /// What is to be saved, and which version that will be.
    pub fn take_changed(&self) -> (Vec<Issued>, u64) {
        let (mut changed, mut version) = (Vec::new(), 0);
        // Nobody needs to know.
        self.table.send_if_modified(|table| {
            let hashes = std::mem::take(&mut table.changed);
            changed = hashes.iter().filter_map(|hash| table.issued.get(hash)).cloned().collect();
            version = table.version;
            false
        });
        (changed, version)
    }

    /// Everything up to a version is saved.
    pub fn saved(&self, version: u64) {
        self.saved.send_replace(version);
    }

    /// These were not saved after all.
    pub fn not_saved(&self, tokens: &[Issued]) {
        self.table.send_if_modified(|table| {
            table.changed.extend(tokens.iter().map(|issued| issued.hash));
            false
        });
    }

    /// Waits until everything that has changed so far is saved; whether it is.
    pub async fn is_saved(&self) -> bool {
        let version = self.table.borrow().version;
        let mut saved = self.saved.subscribe();
        let waiting = saved.wait_for(|saved| *saved >= version);
        timeout(SAVING, waiting).await.is_ok_and(|saved| saved.is_ok())
    }
}

impl Lease {
    /// Waits until the token holds no more.
    pub async fn over(mut self) {
        loop {
            let left = {
                let table = self.table.borrow_and_update();
                let issued = table.issued.get(&self.hash).filter(|it| it.standing() == Standing::Valid);
                let Some(issued) = issued else { return };
                issued.expires.duration_since(SystemTime::now()).unwrap_or_default()
            };
            tokio::select! {
                // Without a table the service itself is ending.
                changed = self.table.changed() => if changed.is_err() { return },
                () = sleep(left.min(LOOK)) => {}
            }
        }
    }
}

fn hash(token: &[u8]) -> Hash {
    Sha256::digest(token).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn ann() -> Caller {
        Caller { user: "ann".into(), teams: vec!["web".into()], roles: Vec::new() }
    }

    #[tokio::test]
    async fn a_token_holds_until_it_is_revoked() {
        let tokens = Tokens::new(Token::random().unwrap(), Vec::new());
        let (token, issued) = tokens.issue(ann(), &Caller::local(), Duration::from_secs(60)).unwrap();
        let known = tokens.find(token.expose().as_bytes()).unwrap();
        assert_eq!(known.caller, ann());
        assert!(!format!("{tokens:?} {issued:?}").contains(token.expose()));
        assert_eq!(tokens.find(b"cdt_").unwrap_err(), "unknown");
        let over = known.lease.unwrap().over();
        tokens.revoke(issued.id).unwrap();
        over.await;
        assert_eq!(tokens.find(token.expose().as_bytes()).unwrap_err(), "revoked");
        assert_eq!(tokens.revoke(Uuid::now_v7()), None);
        // Both changes in one write.
        assert_eq!(tokens.take_changed().0, tokens.list());
    }

    #[tokio::test]
    async fn a_token_expires() {
        let tokens = Tokens::new(Token::random().unwrap(), Vec::new());
        let (token, _) = tokens.issue(ann(), &Caller::local(), Duration::from_millis(20)).unwrap();
        let known = tokens.find(token.expose().as_bytes()).unwrap();
        known.lease.unwrap().over().await;
        assert_eq!(tokens.find(token.expose().as_bytes()).unwrap_err(), "expired");
    }
}
