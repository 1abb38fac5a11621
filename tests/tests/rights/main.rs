//! Who may make which call: the whole matrix of calls, roles, relations and
//! tokens, made from the descriptors, so that a call that nobody thought of
//! fails here by name (goal G7; V1, V2 and V7 of the faults).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod calls;
mod cast;
mod frames;
mod matrix;
mod nonsense;
mod raw;
mod roles;
