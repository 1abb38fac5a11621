//! Search: what was said and done, by its words. Prompts, messages, the names,
//! titles and inputs of tool calls are found by words and phrases; commands and
//! paths by any part of them.
//!
//! The databases' own indices (`migrations/*/*_search*.sql`) propose what may
//! fit, newest first; what fits, how well, and what is shown of it is decided
//! here, so that both databases find the same. The index is filled by the
//! shipper behind the frames (`filling`), and everything that it has comes from
//! the derived tables: a rebuild makes it anew.

use std::collections::{BTreeSet, HashMap, VecDeque};

use serde::Serialize;
use uuid::Uuid;

use self::{
    asking::{Asking, Candidate, WINDOW},
    document::doc_time,
    found::Found,
};
pub use self::{cursor::Cursor, found::Snippet, pace::Pace, query::Query};
use super::{error::LedgerError, history::History};

mod asking; // the questions to either database
mod cursor; // where a page ended
mod document; // what can be searched of a row
mod filling; // from the derived tables into the index
mod found; // where terms stand in a text
mod pace; // when the index is filled
mod query; // what a person types
mod spans; // stretches of time
mod words; // text as words

/// How many hits are told at once, unless the caller says so, and at most.
const PAGE: usize = 20;
const LARGEST_PAGE: usize = 500;

/// So many windows are looked at for one page, so that an answer comes in time
/// whatever is asked; who wants more asks for the next page.
const MOST_WINDOWS: usize = 32;

/// For a list of sessions there are so many, each so many times larger: few, because each is several
/// questions to the database.
const MOST_FOR_SESSIONS: usize = 2;
const LARGER: usize = 4;

/// A hit counts half as much as one of today when it is very old, and is half
/// the way there after so many days.
const RECENT_DAYS: f64 = 30.0;
const DAY_US: f64 = 86_400e6;

/// What stands in commands and paths cannot be found without this.
const NO_PARTS: &str = "this database has no index for parts of commands and paths, so only their whole words are found: \
     its owner can make one with CREATE EXTENSION pg_trgm; \
     CREATE INDEX search_docs_on_line ON search_docs USING gin (line gin_trgm_ops, words, search_spans(doc)) \
     WHERE line IS NOT NULL";

/// What kind of thing a hit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A prompt, an answer or a thought.
    Message,
    /// A tool call: its name, title and input.
    Tool,
    /// A command line.
    Command,
    /// A file's path.
    Path,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Message, Self::Tool, Self::Command, Self::Path];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Tool => "tool",
            Self::Command => "command",
            Self::Path => "path",
        }
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Where a searchable row stands, as in `search_docs.source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Source {
    Prompt,
    Message,
    Tool,
    Command,
    Path,
}

impl Source {
    const ALL: [Self; 5] = [Self::Prompt, Self::Message, Self::Tool, Self::Command, Self::Path];

    fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Message => "message",
            Self::Tool => "tool",
            Self::Command => "command",
            Self::Path => "path",
        }
    }

    fn from_name(name: &str) -> Result<Self, LedgerError> {
        let found = Self::ALL.into_iter().find(|source| source.name() == name);
        found.ok_or_else(|| LedgerError::Value(format!("search_docs.source: `{name}` is none")))
    }

    fn kind(self) -> Kind {
        match self {
            Self::Prompt | Self::Message => Kind::Message,
            Self::Tool => Kind::Tool,
            Self::Command => Kind::Command,
            Self::Path => Kind::Path,
        }
    }

    /// Whether any part of it can be found, and not only words.
    fn is_line(self) -> bool {
        matches!(self, Self::Command | Self::Path)
    }
}

/// What to search in; what is empty does not narrow it.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only what this user may see: their own sessions, and what is shared with
    /// them.
    pub seen_by: Option<String>,
    /// Sessions that are shared with them.
    pub shared: Vec<Uuid>,
    /// Whose session it is.
    pub user: Option<String>,
    /// The agent at work.
    pub agent: Option<String>,
    /// The agent that the session has, whichever was at work.
    pub of_agent: Option<String>,
    /// A file or a directory that the session has touched.
    pub touched: Option<String>,
    /// The repository or the directory of the session; if it does not begin with
    /// `/`, the end of its path.
    pub repository: Option<String>,
    /// Which session.
    pub session: Option<Uuid>,
    /// Then or later.
    pub since_us: Option<i64>,
    /// Before then.
    pub until_us: Option<i64>,
    /// Kinds of hits.
    pub kinds: Vec<Kind>,
    /// How many at most; 0 for some.
    pub limit: usize,
    /// Only what is behind this.
    pub after: Option<Cursor>,
}

impl Filter {
    fn asks_for(&self, kind: Kind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    /// A mark by which a page's token is known to belong to the same search.
    /// What is shared may change from page to page.
    fn mark(&self, text: &str) -> u64 {
        let Self { seen_by, user, agent, repository, session, since_us, until_us, kinds, .. } = self;
        cursor::mark(&(text, seen_by, user, agent, repository, session, since_us, until_us, kinds))
    }
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hit {
    /// In which session.
    pub session_id: String,
    /// What kind of thing it is.
    pub kind: Kind,
    /// The frame that it begins with, as in the ledger's tables.
    pub seq: i64,
    /// Which one of that frame's, for paths.
    pub item: i64,
    /// The turn it belongs to.
    pub turn: Option<i64>,
    /// When it was.
    pub at_us: i64,
    /// Whose session it is.
    pub user_name: Option<String>,
    /// The agent at work.
    pub agent: Option<String>,
    /// The session's title.
    pub title: Option<String>,
    /// The session's directory.
    pub cwd: Option<String>,
    /// The repository that lies in.
    pub repository: Option<String>,
    /// Who said it (user, agent, thought), the tool's name, how the command was
    /// run (terminal, tool), how the file was accessed.
    pub label: Option<String>,
    /// How well it fits; only to be compared with others of the same search.
    pub score: f64,
    /// The part that shows why.
    pub snippet: Snippet,
}

/// A page of hits.
#[derive(Debug, Clone)]
pub struct Hits {
    /// Ranked.
    pub items: Vec<Hit>,
    /// Where the next page begins; `None` if there is none.
    pub next: Option<Cursor>,
    /// What could not be found, and the remedy.
    pub hint: Option<&'static str>,
}

/// Why nothing was searched for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// What was asked makes no sense: the field, the cause and the remedy.
    #[error("{0}: {1}")]
    Refused(&'static str, String),
    /// The ledger cannot be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// A candidate that fits.
struct Ranked {
    score: f64,
    candidate: Candidate,
    text: String,
    found: Found,
}

impl History {
    /// Searches. Hits are ranked within the newest ones, then within those
    /// before them, and so on.
    pub async fn search(&self, text: &str, filter: &Filter) -> Result<Hits, SearchError> {
        let query = Query::parse(text).map_err(|why| SearchError::Refused("text", why))?;
        let question = filter.mark(text);
        if filter.after.is_some_and(|after| after.question != question) {
            let why = "it belongs to another search; repeat the same text and filters".to_owned();
            return Err(SearchError::Refused("page_token", why));
        }
        let (reader, _permit) = self.reader().await?;
        let found = search(Asking::new(reader, &query, filter).await?, filter, question).await;
        found.map_err(|error| SearchError::Ledger(self.hide(older(error))))
    }

    /// Sessions of the newest hits, and whether there are hits beyond them. What cannot be searched
    /// for is in none.
    pub(super) async fn sessions_with(
        &self,
        text: &str,
        filter: &Filter,
    ) -> Result<(Vec<Uuid>, bool), LedgerError> {
        let Ok(query) = Query::parse(text) else { return Ok((Vec::new(), false)) };
        let (reader, _permit) = self.reader().await?;
        let found = sessions(Asking::new(reader, &query, filter).await?).await;
        found.map_err(|error| self.hide(older(error)))
    }
}

/// A file that no service has opened since there is a search has no index.
fn older(error: LedgerError) -> LedgerError {
    match error {
        LedgerError::Unavailable(text) if text.contains("no such table") => {
            LedgerError::Unavailable(format!(
                "{text}: this ledger is of an older version; `conductor ledger rebuild` or a start of the service \
             brings it up to date"
            ))
        }
        other => other,
    }
}

async fn search(mut asking: Asking<'_>, filter: &Filter, question: u64) -> Result<Hits, LedgerError> {
    let limit = if filter.limit == 0 { PAGE } else { filter.limit.min(LARGEST_PAGE) };
    let is_hindered =
        !asking.has_parts && [Kind::Command, Kind::Path].iter().any(|kind| filter.asks_for(*kind));
    let mut hits = Hits { items: Vec::new(), next: None, hint: is_hindered.then_some(NO_PARTS) };
    let (mut top, mut bottom, mut after) =
        filter.after.map_or((i64::MAX, i64::MIN, None), |after| (after.top, after.bottom, Some(after.last)));
    for _ in 0..MOST_WINDOWS {
        // What has come between since then must not push out what was there.
        let most = if after.is_some() { 4 * WINDOW } else { WINDOW };
        let window = asking.window(top, bottom, most).await?;
        let Some(newest) = window.docs.first() else { break };
        if after.is_none() {
            top = *newest;
        }
        let (candidates, read_to) = read(&mut asking, &window.docs).await?;
        // The window ends where this one was cut, or where an earlier page did.
        bottom = if window.more || read_to.is_some() { read_to.unwrap_or(window.bottom) } else { bottom };
        let mut ranked = rank(&asking, candidates, top);
        if let Some((score, doc)) = after {
            ranked.retain(|hit| hit.score < score || hit.score == score && hit.candidate.doc < doc);
        }
        let is_last = bottom == i64::MIN;
        for hit in ranked {
            let last = (hit.score, hit.candidate.doc);
            if hits.items.len() == limit {
                return Ok(hits);
            }
            hits.items.push(hit.told());
            hits.next = Some(Cursor { top, bottom, last, question });
        }
        if is_last {
            hits.next = None;
            return Ok(hits);
        }
        hits.next = Some(Cursor { top, bottom, last: (f64::NEG_INFINITY, i64::MIN), question });
        (top, bottom, after) = (bottom.saturating_sub(1), i64::MIN, None);
    }
    Ok(hits)
}

/// What documents say; and down to where, if they are too long to be read at once.
async fn read(asking: &mut Asking<'_>, docs: &[i64]) -> Result<(Vec<Candidate>, Option<i64>), LedgerError> {
    let candidates = asking.read(docs).await?;
    let is_cut = candidates.len() < docs.len();
    let last = candidates.last().map(|candidate| candidate.doc);
    let is_last = last == docs.last().copied();
    Ok((candidates, last.filter(|_| is_cut && !is_last)))
}

/// Those that fit, the best first.
fn rank(asking: &Asking<'_>, candidates: Vec<Candidate>, top: i64) -> Vec<Ranked> {
    let mut ranked: Vec<_> = candidates
        .into_iter()
        .filter_map(|candidate| {
            let text = candidate.row.searchable()?;
            let found = asking.find(candidate.row.key.source, &text)?;
            let age_us = doc_time(top).saturating_sub(doc_time(candidate.doc)).max(0) as f64;
            let recency = 0.5 + 0.5 * (-age_us / DAY_US / RECENT_DAYS).exp2();
            Some(Ranked { score: found.relevance * recency, candidate, text, found })
        })
        .collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.candidate.doc.cmp(&a.candidate.doc)));
    ranked
}

async fn sessions(mut asking: Asking<'_>) -> Result<(Vec<Uuid>, bool), LedgerError> {
    let mut sessions = BTreeSet::new();
    let (mut top, mut is_cut) = (i64::MAX, true);
    for _ in 0..MOST_FOR_SESSIONS {
        let window = asking.window(top, i64::MIN, LARGER * WINDOW).await?;
        let mut open: HashMap<Uuid, VecDeque<i64>> = HashMap::new();
        for (doc, session) in asking.sessions(&window.docs).await? {
            open.entry(session).or_default().push_back(doc);
        }
        // One that fits is enough of a session, and nearly all do: few are read.
        let mut each = 1;
        loop {
            open.retain(|session, docs| !sessions.contains(session) && !docs.is_empty());
            let mut docs: Vec<_> = open.values().flat_map(|docs| docs.iter().take(each)).copied().collect();
            docs.sort_unstable_by(|a, b| b.cmp(a));
            let candidates = asking.read(&docs).await?;
            if candidates.is_empty() {
                break;
            }
            for candidate in &candidates {
                if let Some(docs) = open.get_mut(&candidate.row.key.session) {
                    docs.retain(|doc| *doc != candidate.doc);
                }
            }
            sessions.extend(rank(&asking, candidates, top).iter().map(|hit| hit.candidate.row.key.session));
            each *= 2;
        }
        is_cut = window.more;
        if !is_cut {
            break;
        }
        top = window.bottom.saturating_sub(1);
    }
    Ok((sessions.into_iter().collect(), is_cut))
}

/// Numbers of ours, for a list in a statement.
fn listed(numbers: &[i64]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Ranked {
    fn told(self) -> Hit {
        let Self { score, candidate, text, found } = self;
        let Candidate { doc, row, title, user, cwd, repository } = candidate;
        Hit {
            session_id: row.key.session.to_string(),
            kind: row.key.source.kind(),
            seq: row.key.seq,
            item: row.key.item,
            turn: row.turn,
            at_us: doc_time(doc),
            user_name: user,
            agent: row.agent,
            title,
            cwd,
            repository,
            label: row.label,
            score,
            snippet: found.snippet(&text),
        }
    }
}
