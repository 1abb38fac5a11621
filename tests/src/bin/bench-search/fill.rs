//! A ledger of any size, quickly: rows drawn by lot, put into the derived tables at once. The triggers of the
//! index see them as they see any others.

use std::{fmt::Write as _, path::Path};

use anyhow::Result;
use conductor_tests::shipping::open_file;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection};
use uuid::Uuid;

/// When the newest of it happened: 2026-11-16T12:00:00Z.
pub const NOW_US: i64 = 1_794_830_400_000_000;
pub const DAY_US: i64 = 86_400_000_000;
const DAYS: i64 = 90;

/// Agents, the last one hardly used.
pub const AGENTS: [&str; 3] = ["claude", "codex", "demo"];
const USERS: usize = 50;
const REPOSITORIES: usize = 200;
const VOCABULARY: usize = 40_000;
const SESSION_MESSAGES: usize = 100;

/// How many rows of each table.
pub struct Shape {
    sessions: usize,
    messages: usize,
}

impl Shape {
    pub fn of(messages: usize) -> Self {
        Self { sessions: messages.div_ceil(SESSION_MESSAGES), messages }
    }
}

/// Numbers by lot, the same for the same seed.
pub struct Lot(u64);

impl Lot {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or_default() % end.max(1)
    }

    /// A word by its rank: the first ones are in most messages, most are in few, as in any language.
    fn rank(&mut self) -> usize {
        let share = (self.below(1 << 24) as f64 + 1.0) / f64::from(1 << 24);
        let rank = (VOCABULARY as f64).powf(share) - 1.0;
        rank as usize
    }

    /// A word that about one message of twenty has.
    pub fn middling(&mut self) -> String {
        word(80 + self.below(40))
    }
}

/// The word of a rank.
fn word(rank: usize) -> String {
    const SYLLABLES: [&str; 16] =
        ["ba", "co", "du", "fe", "gi", "ha", "jo", "ku", "le", "mi", "na", "po", "ru", "se", "ti", "vo"];
    let mut rest = rank + 16;
    let mut text = String::new();
    while rest > 0 {
        text.push_str(SYLLABLES[rest % 16]);
        rest /= 16;
    }
    text
}

/// A word that most messages have.
pub fn common() -> &'static str {
    "baco"
}

/// A word that some ten messages of a million have.
pub fn rare(lot: &mut Lot) -> String {
    word(VOCABULARY - 1 - lot.below(2000))
}

pub fn phrase(lot: &mut Lot) -> String {
    format!("\"{} {}\"", word(lot.below(10)), word(10 + lot.below(20)))
}

pub fn rare_path(lot: &mut Lot) -> String {
    let name = word(30_000 + lot.below(5000));
    format!("{}.r", &name[name.len() - 5..])
}

pub fn rare_user() -> String {
    format!("user{}", USERS - 1)
}

fn text(lot: &mut Lot, least: usize, most: usize) -> String {
    let count = least + lot.below(most - least);
    let mut text = String::with_capacity(count * 7);
    for nth in 0..count {
        if nth > 0 {
            text.push(' ');
        }
        text.push_str(&word(lot.rank()));
    }
    text
}

/// Values of a row, in the order of its columns; ids and numbers need no quotes in either form.
type Values = Vec<String>;

/// All rows, table by table: the name with its columns, and a row.
fn rows(shape: &Shape, mut put: impl FnMut(&'static str, Values)) {
    let mut lot = Lot::new(7);
    let mut left = shape.messages;
    for nth in 0..shape.sessions {
        let span = DAYS * DAY_US;
        let at = NOW_US - span
            + span / i64::try_from(shape.sessions).unwrap_or(1) * i64::try_from(nth).unwrap_or(0);
        let session = session_id(nth, at);
        // Some have most, as people do.
        let user = format!(
            "user{}",
            if nth % 997 == 3 { USERS - 1 } else { lot.below(USERS - 1).min(lot.below(USERS - 1)) }
        );
        let agent = AGENTS[if nth % 499 == 5 { 2 } else { lot.below(2) }];
        let repository = format!("/w/repo{}", lot.below(REPOSITORIES));
        put(
            "sessions (session_id, user_name, agent, cwd, repository, title, opened_us)",
            vec![
                session.clone(),
                user.clone(),
                agent.to_owned(),
                repository.clone(),
                repository.clone(),
                text(&mut lot, 2, 6),
                at.to_string(),
            ],
        );
        let (mut seq, mut turn) = (1_i64, 1_i64);
        for nth in 0..SESSION_MESSAGES.min(left) {
            left -= 1;
            seq += 3;
            let at = (at + seq * 1_000_000).to_string();
            let by = |rest: Values| {
                [vec![session.clone(), seq.to_string(), user.clone(), agent.to_owned(), at.clone()], rest]
                    .concat()
            };
            if nth % 10 == 0 {
                turn = seq;
                put(
                    "turns (session_id, turn, user_name, agent, began_us, prompt)",
                    by(vec![text(&mut lot, 5, 40)]),
                );
                let input = format!("{{\"query\": \"{}\"}}", text(&mut lot, 3, 10));
                put(
                    "tool_calls (session_id, call, user_name, agent, began_us, name, title, input)",
                    by(vec!["Grep".to_owned(), text(&mut lot, 2, 5), input]),
                );
                let options = ["--workspace", "--quiet", "--release", "-p conductor"];
                let line = format!("cargo test {} {}", options[lot.below(4)], word(lot.rank()));
                put(
                    "commands (session_id, seq, user_name, agent, began_us, source, line)",
                    by(vec!["tool".to_owned(), line]),
                );
                let path =
                    format!("{repository}/src/{}/{}.rs", word(lot.below(300)), word(lot.below(VOCABULARY)));
                put(
                    "file_accesses (session_id, seq, user_name, agent, at_us, item, path, access)",
                    by(vec!["0".to_owned(), path, "read".to_owned()]),
                );
            } else {
                let said = text(&mut lot, 10, 110);
                put(
                    "messages (session_id, message, turn, role, began_us, text)",
                    vec![session.clone(), seq.to_string(), turn.to_string(), "agent".to_owned(), at, said],
                );
            }
        }
    }
}

/// Ids begin with the time, as the service's do.
fn session_id(nth: usize, at_us: i64) -> String {
    let time = u128::try_from(at_us / 1000).unwrap_or_default() << 80;
    Uuid::from_u128(time | 0x7000_8000_0000_0000_0000 | nth as u128).to_string()
}

const SQLITE_ROWS: usize = 64;

pub async fn sqlite(file: &Path, shape: &Shape) -> Result<()> {
    let mut batches: Vec<(&'static str, Vec<Values>)> = Vec::new();
    let mut connection = open_file(file).await;
    connection
        .execute("PRAGMA journal_mode = wal; PRAGMA synchronous = off; PRAGMA cache_size = -200000; BEGIN")
        .await?;
    let mut full = Vec::new();
    rows(shape, |table, values| {
        let at = batches.iter().position(|(name, _)| *name == table).unwrap_or_else(|| {
            batches.push((table, Vec::new()));
            batches.len() - 1
        });
        batches[at].1.push(values);
        if batches[at].1.len() == SQLITE_ROWS {
            full.push((table, std::mem::take(&mut batches[at].1)));
        }
    });
    full.extend(batches);
    for (table, rows) in full.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        let row = format!("({})", vec!["?"; rows[0].len()].join(", "));
        let statement = format!("INSERT INTO {table} VALUES {}", vec![row; rows.len()].join(", "));
        let mut query = sqlx::query(AssertSqlSafe(statement));
        for value in rows.iter().flatten() {
            query = query.bind(value);
        }
        query.execute(&mut connection).await?;
    }
    connection.execute("COMMIT").await?;
    Ok(())
}

pub async fn postgres(connection: &mut PgConnection, shape: &Shape) -> Result<()> {
    let mut tables: Vec<(&'static str, String)> = Vec::new();
    rows(shape, |table, values| {
        let at = tables.iter().position(|(name, _)| *name == table).unwrap_or_else(|| {
            tables.push((table, String::new()));
            tables.len() - 1
        });
        // Words have nothing to escape, and JSON here no backslash.
        let _ = writeln!(tables[at].1, "{}", values.join("\t"));
    });
    for (table, lines) in tables {
        let mut copy = connection.copy_in_raw(&format!("COPY {table} FROM STDIN")).await?;
        for piece in lines.as_bytes().chunks(1 << 20) {
            copy.send(piece).await?;
        }
        copy.finish().await?;
    }
    connection.execute("VACUUM ANALYZE").await?;
    Ok(())
}

/// Takes the indices of words and parts away and keeps how they are made, so that they are made at once in the
/// end: that is faster by far. Whoever was interrupted finds them gone, and that is fine.
pub async fn without_indices(connection: &mut PgConnection, database: &str) -> Result<()> {
    for statement in [
        "CREATE TABLE IF NOT EXISTS bench_indices (name text, made text)",
        "INSERT INTO bench_indices SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index \
         JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam \
         WHERE indrelid = 'search_docs'::regclass AND amname = 'gin'",
        "DROP INDEX IF EXISTS search_docs_on_words, search_docs_on_line",
    ] {
        connection.execute(statement).await?;
    }
    connection
        .execute(AssertSqlSafe(format!("ALTER DATABASE {database} SET synchronous_commit = off")))
        .await?;
    Ok(())
}

/// Makes them again.
pub async fn with_indices(connection: &mut PgConnection) -> Result<()> {
    connection.execute("SET maintenance_work_mem = '1GB'").await?;
    let made: Vec<String> =
        sqlx::query_scalar("SELECT made FROM bench_indices").fetch_all(&mut *connection).await?;
    for statement in made {
        let statement = statement.replacen("CREATE INDEX ", "CREATE INDEX IF NOT EXISTS ", 1);
        connection.execute(AssertSqlSafe(statement)).await?;
    }
    for statement in ["VACUUM ANALYZE", "CHECKPOINT"] {
        connection.execute(statement).await?;
    }
    Ok(())
}
