//! What remains of a session whose task panics.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::SessionEvent;
use crate::router::Router;

/// Should a session's task panic, nobody must wait for it: the session can be
/// opened again, and its editor's connection ends, so that its requests are
/// answered.
pub(super) struct Farewell {
    pub(super) is_said: bool,
    pub(super) session: Uuid,
    pub(super) router: Router,
    pub(super) over: CancellationToken,
    pub(super) events: mpsc::Sender<SessionEvent>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        if !self.is_said {
            self.router.broken(self.session);
            self.over.cancel();
            // The connection takes these first, so there is room.
            self.events.try_send(SessionEvent::Broken).ok();
        }
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "the panic is what is tested")]
mod tests {
    use std::{
        collections::HashMap,
        time::{Duration, SystemTime},
    };

    use super::*;
    use crate::{limits::Limits, store::Row, tasks::Tasks};

    /// The session's own code offers no way to make it panic; what it would leave
    /// behind does.
    #[tokio::test]
    async fn c08_a_session_that_breaks_down_leaves_nobody_waiting() {
        let now = SystemTime::now();
        let row = Row {
            owner: "someone".into(),
            agent: "demo".into(),
            cwd: "/".into(),
            agent_session: Default::default(),
            bound: Vec::new(),
            title: None,
            created: now,
            updated: now,
            is_live: true,
            is_deleted: false,
            seq: 0,
        };
        let session = Uuid::now_v7();
        let router = Router::new(HashMap::from([(session, row)]), Vec::new(), Limits::default());
        let (events, mut told) = mpsc::channel(1);
        let over = CancellationToken::new();
        assert!(router.begin_turn(session));
        let tasks = Tasks::default();
        let farewell =
            Farewell { is_said: false, session, router: router.clone(), over: over.clone(), events };
        tasks.start("session", async move {
            let _farewell = farewell;
            panic!("on purpose");
        });
        assert_eq!(told.recv().await, Some(SessionEvent::Broken));
        over.cancelled().await;
        // The service need not wait for its turn when it stops.
        let stopping = tokio::time::timeout(Duration::from_secs(10), router.last_turns()).await;
        assert!(stopping.is_ok());
        tasks.ended().await;
    }
}
