#![doc = include_str!("../ARCHITECTURE.md")]

// What a line is. No I/O.
pub mod frame; // a frame as bytes with the positions we route by
pub mod pending; // requests in flight and their ids on the wire
pub mod queue; // a queue bounded in items and bytes
pub mod acp; // what the conductor itself says
pub mod options; // what an agent lets people choose
pub mod record; // what is written down: streams, origins, notes
pub mod redact; // the recorded form of a frame: as it came, but for secrets
pub mod metrics; // what is counted, without a lock

// What the service knows and trusts.
pub mod config; // defaults + agents.toml + CONDUCTOR_*, immutable once checked
pub mod state; // the state directory: lock, token, endpoint, logins
pub mod tls; // certificates, keys, and what connections are greeted with
pub mod identity; // who is calling, and how they prove it
pub mod limits; // how much users and teams may use, and have used
pub mod cwd_map; // paths of editors' machines and of this host
pub mod policy; // what agents may do: normalise, rules, verdict
pub mod grants; // answers of people that are remembered
pub mod catalogue; // which models and modes the agents offer
pub mod routes; // which agent a prompt goes to

// Agents and their processes.
pub mod tasks; // the one place that starts tasks
pub mod heap; // how much freed memory stays for the next run
pub mod contain; // what holds an agent, whatever it does
pub mod guard; // the small parent of every agent process
pub mod agent; // one process from spawn to exit record
pub mod fetch; // one HTTP request to an address of the configuration
pub mod secrets; // what users and teams give to their agents
pub mod pool; // warm, lease, restart, quarantine
pub mod workspace; // files and terminals on this host, for agents that ask

// The record.
pub mod journal; // the crash-safe log that every frame enters first
pub mod recorder; // one stream's way into it
pub mod ledger; // the queryable record, made from frames
pub mod feed; // what happens, told to others as it happens

// Editors and their sessions.
pub mod store; // the small file of what is needed in order to act
pub mod approvals; // what waits for people, and what became of it
pub mod router; // session id → where it is bound; one of the two locks
pub mod session; // one conversation, both directions
pub mod connection; // one editor: handshake, sessions, ids
pub mod tether; // ties it to its streams, one after the other
pub mod erasure; // what the service holds of sessions that are to be forgotten
pub mod grpc; // proto ↔ our types
pub mod admin; // metrics and health over plain HTTP, for machines
pub mod notify; // word to the service manager
pub mod serve; // build bottom-up, wait, drain top-down

// On people's machines.
pub mod client; // finding the service, trusting it, and being let in
pub mod bridge; // `conductor connect`
pub mod commands; // every other sub-command: `prompt`, `sessions`, `policy`, `ledger`, `doctor` …
pub mod demo; // the built-in agent without a model

// The program's face.
pub mod cli; // every flag and help text, as data
pub mod banner; // what `serve` prints when it is ready
pub mod telemetry; // log, traces and metrics on their way out
pub mod clock; // times for people and machines

/// Generated from `proto/conductor/v1`; documented there, field by field.
#[allow(missing_docs, reason = "the documentation of generated code is in the protos")]
pub mod proto {
    tonic::include_proto!("conductor.v1");
    /// The descriptors that reflection serves.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
