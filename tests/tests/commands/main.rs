//! The commands for people, as programs: `conductor prompt` and `conductor agents` against a real service, completions and
//! pages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod agents;
mod events;
mod first_hour;
mod hostile;
mod pages;
mod prompt;
mod readme;
mod screen;
mod service;
mod sessions;
mod terminal;
