//! `session/update`: messages, usage, titles, and the doors to tool calls and
//! options.

use super::{
    LINE, NAME, Step, digest,
    json::{cut, int, pick, real, short, some, text},
    telling::Teller,
};
use crate::{
    ledger::table::{Fact, MESSAGES, USAGE},
    record::Origin,
};

/// Longest text of a message.
const MOST_MESSAGE: usize = 1 << 20;
/// Messages with ids that may still grow, besides each other.
const MOST_MESSAGES: usize = 8;
/// Money beyond this is no cost of anything; sums must stay sums.
const MOST_COST: f64 = 1e9;

/// The messages that may still grow.
#[derive(Debug, Default)]
pub struct Messages {
    /// The last one, if nothing has come since.
    open: Option<Message>,
    /// Those that have an id, whatever came since.
    named: Vec<Message>,
}

#[derive(Debug, Clone)]
struct Message {
    seq: i64,
    role: &'static str,
    id: Option<u64>,
    /// How much text it has, and whether it has lost some.
    length: usize,
    truncated: bool,
}

impl Messages {
    /// Whatever comes next is another message.
    pub fn close(&mut self) {
        self.open = None;
        self.named.clear();
    }

    /// What has no id is interrupted.
    fn interrupt(&mut self) {
        self.open = None;
    }

    /// The message that a chunk belongs to.
    fn of(&mut self, seq: i64, role: &'static str, id: Option<u64>) -> &mut Message {
        let fresh = Message { seq, role, id, length: 0, truncated: false };
        if id.is_none() {
            if self.open.as_ref().is_none_or(|open| open.role != role) {
                self.open = None;
            }
            return self.open.get_or_insert(fresh);
        }
        self.open = None;
        let known = self.named.iter().position(|message| message.role == role && message.id == id);
        let at = known.unwrap_or_else(|| {
            if self.named.len() >= MOST_MESSAGES {
                self.named.remove(0);
            }
            self.named.push(fresh);
            self.named.len() - 1
        });
        &mut self.named[at]
    }
}

impl Step<'_> {
    pub(super) fn update(&mut self, params: &str) {
        // Editors do not tell agents what happened.
        if self.frame.origin == Origin::Editor {
            return;
        }
        let (Some(kind), [Some(update)]) =
            (self.get(self.peek.update).and_then(text), pick(params, ["update"]))
        else {
            return;
        };
        match kind.as_ref() {
            "session_info_update" => {
                if let Some(title) = short(pick(update, ["title"])[0], LINE) {
                    self.session.put("title", title);
                }
            }
            // What editors are shown for all agents; the agent has told its own.
            "current_mode_update" | "config_option_update" if self.frame.origin == Origin::Conductor => {}
            "current_mode_update" => {
                let [mode, old_name] = pick(update, ["currentModeId", "modeId"]);
                self.mode(mode.or(old_name));
            }
            "config_option_update" => self.options(update),
            "available_commands_update" | "notice" => {}
            _ if self.state.replaying => {}
            "usage_update" => self.usage(update),
            "agent_message_chunk" => self.chunk(update, "agent"),
            "agent_thought_chunk" => self.chunk(update, "thought"),
            "user_message_chunk" => self.chunk(update, "user"),
            other => {
                self.state.messages.interrupt();
                if matches!(other, "tool_call" | "tool_call_update") {
                    let teller = if other == "tool_call" { Teller::Begin } else { Teller::Update };
                    self.tool_call(update, teller);
                }
            }
        }
    }

    fn chunk(&mut self, update: &str, role: &'static str) {
        let [content, id] = pick(update, ["content", "messageId"]);
        let id = id.and_then(text);
        let [words] = content.map(|content| pick(content, ["text"])).unwrap_or_default();
        let words = words.and_then(text).unwrap_or_default();
        let (seq, at, turn) = (self.seq(), self.at(), self.turn());
        let message = self.state.messages.of(seq, role, id.as_deref().map(|id| digest(&[id])));
        // Once cut, it stays cut: a later, shorter chunk must not follow a gap.
        let room = if message.truncated { 0 } else { MOST_MESSAGE.saturating_sub(message.length) };
        let part = &words[..words.floor_char_boundary(room)];
        message.length += part.len();
        message.truncated |= part.len() < words.len();
        let (first, truncated) = (message.seq, message.truncated);
        let mut fact = Fact::new(MESSAGES, [self.id().into(), first.into()]);
        fact.put("turn", turn);
        fact.put("role", role);
        fact.put("message_id", id.as_deref().map(|id| cut(id, NAME)));
        fact.put("began_us", at);
        fact.put("ended_us", at);
        fact.put("chunks", 1i64);
        fact.put("truncated", truncated);
        fact.put("text", part);
        self.facts.push(fact);
    }

    /// The context's size, and what the session has cost so far.
    fn usage(&mut self, update: &str) {
        let [used, size, cost] = pick(update, ["used", "size", "cost"]);
        let [amount, currency] =
            some(cost).map(|cost| pick(cost, ["amount", "currency"])).unwrap_or_default();
        let total = amount.and_then(real).filter(|total| (0.0..=MOST_COST).contains(total));
        let mut fact = self.row(USAGE, [self.id().into(), self.seq().into()]);
        fact.put("model", self.state.model.clone());
        fact.put("at_us", self.at());
        fact.put("context_used", used.and_then(int));
        fact.put("context_size", size.and_then(int));
        if let Some(total) = total {
            // An agent that was started again counts from nothing.
            let before = self.state.cost.replace(total).filter(|before| *before <= total).unwrap_or(0.0);
            fact.put("cost", total - before);
            fact.put("cost_total", total);
            fact.put("currency", short(currency, 16));
        }
        self.facts.push(fact);
    }
}
