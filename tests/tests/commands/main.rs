//! `conductor prompt` and `conductor agents` against a real service.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod agents;
mod hostile;
mod prompt;
mod service;
mod terminal;
