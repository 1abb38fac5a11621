//! The questions of a search to either database: which documents may fit, newest
//! first, and what they say.
//!
//! A common word is in half of all texts, and Postgres' index has no order: so it
//! is asked for one stretch of time after the other (`spans`) until there are
//! enough. FTS5 goes from the newest on by itself, as its documents are numbered
//! by their time.

use uuid::Uuid;

use super::{
    Filter, Kind, Source,
    document::{LONG, ROWS, Row, Tag, first_doc, id},
    found::{Found, find},
    listed,
    query::Query,
    spans::Stretch,
    words::NO_PAIRS,
};
use crate::ledger::{
    cell::Cells,
    error::LedgerError,
    history::{containing_end, seen, touches},
    question::{Question, Record, Value},
    reader::Reader,
};

/// Hits are ranked among so many of the newest.
pub(super) const WINDOW: usize = 256;

/// The first stretch has so many times as many documents as are asked for.
const NEAR: usize = 4;

/// The same where the index is not asked for it: what is common is found there, and of what is rare
/// the index knows quickly.
const NEAR_WALKED: usize = 16;

/// About so many bytes of texts are held at once.
const MOST_BYTES: usize = 8 << 20;

/// Sessions that are shared with somebody, up to which their tags are asked for.
const FEW_SHARED: usize = 64;

/// Directories that end as is asked, up to which theirs are.
const FEW_PLACES: usize = 64;

/// What the planner must not try: it would read all rows for a word that it takes
/// for common, compile what runs for some milliseconds, and forget what it was
/// asked for. The answer is whether parts of lines can be found, and what it knows
/// of where the documents are: it only says how far a stretch goes.
const PLANNING: &str = "SELECT to_regclass('search_docs_on_line') IS NOT NULL, \
     (SELECT histogram_bounds::text FROM pg_stats WHERE tablename = 'search_docs' AND attname = 'doc' \
     AND schemaname = ANY (current_schemas(false)) LIMIT 1), \
     set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false), \
     set_config('max_parallel_workers_per_gather', '0', false), set_config('work_mem', '32MB', false), \
     set_config('plan_cache_mode', 'force_custom_plan', false)";

/// A document that may fit.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) doc: i64,
    pub(super) row: Row,
    pub(super) title: Option<String>,
    pub(super) user: Option<String>,
    pub(super) cwd: Option<String>,
    pub(super) repository: Option<String>,
}

impl Record for Candidate {
    const COLUMNS: &'static [&'static str] = &["k.doc", "s.title", "s.user_name", "s.cwd", "s.repository"];

    fn from_row(mut cells: Cells) -> Result<Self, LedgerError> {
        Ok(Self {
            doc: cells.take()?,
            title: cells.take()?,
            user: cells.take()?,
            cwd: cells.take()?,
            repository: cells.take()?,
            row: Row::from_row(cells)?,
        })
    }
}

struct Doc(i64);

impl Record for Doc {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut cells: Cells) -> Result<Self, LedgerError> {
        Ok(Self(cells.take()?))
    }
}

struct Place(String);

impl Record for Place {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut cells: Cells) -> Result<Self, LedgerError> {
        Ok(Self(cells.take()?))
    }
}

/// A document and its session.
struct Belonging(i64, Uuid);

impl Record for Belonging {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut cells: Cells) -> Result<Self, LedgerError> {
        Ok(Self(cells.take()?, id(&cells.take::<String>()?)?))
    }
}

/// What Postgres can do, and knows.
#[derive(Default)]
struct Known {
    has_parts: bool,
    /// Documents with about as many between any two that follow one another.
    bounds: Vec<i64>,
}

impl Record for Known {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut cells: Cells) -> Result<Self, LedgerError> {
        let has_parts = cells.take()?;
        let bounds = cells.take::<Option<String>>()?.unwrap_or_default();
        let bounds = bounds.trim_matches(['{', '}']).split(',').filter_map(|bound| bound.parse().ok());
        Ok(Self { has_parts, bounds: bounds.collect() })
    }
}

/// The documents of a window that may fit, newest first.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) docs: Vec<i64>,
    /// Everything down to this one was looked at.
    pub(super) bottom: i64,
    /// Whether there may be more beneath it.
    pub(super) more: bool,
}

/// A search under way, over one connection.
pub(super) struct Asking<'a> {
    reader: Reader,
    query: &'a Query,
    filter: &'a Filter,
    /// Whether parts of lines can be found.
    pub(super) has_parts: bool,
    /// Where Postgres has its documents.
    bounds: Vec<i64>,
    /// The directories that are meant, if they are few.
    places: Option<Vec<String>>,
}

impl<'a> Asking<'a> {
    pub(super) async fn new(
        mut reader: Reader,
        query: &'a Query,
        filter: &'a Filter,
    ) -> Result<Self, LedgerError> {
        let Known { has_parts, bounds } = match &reader {
            Reader::Postgres(_) => {
                let asked = reader.ask::<Known>(Question::new(PLANNING), usize::MAX).await?;
                asked.into_iter().next().unwrap_or_default()
            }
            Reader::Sqlite(_) => Known { has_parts: true, bounds: Vec::new() },
        };
        let places = places(&mut reader, filter).await?;
        Ok(Self { reader, query, filter, has_parts, bounds, places })
    }

    /// The documents between two, both included, that may fit; about so many.
    pub(super) async fn window(&mut self, top: i64, bottom: i64, most: usize) -> Result<Window, LedgerError> {
        let since = self.filter.since_us.map_or(i64::MIN, first_doc);
        let until = self.filter.until_us.map_or(i64::MAX, |until| first_doc(until).saturating_sub(1));
        let (top, floor) = (top.min(until), bottom.max(since));
        let mut window = Window { docs: Vec::new(), bottom: floor, more: false };
        if top < floor || self.places.as_ref().is_some_and(Vec::is_empty) {
            return Ok(window);
        }
        let asked = |kinds: [Kind; 2]| kinds.into_iter().filter(|kind| self.filter.asks_for(*kind)).collect();
        let (texts, lines): (Vec<_>, Vec<_>) =
            (asked([Kind::Message, Kind::Tool]), asked([Kind::Command, Kind::Path]));
        let whole = Stretch { top, bottom: floor };
        for (kinds, is_lines) in [(texts, false), (lines, true)] {
            if kinds.is_empty() {
                continue;
            }
            let docs = self.candidates(&kinds, is_lines, whole, most).await?;
            // What is cut off is complete only down to its last one.
            if docs.len() >= most
                && let Some(last) = docs.last()
            {
                window.bottom = window.bottom.max(*last);
                window.more = true;
            }
            window.docs.extend(docs);
        }
        window.docs.sort_unstable_by(|a, b| b.cmp(a));
        window.docs.retain(|doc| *doc >= window.bottom);
        Ok(window)
    }

    /// The stretches in which documents are looked for, newest first. Where the index is slow, the
    /// first of them is walked.
    async fn parts(&mut self, whole: Stretch, most: usize, slow: bool) -> Result<Vec<Stretch>, LedgerError> {
        if matches!(self.reader, Reader::Sqlite(_)) {
            return Ok(vec![whole]);
        }
        let mut question = Question::new("SELECT doc FROM search_docs");
        question.bind(" WHERE doc <= ?", Value::Int(whole.top));
        question.bind(" AND doc >= ?", Value::Int(whole.bottom));
        let near = most * if slow { NEAR_WALKED } else { NEAR };
        question.push(&format!(" ORDER BY doc DESC OFFSET {near} LIMIT 1"));
        let near = self.reader.ask::<Doc>(question, usize::MAX).await?;
        Ok(match near.first() {
            Some(near) => whole.parts(near.0, &self.bounds, slow),
            None => vec![whole],
        })
    }

    async fn candidates(
        &mut self,
        kinds: &[Kind],
        is_lines: bool,
        whole: Stretch,
        most: usize,
    ) -> Result<Vec<i64>, LedgerError> {
        let by_parts = is_lines && self.has_parts && self.query.wanted().any(|term| term.is_part());
        // For words that begin in some way, the index collects all that do, wherever they are.
        let is_slow = self.query.has_prefix() && !by_parts;
        let tags = self.tags(kinds);
        let mut docs = Vec::new();
        for (nth, part) in self.parts(whole, most, is_slow).await?.into_iter().enumerate() {
            let mut question = match &self.reader {
                Reader::Sqlite(_) => self.sqlite(&tags, by_parts, part),
                Reader::Postgres(_) => self.postgres(&tags, by_parts, part, is_slow && nth == 0),
            };
            question.push(&format!(" LIMIT {}", most - docs.len()));
            docs.extend(self.reader.ask::<Doc>(question, usize::MAX).await?.into_iter().map(|doc| doc.0));
            if docs.len() >= most {
                break;
            }
        }
        Ok(docs)
    }

    /// What tags a document must have: one of each list.
    fn tags(&self, kinds: &[Kind]) -> Vec<Vec<Tag>> {
        let filter = self.filter;
        let mut tags = vec![kinds.iter().map(|kind| Tag::kind(kind.name())).collect()];
        tags.extend(filter.user.iter().map(|user| vec![Tag::user(user)]));
        tags.extend(filter.agent.iter().map(|agent| vec![Tag::agent(agent)]));
        tags.extend(filter.session.iter().map(|session| vec![Tag::session(*session)]));
        tags.extend(self.places.iter().map(|places| places.iter().map(|path| Tag::place(path)).collect()));
        if let Some(user) = &filter.seen_by
            && filter.shared.len() <= FEW_SHARED
        {
            let shared = filter.shared.iter().map(|session| Tag::session(*session));
            tags.push(std::iter::once(Tag::user(user)).chain(shared).collect());
        }
        tags
    }

    fn sqlite(&self, tags: &[Vec<Tag>], by_parts: bool, part: Stretch) -> Question {
        let any = |tags: &Vec<Tag>| {
            let one = |tag: &Tag| format!("\"{}\"", if by_parts { tag.trigram() } else { tag.word() });
            format!("tags : ({})", tags.iter().map(one).collect::<Vec<_>>().join(" OR "))
        };
        let tags = tags.iter().map(any).collect::<Vec<_>>().join(" AND ");
        let parts = self.query.fts_parts().filter(|_| by_parts);
        let (table, wanted) = match parts {
            Some(parts) => ("search_lines", parts),
            None => ("search_words", self.query.fts_words()),
        };
        let mut question = Question::new(format!("SELECT w.rowid FROM {table} w"));
        let narrowed = self.is_narrowed();
        if narrowed {
            // In this order, so that it ends when there are enough.
            question.push(" CROSS JOIN search_docs d ON d.doc = w.rowid");
            question.push(" CROSS JOIN sessions s ON s.session_id = d.session_id");
        }
        question.bind(&format!(" WHERE {table} MATCH ?"), Value::Text(format!("({wanted}) AND {tags}")));
        question.bind(" AND w.rowid <= ?", Value::Int(part.top));
        question.bind(" AND w.rowid >= ?", Value::Int(part.bottom));
        if narrowed {
            self.narrow(&mut question);
        }
        question.push(" ORDER BY w.rowid DESC");
        question
    }

    /// `is_walked`: document by document, without the index of words.
    fn postgres(&self, tags: &[Vec<Tag>], by_parts: bool, part: Stretch, is_walked: bool) -> Question {
        let any = |tags: &Vec<Tag>| {
            let all: Vec<_> = tags.iter().map(|tag| format!("'{}'", tag.lexeme())).collect();
            format!("({})", all.join(" | "))
        };
        let tags = tags.iter().map(any).collect::<Vec<_>>().join(" & ");
        let words = if by_parts { tags } else { format!("({}) & {tags}", self.query.tsquery(LONG)) };
        // Whatever the planner thinks, one index alone says what is in here.
        let looked_at = if is_walked { ", words" } else { "" };
        let mut question = Question::new(format!(
            "WITH d AS MATERIALIZED (SELECT doc, session_id, agent{looked_at} FROM search_docs"
        ));
        if is_walked {
            question.bind(" WHERE doc <= ?", Value::Int(part.top));
            question.bind(" AND doc >= ?", Value::Int(part.bottom));
        } else {
            question.bind(" WHERE words @@ ?::text::tsquery", Value::Text(words.clone()));
            if by_parts {
                for pattern in self.query.patterns() {
                    question.bind(r" AND line LIKE ? ESCAPE '\'", Value::Text(pattern));
                }
            } else {
                for pair in self.query.pairs() {
                    question.push(&format!(" AND pairs && '{{{pair},{NO_PAIRS}}}'::smallint[]"));
                }
            }
            let spans = format!("{{{}}}", listed(&part.tags()));
            question.bind(" AND search_spans(doc) && ?::text::bigint[]", Value::Text(spans));
        }
        question.push(") SELECT d.doc FROM d");
        if self.is_narrowed() {
            question.push(" JOIN sessions s ON s.session_id = d.session_id");
        }
        if is_walked {
            question.bind(" WHERE d.words @@ ?::text::tsquery", Value::Text(words));
        } else {
            question.bind(" WHERE d.doc <= ?", Value::Int(part.top));
            question.bind(" AND d.doc >= ?", Value::Int(part.bottom));
        }
        self.narrow(&mut question);
        question.push(" ORDER BY d.doc DESC");
        question
    }

    /// Looks for the query's terms in a text.
    pub(super) fn find(&self, source: Source, text: &str) -> Option<Found> {
        // Without an index for parts, lines are found by their words.
        let source = if self.has_parts { source } else { Source::Message };
        find(self.query, source, text)
    }

    /// Whether something has to be asked of the tables.
    fn is_narrowed(&self) -> bool {
        let Filter { user, agent, of_agent, touched, session, repository, seen_by, .. } = self.filter;
        [user, agent, of_agent, touched, repository, seen_by].into_iter().any(Option::is_some)
            || session.is_some()
    }

    fn narrow(&self, question: &mut Question) {
        let filter = self.filter;
        if let Some(user) = &filter.user {
            question.bind(" AND s.user_name = ?", Value::Text(user.clone()));
        }
        if let Some(agent) = &filter.agent {
            question.bind(" AND d.agent = ?", Value::Text(agent.clone()));
        }
        if let Some(agent) = &filter.of_agent {
            question.bind(" AND s.agent = ?", Value::Text(agent.clone()));
        }
        if let Some(path) = &filter.touched {
            question.push(" AND EXISTS (SELECT 1 FROM file_accesses f WHERE f.session_id = s.session_id");
            touches(question, path);
            question.push(")");
        }
        if let Some(session) = filter.session {
            question.bind(" AND d.session_id = ?", Value::Id(session));
        }
        if let Some(path) = &filter.repository {
            let path = path.trim_end_matches('/');
            question.push(" AND (");
            is_place(question, "s.repository", path);
            question.push(" OR ");
            is_place(question, "s.cwd", path);
            question.push(")");
        }
        seen(question, 's', filter.seen_by.as_ref(), &filter.shared);
    }

    /// Which sessions documents belong to, newest first.
    pub(super) async fn sessions(&mut self, docs: &[i64]) -> Result<Vec<(i64, Uuid)>, LedgerError> {
        if docs.is_empty() {
            return Ok(Vec::new());
        }
        let question = Question::new(format!(
            "SELECT doc, CAST(session_id AS text) FROM search_docs WHERE doc IN ({}) ORDER BY doc DESC",
            listed(docs)
        ));
        let found = self.reader.ask::<Belonging>(question, usize::MAX).await?;
        Ok(found.into_iter().map(|Belonging(doc, session)| (doc, session)).collect())
    }

    /// What documents say, newest first; fewer than asked for if they are long.
    pub(super) async fn read(&mut self, docs: &[i64]) -> Result<Vec<Candidate>, LedgerError> {
        if docs.is_empty() {
            return Ok(Vec::new());
        }
        let columns: Vec<_> = Candidate::COLUMNS.iter().chain(Row::COLUMNS).copied().collect();
        let question = Question::new(format!(
            "SELECT {} FROM search_docs k{ROWS} WHERE k.doc IN ({}) ORDER BY k.doc DESC",
            columns.join(", "),
            listed(docs)
        ));
        self.reader.ask(question, MOST_BYTES).await
    }
}

/// The directories that a filter means: the one it names, or those that end so.
/// `None` if none is named, or too many end so.
async fn places(reader: &mut Reader, filter: &Filter) -> Result<Option<Vec<String>>, LedgerError> {
    let Some(path) = &filter.repository else { return Ok(None) };
    let path = path.trim_end_matches('/');
    if path.starts_with('/') {
        return Ok(Some(vec![path.to_owned()]));
    }
    let mut question = Question::default();
    for (before, column) in [("", "repository"), (" UNION ", "cwd")] {
        question.push(&format!("{before}SELECT {column} FROM sessions WHERE "));
        is_place(&mut question, column, path);
    }
    question.push(&format!(" LIMIT {}", FEW_PLACES + 1));
    let places = reader.ask::<Place>(question, usize::MAX).await?;
    Ok((places.len() <= FEW_PLACES).then(|| places.into_iter().map(|place| place.0).collect()))
}

/// Adds that a directory is the one that is named, or ends so.
fn is_place(question: &mut Question, column: &str, path: &str) {
    question.bind(&format!("({column} = ?"), Value::Text(path.to_owned()));
    if !path.starts_with('/') {
        question.bind(&format!(r" OR {column} LIKE ? ESCAPE '\'"), Value::Text(containing_end(path)));
    }
    question.push(")");
}
