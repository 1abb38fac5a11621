//! What the shipped rules say, as a person would ask: tables of attempts that must not pass and of everyday work that must,
//! put to the real program in a workspace with real files, links and neighbours.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod actions;
mod asked;
mod bypass;
mod bypass_paths;
mod bypass_requests;
mod bypass_shell;
mod bypass_tools;
mod bypass_words;
mod harmless;
mod shipped;
