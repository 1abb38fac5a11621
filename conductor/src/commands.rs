//! The sub-commands that are clients of a running service.

pub mod agents;
pub mod prompt;
