//! The demo agent, driven as an editor would: the real binary over pipes, with a home of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "JSON literals read better without a borrow")]

mod life;
mod peer;
mod protocol;
mod scripts;
mod sessions;
mod turns;
