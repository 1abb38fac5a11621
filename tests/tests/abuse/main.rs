//! The port as those meet it who mean no good: floods of frames, of resets and
//! of bad tokens, things half said, and headers that want to be log lines (V4 to
//! V6 and U7 of the faults). Bounded in count and time, and on loopback only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod floods;
mod h2;
mod headers;
mod tokens;
