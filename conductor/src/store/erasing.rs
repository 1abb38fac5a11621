//! Taking sessions out of the store for good: their rows keep whose they were and when,
//! and nothing of them is left anywhere in the file or in its log.

use std::collections::HashSet;

use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use super::{Store, StoreError};
use crate::{approvals::Approval, router::Router};

impl Store {
    /// Erases sessions: what they are about and where, what people were asked in them, and
    /// what was granted for them alone.
    pub async fn erase(&mut self, sessions: &[Uuid]) -> Result<(), StoreError> {
        let erased: HashSet<_> = sessions.iter().copied().collect();
        let mut transaction = self.connection.begin().await?;
        for id in sessions {
            sqlx::query(
                "UPDATE sessions SET title = NULL, cwd = x'', agent_session = x'', bound = '[]', deleted = 1 \
                 WHERE id = ?",
            )
            .bind(&id.as_bytes()[..])
            .execute(&mut *transaction)
            .await?;
            sqlx::query("DELETE FROM shares WHERE session = ?")
                .bind(&id.as_bytes()[..])
                .execute(&mut *transaction)
                .await?;
            sqlx::query("DELETE FROM grants WHERE scope = 'session' AND scope_name = ?")
                .bind(id.to_string())
                .execute(&mut *transaction)
                .await?;
        }
        // Which session a question belongs to stands in the question.
        let asked = sqlx::query("SELECT id, approval FROM approvals").fetch_all(&mut *transaction).await?;
        for row in asked {
            let (id, approval): (Vec<u8>, String) = (row.try_get(0)?, row.try_get(1)?);
            let session = serde_json::from_str::<Approval>(&approval).map(|approval| approval.session);
            if session.is_ok_and(|session| erased.contains(&session)) {
                sqlx::query("DELETE FROM approvals WHERE id = ?").bind(id).execute(&mut *transaction).await?;
            }
        }
        transaction.commit().await?;
        // What rows leave behind when they change stands in the file's free room and in its log.
        // The file is small enough to be written anew.
        sqlx::raw_sql("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut self.connection).await?;
        Ok(())
    }

    pub(super) async fn save_erased(&mut self, router: &Router) -> bool {
        let sessions = router.take_erased();
        if sessions.is_empty() {
            return true;
        }
        match self.erase(&sessions).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "sessions cannot be erased from the file of the sessions; trying again");
                router.not_erased(&sessions);
                false
            }
        }
    }
}
