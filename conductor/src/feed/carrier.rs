//! Carries events to where `[feed]` says, for as long as the service runs: each at least
//! once, in order. How far it is stands in a file of the state directory, written when the
//! events before have arrived; what is told twice after a crash has the same uid.
//!
//! Whoever does not take events only makes the feed late. Nothing waits for it: neither the
//! relay nor the ledger; the journal frees what is old, as ever, and what was lost by that is
//! told as a gap.

use std::{
    collections::VecDeque,
    fs,
    hash::{BuildHasher as _, RandomState},
    io,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, json};
use tokio::{
    select,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    cursor::Cursor,
    event::{Event, Kind},
    reader::{FeedError, Reader, Start, Thing, What},
    target::{Target, Undelivered},
};
use crate::{
    config::{self, Config},
    journal::Journal,
    ledger::history::History,
    metrics::{Branch, Metrics, Part},
    record::{Stream, StreamKind, now_us},
    state::write_private,
    tasks::Tasks,
};

/// The file that says how far the feed is.
const FILE: &str = "feed-cursor";

/// The pause after the first failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Bytes at once, at most, unless one event has more.
const MOST_BYTES: usize = 1 << 20;

/// How far the feed may move without an event before its file says so.
const SAVE_EVERY: u64 = 4 << 20;

/// How long the last events may take when the service stops. The next start has the rest.
const STOPPING: Duration = Duration::from_secs(4);

/// What the feed works with.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Where events come from.
    pub journal: Journal,
    /// What the journal has freed of a stream's begin.
    pub history: History,
    /// Where they go.
    pub config: watch::Receiver<Arc<Config>>,
    /// Where the feed's file is.
    pub state: PathBuf,
    /// The name of this host.
    pub host: String,
    /// Where it is counted.
    pub metrics: Metrics,
}

/// A handle to the feed.
#[derive(Debug, Clone)]
pub struct Feed {
    stop: CancellationToken,
    tasks: Tasks,
}

impl Feed {
    /// Starts to carry. The task ends after all others, so it is none of theirs.
    pub fn start(sources: Sources) -> Self {
        let (stop, tasks) = (CancellationToken::new(), Tasks::counted(sources.metrics.clone()));
        let failing = sources.metrics.part(|counts| &counts.feed_failing);
        let carrier = Carrier { sources, stop: stop.clone(), failing, told: None };
        tasks.start("feed", carrier.run());
        Self { stop, tasks }
    }

    /// Carries over what is synced, if it is taken at once, and ends.
    pub async fn stop(&self) {
        self.stop.cancel();
        timeout(STOPPING, self.tasks.ended()).await.ok();
    }
}

struct Carrier {
    sources: Sources,
    stop: CancellationToken,
    failing: Part,
    /// The reason for failing that was told.
    told: Option<String>,
}

/// Why carrying ended.
#[derive(Debug, PartialEq, Eq)]
enum Over {
    Stopped,
    /// Events go elsewhere now.
    Changed,
}

impl Carrier {
    async fn run(mut self) {
        loop {
            let feed = self.sources.config.borrow_and_update().feed.clone();
            let over = match Target::new(&feed).filter(|_| !feed.to.is_empty()) {
                Some(target) => self.carry(&feed, target).await,
                None => self.changed(&feed).await,
            };
            if over == Over::Stopped {
                return;
            }
        }
    }

    /// Returns when `[feed]` has changed, or the service stops.
    async fn changed(&mut self, feed: &config::Feed) -> Over {
        loop {
            select! {
                changed = self.sources.config.changed() => {
                    if changed.is_err() {
                        self.stop.cancelled().await;
                        return Over::Stopped;
                    }
                    if self.sources.config.borrow_and_update().feed != *feed {
                        return Over::Changed;
                    }
                }
                () = self.stop.cancelled() => return Over::Stopped,
            }
        }
    }

    async fn carry(&mut self, feed: &config::Feed, mut target: Target) -> Over {
        info!(to = target.shown(), "audit events are told");
        let mut waiting: VecDeque<(Cursor, String)> = VecDeque::new();
        let mut reader = match self.reader(feed, &mut waiting).await {
            Ok(reader) => reader,
            Err(over) => return over,
        };
        let mut synced = self.sources.journal.synced();
        let (mut saved, mut most, mut pause) = (reader.cursor(), feed.batch, FIRST_PAUSE);
        loop {
            if waiting.is_empty() {
                synced.mark_unchanged();
                match reader.next().await {
                    Ok(page) => {
                        let line = |told: super::reader::Told<Thing>| match told.what {
                            Thing::Event(event) => Some((
                                told.cursor,
                                feed.format.line(&event, &told.cursor, &self.sources.host),
                            )),
                            Thing::Frame(_) => None,
                        };
                        waiting.extend(page.told.into_iter().filter_map(line));
                        if waiting.is_empty() && (moved(&saved, &page.cursor) || self.stop.is_cancelled()) {
                            self.save(&page.cursor).await;
                            saved = page.cursor;
                        }
                        if page.is_end && waiting.is_empty() {
                            match self.idle(feed, &mut synced).await {
                                Some(over) => return over,
                                None => continue,
                            }
                        }
                    }
                    Err(FeedError::Journal(why)) => {
                        self.tell(&target, &why);
                        if let Some(over) = self.pause(feed, &mut pause).await {
                            return over;
                        }
                    }
                    Err(lost) => match self.lost(&lost, feed, &mut waiting).await {
                        Ok(anew) => reader = anew,
                        Err(over) => return over,
                    },
                }
                continue;
            }
            let count = batch(&waiting, most);
            let lines: String =
                waiting.iter().take(count).flat_map(|(_, line)| [line.as_str(), "\n"]).collect();
            match target.deliver(lines).await {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    // It may have been a few long ones that were too much at once.
                    if count == most {
                        most = most.saturating_mul(2).min(feed.batch);
                    }
                    self.sources.metrics.feed_events.add(count as u64);
                    self.works(&target);
                    if let Some((cursor, _)) = waiting.drain(..count).next_back() {
                        self.save(&cursor).await;
                        saved = cursor;
                    }
                }
                Err(refused) => {
                    self.sources.metrics.feed_failures.one();
                    if matches!(refused, Undelivered::TooLarge(_)) && count > 1 {
                        most = count.div_ceil(2);
                        continue;
                    }
                    self.tell(&target, refused.why());
                    if let Some(over) = self.pause(feed, &mut pause).await {
                        return over;
                    }
                }
            }
        }
    }

    /// Waits until something was synced, and for others that come with it.
    async fn idle(
        &mut self,
        feed: &config::Feed,
        synced: &mut watch::Receiver<crate::journal::Position>,
    ) -> Option<Over> {
        if self.stop.is_cancelled() {
            return Some(Over::Stopped);
        }
        let stop = self.stop.clone();
        select! {
            changed = synced.changed() => if changed.is_err() {
                return Some(Over::Stopped);
            },
            over = self.changed(feed) => return (over == Over::Changed).then_some(over),
        }
        select! {
            () = sleep(feed.interval) => {}
            () = stop.cancelled() => {}
        }
        None
    }

    /// Waits after a failure. When the service stops there is no next attempt.
    async fn pause(&mut self, feed: &config::Feed, pause: &mut Duration) -> Option<Over> {
        let random = RandomState::new().hash_one(0_u8) % 1000;
        let now = pause.mul_f64(0.5 + random as f64 / 1000.0);
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        select! {
            () = sleep(now) => None,
            over = self.changed(feed) => Some(over),
        }
    }

    /// Goes on where the feed was, or begins.
    async fn reader(
        &mut self,
        feed: &config::Feed,
        waiting: &mut VecDeque<(Cursor, String)>,
    ) -> Result<Reader, Over> {
        let file = self.sources.state.join(FILE);
        let start = match fs::read_to_string(&file) {
            Ok(text) => match Cursor::parse(text.trim()) {
                Some(cursor) => Start::Behind(cursor),
                None => return self.lost(&FeedError::Unknown, feed, waiting).await,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Start::Oldest,
            Err(error) => {
                error!(%error, file = %file.display(), "the feed's file cannot be read");
                return self.lost(&FeedError::Unknown, feed, waiting).await;
            }
        };
        let mut pause = FIRST_PAUSE * 5;
        loop {
            match self.open(feed, start).await {
                Ok(reader) => return Ok(reader),
                Err(FeedError::Journal(why)) => {
                    warn!(why, "the feed cannot begin; this is tried again");
                    if let Some(over) = self.pause(feed, &mut pause).await {
                        return Err(over);
                    }
                }
                Err(lost) => return self.lost(&lost, feed, waiting).await,
            }
        }
    }

    async fn open(&self, feed: &config::Feed, start: Start) -> Result<Reader, FeedError> {
        let Sources { journal, history, .. } = &self.sources;
        Reader::new(journal.clone(), history.clone(), start, What::Events, feed.include_text).await
    }

    /// Says that something was lost, and goes on with what is there.
    async fn lost(
        &mut self,
        lost: &FeedError,
        feed: &config::Feed,
        waiting: &mut VecDeque<(Cursor, String)>,
    ) -> Result<Reader, Over> {
        self.sources.metrics.best_effort(Branch::FeedLost);
        let reason = match lost {
            FeedError::Freed { .. } => {
                "the journal has freed what was not told in time (journal.keep); the ledger has it"
            }
            FeedError::Other { .. } => "the journal is another one than before",
            FeedError::Unknown | FeedError::Journal(_) => {
                "how far the feed was is not known any more; what the journal has is told again"
            }
        };
        error!(reason, "audit events were lost on their way to others, or come twice");
        let mut pause = FIRST_PAUSE;
        let reader = loop {
            // The oldest that there is can only be refused if it is freed this very moment.
            if let Ok(reader) = self.open(feed, Start::Oldest).await {
                break reader;
            }
            if let Some(over) = self.pause(feed, &mut pause).await {
                return Err(over);
            }
        };
        let cursor = reader.cursor();
        let mut details = Map::new();
        details.insert("reason".into(), json!(reason));
        details.insert("goes_on".into(), json!(cursor.to_string()));
        let event = Event {
            kind: Kind::FeedGap,
            at_us: now_us(),
            stream: Stream { id: self.sources.journal.id(), kind: StreamKind::Process },
            seq: cursor.at.segment,
            item: 0,
            session: None,
            user: None,
            by: None,
            team: None,
            agent: None,
            details,
        };
        waiting.push_back((cursor, feed.format.line(&event, &cursor, &self.sources.host)));
        Ok(reader)
    }

    async fn save(&self, cursor: &Cursor) {
        let (file, text) = (self.sources.state.join(FILE), cursor.to_string());
        let written =
            tokio::task::spawn_blocking(move || write_private(&file, &text).map_err(|e| e.to_string()));
        if let Ok(Err(why)) = written.await {
            warn!(why, "how far the feed is cannot be written; after a crash events come twice");
        }
    }

    /// Says once that events are not taken, and again only if the reason is another one.
    fn tell(&mut self, target: &Target, why: &str) {
        self.failing.set(1);
        if self.told.as_deref() != Some(why) {
            warn!(to = target.shown(), why, "audit events are not taken; they wait, and this is tried again");
            self.told = Some(why.to_owned());
        }
    }

    fn works(&mut self, target: &Target) {
        self.failing.set(0);
        if self.told.take().is_some() {
            info!(to = target.shown(), "audit events are taken again");
        }
    }
}

/// Whether the feed has moved so far that its file should say so.
fn moved(saved: &Cursor, now: &Cursor) -> bool {
    saved.at.segment != now.at.segment || now.at.offset.saturating_sub(saved.at.offset) > SAVE_EVERY
}

/// How many are handed over at once.
fn batch(waiting: &VecDeque<(Cursor, String)>, most: usize) -> usize {
    let mut bytes = 0;
    let fits = |(_, line): &&(Cursor, String)| {
        bytes += line.len() + 1;
        bytes <= MOST_BYTES
    };
    waiting.iter().take(most).take_while(fits).count().max(1).min(waiting.len())
}
