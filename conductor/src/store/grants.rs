//! Grants in the store.

use std::sync::Arc;

use sqlx::{Connection as _, Row as _, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

use super::{Store, StoreError, micros, moment};
use crate::{
    grants::{Book, Change, Grant, Scope},
    identity::{Caller, Role},
};

/// Adds the table. Teams and roles are lists with commas, which no name has.
pub(super) const STEP: &str = "CREATE TABLE grants (
    id BLOB PRIMARY KEY,
    scope TEXT NOT NULL CHECK (scope IN ('session', 'root', 'user', 'team')),
    scope_name TEXT NOT NULL,       -- which session, directory, user or team
    parts TEXT NOT NULL,            -- what is allowed, as JSON
    by TEXT NOT NULL,               -- who gave it
    teams TEXT NOT NULL,            -- their teams, but for those that they have lost since
    roles TEXT NOT NULL,            -- their roles, likewise
    reason TEXT NOT NULL,
    given_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    most_uses INTEGER,              -- null: any number of times
    uses INTEGER NOT NULL
) STRICT, WITHOUT ROWID";

impl Store {
    /// Every grant that holds, and how often it was used as far as this file has heard. One
    /// that cannot be read allows nothing.
    pub async fn grants(&mut self) -> Result<Vec<(Grant, u64)>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, scope, scope_name, parts, by, teams, roles, reason, given_us, expires_us, most_uses, uses \
             FROM grants",
        )
        .fetch_all(&mut self.connection)
        .await?;
        let grants = rows.iter().filter_map(|row| match grant(row) {
            Ok(grant) => Some(grant),
            Err(error) => {
                tracing::warn!(%error, "a grant in the store cannot be read and is passed over");
                None
            }
        });
        Ok(grants.collect())
    }

    /// Writes grants as they are now, all or none, onto the disk: nothing else tells that one
    /// was revoked.
    pub async fn write_grants(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.synced(true).await?;
        let mut transaction = self.connection.begin().await?;
        write(&mut transaction, changes).await?;
        transaction.commit().await?;
        self.synced(false).await
    }

    pub(super) async fn save_grants(&mut self, grants: &Book) -> bool {
        let (changes, version) = grants.take_changed();
        if changes.is_empty() {
            return true;
        }
        match self.write_grants(&changes).await {
            Ok(()) => {
                grants.saved(version);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the grants cannot be saved; trying again");
                grants.not_saved(&changes);
                false
            }
        }
    }
}

async fn write(connection: &mut SqliteConnection, changes: &[Change]) -> Result<(), sqlx::Error> {
    for change in changes {
        match change {
            Change::Kept(grant, uses) => put(connection, grant, *uses).await?,
            Change::Gone(id) => {
                sqlx::query("DELETE FROM grants WHERE id = ?")
                    .bind(&id.as_bytes()[..])
                    .execute(&mut *connection)
                    .await?;
            }
        }
    }
    Ok(())
}

async fn put(connection: &mut SqliteConnection, grant: &Arc<Grant>, uses: u64) -> Result<(), sqlx::Error> {
    let (scope, name) = grant.scope.parts();
    let parts = serde_json::to_string(&grant.parts).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let roles: Vec<_> = grant.by.roles.iter().map(|role| role.name()).collect();
    sqlx::query(
        "INSERT INTO grants (id, scope, scope_name, parts, by, teams, roles, reason, given_us, expires_us, most_uses, \
         uses) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
         ON CONFLICT (id) DO UPDATE SET teams = excluded.teams, roles = excluded.roles, \
         uses = max(uses, excluded.uses)",
    )
    .bind(&grant.id.as_bytes()[..])
    .bind(scope)
    .bind(name)
    .bind(parts)
    .bind(&grant.by.user)
    .bind(grant.by.teams.join(","))
    .bind(roles.join(","))
    .bind(&grant.reason)
    .bind(micros(grant.given))
    .bind(micros(grant.expires))
    .bind(grant.most_uses.map(u64::cast_signed))
    .bind(uses.cast_signed())
    .execute(connection)
    .await?;
    Ok(())
}

fn grant(row: &SqliteRow) -> Result<(Grant, u64), sqlx::Error> {
    let wrong = |error: Box<dyn std::error::Error + Send + Sync>| sqlx::Error::Decode(error);
    let id: Vec<u8> = row.try_get(0)?;
    let (scope, name): (String, String) = (row.try_get(1)?, row.try_get(2)?);
    let (teams, roles): (String, String) = (row.try_get(5)?, row.try_get(6)?);
    let list = |text: &str| -> Vec<String> {
        text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    let grant = Grant {
        id: Uuid::from_slice(&id).map_err(|error| wrong(error.into()))?,
        scope: Scope::from_parts(&scope, &name).ok_or_else(|| wrong("there is no such scope".into()))?,
        parts: serde_json::from_str(row.try_get(3)?).map_err(|error| wrong(error.into()))?,
        by: Caller {
            user: row.try_get(4)?,
            teams: list(&teams),
            // A role that a later version gave counts for nothing here.
            roles: list(&roles).iter().filter_map(|name| Role::from_name(name)).collect(),
        },
        reason: row.try_get(7)?,
        given: moment(row.try_get(8)?),
        expires: moment(row.try_get(9)?),
        most_uses: row.try_get::<Option<i64>, _>(10)?.map(i64::cast_unsigned),
    };
    Ok((grant, row.try_get::<i64, _>(11)?.cast_unsigned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::{
        grants::{Access, Part},
        policy::{SubAction, urls},
    };

    fn example() -> Grant {
        Grant {
            id: Uuid::now_v7(),
            scope: Scope::Root("/srv/\u{e9}".into()),
            parts: vec![
                Part::Exactly(SubAction::Fetch(urls::fact("https://example.org/a?b=c"))),
                Part::Beneath { access: Access::Write, directory: "/srv/a".into() },
            ],
            by: Caller { user: "ann".into(), teams: vec!["web".into()], roles: vec![Role::Approver] },
            reason: "while the tests are repaired".into(),
            given: moment(1_700_000_000_000_001),
            expires: moment(4_000_000_000_000_002),
            most_uses: Some(7),
        }
    }

    #[tokio::test]
    async fn what_was_written_is_read_again_and_uses_only_grow() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.sqlite");
        let mut store = Store::open(&file).await.unwrap();
        let (kept, gone) = (Arc::new(example()), Arc::new(example()));
        let uses = |uses| Change::Kept(kept.clone(), uses);
        store.write_grants(&[uses(3), Change::Kept(gone.clone(), 0)]).await.unwrap();
        store.write_grants(&[uses(2), Change::Gone(gone.id)]).await.unwrap();
        drop(store);
        let mut store = Store::open(&file).await.unwrap();
        assert_eq!(store.grants().await.unwrap(), [((*kept).clone(), 3)]);
    }

    #[tokio::test]
    async fn a_grant_that_cannot_be_read_allows_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(&dir.path().join("store.sqlite")).await.unwrap();
        store.write_grants(&[Change::Kept(Arc::new(example()), 0)]).await.unwrap();
        sqlx::query("UPDATE grants SET parts = '[{\"everything\":1}]'")
            .execute(&mut store.connection)
            .await
            .unwrap();
        assert_eq!(store.grants().await.unwrap(), []);
    }
}
