//! How long an editor or an agent waits for an answer.
//!
//! A prompt and an allowed permission are effects: the conductor passes them on when they are safe on its disk, which
//! no other target does. Hence both are measured twice, side by side: in a service that does not wait for its disk,
//! which is what the others are compared with, and in one that does, beside what that disk takes for a sync.

use anyhow::{Result, ensure};

use crate::{
    editor::Asks,
    journal::plain_syncs,
    measure::{Bench, PACE, micros},
    report::{median, percentile},
    targets::{
        Each, Seat,
        Target::{self, Conductor, Plain, Unsynced},
    },
};

/// Round trips of the slowest peers are a fraction of the others', so that a round does not take minutes.
const FEWER: usize = 4;

impl Bench {
    pub fn round_trips(&mut self, index: usize) -> Result<()> {
        let a = self.amount;
        let times = self.each(index, &Target::ALL, |seat, target| {
            let count = if target == Target::Acp { a.round_trips / FEWER } else { a.round_trips };
            for _ in 0..count / 10 {
                seat.editor.turn(&seat.session, "n=1 size=64", 2)?;
            }
            let one = |_| Ok(micros(seat.editor.turn(&seat.session, "n=1 size=64", 2)?));
            (0..count).map(one).collect::<Result<Vec<f64>>>()
        })?;
        let (p50, p99) = (times.map(|times| median(times)), times.map(|times| percentile(times, 0.99)));
        self.rows.prompt_p50.each(&p50, Unsynced);
        self.rows.prompt_p99.each(&p99, Unsynced);
        self.rows.prompt_plain.pair(p50.of(Unsynced)?, p50.of(Plain)?);
        let syncs = self.syncs()?;
        self.rows.prompt_durable_p50.pair(median(&syncs), p50.of(Conductor)?);
        self.rows.prompt_durable_p99.pair(percentile(&syncs, 0.99), p99.of(Conductor)?);

        let waits = self.permissions(index, Asks::Policy)?;
        self.rows.policy.each(&waits, Unsynced);
        let syncs = self.syncs()?;
        self.rows.policy_durable.pair(median(&syncs), waits.of(Conductor)?);
        let waits = self.permissions(index, Asks::Person)?;
        self.rows.permission.each(&waits, Unsynced);

        let times = self.each(index, &Target::MAIN, |seat, _| {
            Ok(seat.editor.paced(&seat.session, PACE, a.paced)?.into_iter().map(micros).collect::<Vec<_>>())
        })?;
        self.rows.paced.each(&times.map(|times| median(times)), Conductor);
        Ok(())
    }

    /// How long an agent waits for a permission that is given at once: by the policy where there is one and it knows
    /// what is asked for, else by the editor.
    fn permissions(&mut self, index: usize, asks: Asks) -> Result<Each<f64>> {
        let count = self.amount.round_trips / 2;
        let times = self.each(index, &Target::ALL, |seat, target| {
            let count = if target == Target::Acp { count / FEWER } else { count };
            let decides = asks == Asks::Policy && matches!(target, Conductor | Unsynced | Plain);
            let one = |_| permission(seat, asks, !decides);
            (0..count).map(one).collect::<Result<Vec<f64>>>()
        })?;
        Ok(times.map(|times| median(times)))
    }

    /// What the disk takes for a sync, now.
    fn syncs(&mut self) -> Result<Vec<f64>> {
        self.machine.settle()?;
        plain_syncs(self.dir.path(), self.amount.round_trips / 4)
    }
}

fn permission(seat: &mut Seat, asks: Asks, by_editor: bool) -> Result<f64> {
    let (waited, was_asked) = seat.editor.permission(&seat.session, asks)?;
    ensure!(was_asked == by_editor, "the wrong one was asked for permission");
    Ok(micros(waited))
}
