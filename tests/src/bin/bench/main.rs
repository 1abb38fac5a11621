//! What does the conductor cost? The same very fast agent, spawned directly, behind ssh, behind the ACP conductor and
//! through `connect` → gRPC over TLS → `serve`, in turn, round by round; a table of the ratios with the goals beside
//! them. The method is described in `tests/bench/README.md`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports to people")]

mod acp;
mod contained;
mod crowds;
mod decisions;
mod editor;
mod frames;
mod instructions;
mod journal;
mod lasting;
mod links;
mod machine;
mod measure;
mod memory;
mod on_record;
mod parts;
mod recording;
mod relay;
mod report;
mod round_trips;
mod rows;
mod service;
mod shipping;
mod ssh;
mod starts;
mod streams;
mod targets;

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};

use crate::{
    acp::Acp,
    machine::Machine,
    measure::{Amount, Bench},
    parts::Part,
    service::Programs,
    ssh::Ssh,
    targets::Targets,
};

const USAGE: &str = "bench [--quick] [--rounds N] [--only PART] [--no-peers] [--against PROGRAM] [--json FILE]

  --quick       a short run of two rounds, for a first impression
  --rounds N    rounds [default: 5; BENCH_ROUNDS]
  --only PART   one part of each round: round-trips, decisions, instructions, streams, crowds, terminal, starts, held,
                new, memory, journal, recording, shipping, restart, reattach, idle or reconnect; ledger stands for
                journal to restart, sessions for restart to reconnect
  --no-peers    without the ACP conductor, which is fetched and built the first time
  --against PROGRAM   in the part recording, also compare with another build of `conductor`
  --json FILE   where everything goes, each round included [default: target/bench.json]";

/// How to read the table, and what it does not say.
const NOTES: &str = "\
Ratios are the medians of the rounds' ratios of the conductor to another target; the relay only copies between pipes and
TCP, acp is the official ACP conductor without proxies. Rows \"against\" something have that in the place of direct. The
conductor speaks TLS, keeps its journal and asks its policy; prompts and permissions that are compared with ssh and acp
do not wait for the disk there (recording = \"best-effort\"), as neither of those writes anything to a disk.";

struct Options {
    quick: bool,
    rounds: Option<usize>,
    only: Option<Vec<Part>>,
    peers: bool,
    against: Option<PathBuf>,
    json: PathBuf,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [relay::NEAR, stub] => relay::near(stub),
        [relay::FAR, address, stub] => relay::far(address, stub),
        [instructions::REPEAT, what, times] => instructions::repeat(what, times.parse()?),
        _ => bench(),
    }
}

fn bench() -> Result<()> {
    let Some(options) = options()? else {
        println!("{USAGE}");
        return Ok(());
    };
    let (amount, patience, budget, rounds) =
        if options.quick { (Amount::QUICK, 1, 10, 2) } else { (Amount::FULL, 5, 120, 5) };
    let machine = Machine::new(Duration::from_secs(patience), Duration::from_secs(budget));
    let rounds = options.rounds.unwrap_or(rounds);
    let programs = Programs::build()?;
    let ssh = Ssh::start().inspect_err(|why| {
        eprintln!("no ssh to compare with, so its ratios noted elsewhere must do: {why}");
    });
    let acp = if options.peers { Acp::install() } else { Err("--no-peers was given".into()) };
    let acp = acp.inspect_err(|why| eprintln!("no ACP conductor to compare with: {why}"));
    let targets = Targets::start(programs, ssh.ok(), acp.ok())?;
    let mut bench = Bench::start(targets, options.against, amount, machine)?;
    for index in 0..rounds {
        eprintln!("round {} of {rounds}", index + 1);
        bench.round(index, options.only.as_deref())?;
    }
    let (rows, machine) = bench.finish()?;
    println!("\n{}\n{NOTES}", report::table(&rows, &machine));
    if let Some(dir) = options.json.parent() {
        fs::create_dir_all(dir)?;
    }
    let text = serde_json::to_string_pretty(&report::json(&rows, &machine, rounds))?;
    fs::write(&options.json, text).with_context(|| format!("cannot write {}", options.json.display()))?;
    println!("\nEverything, each round included: {}", options.json.display());
    Ok(())
}

/// The command line; nothing if help was asked for.
fn options() -> Result<Option<Options>> {
    let rounds = match std::env::var("BENCH_ROUNDS") {
        Ok(text) => Some(text.parse().context("BENCH_ROUNDS must be a number")?),
        Err(_) => None,
    };
    let mut options = Options {
        quick: false,
        rounds,
        only: None,
        peers: true,
        against: None,
        json: "target/bench.json".into(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let mut value = || args.next().with_context(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--quick" => options.quick = true,
            "--rounds" => options.rounds = Some(value()?.parse().context("--rounds needs a number")?),
            "--only" => options.only = Some(Part::parse(&value()?).context("--only needs a part's name")?),
            "--no-peers" => options.peers = false,
            "--against" => options.against = Some(value()?.into()),
            "--json" => options.json = value()?.into(),
            "--help" | "-h" => return Ok(None),
            _ => bail!("unknown flag {flag}\n\n{USAGE}"),
        }
    }
    if options.rounds == Some(0) {
        bail!("there must be one round at least");
    }
    Ok(Some(options))
}
