//! The sub-commands that are clients of a running service.

pub mod agents;
mod answer;
mod conversation;
mod notes;
mod permission;
pub mod prompt;
mod table;
mod terminal;
mod turn;
