#![doc = include_str!("../ARCHITECTURE.md")]

// What a line is. No I/O.
pub mod frame; // a frame as bytes with the positions we route by
pub mod pending; // requests in flight and their ids on the wire
pub mod queue; // a queue bounded in items and bytes
pub mod acp; // what the conductor itself says
pub mod record; // what is written down: streams, origins, notes

// What the service knows and trusts.
pub mod config; // defaults + agents.toml + CONDUCTOR_*, immutable once checked
pub mod state; // the state directory: lock, token, endpoint
pub mod identity; // who is calling, and with which token
pub mod cwd_map; // paths of editors' machines and of this host
pub mod policy; // what agents may do: normalise, rules, verdict

// Agents and their processes.
pub mod tasks; // the one place that starts tasks
pub mod guard; // the small parent of every agent process
pub mod agent; // one process from spawn to exit record
pub mod pool; // warm, lease, restart, quarantine
pub mod workspace; // files and terminals on this host, for agents that ask

// The record.
pub mod journal; // the crash-safe log that every frame enters first
pub mod recorder; // one stream's way into it
pub mod ledger; // the queryable record, made from frames

// Editors and their sessions.
pub mod store; // the small file of what is needed in order to act
pub mod router; // session id → where it is bound; the only lock
pub mod session; // one conversation, both directions
pub mod connection; // one editor: handshake, sessions, ids
pub mod tether; // ties it to its streams, one after the other
pub mod grpc; // proto ↔ our types
pub mod serve; // build bottom-up, wait, drain top-down

// On people's machines.
pub mod client; // finding the service and presenting the token
pub mod bridge; // `conductor connect`
pub mod commands; // `conductor prompt`, `agents`, `sessions`, `token`, `policy`, `ledger`, `doctor`, completions and pages
pub mod demo; // the built-in agent without a model

// The program's face.
pub mod cli; // every flag and help text, as data
pub mod banner; // what `serve` prints when it is ready
pub mod telemetry; // logging
pub mod clock; // times for people and machines

/// Generated from `proto/conductor/v1`; documented there, field by field.
#[allow(missing_docs, reason = "the documentation of generated code is in the protos")]
pub mod proto {
    tonic::include_proto!("conductor.v1");
    /// The descriptors that reflection serves.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
