//! Decisions as they were judged, all of them or those that people were asked about, page by
//! page: a ledger may have millions.

use uuid::Uuid;

use super::{
    error::LedgerError,
    history::{History, ids_beginning},
    question::{Question, Record, Value},
    reader::Reader,
    settings::Settings,
};
use crate::{
    frame::Frame,
    ledger::{cell::Cells, history::record},
    policy::Narrowing,
    record::note,
};

/// Rows that are asked for at once, and about how many bytes of them are held.
const PAGE: usize = 1000;
const CHUNK: usize = 4 << 20;

/// How many of the calls of each agent were decided.
pub const COVERAGE: &str = "SELECT agent, agent_version, calls, decided, calls - decided AS unasked, \
    round(percent) AS percent FROM policy_coverage ORDER BY percent, agent, agent_version";

/// Which decisions to read; what is empty does not narrow it.
#[derive(Debug, Clone, Default)]
pub struct Which {
    /// Asked then or later.
    pub since_us: Option<i64>,
    /// Asked before then.
    pub until_us: Option<i64>,
    /// The beginning of a session's id.
    pub session: Option<String>,
    /// Whose session it is.
    pub user: Option<String>,
    /// Only what people were asked.
    pub only_asked: bool,
}

record! {
    /// A decision, and what it was made from.
    Judgement {
        session_id: String = "CAST(session_id AS text)",
        seq: i64 = "seq",
        user_name: Option<String> = "user_name",
        agent: Option<String> = "agent",
        method: Option<String> = "method",
        asked_us: Option<i64> = "asked_us",
        duration_us: Option<i64> = "duration_us",
        // allow, reject, cancelled, error
        decision: Option<String> = "decision",
        decided_by: Option<String> = "decided_by",
        decided_user: Option<String> = "decided_user",
        rule: Option<String> = "rule",
        // What counted, after grants.
        verdict: Option<String> = "verdict",
        // What the rules said.
        ruled: Option<String> = "ruled",
        is_whole: Option<bool> = "is_whole",
        subject: Option<String> = "CAST(subject AS text)",
        sub_actions: Option<String> = "CAST(sub_actions AS text)",
        // How the rules wanted it asked.
        terms: Option<String> = "CAST(terms AS text)",
    }
}

struct Count(i64);

impl Record for Count {
    const COLUMNS: &'static [&'static str] = &["count(*)"];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        Ok(Self(row.take()?))
    }
}

/// Decisions on record; those of the latest sessions come first.
#[derive(Debug)]
pub struct Judgements {
    settings: Settings,
    history: History,
    which: Which,
    /// The last one that was read.
    after: Option<(Uuid, i64)>,
}

impl Judgements {
    /// Those of a ledger.
    pub fn new(settings: Settings, which: Which) -> Self {
        let history = History::new(settings.clone(), None);
        Self { settings, history, which, after: None }
    }

    /// How many there are.
    pub async fn count(&self) -> Result<u64, LedgerError> {
        let counted: Vec<Count> = match self.question::<Count>() {
            Some(question) => self.ask(question, usize::MAX).await?,
            None => Vec::new(),
        };
        Ok(counted.first().map_or(0, |count| u64::try_from(count.0).unwrap_or_default()))
    }

    /// Some more; nothing at the end.
    pub async fn next(&mut self) -> Result<Vec<Judgement>, LedgerError> {
        let Some(mut question) = self.question::<Judgement>() else { return Ok(Vec::new()) };
        if let Some((session, seq)) = self.after {
            question.bind(" AND (session_id, seq) < (?", Value::Id(session));
            question.bind(", ?)", Value::Int(seq));
        }
        question.push(&format!(" ORDER BY session_id DESC, seq DESC LIMIT {PAGE}"));
        let found: Vec<Judgement> = self.ask(question, CHUNK).await?;
        if let Some(last) = found.last() {
            let id = last.session_id.parse();
            let id = id.map_err(|_| LedgerError::Corrupt("a session's id is none".to_owned()))?;
            self.after = Some((id, last.seq));
        }
        Ok(found)
    }

    /// What a repository and users added to the rules of a session. None if that is not on
    /// record.
    pub async fn narrowing(&self, session: Uuid, seq: u64) -> Result<Option<Vec<Narrowing>>, LedgerError> {
        let mut reading = self.history.frames(session, seq, Some(1), false);
        let frames = reading.next().await?;
        let note = frames.into_iter().next().filter(|frame| frame.seq == seq);
        let note = note.and_then(|frame| Frame::parse(frame.raw.into()).ok());
        let note = note.filter(|note| note.method_name() == note::NARROWED);
        let params: Option<serde_json::Value> = note.and_then(|note| note.decode(note.peek().params));
        let rules = params.as_ref().and_then(|params| params["rules"].as_array());
        Ok(rules.and_then(|rules| rules.iter().map(Narrowing::from_note).collect()))
    }

    /// Nothing if no session can be meant.
    fn question<T: Record>(&self) -> Option<Question> {
        let which = &self.which;
        let mut question =
            Question::new(format!("SELECT {} FROM decisions WHERE 1 = 1", T::COLUMNS.join(", ")));
        if let Some(since) = which.since_us {
            question.bind(" AND asked_us >= ?", Value::Int(since));
        }
        if let Some(until) = which.until_us {
            question.bind(" AND asked_us < ?", Value::Int(until));
        }
        if let Some(user) = &which.user {
            question.bind(" AND user_name = ?", Value::Text(user.clone()));
        }
        if which.only_asked {
            question.push(" AND verdict = 'ask' AND method = 'session/request_permission'");
        }
        if let Some(session) = &which.session {
            let (first, last) = ids_beginning(session)?;
            question.bind(" AND session_id >= ?", Value::Id(first));
            question.bind(" AND session_id <= ?", Value::Id(last));
        }
        Some(question)
    }

    /// Each page has a connection of its own, as what takes too long on one is ended.
    async fn ask<T: Record>(&self, question: Question, max_bytes: usize) -> Result<Vec<T>, LedgerError> {
        let mut reader = Reader::open(&self.settings).await?;
        reader.ask(question, max_bytes).await.map_err(|error| self.settings.hide(error))
    }
}
