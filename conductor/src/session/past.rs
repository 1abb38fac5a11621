//! What a session's record tells of it: the updates that its editor has seen,
//! the prompts it has sent, and the tool calls that nobody has ended.
//!
//! `session/load` is answered from here, byte for byte as it was live; an agent
//! that has lost a conversation gets it from here as text.

use std::{borrow::Cow, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::time::timeout;
use uuid::Uuid;

use super::{
    Input, Packet, Session,
    adapt::{put_update, takes},
    handover::{Missed, Telling},
    prefix::{prefixed, with_prefix},
};
use crate::{
    acp::{Refusal, code},
    frame::{self, Kind, Method, Peek, Run},
    ledger::{error::LedgerError, history},
    record::note,
};

/// Updates that replay history.
pub(super) const HISTORY: &[&[u8]] = &[
    b"\"user_message_chunk\"",
    b"\"agent_message_chunk\"",
    b"\"agent_thought_chunk\"",
    b"\"tool_call\"",
    b"\"tool_call_update\"",
    b"\"plan\"",
];

/// Updates of options and modes.
const OPTIONS: &[&[u8]] = &[b"\"config_option_update\"", b"\"current_mode_update\""];

/// About so many bytes of a replay go to the editor at once.
const PACKET: usize = 64 * 1024;

/// Tool calls that may be open; more are not looked after.
const MOST_TOOLS: usize = 1024;

/// A session's record, read from the front.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// The id of a request of ours whose replay the editor has not seen, and
    /// whether that may come after its answer.
    swallowing: Option<(Vec<u8>, bool)>,
    /// The id that the running turn's prompt went on with.
    prompt: Option<i64>,
    /// Tool calls that nobody has ended, while the turn they belong to has no
    /// answer of the agent's.
    tools: Vec<String>,
    /// Which session of an agent's it is with.
    number: u32,
    /// Editors see options in our form, not in the agent's.
    picks: bool,
    /// Whoever reads on has no answer that shows them.
    pub(super) follows: bool,
}

/// A replay by the agent that editors do not see.
#[derive(Debug, Clone)]
pub struct Replayed {
    /// The id of the request of ours that it belongs to; empty if that has its
    /// answer.
    pub(super) id: Vec<u8>,
    /// It may come after its answer.
    pub(super) goes_on: bool,
}

/// What one recorded frame says to an editor.
pub(super) enum Told<'a> {
    Nothing,
    /// An update, as it was shown.
    Update(Cow<'a, [u8]>, Peek),
    Prompt(Peek),
}

/// Where a reader stands that begins in the middle.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// What the agent is replaying at this moment.
    pub(super) replayed: Option<Replayed>,
    /// Which session of an agent's it is with.
    pub(super) number: u32,
    /// Editors see options in our form.
    pub(super) picks: bool,
}

#[derive(Deserialize)]
struct ToolParams<'a> {
    #[serde(borrow)]
    update: Tool<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tool<'a> {
    #[serde(borrow)]
    tool_call_id: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    status: Option<std::borrow::Cow<'a, str>>,
}

#[derive(Deserialize)]
struct BoundParams {
    #[serde(default)]
    number: Option<u32>,
    #[serde(default)]
    picker: bool,
}

#[derive(Deserialize)]
struct PromptParams<'a> {
    #[serde(borrow)]
    prompt: Vec<&'a RawValue>,
}

impl Past {
    /// One that is read from somewhere in the middle, where the agent may be
    /// replaying what it was asked for with this id.
    pub(super) fn behind(standing: Standing) -> Self {
        let Standing { replayed, number, picks } = standing;
        let swallowing = replayed.map(|Replayed { id, goes_on }| (id, goes_on));
        Self { swallowing, number, picks, ..Self::default() }
    }

    pub(super) fn hear<'a>(&mut self, frame: &'a history::Frame) -> Told<'a> {
        let Ok(peek) = frame::peek(&frame.raw) else { return Told::Nothing };
        let (origin, to) = (frame.origin.as_str(), frame.destination.as_str());
        match (peek.kind, peek.method) {
            (Kind::Notification, Method::SessionUpdate) if to == "editor" => {
                let kind = peek.update.of(&frame.raw);
                let is_agents = origin == "agent";
                let is_swallowed = is_agents && self.swallowing.is_some() && HISTORY.contains(&kind);
                let is_other = (is_agents || !self.follows) && self.picks && OPTIONS.contains(&kind);
                // A notice is news, not history.
                if is_swallowed || is_other || kind == b"\"notice\"" {
                    return Told::Nothing;
                }
                if matches!(kind, b"\"tool_call\"" | b"\"tool_call_update\"") {
                    self.tool(peek.params.of(&frame.raw), is_agents);
                }
                match if is_agents { self.renamed(&frame.raw, &peek) } else { None } {
                    Some((raw, peek)) => Told::Update(Cow::Owned(raw.to_vec()), peek),
                    None => Told::Update(Cow::Borrowed(&frame.raw), peek),
                }
            }
            (Kind::Notification, _) if origin == "conductor" && to == "record" => {
                self.note(&frame.raw, &peek);
                Told::Nothing
            }
            (Kind::Request, Method::SessionPrompt) if origin == "editor" && frame.outgoing_id.is_some() => {
                self.prompt = frame.outgoing_id;
                self.tools.clear();
                self.swallowing = None;
                Told::Prompt(peek)
            }
            (Kind::Request, Method::SessionLoad | Method::SessionResume) if to == "agent" => {
                let is_load = peek.method == Method::SessionLoad;
                self.swallowing = match (origin, frame.outgoing_id) {
                    ("conductor", _) => Some((peek.id.of(&frame.raw).to_vec(), is_load)),
                    (_, Some(id)) => Some((id.to_string().into_bytes(), is_load)),
                    _ => self.swallowing.take(),
                };
                Told::Nothing
            }
            (Kind::Result | Kind::Error, _) if origin == "agent" => {
                let id = peek.id.of(&frame.raw);
                let is_over = |(asked, goes_on): &(Vec<u8>, bool)| {
                    asked == id && (!goes_on || peek.kind == Kind::Error)
                };
                if self.swallowing.as_ref().is_some_and(is_over) {
                    self.swallowing = None;
                }
                if self.prompt.is_some_and(|prompt| prompt.to_string().as_bytes() == id) {
                    self.prompt = None;
                    self.tools.clear();
                }
                Told::Nothing
            }
            _ => Told::Nothing,
        }
    }

    /// A frame of the agent's with the ids that editors know, if those differ.
    pub(super) fn renamed(&self, raw: &[u8], peek: &Peek) -> Option<(Bytes, Peek)> {
        let raw = with_prefix(raw, peek, self.number)?;
        let peek = frame::peek(&raw).ok()?;
        Some((raw, peek))
    }

    fn note(&mut self, raw: &[u8], peek: &Peek) {
        if serde_json::from_slice::<String>(peek.name.of(raw)).ok().as_deref() != Some(note::SESSION_BOUND) {
            return;
        }
        let Ok(bound) = serde_json::from_slice::<BoundParams>(peek.params.of(raw)) else { return };
        self.picks = bound.picker;
        self.number = bound.number.unwrap_or(self.number);
    }

    fn tool(&mut self, params: &[u8], is_agents: bool) {
        let Ok(ToolParams { update }) = serde_json::from_slice::<ToolParams<'_>>(params) else { return };
        let id = prefixed(&update.tool_call_id, if is_agents { self.number } else { 0 });
        let known = self.tools.iter().position(|known| *known == id);
        let is_over = matches!(update.status.as_deref(), Some("completed" | "failed"));
        match known {
            Some(at) if is_over => {
                self.tools.remove(at);
            }
            None if !is_over && self.tools.len() < MOST_TOOLS => {
                self.tools.push(id);
            }
            _ => {}
        }
    }
}

/// A block of a prompt as an update. All blocks of a prompt are one message,
/// and the same one whenever they are told.
pub(super) fn user_message(session: Uuid, seq: u64, name: &[u8], content: &RawValue) -> String {
    let id = Uuid::from_u128(session.as_u128() ^ u128::from(seq));
    let (name, content) = (String::from_utf8_lossy(name), content.get());
    format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{name},"update":{{"sessionUpdate":"user_message_chunk","messageId":"{id}","content":{content}}}}}}}"#
    )
}

/// The content blocks of a prompt, as they came.
pub(super) fn blocks<'a>(frame: &'a [u8], peek: &Peek) -> Vec<&'a RawValue> {
    let params = serde_json::from_slice::<PromptParams<'a>>(peek.params.of(frame));
    params.map(|params| params.prompt).unwrap_or_default()
}

impl Session {
    /// Replays the conversation to the editor as it was, up to where this
    /// opening began, and prepares a hand-over if the agent needs one. Tool
    /// calls that nobody can end any more are told as failed.
    pub(super) async fn replay(&mut self, hand_over: bool) -> Result<(), Refusal> {
        let mut past = Past::default();
        let mut telling = hand_over.then(|| Telling::new(self.open.handover_bytes, Missed::Everything));
        let mut reading = self.history.frames(self.open.id, 1, None, false);
        loop {
            let frames = reading.next().await.map_err(|error| unavailable(&error))?;
            let mine: Vec<_> = frames.iter().take_while(|frame| frame.seq < self.first_seq).collect();
            let mut block = BytesMut::new();
            for frame in &mine {
                match past.hear(frame) {
                    Told::Nothing => {}
                    Told::Update(raw, peek) => {
                        if let Some(telling) = &mut telling {
                            telling.update(&raw, &peek);
                        }
                        block.put_slice(&raw);
                        block.put_u8(b'\n');
                    }
                    Told::Prompt(peek) => {
                        let blocks = blocks(&frame.raw, &peek);
                        if let Some(telling) = &mut telling {
                            telling.prompt(&blocks);
                        }
                        for content in blocks {
                            let update = user_message(self.open.id, frame.seq, &self.name, content);
                            block.put_slice(update.as_bytes());
                            block.put_u8(b'\n');
                        }
                    }
                }
            }
            self.send_replay(block.freeze()).await?;
            if mine.len() < frames.len() || frames.is_empty() || self.ended {
                break;
            }
        }
        self.handover = telling.and_then(Telling::text);
        self.fail_tools(&past.tools);
        self.commit(Input::Nothing);
        Ok(())
    }

    async fn send_replay(&mut self, block: Bytes) -> Result<(), Refusal> {
        let run = Run::parse(block, |_, _| {});
        let run = match &self.open.cwd_map {
            Some(map) => map.from_agent(&run, |_| false),
            None => run,
        };
        let mut out = BytesMut::with_capacity(PACKET);
        let mut count = 0;
        for (index, (bytes, peek)) in run.iter().enumerate() {
            if takes(&self.link.capabilities, bytes, peek) {
                put_update(&self.link.capabilities, &self.name, &mut out, bytes, peek);
                count += 1;
            }
            if count > 0 && (out.len() >= PACKET || index + 1 == run.len()) {
                let packet = Packet { frames: out.split().freeze(), count };
                count = 0;
                let room = self.link.out.reserve(packet.frames.len());
                let close = self.open.close.clone();
                tokio::select! {
                    room = timeout(self.open.editor_timeout.max(Duration::from_secs(1)), room) => match room {
                        Ok(Ok(room)) => room.send(packet),
                        _ => {
                            self.ended = true;
                            return Ok(());
                        }
                    },
                    () = close.cancelled() => {
                        (self.closed, self.ended) = (true, true);
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the conversation for the agent alone, from a number on.
    pub(super) async fn read_past(&mut self, from: u64, missed: Missed) -> Result<(), Refusal> {
        let mut past = Past::default();
        let mut telling = Telling::new(self.open.handover_bytes, missed);
        // A prompt that is sent once more is no part of it.
        let until = self.routing.told_until.take().unwrap_or(u64::MAX);
        let mut reading = self.history.frames(self.open.id, from, None, false);
        loop {
            let frames = reading.next().await.map_err(|error| unavailable(&error))?;
            if frames.is_empty() {
                break;
            }
            for frame in frames.iter().filter(|frame| frame.seq <= until) {
                match past.hear(frame) {
                    Told::Nothing => {}
                    Told::Update(raw, peek) => telling.update(&raw, &peek),
                    Told::Prompt(peek) => telling.prompt(&blocks(&frame.raw, &peek)),
                }
            }
        }
        self.handover = telling.text();
        Ok(())
    }

    /// The tool calls of the running turn that nobody has ended.
    pub(super) async fn open_tools(&mut self) -> Vec<String> {
        let Some(turn) = &self.turn else { return Vec::new() };
        let mut past = Past { number: self.routing.number, ..Past::default() };
        let mut reading = self.history.frames(self.open.id, turn.from_seq, None, false);
        loop {
            match reading.next().await {
                Ok(frames) if !frames.is_empty() => frames.iter().for_each(|frame| {
                    past.hear(frame);
                }),
                _ => return past.tools,
            }
        }
    }

    /// Says that tool calls have failed.
    pub(super) fn fail_tools(&mut self, tools: &[String]) {
        for id in tools {
            self.say_update(
                &json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "failed" }),
            );
        }
    }
}

fn unavailable(error: &LedgerError) -> Refusal {
    Refusal::new(code::INTERNAL, format!("the history of this session is unavailable: {error}"))
}
