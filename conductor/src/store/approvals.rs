//! Questions about permission, in the store: so that whoever answers after a restart is
//! told what became of them.

use std::sync::Arc;

use sqlx::{Connection as _, Row as _};

use super::{Store, StoreError};
use crate::approvals::{Approval, Approvals, Entry, MOST_ENDED};

/// Adds the table.
pub(super) const STEP: &str = "CREATE TABLE approvals (
    id BLOB PRIMARY KEY,
    asked_us INTEGER NOT NULL,
    approval TEXT NOT NULL,         -- the question, as JSON
    outcome TEXT                    -- what became of it, as JSON; null while it is open
) STRICT, WITHOUT ROWID";

impl Store {
    /// The last ones, the oldest first. What cannot be read any more is passed over.
    pub async fn approvals(&mut self) -> Result<Vec<Entry>, StoreError> {
        let rows =
            sqlx::query("SELECT approval, outcome FROM approvals ORDER BY asked_us DESC, id DESC LIMIT ?")
                .bind(i64::try_from(MOST_ENDED).unwrap_or(i64::MAX))
                .fetch_all(&mut self.connection)
                .await?;
        let mut entries = Vec::new();
        for row in rows {
            let (approval, outcome): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
            let outcome = outcome.map(|outcome| serde_json::from_str(&outcome)).transpose();
            if let (Ok(approval), Ok(outcome)) = (serde_json::from_str(&approval), outcome) {
                entries.push(Entry { approval: Arc::new(approval), outcome });
            }
        }
        entries.reverse();
        Ok(entries)
    }

    /// Writes some as they are now, all or none, and forgets what is long past.
    pub async fn write_approvals(&mut self, entries: &[Entry]) -> Result<(), StoreError> {
        let mut transaction = self.connection.begin().await?;
        for Entry { approval, outcome } in entries {
            // What would be written is in the journal, and may be much.
            let kept = Approval { diffs: Vec::new(), ..Approval::clone(approval) };
            let outcome = outcome.as_ref().map(serde_json::to_string).transpose().map_err(encode)?;
            sqlx::query(
                "INSERT INTO approvals (id, asked_us, approval, outcome) VALUES (?, ?, ?, ?) \
                 ON CONFLICT (id) DO UPDATE SET approval = excluded.approval, outcome = excluded.outcome",
            )
            .bind(&approval.id.as_bytes()[..])
            .bind(approval.asked_us)
            .bind(serde_json::to_string(&kept).map_err(encode)?)
            .bind(outcome)
            .execute(&mut *transaction)
            .await?;
        }
        sqlx::query(
            "DELETE FROM approvals WHERE outcome IS NOT NULL AND id NOT IN \
             (SELECT id FROM approvals ORDER BY asked_us DESC, id DESC LIMIT ?)",
        )
        .bind(i64::try_from(MOST_ENDED).unwrap_or(i64::MAX))
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }

    pub(super) async fn save_approvals(&mut self, approvals: &Approvals) -> bool {
        let changed = approvals.take_changed();
        if changed.is_empty() {
            return true;
        }
        match self.write_approvals(&changed).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "the approvals cannot be saved; trying again");
                approvals.not_saved(&changed);
                false
            }
        }
    }
}

fn encode(error: serde_json::Error) -> sqlx::Error {
    sqlx::Error::Encode(error.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::approvals::{How, Outcome, tests::example};

    #[tokio::test]
    async fn what_was_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(&dir.path().join("store.sqlite")).await.unwrap();
        let open = Entry { approval: Arc::new(example("ann")), outcome: None };
        store.write_approvals(std::slice::from_ref(&open)).await.unwrap();
        assert_eq!(store.approvals().await.unwrap(), std::slice::from_ref(&open));
        let outcome = Some(Outcome::new(How::Rejected, Some("lea".into()), "no"));
        let ended = Entry { outcome, ..open };
        store.write_approvals(std::slice::from_ref(&ended)).await.unwrap();
        assert_eq!(store.approvals().await.unwrap(), [ended]);
    }
}
