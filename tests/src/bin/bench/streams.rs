//! How much passes in a second: streams of one session, and what a terminal prints.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{
    machine,
    measure::{Amount, Bench, micros, rate},
    report::median,
    targets::{
        Seat,
        Target::{self, Conductor, Plain, Unsynced},
    },
};

/// Bytes that a terminal prints.
const TERMINAL_BYTES: usize = 64 << 20;

impl Bench {
    pub fn streams(&mut self, index: usize) -> Result<()> {
        let (a, serve) = (self.amount, self.targets.service.pid());
        let streams = self.each(index, &Target::ALL, |seat, target| stream(seat, target, serve, a, 64))?;
        let rates = streams.map(|(rate, _)| *rate);
        self.rows.stream_small.each(&rates, Conductor);
        self.rows.stream_plain.pair(rates.of(Unsynced)?, rates.of(Plain)?);
        self.rows.cpu_small.value(streams.of(Conductor)?.1);

        let rates = self.each(index, &Target::MAIN, |seat, target| {
            let count = frames(a, target);
            let prompt = format!("n={count} size=64");
            let one = |_| rate(count, seat.editor.decoded_turn(&seat.session, &prompt, count + 1)?);
            (0..a.streams).map(one).collect::<Result<Vec<f64>>>()
        })?;
        self.rows.stream_decoded.each(&rates.map(|rates| median(rates)), Conductor);

        let streams = self.each(index, &Target::MAIN, |seat, target| stream(seat, target, serve, a, 2048))?;
        self.rows.stream_large.each(&streams.map(|(rate, _)| *rate), Conductor);
        self.rows.cpu_large.value(streams.of(Conductor)?.1);
        Ok(())
    }

    /// A command that prints much: read through a pipe of our own, and by the conductor's terminal.
    pub fn terminal(&mut self) -> Result<()> {
        self.machine.settle()?;
        self.targets.step();
        let begun = Instant::now();
        let output = Command::new("head").args(["-c", &TERMINAL_BYTES.to_string(), "/dev/zero"]).output()?;
        ensure!(output.stdout.len() == TERMINAL_BYTES, "`head` printed {} bytes", output.stdout.len());
        let direct = begun.elapsed();
        let took = self.each(0, &[Conductor], |seat, _| {
            seat.editor.turn(&seat.session, &format!("terminal={TERMINAL_BYTES}"), 1)
        })?;
        let mebibytes = |took: Duration| TERMINAL_BYTES as f64 / 1048576.0 / took.as_secs_f64();
        self.rows.terminal.pair(mebibytes(direct), mebibytes(took.of(Conductor)?));
        Ok(())
    }
}

/// Frames of one stream of a peer that is a tenth as fast as the others: a fifth, so that a round does not take minutes.
fn frames(amount: Amount, target: Target) -> usize {
    if target == Target::Acp { amount.stream / 5 } else { amount.stream }
}

/// Frames per second of the median stream, and CPU time per frame of what the editor started and the service:
/// meaningless for all but the conductor.
fn stream(seat: &mut Seat, target: Target, serve: u32, amount: Amount, size: usize) -> Result<(f64, f64)> {
    let count = frames(amount, target);
    let prompt = format!("n={count} size={size}");
    let cpu = |seat: &Seat| Ok::<_, anyhow::Error>(machine::cpu(seat.editor.pid())? + machine::cpu(serve)?);
    let before = cpu(seat)?;
    let mut rates = Vec::new();
    for _ in 0..amount.streams {
        let took = seat.editor.turn(&seat.session, &prompt, count + 1)?;
        rates.push(rate(count, took)?);
    }
    let used = cpu(seat)? - before;
    Ok((median(&rates), micros(used) / (count * amount.streams) as f64))
}
