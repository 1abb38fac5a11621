//! The questions of a search to either database: which documents may fit, newest
//! first, and what they say.
//!
//! A common word is in half of all texts, and Postgres' index has no order: so
//! it is asked for the newest documents first, one by one, then for those of
//! the recent ones that its index finds, and for all that fit only if there were
//! not enough among them. FTS5 goes from the newest on by
//! itself, as its documents are numbered by their time.

use super::{
    Filter, Kind, Source,
    document::{LONG, ROWS, Row, Tag, first_doc},
    found::{Found, find},
    query::Query,
};
use crate::ledger::{
    cell::Cells,
    error::LedgerError,
    history::{containing_end, seen},
    question::{Question, Record, Value},
    reader::Reader,
};

/// Hits are ranked among so many of the newest.
pub(super) const WINDOW: usize = 256;

/// So many of the newest documents Postgres looks at before it uses its index,
/// and to so many it keeps when it does, before it looks at all.
const PROBE: usize = 4096;
const RECENT: usize = 65_536;

/// About so many bytes of texts are held at once.
const MOST_BYTES: usize = 8 << 20;

/// Sessions that are shared with somebody, up to which their tags are asked for.
const FEW_SHARED: usize = 64;

/// What the planner must not try: it would read all rows for a word that it takes
/// for common, and compile what runs for some milliseconds.
/// The answer is whether parts of lines can be found.
const PLANNING: &str = "SELECT to_regclass('search_docs_on_line') IS NOT NULL, \
     set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false), \
     set_config('max_parallel_workers_per_gather', '0', false), set_config('work_mem', '32MB', false)";

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

struct Yes(bool);

impl Record for Yes {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut cells: Cells) -> Result<Self, LedgerError> {
        Ok(Self(cells.take()?))
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

/// Where documents are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Among the newest, without an index.
    Newest,
    /// Among the recent ones, by the index.
    Recent,
    /// Among all.
    All,
}

/// A search under way, over one connection.
pub(super) struct Asking<'a> {
    reader: Reader,
    query: &'a Query,
    filter: &'a Filter,
    /// Whether parts of lines can be found.
    pub(super) has_parts: bool,
    /// What Postgres was last told.
    is_by_bitmaps: bool,
}

impl<'a> Asking<'a> {
    pub(super) async fn new(
        mut reader: Reader,
        query: &'a Query,
        filter: &'a Filter,
    ) -> Result<Self, LedgerError> {
        let has_parts = match &reader {
            Reader::Postgres(_) => {
                let asked = reader.ask::<Yes>(Question::new(PLANNING), usize::MAX).await?;
                asked.first().is_some_and(|yes| yes.0)
            }
            Reader::Sqlite(_) => true,
        };
        Ok(Self { reader, query, filter, has_parts, is_by_bitmaps: false })
    }

    /// The documents between two, both included, that may fit; about so many.
    pub(super) async fn window(&mut self, top: i64, bottom: i64, most: usize) -> Result<Window, LedgerError> {
        let since = self.filter.since_us.map_or(i64::MIN, first_doc);
        let until = self.filter.until_us.map_or(i64::MAX, |until| first_doc(until).saturating_sub(1));
        let (top, floor) = (top.min(until), bottom.max(since));
        let mut window = Window { docs: Vec::new(), bottom: floor, more: false };
        if top < floor {
            return Ok(window);
        }
        let asked = |kinds: [Kind; 2]| kinds.into_iter().filter(|kind| self.filter.asks_for(*kind)).collect();
        let (texts, lines): (Vec<_>, Vec<_>) =
            (asked([Kind::Message, Kind::Tool]), asked([Kind::Command, Kind::Path]));
        for (kinds, is_lines) in [(texts, false), (lines, true)] {
            if kinds.is_empty() {
                continue;
            }
            let docs = self.candidates(&kinds, is_lines, (top, floor), most).await?;
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

    async fn candidates(
        &mut self,
        kinds: &[Kind],
        is_lines: bool,
        range: (i64, i64),
        most: usize,
    ) -> Result<Vec<i64>, LedgerError> {
        let by_parts = is_lines && self.has_parts && self.query.wanted().any(|term| term.is_part());
        let tags = self.tags(kinds);
        let ways: &[Way] = match &self.reader {
            Reader::Sqlite(_) => &[Way::All],
            Reader::Postgres(_) => &[Way::Newest, Way::Recent, Way::All],
        };
        let mut docs = Vec::new();
        for way in ways {
            let mut range = range;
            if *way == Way::Recent {
                match self.recent(range).await? {
                    Some(bottom) => range.1 = bottom,
                    None => continue,
                }
            }
            self.by_bitmaps(*way != Way::Newest).await?;
            let mut question = match &self.reader {
                Reader::Sqlite(_) => self.sqlite(&tags, by_parts, range),
                Reader::Postgres(_) => self.postgres(&tags, by_parts, range, *way == Way::Newest),
            };
            question.push(&format!(" LIMIT {most}"));
            docs = self.reader.ask::<Doc>(question, usize::MAX).await?;
            if docs.len() >= most {
                break;
            }
        }
        Ok(docs.into_iter().map(|doc| doc.0).collect())
    }

    /// Has Postgres find all numbers of documents before it reads one of them, or
    /// go through them in order. Left to itself, it reads the words of all that
    /// are recent, which are long, in the place of its index.
    async fn by_bitmaps(&mut self, wanted: bool) -> Result<(), LedgerError> {
        if self.is_by_bitmaps != wanted && matches!(self.reader, Reader::Postgres(_)) {
            let setting = if wanted { "off" } else { "on" };
            let question = format!("SELECT set_config('enable_indexscan', '{setting}', false) = '{setting}'");
            self.reader.ask::<Yes>(Question::new(question), usize::MAX).await?;
            self.is_by_bitmaps = wanted;
        }
        Ok(())
    }

    /// The oldest of the recent documents of a range; `None` if it has no more
    /// than these.
    async fn recent(&mut self, (top, bottom): (i64, i64)) -> Result<Option<i64>, LedgerError> {
        self.by_bitmaps(false).await?;
        let mut question = Question::new("SELECT doc FROM search_docs");
        question.bind(" WHERE doc <= ?", Value::Int(top));
        question.bind(" AND doc >= ?", Value::Int(bottom));
        question.push(&format!(" ORDER BY doc DESC OFFSET {RECENT} LIMIT 1"));
        Ok(self.reader.ask::<Doc>(question, usize::MAX).await?.first().map(|doc| doc.0))
    }

    /// What tags a document must have: one of each list.
    fn tags(&self, kinds: &[Kind]) -> Vec<Vec<Tag>> {
        let filter = self.filter;
        let mut tags = vec![kinds.iter().map(|kind| Tag::kind(kind.name())).collect()];
        tags.extend(filter.user.iter().map(|user| vec![Tag::user(user)]));
        tags.extend(filter.agent.iter().map(|agent| vec![Tag::agent(agent)]));
        tags.extend(filter.session.iter().map(|session| vec![Tag::session(*session)]));
        let whole = filter.repository.iter().map(|path| path.trim_end_matches('/'));
        tags.extend(whole.filter(|path| path.starts_with('/')).map(|path| vec![Tag::place(path)]));
        if let Some(user) = &filter.seen_by
            && filter.shared.len() <= FEW_SHARED
        {
            let shared = filter.shared.iter().map(|session| Tag::session(*session));
            tags.push(std::iter::once(Tag::user(user)).chain(shared).collect());
        }
        tags
    }

    fn sqlite(&self, tags: &[Vec<Tag>], by_parts: bool, (top, bottom): (i64, i64)) -> Question {
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
        question.bind(" AND w.rowid <= ?", Value::Int(top));
        question.bind(" AND w.rowid >= ?", Value::Int(bottom));
        if narrowed {
            self.narrow(&mut question);
        }
        question.push(" ORDER BY w.rowid DESC");
        question
    }

    fn postgres(
        &self,
        tags: &[Vec<Tag>],
        by_parts: bool,
        (top, bottom): (i64, i64),
        newest: bool,
    ) -> Question {
        let any = |tags: &Vec<Tag>| {
            let all: Vec<_> = tags.iter().map(|tag| format!("'{}'", tag.lexeme())).collect();
            format!("({})", all.join(" | "))
        };
        let tags = tags.iter().map(any).collect::<Vec<_>>().join(" & ");
        let words = if by_parts { tags } else { format!("({}) & {tags}", self.query.tsquery(LONG)) };
        let fits = |question: &mut Question| {
            question.bind(" WHERE words @@ ?::text::tsquery", Value::Text(words.clone()));
            for pattern in self.query.patterns().into_iter().filter(|_| by_parts) {
                question.bind(r" AND line LIKE ? ESCAPE '\'", Value::Text(pattern));
            }
        };
        let between = |question: &mut Question, before: &str| {
            question.bind(&format!(" {before} doc <= ?"), Value::Int(top));
            question.bind(" AND doc >= ?", Value::Int(bottom));
        };
        let mut question = Question::new("WITH d AS MATERIALIZED (SELECT doc, session_id, agent FROM ");
        if newest {
            question.push("(SELECT * FROM search_docs");
            between(&mut question, "WHERE");
            question.push(&format!(" ORDER BY doc DESC LIMIT {PROBE}) AS newest"));
            fits(&mut question);
        } else {
            question.push("search_docs");
            fits(&mut question);
            between(&mut question, "AND");
        }
        question.push(") SELECT d.doc FROM d");
        if self.is_narrowed() {
            question.push(" JOIN sessions s ON s.session_id = d.session_id WHERE 1 = 1");
            self.narrow(&mut question);
        }
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
        let Filter { user, agent, session, repository, seen_by, .. } = self.filter;
        [user, agent, repository, seen_by].into_iter().any(Option::is_some) || session.is_some()
    }

    fn narrow(&self, question: &mut Question) {
        let filter = self.filter;
        if let Some(user) = &filter.user {
            question.bind(" AND s.user_name = ?", Value::Text(user.clone()));
        }
        if let Some(agent) = &filter.agent {
            question.bind(" AND d.agent = ?", Value::Text(agent.clone()));
        }
        if let Some(session) = filter.session {
            question.bind(" AND d.session_id = ?", Value::Id(session));
        }
        if let Some(path) = &filter.repository {
            let path = path.trim_end_matches('/');
            question.bind(" AND (s.repository = ? OR s.cwd = ?", Value::Text(path.to_owned()));
            if !path.starts_with('/') {
                question.bind(
                    r" OR s.repository LIKE ? ESCAPE '\' OR s.cwd LIKE ? ESCAPE '\'",
                    Value::Text(containing_end(path)),
                );
            }
            question.push(")");
        }
        seen(question, 's', filter.seen_by.as_ref(), &filter.shared);
    }

    /// What documents say, newest first; fewer than asked for if they are long.
    pub(super) async fn read(&mut self, docs: &[i64]) -> Result<Vec<Candidate>, LedgerError> {
        if docs.is_empty() {
            return Ok(Vec::new());
        }
        let columns: Vec<_> = Candidate::COLUMNS.iter().chain(Row::COLUMNS).copied().collect();
        let numbers: Vec<_> = docs.iter().map(ToString::to_string).collect();
        let question = Question::new(format!(
            "SELECT {} FROM search_docs k{ROWS} WHERE k.doc IN ({}) ORDER BY k.doc DESC",
            columns.join(", "),
            numbers.join(", ")
        ));
        self.reader.ask(question, MOST_BYTES).await
    }
}
