//! One editor at work in several sessions: it opens, prompts, cancels, answers, reads
//! slowly, closes, leaves and comes back, by lot. What it is told is held against what
//! it asked for, line by line.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use conductor_tests::dice::Dice;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    findings::{Kind, Trouble},
    link::Link,
    shared::{Phase, Shared, Way, count},
    sight::{Answer, Asked, Conversation},
    work::Turn,
};

/// What takes longer will never be. More than all deadlines of the service together.
const PATIENCE: Duration = Duration::from_secs(120);

/// Prompts of one session; loading a longer one would take most of the time.
const LONGEST: usize = 30;

/// What an editor has asked of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Initialize,
    New,
    Load,
    Close,
    Prompt(u32),
}

/// A place for a session.
#[derive(Debug, Default)]
struct Slot {
    conversation: Option<Conversation>,
    /// This link has it open.
    is_open: bool,
    /// What is under way.
    waits: Option<u64>,
    /// When something may begin.
    due: Option<Instant>,
    /// When the running turn is cancelled.
    cancel: Option<Instant>,
    /// Since when the service will not open it, or, at the end, not work in it.
    refused: Option<Instant>,
    /// It has shown at the end that it works.
    is_finished: bool,
}

/// A call under way.
#[derive(Debug)]
struct Underway {
    slot: usize,
    call: Call,
    since: Instant,
    /// Nothing was broken when it began.
    calm: bool,
}

/// Why an editor stops listening to a link.
#[derive(Debug, PartialEq, Eq)]
enum Turned {
    /// The link is void.
    Lost,
    /// The editor is closed for a while.
    Away,
    /// All sessions have shown that they work.
    Finished,
}

/// An editor.
pub struct Seat {
    pub number: usize,
    pub way: Way,
    /// Without a bridge.
    pub is_raw: bool,
    pub dice: Dice,
    pub shared: Arc<Shared>,
    slots: Vec<Slot>,
    calls: BTreeMap<u64, Underway>,
    next_id: u64,
    reads_from: Instant,
    over: Vec<Asked>,
}

impl Seat {
    pub fn new(
        shared: &Arc<Shared>,
        number: usize,
        sessions: usize,
        way: Way,
        is_raw: bool,
        dice: Dice,
    ) -> Self {
        let slots = (0..sessions).map(|_| Slot::default()).collect();
        Self {
            number,
            way,
            is_raw,
            dice,
            shared: Arc::clone(shared),
            slots,
            calls: BTreeMap::new(),
            next_id: 1,
            reads_from: Instant::now(),
            over: Vec::new(),
        }
    }

    /// Works until the phase says that it is over, and then looks at every session once more as
    /// an editor that comes later. Gives all that was ever asked.
    pub async fn run(mut self) -> Vec<Asked> {
        loop {
            let Some(mut link) = self.open().await else { continue };
            let turned = self.work(&mut link).await;
            self.abandon();
            if turned != Turned::Lost {
                link.leave(&self.shared, self.number).await;
            }
            if turned == Turned::Finished {
                break;
            }
            sleep(self.dice.millis(0, 300)).await;
        }
        self.read_again().await;
        let open = self.slots.into_iter().filter_map(|slot| slot.conversation);
        self.over.extend(open.flat_map(Conversation::into_asked));
        self.over
    }

    async fn open(&self) -> Option<Link> {
        if self.is_raw {
            return Some(Link::tunnel(&self.shared, &self.way));
        }
        match Link::bridge(&self.shared, self.number, &self.way) {
            Ok(link) => Some(link),
            Err(error) => {
                self.shared.findings.add(Trouble::one(Kind::Failed, format!("{error:#}")));
                sleep(Duration::from_secs(1)).await;
                None
            }
        }
    }

    /// Works on one link until it is void, or no longer wanted.
    async fn work(&mut self, link: &mut Link) -> Turned {
        let mut phase = self.shared.phase.subscribe();
        let hello = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        self.call(link, 0, Call::Initialize, "initialize", &hello);
        loop {
            if self.slots.iter().all(|slot| slot.is_finished) {
                return Turned::Finished;
            }
            if self.begin_what_is_due(link) {
                return Turned::Away;
            }
            self.give_up_what_never_comes();
            let wake = self.next_due();
            tokio::select! {
                line = link.next(), if self.reads_from <= Instant::now() => match line {
                    Some(line) => self.take(link, &line),
                    None => return Turned::Lost,
                },
                () = sleep_until(wake) => {}
                _ = phase.changed() => {}
            }
        }
    }

    /// Loads every session that is still there, as somebody does who was never there.
    async fn read_again(&mut self) {
        self.is_raw = false;
        self.way.proxy = None;
        for slot in &mut self.slots {
            (slot.is_finished, slot.is_open) = (false, false);
        }
        let Some(mut link) = self.open().await else { return };
        let hello = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        self.call(&link, 0, Call::Initialize, "initialize", &hello);
        while !self.calls.is_empty() || self.slots.iter().any(|slot| !slot.is_open) {
            for at in 0..self.slots.len() {
                let slot = &self.slots[at];
                if !slot.is_open && slot.waits.is_none() && slot.due.is_none_or(|due| due <= Instant::now()) {
                    self.open_session(&link, at);
                }
            }
            self.give_up_what_never_comes();
            tokio::select! {
                line = link.next() => match line {
                    Some(line) => self.take(&link, &line),
                    None => {
                        self.shared.findings.add(Trouble::one(Kind::Failed, "a bridge ended in the end"));
                        return;
                    }
                },
                () = sleep(Duration::from_millis(100)) => {}
            }
        }
        link.leave(&self.shared, self.number).await;
    }

    /// Sends a request about a slot's session.
    fn call(&mut self, link: &Link, slot: usize, call: Call, method: &str, params: &Value) {
        let id = self.next_id;
        self.next_id += 1;
        let calm = self.shared.phase() == Phase::Calm;
        self.calls.insert(id, Underway { slot, call, since: Instant::now(), calm });
        if call != Call::Initialize {
            self.slots[slot].waits = Some(id);
        }
        link.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
    }

    /// Begins what may begin; whether the editor goes away instead.
    fn begin_what_is_due(&mut self, link: &Link) -> bool {
        let now = Instant::now();
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            if slot.cancel.is_some_and(|due| due <= now) {
                slot.cancel = None;
                if let Some(Conversation { id, .. }) =
                    slot.conversation.as_ref().filter(|_| slot.waits.is_some())
                {
                    let params = json!({ "sessionId": id });
                    let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params });
                    link.send(cancel.to_string());
                    count(&self.shared.counts.cancels);
                }
            }
            let is_due = slot.due.is_none_or(|due| due <= now);
            if slot.waits.is_some() || slot.is_finished || !is_due {
                continue;
            }
            if !slot.is_open {
                self.open_session(link, at);
                continue;
            }
            let settles = self.shared.phase() == Phase::Settle;
            let prompts = slot.conversation.as_ref().map_or(0, Conversation::prompts);
            match self.dice.roll(100) {
                0 if !settles => return true,
                1..=3 if !settles && prompts > 2 => self.close(link, at),
                _ if !settles && prompts >= LONGEST => self.close(link, at),
                _ => self.prompt(link, at, settles),
            }
        }
        false
    }

    fn open_session(&mut self, link: &Link, at: usize) {
        let mut params = json!({ "cwd": self.shared.launch.work(self.number), "mcpServers": [] });
        let Some(conversation) = &mut self.slots[at].conversation else {
            return self.call(link, at, Call::New, "session/new", &params);
        };
        conversation.begin_history();
        params["sessionId"] = json!(conversation.id);
        self.call(link, at, Call::Load, "session/load", &params);
    }

    fn close(&mut self, link: &Link, at: usize) {
        let Some(conversation) = &self.slots[at].conversation else { return };
        let params = json!({ "sessionId": conversation.id });
        self.call(link, at, Call::Close, "session/close", &params);
    }

    fn prompt(&mut self, link: &Link, at: usize, is_last: bool) {
        let Some(conversation) = &mut self.slots[at].conversation else { return };
        let mark = conversation.next_mark();
        let turn = if is_last { Turn::plain(mark) } else { Turn::any(mark, &mut self.dice) };
        conversation.ask(turn.chunks);
        let text = json!({ "do": turn.steps }).to_string();
        let prompt = json!([{ "type": "text", "text": text }]);
        let params = json!({ "sessionId": conversation.id, "prompt": prompt });
        if !is_last && self.dice.one_in(12) {
            self.slots[at].cancel = Some(Instant::now() + self.dice.millis(0, 250));
        }
        count(&self.shared.counts.prompts);
        self.call(link, at, Call::Prompt(mark.prompt), "session/prompt", &params);
    }

    /// Takes a line of the service's.
    fn take(&mut self, link: &Link, line: &[u8]) {
        count(&self.shared.counts.frames);
        let Ok(frame) = serde_json::from_slice::<Value>(line) else {
            let text = String::from_utf8_lossy(line).into_owned();
            return self.shared.findings.add(Trouble::one(Kind::Lost, format!("not a frame: {text}")));
        };
        match (frame["method"].as_str(), frame.get("id")) {
            (Some("session/update"), None) => self.update(&frame["params"]),
            (Some("session/request_permission"), Some(id)) => self.decide(link, id, &frame["params"]),
            (Some(_), Some(id)) => {
                let error = json!({ "code": -32601, "message": "not known to this editor" });
                link.send(json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string());
            }
            (Some(_), None) => {}
            (None, id) => self.answered(id, &frame),
        }
        if self.shared.phase() != Phase::Settle && self.dice.one_in(2000) {
            self.reads_from = Instant::now() + self.dice.millis(100, 3000);
            count(&self.shared.counts.slow);
        }
    }

    fn update(&mut self, params: &Value) {
        let update = &params["update"];
        let text = update["content"]["text"].as_str();
        let Some(text) = text.filter(|_| update["sessionUpdate"] == "agent_message_chunk") else { return };
        let conversations = self.slots.iter_mut().filter_map(|slot| slot.conversation.as_mut());
        let found = conversations.into_iter().find(|known| params["sessionId"] == known.id.as_str());
        // One that was just closed may say its last words.
        self.shared.findings.extend(found.and_then(|conversation| conversation.chunk(text)));
    }

    /// Allows what it is asked about, once.
    fn decide(&self, link: &Link, id: &Value, params: &Value) {
        count(&self.shared.counts.asks);
        let options = params["options"].as_array().cloned().unwrap_or_default();
        let once = options.iter().find(|option| option["kind"] == "allow_once");
        let option = once.map(|option| option["optionId"].clone()).unwrap_or_default();
        let result = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        link.send(json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string());
    }

    fn answered(&mut self, id: Option<&Value>, frame: &Value) {
        let id = id.and_then(Value::as_u64).unwrap_or_default();
        let Some(Underway { slot: at, call, calm, .. }) = self.calls.remove(&id) else {
            let words = format!("request {id} of editor {}: {frame}", self.number);
            return self.shared.findings.add(Trouble::one(Kind::AnsweredTwice, words));
        };
        let failed = frame.get("error").is_some();
        if failed && calm && self.shared.phase() == Phase::Calm {
            let session = self.slots[at].conversation.as_ref().map_or("", |known| known.id.as_str());
            let words = format!("{call:?} in session {session}: {}", frame["error"]);
            self.shared.findings.add(Trouble::one(Kind::Failed, words));
        }
        if call == Call::Initialize {
            return;
        }
        self.slots[at].waits = None;
        self.slots[at].due = Some(Instant::now() + self.dice.millis(0, self.shared.pause_ms));
        match call {
            Call::Prompt(prompt) => self.turn_ended(at, prompt, frame),
            Call::Load if failed => self.refused(at, &frame["error"]),
            _ if failed => {}
            Call::Initialize => {}
            Call::New => {
                let number = self.shared.counts.sessions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let id = frame["result"]["sessionId"].as_str().unwrap_or_default().to_owned();
                self.slots[at].conversation = Some(Conversation::new(id, number));
                self.slots[at].is_open = true;
            }
            Call::Load => {
                count(&self.shared.counts.loads);
                (self.slots[at].is_open, self.slots[at].refused) = (true, None);
                let lost = self.slots[at].conversation.as_mut().map(Conversation::end_history);
                self.shared.findings.extend(lost.unwrap_or_default());
            }
            Call::Close => {
                count(&self.shared.counts.closes);
                self.forget(at);
            }
        }
    }

    /// A session that is there can be loaded again before long, whatever is broken meanwhile.
    fn refused(&mut self, at: usize, error: &Value) {
        let slot = &mut self.slots[at];
        if slot.refused.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return;
        }
        let session = slot.conversation.as_ref().map_or("", |known| known.id.as_str());
        let words = format!("session {session} cannot be loaded any more: {error}");
        self.shared.findings.add(Trouble::one(Kind::Lost, words));
        self.forget(at);
    }

    fn turn_ended(&mut self, at: usize, prompt: u32, frame: &Value) {
        let slot = &mut self.slots[at];
        slot.cancel = None;
        let Some(conversation) = &mut slot.conversation else { return };
        let reason = frame["result"]["stopReason"].as_str();
        let answer = if reason == Some("end_turn") { Answer::Done } else { Answer::Cut };
        if answer == Answer::Cut && reason != Some("cancelled") && !frame["error"]["message"].is_string() {
            let words = format!("prompt {prompt} in session {}: {frame}", conversation.id);
            self.shared.findings.add(Trouble::one(Kind::Unanswered, words));
        }
        count(if answer == Answer::Done { &self.shared.counts.done } else { &self.shared.counts.cut });
        self.shared.findings.extend(conversation.answered(prompt, answer));
        if self.shared.phase() != Phase::Settle {
            return;
        }
        // Nothing breaks any more, so that before long every session works.
        slot.is_finished = answer == Answer::Done;
        if !slot.is_finished && slot.refused.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            let words = format!("session {} does not work any more: {frame}", conversation.id);
            self.shared.findings.add(Trouble::one(Kind::Failed, words));
            slot.is_finished = true;
        }
    }

    /// Whatever is under way will not be answered on this link.
    fn abandon(&mut self) {
        for (_, Underway { slot, call, .. }) in std::mem::take(&mut self.calls) {
            let slot = &mut self.slots[slot];
            if let (Call::Prompt(prompt), Some(conversation)) = (call, &mut slot.conversation) {
                self.shared.findings.extend(conversation.answered(prompt, Answer::Abandoned));
            }
            // A session that is being closed may be closed or not.
            if call == Call::Close {
                let asked = slot.conversation.take().map(Conversation::into_asked);
                self.over.extend(asked.unwrap_or_default());
            }
        }
        for slot in &mut self.slots {
            (slot.is_open, slot.waits, slot.cancel, slot.due) = (false, None, None, None);
        }
    }

    fn give_up_what_never_comes(&mut self) {
        let now = Instant::now();
        let late = |underway: &Underway| now - underway.since > PATIENCE;
        let ids: Vec<u64> = self.calls.iter().filter(|(_, call)| late(call)).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(Underway { slot: at, call, .. }) = self.calls.remove(&id) else { continue };
            let session = self.slots[at].conversation.as_ref().map_or("none", |known| known.id.as_str());
            let words = format!("{call:?} of editor {} in session {session}", self.number);
            self.shared.findings.add(Trouble::one(Kind::Unanswered, words));
            self.forget(at);
            self.slots[at].waits = None;
        }
    }

    /// Lets a session go; the next one takes its place.
    fn forget(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        let asked = slot.conversation.take().map(Conversation::into_asked);
        self.over.extend(asked.unwrap_or_default());
        (slot.is_open, slot.refused) = (false, None);
    }

    /// When to look again, whatever comes.
    fn next_due(&self) -> Instant {
        let now = Instant::now();
        let idle = self.slots.iter().filter(|slot| slot.waits.is_none() && !slot.is_finished);
        let due = idle.filter_map(|slot| slot.due);
        let cancels = self.slots.iter().filter_map(|slot| slot.cancel);
        let reads = Some(self.reads_from).filter(|from| *from > now);
        let latest = now + Duration::from_secs(1);
        due.chain(cancels).chain(reads).min().unwrap_or(latest).min(latest)
    }
}
