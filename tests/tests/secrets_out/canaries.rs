//! Values that must be found nowhere but where they belong, and where they are searched for.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use conductor_tests::{files::files, harness::Service, postgres::Database};
use sqlx::Row as _;

/// Makes canaries, no two alike.
#[derive(Default)]
pub struct Canaries {
    pub all: Vec<String>,
}

/// Letters and digits that no counter makes, always the same for a number.
fn dense(number: usize, len: usize) -> String {
    const SIGNS: &[u8] = b"aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0";
    let mut state = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            char::from(SIGNS[usize::try_from(state % SIGNS.len() as u64).unwrap()])
        })
        .collect()
}

impl Canaries {
    /// One with nothing special about it.
    pub fn next(&mut self) -> String {
        let number = self.all.len();
        self.take(format!("cnry{number}-{}", dense(number, 14)))
    }

    /// One that every encoding writes in another way.
    pub fn awkward(&mut self) -> String {
        let number = self.all.len();
        self.take(format!("cn\"ry{number}\\{}/é\n{}+=&", dense(number, 9), dense(number + 7, 5)))
    }

    /// One that is known by its looks alone.
    pub fn token(&mut self) -> String {
        let number = self.all.len();
        let dense = |len| dense(number, len);
        let token = match number % 8 {
            0 => format!("sk-{}", dense(44)),
            1 => format!("sk-ant-api03-{}", dense(80)),
            2 => format!("ghp_{}", dense(36)),
            3 => format!("glpat-{}", dense(20)),
            4 => format!("xoxb-1234567890-{}", dense(24)),
            5 => format!("AKIA{}", dense(16).to_uppercase()),
            6 => format!("AIza{}", dense(35)),
            _ => format!("eyJ{}.eyJ{}.{}", dense(20), dense(40), dense(43)),
        };
        self.take(token)
    }

    fn take(&mut self, canary: String) -> String {
        assert!(!self.all.contains(&canary));
        self.all.push(canary.clone());
        canary
    }

    /// The parts of each that stay as they are however it is written.
    fn needles(&self) -> Vec<(&str, Vec<u8>)> {
        self.all
            .iter()
            .map(|canary| {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                let longest = canary.split(|c| !plain(c)).max_by_key(|part| part.len()).unwrap();
                (canary.as_str(), longest.as_bytes().to_vec())
            })
            .collect()
    }

    /// Fails if one of them is in there.
    pub fn are_not_in(&self, what: &str, bytes: &[u8]) {
        for (canary, needle) in self.needles() {
            if let Some(at) = memchr::memmem::find(bytes, &needle) {
                let near = &bytes[at.saturating_sub(300)..(at + 100).min(bytes.len())];
                panic!("{canary:?} is in {what}: …{}…", String::from_utf8_lossy(near));
            }
        }
    }

    /// Fails if one of them is in a file beneath a directory, but for those in `except`.
    pub fn are_not_beneath(&self, dir: &Path, except: &[PathBuf]) {
        let found = files(dir, except);
        assert!(found.iter().any(|path| path.starts_with(dir.join("journal"))), "no journal was read");
        for path in found {
            self.are_not_in(&path.display().to_string(), &fs::read(&path).unwrap_or_default());
        }
    }

    /// Fails if one of them is in a command line of the service's processes.
    pub fn are_in_no_command_line(&self, service: &Service) {
        let running = service.processes();
        assert!(!running.is_empty());
        for process in running {
            self.are_not_in("a command line", process.command.as_bytes());
        }
    }

    /// Fails if one of them is in a table of the database.
    pub async fn are_in_no_table(&self, database: &Database) {
        let mut connection = database.connect().await;
        let tables = "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns \
                      WHERE table_schema = 'public' ORDER BY 1, 2";
        let columns = sqlx::query(tables).fetch_all(&mut connection).await.unwrap();
        assert!(columns.iter().any(|row| row.get::<String, _>(0) == "frames"), "no frames");
        for column in columns {
            let (table, name, kind): (String, String, String) = (column.get(0), column.get(1), column.get(2));
            let text = match kind.as_str() {
                "bytea" => format!("encode(\"{name}\", 'escape')"),
                _ => format!("\"{name}\"::text"),
            };
            let query = format!("SELECT coalesce(string_agg({text}, ' '), '') FROM \"{table}\"");
            let all = sqlx::query(sqlx::AssertSqlSafe(query)).fetch_one(&mut connection).await.unwrap();
            self.are_not_in(&format!("{table}.{name}"), all.get::<String, _>(0).as_bytes());
        }
    }
}

/// All that the journal holds.
pub fn journal(service: &Service) -> Vec<u8> {
    let mut found = files(&service.state().join("journal"), &[]);
    found.sort();
    // A running service replaces its small files, and a draft of one is there for a moment only.
    let read = |path: &PathBuf| match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read.unwrap(),
    };
    found.iter().flat_map(read).collect()
}

/// The tags that stand behind a text in the journal.
pub fn tags(service: &Service, before: &str) -> Vec<String> {
    let bytes = journal(service);
    let finder = memchr::memmem::Finder::new(before);
    let ends = finder.find_iter(&bytes).map(|at| at + before.len());
    ends.map(|at| String::from_utf8_lossy(&bytes[at..at + 8]).into_owned()).collect()
}
