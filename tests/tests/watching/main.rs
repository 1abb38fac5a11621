//! What people and machines that watch over the service see of it: numbers,
//! probes, and how often something went on that could not be done in full.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod best_effort;
mod numbers;
mod otlp;
mod probes;
