//! What the kernel knows: memory and CPU time of a process, and whether the machine is quiet.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};

/// The machine counts as quiet while others use less than this part of it.
const QUIET: f64 = 0.10;

/// How long one look takes.
const LOOK: Duration = Duration::from_millis(100);

/// Keeps count of how quiet the machine was.
#[derive(Debug)]
pub struct Machine {
    patience: Duration,
    /// What is left of the time that all waits together may take.
    budget: Duration,
    pub waits: u32,
    pub noisy: u32,
    /// The highest use by others that a measurement had to begin with.
    pub worst: f64,
    pub load: Vec<f64>,
}

impl Machine {
    /// Before each measurement it waits for `patience` at most, before all of them for `budget`.
    pub fn new(patience: Duration, budget: Duration) -> Self {
        Self { patience, budget, waits: 0, noisy: 0, worst: 0.0, load: Vec::new() }
    }

    /// Waits for a quiet moment, in bounds. What is measured is idle meanwhile, so all use is others'.
    pub fn settle(&mut self) -> Result<()> {
        let begun = Instant::now();
        let due = begun + self.patience.min(self.budget);
        let mut used = look()?;
        while used > QUIET && Instant::now() < due {
            used = look()?;
        }
        self.budget = self.budget.saturating_sub(begun.elapsed());
        self.waits += 1;
        self.noisy += u32::from(used > QUIET);
        self.worst = self.worst.max(used);
        self.load.push(load_average()?);
        Ok(())
    }
}

/// The used part of all cores over a short time.
fn look() -> Result<f64> {
    let (idle, total) = ticks()?;
    sleep(LOOK);
    let (idle_after, total_after) = ticks()?;
    let passed = (total_after - total).max(1) as f64;
    Ok(1.0 - (idle_after - idle) as f64 / passed)
}

/// Idle and total ticks of all cores so far.
fn ticks() -> Result<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    // The fourth is idle, the fifth waiting for a disk.
    Ok((ticks.iter().skip(3).take(2).sum(), ticks.iter().sum()))
}

fn load_average() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    text.split(' ').next().and_then(|word| word.parse().ok()).context("no load average")
}

/// CPU time of all threads of a process so far. From its clock, because the ticks of `/proc/PID/stat` are as long
/// as a tenth of a measurement.
pub fn cpu(pid: u32) -> Result<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32)).context("no CPU clock of a process")?;
    Ok(clock_gettime(clock)?.into())
}

/// Waits until a process has nothing to do, for two minutes at most.
pub fn until_idle(pid: u32) -> Result<()> {
    let due = Instant::now() + Duration::from_secs(120);
    let mut quiet = 0;
    let mut before = cpu(pid)?;
    while quiet < 3 {
        ensure!(Instant::now() < due, "the service has still something to do after two minutes");
        sleep(LOOK);
        let now = cpu(pid)?;
        quiet = if now - before < LOOK / 50 { quiet + 1 } else { 0 };
        before = now;
    }
    Ok(())
}

/// How many processes a process has started that still run.
pub fn children(pid: u32) -> Result<usize> {
    let mut count = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let children = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        count += children.split_whitespace().count();
    }
    Ok(count)
}

/// Resident memory of a process now, in KiB.
pub fn resident(pid: u32) -> Result<f64> {
    status(pid, "VmRSS:")
}

/// The most memory that was resident since [`forget_peak`], in KiB.
pub fn peak(pid: u32) -> Result<f64> {
    status(pid, "VmHWM:")
}

/// Makes the present use the peak.
pub fn forget_peak(pid: u32) -> Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("cannot reset the peak of a process's memory")
}

fn status(pid: u32, key: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)).with_context(|| format!("no {key}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// One line that says what the machine is.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, {}, Linux {}", model.trim_matches([' ', '\t', ':']), kernel.trim())
}
