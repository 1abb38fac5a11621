//! The last word: what the agents wrote down themselves, what the ledger has, and what
//! editors were shown, held against each other once nobody runs any more.
//!
//! Whatever an editor was shown is recorded; what is recorded is what the agent said,
//! from the first chunk on, in order and once; a turn that ended well is recorded as a
//! whole; no prompt was heard twice; and no agent heard of a prompt or of a permission
//! before that was recorded.

use std::{collections::BTreeMap, path::Path};

use conductor::{
    journal::{self, Journal, Position},
    ledger::Settings,
};
use conductor_tests::{
    ledger::{Entry, Kind as Way, each_process},
    shipping::{self, Stored},
};
use ring::digest::{Context, SHA256};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    findings::{Findings, Kind, Trouble},
    sight::{Answer, Asked, Came, Mark, Order},
    work::ALLOW,
};

/// Bytes of the journal that are read at once.
const PIECE: usize = 1 << 20;

/// What the agents wrote down.
#[derive(Debug, Default)]
pub struct Heard {
    /// Chunks that they said.
    pub said: BTreeMap<Mark, Order>,
    /// Prompts that they heard: how often, and when first.
    pub prompts: BTreeMap<Mark, (u64, i64)>,
    /// Tool calls that they were allowed, and when.
    pub allowed: BTreeMap<String, i64>,
}

/// What the ledger has.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Chunks, in order.
    pub chunks: BTreeMap<Mark, Order>,
    /// Prompts, and when they were recorded.
    pub prompts: BTreeMap<Mark, i64>,
    /// Tool calls that were allowed, and when.
    pub allowed: BTreeMap<String, i64>,
    pub frames: u64,
    streams: BTreeMap<Uuid, Chain>,
}

/// All frames of a stream in one number: equal chains have equal frames in equal order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Chain {
    frames: u64,
    digest: Vec<u8>,
}

impl Chain {
    fn add(&mut self, raw: &[u8]) {
        let mut context = Context::new(&SHA256);
        context.update(&self.digest);
        context.update(raw);
        self.digest = context.finish().as_ref().to_vec();
        self.frames += 1;
    }
}

/// The chunk that an update shows.
fn chunk(frame: &Value) -> Option<(Mark, u64)> {
    let update = &frame["params"]["update"];
    let text = update["content"]["text"].as_str()?;
    Mark::of_chunk(text).filter(|_| update["sessionUpdate"] == "agent_message_chunk")
}

/// The mark in the steps that a prompt gives to the agent.
fn prompt(frame: &Value) -> Option<Mark> {
    let blocks = frame["params"]["prompt"].as_array()?;
    let text =
        blocks.iter().filter_map(|block| block["text"].as_str()).find(|text| text.starts_with("{\"do\""))?;
    const BEFORE: &str = "\"text\":\"";
    let at = text.find(&format!("{BEFORE}m"))?;
    Some(Mark::parse(&text[at + BEFORE.len()..])?.0)
}

impl Heard {
    /// Reads what the processes of an agent wrote down.
    pub fn read(&mut self, dir: &Path) {
        each_process(dir, |entries| {
            // By the agent's own ids of its requests.
            let mut asked: BTreeMap<String, String> = BTreeMap::new();
            for entry in &entries {
                self.take(entry, &mut asked);
            }
        });
    }

    fn take(&mut self, entry: &Entry, asked: &mut BTreeMap<String, String>) {
        let Some(frame) = entry.json() else { return };
        match (entry.kind, frame["method"].as_str()) {
            (Way::Out, Some("session/update")) => {
                if let Some((mark, number)) = chunk(&frame) {
                    self.said.entry(mark).or_default().take(number);
                }
            }
            (Way::Out, Some("session/request_permission")) => {
                let call = frame["params"]["toolCall"]["toolCallId"].as_str().unwrap_or_default();
                asked.insert(frame["id"].to_string(), call.to_owned());
            }
            (Way::In, Some("session/prompt")) => {
                if let Some(mark) = prompt(&frame) {
                    self.prompts.entry(mark).or_insert((0, entry.at_us)).0 += 1;
                }
            }
            (Way::In, None) if frame["result"]["outcome"]["optionId"] == ALLOW => {
                if let Some(call) = asked.remove(&frame["id"].to_string()) {
                    self.allowed.insert(call, entry.at_us);
                }
            }
            _ => {}
        }
    }
}

impl Recorded {
    /// Reads the ledger.
    pub async fn read(settings: &Settings, findings: &Findings) -> Self {
        let mut recorded = Self::default();
        shipping::each_frame(settings, |frame| recorded.take(&frame, findings)).await;
        let allowed = "SELECT tool_call_id || ' ' || CAST(decided_us AS TEXT) FROM decisions \
            WHERE decision = 'allow' AND tool_call_id IS NOT NULL";
        for row in shipping::texts(settings, allowed).await {
            if let Some((call, at)) = row.split_once(' ') {
                recorded.allowed.insert(call.to_owned(), at.parse().unwrap_or(i64::MAX));
            }
        }
        recorded
    }

    fn take(&mut self, stored: &Stored<'_>, findings: &Findings) {
        self.frames += 1;
        let chain = self.streams.entry(stored.stream).or_default();
        chain.add(stored.raw);
        let place = || format!("frame {} of stream {}", stored.seq, stored.stream);
        if chain.frames != u64::try_from(stored.seq).unwrap_or_default() {
            let words = format!("{} is the {}th in the ledger", place(), chain.frames);
            findings.add(Trouble::one(Kind::Unverified, words));
            chain.frames = u64::try_from(stored.seq).unwrap_or_default();
        }
        let Ok(frame) = serde_json::from_slice::<Value>(stored.raw) else { return };
        match (stored.origin, frame["method"].as_str()) {
            ("agent", Some("session/update")) => {
                let Some((mark, number)) = chunk(&frame) else { return };
                match self.chunks.entry(mark).or_default().take(number) {
                    Came::On => {}
                    Came::Again => {
                        findings.add(Trouble::one(Kind::Duplicated, format!("{} in the ledger", place())));
                    }
                    Came::Late => {
                        findings.add(Trouble::one(Kind::Reordered, format!("{} in the ledger", place())));
                    }
                }
            }
            ("editor", Some("session/prompt")) => {
                if let Some(mark) = prompt(&frame) {
                    self.prompts.entry(mark).or_insert(stored.at_us);
                }
            }
            _ => {}
        }
    }

    /// Holds the ledger against the journal.
    pub fn compare(&self, journal: &Journaled, findings: &Findings) {
        for (stream, chain) in &journal.streams {
            let stored = self.streams.get(stream).cloned().unwrap_or_default();
            if stored == *chain {
                continue;
            }
            let lost = chain.frames.saturating_sub(stored.frames);
            let (written, stored) = (chain.frames, stored.frames);
            let words = format!("stream {stream}: {written} frames in the journal, {stored} in the ledger");
            let kind = if lost > 0 { Kind::Lost } else { Kind::Unverified };
            findings.add(Trouble { kind, count: lost.max(1), words });
        }
    }
}

/// What the journal has.
#[derive(Debug, Default)]
pub struct Journaled {
    streams: BTreeMap<Uuid, Chain>,
}

impl Journaled {
    /// Reads the journal of a service that has been stopped.
    pub fn read(state: &Path, findings: &Findings) -> Self {
        let mut all = Self::default();
        let opened = Journal::open(&state.join("journal"), journal::Settings::default());
        let Ok((journal, recovered)) = opened else {
            findings.add(Trouble::one(Kind::Unverified, "the journal cannot be opened"));
            return all;
        };
        for finding in recovered.findings {
            findings.add(Trouble::one(Kind::Unverified, format!("the journal: {finding:?}")));
        }
        let mut from = Position::default();
        loop {
            let (records, next) = journal.read(from, PIECE).expect("the journal can be read");
            if records.is_empty() {
                return all;
            }
            from = next;
            for record in records {
                let chain = all.streams.entry(record.stream.id).or_default();
                record.lines().for_each(|line| chain.add(line));
            }
        }
    }

    pub fn frames(&self) -> u64 {
        self.streams.values().map(|chain| chain.frames).sum()
    }
}

/// Holds all three against each other.
pub fn judge(asked: &[Asked], heard: &Heard, recorded: &Recorded) -> Vec<Trouble> {
    let mut troubles: Vec<Trouble> =
        asked.iter().flat_map(|asked| judge_prompt(asked, heard, recorded)).collect();
    for (call, at) in &heard.allowed {
        troubles.extend(unrecorded(&format!("permission {call}"), *at, recorded.allowed.get(call)));
    }
    for (mark, (times, at)) in &heard.prompts {
        let name = format!("prompt {} of session {}", mark.prompt, mark.session);
        troubles.extend(unrecorded(&name, *at, recorded.prompts.get(mark)));
        if *times > 1 {
            troubles.push(Trouble::one(Kind::SentTwice, format!("{name} was heard {times} times")));
        }
    }
    troubles
}

/// An effect that was recorded later than it happened, or not at all.
fn unrecorded(name: &str, happened: i64, recorded: Option<&i64>) -> Option<Trouble> {
    match recorded {
        None => Some(Trouble::one(Kind::Unrecorded, format!("{name} is not on record"))),
        Some(recorded) if *recorded > happened => {
            let late = recorded - happened;
            Some(Trouble::one(Kind::Unrecorded, format!("{name} was recorded {late} µs after it happened")))
        }
        Some(_) => None,
    }
}

fn judge_prompt(asked: &Asked, heard: &Heard, recorded: &Recorded) -> Vec<Trouble> {
    let mark = asked.mark;
    let name = format!("prompt {} of session {} ({})", mark.prompt, asked.session, mark.session);
    let of = |orders: &BTreeMap<Mark, Order>| orders.get(&mark).cloned().unwrap_or_default();
    let (said, kept) = (of(&heard.said), of(&recorded.chunks));
    let due = if asked.answer == Answer::Done { asked.chunks } else { asked.seen };
    let mut troubles: Vec<Trouble> = Vec::new();
    let lost = kept.short_of(due);
    troubles.extend(Trouble::some(Kind::Lost, lost, || {
        format!("{lost} chunks of {name}, answered {:?}, are not on record", asked.answer)
    }));
    let more = kept.reach().saturating_sub(said.reach());
    troubles.extend(Trouble::some(Kind::Duplicated, more, || {
        format!("{more} chunks of {name} are on record that no agent said")
    }));
    if asked.answer == Answer::Done && !heard.prompts.contains_key(&mark) {
        troubles.push(Trouble::one(Kind::Lost, format!("{name} ended well, and no agent has heard it")));
    }
    troubles
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark = Mark { session: 1, prompt: 0 };

    fn counted(numbers: u64) -> BTreeMap<Mark, Order> {
        let mut order = Order::default();
        (0..numbers).for_each(|number| {
            order.take(number);
        });
        BTreeMap::from([(MARK, order)])
    }

    /// Three chunks that went as they should, and a permission.
    fn good() -> (Asked, Heard, Recorded) {
        let asked = Asked { mark: MARK, session: "s".to_owned(), chunks: 3, answer: Answer::Done, seen: 3 };
        let heard = Heard {
            said: counted(3),
            prompts: BTreeMap::from([(MARK, (1, 20))]),
            allowed: BTreeMap::from([(MARK.call(0), 40)]),
        };
        let recorded = Recorded {
            chunks: counted(3),
            prompts: BTreeMap::from([(MARK, 10)]),
            allowed: BTreeMap::from([(MARK.call(0), 30)]),
            ..Recorded::default()
        };
        (asked, heard, recorded)
    }

    fn kinds((asked, heard, recorded): (Asked, Heard, Recorded)) -> Vec<(Kind, u64)> {
        let troubles = judge(&[asked], &heard, &recorded);
        troubles.into_iter().map(|trouble| (trouble.kind, trouble.count)).collect()
    }

    #[test]
    fn what_went_well_is_no_trouble() {
        assert_eq!(kinds(good()), []);
    }

    #[test]
    fn chunks_that_are_not_on_record_are_lost() {
        let (asked, heard, mut recorded) = good();
        recorded.chunks = counted(1);
        assert_eq!(kinds((asked.clone(), heard, recorded)), [(Kind::Lost, 2)]);
        // Of a turn that was cut short, what nobody saw may be missing.
        let (_, heard, mut recorded) = good();
        recorded.chunks = counted(1);
        let cut = Asked { answer: Answer::Cut, seen: 1, ..asked };
        assert_eq!(kinds((cut, heard, recorded)), []);
    }

    #[test]
    fn what_nobody_said_cannot_be_on_record() {
        let (asked, mut heard, recorded) = good();
        heard.said = counted(2);
        assert_eq!(kinds((asked, heard, recorded)), [(Kind::Duplicated, 1)]);
    }

    #[test]
    fn effects_come_after_their_record() {
        let (asked, heard, mut recorded) = good();
        recorded.prompts.insert(MARK, 21);
        assert_eq!(kinds((asked, heard, recorded)), [(Kind::Unrecorded, 1)]);
        let (asked, heard, mut recorded) = good();
        recorded.allowed.clear();
        assert_eq!(kinds((asked, heard, recorded)), [(Kind::Unrecorded, 1)]);
    }

    #[test]
    fn a_prompt_is_heard_once() {
        let (asked, mut heard, recorded) = good();
        heard.prompts.insert(MARK, (2, 20));
        assert_eq!(kinds((asked, heard, recorded)), [(Kind::SentTwice, 1)]);
    }

    #[test]
    fn marks_are_found_in_prompts() {
        let mark = Mark { session: 3, prompt: 4 };
        let turn = crate::work::Turn::plain(mark);
        let text = serde_json::json!({ "do": turn.steps }).to_string();
        let blocks = serde_json::json!([{ "type": "resource" }, { "type": "text", "text": text }]);
        let frame = serde_json::json!({ "method": "session/prompt", "params": { "prompt": blocks } });
        assert_eq!(prompt(&frame), Some(mark));
    }
}
