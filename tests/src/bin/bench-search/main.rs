//! How long does a search take in a ledger with a million messages? Words are drawn by lot, always the same
//! ones, put into the derived tables of either database at once, indexed by the service's own steps, and
//! searched for as `History.Search` does. The method is described in `tests/bench/README.md`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports to people")]

mod fill;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use conductor::ledger::{
    Settings,
    history::{self, History},
    search::{Filter, Kind},
    sink::Sink,
};
use conductor_tests::postgres::{Database, Postgres};

use crate::fill::{AGENTS, DAY_US, Lot, NOW_US, Shape, common, phrase, rare, rare_path, rare_user};

const USAGE: &str = "bench-search [--messages N] [--times N] [--only sqlite|postgres] [--keep DIR]

  --messages N   messages in the ledger [default: 1000000]
  --times N      how often each search is made [default: 50]
  --only DB      one database
  --keep DIR     keeps what was filled there, and searches in it the next time";

/// What an answer may take, at the 99th percentile.
const GOAL: Duration = Duration::from_millis(100);

/// So often it is told how far the index has come.
const PROGRESS: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let (mut messages, mut times, mut only, mut keep) = (1_000_000, 50, None, None);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let mut value = || args.next().with_context(|| format!("{flag} needs a value\n\n{USAGE}"));
        match flag.as_str() {
            "--messages" => messages = value()?.parse().context("--messages needs a number")?,
            "--times" => times = value()?.parse::<usize>().context("--times needs a number")?.max(1),
            "--only" => only = Some(value()?),
            "--keep" => keep = Some(std::path::absolute(value()?)?),
            _ => bail!("unknown flag {flag}\n\n{USAGE}"),
        }
    }
    let temporary = tempfile::tempdir()?;
    // The server's user must reach what is beneath it.
    fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755))?;
    let home = keep.as_deref().unwrap_or(temporary.path());
    let shape = Shape::of(messages);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        if only.as_deref() != Some("postgres") {
            let place = Place::new(home, "sqlite", messages)?;
            sqlite(&place, &shape, times).await?;
        }
        if only.as_deref() != Some("sqlite") {
            let place = Place::new(home, "postgres", messages)?;
            let Some(server) = Postgres::start_durable_in(&place.directory.join("server")) else {
                println!("no Postgres is installed here; it is left out");
                return Ok(());
            };
            let database = server.kept_database("bench").await;
            postgres(&place, &database, &shape, times).await?;
            // Before its files go.
            database.server().stop();
        }
        Ok(())
    })
}

/// Where a database is, and how far it was filled before.
struct Place {
    directory: PathBuf,
}

impl Place {
    fn new(home: &Path, name: &str, messages: usize) -> Result<Self> {
        let directory = home.join(format!("{name}-{messages}"));
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    /// Does what was not done before, and says how long that took.
    async fn once(&self, name: &str, what: &str, work: impl Future<Output = Result<()>>) -> Result<()> {
        let done = self.directory.join(format!("has-{what}"));
        if done.exists() {
            return Ok(());
        }
        let began = Instant::now();
        work.await?;
        eprintln!("{name}: {what}: {:.1} s", began.elapsed().as_secs_f64());
        Ok(fs::write(done, "")?)
    }
}

async fn sqlite(place: &Place, shape: &Shape, times: usize) -> Result<()> {
    let settings = Settings::embedded(&place.directory);
    drop(Sink::open(&settings).await?);
    place.once("SQLite", "rows", fill::sqlite(&settings.file, shape)).await?;
    place.once("SQLite", "index", index(&settings)).await?;
    measure("SQLite", &settings, times, None).await
}

async fn postgres(place: &Place, database: &Database, shape: &Shape, times: usize) -> Result<()> {
    let url = database.url().parse().map_err(anyhow::Error::msg)?;
    let settings = Settings { url, ..Settings::embedded(&place.directory) };
    drop(Sink::open(&settings).await?);
    let mut connection = database.connect().await;
    place.once("Postgres", "rows", fill::postgres(&mut connection, shape)).await?;
    let documents = async {
        fill::without_indices(&mut connection, database.name()).await?;
        index(&settings).await
    };
    place.once("Postgres", "documents", documents).await?;
    place.once("Postgres", "indices", fill::with_indices(&mut connection)).await?;
    measure("Postgres", &settings, times, Some(database.server())).await
}

/// Indexes by the steps that the service makes.
async fn index(settings: &Settings) -> Result<()> {
    let mut sink = Sink::open(settings).await?;
    let (mut steps, mut told) = (0_u64, Instant::now());
    while sink.index_some().await? {
        steps += 1;
        if told.elapsed() > PROGRESS {
            told = Instant::now();
            eprintln!("  {steps} steps");
        }
    }
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
    let (mut all, mut missed) = (Vec::new(), 0);
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
        missed += usize::from(percentile(&took, 99) > GOAL);
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
    let verdict = if missed == 0 { "✓".to_owned() } else { format!("✗ ({missed} are not)") };
    println!("{verdict} p99 of each kind of search within {} ms", GOAL.as_millis());
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
        ("a common word, the repository's name only", |_| {
            (common().to_owned(), Filter { repository: Some("repo23".to_owned()), ..Filter::default() })
        }),
        ("a middling word in one old week", |lot| {
            let since_us = Some(NOW_US - 60 * DAY_US);
            (lot.middling(), Filter { since_us, until_us: Some(NOW_US - 53 * DAY_US), ..Filter::default() })
        }),
    ]
}
