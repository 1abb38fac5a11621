//! The steps of a process, calls by which it changes a file or tells others something: counted
//! by a small library that is preloaded (`faults/steps.c`), and ended before one of them.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use conductor_tests::dice::Dice;

/// How many steps somebody has left.
pub struct Counter(pub PathBuf);

impl Counter {
    /// Of somebody; nothing is counted yet.
    pub fn of(directory: &Path, who: &str) -> Self {
        let counter = Self(directory.join(format!("steps-of-{who}")));
        if !counter.0.exists() {
            fs::write(&counter.0, 0_u64.to_ne_bytes()).unwrap();
            fs::write(counter.log(), "").unwrap();
        }
        counter
    }

    fn log(&self) -> PathBuf {
        self.0.with_extension("log")
    }

    /// Counts from here on; whoever counts ends before this step.
    pub fn begin(&self, step: u64) {
        fs::write(self.log(), "").unwrap();
        self.set(step);
    }

    /// Ends the counting. Which steps there were, the one before which somebody ended among them,
    /// and whether somebody did.
    pub fn end(&self, step: u64) -> (String, bool) {
        self.set(0);
        let taken = fs::read_to_string(self.log()).unwrap();
        let is_ended = taken.lines().count() as u64 >= step;
        (taken, is_ended)
    }

    fn set(&self, left: u64) {
        // It is written over, not cut short: somebody has it in memory.
        let file = fs::OpenOptions::new().write(true).open(&self.0).unwrap();
        file.write_all_at(&left.to_ne_bytes(), 0).unwrap();
    }
}

/// All steps, or about so many: one of every so-many-th run of like ones.
pub fn chosen(taken: &str, most: usize, dice: &mut Dice) -> Vec<u64> {
    let mut runs: Vec<(&str, u64, u64)> = Vec::new();
    for (at, step) in (1..).zip(taken.lines()) {
        match runs.last_mut() {
            // Page after page.
            Some((last, _, to)) if most > 0 && *last == step && step.starts_with("pwrite") => *to = at + 1,
            _ => runs.push((step, at, at + 1)),
        }
    }
    let stride = runs.len().checked_div(most).unwrap_or(1).max(1);
    let first = dice.between(0, stride as u64);
    let some = (0..).zip(runs).filter(|(at, _)| at % stride as u64 == first);
    some.map(|(_, (_, from, to))| dice.between(from, to)).collect()
}
