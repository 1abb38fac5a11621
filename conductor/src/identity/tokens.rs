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
use tokio::{sync::watch, time::timeout};
use uuid::Uuid;

use super::{
    Caller,
    door::{Known, Proof, ProofKind},
    lease::Lease,
};
use crate::state::{StateError, Token};

/// By this a token is recognised where it should not be, for instance by
/// programs that look for secrets in repositories.
const MARK: &str = "cdt_";

/// How long the store may take to write something that is waited for.
const SAVING: Duration = Duration::from_secs(5);

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
    /// The same by whom they let in.
    users: HashMap<String, Vec<Hash>>,
    /// Tokens that the store has not been told of.
    changed: HashSet<Hash>,
    /// Counts changes.
    version: u64,
}

impl Table {
    fn put(&mut self, issued: Issued) {
        let (user, hash) = (issued.caller.user.clone(), issued.hash);
        if self.issued.insert(hash, issued).is_none() {
            self.users.entry(user).or_default().push(hash);
        }
    }
}

/// All tokens that let somebody in. Clones share them.
#[derive(Debug, Clone)]
pub struct Tokens {
    table: Arc<watch::Sender<Table>>,
    saved: Arc<watch::Sender<u64>>,
    local: Arc<Token>,
    me: Caller,
}

/// A token that is held.
#[derive(Debug, Clone)]
pub struct Hold {
    table: watch::Receiver<Table>,
    hash: Hash,
}

impl Tokens {
    /// The local token, and those that the store has.
    pub fn new(local: Token, issued: Vec<Issued>) -> Self {
        let mut table = Table::default();
        issued.into_iter().for_each(|issued| table.put(issued));
        Self {
            table: Arc::new(watch::channel(table).0),
            saved: Arc::new(watch::channel(0).0),
            local: Arc::new(local),
            me: Caller::local(),
        }
    }

    /// Who presents this; else why nobody does, which is for the log alone.
    pub fn find(&self, presented: &[u8]) -> Result<Known, &'static str> {
        if self.local.matches(presented) {
            let proof = Proof { kind: ProofKind::Local, detail: String::new(), expires: None };
            return Ok(Known { caller: self.me.clone(), proof, lease: None });
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
        let (detail, expires) = (issued.id.to_string(), Some(issued.expires));
        drop(table);
        let proof = Proof { kind: ProofKind::Token, detail, expires };
        let lease = Lease::Token(Hold { table: self.table.subscribe(), hash });
        Ok(Known { caller, proof, lease: Some(lease) })
    }

    /// Whom the local token lets in: the user the service runs as.
    pub fn me(&self) -> &Caller {
        &self.me
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
            table.put(issued);
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

    /// Whom a user's tokens let in now, and whether there ever were any. For the user the
    /// service runs as there always is one.
    pub(super) fn holders(&self, user: &str) -> (Vec<Caller>, bool) {
        let table = self.table.borrow();
        let hashes = table.users.get(user).map(Vec::as_slice).unwrap_or_default();
        let issued = hashes.iter().filter_map(|hash| table.issued.get(hash));
        let valid = issued.filter(|issued| issued.standing() == Standing::Valid);
        let me = (self.me.user == user).then(|| self.me.clone());
        (valid.map(|issued| issued.caller.clone()).chain(me).collect(), !hashes.is_empty())
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

impl Hold {
    /// Until when it is good; nothing if it is not any more.
    pub(super) fn until(&mut self) -> Option<SystemTime> {
        let table = self.table.borrow_and_update();
        let issued = table.issued.get(&self.hash).filter(|it| it.standing() == Standing::Valid)?;
        Some(issued.expires)
    }

    /// Whether it is a hold on the same token.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.hash == other.hash
    }

    /// Waits until some token has changed.
    pub(super) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.table.changed().await
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
