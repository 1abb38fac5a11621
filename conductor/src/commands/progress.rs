//! One line that says how far something long is, drawn over and over on a
//! terminal. In a pipe nothing is drawn.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

/// How often the line is drawn.
const REDRAW: Duration = Duration::from_millis(100);

/// Columns of the bar.
const BAR: u64 = 30;

/// The line, on stderr.
#[derive(Debug)]
pub(super) struct ProgressLine {
    what: &'static str,
    is_terminal: bool,
    began: Instant,
    drawn: Option<Instant>,
}

impl ProgressLine {
    /// A line about so many of these.
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, is_terminal: io::stderr().is_terminal(), began: Instant::now(), drawn: None }
    }

    /// It is so far now.
    pub(super) fn tell(&mut self, done: u64, total: u64) {
        if self.is_terminal && self.drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW) {
            self.drawn = Some(Instant::now());
            let line = line(self.what, done, total, self.began.elapsed());
            // A terminal that is gone is no reason to stop.
            write!(io::stderr(), "\r{line}\x1b[K").ok();
        }
    }

    /// It is done, or failed: the line makes room for what is said about that.
    pub(super) fn clear(&self) {
        if self.drawn.is_some() {
            write!(io::stderr(), "\r\x1b[K").ok();
        }
    }
}

fn line(what: &str, done: u64, total: u64, took: Duration) -> String {
    let total = total.max(done).max(1);
    let part = u128::from(done) * u128::from(BAR) / u128::from(total);
    let filled = usize::try_from(part).unwrap_or_default();
    let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR as usize - filled));
    let percent = u128::from(done) * 100 / u128::from(total);
    let rate = (done as f64 / took.as_secs_f64().max(0.001)) as u64;
    format!("{bar} {percent:3} %  {done} of {total} {what}  {rate}/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills() {
        let at = |done, total| line("frames", done, total, Duration::from_secs(2));
        assert!(at(0, 0).starts_with("░░░"), "{}", at(0, 0));
        assert!(at(50, 100).contains(" 50 %  50 of 100 frames  25/s"), "{}", at(50, 100));
        assert_eq!(at(50, 100).matches('█').count(), 15);
        assert_eq!(at(100, 100).matches('░').count(), 0);
    }
}
