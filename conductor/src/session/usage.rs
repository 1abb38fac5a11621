//! What a session's agents report of tokens and money, for the limits of whoever
//! prompted. Looked at where it is reported. Some agents do that with every update, so
//! what is told again is counted nowhere and asks for no lock.

use serde::Deserialize;

use super::{Purpose, Session, handle::LEAD};
use crate::{
    ledger::project::{self, json},
    limits::micros,
};

/// What the limits were told last: of which agent, and how much.
pub(super) type Cost = Option<(String, u64)>;

#[derive(Deserialize)]
struct Told {
    update: Update,
}

#[derive(Deserialize)]
struct Update {
    cost: Option<Amount>,
}

#[derive(Deserialize)]
struct Amount {
    amount: f64,
}

impl Session {
    /// The parameters of a `usage_update`: what the session has cost so far.
    pub(super) fn hear_cost(&mut self, params: &[u8]) {
        let told = serde_json::from_slice::<Told>(params).ok();
        let cost = told.and_then(|told| micros(told.update.cost?.amount));
        let Some(total) = cost else { return };
        // Whoever prompted pays; what comes outside of turns, who opened it.
        let prompt = self.requests.find(|request| request.purpose == Purpose::Prompt);
        let (seat, in_turn) = prompt.map_or((LEAD, false), |(_, request)| (request.seat, true));
        let known = self.cost.as_ref().filter(|(agent, _)| agent == self.agent()).map(|(_, total)| *total);
        if known == Some(total) || (!in_turn && known > Some(total)) {
            return;
        }
        self.router.limits().cost(self.open.id, self.agent(), self.caller(seat), total, in_turn);
        // Outside of a turn less may be history, of which the limits know more.
        if in_turn || known.is_some() {
            self.cost = Some((self.agent().to_owned(), total));
        }
    }

    /// The result of a prompt: what its turn took.
    pub(super) fn hear_tokens(&self, seat: u32, result: &[u8]) {
        let Ok(result) = std::str::from_utf8(result) else { return };
        let Some(usage) = json::some(json::pick(result, ["usage"])[0]) else { return };
        let [input, output, thought, cached_read, cached_write, total] = project::tokens(usage);
        // Not every agent adds up for us.
        let parts = [input, output, thought, cached_read, cached_write].into_iter().flatten().sum();
        let tokens = u64::try_from(total.unwrap_or(parts)).unwrap_or_default();
        if tokens > 0 {
            self.router.limits().tokens(self.caller(seat), tokens);
        }
    }
}
