//! Rules of the code that no compiler holds: what may stand where in
//! `conductor/src`, and what may stand nowhere. ARCHITECTURE.md names them and
//! gives the reasons; a rule that is only written down drifts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A file longer than this has more than one subject.
const MOST_LINES: usize = 600;
/// Where proto types may be used: the server, its clients, and what speaks to a
/// collector.
const SPEAK_GRPC: &[&str] =
    &["lib.rs", "grpc", "client", "bridge", "commands", "telemetry/collector.rs", "telemetry/numbers.rs"];

/// Where processes are started.
const START_PROCESSES: &[&str] = &["agent/process.rs", "guard"];

/// Where the compiler is told that we know better.
const UNSAFE: &[&str] = &["guard"];

/// Who speaks SQL, and how a statement begins.
const SPEAK_SQL: &[&str] = &["ledger", "store"];
const STATEMENTS: &[&str] = &[
    "SELECT ",
    "WITH ",
    "INSERT ",
    "REPLACE INTO ",
    "UPDATE ",
    "DELETE FROM ",
    "CREATE ",
    "ALTER ",
    "DROP ",
    "PRAGMA ",
];

/// Who has a lock.
const LOCKS: &[&str] = &["router.rs", "journal"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Every source file beneath `conductor/src`: its path from there, its text.
fn sources() -> Vec<(String, String)> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let source = root().join("conductor/src");
    let mut paths = Vec::new();
    walk(&source, &mut paths);
    paths.sort();
    let name = |path: &Path| path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
    let all: Vec<_> = paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect();
    assert!(all.len() > 50, "only {} source files were found; the rest was not judged", all.len());
    all
}

/// The lines of code with their numbers: without comments, and without the
/// test module at the foot, which may do as it likes.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    lines.map(|(at, line)| (at + 1, line.split("//").next().unwrap_or_default()))
}

/// Whether a module (`guard` is `guard.rs` and all of `guard/`) or a file is in
/// the list.
fn is_in(file: &str, list: &[&str]) -> bool {
    let module = file.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    list.iter().any(|entry| *entry == file || *entry == module)
}

/// Whether `word` stands in `line` as a word of its own.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part))
}

/// All places outside `allowed` where a line of code has what is forbidden.
fn offences(allowed: &[&str], forbidden: impl Fn(&str) -> bool) -> Vec<String> {
    let sources = sources();
    let elsewhere = sources.iter().filter(|(file, _)| !is_in(file, allowed));
    let lines = elsewhere.flat_map(|(file, text)| code(text).map(move |(at, line)| (file, at, line)));
    lines
        .filter(|(_, _, line)| forbidden(line))
        .map(|(file, at, line)| format!("conductor/src/{file}:{at}: {}", line.trim()))
        .collect()
}

fn none(offences: &[String], rule: &str) {
    assert!(offences.is_empty(), "{rule}:\n{}", offences.join("\n"));
}

#[test]
fn proto_types_stay_at_the_edge() {
    let found = offences(SPEAK_GRPC, |line| has_word(line, "proto") || has_word(line, "tonic"));
    none(&found, "only grpc and its clients know of protos; pass our own types instead");
}

#[test]
fn nobody_uses_grpc_but_who_serves_it() {
    // The settings of telemetry have it as the name of a protocol.
    let may = ["lib.rs", "grpc", "serve", "client", "telemetry/settings.rs"];
    let found = offences(&may, |line| has_word(line, "grpc"));
    none(&found, "what others need does not belong into grpc");
}

#[test]
fn processes_start_beneath_a_guard_only() {
    let starts = |line: &str| {
        line.contains("Command::new")
            || line.contains("process::Command")
            || line.contains("process::{Command")
    };
    none(&offences(START_PROCESSES, starts), "only agent::process and guard start processes");
}

#[test]
fn sql_stays_with_those_who_keep_records() {
    let begins = |text: &str| STATEMENTS.iter().any(|statement| text.starts_with(statement));
    let has_statement = |line: &str| {
        // A quote behind a backslash stands within a text: help may show a statement.
        let mut opened = line.match_indices('"').filter(|(at, _)| !line[..*at].ends_with('\\'));
        // Code does not begin so; a text that goes on from the line above does.
        begins(line.trim_start()) || opened.any(|(at, _)| begins(line[at + 1..].trim_start()))
    };
    assert!(has_statement(r#"ask("SELECT 1")"#) && has_statement("    DELETE FROM frames \\"));
    assert!(!has_statement(r#"help = "try \"SELECT 1\"""#) && !has_statement(r#"row(["WITH", "AS"])"#));
    none(&offences(SPEAK_SQL, has_statement), "only ledger and store speak SQL; give them a verb for it");
}

#[test]
fn the_service_never_forks() {
    let arranges = |line: &str| line.contains("pre_exec") || line.contains("fork()");
    let found = offences(&["guard"], arranges);
    none(&found, "what runs between fork and exec makes the library copy the service to start a process");
}

#[test]
fn g17_unsafe_code_stays_in_the_guard() {
    let found = offences(UNSAFE, |line| has_word(line, "unsafe") || has_word(line, "unsafe_code"));
    none(&found, "only the guard needs unsafe code");
}

#[test]
fn there_are_two_locks() {
    let locks = |line: &str| ["Mutex", "RwLock"].iter().any(|lock| has_word(line, lock));
    none(
        &offences(LOCKS, locks),
        "one task owns its state alone; only the router and the journal have a lock",
    );
    let router = fs::read_to_string(root().join("conductor/src/router.rs")).unwrap();
    let fields = code(&router).filter(|(_, line)| line.contains("Arc<Mutex<")).count();
    assert_eq!(fields, 1, "the router has one lock");
    assert!(!router.contains("tokio::sync::Mutex"), "a lock that is held across an await is none of ours");
}

#[test]
fn tasks_are_started_in_one_place() {
    let spawns = |line: &str| line.contains("tokio::spawn") || line.contains("task::spawn(");
    none(&offences(&["tasks.rs"], spawns), "start tasks with tasks::Tasks or in a JoinSet");
}

#[test]
fn there_are_no_cargo_features() {
    for manifest in ["Cargo.toml", "conductor/Cargo.toml", "tests/Cargo.toml"] {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        let table: toml::Table = text.parse().unwrap();
        assert!(!table.contains_key("features"), "{manifest}: choices are configuration, not features");
        assert!(!text.contains("optional = true"), "{manifest}: a dependency is needed or it is not");
    }
    none(&offences(&[], |line| line.contains("feature = ")), "no code depends on a cargo feature");
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    for (file, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= MOST_LINES, "conductor/src/{file} has {lines} lines: split it");
        assert!(
            !file.ends_with("mod.rs"),
            "conductor/src/{file}: a module is name.rs, its parts are in name/"
        );
        // The crate's own documentation is ARCHITECTURE.md.
        let documented = text.starts_with("//! ") || file == "lib.rs";
        assert!(documented, "conductor/src/{file} does not begin by saying why it exists");
    }
    let root = fs::read_to_string(root().join("conductor/src/lib.rs")).unwrap();
    assert!(root.starts_with("#![doc = include_str!(\"../ARCHITECTURE.md\")]"));
}

#[test]
fn the_map_names_every_module() {
    let map = fs::read_to_string(root().join("conductor/ARCHITECTURE.md")).unwrap();
    let crate_root = fs::read_to_string(root().join("conductor/src/lib.rs")).unwrap();
    let modules =
        code(&crate_root).filter_map(|(_, line)| line.trim().strip_prefix("pub mod ")?.strip_suffix(';'));
    let missing: Vec<_> = modules.filter(|module| !map.contains(&format!("[`{module}`]"))).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not name: {}", missing.join(", "));
}
