//! `session/update`, variant by variant, and tool calls merged over theirs.

use std::collections::HashMap;

use super::{
    Events,
    content::{
        block, blocks, command, config_options, list, location, patch, plan_entry, string, tool_content,
    },
};
use crate::{
    ledger::project::{
        LINE, digest,
        json::{dig, int, pick, real, short, some, text},
        telling::{Teller, Telling, is_end},
    },
    proto::{
        AvailableCommands, Compaction, CompactionSummary, ConfigOptions, ContextUsage, MessageChunk, Modes,
        Notice, Plan, PlanRemoved, SessionInfo, Subagent, SubagentMessage, ToolCallState, ToolStatus,
        event::Kind,
    },
};

/// Most tool calls that are remembered; what comes of others later is told
/// without what was said of them before.
const MOST_CALLS: usize = 1000;

/// What is remembered of tool calls: only what is small.
#[derive(Debug, Default)]
pub(super) struct Calls {
    by_id: HashMap<u64, Call>,
}

#[derive(Debug)]
struct Call {
    seq: u64,
    name: String,
    title: String,
    kind: String,
    status: ToolStatus,
    turn: Option<u64>,
    is_ended: bool,
    /// How good the sources of name and output are that were seen so far.
    name_rank: usize,
    output_rank: usize,
}

impl Calls {
    /// Forgets all of them: whoever made them is gone.
    pub(super) fn clear(&mut self) {
        self.by_id.clear();
    }

    fn make_room(&mut self, turn: Option<u64>) {
        if self.by_id.len() < MOST_CALLS {
            return;
        }
        self.by_id.retain(|_, call| !call.is_ended && call.turn == turn);
        if self.by_id.len() >= MOST_CALLS / 2 {
            self.by_id.clear();
        }
    }
}

impl Events {
    /// What an update says; nothing if it is of a sort that is not known.
    pub(super) fn update(&mut self, seq: u64, kind: &str, update: &str) -> Option<Kind> {
        Some(match kind {
            "user_message_chunk" => Kind::UserMessage(chunk(update)),
            "agent_message_chunk" => Kind::AgentMessage(chunk(update)),
            "agent_thought_chunk" => Kind::AgentThought(chunk(update)),
            "tool_call" => Kind::ToolCall(self.tool_call(seq, update, Teller::Begin)?),
            "tool_call_update" => Kind::ToolCall(self.tool_call(seq, update, Teller::Update)?),
            "plan" => Kind::Plan(plan(update)),
            "plan_update" => Kind::Plan(plan(dig(update, &["plan"])?)),
            "plan_removed" => Kind::PlanRemoved(PlanRemoved { plan_id: string(pick(update, ["planId"])[0]) }),
            "available_commands_update" => Kind::AvailableCommands(AvailableCommands {
                commands: list(pick(update, ["availableCommands"])[0], command),
            }),
            "current_mode_update" => {
                let [mode, old_name] = pick(update, ["currentModeId", "modeId"]);
                let current_mode_id = string(mode.or(old_name));
                Kind::Modes(Modes { current_mode_id, available: Vec::new() })
            }
            "config_option_update" => Kind::ConfigOptions(ConfigOptions {
                options: config_options(Some(dig(update, &["configOptions"])?)),
            }),
            "session_info_update" => {
                let [title, updated_at] = pick(update, ["title", "updatedAt"]);
                Kind::SessionInfo(SessionInfo { title: patch(title), updated_at: patch(updated_at) })
            }
            "usage_update" => {
                let [used, size, cost] = pick(update, ["used", "size", "cost"]);
                let [amount, currency] =
                    cost.map(|cost| pick(cost, ["amount", "currency"])).unwrap_or_default();
                let count = |json: Option<&str>| json.and_then(int).and_then(|n| u64::try_from(n).ok());
                Kind::Usage(ContextUsage {
                    used: count(used).unwrap_or_default(),
                    size: count(size).unwrap_or_default(),
                    cost: amount.and_then(real),
                    currency: string(currency),
                })
            }
            "notice" => {
                let [severity, title, description] = pick(update, ["severity", "title", "description"]);
                Kind::Notice(Notice {
                    severity: string(severity),
                    title: string(title),
                    description: string(description),
                })
            }
            "compaction_update" => {
                let [id, status, summary, error] =
                    pick(update, ["compactionId", "status", "summary", "error"]);
                Kind::Compaction(Compaction {
                    compaction_id: string(id),
                    status: string(status),
                    summary: blocks(summary),
                    error: string(error),
                })
            }
            "compaction_summary_chunk" => {
                let [id, content] = pick(update, ["compactionId", "content"]);
                Kind::CompactionSummary(CompactionSummary {
                    compaction_id: string(id),
                    content: content.map(block),
                })
            }
            "subagent_update" => {
                let [id, title, description, state] =
                    pick(update, ["sessionId", "title", "description", "state"]);
                // The state is a word, or an object that says it.
                let state = state.map(|state| {
                    text(state)
                        .map_or_else(|| string(pick(state, ["state"])[0]), std::borrow::Cow::into_owned)
                });
                Kind::Subagent(Subagent {
                    session_id: string(id),
                    title: patch(title),
                    description: patch(description),
                    state,
                })
            }
            "session_message" | "session_message_chunk" => {
                let [id, sender, recipient, content] =
                    pick(update, ["messageId", "senderSessionId", "recipientSessionId", "content"]);
                let is_chunk = kind == "session_message_chunk";
                Kind::SubagentMessage(SubagentMessage {
                    message_id: string(id),
                    sender_session_id: patch(sender),
                    recipient_session_id: patch(recipient),
                    content: if is_chunk {
                        content.map(block).into_iter().collect()
                    } else {
                        blocks(content)
                    },
                    is_chunk,
                })
            }
            _ => return None,
        })
    }

    /// What a frame says of a tool call, merged with what was said before.
    pub(super) fn tool_call(&mut self, seq: u64, json: &str, teller: Teller) -> Option<ToolCallState> {
        let telling = Telling::read(json)?;
        let key = digest(&[&telling.id]);
        let turn = self.turn_seq();
        let known = self.calls.by_id.get(&key).map(|call| (call.turn, call.is_ended));
        let status = telling.status.as_deref();
        let is_new = teller.begins(known, &turn, status);
        if is_new {
            self.calls.make_room(turn);
            let call = Call {
                seq,
                name: "unknown".into(),
                title: String::new(),
                kind: String::new(),
                // It waits, unless the frame says otherwise; an update of what
                // was never begun could mean anything.
                status: if teller == Teller::Update { ToolStatus::Unspecified } else { ToolStatus::Pending },
                turn,
                is_ended: false,
                name_rank: 0,
                output_rank: 0,
            };
            self.calls.by_id.insert(key, call);
        }
        let call = self.calls.by_id.get_mut(&key)?;
        if let Some(name) = telling.name.unless_better(&mut call.name_rank) {
            call.name = name;
        }
        if let Some(title) = short(telling.title, LINE) {
            call.title = title;
        }
        if let Some(kind) = telling.kind {
            call.kind = kind;
        }
        if let Some(status) = status {
            call.is_ended = is_end(Some(status));
            call.status = match status {
                "pending" => ToolStatus::Pending,
                "in_progress" => ToolStatus::InProgress,
                "completed" => ToolStatus::Completed,
                "failed" => ToolStatus::Failed,
                _ => ToolStatus::Unspecified,
            };
        }
        // An empty list replaces what was shown before, too.
        let [content, locations] = pick(json, ["content", "locations"]).map(some);
        Some(ToolCallState {
            call: call.seq,
            tool_call_id: telling.id.into_owned(),
            name: call.name.clone(),
            title: call.title.clone(),
            kind: call.kind.clone(),
            status: call.status.into(),
            is_new,
            input_json: telling.input.map(Into::into),
            output_json: telling.output.unless_better(&mut call.output_rank).map(Into::into),
            content: list(content, tool_content),
            has_content: content.is_some(),
            locations: list(locations, location),
            has_locations: locations.is_some(),
        })
    }
}

fn chunk(update: &str) -> MessageChunk {
    let [content, id] = pick(update, ["content", "messageId"]);
    MessageChunk { content: content.map(block), message_id: string(id) }
}

fn plan(json: &str) -> Plan {
    let [id, entries, markdown, uri] = pick(json, ["planId", "entries", "content", "uri"]);
    Plan {
        plan_id: string(id),
        entries: list(entries, plan_entry),
        markdown: string(markdown),
        uri: string(uri),
    }
}
