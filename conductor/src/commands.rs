//! The sub-commands for people: clients of a running service, and what helps
//! to get one running.

pub mod agents;
mod answer;
mod conversation;
mod diff;
pub mod doctor;
mod events;
pub mod ledger;
mod markdown;
mod notes;
mod opening;
pub mod pages;
mod permission;
mod plan;
pub mod policy;
mod progress;
pub mod prompt;
pub mod sessions;
mod table;
mod terminal;
pub mod token;
mod tool;
mod turn;
mod usage;
