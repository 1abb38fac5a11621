//! Many editors at once, each with a session that streams.

use std::{
    thread::scope,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::{
    measure::{Bench, rate},
    targets::{
        Each, Seat,
        Target::{self, Acp, Conductor, Relay},
    },
};

/// Sessions at once.
const CROWDS: [usize; 2] = [16, 128];

/// Bytes of a text, and how many times the frames of one stream all sessions say together.
const SIZES: [(usize, usize); 2] = [(64, 4), (2048, 1)];

/// The least that one session says.
const LEAST: usize = 500;

/// What was measured of a crowd, in frames per second.
#[derive(Debug, Clone, Copy, Default)]
struct Crowd {
    /// One of them alone.
    one: f64,
    /// All of them together.
    all: f64,
    /// The mean and the least of each one's own rate.
    mean: f64,
    slowest: f64,
}

impl Bench {
    pub fn crowds(&mut self, index: usize) -> Result<()> {
        let mut found: Each<[[Crowd; SIZES.len()]; CROWDS.len()]> = Each::new();
        for turn in 0..Target::MAIN.len() {
            let target = Target::MAIN[(index + turn) % Target::MAIN.len()];
            if self.targets.has(target) {
                found.set(target, self.gather(target)?);
            }
        }
        for crowd in 0..CROWDS.len() {
            for size in 0..SIZES.len() {
                let row = &mut self.rows.crowds[crowd][size];
                row.each(&found.map(|crowds| crowds[crowd][size].all), Conductor);
                row.own(found.of(Conductor)?[crowd][size].one);
            }
        }
        // The most sessions with the small frames.
        let last = found.map(|crowds| crowds[CROWDS.len() - 1][0]);
        let (ours, relays) = (last.of(Conductor)?, last.of(Relay)?);
        self.rows.slowest.pair(ours.mean, ours.slowest);
        self.rows.crowd_relay.pair(relays.one, relays.all);
        self.rows.slowest_relay.pair(relays.mean, relays.slowest);
        Ok(())
    }

    /// Opens more and more sessions and has them stream.
    fn gather(&mut self, target: Target) -> Result<[[Crowd; SIZES.len()]; CROWDS.len()]> {
        let (mut seats, mut found) = (Vec::new(), [[Crowd::default(); SIZES.len()]; CROWDS.len()]);
        for (count, found) in CROWDS.into_iter().zip(&mut found) {
            while seats.len() < count {
                self.targets.step();
                seats.push(self.targets.take(target)?);
            }
            for ((size, times), found) in SIZES.into_iter().zip(found) {
                // The slowest peer says a fifth, as it does alone.
                let whole = times * self.amount.stream / if target == Acp { 5 } else { 1 };
                *found = self.crowd(&mut seats, size, (whole / count).max(LEAST))?;
            }
        }
        for seat in seats {
            seat.editor.end()?;
        }
        Ok(found)
    }

    /// One session alone, then all of them: each says so many frames.
    fn crowd(&mut self, seats: &mut [Seat], size: usize, each: usize) -> Result<Crowd> {
        // Alone it says as much as all of them do together.
        let whole = each * seats.len();
        self.machine.settle()?;
        self.targets.step();
        let alone = match seats {
            [first, ..] => turn(first, whole, size)?,
            [] => bail!("nobody is there"),
        };
        self.machine.settle()?;
        self.targets.step();
        let begun = Instant::now();
        let times = scope(|scope| {
            let running: Vec<_> =
                seats.iter_mut().map(|seat| scope.spawn(move || turn(seat, each, size))).collect();
            let ended = running.into_iter().map(|thread| match thread.join() {
                Ok(took) => took,
                Err(_) => bail!("an editor failed"),
            });
            ended.collect::<Result<Vec<Duration>>>()
        })?;
        let all = begun.elapsed();
        let rates = times.into_iter().map(|took| rate(each, took)).collect::<Result<Vec<f64>>>()?;
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        Ok(Crowd { one: rate(whole, alone)?, all: rate(whole, all)?, mean, slowest })
    }
}

fn turn(seat: &mut Seat, frames: usize, size: usize) -> Result<Duration> {
    seat.editor.turn(&seat.session, &format!("n={frames} size={size}"), frames + 1)
}
