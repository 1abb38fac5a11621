//! What is old goes as a whole: sessions in which nothing has happened since, with all that
//! was derived from them, and processes, connections and grants that no session needs any
//! more.

use std::collections::HashSet;

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{Going, Progress, Remover, SEEN, by_id, going, id};
use crate::{
    agent::transcripts::Kept,
    ledger::{
        error::LedgerError,
        question::{Question, Value},
        sink::Sink,
        table::TABLES,
    },
    record::{StreamKind, now_us},
};

/// Those of a month have ids between these.
#[derive(Debug, Clone)]
struct Month {
    name: String,
    from: Uuid,
    to: Uuid,
}

/// What counts as old.
#[derive(Debug, Clone, Default)]
pub struct Age {
    /// Nothing has happened in it since this moment.
    pub before_us: i64,
    /// The journal whose service asks. What others bring that are still at work stays.
    pub journal: Option<Uuid>,
    /// Since when that service runs, if it does.
    pub began_us: Option<i64>,
    /// Sessions that are open, whatever the ledger says.
    pub open: HashSet<Uuid>,
}

/// What is old.
#[derive(Debug, Clone, Default)]
pub struct Old {
    /// The streams that go.
    pub streams: Vec<Going>,
    /// Sessions as old that stay, because they are open.
    pub open: u64,
}

impl Remover {
    /// What is old.
    pub async fn old(&mut self, age: &Age) -> Result<Old, LedgerError> {
        let found = self.find_old(age).await;
        found.map_err(|error| self.settings.hide(error))
    }

    async fn find_old(&mut self, age: &Age) -> Result<Old, LedgerError> {
        let before_us = age.before_us;
        // An id begins with the time it was made, so nothing behind this one is that old.
        let mut question = Question::new(format!("SELECT {SEEN} FROM frames"));
        question.bind(" WHERE stream_id < ? GROUP BY stream_id, stream_kind", Value::Id(first_id(before_us)));
        question.bind(" HAVING max(at_us) < ?", Value::Int(before_us));
        let rows = self.sink.fetch(question).await?;
        let mut candidates = by_id(rows.into_iter().map(going).collect::<Result<Vec<_>, LedgerError>>()?);
        let before = candidates.len();
        candidates.retain(|id, _| !age.open.contains(id));
        self.mark(candidates.keys().copied()).await?;
        if let Some(journal) = age.journal {
            let mut others = Question::new(
                "DELETE FROM going WHERE stream_id IN (SELECT h.stream_id FROM stream_heads h \
                 JOIN journals j ON j.journal_id = h.journal_id",
            );
            others.bind(" WHERE j.journal_id <> ?", Value::Id(journal));
            others.bind(" AND j.updated_us >= ?)", Value::Int(before_us));
            self.sink.change(others).await?;
        }
        let open = (before - candidates.len()) as u64 + self.keep_what_is_needed(age.began_us).await?;
        let left = self.sink.fetch(Question::new("SELECT CAST(stream_id AS text) FROM going")).await?;
        let mut streams = Vec::new();
        for mut row in left {
            streams.extend(candidates.remove(&id(&row.take::<String>()?)?));
        }
        streams.sort_by_key(|stream| stream.id);
        Ok(Old { streams, open })
    }

    /// Takes out of what is marked what stays, however old it is. Returns how many sessions
    /// are open.
    async fn keep_what_is_needed(&mut self, began_us: Option<i64>) -> Result<u64, LedgerError> {
        // Journals go on in a stream of their own for as long as there are any.
        self.sink.run_long("DELETE FROM going WHERE stream_id IN (SELECT journal_id FROM journals)").await?;
        let open = Question::new(
            "DELETE FROM going WHERE stream_id IN (SELECT session_id FROM sessions WHERE is_open)",
        );
        let open = self.sink.change(open).await?;
        for needed in [
            // Whatever a session that stays has to do with stays, too.
            "SELECT process_id FROM bindings WHERE session_id NOT IN (SELECT stream_id FROM going)",
            "SELECT connection_id FROM sessions WHERE session_id NOT IN (SELECT stream_id FROM going)",
            "SELECT grant_id FROM grant_uses WHERE session_id NOT IN (SELECT stream_id FROM going)",
        ] {
            let keep = format!("DELETE FROM going WHERE stream_id IN ({needed})");
            self.sink.run_long(AssertSqlSafe(keep)).await?;
        }
        let mut valid = Question::new(
            "DELETE FROM going WHERE stream_id IN (SELECT grant_id FROM grants WHERE revoked_us IS NULL",
        );
        valid.bind(" AND (expires_us IS NULL OR expires_us > ?))", Value::Int(now_us()));
        self.sink.change(valid).await?;
        // What a service has that runs has not ended, however quiet it is: its end is yet to be
        // recorded. What a former run has left without an end never has one.
        for running in [
            "SELECT process_id FROM processes WHERE ended_us IS NULL AND started_us >= ?",
            "SELECT connection_id FROM connections WHERE closed_us IS NULL AND opened_us >= ?",
        ] {
            let Some(began_us) = began_us else { break };
            let mut question = Question::new("DELETE FROM going WHERE stream_id IN (");
            question.bind(running, Value::Int(began_us));
            question.push(")");
            self.sink.change(question).await?;
        }
        Ok(open)
    }

    /// What agents keep of the sessions among these streams.
    pub async fn kept_by_agents(&mut self, streams: &[Going]) -> Result<Vec<Kept>, LedgerError> {
        let kept = self.find_kept(streams).await;
        kept.map_err(|error| self.settings.hide(error))
    }

    async fn find_kept(&mut self, streams: &[Going]) -> Result<Vec<Kept>, LedgerError> {
        let sessions = streams.iter().filter(|stream| stream.kind == StreamKind::Session);
        self.mark(sessions.map(|stream| stream.id)).await?;
        let question = Question::new(
            "SELECT b.agent, COALESCE(s.user_name, ''), b.agent_session FROM bindings b \
             JOIN sessions s ON s.session_id = b.session_id \
             WHERE b.session_id IN (SELECT stream_id FROM going) \
             AND b.agent IS NOT NULL AND b.agent_session IS NOT NULL ORDER BY 1, 2, 3",
        );
        let mut found = Vec::new();
        for mut row in self.sink.fetch(question).await? {
            found.push(Kept { agent: row.take()?, user: row.take()?, id: row.take()? });
        }
        found.dedup();
        Ok(found)
    }

    /// Removes streams, all or none. What has been used since it was found old stays. The
    /// answer are those that went, and the months that went as a whole.
    pub async fn remove(
        &mut self,
        streams: &[Going],
        age: &Age,
        mut tell: impl FnMut(Progress) + Send,
    ) -> Result<(Vec<Going>, Vec<String>), LedgerError> {
        self.mark(streams.iter().map(|stream| stream.id)).await?;
        let removed = self.remove_marked(streams, age, &mut tell).await;
        if removed.is_err() {
            // The connection may be gone, and its transaction with it.
            self.sink.run("ROLLBACK").await.ok();
        }
        removed.map_err(|error| self.settings.hide(error))
    }

    async fn remove_marked(
        &mut self,
        streams: &[Going],
        age: &Age,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(Vec<Going>, Vec<String>), LedgerError> {
        let lifted = self.lift().await?;
        let mut used = Question::new(
            "DELETE FROM going WHERE stream_id IN (SELECT stream_id FROM frames \
             WHERE stream_id IN (SELECT stream_id FROM going)",
        );
        used.bind(" AND at_us >= ?)", Value::Int(age.before_us));
        self.sink.change(used).await?;
        self.keep_what_is_needed(age.began_us).await?;
        let mut left = HashSet::new();
        for mut row in self.sink.fetch(Question::new("SELECT CAST(stream_id AS text) FROM going")).await? {
            left.insert(id(&row.take::<String>()?)?);
        }
        let gone: Vec<_> = streams.iter().filter(|stream| left.contains(&stream.id)).cloned().collect();
        self.remove_derived().await?;
        let months = self.whole_months(age.before_us).await?;
        let total = gone.iter().map(|stream| stream.frames).sum();
        let mut done = 0;
        for stream in &gone {
            if !months.iter().any(|month| (month.from..month.to).contains(&stream.id)) {
                let mut question = Question::new("DELETE FROM frames");
                question.bind(" WHERE stream_id = ?", Value::Id(stream.id));
                self.sink.change(question).await?;
            }
            done += stream.frames;
            tell(Progress { done, total });
        }
        self.sink
            .run_long("DELETE FROM frame_conflicts WHERE stream_id IN (SELECT stream_id FROM going)")
            .await?;
        self.sink
            .run_long("DELETE FROM stream_heads WHERE stream_id IN (SELECT stream_id FROM going)")
            .await?;
        // Last, because nobody can read frames from here on until this is committed.
        for month in &months {
            let drop = format!("DROP TABLE \"{}\"", month.name);
            self.sink.run_long(AssertSqlSafe(drop)).await?;
        }
        self.commit(lifted).await?;
        Ok((gone, months.into_iter().map(|month| month.name).collect()))
    }

    async fn remove_derived(&mut self) -> Result<(), LedgerError> {
        let going = "IN (SELECT stream_id FROM going)";
        for table in TABLES {
            let name = table.name;
            let rows = match name {
                "processes" => format!("process_id {going}"),
                "connections" => format!("connection_id {going}"),
                // One given in a session is told of by that session alone.
                "grants" => format!(
                    "grant_id {going} OR (session_id {going} AND NOT EXISTS \
                     (SELECT 1 FROM frames WHERE frames.stream_id = grants.grant_id))"
                ),
                _ if table.has("session_id") => format!("session_id {going}"),
                // What agents offer is nobody's in particular.
                _ => continue,
            };
            self.sink.run_long(AssertSqlSafe(format!("DELETE FROM {name} WHERE {rows}"))).await?;
        }
        Ok(())
    }

    /// The months of which everything goes: dropping one takes no longer than looking at it.
    async fn whole_months(&mut self, before_us: i64) -> Result<Vec<Month>, LedgerError> {
        let Sink::Postgres(_) = self.sink else { return Ok(Vec::new()) };
        let question = Question::new(
            "SELECT CAST(c.relname AS text), pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i \
             JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = CAST('frames' AS regclass) \
             ORDER BY c.relname",
        );
        let mut whole = Vec::new();
        for mut row in self.sink.fetch(question).await? {
            let (name, bounds): (String, String) = (row.take()?, row.take()?);
            // The default one has no bounds.
            let ids: Vec<Uuid> = bounds.split('\'').filter_map(|part| part.parse().ok()).collect();
            let [from, to] = ids[..] else { continue };
            if to > first_id(before_us) || name.contains('"') {
                continue;
            }
            let others = format!(
                "SELECT EXISTS (SELECT 1 FROM \"{name}\" f WHERE NOT EXISTS \
                 (SELECT 1 FROM going g WHERE g.stream_id = f.stream_id))"
            );
            let others = self.sink.fetch(Question::new(others)).await?.pop();
            if !others.map_or(Ok(true), |mut row| row.take::<bool>())? {
                whole.push(Month { name, from, to });
            }
        }
        Ok(whole)
    }
}

/// No id that was made before this moment is greater.
fn first_id(at_us: i64) -> Uuid {
    let milliseconds = u128::try_from(at_us / 1000 + 1).unwrap_or_default();
    Uuid::from_u128((milliseconds << 80) & (u128::MAX << 80))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_as_old_as_they_say() {
        let now = now_us();
        let id = Uuid::now_v7();
        assert!(id < first_id(now_us()), "made before now");
        assert!(id > first_id(now - 2_000_000), "made after that");
        assert_eq!(first_id(-5_000), Uuid::nil());
    }
}
