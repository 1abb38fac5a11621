//! What one frame says of a tool call: which of an agent's words for name and
//! output counts, and whether it is a call that was not known.

use std::borrow::Cow;

use super::{
    NAME,
    json::{dig, elements, pick, short, some, text},
};

/// What tells of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Teller {
    /// `tool_call`: it begins.
    Begin,
    /// `tool_call_update`.
    Update,
    /// A request for permission, which may come first.
    Permission,
}

impl Teller {
    /// Whether a frame tells of a call that was not known. `known` is the turn
    /// of the call that has the same id, and whether it has ended. Some agents
    /// use an id again in a later turn, or say several times that a call begins.
    pub fn begins<T: PartialEq>(self, known: Option<(T, bool)>, turn: &T, status: Option<&str>) -> bool {
        let Some((known_turn, is_ended)) = known else { return true };
        let is_other_turn = known_turn != *turn;
        match self {
            Self::Begin => is_other_turn || is_ended && !is_end(status),
            Self::Permission => is_other_turn,
            Self::Update => false,
        }
    }
}

/// Whether a tool call of this status is over.
pub fn is_end(status: Option<&str>) -> bool {
    matches!(status, Some("completed" | "failed"))
}

/// What a frame says of a tool call; values are JSON, unless they are strings.
#[derive(Debug)]
pub struct Telling<'a> {
    /// The agent's id of it.
    pub id: Cow<'a, str>,
    /// The best name it tells.
    pub name: Ranked<String>,
    /// What people are shown.
    pub title: Option<&'a str>,
    /// The sort of tool.
    pub kind: Option<String>,
    /// How far it is.
    pub status: Option<String>,
    /// What people are shown of it, if there is any of it.
    pub content: Option<&'a str>,
    /// Where it works.
    pub locations: Option<&'a str>,
    /// What it was given.
    pub input: Option<&'a str>,
    /// The best output it tells.
    pub output: Ranked<&'a str>,
    /// `rawOutput`, as it stands there.
    pub raw_output: Option<&'a str>,
}

impl<'a> Telling<'a> {
    /// Reads a tool call or an update of one; nothing if it has no id.
    pub fn read(json: &'a str) -> Option<Self> {
        let [id, name, title, kind, status, content, locations, input, output, meta] = pick(
            json,
            [
                "toolCallId",
                "name",
                "title",
                "kind",
                "status",
                "content",
                "locations",
                "rawInput",
                "rawOutput",
                "_meta",
            ],
        );
        let meta = |path: &[&str]| dig(meta?, path);
        let names = [meta(&["goose", "toolCall", "toolName"]), meta(&["claudeCode", "toolName"]), name];
        let content = content.filter(|content| elements(content).next().is_some());
        let outputs = [content, some(meta(&["claudeCode", "toolResponse"])), some(output)];
        Some(Self {
            id: id.and_then(text)?,
            name: Ranked::best(names.map(|name| short(name, NAME))),
            title,
            kind: short(kind, NAME),
            status: short(status, NAME),
            content,
            locations,
            input: some(input),
            output: Ranked::best(outputs),
            raw_output: output,
        })
    }
}

/// A value, and how good its source is.
#[derive(Debug)]
pub struct Ranked<T> {
    rank: usize,
    value: Option<T>,
}

impl<T> Ranked<T> {
    /// The best source that there is: the last one counts most.
    fn best<const N: usize>(sources: [Option<T>; N]) -> Self {
        let found = sources.into_iter().enumerate().rev().find(|(_, source)| source.is_some());
        let (rank, value) = found.map_or((0, None), |(rank, source)| (rank + 1, source));
        Self { rank, value }
    }

    /// The value, unless one of a better source was seen; `seen` is how good the
    /// best source was so far.
    pub fn unless_better(self, seen: &mut usize) -> Option<T> {
        let value = self.value.filter(|_| self.rank >= *seen)?;
        *seen = self.rank;
        Some(value)
    }
}
