//! Sessions full of words that were drawn by lot, always the same ones, with a
//! list of everything that stands in them.

use conductor::{
    journal::{Batch, Class, Journal},
    ledger::{
        history::History,
        search::{Filter, Hit, Kind},
    },
    record::{Destination, Origin, Stream, StreamKind, note},
};
use conductor_tests::shipping::{Bench, ship_all};
use serde_json::{Value, json};
use uuid::Uuid;

/// When all of this happened: 2026-11-16T12:00:00Z.
pub const NOON_US: i64 = 1_794_830_400_000_000;
pub const SECOND_US: i64 = 1_000_000;

/// Words that are rare, common, parts of others, and of several scripts.
const WORDS: &[&str] = &[
    "the",
    "the",
    "the",
    "a",
    "of",
    "rate",
    "limit",
    "Rate",
    "LIMIT",
    "rate_limit",
    "limits",
    "unlimited",
    "fox",
    "foxes",
    "src/main.rs",
    "src/limits.rs",
    "main",
    "rs",
    "größe",
    "GRÖSSE",
    "日本語",
    "本",
    "50%",
    "100",
    "v1.2.3",
    "it's",
    "x",
    "Vec::<u8>",
    "e\u{301}t",
    "naïve",
    "🦊",
    "--force",
    "-",
    "λ",
    "ДОМ",
    "дом",
];

/// Numbers by lot, the same for the same seed.
pub struct Lot(u64);

impl Lot {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    pub fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    pub fn words(&mut self, least: usize, most: usize) -> String {
        let count = least + self.below(most - least + 1);
        let words: Vec<_> = (0..count).map(|_| self.one(WORDS)).collect();
        words.join(self.one(&[" ", " ", " ", "\n", ", ", "-", "/"]))
    }
}

/// Something that can be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thing {
    pub session: Uuid,
    pub user: &'static str,
    pub agent: &'static str,
    pub repository: &'static str,
    pub kind: Kind,
    pub seq: i64,
    pub at_us: i64,
    pub text: String,
}

/// A session that is being written.
pub struct Author<'a> {
    journal: &'a Journal,
    stream: Stream,
    seq: u64,
    at_us: i64,
    pub things: Vec<Thing>,
    who: (&'static str, &'static str, &'static str),
    calls: u64,
}

impl<'a> Author<'a> {
    pub fn new(journal: &'a Journal, at_us: i64, who: (&'static str, &'static str, &'static str)) -> Self {
        let stream = Stream { id: Uuid::now_v7(), kind: StreamKind::Session };
        let mut author = Self { journal, stream, seq: 0, at_us, things: Vec::new(), who, calls: 0 };
        let (user, agent, repository) = who;
        let opened = json!({ "how": "new", "user": user, "agent": agent, "cwd": repository, "repository": repository });
        author.frame(Origin::Conductor, Destination::Record, &note(note::SESSION_OPENED, &opened));
        author
    }

    pub fn id(&self) -> Uuid {
        self.stream.id
    }

    fn frame(&mut self, origin: Origin, to: Destination, raw: &[u8]) -> i64 {
        self.seq += 1;
        self.at_us += SECOND_US;
        let mut batch = Batch::new();
        batch.push(self.stream, self.seq, self.at_us, origin, to, &[], [raw].into_iter());
        self.journal.append(batch, Class::Stream).map_err(|refused| refused.why).unwrap();
        i64::try_from(self.seq).unwrap()
    }

    fn thing(&mut self, kind: Kind, seq: i64, at_us: i64, text: String) {
        let (user, agent, repository) = self.who;
        let session = self.stream.id;
        self.things.push(Thing { session, user, agent, repository, kind, seq, at_us, text });
    }

    fn update(&mut self, update: &Value) -> i64 {
        let frame = json!({ "jsonrpc": "2.0", "method": "session/update",
            "params": { "sessionId": "s", "update": update } });
        self.frame(Origin::Agent, Destination::Editor, frame.to_string().as_bytes())
    }

    pub fn prompt(&mut self, text: &str) {
        let frame = json!({ "jsonrpc": "2.0", "id": self.seq, "method": "session/prompt",
            "params": { "sessionId": "s", "prompt": [{ "type": "text", "text": text }] } });
        let seq = self.frame(Origin::Editor, Destination::Agent, frame.to_string().as_bytes());
        self.thing(Kind::Message, seq, self.at_us, text.to_owned());
    }

    /// An answer in chunks, and what interrupts it, so that the next is another.
    pub fn answer(&mut self, chunks: &[&str]) {
        let mut first = None;
        for chunk in chunks {
            let content = json!({ "type": "text", "text": chunk });
            let seq = self.update(&json!({ "sessionUpdate": "agent_message_chunk", "content": content }));
            first.get_or_insert((seq, self.at_us));
        }
        let (seq, at_us) = first.unwrap();
        self.thing(Kind::Message, seq, at_us, chunks.concat());
        self.update(&json!({ "sessionUpdate": "plan", "entries": [] }));
    }

    /// A chunk of an answer that goes on.
    pub fn begin(&mut self, chunk: &str) {
        let content = json!({ "type": "text", "text": chunk });
        self.update(&json!({ "sessionUpdate": "agent_message_chunk", "content": content }));
    }

    /// A tool call that reads a file.
    pub fn tool(&mut self, title: &str, path: &str) {
        self.calls += 1;
        let seq =
            self.update(&json!({ "sessionUpdate": "tool_call", "toolCallId": format!("c{}", self.calls),
            "title": title, "kind": "read", "status": "pending", "rawInput": { "path": path },
            "_meta": { "claudeCode": { "toolName": "Look" } } }));
        self.thing(Kind::Tool, seq, self.at_us, format!("Look\n{title}\npath: {path}"));
        if !path.is_empty() {
            self.thing(Kind::Path, seq, self.at_us, path.to_owned());
        }
    }

    /// A command in a terminal.
    pub fn command(&mut self, line: &str) {
        let frame = json!({ "jsonrpc": "2.0", "id": self.seq, "method": "terminal/create",
            "params": { "sessionId": "s", "command": line } });
        let seq = self.frame(Origin::Agent, Destination::Editor, frame.to_string().as_bytes());
        self.thing(Kind::Command, seq, self.at_us, line.to_owned());
    }
}

const PEOPLE: [(&str, &str, &str); 3] =
    [("ann", "demo", "/w/one"), ("bob", "codex", "/w/two"), ("ann", "codex", "/srv/two")];

/// Fills a journal and carries it into the ledger.
pub async fn corpus(bench: &Bench, seed: u64) -> Vec<Thing> {
    let journal = bench.journal();
    let mut lot = Lot::new(seed);
    let mut things = Vec::new();
    for nth in 0..6_i64 {
        let who = PEOPLE[usize::try_from(nth).unwrap() % PEOPLE.len()];
        let mut author = Author::new(&journal, NOON_US + nth * 3600 * SECOND_US, who);
        for _ in 0..30 {
            author.prompt(&lot.words(1, 12));
            let chunks = [lot.words(1, 8), lot.words(1, 30), lot.words(1, 4)];
            author.answer(&chunks.each_ref().map(String::as_str));
            author.tool(&lot.words(1, 4), &format!("/w/{}", lot.words(1, 3).replace(['\n', ' '], "/")));
            author.command(&format!("run {}", lot.words(1, 6)));
        }
        things.append(&mut author.things);
    }
    // More words than Postgres has places for, and a phrase behind all of them.
    let mut author = Author::new(&journal, NOON_US + 7 * 3600 * SECOND_US, PEOPLE[0]);
    let long = format!("{} rate fox limit limit", "word ".repeat(20_000));
    author.answer(&[&long]);
    things.append(&mut author.things);
    ship_all(bench.settings(), &journal).await;
    things
}

pub fn history(bench: &Bench) -> History {
    History::new(bench.settings(), None)
}

/// All hits of all pages.
pub async fn all(history: &History, text: &str, filter: &Filter) -> Vec<Hit> {
    let mut filter = filter.clone();
    let mut hits = Vec::new();
    loop {
        let page = history.search(text, &filter).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        hits.extend(page.items);
        filter.after = page.next;
        if filter.after.is_none() {
            return hits;
        }
    }
}

/// What a hit is, to be compared.
pub fn key(hit: &Hit) -> (Uuid, &'static str, i64) {
    (hit.session_id.parse().unwrap(), hit.kind.name(), hit.seq)
}

impl Thing {
    pub fn key(&self) -> (Uuid, &'static str, i64) {
        (self.session, self.kind.name(), self.seq)
    }
}
