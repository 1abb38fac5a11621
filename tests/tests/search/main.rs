//! Search: what is found is what is there, in both databases, for those who may
//! know of it, soon after it happened, and no longer than it is kept.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod corpus;
mod found;
mod kept;
mod naive;
mod pages;
mod served;
mod upgraded;
