//! How long does a search take in a ledger with a million messages? Words are drawn by lot, always the same
//! ones, put into the derived tables of either database at once, indexed by the service's own steps, and
//! searched for as `History.Search` does. The method is described in `tests/bench/README.md`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports to people")]

mod fill;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use conductor::ledger::{
    Settings,
    history::{self, History},
    search::{Filter, Kind},
    sink::Sink,
};
use conductor_tests::postgres::Postgres;

use crate::fill::{AGENTS, DAY_US, Lot, NOW_US, Shape, common, phrase, rare, rare_path, rare_user};

const USAGE: &str = "bench-search [--messages N] [--times N] [--only sqlite|postgres]

  --messages N   messages in the ledger [default: 1000000]
  --times N      how often each search is made [default: 50]
  --only DB      one database";

/// What an answer may take, at the 99th percentile.
const GOAL: Duration = Duration::from_millis(100);

fn main() -> Result<()> {
    let (mut messages, mut times, mut only) = (1_000_000, 50, None);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let mut value = || args.next().with_context(|| format!("{flag} needs a value\n\n{USAGE}"));
        match flag.as_str() {
            "--messages" => messages = value()?.parse().context("--messages needs a number")?,
            "--times" => times = value()?.parse::<usize>().context("--times needs a number")?.max(1),
            "--only" => only = Some(value()?),
            _ => bail!("unknown flag {flag}\n\n{USAGE}"),
        }
    }
    let shape = Shape::of(messages);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        if only.as_deref() != Some("postgres") {
            let dir = tempfile::tempdir()?;
            let settings = Settings::embedded(dir.path());
            drop(Sink::open(&settings).await?);
            timed("SQLite: rows", fill::sqlite(&settings.file, &shape)).await?;
            timed("SQLite: index", index(&settings)).await?;
            measure("SQLite", &settings, times, None).await?;
        }
        if only.as_deref() != Some("sqlite") {
            let Some(server) = Postgres::start_durable() else {
                println!("no Postgres is installed here; it is left out");
                return Ok(());
            };
            let database = server.database().await;
            let dir = tempfile::tempdir()?;
            let settings = Settings {
                url: database.url().parse().map_err(anyhow::Error::msg)?,
                ..Settings::embedded(dir.path())
            };
            drop(Sink::open(&settings).await?);
            let mut connection = database.connect().await;
            timed("Postgres: rows", fill::postgres(&mut connection, &shape)).await?;
            fill::without_indices(&mut connection, database.name()).await?;
            timed("Postgres: documents", index(&settings)).await?;
            timed("Postgres: indices", fill::with_indices(&mut connection)).await?;
            measure("Postgres", &settings, times, Some(database.server())).await?;
        }
        Ok(())
    })
}

async fn timed<T>(what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let began = Instant::now();
    let done = work.await?;
    eprintln!("{what}: {:.1} s", began.elapsed().as_secs_f64());
    Ok(done)
}

/// Indexes by the steps that the service makes.
async fn index(settings: &Settings) -> Result<()> {
    let mut sink = Sink::open(settings).await?;
    while sink.index_some().await? {}
    Ok(())
}

/// Processor time that was used for searches: by this program, and by the server's processes that have ended.
fn used(server: Option<&Postgres>) -> Duration {
    let ticks = |pid: &str, fields: [usize; 2]| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit(')').next().unwrap_or_default().to_owned();
        let field = |at: usize| after.split_whitespace().nth(at).and_then(|text| text.parse::<u64>().ok());
        fields.into_iter().filter_map(field).sum::<u64>()
    };
    let own = ticks("self", [11, 12]);
    let ended = server.map_or(0, |server| ticks(&server.pid().to_string(), [13, 14]));
    Duration::from_millis((own + ended) * 10)
}

async fn measure(name: &str, settings: &Settings, times: usize, server: Option<&Postgres>) -> Result<()> {
    let history = History::new(settings.clone(), None);
    println!("\n{name}: milliseconds for one page of 20, connection included, {times} searches each");
    println!("{:44} {:>8} {:>8} {:>8} {:>8}  {:>6}", "", "p50", "p99", "max", "cpu", "hits");
    let mut all = Vec::new();
    for (what, ask) in searches() {
        let mut lot = Lot::new(42);
        let mut took = Vec::with_capacity(times);
        let mut hits = 0;
        let before = used(server);
        for nth in 0..=times {
            let (text, filter) = ask(&mut lot);
            let began = Instant::now();
            hits += history.search(&text, &filter).await?.items.len();
            // The first one only warms up.
            if nth > 0 {
                took.push(began.elapsed());
            }
        }
        let searches = u32::try_from(times + 1).unwrap_or(u32::MAX);
        row(what, &mut took, used(server).saturating_sub(before) / searches, hits / (times + 1));
        all.extend(took);
    }
    let mut took = Vec::new();
    for _ in 0..times.min(20) {
        let filter = history::Filter { text: Some(common().to_owned()), ..history::Filter::default() };
        let began = Instant::now();
        history.sessions(&filter).await?;
        took.push(began.elapsed());
    }
    row("all searches", &mut all, Duration::ZERO, 0);
    row("(sessions ls --text, a common word)", &mut took, Duration::ZERO, 0);
    let reached = percentile(&all, 99) <= GOAL;
    println!("{} p99 of all within {} ms", if reached { "✓" } else { "✗" }, GOAL.as_millis());
    Ok(())
}

fn row(what: &str, took: &mut [Duration], cpu: Duration, hits: usize) {
    took.sort_unstable();
    let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
    let max = took.last().copied().unwrap_or_default();
    println!(
        "{what:44} {:>8} {:>8} {:>8} {:>8}  {hits:>6}",
        ms(percentile(took, 50)),
        ms(percentile(took, 99)),
        ms(max),
        ms(cpu)
    );
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

type Ask = fn(&mut Lot) -> (String, Filter);

/// The mix: what people search for, and what is hard for an index.
fn searches() -> Vec<(&'static str, Ask)> {
    vec![
        ("a rare word", |lot| (rare(lot), Filter::default())),
        ("a word that is not there", |_| ("xylophone".to_owned(), Filter::default())),
        ("a word in most messages", |_| (common().to_owned(), Filter::default())),
        ("a word in one of twenty", |lot| (lot.middling(), Filter::default())),
        ("two common words", |lot| (format!("{} {}", common(), lot.middling()), Filter::default())),
        ("a common and a rare one", |lot| (format!("{} {}", common(), rare(lot)), Filter::default())),
        ("two rare words, never together", |lot| (format!("{} {}", rare(lot), rare(lot)), Filter::default())),
        ("a phrase of common words", |lot| (phrase(lot), Filter::default())),
        ("the beginning of words", |lot| (format!("{}*", &rare(lot)[..4]), Filter::default())),
        ("a common word without another", |lot| {
            (format!("{} -{}", common(), lot.middling()), Filter::default())
        }),
        ("part of a rare path", |lot| {
            (rare_path(lot), Filter { kinds: vec![Kind::Path], ..Filter::default() })
        }),
        ("part of most paths", |_| {
            ("src/".to_owned(), Filter { kinds: vec![Kind::Path], ..Filter::default() })
        }),
        ("part of a command", |_| {
            ("--workspace".to_owned(), Filter { kinds: vec![Kind::Command], ..Filter::default() })
        }),
        ("a common word of a user with few", |_| {
            (common().to_owned(), Filter { user: Some(rare_user()), ..Filter::default() })
        }),
        ("a common word, seen by a developer", |_| {
            (common().to_owned(), Filter { seen_by: Some("user7".to_owned()), ..Filter::default() })
        }),
        ("a middling word of an agent", |lot| {
            (lot.middling(), Filter { agent: Some(AGENTS[2].to_owned()), ..Filter::default() })
        }),
        ("a common word in a repository", |_| {
            (common().to_owned(), Filter { repository: Some("/w/repo17".to_owned()), ..Filter::default() })
        }),
        ("a middling word in one old week", |lot| {
            let since_us = Some(NOW_US - 60 * DAY_US);
            (lot.middling(), Filter { since_us, until_us: Some(NOW_US - 53 * DAY_US), ..Filter::default() })
        }),
    ]
}
