//! The policy's reading of command lines, held against real shells: whenever a line is understood,
//! a shell under strace starts no program, enters no directory and opens no file that the reading
//! did not name.
//!
//! `ORACLE_RUNS` says how many understood lines are tried, `ORACLE_SEED` where the generator begins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::print_stderr, reason = "a run that fails must be possible again")]

mod lines;
mod trace;
mod world;

use std::env;

use conductor::policy::{Ground, SubAction, shell};

use crate::{
    lines::Lines,
    trace::Shell,
    world::{Claim, World},
};

/// Enough for the everyday run: some seconds.
const USUAL_RUNS: usize = 600;
/// How many lines one strace follows.
const BATCH: usize = 75;

fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable)
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

fn is_understood(subs: &[SubAction]) -> bool {
    !subs.iter().any(|sub| matches!(sub, SubAction::Unknown { .. }))
}

#[test]
fn g06_shells_do_what_was_read_and_nothing_else() {
    let seed = number("ORACLE_SEED", 6);
    let runs = number("ORACLE_RUNS", USUAL_RUNS as u64) as usize;
    let world = World::new();
    let shells = Shell::installed();
    eprintln!("ORACLE_SEED={seed} ORACLE_RUNS={runs} with {shells:?}");

    let mut lines = Lines::new(seed);
    let (mut tried, mut generated, mut started) = (0, 0, 0);
    while tried < runs {
        let mut claims = Vec::new();
        while claims.len() < BATCH.min(runs - tried) {
            let line = lines.next();
            generated += 1;
            let subs = shell::line(&line, &Ground { cwd: &world.cwd, resolver: &world });
            assert!(!subs.is_empty(), "{line:?} came to nothing");
            if is_understood(&subs) {
                claims.push(Claim { line, subs });
            }
            assert!(generated < 1000 + 100 * runs, "hardly any line is understood: {tried} of {generated}");
        }
        let shell = &shells[tried / BATCH % shells.len()];
        for (claim, seen) in claims.iter().zip(trace::run(shell, &world, &claims)) {
            let wrong = world.unnamed(claim, &seen);
            assert!(
                wrong.is_empty(),
                "{shell:?} with {:?}\n{wrong:#?}\nread as {:#?}",
                claim.line,
                claim.shown()
            );
            started += seen.iter().filter(|event| event.is_start()).count();
        }
        tried += claims.len();
    }
    eprintln!("{tried} of {generated} lines were understood, {started} programs were started");
    assert!(started > tried / 2, "only {started} programs were started by {tried} lines: nothing was tested");
    assert!(
        generated > tried + tried / 4,
        "{generated} lines, {tried} understood: too tame to find anything"
    );
}

/// An oracle that never finds anything would be worth nothing.
#[test]
fn what_is_not_named_is_found() {
    let world = World::new();
    let bash = &Shell::installed()[0];
    let lies = [
        // What is run, and what is claimed.
        ("tool $(other x)", "tool"),
        ("tool *", "tool '*'"),
        ("tool a; other b", "tool a"),
        ("tool a && tool b", "tool a"),
        ("cd dir && tool", "tool"),
        ("cd link && tool", "cd dir && tool"),
        ("tool > new", "tool"),
        ("tool < file", "tool"),
        ("tool a{1,2}", "tool 'a{1,2}'"),
        ("env tool a", "tool b"),
        ("bash -c 'tool a; other'", "bash -c 'tool a'"),
        ("X=1 other", "tool"),
        ("./dir/local", "tool"),
        ("tool ~", "tool '~'"),
    ];
    let claims: Vec<_> = lies
        .iter()
        .map(|(line, claimed)| {
            let subs = shell::line(claimed, &Ground { cwd: &world.cwd, resolver: &world });
            assert!(is_understood(&subs), "{claimed}: {subs:?}");
            Claim { line: (*line).to_owned(), subs }
        })
        .collect();
    for (claim, seen) in claims.iter().zip(trace::run(bash, &world, &claims)) {
        assert!(!world.unnamed(claim, &seen).is_empty(), "not found in {:?}: {seen:#?}", claim.line);
    }
}

/// What agents write all day is understood, or the whole is of no use.
#[test]
fn harmless_lines_are_understood_and_true() {
    let world = World::new();
    let claims: Vec<_> = lines::HARMLESS
        .iter()
        .map(|line| {
            let subs = shell::line(line, &Ground { cwd: &world.cwd, resolver: &world });
            assert!(is_understood(&subs), "{line}: {subs:#?}");
            Claim { line: (*line).to_owned(), subs }
        })
        .collect();
    for shell in Shell::installed() {
        for (claim, seen) in claims.iter().zip(trace::run(&shell, &world, &claims)) {
            let wrong = world.unnamed(claim, &seen);
            assert!(
                wrong.is_empty(),
                "{shell:?} with {:?}\n{wrong:#?}\nread as {:#?}",
                claim.line,
                claim.shown()
            );
            assert!(
                seen.iter().any(trace::Event::is_start),
                "{shell:?} started nothing for {:?}",
                claim.line
            );
        }
    }
}
