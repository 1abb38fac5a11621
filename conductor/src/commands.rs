//! The sub-commands for people: clients of a running service, and what helps
//! to get one running.

pub mod agents;
mod answer;
pub mod approvals;
mod conversation;
mod diff;
pub mod doctor;
mod events;
mod finish;
mod ids;
pub mod ledger;
pub mod login;
mod markdown;
pub mod models;
mod notes;
mod opening;
pub mod pages;
mod permission;
mod plan;
pub mod policy;
mod progress;
pub mod prompt;
pub mod route;
pub mod sessions;
mod table;
mod terminal;
pub mod grants;
pub mod token;
mod tool;
mod turn;
mod turn_usage;
pub mod usage;
pub mod whoami;
