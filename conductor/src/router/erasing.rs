//! What the table of sessions forgets for good: sessions whose words are erased, and
//! sessions whose record was let go because it is old.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use uuid::Uuid;

use super::{Entry, Router};

/// A process that served one of them may take so long to end: its last words belong to the
/// record that is erased.
const LEAVING: Duration = Duration::from_secs(15);

impl Router {
    /// Hides sessions from everybody, so that nobody opens one any more; those that somebody
    /// has open stay, and are the answer. Waits until the processes that served them have
    /// ended.
    pub async fn withdraw(&self, ids: &[Uuid]) -> Vec<Uuid> {
        let (mut open, mut leaving) = (Vec::new(), Vec::new());
        for id in ids {
            let mut is_open = false;
            // Whether it is open and that it is hidden are one step.
            self.change(*id, |entry| {
                is_open = entry.live.is_some();
                entry.row.is_deleted |= !is_open;
                leaving.extend(entry.leaving.take().filter(|_| !is_open));
            });
            if is_open {
                open.push(*id);
            }
        }
        self.sharing.send_replace(());
        let ended = async {
            for mut process in leaving {
                process.wait().await;
            }
        };
        timeout(LEAVING, ended).await.ok();
        open
    }

    /// Takes everything out of the rows of sessions that were withdrawn but whose they were
    /// and when. How many there were.
    pub fn erase(&self, ids: &[Uuid]) -> usize {
        let known = ids.iter().filter(|id| self.lock().sessions.contains_key(id)).count();
        for id in ids {
            self.change(*id, blank);
        }
        self.lock().erased.extend(ids);
        // Also if none is known here: the file may have heard of one all the same.
        self.touch();
        known
    }

    /// Whether somebody has it open, or is about to.
    pub fn is_open(&self, id: Uuid) -> bool {
        self.lock().sessions.get(&id).is_some_and(|entry| entry.live.is_some())
    }

    fn touch(&self) {
        let mut table = self.lock();
        table.version += 1;
        let version = table.version;
        drop(table);
        self.publish(version);
    }

    /// Sessions of which the store has to erase every trace.
    pub fn take_erased(&self) -> Vec<Uuid> {
        std::mem::take(&mut self.lock().erased)
    }

    /// That did not work.
    pub fn not_erased(&self, ids: &[Uuid]) {
        self.lock().erased.extend(ids);
    }
}

fn blank(entry: &mut Entry) {
    let row = &mut entry.row;
    row.is_deleted = true;
    row.title = None;
    row.cwd = std::path::PathBuf::new();
    row.agent_session = Bytes::new();
    row.bound = Vec::new();
    entry.shares.clear();
}
