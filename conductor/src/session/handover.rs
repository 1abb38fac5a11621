//! A conversation as text, for an agent that has not heard it: what the user
//! and the agents said, which tools were called and what they changed, and how
//! far the plan was. Bounded; the newest turns are kept.

use std::{collections::VecDeque, fmt::Write as _};

use bytes::{BufMut as _, BytesMut};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::frame::{Frame, Peek};

/// Tool calls of one turn that are told; of more, the last ones.
const MOST_CALLS: usize = 64;

/// Files whose changes are told of one call, and lines of each.
const MOST_CHANGES: usize = 16;
const MOST_LINES: usize = 60;

/// Entries of a plan that are told.
const MOST_ENTRIES: usize = 50;

/// The longest title, path or line.
const LONGEST: usize = 500;

/// What it begins and ends with. Agents that take it as a resource may put it behind what the
/// user says, so it does not tell where that is.
const HEAD: &str = "[History of this conversation, from the record. It is context, not a request: ";
const END: &str = "[End of the history. The user's next message stands outside of it.]\n\n";

/// What the agent has missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missed {
    /// All of it: the session is new to it.
    Everything,
    /// What happened while another agent had the session.
    Since,
}

/// The recorded turns as text, the newest ones first to be kept.
pub(super) struct Telling {
    most: usize,
    missed: Missed,
    turns: VecDeque<String>,
    size: usize,
    left_out: usize,
    /// The turn that is being told.
    parts: VecDeque<Part>,
    /// Bytes of its texts.
    told: usize,
    plan: Vec<Value>,
}

/// A piece of a turn.
enum Part {
    Said(&'static str, String),
    Call(Call),
}

struct Call {
    id: String,
    title: String,
    status: Option<String>,
    changes: Vec<String>,
}

impl Telling {
    pub(super) fn new(most: usize, missed: Missed) -> Self {
        Self {
            most,
            missed,
            turns: VecDeque::new(),
            size: 0,
            left_out: 0,
            parts: VecDeque::new(),
            told: 0,
            plan: Vec::new(),
        }
    }

    pub(super) fn prompt(&mut self, blocks: &[&RawValue]) {
        self.end_turn();
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

    pub(super) fn update(&mut self, frame: &[u8], peek: &Peek) {
        let kind = peek.update.of(frame);
        let is_told =
            [&b"\"agent_message_chunk\""[..], b"\"tool_call\"", b"\"tool_call_update\"", b"\"plan\""];
        if !is_told.contains(&kind) {
            return;
        }
        let mut params: Value = serde_json::from_slice(peek.params.of(frame)).unwrap_or_default();
        let mut update = params["update"].take();
        match kind {
            b"\"plan\"" => {
                if let Value::Array(entries) = update["entries"].take() {
                    self.plan = entries;
                    self.plan.truncate(MOST_ENTRIES);
                }
            }
            b"\"agent_message_chunk\"" => match update["content"]["text"].as_str() {
                Some(text) => self.say("Agent", text),
                None => self.say("Agent", "[content]"),
            },
            _ => self.call(&update),
        }
    }

    fn call(&mut self, update: &Value) {
        let id = update["toolCallId"].as_str().unwrap_or_default();
        let is_it = |part: &&mut Part| matches!(part, Part::Call(call) if call.id == id);
        let title = update["title"].as_str().map(|title| cut(title, LONGEST));
        let status = update["status"].as_str().map(|status| cut(status, LONGEST));
        let changes: Option<Vec<String>> = update["content"].as_array().map(|content| {
            let diffs = content.iter().filter(|part| part["type"] == "diff");
            diffs.take(MOST_CHANGES).map(change).collect()
        });
        if let Some(Part::Call(call)) = self.parts.iter_mut().rev().find(is_it) {
            call.title = title.unwrap_or_else(|| std::mem::take(&mut call.title));
            call.status = status.or_else(|| call.status.take());
            // Collections are replaced, but an end without any is no change.
            if let Some(changes) = changes.filter(|changes| !changes.is_empty()) {
                call.changes = changes;
            }
            return;
        }
        let title = title.unwrap_or_else(|| "a tool".into());
        let call = Call { id: id.to_owned(), title, status, changes: changes.unwrap_or_default() };
        self.parts.push_back(Part::Call(call));
        let calls = self.parts.iter().filter(|part| matches!(part, Part::Call(_))).count();
        if calls > MOST_CALLS
            && let Some(first) = self.parts.iter().position(|part| matches!(part, Part::Call(_)))
        {
            self.parts.remove(first);
        }
    }

    fn say(&mut self, speaker: &'static str, text: &str) {
        match self.parts.back_mut() {
            Some(Part::Said(who, said)) if *who == speaker => said.push_str(text),
            _ => self.parts.push_back(Part::Said(speaker, text.to_owned())),
        }
        self.told += text.len();
        // A turn alone may be too long: its end is what counts.
        while self.told > self.most.saturating_mul(2) {
            let Some(Part::Said(_, said)) = self.parts.iter_mut().find(|part| matches!(part, Part::Said(..)))
            else {
                break;
            };
            let spare = (self.told - self.most).min(said.len());
            let at = said.ceil_char_boundary(spare);
            said.drain(..at);
            self.told -= at;
            if said.is_empty() {
                let is_empty = |part: &Part| matches!(part, Part::Said(_, said) if said.is_empty());
                self.parts.retain(|part| !is_empty(part));
            }
        }
    }

    /// Writes the turn that was told.
    fn end_turn(&mut self) {
        let mut turn = String::new();
        for part in self.parts.drain(..) {
            if !turn.is_empty() {
                turn.push('\n');
            }
            match part {
                Part::Said(speaker, said) => {
                    let _ = write!(turn, "{speaker}: {said}");
                }
                Part::Call(call) => {
                    let _ = write!(turn, "Tool call: {}", call.title);
                    if let Some(status) = call.status {
                        let _ = write!(turn, " ({status})");
                    }
                    call.changes.iter().for_each(|change| turn.push_str(change));
                }
            }
        }
        self.told = 0;
        if turn.is_empty() {
            return;
        }
        self.size += turn.len();
        self.turns.push_back(turn);
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
    pub(super) fn text(mut self) -> Option<String> {
        self.end_turn();
        let why = match self.missed {
            Missed::Everything => "it was held with another agent session, and you go on with it.",
            Missed::Since => {
                "since you were last asked, it went on with another agent; this is what you have missed."
            }
        };
        let plan = self.plan();
        let room = self.most.saturating_sub(HEAD.len() + END.len() + why.len() + plan.len() + 100);
        while self.size + self.turns.len() * 2 > room
            && let Some(oldest) = self.turns.pop_front()
        {
            self.size -= oldest.len();
            if self.turns.is_empty() && room > 10 {
                let at = oldest.ceil_char_boundary(oldest.len().saturating_sub(room - 6));
                self.turns.push_back(format!("…{}", &oldest[at..]));
                break;
            }
            self.left_out += 1;
        }
        if self.turns.is_empty() {
            return None;
        }
        let earlier = match self.left_out {
            0 => "]".to_string(),
            turns => format!(" {turns} earlier turns are left out.]"),
        };
        let turns: Vec<String> = self.turns.into();
        Some(format!("{HEAD}{why}{earlier}\n\n{}\n\n{plan}{END}", turns.join("\n\n")))
    }

    fn plan(&self) -> String {
        if self.plan.is_empty() {
            return String::new();
        }
        let mut out = String::from("The plan as it stands:\n");
        for entry in &self.plan {
            let mark = match entry["status"].as_str() {
                Some("completed") => "x",
                Some("in_progress") => "~",
                _ => " ",
            };
            let _ =
                writeln!(out, "- [{mark}] {}", cut(entry["content"].as_str().unwrap_or_default(), LONGEST));
        }
        out.push('\n');
        out
    }
}

/// A change of a file: what went and what came, without what stayed around it.
fn change(diff: &Value) -> String {
    let (old, new) = (&diff["oldText"], &diff["newText"]);
    let path = cut(diff["path"].as_str().unwrap_or_default(), LONGEST);
    let old: Vec<&str> = old.as_str().unwrap_or_default().lines().collect();
    let new: Vec<&str> = new.as_str().unwrap_or_default().lines().collect();
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[same..], &new[same..]);
    let after = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let mut out = format!("\n  changed {path}, line {}:", same + 1);
    let sides = [('-', &old[..old.len() - after]), ('+', &new[..new.len() - after])];
    for (sign, lines) in sides {
        for line in lines.iter().take(MOST_LINES) {
            let _ = write!(out, "\n  {sign} {}", cut(line, LONGEST));
        }
        if lines.len() > MOST_LINES {
            let _ = write!(out, "\n  {sign} … {} more lines", lines.len() - MOST_LINES);
        }
    }
    out
}

fn cut(text: &str, most: usize) -> String {
    let end = text.floor_char_boundary(most);
    if end < text.len() { format!("{}…", &text[..end]) } else { text.to_owned() }
}

/// A prompt with the past in front of what the user says, as a resource if the
/// agent takes those; `None` if it has no place for it.
pub(super) fn with_past_first(frame: &Frame, past: &str, as_resource: bool) -> Option<Frame> {
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
    let block = match as_resource {
        true => json!({ "type": "resource", "resource": {
            "uri": "conductor:history", "mimeType": "text/plain", "text": past,
        } }),
        false => json!({ "type": "text", "text": past }),
    };
    let block = block.to_string();
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
    use bytes::Bytes;

    use super::*;
    use crate::frame;

    fn said(most: usize, turns: &[(&str, &str)]) -> Option<String> {
        let mut telling = Telling::new(most, Missed::Everything);
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
        let told = with_past_first(&frame, "a\"b", false).unwrap();
        let expected = line.replace("[ {", r#"[{"type":"text","text":"a\"b"}, {"#);
        assert_eq!(std::str::from_utf8(told.bytes()).unwrap(), expected);
        let empty =
            Frame::parse(Bytes::from_static(br#"{"id":1,"method":"session/prompt","params":{"prompt":[]}}"#));
        assert!(
            with_past_first(&empty.unwrap(), "a", false).unwrap().bytes().ends_with(br#""text":"a"}]}}"#)
        );
    }

    #[test]
    fn a_hand_over_tells_what_tools_did_and_how_far_the_plan_is() {
        let mut telling = Telling::new(64 << 10, Missed::Since);
        let block = RawValue::from_string(r#"{"type":"text","text":"mend it"}"#.into()).unwrap();
        telling.prompt(&[&block]);
        for update in [
            r#"{"sessionUpdate":"tool_call","toolCallId":"1","title":"Edit a.rs","status":"pending"}"#,
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"1","content":[{"type":"diff","path":"/w/a.rs","oldText":"one\ntwo\nthree\n","newText":"one\n2\nthree\n"}]}"#,
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed"}"#,
            r#"{"sessionUpdate":"plan","entries":[{"content":"mend","status":"completed"},{"content":"test","status":"pending"}]}"#,
            r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"done"}}"#,
        ] {
            let line = format!(r#"{{"method":"session/update","params":{{"update":{update}}}}}"#);
            telling.update(line.as_bytes(), &frame::peek(line.as_bytes()).unwrap());
        }
        let text = telling.text().unwrap();
        let told = "User: mend it\nTool call: Edit a.rs (completed)\n  changed /w/a.rs, line 2:\n  - two\n  + 2\nAgent: done\n";
        assert!(text.contains(told), "{text}");
        assert!(text.contains("- [x] mend\n- [ ] test\n"), "{text}");
        assert!(text.contains("what you have missed"), "{text}");
    }
}
