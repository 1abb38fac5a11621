//! The one place that starts tasks: each is tracked until its end, its panic
//! is seen, and shutdown can wait for all of them.

use std::{future::Future, panic::AssertUnwindSafe};

use futures_util::FutureExt as _;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, Span, error};

use crate::metrics::Metrics;

/// Starts tasks and waits for them. Clones share the same set.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    metrics: Metrics,
}

impl Tasks {
    /// Panics are counted here.
    pub fn counted(metrics: Metrics) -> Self {
        Self { tracker: TaskTracker::new(), metrics }
    }

    /// Starts a task in the span that is current. A panic ends that task alone and is logged;
    /// whoever holds the other end of its queues sees them close.
    pub fn start(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.start_in(Span::current(), name, task);
    }

    /// The same in a span of the task's own, which knows the spans it is in. To come into a span
    /// and to leave it, each time that a task goes on, costs as much as many a step of a task.
    #[allow(clippy::disallowed_methods, reason = "this is the one place that starts tasks")]
    pub fn start_in(&self, span: Span, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        // Combinators, because an async block would hold the task twice: as
        // what it captured, and as what it waits for.
        let metrics = self.metrics.clone();
        let seen = AssertUnwindSafe(task).catch_unwind().map(move |ended| {
            if let Err(panic) = ended {
                metrics.panics.one();
                let text = panic
                    .downcast_ref::<&str>()
                    .map(ToString::to_string)
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_default();
                error!(task = name, panic = text, "a task panicked; what it served has ended");
            }
        });
        tokio::spawn(self.tracker.track_future(seen.instrument(span)));
    }

    /// Waits until every task has ended.
    pub async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Where panics are counted, and whatever else tasks have to count.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How many are running.
    pub fn running(&self) -> usize {
        self.tracker.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[allow(clippy::panic, reason = "the panic is what is tested")]
    async fn a_panic_ends_only_its_own_task() {
        let metrics = Metrics::default();
        let tasks = Tasks::counted(metrics.clone());
        let (tx, rx) = tokio::sync::oneshot::channel();
        tasks.start("bad", async { panic!("on purpose") });
        tasks.start("good", async move { tx.send(7).unwrap_or_default() });
        assert_eq!(rx.await, Ok(7));
        tasks.ended().await;
        assert_eq!((tasks.running(), metrics.panics.get()), (0, 1));
    }
}
