//! API tokens in the store.

use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

use super::{Store, StoreError, micros, moment};
use crate::identity::{Caller, Role, tokens::Issued};

/// Adds the table. Teams and roles are lists with commas, which no name has.
pub(super) const STEP: &str = "CREATE TABLE tokens (
    id BLOB PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,      -- SHA-256; the token itself is nowhere
    user TEXT NOT NULL,
    teams TEXT NOT NULL,
    roles TEXT NOT NULL,
    by TEXT NOT NULL,               -- who made it
    created_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    revoked_us INTEGER
) STRICT, WITHOUT ROWID";

impl Store {
    /// Every token that was given out.
    pub async fn tokens(&mut self) -> Result<Vec<Issued>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, hash, user, teams, roles, by, created_us, expires_us, revoked_us FROM tokens",
        )
        .fetch_all(&mut self.connection)
        .await?;
        rows.iter().map(|row| Ok(token(row)?)).collect()
    }
}

/// Writes tokens as they are now.
pub(super) async fn write(connection: &mut SqliteConnection, tokens: &[Issued]) -> Result<(), sqlx::Error> {
    for issued in tokens {
        let roles: Vec<_> = issued.caller.roles.iter().map(|role| role.name()).collect();
        sqlx::query(
            "INSERT INTO tokens (id, hash, user, teams, roles, by, created_us, expires_us, revoked_us) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) \
             ON CONFLICT (id) DO UPDATE SET revoked_us = excluded.revoked_us",
        )
        .bind(&issued.id.as_bytes()[..])
        .bind(&issued.hash[..])
        .bind(&issued.caller.user)
        .bind(issued.caller.teams.join(","))
        .bind(roles.join(","))
        .bind(&issued.by)
        .bind(micros(issued.created))
        .bind(micros(issued.expires))
        .bind(issued.revoked.map(micros))
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

fn token(row: &SqliteRow) -> Result<Issued, sqlx::Error> {
    let (id, hash): (Vec<u8>, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?);
    let wrong = |error: Box<dyn std::error::Error + Send + Sync>| sqlx::Error::Decode(error);
    let (teams, roles): (String, String) = (row.try_get(3)?, row.try_get(4)?);
    let list = |text: &str| -> Vec<String> {
        text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    Ok(Issued {
        id: Uuid::from_slice(&id).map_err(|error| wrong(error.into()))?,
        hash: hash.try_into().map_err(|_| wrong("a hash has 32 bytes".into()))?,
        caller: Caller {
            user: row.try_get(2)?,
            teams: list(&teams),
            // A role that a later version gave counts for nothing here.
            roles: list(&roles).iter().filter_map(|name| Role::from_name(name)).collect(),
        },
        by: row.try_get(5)?,
        created: moment(row.try_get(6)?),
        expires: moment(row.try_get(7)?),
        revoked: row.try_get::<Option<i64>, _>(8)?.map(moment),
    })
}

/// Only as exact as the store is.
#[cfg(test)]
pub(super) fn example(revoked: Option<std::time::SystemTime>) -> Issued {
    Issued {
        id: Uuid::from_u128(7),
        hash: [7; 32],
        caller: Caller {
            user: "ann".into(),
            teams: vec!["web".into(), "core".into()],
            roles: vec![Role::Developer],
        },
        by: "root".into(),
        created: moment(1_700_000_000_000_001),
        expires: moment(1_800_000_000_000_002),
        revoked,
    }
}
