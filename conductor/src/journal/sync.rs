//! The thread that syncs: once for all who wait, soon after the first byte, and
//! early when much has been written. It also repairs what a failed sync or a
//! full disk left, and clears away what is no longer needed.

use std::{
    collections::VecDeque,
    io, mem,
    path::{Path, PathBuf},
    sync::{MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    Recording, Shared,
    batch::Batch,
    disk::{Disk, replace, retried, set_aside, sync_directory, write_all},
    format::{Position, SEGMENT_HEADER, SegmentHead},
    heads,
    log::{Failure, Log, create},
};
use crate::record;

/// Most groups remembered in strict mode; more only release later.
const MARKS: usize = 4096;

/// The thread's whole life.
pub(super) fn run(shared: &Shared) {
    let mut log = shared.lock();
    // After a sync the thread looks once more by itself. What streams write meanwhile
    // need not wake it, and most of what follows an effect comes within that time.
    let mut look_again = None;
    loop {
        let now = Instant::now();
        if log.trouble.as_ref().is_some_and(|trouble| now >= trouble.retry_at) {
            mend(&mut log);
            shared.publish(&log);
        }
        log.note_change();
        if mem::take(&mut log.chores) {
            log = chores(shared, log);
            shared.publish(&log);
            continue;
        }
        match due(&log, now) {
            Due::Now => {
                log = sync(shared, log);
                look_again = Some(Instant::now() + log.settings.sync_delay);
            }
            Due::At(_) | Due::Idle if log.closing => break,
            Due::At(at) => log = wait(shared, log, Some(at)),
            Due::Idle => log = wait(shared, log, look_again.take_if(|at| *at > now)),
        }
    }
    log.closed = true;
    if let Some(current) = log.current.take() {
        let _ = log.disk.set_len(&current.file, log.end.offset);
    }
    if let Some(spare) = log.spare.take() {
        let _ = log.disk.remove(&spare.path);
    }
    if log.shipped != log.told_shipped {
        // Only for counting at the next start; the ledger knows it for sure.
        let _ = tell_shipped(&*log.disk, &log.dir, log.shipped);
    }
    shared.publish(&log);
}

enum Due {
    Now,
    At(Instant),
    Idle,
}

fn due(log: &Log, now: Instant) -> Due {
    let retry = log.trouble.as_ref().map(|trouble| trouble.retry_at);
    let broken = log.trouble.as_ref().is_some_and(|trouble| trouble.rewrite);
    if log.written == log.synced || broken {
        return retry.map_or(Due::Idle, Due::At);
    }
    let at = log.dirty_since.map_or(now, |since| since + log.settings.sync_delay);
    let urgent = log.wanted > log.synced || log.unsynced_bytes >= log.settings.sync_bytes || log.closing;
    if urgent || at <= now {
        return Due::Now;
    }
    Due::At(retry.map_or(at, |retry| retry.min(at)))
}

fn wait<'a>(shared: &'a Shared, mut log: MutexGuard<'a, Log>, until: Option<Instant>) -> MutexGuard<'a, Log> {
    log.idle = true;
    let soon = Instant::now() + log.settings.sync_delay;
    log.looks_again = until.is_some_and(|until| until <= soon);
    let mut log = match until {
        None => shared.wake.wait(log).unwrap_or_else(PoisonError::into_inner),
        Some(until) => {
            let time = until.saturating_duration_since(Instant::now()).max(Duration::from_micros(100));
            shared.wake.wait_timeout(log, time).unwrap_or_else(PoisonError::into_inner).0
        }
    };
    log.idle = false;
    log.looks_again = false;
    log
}

/// One sync for everything written so far. The lock is free meanwhile.
fn sync<'a>(shared: &'a Shared, log: MutexGuard<'a, Log>) -> MutexGuard<'a, Log> {
    let (target, end, files, disk) = (log.written, log.end, log.dirty.clone(), log.disk.clone());
    drop(log);
    let began = Instant::now();
    let done = files.iter().try_for_each(|open| {
        retried(|| disk.sync_data(&open.file)).map_err(|error| Failure::new("sync", &open.path, &error))
    });
    shared.figures.syncs.took(began.elapsed());
    let mut log = shared.lock();
    let mut freed = VecDeque::new();
    match done {
        Ok(()) => {
            freed = log.synced_to(target, end);
            let far = end.offset > log.settings.segment_bytes / 2;
            log.chores |= far && log.spare.is_none() && log.trouble.is_none();
        }
        Err(failure) => {
            shared.figures.sync_failures.one();
            log.abandon();
            log.fail(failure, true);
        }
    }
    shared.publish(&log);
    if freed.is_empty() {
        return log;
    }
    // It may be thousands of them, and nobody should wait for the allocator.
    drop(log);
    drop(freed);
    shared.lock()
}

impl Log {
    /// Notes what is on the medium; the batches are no longer needed.
    #[must_use]
    fn synced_to(&mut self, target: u64, end: Position) -> VecDeque<(u64, Batch)> {
        self.synced = target;
        self.synced_end = end;
        let done = self.unsynced.partition_point(|(number, _)| *number <= target);
        let later = self.unsynced.split_off(done);
        let freed = mem::replace(&mut self.unsynced, later);
        self.unsynced_bytes -= freed.iter().map(|(_, batch)| batch.len() as u64).sum::<u64>();
        self.dirty_since = (!self.unsynced.is_empty()).then(Instant::now);
        self.dirty.retain(|open| open.number >= end.segment);
        if self.settings.recording == Recording::Strict {
            if self.marks.len() == MARKS {
                self.marks.pop_back();
            }
            self.marks.push_back((end, target));
        }
        freed
    }

    /// Gives up all that is not synced: it must be written again elsewhere.
    fn abandon(&mut self) {
        let end = self.synced_end;
        let lost = self.segments.split_off(&(end.segment + 1));
        self.dead.extend(lost.into_values().map(|segment| segment.path));
        if let Some(segment) = self.segments.get_mut(&end.segment) {
            segment.end = end.offset;
        }
        self.index.cut(end);
        self.end = end;
        self.current = None;
        self.dirty.clear();
        self.count_unshipped();
    }

    /// Writes what is not synced into a new segment. Its head comes last, so
    /// that whoever is killed on the way finds what the old segments hold.
    fn rewrite(&mut self) -> Result<(), Failure> {
        let number = self.next_number;
        self.next_number += 1;
        let open = create(&*self.disk, &self.dir, number, 0)?;
        let disk = self.disk.clone();
        let mut at = Position { segment: number, offset: SEGMENT_HEADER };
        let head = SegmentHead { journal: self.id, number, after: self.end };
        let id = self.id;
        let mut write = || {
            for (_, batch) in &mut self.unsynced {
                batch.bind(id, at);
                write_all(&*disk, &open.file, batch.bytes(), at.offset)?;
                at.offset += batch.len() as u64;
            }
            retried(|| disk.sync_data(&open.file))?;
            write_all(&*disk, &open.file, &head.encode(), 0)?;
            retried(|| disk.sync_data(&open.file))
        };
        if let Err(error) = write() {
            let _ = disk.remove(&open.path);
            return Err(Failure::new("write", &open.path, &error));
        }
        self.begin(open);
        let batches = mem::take(&mut self.unsynced);
        for (_, batch) in &batches {
            self.settle(batch);
        }
        self.unsynced = batches;
        drop(self.synced_to(self.written, self.end));
        self.chores = true;
        Ok(())
    }

    /// Says in the record that it stopped, or that it goes on.
    fn note_change(&mut self) {
        if self.trouble.as_ref().is_some_and(|trouble| trouble.rewrite) || self.closing {
            return;
        }
        match (self.refusing(), self.noted.take()) {
            (Some(why), None) => {
                if self.put_note("stopped", &why, false).is_ok() {
                    self.noted = Some(why);
                }
            }
            (None, Some(_)) => match self.put_note("goes on", "what stopped it has ended", true) {
                Ok(()) => {}
                Err(failure) => {
                    self.fail(failure, false);
                }
            },
            (_, noted) => self.noted = noted,
        }
    }

    /// Makes the reserve again if it is gone.
    pub(super) fn make_reserve(&mut self) -> Result<(), Failure> {
        if self.reserve || self.settings.reserve_bytes == 0 {
            return Ok(());
        }
        let path = self.reserve_path();
        let _ = std::fs::remove_file(&path);
        let made = retried(|| self.disk.create(&path)).and_then(|file| {
            set_aside(&*self.disk, &file, self.settings.reserve_bytes)?;
            retried(|| self.disk.sync_all(&file))?;
            sync_directory(&*self.disk, &self.dir)
        });
        if let Err(error) = made {
            let _ = self.disk.remove(&path);
            return Err(Failure::new("set room aside in", &path, &error));
        }
        self.reserve = true;
        Ok(())
    }
}

/// Tries to end the trouble there is.
fn mend(log: &mut Log) {
    let Some(trouble) = &log.trouble else { return };
    let (full, rewrite, why) = (trouble.full, trouble.rewrite, trouble.why.clone());
    if full && (rewrite || log.noted.is_none()) {
        log.release_reserve();
    }
    let mended = (|| {
        if rewrite {
            log.rewrite()?;
            if let Some(trouble) = &mut log.trouble {
                trouble.rewrite = false;
            }
        }
        if log.noted.is_none() {
            log.put_note("stopped", &why, false)?;
            log.noted = Some(why);
        }
        // Only with the reserve back, and with a whole segment ahead, is there
        // room for more than the last word.
        log.make_reserve()?;
        if full {
            if log.spare.is_none() {
                let (number, room) = (log.next_number, log.settings.segment_bytes);
                log.next_number += 1;
                log.spare = Some(create(&*log.disk, &log.dir, number, room)?);
            }
            log.current = None;
        }
        log.put_left()?;
        log.put_note("goes on", "the journal can be written again", true)
    })();
    match mended {
        Ok(()) => {
            log.trouble = None;
            log.noted = None;
            tracing::info!("the journal can be written again");
        }
        Err(failure) => {
            log.fail(failure, false);
            if let Some(trouble) = &mut log.trouble {
                trouble.retry_at = Instant::now() + log.settings.retry;
            }
        }
    }
}

/// What needs doing now and then: a file for later, room, what is shipped.
fn chores<'a>(shared: &'a Shared, mut log: MutexGuard<'a, Log>) -> MutexGuard<'a, Log> {
    let disk = log.disk.clone();
    let dir = log.dir.clone();
    let far = log.end.offset > log.settings.segment_bytes / 2;
    if far && log.spare.is_none() && log.trouble.is_none() && !log.closing {
        let (number, room) = (log.next_number, log.settings.segment_bytes);
        log.next_number += 1;
        drop(log);
        // If it cannot be made, whoever needs it will be told why.
        let made = create(&*disk, &dir, number, room);
        log = shared.lock();
        match made {
            Ok(spare) if log.end.segment < number => log.spare = Some(spare),
            Ok(late) => {
                let _ = disk.remove(&late.path);
            }
            Err(_) => {}
        }
    }
    let mut gone = mem::take(&mut log.dead);
    let free = log.free();
    let (shipped, told) = (log.shipped, log.told_shipped);
    if free.is_empty() && gone.is_empty() && shipped.segment == told.segment {
        return log;
    }
    let heads = (!free.is_empty()).then(|| heads::encode(log.index.heads(log.id)));
    gone.extend(free);
    drop(log);
    // First it is on disk which numbers are used, and that they may go: else
    // they would count as missing.
    let kept = heads.map_or(Ok(()), |heads| replace(&*disk, &dir, heads::FILE, &heads));
    let told = kept.and_then(|()| tell_shipped(&*disk, &dir, shipped));
    if told.is_ok() {
        for path in &gone {
            let _ = disk.remove(path);
        }
    }
    let mut log = shared.lock();
    match told {
        Ok(()) => log.told_shipped = shipped,
        Err(_) => log.dead.extend(gone),
    }
    log
}

fn tell_shipped(disk: &dyn Disk, dir: &Path, shipped: Position) -> io::Result<()> {
    replace(disk, dir, "shipped", format!("{} {}\n", shipped.segment, shipped.offset).as_bytes())
}

impl Log {
    /// Takes out the segments that are shipped and old, or shipped and in the
    /// way of others.
    fn free(&mut self) -> Vec<PathBuf> {
        let keep = i64::try_from(self.settings.keep.as_micros()).unwrap_or(i64::MAX);
        let old = record::now_us().saturating_sub(keep);
        let mut total: u64 = self.segments.values().map(|segment| segment.end).sum();
        let crowded = self.settings.cap_bytes / 10 * 8;
        let mut freed = Vec::new();
        while let Some(first) = self.segments.first_entry() {
            let shipped = *first.key() < self.shipped.segment.min(self.end.segment);
            if !shipped || !(first.get().last_us < old || total > crowded) {
                break;
            }
            total -= first.get().end;
            self.freed = Position { segment: *first.key(), offset: first.get().end };
            freed.push(first.remove().path);
        }
        if let (false, Some((first, _))) = (freed.is_empty(), self.segments.first_key_value()) {
            self.index.free(*first, self.id);
        }
        freed
    }
}
