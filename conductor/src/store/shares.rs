//! Shares in the store: with whom sessions are shared.

use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

use super::{Store, StoreError, micros, moment};
use crate::{
    identity::Party,
    router::{Access, Share},
};

/// Adds the table.
pub(super) const STEP: &str = "CREATE TABLE shares (
    session BLOB NOT NULL,
    party TEXT NOT NULL CHECK (party IN ('user', 'team')),
    name TEXT NOT NULL,
    access TEXT NOT NULL CHECK (access IN ('driver', 'observer')),
    by TEXT NOT NULL,               -- who shared it
    since_us INTEGER NOT NULL,
    PRIMARY KEY (session, party, name)
) STRICT, WITHOUT ROWID";

impl Store {
    /// Every share of every session.
    pub async fn shares(&mut self) -> Result<Vec<(Uuid, Share)>, StoreError> {
        let rows =
            sqlx::query("SELECT session, party, name, access, by, since_us FROM shares ORDER BY since_us")
                .fetch_all(&mut self.connection)
                .await?;
        rows.iter().map(|row| Ok(share(row)?)).collect()
    }
}

/// Writes all shares of some sessions as they are now.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    sessions: &[(Uuid, Vec<Share>)],
) -> Result<(), sqlx::Error> {
    for (id, shares) in sessions {
        let id = &id.as_bytes()[..];
        sqlx::query("DELETE FROM shares WHERE session = ?").bind(id).execute(&mut *connection).await?;
        for share in shares {
            let (party, name) = match &share.with {
                Party::User(name) => ("user", name),
                Party::Team(name) => ("team", name),
            };
            sqlx::query(
                "INSERT INTO shares (session, party, name, access, by, since_us) VALUES (?, ?, ?, ?, ?, ?)",
            )
            .bind(id)
            .bind(party)
            .bind(name)
            .bind(share.access.name())
            .bind(&share.by)
            .bind(micros(share.since))
            .execute(&mut *connection)
            .await?;
        }
    }
    Ok(())
}

fn share(row: &SqliteRow) -> Result<(Uuid, Share), sqlx::Error> {
    let id: Vec<u8> = row.try_get(0)?;
    let id = Uuid::from_slice(&id).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let name = row.try_get(2)?;
    let with = if row.try_get::<String, _>(1)? == "team" { Party::Team(name) } else { Party::User(name) };
    let access = Access::shared_as(&row.try_get::<String, _>(3)?)
        .ok_or_else(|| sqlx::Error::Decode("a share is a driver's or an observer's".into()))?;
    Ok((id, Share { with, access, by: row.try_get(4)?, since: moment(row.try_get(5)?) }))
}
