//! What a session has under way: requests in both directions, the running turn,
//! and the place at the agent that it all belongs to.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use uuid::Uuid;

use super::{handle::LEAD, judging::Ruling};
use crate::{
    agent::Process,
    frame::{Frame, Method},
    pool::Lease,
};

/// A request of the editor (or our own) that the agent has not answered.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) purpose: Purpose,
    /// Who asked.
    pub(super) seat: u32,
    /// The editor's id of it, raw; empty for our own.
    pub(super) editor_id: Bytes,
    /// The mode that it sets.
    pub(super) sets: Option<String>,
}

impl Request {
    /// One of our own.
    pub(super) fn ours(purpose: Purpose) -> Self {
        Self { purpose, seat: LEAD, editor_id: Bytes::new(), sets: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Open,
    Prompt,
    Relay,
    /// Our own attempt to come back to the agent's session.
    Rebind,
    /// Our own `session/set_config_option` or `session/set_mode`.
    Wish,
    /// Our own request that a forbidden mode be left.
    SetBack,
    /// Our own `session/close`.
    Close,
}

/// A request of the agent that the editor has not answered.
#[derive(Debug)]
pub(super) struct Ask {
    /// The agent's id of it, raw.
    pub(super) agent_id: Bytes,
    pub(super) method: Method,
    /// The agent has withdrawn it; by then the answer is due.
    pub(super) withdrawn: Option<Instant>,
    /// A permission request as it came, for those who come later.
    pub(super) frame: Option<Bytes>,
    /// The answers that a permission request offers.
    pub(super) options: Vec<Offer>,
    /// Seats whose editor has answered it with anything but an option.
    pub(super) declined: Vec<u32>,
    /// What the policy has said to it.
    pub(super) ruling: Option<Ruling>,
    /// What waits for the answer to a question of our own.
    pub(super) held: Option<Held>,
    /// When it was asked.
    pub(super) asked: Instant,
}

/// What waits until somebody has allowed it.
#[derive(Debug)]
pub(super) enum Held {
    /// A request of the agent.
    Request(Frame),
    /// The opening of the session itself.
    Opening,
}

/// An answer that a permission request offers.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) id: String,
    pub(super) kind: OfferKind,
}

/// What an answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfferKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
    RejectAlways,
    /// Something that is not in the protocol as we know it.
    Other,
}

impl OfferKind {
    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "allow_once" => Self::AllowOnce,
            "allow_always" => Self::AllowAlways,
            "reject_once" => Self::RejectOnce,
            "reject_always" => Self::RejectAlways,
            _ => Self::Other,
        }
    }
}

impl Ask {
    pub(super) fn new(agent_id: Bytes, method: Method) -> Self {
        Self {
            agent_id,
            method,
            withdrawn: None,
            frame: None,
            options: Vec::new(),
            declined: Vec::new(),
            ruling: None,
            held: None,
            asked: Instant::now(),
        }
    }

    /// Whether people are asked for permission.
    pub(super) fn is_permission(&self) -> bool {
        self.frame.is_some()
    }

    /// Whether a permission request offers this option.
    pub(super) fn offers(&self, option: &str) -> bool {
        self.options.iter().any(|offer| offer.id == option)
    }
}

/// The running turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// Number of its prompt among the requests.
    pub(super) number: u32,
    /// Its record begins behind this number.
    pub(super) from_seq: u64,
    /// It was cancelled; by then it must have ended.
    pub(super) cancelled: Option<Instant>,
}

/// The agent's side of the session.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) id: Uuid,
    pub(super) lease: Lease,
    pub(super) slot: u32,
    /// The agent's id of the session, with quotes; empty until it is told.
    pub(super) name: Bytes,
}

impl Binding {
    pub(super) fn process(&self) -> &Arc<Process> {
        &self.lease.process
    }
}
