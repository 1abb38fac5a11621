//! What was used, in the store: by the day, for users and teams; and what
//! sessions have cost in all at each agent, since that is what agents report.

use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use super::{Store, StoreError};
use crate::{
    identity::Party,
    limits::{KEPT_DAYS, Limits, Unsaved, Used},
};

/// Adds the tables.
pub(super) const STEP: &str = "CREATE TABLE usage (
    day INTEGER NOT NULL,           -- since 1970, in UTC
    party TEXT NOT NULL CHECK (party IN ('user', 'team')),
    name TEXT NOT NULL,
    prompts INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    cost_micros INTEGER NOT NULL,   -- millionths
    PRIMARY KEY (day, party, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE session_costs (
    session BLOB PRIMARY KEY,
    total_micros INTEGER NOT NULL   -- as its agent has reported it last
) STRICT, WITHOUT ROWID";

/// Knows what a session has cost at each of its agents. Until then it had one sum, which
/// is taken for that of the agent it is with.
pub(super) const BY_AGENT: &str = "CREATE TABLE agent_costs (
    session BLOB NOT NULL,
    agent TEXT NOT NULL,
    total_micros INTEGER NOT NULL,  -- as the agent has reported it last
    PRIMARY KEY (session, agent)
) STRICT, WITHOUT ROWID;
INSERT INTO agent_costs SELECT session, agent, total_micros FROM session_costs JOIN sessions ON id = session;
DROP TABLE session_costs";

impl Store {
    /// What was used.
    pub async fn usage(&mut self) -> Result<Unsaved, StoreError> {
        let rows = sqlx::query("SELECT day, party, name, prompts, tokens, cost_micros FROM usage")
            .fetch_all(&mut self.connection)
            .await?;
        let mut used = Unsaved::default();
        for row in rows {
            let name = row.try_get(2)?;
            let party =
                if row.try_get::<String, _>(1)? == "team" { Party::Team(name) } else { Party::User(name) };
            let count = |at: usize| row.try_get::<i64, _>(at).map(|count| count.max(0).cast_unsigned());
            let sums = Used { prompts: count(3)?, tokens: count(4)?, cost_micros: count(5)? };
            used.days.push((row.try_get(0)?, party, sums));
        }
        let rows = sqlx::query("SELECT session, agent, total_micros FROM agent_costs")
            .fetch_all(&mut self.connection)
            .await?;
        for row in rows {
            let id = Uuid::from_slice(&row.try_get::<Vec<u8>, _>(0)?);
            let id = id.map_err(|error| sqlx::Error::Decode(error.into()))?;
            used.sums.push(((id, row.try_get(1)?), row.try_get::<i64, _>(2)?.max(0).cast_unsigned()));
        }
        Ok(used)
    }

    /// Writes what was used as it is now, all or none, and forgets what is long
    /// past.
    pub async fn write_usage(&mut self, used: &Unsaved) -> Result<(), StoreError> {
        let mut transaction = self.connection.begin().await?;
        for (day, party, sums) in &used.days {
            let (party, name) = match party {
                Party::User(name) => ("user", name),
                Party::Team(name) => ("team", name),
            };
            sqlx::query(
                "INSERT INTO usage (day, party, name, prompts, tokens, cost_micros) VALUES (?, ?, ?, ?, ?, ?) \
                 ON CONFLICT (day, party, name) DO UPDATE SET prompts = excluded.prompts, \
                 tokens = excluded.tokens, cost_micros = excluded.cost_micros",
            )
            .bind(day)
            .bind(party)
            .bind(name)
            .bind(number(sums.prompts))
            .bind(number(sums.tokens))
            .bind(number(sums.cost_micros))
            .execute(&mut *transaction)
            .await?;
        }
        for ((session, agent), total) in &used.sums {
            sqlx::query(
                "INSERT INTO agent_costs (session, agent, total_micros) VALUES (?, ?, ?) \
                 ON CONFLICT (session, agent) DO UPDATE SET total_micros = excluded.total_micros",
            )
            .bind(&session.as_bytes()[..])
            .bind(agent)
            .bind(number(*total))
            .execute(&mut *transaction)
            .await?;
        }
        if let Some(last) = used.days.iter().map(|(day, ..)| *day).max() {
            sqlx::query("DELETE FROM usage WHERE day < ?")
                .bind(last - KEPT_DAYS)
                .execute(&mut *transaction)
                .await?;
        }
        Ok(transaction.commit().await?)
    }

    pub(super) async fn save_usage(&mut self, limits: &Limits) -> bool {
        let used = limits.take_changed();
        if used == Unsaved::default() {
            return true;
        }
        match self.write_usage(&used).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "what was used cannot be saved; trying again");
                limits.not_saved(&used);
                false
            }
        }
    }
}

/// As far as the file can count.
fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_used_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.sqlite");
        let mut store = Store::open(&file).await.unwrap();
        let sums = Used { prompts: 1, tokens: 2, cost_micros: u64::MAX };
        let (ann, web) = (Party::User("ann".into()), Party::Team("web".into()));
        let cost = ((Uuid::from_u128(7), "claude".to_owned()), 9);
        let long_ago = Unsaved { days: vec![(7, ann.clone(), sums)], sums: vec![cost.clone()] };
        store.write_usage(&long_ago).await.unwrap();
        assert_eq!(store.usage().await.unwrap().days.len(), 1);
        let today = Unsaved { days: vec![(20_000, ann, sums), (20_000, web, sums)], sums: Vec::new() };
        store.write_usage(&today).await.unwrap();
        store.write_usage(&today).await.unwrap();
        drop(store);
        let mut known = Store::open(&file).await.unwrap().usage().await.unwrap();
        known.days.sort_by(|one, other| one.1.cmp(&other.1));
        assert_eq!(known.days.len(), 2, "the long past is forgotten: {known:?}");
        assert_eq!(known.days[0].2.cost_micros, i64::MAX.cast_unsigned());
        assert_eq!(known.sums, [cost]);
    }

    #[tokio::test]
    async fn what_a_session_has_cost_goes_to_the_agent_it_is_with() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.sqlite");
        let mut store = Store::open(&file).await.unwrap();
        let before = super::super::STEPS.iter().position(|step| *step == BY_AGENT).unwrap();
        let older = format!(
            "DROP TABLE agent_costs; CREATE TABLE session_costs (session BLOB PRIMARY KEY, total_micros INTEGER); \
             INSERT INTO session_costs VALUES (x'{0:032x}', 9), (x'{1:032x}', 8); \
             INSERT INTO sessions (id, owner, agent, cwd, agent_session, created_us, updated_us, state, deleted, seq) \
             VALUES (x'{0:032x}', 'ann', 'codex', x'', x'', 0, 0, 'live', 0, 0); PRAGMA user_version = {before}",
            7, 8
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(older)).execute(&mut store.connection).await.unwrap();
        drop(store);
        let known = Store::open(&file).await.unwrap().usage().await.unwrap();
        assert_eq!(known.sums, [((Uuid::from_u128(7), "codex".to_owned()), 9)]);
    }
}
