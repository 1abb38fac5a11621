//! What the agents offer, in the store.

use std::{path::Path, sync::Arc, time::SystemTime};

use sqlx::{
    ConnectOptions as _, Connection as _, Row as _,
    sqlite::{SqliteConnectOptions, SqliteRow},
};
use tokio::sync::watch;

use super::{BUSY, Store, StoreError, micros};
use crate::catalogue::{Catalogue, Offer, Offers, Stamps};

/// Adds the table.
pub(super) const STEP: &str = "CREATE TABLE catalogue (
    agent TEXT PRIMARY KEY,
    stamp TEXT NOT NULL,            -- what the agent was when it was asked; empty if it was not
    offer TEXT NOT NULL,            -- JSON: version, models, model, modes, problem
    learned_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID";

/// The first version of the file that has the table.
const SINCE: i64 = 4;

const READ: &str = "SELECT agent, stamp, offer FROM catalogue";

/// What of the catalogue is not in the file yet.
#[derive(Debug)]
pub struct Unsaved {
    offers: watch::Receiver<Arc<Offers>>,
    stamps: watch::Receiver<Arc<Stamps>>,
    saved: (Arc<Offers>, Arc<Stamps>),
}

impl Unsaved {
    /// What changes from now on.
    pub fn of(catalogue: &Catalogue) -> Self {
        let (mut offers, mut stamps) = (catalogue.changes(), catalogue.stamps());
        let saved = (offers.borrow_and_update().clone(), stamps.borrow_and_update().clone());
        Self { offers, stamps, saved }
    }

    /// Waits for a change. For ever, if nobody is left who could make one.
    pub(super) async fn changed(&mut self) {
        let changed = tokio::select! {
            changed = self.offers.changed() => changed,
            changed = self.stamps.changed() => changed,
        };
        if changed.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What is now, and of which agents that is new.
    fn take(&mut self) -> ((Arc<Offers>, Arc<Stamps>), Vec<String>) {
        let now = (self.offers.borrow_and_update().clone(), self.stamps.borrow_and_update().clone());
        let (offers, stamps) = &self.saved;
        let is_new = |agent: &&String| {
            offers.get(*agent) != now.0.get(*agent) || stamps.get(*agent) != now.1.get(*agent)
        };
        let new = now.0.keys().filter(is_new).cloned().collect();
        (now, new)
    }
}

/// What is known, read from the file of a service that may run or not; nothing
/// is changed.
pub async fn read(file: &Path) -> Result<Offers, StoreError> {
    let options = SqliteConnectOptions::new().filename(file).read_only(true).busy_timeout(BUSY);
    let mut connection = options.disable_statement_logging().connect().await?;
    let version: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut connection).await?;
    let mut offers = Offers::new();
    if version >= SINCE {
        let rows = sqlx::query(READ).fetch_all(&mut connection).await?;
        offers = rows
            .iter()
            .map(known)
            .map(|row| row.map(|(agent, _, offer)| (agent, offer)))
            .collect::<Result<_, _>>()?;
    }
    connection.close().await?;
    Ok(offers)
}

impl Store {
    /// What is known of the agents. One that could not be asked has no stamp, so
    /// that it is asked again.
    pub async fn catalogue(&mut self) -> Result<(Offers, Stamps), StoreError> {
        let rows = sqlx::query(READ).fetch_all(&mut self.connection).await?;
        let (mut offers, mut stamps) = (Offers::new(), Stamps::new());
        for row in &rows {
            let (agent, stamp, offer) = known(row)?;
            if offer.problem.is_none() && !stamp.is_empty() {
                stamps.insert(agent.clone(), stamp);
            }
            offers.insert(agent, offer);
        }
        Ok((offers, stamps))
    }

    pub(super) async fn save_catalogue(&mut self, unsaved: &mut Unsaved) -> bool {
        let (now, new) = unsaved.take();
        match self.write_catalogue(&now.0, &now.1, &new).await {
            Ok(()) => {
                unsaved.saved = now;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "what the agents offer cannot be saved; trying again");
                unsaved.offers.mark_changed();
                false
            }
        }
    }

    async fn write_catalogue(
        &mut self,
        offers: &Offers,
        stamps: &Stamps,
        agents: &[String],
    ) -> Result<(), StoreError> {
        if agents.is_empty() {
            return Ok(());
        }
        let mut transaction = self.connection.begin().await?;
        for (agent, offer) in agents.iter().filter_map(|agent| offers.get_key_value(agent)) {
            let offer = serde_json::to_string(offer).map_err(|error| sqlx::Error::Encode(error.into()))?;
            sqlx::query(
                "INSERT INTO catalogue (agent, stamp, offer, learned_us) VALUES (?, ?, ?, ?) \
                 ON CONFLICT (agent) DO UPDATE SET stamp = excluded.stamp, offer = excluded.offer, \
                 learned_us = excluded.learned_us",
            )
            .bind(agent)
            .bind(stamps.get(agent).map(String::as_str).unwrap_or_default())
            .bind(offer)
            .bind(micros(SystemTime::now()))
            .execute(&mut *transaction)
            .await?;
        }
        Ok(transaction.commit().await?)
    }
}

fn known(row: &SqliteRow) -> Result<(String, String, Offer), sqlx::Error> {
    let offer: String = row.try_get(2)?;
    let offer = serde_json::from_str(&offer).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok((row.try_get(0)?, row.try_get(1)?, offer))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::options::Choice;

    #[tokio::test]
    async fn what_agents_offer_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.sqlite");
        assert!(read(&file).await.is_err());
        let mut store = Store::open(&file).await.unwrap();
        let (offers, stamps) = store.catalogue().await.unwrap();
        let catalogue = Catalogue::new(offers, stamps);
        let mut unsaved = Unsaved::of(&catalogue);
        let model = Choice { value: "a/b".into(), name: "A".into(), description: None };
        let offer = Offer { version: "1".into(), models: vec![model], ..Offer::default() };
        catalogue.asked("one", "now".into(), Ok(offer.clone()));
        catalogue.asked("two", "now".into(), Err("it wants a login".into()));
        catalogue.learn("three", offer.clone());
        unsaved.changed().await;
        assert!(store.save_catalogue(&mut unsaved).await);
        assert_eq!(unsaved.take().1, Vec::<String>::new());
        // Others may look while the service has it open.
        assert_eq!(read(&file).await.unwrap()["one"], offer);
        drop(store);
        let (offers, stamps) = Store::open(&file).await.unwrap().catalogue().await.unwrap();
        assert_eq!(offers, *catalogue.offers());
        assert_eq!(stamps.keys().collect::<Vec<_>>(), ["one"]);
        assert_eq!(read(&file).await.unwrap().len(), 3);
    }
}
