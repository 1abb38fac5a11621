//! Whether it shows what was done to a ledger after it was recorded: chains,
//! checkpoints, keys, exported sessions, and what the database's roles may do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod bundle;
mod database;
mod fixture;
mod forgery;
mod mutations;
mod roles;
mod service;
mod signing;
