//! Running the service day by day: reloading its files, under a service manager,
//! with what `deploy/` ships, and with bridges of other versions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod deploy;
mod reloading;
mod unit;
mod versions;
