//! Tools for tests that meet the conductor at its edges: real processes, real
//! pipes, a real socket.
//!
//! - [`fake`]: a scripted ACP agent, also as the program `fake-agent`
//! - [`ledger`]: what that agent received and sent, written by itself: the
//!   oracle for loss, order and byte equality
//! - [`admin`]: the admin listener as Prometheus and an orchestrator meet it
//! - [`bubblewrap`]: the program that makes bubbles, installed if need be
//! - [`certificates`]: a CA of a test's own, and what it signs
//! - [`clock`]: a wall clock that jumps when a test says so
//! - [`collector`]: an OpenTelemetry collector that keeps what it is sent
//! - [`dice`]: numbers that come again from the same seed
//! - [`disk`]: a disk that fails when a test says so, and what the journal holds
//! - [`editor`]: a fake editor that drives any ACP agent command on stdio
//! - [`files`]: what is beneath a directory
//! - [`issuer`]: a small OIDC issuer, which misbehaves when a test says so
//! - [`mount`]: a file system that hangs when a test says so
//! - [`peers`]: programs made with the official SDKs, and what is expected of them
//! - [`people`]: others than the user the service runs as, each with a token
//! - [`postgres`]: a real Postgres, a database per test
//! - [`preload`]: libraries that let system calls of the service fail or lie
//! - [`procfs`]: what the kernel says of a process
//! - [`program`]: the program beside a ledger, and what came of it
//! - [`properties`]: what holds for any bytes, for tests and for fuzzers
//! - [`proxy`]: a TCP proxy that delays, cuts, corrupts and loses answers
//! - [`net`]: a bridge and its service with such a proxy between them
//! - [`shipping`]: a real journal, and a ledger in either database
//! - [`tunnel`]: a fake editor on the gRPC level, which may break its rules
//! - [`user`]: somebody without rights, for services that must not run as root
//! - [`harness`]: a `conductor serve` with its own directories and port, which
//!   fails the test if anything is left over

pub mod admin;
pub mod bubblewrap;
pub mod certificates;
pub mod clock;
pub mod collector;
pub mod dice;
pub mod disk;
pub mod editor;
pub mod fake;
pub mod files;
pub mod harness;
pub mod issuer;
pub mod ledger;
pub mod mount;
pub mod net;
pub mod peers;
pub mod people;
pub mod postgres;
pub mod preload;
pub mod procfs;
pub mod program;
pub mod properties;
pub mod proxy;
pub mod shipping;
pub mod tunnel;
pub mod user;
