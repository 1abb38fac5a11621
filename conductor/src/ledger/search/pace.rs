//! When the index is filled: soon after something was written, but not with
//! each chunk of a message that is still growing, since all of its words are
//! written again; and now and then, because others may have left something to do.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// So long after something was written.
const SOON: Duration = Duration::from_millis(300);

/// With batch after batch to write, a step is made so often.
const LATE: Duration = Duration::from_secs(2);

/// So often when nothing was written, and after a failure.
const NOW_AND_THEN: Duration = Duration::from_secs(10);
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// When to make the next step.
#[derive(Debug)]
pub struct Pace {
    next: Instant,
    /// Something was written, or left over, since it was last up to date.
    is_behind: bool,
}

impl Default for Pace {
    /// At once: what was left over at the last end is to be found.
    fn default() -> Self {
        Self { next: Instant::now(), is_behind: true }
    }
}

impl Pace {
    /// Whether a step is due.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Whether one is so late that it must not wait for a pause.
    pub fn is_late(&self) -> bool {
        self.is_behind && Instant::now() >= self.next + LATE
    }

    /// Whether there may be something to do.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Waits until a step is due.
    pub async fn next(&self) {
        sleep_until(self.next).await;
    }

    /// Something was written.
    pub fn has_news(&mut self) {
        if !self.is_behind {
            self.next = Instant::now() + SOON;
        }
        self.is_behind = true;
    }

    /// A step was made, after which there may be more to do.
    pub fn did(&mut self, more: bool) {
        self.is_behind = more;
        self.next = Instant::now() + if more { Duration::ZERO } else { NOW_AND_THEN };
    }

    /// A step has failed. Nobody is to wait for the next.
    pub fn failed(&mut self) {
        self.is_behind = false;
        self.next = Instant::now() + AFTER_FAILURE;
    }
}
