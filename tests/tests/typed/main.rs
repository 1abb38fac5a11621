//! The typed service `Sessions`, driven with tonic against a real service: what
//! an editor without an ACP library does with it. The connection needs a thread
//! of its own: a service that stops waits for its clients to hang up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod client;
mod driving;
mod queue;
mod refusals;
mod sharing;
mod watching;
