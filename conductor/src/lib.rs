//! conductor
pub mod cli;
pub mod config;
pub mod demo;
pub mod guard;
pub mod state;
/// Generated from `proto/`.
#[allow(missing_docs)]
pub mod proto {
    tonic::include_proto!("conductor.v1");
    /// The descriptors that reflection serves.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
