//! What a session's record tells of it: the updates that its editor has seen,
//! the prompts it has sent, and the tool calls that nobody has ended.
//!
//! `session/load` is answered from here, byte for byte as it was live; an agent
//! that has lost a conversation gets it from here as text.

use std::{collections::VecDeque, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::time::timeout;
use uuid::Uuid;

use super::{
    Input, Packet, Session,
    adapt::{put_update, takes},
};
use crate::{
    acp::{Refusal, code},
    frame::{self, Frame, Kind, Method, Peek, Run},
    ledger::{error::LedgerError, history},
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
pub(super) enum Told {
    Nothing,
    Update(Peek),
    Prompt(Peek),
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
struct PromptParams<'a> {
    #[serde(borrow)]
    prompt: Vec<&'a RawValue>,
}

impl Past {
    /// One that is read from somewhere in the middle, where the agent may be
    /// replaying what it was asked for with this id.
    pub(super) fn behind(replayed: Option<Replayed>) -> Self {
        let swallowing = replayed.map(|Replayed { id, goes_on }| (id, goes_on));
        Self { swallowing, ..Self::default() }
    }

    pub(super) fn hear(&mut self, frame: &history::Frame) -> Told {
        let Ok(peek) = frame::peek(&frame.raw) else { return Told::Nothing };
        let (origin, to) = (frame.origin.as_str(), frame.destination.as_str());
        match (peek.kind, peek.method) {
            (Kind::Notification, Method::SessionUpdate) if to == "editor" => {
                let kind = peek.update.of(&frame.raw);
                let is_swallowed = origin == "agent" && self.swallowing.is_some() && HISTORY.contains(&kind);
                // A notice is news, not history.
                if is_swallowed || kind == b"\"notice\"" {
                    return Told::Nothing;
                }
                if matches!(kind, b"\"tool_call\"" | b"\"tool_call_update\"") {
                    self.tool(peek.params.of(&frame.raw));
                }
                Told::Update(peek)
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

    fn tool(&mut self, params: &[u8]) {
        let Ok(ToolParams { update }) = serde_json::from_slice::<ToolParams<'_>>(params) else { return };
        let known = self.tools.iter().position(|id| *id == update.tool_call_id);
        let is_over = matches!(update.status.as_deref(), Some("completed" | "failed"));
        match known {
            Some(at) if is_over => {
                self.tools.remove(at);
            }
            None if !is_over && self.tools.len() < MOST_TOOLS => {
                self.tools.push(update.tool_call_id.into_owned());
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
        let mut telling = hand_over.then(|| Telling::new(self.open.handover_bytes));
        let mut reading = self.history.frames(self.open.id, 1, None, false);
        loop {
            let frames = reading.next().await.map_err(|error| unavailable(&error))?;
            let mine: Vec<_> = frames.iter().take_while(|frame| frame.seq < self.first_seq).collect();
            let mut block = BytesMut::new();
            for frame in &mine {
                match past.hear(frame) {
                    Told::Nothing => {}
                    Told::Update(peek) => {
                        if let Some(telling) = &mut telling {
                            telling.update(&frame.raw, &peek);
                        }
                        block.put_slice(&frame.raw);
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

    /// Reads the conversation for the agent alone.
    pub(super) async fn read_past(&mut self) -> Result<(), Refusal> {
        let mut past = Past::default();
        let mut telling = Telling::new(self.open.handover_bytes);
        let mut reading = self.history.frames(self.open.id, 1, None, false);
        loop {
            let frames = reading.next().await.map_err(|error| unavailable(&error))?;
            if frames.is_empty() {
                break;
            }
            for frame in &frames {
                match past.hear(frame) {
                    Told::Nothing => {}
                    Told::Update(peek) => telling.update(&frame.raw, &peek),
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
        let mut past = Past::default();
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

/// The recorded turns as text, the newest ones first to be kept.
struct Telling {
    most: usize,
    turns: VecDeque<String>,
    size: usize,
    left_out: usize,
    /// Who spoke last.
    speaker: &'static str,
}

impl Telling {
    fn new(most: usize) -> Self {
        Self { most, turns: VecDeque::new(), size: 0, left_out: 0, speaker: "" }
    }

    fn prompt(&mut self, blocks: &[&RawValue]) {
        self.turns.push_back(String::new());
        self.speaker = "";
        for block in blocks {
            let block: Value = serde_json::from_str(block.get()).unwrap_or_default();
            let said = match block["type"].as_str().unwrap_or_default() {
                "text" => block["text"].as_str().unwrap_or_default().to_string(),
                "resource_link" => format!("[{}]", block["uri"].as_str().unwrap_or_default()),
                "resource" => format!("[{}]", block["resource"]["uri"].as_str().unwrap_or_default()),
                other => format!("[{other}]"),
            };
            self.say("User", &said);
        }
    }

    fn update(&mut self, frame: &[u8], peek: &Peek) {
        let kind = peek.update.of(frame);
        if !matches!(kind, b"\"agent_message_chunk\"" | b"\"tool_call\"") {
            return;
        }
        let params: Value = serde_json::from_slice(peek.params.of(frame)).unwrap_or_default();
        let update = &params["update"];
        if kind == b"\"tool_call\"" {
            let title = update["title"].as_str().unwrap_or("a tool");
            self.speaker = "";
            return self.say("Tool call", title);
        }
        match update["content"]["text"].as_str() {
            Some(text) => self.say("Agent", text),
            None => self.say("Agent", "[content]"),
        }
    }

    fn say(&mut self, speaker: &'static str, text: &str) {
        if self.turns.is_empty() {
            self.turns.push_back(String::new());
        }
        let Some(turn) = self.turns.back_mut() else { return };
        let before = turn.len();
        if self.speaker != speaker {
            turn.push_str(if turn.is_empty() { "" } else { "\n" });
            turn.push_str(speaker);
            turn.push_str(": ");
            self.speaker = speaker;
        }
        turn.push_str(text);
        self.size += turn.len() - before;
        // A turn alone may be too long: its end is what counts.
        if turn.len() > self.most.saturating_mul(2) {
            let cut = turn.ceil_char_boundary(turn.len() - self.most);
            turn.drain(..cut);
            self.size -= cut;
        }
        while self.turns.len() > 1
            && let Some(oldest) = self.turns.front()
            && self.size - oldest.len() >= self.most
        {
            self.size -= oldest.len();
            self.left_out += 1;
            self.turns.pop_front();
        }
    }

    /// All of it, with what it is; nothing if nothing was said.
    fn text(mut self) -> Option<String> {
        const HEAD: &str = "[History of this conversation, from the record. It is context, not a request: it was held \
                            with an agent session that is gone, and you go on with it.";
        const END: &str = "[End of the history. What follows is the user's next message.]\n\n";
        let room = self.most.saturating_sub(HEAD.len() + END.len() + 100);
        while self.size + self.turns.len() * 2 > room
            && let Some(oldest) = self.turns.pop_front()
        {
            self.size -= oldest.len();
            if self.turns.is_empty() && room > 10 {
                let cut = oldest.ceil_char_boundary(oldest.len().saturating_sub(room - 6));
                self.turns.push_back(format!("…{}", &oldest[cut..]));
                break;
            }
            self.left_out += 1;
        }
        if self.turns.iter().all(String::is_empty) {
            return None;
        }
        let earlier = match self.left_out {
            0 => "]".to_string(),
            turns => format!(" {turns} earlier turns are left out.]"),
        };
        let turns: Vec<String> = self.turns.into();
        Some(format!("{HEAD}{earlier}\n\n{}\n\n{END}", turns.join("\n\n")))
    }
}

/// A prompt with a text in front of what the user says; `None` if it has no
/// place for one.
pub(super) fn with_text_first(frame: &Frame, text: &str) -> Option<Frame> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        prompt: &'a RawValue,
    }
    let bytes = frame.bytes();
    let params: Params<'_> = serde_json::from_slice(frame.get(frame.peek().params)).ok()?;
    let array = params.prompt.get();
    let rest = array.strip_prefix('[')?;
    // `array` is a slice of `bytes`, so its place is known.
    let start = array.as_ptr() as usize - bytes.as_ptr() as usize + 1;
    let block = json!({ "type": "text", "text": text }).to_string();
    let mut out = BytesMut::with_capacity(bytes.len() + block.len() + 1);
    out.put_slice(&bytes[..start]);
    out.put_slice(block.as_bytes());
    if !rest.trim_start().starts_with(']') {
        out.put_u8(b',');
    }
    out.put_slice(&bytes[start..]);
    Frame::parse(out.freeze()).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn said(most: usize, turns: &[(&str, &str)]) -> Option<String> {
        let mut telling = Telling::new(most);
        for (prompt, answer) in turns {
            let block = json!({ "type": "text", "text": prompt }).to_string();
            telling.prompt(&[&RawValue::from_string(block).unwrap()]);
            for chunk in answer.split_inclusive(' ') {
                telling.say("Agent", chunk);
            }
        }
        telling.text()
    }

    #[test]
    fn a_hand_over_tells_who_said_what() {
        let text = said(64 << 10, &[("one", "first answer"), ("two", "second answer")]).unwrap();
        assert!(text.contains("User: one\nAgent: first answer\n\nUser: two\nAgent: second answer"), "{text}");
        assert!(text.starts_with("[History") && !text.contains("left out"), "{text}");
        assert_eq!(said(64 << 10, &[]), None);
    }

    #[test]
    fn a_hand_over_is_bounded_and_keeps_the_newest() {
        let long = "word ".repeat(200);
        let turns: Vec<_> = (0..50).map(|at| (format!("prompt {at}"), format!("{long}{at}"))).collect();
        let turns: Vec<_> = turns.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let text = said(4096, &turns).unwrap();
        assert!(text.len() <= 4096, "{}", text.len());
        assert!(text.contains("prompt 49") && !text.contains("prompt 3\n"), "{text}");
        assert!(text.contains("earlier turns are left out"), "{text}");
        let huge = said(4096, &[("x", &"y ".repeat(100_000))]).unwrap();
        assert!(huge.len() <= 4096 && huge.contains("y y y"), "{}", huge.len());
    }

    #[test]
    fn a_text_goes_in_front_and_the_rest_stays() {
        let line = r#"{"id":1,"method":"session/prompt","params":{"x":1e3,"prompt":[ {"type":"text","text":"\ud83d"}],"y":2}}"#;
        let frame = Frame::parse(Bytes::from_static(line.as_bytes())).unwrap();
        let told = with_text_first(&frame, "a\"b").unwrap();
        let expected = line.replace("[ {", r#"[{"type":"text","text":"a\"b"}, {"#);
        assert_eq!(std::str::from_utf8(told.bytes()).unwrap(), expected);
        let empty =
            Frame::parse(Bytes::from_static(br#"{"id":1,"method":"session/prompt","params":{"prompt":[]}}"#));
        assert!(with_text_first(&empty.unwrap(), "a").unwrap().bytes().ends_with(br#""text":"a"}]}}"#));
    }
}
