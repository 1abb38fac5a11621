//! The sub-commands for people: clients of a running service, and what helps
//! to get one running.

pub mod agents;
mod answer;
mod conversation;
mod diff;
pub mod doctor;
mod events;
mod markdown;
mod notes;
mod opening;
pub mod pages;
mod permission;
mod plan;
pub mod prompt;
mod table;
mod terminal;
mod tool;
mod turn;
mod usage;
