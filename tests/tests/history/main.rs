//! What the record tells, asked in every way there is: typed questions, SQL,
//! gRPC and the commands for people, of both databases.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod commands;
mod fixture;
mod frames;
mod grpc;
mod questions;
mod readme;
mod sql;
