//! How long people wait until they can begin.

use std::{
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{
    editor::Editor,
    measure::{Bench, millis},
    report::median,
    service::{Programs, SLOW_START},
    targets::{
        Each,
        Target::{self, Conductor, Direct, Ssh},
    },
};

/// One start by ssh in so many of the others': it takes a hundred times as long, so that a few of them must do.
const SSH_EVERY: usize = 5;

impl Bench {
    /// How long a person waits for the bridge, against the least that any program takes; then for a session with
    /// nothing warm, against each of the others.
    pub fn starts(&mut self, index: usize) -> Result<()> {
        self.machine.settle()?;
        let (mut trivial, mut times) = (Vec::new(), Times::new());
        for turn in 0..self.amount.starts {
            let started = Instant::now();
            ensure!(Command::new("true").status()?.success(), "`true` failed");
            trivial.push(millis(started.elapsed()));
            self.start_each(index + turn, "stub", &mut times, |editor, _| editor.initialize())?;
        }
        let mut starts = times.medians();
        starts.set(Direct, median(&trivial));
        self.rows.start.each(&starts, Conductor);

        self.machine.settle()?;
        let (work, mut times) = (self.targets.service.work(), Times::new());
        for turn in 0..self.amount.starts {
            self.start_each(index + turn, "cold", &mut times, |editor, session| {
                editor.initialize()?;
                *session = editor.new_session(&work)?;
                Ok(())
            })?;
        }
        self.rows.cold.each(&times.medians(), Conductor);
        Ok(())
    }

    /// Starts each target once, in turn, and notes how long it takes from the spawn until what is to be done is done.
    fn start_each(
        &mut self,
        turn: usize,
        agent: &str,
        times: &mut Times,
        mut until: impl FnMut(&mut Editor, &mut String) -> Result<()>,
    ) -> Result<()> {
        for which in 0..Target::MAIN.len() {
            let target = Target::MAIN[(turn + which) % Target::MAIN.len()];
            if !self.targets.has(target) || (target == Ssh && !turn.is_multiple_of(SSH_EVERY)) {
                continue;
            }
            self.targets.step();
            let (mut session, started) = (String::new(), Instant::now());
            let mut editor = self.targets.spawn(target, agent)?;
            until(&mut editor, &mut session)?;
            times.note(target, millis(started.elapsed()));
            // Else its process would wait for its editor to come back.
            if target == Conductor && !session.is_empty() {
                editor.close_session(&session)?;
            }
            editor.end()?;
        }
        Ok(())
    }

    pub fn new_sessions(&mut self) -> Result<()> {
        let (direct, warm) = self.new_session("stub", self.amount.starts, Programs::direct)?;
        self.rows.new.pair(direct, warm);
        let (direct, warm) = self.new_session("slow", self.amount.slow_starts, Programs::direct_slow)?;
        self.rows.new_slow.pair(direct, warm);
        let (own, added) = self.rebinding(self.amount.starts)?;
        self.rows.rebind.pair(own, added);
        Ok(())
    }

    /// What a prompt that goes to another agent, of which a process is warm, takes longer than the next one there;
    /// beside it that agent's own `session/new`.
    fn rebinding(&mut self, count: usize) -> Result<(f64, f64)> {
        self.machine.settle()?;
        let work = self.targets.service.work();
        let mut alone = self.targets.programs.direct()?;
        alone.initialize()?;
        let mut editor = self.targets.service.editor("slow")?;
        let (mut own, mut added) = (Vec::new(), Vec::new());
        for _ in 0..count {
            self.targets.service.step();
            let begun = Instant::now();
            alone.new_session(&work)?;
            own.push(millis(begun.elapsed()));

            let session = editor.new_session(&work)?;
            editor.turn_with(&session, "slow")?;
            // Its successor is not to start in the time that is measured.
            sleep(SLOW_START + Duration::from_millis(200));
            let moved = editor.turn_with(&session, "stub")?;
            let stayed = editor.turn_with(&session, "stub")?;
            added.push(millis(moved) - millis(stayed));
            editor.close_session(&session)?;
        }
        alone.end()?;
        editor.end()?;
        Ok((median(&own), median(&added)))
    }

    /// A session in an open editor with a warm agent, against starting the agent.
    fn new_session(
        &mut self,
        agent: &str,
        count: usize,
        spawn: impl Fn(&Programs) -> Result<Editor>,
    ) -> Result<(f64, f64)> {
        self.machine.settle()?;
        let work = self.targets.service.work();
        let mut editor = self.targets.service.editor(agent)?;
        let (mut direct, mut warm) = (Vec::new(), Vec::new());
        // The first one makes sure that the directory is kept warm from now on. Then whatever is starting must
        // have started: each session below starts one process, its successor, and is over when that is warm.
        let session = editor.new_session(&work)?;
        editor.close_session(&session)?;
        sleep(SLOW_START + Duration::from_millis(200));
        for _ in 0..count {
            self.targets.service.step();
            let begun = Instant::now();
            let mut alone = spawn(&self.targets.programs)?;
            alone.initialize()?;
            alone.new_session(&work)?;
            direct.push(millis(begun.elapsed()));
            alone.end()?;

            let started = self.targets.service.started(agent);
            let begun = Instant::now();
            let session = editor.new_session(&work)?;
            warm.push(millis(begun.elapsed()));
            editor.close_session(&session)?;
            self.targets.service.until_started(agent, started + 1)?;
        }
        editor.end()?;
        Ok((median(&direct), median(&warm)))
    }
}

/// What each target took, each time.
struct Times(Each<Vec<f64>>);

impl Times {
    fn new() -> Self {
        Self(Each::new())
    }

    fn note(&mut self, target: Target, time: f64) {
        match self.0.get_mut(target) {
            Some(times) => times.push(time),
            None => self.0.set(target, vec![time]),
        }
    }

    fn medians(&self) -> Each<f64> {
        self.0.map(|times| median(times))
    }
}
