//! What holds for any bytes whatever, one function for each reader of what
//! others wrote.
//!
//! `tests/properties.rs` holds each against the corpus in `fuzz/corpus` and against
//! seeded mutations of it, on every run of the tests; `make fuzz` holds the same
//! functions against libFuzzer. Whatever either finds becomes a file of the corpus.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a property fails by panicking")]

mod config;
mod frame;
mod journal;
mod lines;
mod matcher;
pub mod mutate;
mod normalise;
mod path;
mod rules;
mod shell;

use std::{panic, path::Path, sync::OnceLock};

use conductor::policy::{Effect, Ground, Imagined, Policy, SubAction, Subject};

pub use self::{
    config::config, frame::frame, journal::journal, lines::lines, matcher::matcher, normalise::normalise,
    path::path, rules::rules, shell::shell,
};

/// A reader, and how many mutations of its corpus a run of the tests tries: about
/// two seconds' worth.
#[derive(Debug, Clone, Copy)]
pub struct Property {
    /// The name of the function, of the fuzz target and of the directory of the corpus.
    pub name: &'static str,
    /// Panics if it does not hold.
    pub holds: fn(&[u8]),
    /// How many mutations are tried.
    pub runs: usize,
}

/// All of them, by name.
pub const ALL: &[Property] = &[
    Property { name: "config", holds: config, runs: 600 },
    Property { name: "frame", holds: frame, runs: 6000 },
    Property { name: "journal", holds: journal, runs: 150 },
    Property { name: "lines", holds: lines, runs: 6000 },
    Property { name: "matcher", holds: matcher, runs: 600 },
    Property { name: "normalise", holds: normalise, runs: 1500 },
    Property { name: "path", holds: path, runs: 4000 },
    Property { name: "rules", holds: rules, runs: 600 },
    Property { name: "shell", holds: shell, runs: 3000 },
];

/// libFuzzer ends the program at every panic, also at those that are caught: the
/// reader of shell lines takes a panic of the grammar that it compares itself with for
/// a no. What is not caught still ends it.
pub fn let_panics_be_caught() {
    drop(panic::take_hook());
}

/// The session's directory in an imagined world.
const HERE: &str = "/ws";

/// A disk that is the same everywhere.
fn imagined() -> Imagined {
    Imagined { roots: vec![HERE.into()] }
}

/// Takes an action apart in the imagined world.
fn taken_apart(action: &conductor::policy::Action) -> Vec<SubAction> {
    let resolver = imagined();
    conductor::policy::normalise(action, &Ground { cwd: Path::new(HERE), resolver: &resolver })
}

/// Somebody in the imagined world.
fn somebody() -> Subject {
    Subject {
        user: "ann".into(),
        teams: vec!["core".into()],
        role: "member".into(),
        agent: "claude".into(),
        cwd: HERE.into(),
        ..Subject::default()
    }
}

/// What is not understood, so that no rule may allow it.
fn is_odd(action: &SubAction) -> bool {
    match action {
        SubAction::Unknown { .. } => true,
        SubAction::Read(fact) | SubAction::Write(fact) => fact.trouble.is_some() || fact.resolved.is_none(),
        SubAction::Fetch(fact) => fact.trouble.is_some(),
        _ => false,
    }
}

/// The built-in policy, which takes a while to read.
fn built_in() -> &'static Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    POLICY.get_or_init(|| Policy::load(None).unwrap())
}

/// What the built-in policy says.
fn decision(actions: &[SubAction]) -> Effect {
    built_in().evaluate(&somebody(), actions).decision
}
