//! What waits for people, and what became of it.
//!
//! Every question about permission that a session has open stands in this book, so that
//! whoever may answer finds it, wherever they are. The session alone decides what comes
//! of an answer: it has the question until it is answered, and the book only shows it.
//! So however many answer at once, or time runs out meanwhile, one outcome counts, and
//! whoever comes later is told which.

pub mod notify;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, watch};
use uuid::Uuid;

use crate::{
    identity::{Caller, Role},
    metrics::{Branch, Metrics},
    policy::{
        Answerer, AskTerms, SubAction,
        approvers::{self, may_not_answer},
    },
    record::now_us,
    session::SessionHandle,
};

/// Ended ones that are remembered, to tell those who come late.
pub const MOST_ENDED: usize = 1000;

/// News that may wait for those who are told of them.
const MOST_NEWS: usize = 256;

/// A question about permission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// Names it.
    #[serde(with = "as_text")]
    pub id: Uuid,
    /// The session that asks.
    #[serde(with = "as_text")]
    pub session: Uuid,
    /// Whose session it is.
    pub owner: String,
    /// Whoever prompted: for whom it would be done.
    pub user: String,
    /// The agent at work.
    pub agent: String,
    /// The session's directory.
    pub cwd: String,
    /// The tool's kind, as ACP has it.
    pub kind: String,
    /// What the agent calls it; written by a model, so not to be trusted. Escaped.
    pub title: String,
    /// What would be done, in words: what the rules have asked about first. Escaped.
    pub actions: Vec<String>,
    /// The same as the rules have it, for whoever wants to grant it; nothing, if that is
    /// more than a grant may be about.
    #[serde(default)]
    pub asked: Vec<SubAction>,
    /// What would be written, as far as the request tells.
    pub diffs: Vec<Diff>,
    /// The rule that asks.
    pub rule: Option<String>,
    /// Why it asks.
    pub reason: String,
    /// How the rules want it asked.
    pub terms: Vec<Arc<AskTerms>>,
    /// Whoever drives the session sees it there.
    pub is_shown: bool,
    /// When it was asked, in microseconds since 1970.
    pub asked_us: i64,
    /// When it is denied if nobody has answered; none if that depends on who is there.
    pub due_us: Option<i64>,
}

/// Ids as text.
mod as_text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(id: &Uuid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        Uuid::parse_str(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A change of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diff {
    /// Which file.
    pub path: String,
    /// What stood there; none for a new file, or if the request does not tell.
    pub old: Option<String>,
    /// What would stand there.
    pub new: String,
    /// It is what the agent says that it will do; else it is what will be written.
    pub is_claim: bool,
}

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What.
    pub how: How,
    /// Who has answered; nobody, if it ended otherwise.
    pub by: Option<String>,
    /// What they said about it, or why it ended.
    pub reason: String,
    /// When, in microseconds since 1970.
    pub at_us: i64,
}

/// How a question ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Somebody has allowed it.
    Allowed,
    /// Somebody has rejected it; or the rules did, after somebody had allowed it.
    Rejected,
    /// Nobody has answered in time, so it was denied.
    TimedOut,
    /// Its turn was cancelled, or it was withdrawn, or its session has ended.
    Cancelled,
    /// The service ended before anybody had answered.
    Interrupted,
}

impl How {
    /// Its name in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Rejected => "rejected",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}

impl Outcome {
    /// As of now.
    pub fn new(how: How, by: Option<String>, reason: impl Into<String>) -> Self {
        Self { how, by, reason: reason.into(), at_us: now_us() }
    }
}

/// A question, and what became of it, if it has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The question.
    pub approval: Arc<Approval>,
    /// What became of it.
    pub outcome: Option<Outcome>,
}

impl Approval {
    /// Why somebody may not answer it, if so.
    pub fn refusal(&self, caller: &Caller, drives: bool) -> Option<String> {
        refusal(&self.terms, caller, drives, &[&self.user, &self.owner])
    }

    /// Who is to answer it, in words.
    pub fn people(&self) -> String {
        approvers::people(&self.terms)
    }

    /// Whether somebody has to be told of it, because whoever drives the session is not
    /// asked, or others are named.
    pub fn is_for_others(&self) -> bool {
        !self.is_shown || self.terms.iter().any(|terms| terms.approvers.is_some())
    }
}

/// Why somebody may not answer what these terms are for, if so.
pub fn refusal(terms: &[Arc<AskTerms>], caller: &Caller, drives: bool, own: &[&str]) -> Option<String> {
    let roles: Vec<&str> = caller.roles.iter().copied().map(Role::name).collect();
    let who = Answerer { user: &caller.user, teams: &caller.teams, roles: &roles, drives };
    may_not_answer(terms, who, own)
}

#[derive(Debug, Default)]
struct Book {
    open: BTreeMap<Uuid, (Arc<Approval>, SessionHandle)>,
    ended: VecDeque<Entry>,
    /// What the store has not heard of.
    unsaved: BTreeSet<Uuid>,
}

impl Book {
    fn find(&self, id: Uuid) -> Option<Entry> {
        let open =
            self.open.get(&id).map(|(approval, _)| Entry { approval: approval.clone(), outcome: None });
        open.or_else(|| self.ended.iter().rev().find(|entry| entry.approval.id == id).cloned())
    }
}

/// The book.
#[derive(Debug, Clone)]
pub struct Approvals {
    // Whoever watches is woken by every change, and reads the newest state.
    book: Arc<watch::Sender<Book>>,
    changed: Arc<Notify>,
    news: mpsc::Sender<Arc<Approval>>,
}

/// Where those are heard of who have to be told of a question.
pub type News = mpsc::Receiver<Arc<Approval>>;

impl Approvals {
    /// A book with what was in it before. What was open then is not any more: the agent
    /// that asked has ended with the service.
    pub fn new(before: Vec<Entry>) -> (Self, News) {
        let (news, heard) = mpsc::channel(MOST_NEWS);
        let mut book = Book::default();
        for mut entry in before {
            if entry.outcome.is_none() {
                let reason = "the service ended before anybody had answered";
                entry.outcome = Some(Outcome::new(How::Interrupted, None, reason));
                book.unsaved.insert(entry.approval.id);
                entry.approval = Arc::new(Approval { diffs: Vec::new(), ..Approval::clone(&entry.approval) });
            }
            book.ended.push_back(entry);
        }
        let approvals = Self { book: Arc::new(watch::Sender::new(book)), changed: Arc::default(), news };
        approvals.changed.notify_one();
        (approvals, heard)
    }

    /// Puts a question into the book until what is given back is ended or dropped.
    pub fn open(&self, approval: Approval, session: SessionHandle, metrics: &Metrics) -> Open {
        let approval = Arc::new(approval);
        self.book.send_modify(|book| {
            book.open.insert(approval.id, (approval.clone(), session));
            book.unsaved.insert(approval.id);
        });
        self.changed.notify_one();
        let mut open = Open { approval, book: self.clone(), is_told: false };
        if open.approval.is_for_others() {
            open.tell(metrics);
        }
        open
    }

    fn end(&self, approval: &Arc<Approval>, outcome: Outcome) {
        self.book.send_modify(|book| {
            if book.open.remove(&approval.id).is_none() {
                return;
            }
            // What would have been written is in the record; here it is not needed any more.
            let approval = Arc::new(Approval { diffs: Vec::new(), ..Approval::clone(approval) });
            let id = approval.id;
            book.ended.push_back(Entry { approval, outcome: Some(outcome) });
            book.unsaved.insert(id);
            while book.ended.len() > MOST_ENDED {
                book.ended.pop_front();
            }
        });
        self.changed.notify_one();
    }

    /// The session that has a question, as long as it is open. One that is being opened is
    /// found nowhere else.
    pub fn session(&self, id: Uuid) -> Option<SessionHandle> {
        self.book.borrow().open.get(&id).map(|(_, session)| session.clone())
    }

    /// A question by its id.
    pub fn get(&self, id: Uuid) -> Option<Entry> {
        self.book.borrow().find(id)
    }

    /// Those that somebody may see: the open ones, the oldest first; then, if they are
    /// wanted, those that have ended, the newest first.
    pub fn list(&self, with_ended: bool, may_see: impl Fn(&Approval) -> bool) -> Vec<Entry> {
        let book = self.book.borrow();
        let open =
            book.open.values().map(|(approval, _)| Entry { approval: approval.clone(), outcome: None });
        let ended = book.ended.iter().rev().filter(|_| with_ended).cloned();
        open.chain(ended).filter(|entry| may_see(&entry.approval)).collect()
    }

    /// Forgets what people were asked in these sessions and have answered.
    pub fn forget(&self, sessions: &[Uuid]) {
        self.book.send_modify(|book| book.ended.retain(|entry| !sessions.contains(&entry.approval.session)));
    }

    /// Whether nobody has answered it yet.
    pub fn is_open(&self, id: Uuid) -> bool {
        self.book.borrow().open.contains_key(&id)
    }

    /// Wakes whoever watches after every change.
    pub fn watch(&self) -> Changes {
        Changes(self.book.subscribe())
    }

    /// Something is to be saved.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What the store has not heard of.
    pub fn take_changed(&self) -> Vec<Entry> {
        let mut taken = Vec::new();
        self.book.send_if_modified(|book| {
            let unsaved = std::mem::take(&mut book.unsaved);
            taken = unsaved.into_iter().filter_map(|id| book.find(id)).collect();
            false
        });
        taken
    }

    /// The store could not take it.
    pub fn not_saved(&self, entries: &[Entry]) {
        self.book.send_if_modified(|book| {
            book.unsaved.extend(entries.iter().map(|entry| entry.approval.id));
            false
        });
        self.changed.notify_one();
    }
}

/// Tells of changes of the book.
#[derive(Debug)]
pub struct Changes(watch::Receiver<Book>);

impl Changes {
    /// Waits for the next one.
    pub async fn next(&mut self) {
        // The sender outlives whoever is served.
        self.0.changed().await.ok();
    }
}

/// A question that is open. If it is dropped, its session has ended.
#[derive(Debug)]
pub struct Open {
    approval: Arc<Approval>,
    book: Approvals,
    is_told: bool,
}

impl Open {
    /// The question.
    pub fn approval(&self) -> &Arc<Approval> {
        &self.approval
    }

    /// It has ended.
    pub fn end(self, outcome: Outcome) {
        self.book.end(&self.approval, outcome);
    }

    /// Has those told of it who may answer, once.
    pub fn tell(&mut self, metrics: &Metrics) {
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        if self.book.news.try_send(self.approval.clone()).is_err() {
            metrics.best_effort(Branch::ApproversNotTold);
            tracing::warn!(approval = %self.approval.id, "approvers were not told: too many questions at once");
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Nothing happens if it has ended already.
        self.book.end(&self.approval, Outcome::new(How::Cancelled, None, "its session has ended"));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
pub(crate) mod tests {
    use super::*;

    /// A question as an example.
    pub fn example(user: &str) -> Approval {
        Approval {
            id: Uuid::now_v7(),
            session: Uuid::now_v7(),
            owner: user.into(),
            user: user.into(),
            agent: "demo".into(),
            cwd: "/srv".into(),
            kind: "execute".into(),
            title: "Run it".into(),
            actions: vec!["run `make`".into()],
            asked: Vec::new(),
            diffs: Vec::new(),
            rule: Some("asks".into()),
            reason: "because".into(),
            terms: vec![Arc::new(AskTerms { driver: false, ..AskTerms::default() })],
            is_shown: false,
            asked_us: 1,
            due_us: Some(2),
        }
    }

    #[test]
    fn the_first_outcome_counts() {
        let (book, mut news) = Approvals::new(Vec::new());
        let open = book.open(example("ann"), SessionHandle::unheard(), &Metrics::default());
        let id = open.approval().id;
        assert_eq!(news.try_recv().unwrap().id, id);
        assert_eq!(book.get(id).unwrap().outcome, None);
        assert!(book.is_open(id));
        open.end(Outcome::new(How::Allowed, Some("lea".into()), ""));
        let outcome = book.get(id).unwrap().outcome.unwrap();
        assert_eq!((outcome.how, outcome.by.as_deref()), (How::Allowed, Some("lea")));
        assert_eq!((book.is_open(id), book.take_changed().len()), (false, 1));
        let left = book.open(example("bob"), SessionHandle::unheard(), &Metrics::default());
        let id = left.approval().id;
        drop(left);
        assert_eq!(book.get(id).unwrap().outcome.unwrap().how, How::Cancelled);
    }

    #[test]
    fn what_was_open_before_is_interrupted() {
        let before = Entry { approval: Arc::new(example("ann")), outcome: None };
        let (book, _news) = Approvals::new(vec![before.clone()]);
        assert_eq!(book.get(before.approval.id).unwrap().outcome.unwrap().how, How::Interrupted);
        assert_eq!(book.take_changed().len(), 1);
        assert!(book.list(false, |_| true).is_empty());
        assert_eq!(book.list(true, |_| true).len(), 1);
        assert!(book.list(true, |approval| approval.owner == "bob").is_empty());
    }

    #[test]
    fn only_so_many_ended_ones_are_remembered() {
        let (book, _news) = Approvals::new(Vec::new());
        for _ in 0..=MOST_ENDED {
            drop(book.open(example("ann"), SessionHandle::unheard(), &Metrics::default()));
        }
        assert_eq!(book.list(true, |_| true).len(), MOST_ENDED);
    }
}
