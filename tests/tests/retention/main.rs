//! What the ledger lets go of: what is old goes as a whole, what is to be forgotten loses its
//! words, wherever they stand, and both are on record. And what a backup brings back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod backup;
mod erase;
mod fixture;
mod kill;
mod retain;
mod steps;
