//! The journal as a library, against a plain file on the same disk: how fast runs are written ahead, and how long an
//! effect waits for its sync.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use conductor::{
    journal::{Batch, Class, Journal, Settings},
    record::{Destination, Origin, Stream, StreamKind, now_us},
};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::{
    frames::{FRAME, append, chunk, synced},
    measure::{micros, rate},
    report::{median, percentile},
    rows::Rows,
};

/// Frames of one run, for each of the rows.
const RUNS: [usize; 3] = [1, 10, 100];

/// So many wait for the disk at once.
const WRITERS: usize = 16;

/// How much one round does.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub frames: usize,
    pub effects: usize,
}

/// One round of all rows. `first` says who begins.
pub fn round(dir: &Path, runtime: &Runtime, amount: Amount, first: bool, rows: &mut Rows) -> Result<()> {
    for (row, run) in rows.journal.iter_mut().zip(RUNS) {
        let (mut plain, mut journaled) = (0.0, 0.0);
        for turn in [first, !first] {
            if turn {
                plain = plain_appends(dir, amount.frames, run)?;
            } else {
                journaled = appends(dir, runtime, amount.frames, run)?;
            }
        }
        row.pair(plain, journaled);
    }

    let (alone, released) = effects(dir, runtime, amount.effects)?;
    rows.effect_p50.pair(median(&alone), median(&released));
    rows.effect_p99.pair(percentile(&alone, 0.99), percentile(&released, 0.99));

    let (mut alone, mut released) = (Vec::new(), Vec::new());
    for turn in [first, !first] {
        if turn {
            alone = crowd_of_syncs(dir, amount.effects)?;
        } else {
            released = crowd_of_effects(dir, runtime, amount.effects)?;
        }
    }
    rows.effects_p50.pair(median(&alone), median(&released));
    rows.effects_p99.pair(percentile(&alone, 0.99), percentile(&released, 0.99));
    Ok(())
}

/// Frames per second written to a file in runs, nothing else.
fn plain_appends(dir: &Path, frames: usize, run: usize) -> Result<f64> {
    let bytes: Vec<u8> = (0..run).flat_map(|number| [chunk(number), vec![b'\n']].concat()).collect();
    let path = dir.join("plain");
    let mut file = File::create(&path)?;
    let begun = Instant::now();
    for _ in 0..frames / run {
        file.write_all(&bytes)?;
    }
    let took = begun.elapsed();
    // What was written must not be a burden to who comes next.
    file.sync_data()?;
    std::fs::remove_file(&path)?;
    rate(frames / run * run, took)
}

/// Frames per second written ahead.
fn appends(dir: &Path, runtime: &Runtime, frames: usize, run: usize) -> Result<f64> {
    let path = dir.join("journal");
    let (journal, _) = Journal::open(&path, Settings::default())?;
    let lines: Vec<Vec<u8>> = (0..run).map(chunk).collect();
    let stream = Stream { id: Uuid::now_v7(), kind: StreamKind::Session };
    let (count, begun) = (frames / run, Instant::now());
    for index in 0..count {
        append(&journal, runtime, batch(stream, (index * run + 1) as u64, &lines))?;
    }
    let took = begun.elapsed();
    runtime.block_on(synced(&journal))?;
    journal.close();
    std::fs::remove_dir_all(&path)?;
    rate(count * run, took)
}

fn batch(stream: Stream, seq: u64, lines: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::new();
    let lines = lines.iter().map(Vec::as_slice);
    batch.push(stream, seq, now_us(), Origin::Agent, Destination::Editor, &[], lines);
    batch
}

/// In turn: a frame appended to a file and synced, and an effect until it is released. In µs.
fn effects(dir: &Path, runtime: &Runtime, count: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    effects_after(dir, runtime, count, || ())
}

/// The same, with something to be done before each effect, which counts.
pub fn effects_after(
    dir: &Path,
    runtime: &Runtime,
    count: usize,
    mut first: impl FnMut(),
) -> Result<(Vec<f64>, Vec<f64>)> {
    let path = dir.join("journal");
    let (journal, _) = Journal::open(&path, Settings::default())?;
    let mut writer = Writer::new(&journal, runtime);
    let mut file = File::create(dir.join("plain"))?;
    let (mut alone, mut released) = (Vec::new(), Vec::new());
    for index in 0..count + count / 10 {
        let plain = sync(&mut file)?;
        let begun = Instant::now();
        first();
        let effect = begun.elapsed() + writer.effect()?;
        // The first ones make files and wake what sleeps.
        if index >= count / 10 {
            alone.push(micros(plain));
            released.push(micros(effect));
        }
    }
    drop(writer);
    journal.close();
    std::fs::remove_dir_all(&path)?;
    Ok((alone, released))
}

/// What the disk takes for an append and its sync, one after the other. In µs.
pub fn plain_syncs(dir: &Path, count: usize) -> Result<Vec<f64>> {
    let mut file = File::create(dir.join("plain"))?;
    (0..count).map(|_| Ok(micros(sync(&mut file)?))).collect()
}

fn sync(file: &mut File) -> Result<Duration> {
    let begun = Instant::now();
    file.write_all(&[b'x'; FRAME + 61])?;
    file.sync_data()?;
    Ok(begun.elapsed())
}

struct Writer<'a> {
    journal: &'a Journal,
    runtime: &'a Runtime,
    stream: Stream,
    seq: u64,
    line: [Vec<u8>; 1],
}

impl<'a> Writer<'a> {
    fn new(journal: &'a Journal, runtime: &'a Runtime) -> Self {
        let stream = Stream { id: Uuid::now_v7(), kind: StreamKind::Session };
        Self { journal, runtime, stream, seq: 0, line: [chunk(0)] }
    }

    fn effect(&mut self) -> Result<Duration> {
        self.seq += 1;
        let begun = Instant::now();
        let batch = batch(self.stream, self.seq, &self.line);
        let ticket = self.journal.append(batch, Class::Effect).context("an effect was refused")?;
        self.runtime.block_on(self.journal.released(ticket)).context("an effect was not released")?;
        Ok(begun.elapsed())
    }
}

/// Many writers at once, each of which appends to one file and syncs it for itself. In µs.
fn crowd_of_syncs(dir: &Path, count: usize) -> Result<Vec<f64>> {
    let path = dir.join("plain");
    File::create(&path)?;
    let path = Arc::new(path);
    crowd(count, |count| {
        let mut file = OpenOptions::new().append(true).open(&*path)?;
        (0..count).map(|_| Ok(micros(sync(&mut file)?))).collect()
    })
}

/// The same through one journal.
fn crowd_of_effects(dir: &Path, runtime: &Runtime, count: usize) -> Result<Vec<f64>> {
    let path = dir.join("journal");
    let (journal, _) = Journal::open(&path, Settings::default())?;
    let times = crowd(count, |count| {
        let mut writer = Writer::new(&journal, runtime);
        (0..count).map(|_| Ok(micros(writer.effect()?))).collect()
    })?;
    journal.close();
    std::fs::remove_dir_all(&path)?;
    Ok(times)
}

fn crowd(count: usize, work: impl Fn(usize) -> Result<Vec<f64>> + Sync) -> Result<Vec<f64>> {
    let work = &work;
    thread::scope(|scope| {
        // As many syncs of the disk altogether as in the rows of one writer, about.
        let threads: Vec<_> = (0..WRITERS).map(|_| scope.spawn(move || work(count / 2))).collect();
        let mut all = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(times) => all.extend(times?),
                Err(_) => bail!("a writer failed"),
            }
        }
        Ok(all)
    })
}
