//! A session's way to a process, and where it stands in the line for one.

use std::{pin::Pin, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{Input, Session, binding::Reached};
use crate::acp::Refusal;

/// A position is shown for so long before the next one: a line that moves fast
/// needs no telling.
const SHOWN: Duration = Duration::from_secs(1);

/// On its way to a process, and a place at it.
pub(super) struct Reaching {
    way: Pin<Box<dyn Future<Output = Result<Reached, Refusal>> + Send>>,
    position: Option<Position>,
}

/// The position in the line, as far as it was shown.
struct Position {
    told: watch::Receiver<usize>,
    shown: usize,
    next: Instant,
}

/// What there is to tell of the way.
pub(super) enum News {
    /// It is over.
    Over(Result<Reached, Refusal>),
    /// The session stands here in the line, from 1.
    Position(usize),
}

impl Reaching {
    pub(super) fn new(way: impl Future<Output = Result<Reached, Refusal>> + Send + 'static) -> Self {
        Self { way: Box::pin(way), position: None }
    }

    /// Shows positions as they are told.
    pub(super) fn shown(self, told: watch::Receiver<usize>) -> Self {
        Self { position: Some(Position { told, shown: 0, next: Instant::now() }), ..self }
    }

    pub(super) async fn news(&mut self) -> News {
        tokio::select! {
            biased;
            reached = &mut self.way => News::Over(reached),
            position = moved(&mut self.position) => News::Position(position),
        }
    }
}

/// Waits for a position that is not shown yet.
async fn moved(position: &mut Option<Position>) -> usize {
    let Some(Position { told, shown, next }) = position else { return std::future::pending().await };
    sleep_until(*next).await;
    let is_news = |position: &usize| *position > 0 && position != shown;
    let Some(position) = told.wait_for(is_news).await.ok().map(|position| *position) else {
        return std::future::pending().await;
    };
    (*shown, *next) = (position, Instant::now() + SHOWN);
    position
}

impl Session {
    pub(super) fn hear_of_way(&mut self, news: News) {
        match news {
            News::Over(reached) => self.reached(reached),
            News::Position(position) => {
                let title = format!("Waiting for a process of agent `{}`: position {position}", self.agent());
                let text = "As many are in use as may be. It goes on when one is free.";
                self.say_notice("info", &title, text);
                self.commit(Input::Nothing);
            }
        }
    }
}
