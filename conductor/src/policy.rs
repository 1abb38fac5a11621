//! One permission policy for every agent: what an agent asks for is taken
//! apart into typed sub-actions, each is held against the rules, and the
//! strictest outcome counts.
//!
//! `normalise` looks at the disk, through a [`Resolver`], and at nothing else;
//! `evaluate` is pure. So a decision on record, which has the facts that were
//! found, can be made again with other rules.

pub mod action;
pub mod approvers;
pub mod evaluate;
pub mod explain;
pub mod live;
pub mod narrowing;
pub mod normalise;
pub mod paths;
pub mod record;
pub mod replay;
pub mod rules;
pub mod shell;
pub mod stats;
pub mod text;
pub mod topic;
pub mod urls;

pub use self::{
    action::{Command, Effect, Network, PathFact, ServerFact, SubAction, UrlFact, Word},
    approvers::{Answerer, Approvers, AskTerms, may_not_answer},
    evaluate::{Judged, Subject, Verdict},
    explain::{Explained, Question},
    live::{Live, Publisher},
    narrowing::Narrowing,
    normalise::{Action, Ground, has_duplicate_keys, normalise},
    paths::{Absent, Disk, Imagined, Resolver},
    record::{Answer, Recorded, Standing},
    rules::{Policy, PolicyError},
};
