//! What stands in a rule file, key by key, and the words for one that is refused.

use std::{fmt::Write as _, ops::Range};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use toml::Spanned;

use crate::policy::Effect;

/// A rule file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleFile {
    /// Presets whose rules are part of the policy.
    #[serde(default, rename = "use")]
    pub presets: Vec<Spanned<String>>,
    /// Rules of those that are left out.
    #[serde(default)]
    pub drop: Vec<Spanned<String>>,
    /// Its own rules.
    #[serde(default)]
    pub rule: Vec<Spanned<RuleShape>>,
}

/// A list of texts with the places where they stand.
pub(super) type Texts = Vec<Spanned<String>>;

/// One rule.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleShape {
    pub id: Spanned<String>,
    pub effect: Effect,
    pub reason: Spanned<String>,
    #[serde(default)]
    pub who: WhoShape,
    pub agent: Option<Texts>,
    pub mode: Option<Texts>,
    pub model: Option<Texts>,
    pub root: Option<Texts>,
    pub run: Option<RunShape>,
    pub read: Option<PathShape>,
    pub write: Option<PathShape>,
    pub fetch: Option<FetchShape>,
    pub mcp: Option<McpShape>,
    pub tool: Option<Texts>,
    pub set_mode: Option<Texts>,
    pub set_model: Option<Texts>,
    pub setting: Option<SettingShape>,
    pub use_agent: Option<Texts>,
    pub server: Option<ServerShape>,
    pub anything: Option<bool>,
    pub ask: Option<Spanned<AskShape>>,
    #[serde(default, rename = "match")]
    pub matching: Vec<Spanned<Value>>,
    #[serde(default)]
    pub not_match: Vec<Spanned<Value>>,
}

/// Whom a rule is about.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhoShape {
    pub user: Option<Texts>,
    pub team: Option<Texts>,
    pub role: Option<Texts>,
}

/// How a rule asks.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskShape {
    pub approvers: Option<WhoShape>,
    pub driver: Option<bool>,
    #[serde(rename = "self")]
    pub own: Option<bool>,
    pub timeout: Option<Spanned<String>>,
}

/// Programs.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunShape {
    pub program: Texts,
    pub subcommand: Option<Texts>,
    pub flags: Option<Spanned<String>>,
    pub options: Option<Texts>,
    pub positionals: Option<Texts>,
    pub options_first: Option<Spanned<bool>>,
    pub globals: Option<Texts>,
    pub local: Option<bool>,
    pub at: Option<Spanned<String>>,
    pub any_option: Option<Texts>,
    pub any_word: Option<Texts>,
    pub any_path: Option<Texts>,
    pub words: Option<Spanned<String>>,
}

/// Files and directories.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathShape {
    pub path: Option<Texts>,
    pub inside: Option<bool>,
    pub protected: Option<bool>,
}

/// Addresses.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FetchShape {
    pub scheme: Option<Texts>,
    pub host: Option<Texts>,
    pub port: Option<Vec<u16>>,
    pub path: Option<Texts>,
}

/// Tools of MCP servers.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct McpShape {
    pub server: Option<Texts>,
    pub tool: Option<Texts>,
}

/// Options of a session.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettingShape {
    pub id: Option<Texts>,
    pub value: Option<Texts>,
}

/// MCP servers of editors.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerShape {
    pub name: Option<Texts>,
    pub known: Option<bool>,
    pub transport: Option<Texts>,
    pub remote: Option<bool>,
}

/// Something wrong in a rule file, or not as it was likely meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line, counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// The rule that it is about.
    pub rule: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl Problem {
    /// The problem in words, with where it is.
    pub fn shown(&self, origin: &str) -> String {
        let mut text = origin.to_owned();
        if self.line > 0 {
            let _ = write!(text, ":{}", self.line);
        }
        if let Some(rule) = &self.rule {
            let _ = write!(text, ": rule `{rule}`");
        }
        let _ = write!(text, ": {}\nhint: {}", self.what, self.hint);
        text
    }
}

/// The text of a rule file, for finding lines in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a>(pub &'a str);

impl Source<'_> {
    /// The line of a place.
    pub(super) fn line(self, at: &Range<usize>) -> usize {
        let before = self.0.as_bytes().get(..at.start).unwrap_or(self.0.as_bytes());
        1 + memchr::memchr_iter(b'\n', before).count()
    }

    /// Reads the file.
    pub(super) fn parse<T: DeserializeOwned>(self) -> Result<T, Problem> {
        toml::from_str(self.0).map_err(|error| {
            let line = error.span().map_or(0, |span| self.line(&span));
            let message = error.message();
            let message: String = message.chars().take(300).flat_map(escaped).collect();
            let (what, hint) = explain(&message);
            Problem { line, rule: self.rule_at(line), what, hint }
        })
    }

    /// The id of the rule around a line, found without a grammar: the file has none.
    fn rule_at(self, line: usize) -> Option<String> {
        let lines: Vec<&str> = self.0.lines().collect();
        let is_rule = |line: &&str| line.trim_start().starts_with("[[rule]]");
        let first = lines.iter().take(line).rposition(&is_rule)?;
        let last = lines.iter().skip(first + 1).position(is_rule);
        let inner = lines.get(first + 1..last.map_or(lines.len(), |count| first + 1 + count))?;
        let mut ids = inner.iter().filter_map(|line| {
            let value = line.trim_start().strip_prefix("id")?.trim_start().strip_prefix('=')?;
            value.split('"').nth(1)
        });
        ids.next().map(|id| id.chars().take(64).flat_map(escaped).collect())
    }
}

/// A character as a message may have it.
pub(super) fn escaped(c: char) -> impl Iterator<Item = char> {
    let plain = !(c.is_control() || crate::policy::text::hidden(c.encode_utf8(&mut [0; 4])).is_some());
    let escape = (!plain || c == '\n').then(|| c.escape_default());
    escape.into_iter().flatten().chain((plain && c != '\n').then_some(c))
}

/// What is wrong and what to do, from what the parser says.
fn explain(message: &str) -> (String, String) {
    if let Some(rest) = message.strip_prefix("unknown field `")
        && let Some((key, known)) = rest.split_once("`, expected ")
    {
        return (format!("unknown key `{key}`"), format!("correct or remove it; keys here: {}", keys(known)));
    }
    if let Some(key) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return (
            format!("`{key}` is missing"),
            match key {
                "id" => "name the rule, as in id = \"no-push\"".to_owned(),
                "reason" => {
                    "say why, for the agent and for people, as in reason = \"pushes are reviewed\"".into()
                }
                "effect" => "write effect = \"allow\", \"ask\" or \"deny\"".into(),
                "program" => "name programs, as in program = [\"git\"]; [\"*\"] is every program".into(),
                _ => format!("add {key} = …"),
            },
        );
    }
    (message.to_owned(), "correct the line; `conductor policy show default` prints rules as examples".into())
}

fn keys(known: &str) -> String {
    known.trim_start_matches("one of ").replace('`', "")
}
