//! Secrets reach whom they are for, and the record never holds them: not the journal, the
//! ledger, the store, the log, a command line, an error or a trace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod canaries;
mod coming_back;
mod pieces;
mod planted;
mod recorded;
