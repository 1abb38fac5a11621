//! Policies tried on what really was asked: `conductor policy replay` and `stats`, and the
//! views beside them, on both databases.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod corpus;
mod counting;
mod people;
mod records;
mod replay;
