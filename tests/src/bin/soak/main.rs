//! A long run in which everything breaks all the time, and nothing may be lost.
//!
//! A real service with a real Postgres, many editors with many sessions each, and
//! scripted agents that write down what they say and hear. A storm of kills, outages
//! and a broken network; a calm of steady work, in which nothing may fail and nothing may
//! grow; a storm again. Then every session shows that it still works, everybody goes home,
//! and what the agents wrote down, what the ledger has and what editors were shown are
//! held against each other. Whatever does not agree is told with its session and number,
//! fails the run, and leaves the service's directory behind.
//!
//! `make soak` runs it. `SOAK_MINUTES` (10, may be a fraction), `SOAK_SEED` (printed at
//! the start; the same one makes the same choices), `SOAK_EDITORS` (12), `SOAK_SESSIONS`
//! (8 each), `SOAK_JSON` (`target/soak.json`).
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports to people")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that happens to be a program")]

mod findings;
mod sight;
mod gauges;
mod shared;
mod tunnel;
mod link;
mod work;
mod seat;
mod world;
mod chaos;
mod oracle;
mod report;

use std::{
    env, fs,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use conductor_tests::{
    dice::{Dice, number},
    harness::poll_until,
    shipping,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    chaos::Chaos,
    findings::{Kind, Trouble},
    gauges::EVERY,
    oracle::{Heard, Journaled, Recorded},
    report::Report,
    shared::{Phase, Shared},
    world::{World, wait_until},
};

/// Between two lines that say how far it is.
const TELLING: Duration = Duration::from_secs(10);

/// How much of the time is which phase: a storm, the calm; the rest is a storm again.
const STORM: f64 = 0.45;
const CALM: f64 = 0.3;

/// What was begun in the storm may end badly in the first part of the calm, which is not judged.
const ABATING: f64 = 0.25;
const ABATED: Duration = Duration::from_secs(15);

/// How long the ledger may take to catch up at the end.
const CATCHING_UP: Duration = Duration::from_secs(240);

/// How long the service may take to end.
const ENDING: Duration = Duration::from_secs(60);

/// How long, how many, and which lot.
pub struct Plan {
    /// How long everything breaks.
    pub minutes: f64,
    /// Where the lot begins.
    pub seed: u64,
    /// How many editors there are.
    pub editors: usize,
    /// How many sessions each has.
    pub sessions: usize,
    json: PathBuf,
}

impl Plan {
    fn from_environment() -> Self {
        let minutes =
            env::var("SOAK_MINUTES").map_or(10.0, |text| text.parse().expect("SOAK_MINUTES is a number"));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let target = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/soak.json"));
        Self {
            minutes,
            seed: number("SOAK_SEED", now.as_secs()),
            editors: number("SOAK_EDITORS", 12) as usize,
            sessions: number("SOAK_SESSIONS", 8) as usize,
            json: env::var_os("SOAK_JSON").map_or(target, PathBuf::from),
        }
    }

    fn part(&self, of: f64) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0 * of)
    }
}

fn main() -> ExitCode {
    let plan = Plan::from_environment();
    let Plan { minutes, seed, editors, sessions, .. } = plan;
    println!(
        "soak: {minutes} min, {editors} editors with {sessions} sessions each; SOAK_SEED={seed} repeats it"
    );
    let begun = Instant::now();
    let mut dice = Dice::new(seed);
    let mut chaos = Chaos::new(dice.fork());
    let mut world = World::start(&plan, &mut dice);
    let database = if world.database.is_some() { "Postgres" } else { "SQLite" };
    if world.database.is_none() {
        println!(
            "soak: no Postgres is installed here, so the ledger is in SQLite and there are no outages of it"
        );
    }
    println!("soak: the service's directory is {}", world.service.dir.display());
    let is_over = AtomicBool::new(false);
    let shared = world.shared.clone();
    let asked = thread::scope(|scope| {
        scope.spawn(|| watch(&shared, begun, &is_over));
        let _over = Over(&is_over);
        phases(&plan, &mut world, &mut chaos);
        world.settle()
    });
    println!("soak: everybody has gone home; holding agents, ledger and editors against each other");
    let journaled = end(&mut world, &chaos);
    let mut heard = Heard::default();
    ["fake", "shared"].iter().for_each(|agent| heard.read(&world.service.dir.join("ledger").join(agent)));
    let recorded = world.runtime.block_on(Recorded::read(&world.settings(), &shared.findings));
    recorded.compare(&journaled, &shared.findings);
    shared.findings.extend(oracle::judge(&asked, &heard, &recorded));
    let trends = shared.gauges.trends();
    shared.findings.extend(trends.iter().filter_map(gauges::Trend::trouble));

    let took = begun.elapsed();
    let report = Report {
        plan: &plan,
        shared: &shared,
        chaos: &chaos,
        heard: &heard,
        recorded: &recorded,
        trends: &trends,
        took,
        database,
    };
    println!("{}", report.table());
    if let Err(error) = fs::write(&plan.json, format!("{:#}\n", report.json())) {
        println!("soak: {} cannot be written: {error}", plan.json.display());
    }
    if shared.findings.total() > 0 {
        println!("soak: FAILED; SOAK_SEED={seed}; all of it is in {}", world.service.dir.display());
        return ExitCode::FAILURE;
    }
    world.service.keep(false);
    println!("soak: nothing was lost, in {:.0} s", took.as_secs_f64());
    ExitCode::SUCCESS
}

/// A storm, the calm, and a storm.
fn phases(plan: &Plan, world: &mut World, chaos: &mut Chaos) {
    chaos.storm(world, Instant::now() + plan.part(STORM));
    let calm = Instant::now() + plan.part(CALM);
    let abated = plan.part(CALM * ABATING).min(ABATED);
    wait_until(Instant::now() + abated);
    world.shared.phase.send_replace(Phase::Calm);
    wait_until(calm);
    world.shared.phase.send_replace(Phase::Storm);
    chaos.look_after_service(world);
    chaos.storm(world, Instant::now() + plan.part(1.0 - STORM - CALM));
}

/// Says that it is over, also to whoever watches while something panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Looks at the service every second, and tells people every ten.
fn watch(shared: &Shared, begun: Instant, is_over: &AtomicBool) {
    let mut told = begun;
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(EVERY);
        let phase = shared.phase();
        shared.gauges.sample(shared.service.load(Ordering::Relaxed), phase == Phase::Calm);
        if told.elapsed() >= TELLING {
            told = Instant::now();
            let (counts, seconds) = (&shared.counts, begun.elapsed().as_secs());
            println!(
                "soak: {seconds:>4} s  {phase:<6}  {:>6} sessions  {:>9} frames  {:>7} prompts  {:>6} faults  {:>3} found",
                counts.sessions.load(Ordering::Relaxed),
                counts.frames.load(Ordering::Relaxed),
                counts.prompts.load(Ordering::Relaxed),
                counts.faults.load(Ordering::Relaxed),
                shared.findings.total(),
                phase = format!("{phase:?}"),
            );
        }
    }
}

/// Stops the service in good order, lets the ledger catch up, and has it verified. Gives what
/// the journal has in the end.
fn end(world: &mut World, chaos: &Chaos) -> Journaled {
    let shared = world.shared.clone();
    let (settings, state) = (world.settings(), world.service.state());
    chaos.look_after_service(world);
    stop(world, "the end");
    let written = Journaled::read(&state, &shared.findings).frames();
    // A stop waits for the ledger only so long; a start carries on what is left.
    world.start_again();
    let number = |world: &World, statement: &str| {
        let number = world.runtime.block_on(shipping::number(&settings, statement));
        u64::try_from(number).unwrap_or_default()
    };
    let stored = || number(world, "SELECT count(*) FROM frames");
    if !poll_until(CATCHING_UP, || stored() >= written) {
        let lost = written.saturating_sub(stored());
        let words = format!("{lost} frames of the journal do not come into the ledger");
        shared.findings.add(Trouble { kind: Kind::Lost, count: lost, words });
    }
    let config = world.service.dir.join("agents.toml").display().to_string();
    let (mut said, mut seen) = (String::new(), Value::Null);
    let signed = poll_until(CATCHING_UP, || {
        let output = world.service.run(&["ledger", "verify", "--json", "--config", &config]);
        seen = serde_json::from_slice(&output.stdout).unwrap_or_default();
        said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        // What is wrong does not go away by waiting.
        seen["ok"] == false || seen["seen"]["unsigned"] == 0
    });
    if !signed || seen["ok"] != true {
        shared.findings.add(Trouble::one(Kind::Unverified, format!("`conductor ledger verify` says {said}")));
    }
    stop(world, "the very end");
    let log = world.service.log();
    let panics = log.matches("panicked at").count() as u64;
    let first = log.lines().find(|line| line.contains("panicked at")).unwrap_or_default();
    shared.findings.extend(Trouble::some(Kind::Died, panics, || format!("a task of the service: {first}")));
    let open = number(world, "SELECT count(*) FROM turns WHERE ended_us IS NULL");
    let words = || format!("{open} turns are open in the ledger");
    shared.findings.extend(Trouble::some(Kind::Unanswered, open, words));
    let conflicts = number(world, "SELECT count(*) FROM frame_conflicts");
    let words = || format!("{conflicts} frames are in conflict");
    shared.findings.extend(Trouble::some(Kind::Unverified, conflicts, words));
    Journaled::read(&state, &shared.findings)
}

fn stop(world: &mut World, when: &str) {
    world.service.signal(Signal::SIGTERM);
    let status = world.service.wait_exit(ENDING);
    if !status.success() {
        let words = format!("SIGTERM was followed by {status} at {when}");
        world.shared.findings.add(Trouble::one(Kind::Died, words));
    }
    world.look_for_orphans(when);
}
