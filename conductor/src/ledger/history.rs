//! What people and programs often ask the ledger, typed: which sessions there
//! were, what one of them did, which frames it has, which files were touched.
//!
//! Each question opens a connection of its own: they are rare, a connection
//! takes milliseconds, and a rotated password or a restarted database then
//! needs no attention. Only so many are open at once.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

pub use self::{
    frames::Reading,
    records::{Command, Decision, Entry, FileAccess, Frame, Message, Session, ToolCall, Turn, Usage},
};
use super::{
    error::LedgerError,
    question::{Question, Record, Value},
    reader::Reader,
    search,
    settings::Settings,
};
use crate::journal::Journal;

mod frames;
mod records;

pub(super) use records::record;

/// Questions that may be asked at the same time; more wait.
const QUESTIONS: usize = 8;

/// How many are told at once, unless the caller says so, and at most.
const PAGE: usize = 50;
const LARGEST_PAGE: usize = 1000;

/// Sessions that one question may name; databases take tens of thousands.
const MOST_SHARED: usize = 10_000;

/// About so many bytes of a session or a stream are held at once.
const CHUNK: usize = 1 << 20;

/// The history of all sessions.
#[derive(Clone)]
pub struct History {
    settings: Arc<Settings>,
    journal: Option<Journal>,
    questions: Arc<Semaphore>,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("place", &self.place()).finish_non_exhaustive()
    }
}

/// Which sessions to tell of; what is empty does not narrow it.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only what this user may see: their own, and what is shared with them.
    pub seen_by: Option<String>,
    /// Sessions that are shared with them; of very many, the first ones.
    pub shared: Vec<Uuid>,
    /// Who opened it.
    pub user: Option<String>,
    /// With which agent.
    pub agent: Option<String>,
    /// A part of the name of a model it used.
    pub model: Option<String>,
    /// Something happened then or later.
    pub since_us: Option<i64>,
    /// A part of its title, or what `search` finds in it, among the newest hits.
    pub text: Option<String>,
    /// A file or a directory that it touched.
    pub path: Option<String>,
    /// The beginning of its id.
    pub id_prefix: Option<String>,
    /// How many at most; 0 for some.
    pub limit: usize,
    /// Only those behind this one.
    pub after: Option<Uuid>,
}

/// Which accesses to files to tell of; what is empty does not narrow it.
#[derive(Debug, Clone, Default)]
pub struct FileFilter {
    /// Only what this user may see: their own, and what is shared with them.
    pub seen_by: Option<String>,
    /// Sessions that are shared with them; of very many, the first ones.
    pub shared: Vec<Uuid>,
    /// A file or a directory.
    pub path: Option<String>,
    /// Whose session it was.
    pub user: Option<String>,
    /// Which agent.
    pub agent: Option<String>,
    /// Which session.
    pub session: Option<Uuid>,
    /// Which kind of access.
    pub access: Option<String>,
    /// Then or later.
    pub since_us: Option<i64>,
    /// How many at most; 0 for some.
    pub limit: usize,
    /// Only those behind this one.
    pub after: Option<FilePlace>,
}

/// Where an access stands among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePlace {
    /// When it was.
    pub at_us: i64,
    /// In which session.
    pub session: Uuid,
    /// In which frame.
    pub seq: i64,
    /// Which one of that frame's.
    pub item: i64,
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// Newest first.
    pub items: Vec<T>,
    /// Whether there are more behind them.
    pub more: bool,
    /// Whether there may be others, because a text was found more often than was looked at.
    pub is_cut: bool,
}

impl History {
    /// The history in a ledger, and in the journal that is not yet there.
    pub fn new(settings: Settings, journal: Option<Journal>) -> Self {
        let questions = Arc::new(Semaphore::new(QUESTIONS));
        Self { settings: Arc::new(settings), journal, questions }
    }

    /// Where it is, in words and without secrets.
    pub fn place(&self) -> String {
        self.settings.shown()
    }

    /// A connection, and the right to use it.
    pub(super) async fn reader(&self) -> Result<(Reader, SemaphorePermit<'_>), LedgerError> {
        let permit = self.questions.acquire().await;
        let permit = permit.map_err(|_| LedgerError::Unavailable("the service is stopping".to_owned()))?;
        Ok((Reader::open(&self.settings).await?, permit))
    }

    /// An error without secrets.
    pub(super) fn hide(&self, error: LedgerError) -> LedgerError {
        self.settings.hide(error)
    }

    async fn ask<T: Record>(&self, question: Question, max_bytes: usize) -> Result<Vec<T>, LedgerError> {
        let (mut reader, _permit) = self.reader().await?;
        reader.ask(question, max_bytes).await.map_err(|error| self.settings.hide(error))
    }

    /// Sessions, those that were opened last first.
    pub async fn sessions(&self, filter: &Filter) -> Result<Page<Session>, LedgerError> {
        let mut question = select::<Session>("sessions s WHERE 1 = 1");
        let mut is_cut = false;
        let mut equals = |column: &str, value: &Option<String>| {
            if let Some(value) = value {
                question.bind(&format!(" AND s.{column} = ?"), Value::Text(value.clone()));
            }
        };
        equals("user_name", &filter.user);
        equals("agent", &filter.agent);
        seen(&mut question, 's', filter.seen_by.as_ref(), &filter.shared);
        if let Some(model) = &filter.model {
            question.bind(
                r" AND (lower(s.model) LIKE lower(?) ESCAPE '\' OR EXISTS (SELECT 1 FROM turns t
                   WHERE t.session_id = s.session_id AND lower(t.model) LIKE lower(?) ESCAPE '\'))",
                Value::Text(containing(model)),
            );
        }
        if let Some(since) = filter.since_us {
            question.bind(" AND COALESCE(s.updated_us, s.opened_us) >= ?", Value::Int(since));
        }
        if let Some(text) = &filter.text {
            let within = search::Filter {
                seen_by: filter.seen_by.clone(),
                shared: filter.shared.clone(),
                user: filter.user.clone(),
                of_agent: filter.agent.clone(),
                touched: filter.path.clone(),
                since_us: filter.since_us,
                ..search::Filter::default()
            };
            let found;
            (found, is_cut) = self.sessions_with(text, &within).await?;
            question.bind(r" AND (lower(s.title) LIKE lower(?) ESCAPE '\'", Value::Text(containing(text)));
            one_of(&mut question, " OR s.session_id", &found);
            question.push(")");
        }
        if let Some(path) = &filter.path {
            question.push(" AND EXISTS (SELECT 1 FROM file_accesses f WHERE f.session_id = s.session_id");
            touches(&mut question, path);
            question.push(")");
        }
        if let Some(prefix) = &filter.id_prefix {
            let Some((first, last)) = ids_beginning(prefix) else {
                return Ok(Page { items: Vec::new(), more: false, is_cut });
            };
            question.bind(" AND s.session_id >= ?", Value::Id(first));
            question.bind(" AND s.session_id <= ?", Value::Id(last));
        }
        if let Some(after) = filter.after {
            question.bind(" AND s.session_id < ?", Value::Id(after));
        }
        // Ids are made of the time, so this is the order of opening, too.
        question.push(" ORDER BY s.session_id DESC");
        Ok(Page { is_cut, ..self.page(question, filter.limit).await? })
    }

    /// One session.
    pub async fn session(&self, id: Uuid) -> Result<Option<Session>, LedgerError> {
        let mut question = select::<Session>("sessions s");
        question.bind(" WHERE s.session_id = ?", Value::Id(id));
        Ok(self.ask(question, usize::MAX).await?.pop())
    }

    /// What is known of a session, in parts.
    pub fn entries(&self, session: Uuid) -> Entries {
        Entries { history: self.clone(), session, part: Part::Turns, after: (i64::MIN, i64::MIN) }
    }

    /// A stream's frames from a number on.
    pub fn frames(&self, stream: Uuid, from_seq: u64, limit: Option<u64>, follow: bool) -> Reading {
        Reading::new(self.clone(), stream, from_seq, limit, follow)
    }

    /// Whether there is a stream of this id.
    pub async fn has_stream(&self, stream: Uuid) -> Result<bool, LedgerError> {
        if self.journal.as_ref().is_some_and(|journal| journal.next_seq(stream) > 1) {
            return Ok(true);
        }
        self.frames(stream, 1, Some(1), false).next().await.map(|first| !first.is_empty())
    }

    /// Accesses to files, the last ones first.
    pub async fn files(&self, filter: &FileFilter) -> Result<Page<FileAccess>, LedgerError> {
        let mut question = select::<FileAccess>("file_accesses f WHERE 1 = 1");
        let mut equals = |column: &str, value: &Option<String>| {
            if let Some(value) = value {
                question.bind(&format!(" AND f.{column} = ?"), Value::Text(value.clone()));
            }
        };
        equals("user_name", &filter.user);
        equals("agent", &filter.agent);
        equals("access", &filter.access);
        seen(&mut question, 'f', filter.seen_by.as_ref(), &filter.shared);
        if let Some(session) = filter.session {
            question.bind(" AND f.session_id = ?", Value::Id(session));
        }
        if let Some(since) = filter.since_us {
            question.bind(" AND f.at_us >= ?", Value::Int(since));
        }
        if let Some(path) = &filter.path {
            touches(&mut question, path);
        }
        if let Some(after) = filter.after {
            question.bind(" AND (f.at_us, f.session_id, f.seq, f.item) < (?", Value::Int(after.at_us));
            question.bind(", ?", Value::Id(after.session));
            question.bind(", ?", Value::Int(after.seq));
            question.bind(", ?)", Value::Int(after.item));
        }
        question.push(" ORDER BY f.at_us DESC, f.session_id DESC, f.seq DESC, f.item DESC");
        self.page(question, filter.limit).await
    }

    /// One more than wanted tells whether there are more.
    async fn page<T: Record>(&self, mut question: Question, limit: usize) -> Result<Page<T>, LedgerError> {
        let limit = if limit == 0 { PAGE } else { limit.min(LARGEST_PAGE) };
        question.push(&format!(" LIMIT {}", limit + 1));
        let mut items = self.ask(question, usize::MAX).await?;
        let more = items.len() > limit;
        items.truncate(limit);
        Ok(Page { items, more, is_cut: false })
    }
}

/// What is known of a session, part after part, so that no session is too
/// large to be told of.
pub struct Entries {
    history: History,
    session: Uuid,
    part: Part,
    /// The key of the last one that was told.
    after: (i64, i64),
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Turns,
    Messages,
    ToolCalls,
    FileAccesses,
    Commands,
    Usage,
    Decisions,
    End,
}

impl Entries {
    /// Some more; nothing at the end.
    pub async fn next(&mut self) -> Result<Vec<Entry>, LedgerError> {
        loop {
            let (entries, next) = match self.part {
                Part::Turns => {
                    (self.some("turns", "turn", Entry::Turn, |e| (e.turn, 0)).await?, Part::Messages)
                }
                Part::Messages => (
                    self.some("messages", "message", Entry::Message, |e| (e.message, 0)).await?,
                    Part::ToolCalls,
                ),
                Part::ToolCalls => (
                    self.some("tool_calls", "call", Entry::ToolCall, |e| (e.call, 0)).await?,
                    Part::FileAccesses,
                ),
                Part::FileAccesses => (
                    self.some("file_accesses", "seq, item", Entry::FileAccess, |e| (e.seq, e.item)).await?,
                    Part::Commands,
                ),
                Part::Commands => {
                    (self.some("commands", "seq", Entry::Command, |e| (e.seq, 0)).await?, Part::Usage)
                }
                Part::Usage => {
                    (self.some("usage", "seq", Entry::Usage, |e| (e.seq, 0)).await?, Part::Decisions)
                }
                Part::Decisions => {
                    (self.some("decisions", "seq", Entry::Decision, |e| (e.seq, 0)).await?, Part::End)
                }
                Part::End => return Ok(Vec::new()),
            };
            if !entries.is_empty() {
                return Ok(entries);
            }
            (self.part, self.after) = (next, (i64::MIN, i64::MIN));
        }
    }

    async fn some<T: Record>(
        &mut self,
        table: &str,
        key: &str,
        entry: fn(T) -> Entry,
        place: fn(&T) -> (i64, i64),
    ) -> Result<Vec<Entry>, LedgerError> {
        let mut question = select::<T>(table);
        question.bind(" WHERE session_id = ?", Value::Id(self.session));
        let (first, second) = self.after;
        if key.contains(',') {
            question.bind(&format!(" AND ({key}) > (?"), Value::Int(first));
            question.bind(", ?)", Value::Int(second));
        } else {
            question.bind(&format!(" AND {key} > ?"), Value::Int(first));
        }
        question.push(&format!(" ORDER BY {key} LIMIT {LARGEST_PAGE}"));
        let found = self.history.ask::<T>(question, CHUNK).await?;
        if let Some(last) = found.last() {
            self.after = place(last);
        }
        Ok(found.into_iter().map(entry).collect())
    }
}

fn select<T: Record>(from: &str) -> Question {
    Question::new(format!("SELECT {} FROM {from}", T::COLUMNS.join(", ")))
}

/// Narrows a question about a table to what a user may see.
pub(super) fn seen(question: &mut Question, table: char, user: Option<&String>, shared: &[Uuid]) {
    let Some(user) = user else { return };
    question.bind(&format!(" AND ({table}.user_name = ?"), Value::Text(user.clone()));
    one_of(question, &format!(" OR {table}.session_id"), shared);
    question.push(")");
}

/// Adds that something is one of these ids; nothing if there are none.
fn one_of(question: &mut Question, what: &str, ids: &[Uuid]) {
    let mut before = format!("{what} IN (");
    for id in ids.iter().take(MOST_SHARED) {
        question.bind(&format!("{before}?"), Value::Id(*id));
        before = ", ".to_owned();
    }
    if !ids.is_empty() {
        question.push(")");
    }
}

/// A pattern for paths that end so.
pub(super) fn containing_end(path: &str) -> String {
    format!("%/{}", literal(path))
}

/// A pattern for texts that contain this one.
fn containing(text: &str) -> String {
    format!("%{}%", literal(text))
}

/// A text in a pattern, without any meaning there.
fn literal(text: &str) -> String {
    text.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_")
}

/// The file itself, what is beneath it, and, unless the path begins at the
/// root, the same anywhere.
pub(super) fn touches(question: &mut Question, path: &str) {
    let path = path.strip_prefix("./").unwrap_or(path).trim_end_matches('/');
    let beneath = format!("{}/%", literal(path));
    question.bind(" AND (f.path = ?", Value::Text(path.to_owned()));
    question.bind(r" OR f.path LIKE ? ESCAPE '\'", Value::Text(beneath.clone()));
    if !path.starts_with('/') {
        question.bind(r" OR f.path LIKE ? ESCAPE '\'", Value::Text(format!("%/{}", literal(path))));
        question.bind(r" OR f.path LIKE ? ESCAPE '\'", Value::Text(format!("%/{beneath}")));
    }
    question.push(")");
}

/// The first and the last id that begin so.
pub(super) fn ids_beginning(prefix: &str) -> Option<(Uuid, Uuid)> {
    let digits: String = prefix.chars().filter(|c| *c != '-').collect();
    if digits.is_empty() || digits.len() > 32 {
        return None;
    }
    let bound = |fill: &str| Uuid::try_parse(&format!("{digits}{}", fill.repeat(32 - digits.len()))).ok();
    Some((bound("0")?, bound("f")?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range_of_ids() {
        let id = Uuid::now_v7();
        for length in [1, 8, 9, 13, 36] {
            let (first, last) = ids_beginning(&id.to_string()[..length]).unwrap();
            assert!(first <= id && id <= last);
            assert_eq!(first == last, length == 36);
        }
        assert_eq!(ids_beginning("x"), None);
        assert_eq!(ids_beginning(""), None);
    }

    #[test]
    fn patterns_mean_what_was_typed() {
        assert_eq!(containing(r"50%_\"), r"%50\%\_\\%");
    }
}
