//! conductor
pub mod acp;
pub mod agent;
pub mod banner;
pub mod bridge;
pub mod cli;
pub mod client;
pub mod clock;
pub mod commands;
pub mod config;
pub mod connection;
pub mod demo;
pub mod frame;
pub mod grpc;
pub mod guard;
pub mod identity;
pub mod pending;
pub mod pool;
pub mod queue;
pub mod router;
pub mod serve;
pub mod session;
pub mod state;
pub mod tasks;
pub mod telemetry;
/// Generated from `proto/`.
#[allow(missing_docs)]
pub mod proto {
    tonic::include_proto!("conductor.v1");
    /// The descriptors that reflection serves.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
