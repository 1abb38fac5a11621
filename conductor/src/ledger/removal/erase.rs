//! What is to be forgotten loses its words and keeps its place: frames keep number, time,
//! hash and chain, rows keep ids, times, counts and outcomes, and who it was.
//!
//! With a session go the processes that served nothing else, what was granted for it alone,
//! and whatever in the streams of connections names it: lists of sessions tell its title, and a
//! prompt that comes when it is closed is refused there, words and all. With a user go their
//! connections, too.

use std::collections::BTreeSet;

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{Going, Progress, Remover, id};
use crate::ledger::{
    error::LedgerError,
    question::{Question, Value},
    table::TABLES,
};

/// Whose words go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// Of one session.
    Session(Uuid),
    /// Of all sessions of a user.
    User(String),
}

/// What an erasure would do.
#[derive(Debug, Clone, Default)]
pub struct Words {
    /// The sessions.
    pub sessions: Vec<Uuid>,
    /// Those among them that are open.
    pub open: Vec<Uuid>,
    /// All streams that go as a whole, sessions among them.
    pub streams: Vec<Going>,
    /// Frames of other streams that go, because they name a session.
    pub single: Vec<(Uuid, i64)>,
    /// The streams of these.
    pub others: Vec<Going>,
    /// Frames that still have their words.
    pub frames: u64,
    /// Sessions of others in which the user has prompted.
    pub elsewhere: Vec<Uuid>,
}

impl Remover {
    /// What belongs to a session, or to a user.
    pub async fn words_of(&mut self, whose: &Whose) -> Result<Words, LedgerError> {
        let found = self.find_words(whose).await;
        found.map_err(|error| self.settings.hide(error))
    }

    async fn find_words(&mut self, whose: &Whose) -> Result<Words, LedgerError> {
        let mut words = Words::default();
        let mut question = Question::new("SELECT CAST(session_id AS text), is_open FROM sessions WHERE ");
        match whose {
            Whose::Session(id) => question.bind("session_id = ?", Value::Id(*id)),
            Whose::User(user) => question.bind("user_name = ?", Value::Text(user.clone())),
        }
        question.push(" ORDER BY session_id");
        for mut row in self.sink.fetch(question).await? {
            let (session, is_open) = (id(&row.take::<String>()?)?, row.take::<bool>()?);
            words.sessions.push(session);
            words.open.extend(is_open.then_some(session));
        }
        self.mark(words.sessions.iter().copied()).await?;
        if let Whose::User(user) = whose {
            let mut question = Question::new(
                "SELECT DISTINCT CAST(session_id AS text) FROM turns \
                 WHERE session_id NOT IN (SELECT stream_id FROM going)",
            );
            question.bind(" AND user_name = ? ORDER BY 1", Value::Text(user.clone()));
            words.elsewhere = self.ids(question).await?;
        }
        let mut with_them = self
            .ids(Question::new(
                "SELECT DISTINCT CAST(process_id AS text) FROM bindings WHERE process_id IS NOT NULL \
                 AND session_id IN (SELECT stream_id FROM going) AND process_id NOT IN \
                 (SELECT process_id FROM bindings WHERE process_id IS NOT NULL \
                 AND session_id NOT IN (SELECT stream_id FROM going))",
            ))
            .await?;
        with_them.extend(
            self.ids(Question::new(
                "SELECT CAST(grant_id AS text) FROM grants WHERE session_id IN (SELECT stream_id FROM going)",
            ))
            .await?,
        );
        if let Whose::User(user) = whose {
            let mut question = Question::new("SELECT CAST(connection_id AS text) FROM connections");
            question.bind(" WHERE user_name = ?", Value::Text(user.clone()));
            with_them.extend(self.ids(question).await?);
        }
        words.single = self.naming(&words.sessions).await?;
        self.mark_more(with_them).await?;
        words.streams = self.marked().await?;
        let whole: BTreeSet<_> = words.streams.iter().map(|stream| stream.id).collect();
        words.single.retain(|(stream, _)| !whole.contains(stream));
        let left = Question::new(
            "SELECT count(*) FROM frames WHERE stream_id IN (SELECT stream_id FROM going) AND raw IS NOT NULL",
        );
        let left = self.sink.fetch(left).await?.pop().map_or(Ok(0), |mut row| row.take::<i64>())?;
        words.frames = u64::try_from(left).unwrap_or_default() + words.single.len() as u64;
        self.mark(words.single.iter().map(|(stream, _)| *stream)).await?;
        words.others = self.marked().await?;
        Ok(words)
    }

    async fn ids(&mut self, question: Question) -> Result<Vec<Uuid>, LedgerError> {
        self.sink.fetch(question).await?.into_iter().map(|mut row| id(&row.take::<String>()?)).collect()
    }

    /// Frames of connections that name one of these sessions and have their words.
    async fn naming(&mut self, sessions: &[Uuid]) -> Result<Vec<(Uuid, i64)>, LedgerError> {
        let names = self
            .pick(" AND position(convert_to(?, 'UTF8') IN raw) > 0", " AND instr(raw, CAST(? AS BLOB)) > 0");
        let mut found = BTreeSet::new();
        for session in sessions {
            let mut question = Question::new(
                "SELECT CAST(stream_id AS text), seq FROM frames \
                 WHERE stream_kind = 'connection' AND raw IS NOT NULL",
            );
            question.bind(names, Value::Text(session.to_string()));
            for mut row in self.sink.fetch(question).await? {
                found.insert((id(&row.take::<String>()?)?, row.take()?));
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Takes the words away, all or none. Returns how many frames had some.
    pub async fn erase(
        &mut self,
        words: &Words,
        mut tell: impl FnMut(Progress) + Send,
    ) -> Result<u64, LedgerError> {
        self.mark(words.streams.iter().map(|stream| stream.id)).await?;
        let erased = self.erase_marked(words, &mut tell).await;
        if erased.is_err() {
            // The connection may be gone, and its transaction with it.
            self.sink.run("ROLLBACK").await.ok();
        }
        erased.map_err(|error| self.settings.hide(error))
    }

    async fn erase_marked(
        &mut self,
        words: &Words,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<u64, LedgerError> {
        let lifted = self.lift().await?;
        let total: u64 = words.streams.iter().map(|stream| stream.frames).sum();
        let (mut done, mut erased) = (0, 0);
        for stream in &words.streams {
            let mut question = Question::new("UPDATE frames SET raw = NULL, json = NULL");
            question.bind(" WHERE stream_id = ? AND raw IS NOT NULL", Value::Id(stream.id));
            erased += self.sink.change(question).await?;
            done += stream.frames;
            tell(Progress { done, total });
        }
        for (stream, seq) in &words.single {
            let mut question = Question::new("UPDATE frames SET raw = NULL, json = NULL");
            question.bind(" WHERE stream_id = ?", Value::Id(*stream));
            question.bind(" AND seq = ? AND raw IS NOT NULL", Value::Int(*seq));
            erased += self.sink.change(question).await?;
        }
        self.sink
            .run_long(
                "UPDATE frame_conflicts SET raw = NULL WHERE stream_id IN (SELECT stream_id FROM going)",
            )
            .await?;
        let going = "IN (SELECT stream_id FROM going)";
        for table in TABLES.iter().filter(|table| !table.words().is_empty()) {
            let name = table.name;
            let rows = match name {
                "processes" => format!("process_id {going}"),
                "connections" => format!("connection_id {going}"),
                "grants" => format!("grant_id {going} OR session_id {going}"),
                _ => format!("session_id {going}"),
            };
            let blank: Vec<_> = table.words().iter().map(|column| format!("{column} = NULL")).collect();
            let update = format!("UPDATE {name} SET {} WHERE {rows}", blank.join(", "));
            self.sink.run_long(AssertSqlSafe(update)).await?;
        }
        self.commit(lifted).await?;
        Ok(erased)
    }
}
