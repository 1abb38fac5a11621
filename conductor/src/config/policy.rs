//! What agents may do is in a file of its own; here stands where that is, and
//! which MCP servers the team knows.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};

use super::duration;

/// Where the permission policy is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyFiles {
    /// The rules; the built-in `default` ones if absent.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// A directory of files `USER.toml`, each of which narrows the rules for that
    /// user.
    #[serde(default)]
    pub users: Option<PathBuf>,
    /// How long a question waits while nobody is there who could answer it; then it
    /// is denied.
    #[serde(with = "duration")]
    pub ask_timeout: Duration,
}

/// An MCP server that the team knows: a command, or an address.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// The program of a server that is started.
    #[serde(default)]
    pub command: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables that are set for it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The address of a server that runs.
    #[serde(default)]
    pub url: String,
    /// How it is spoken to: `http` or `sse`.
    #[serde(default = "http")]
    pub transport: String,
    /// Headers that are sent to it.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Every session gets it, whether or not its editor brings it.
    #[serde(default)]
    pub inject: bool,
}

fn http() -> String {
    "http".into()
}

/// Values of variables and headers are nobody's business.
impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServer")
            .field("command", &self.command)
            .field("args", &self.args)
            .field("env", &self.env.keys())
            .field("url", &self.url)
            .field("headers", &self.headers.keys())
            .field("inject", &self.inject)
            .finish_non_exhaustive()
    }
}

impl McpServer {
    /// The server as ACP has it.
    pub fn to_acp(&self, name: &str) -> Value {
        let pairs = |map: &BTreeMap<String, String>| -> Vec<Value> {
            map.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
        };
        if self.url.is_empty() {
            json!({ "name": name, "command": self.command, "args": self.args, "env": pairs(&self.env) })
        } else {
            json!({ "type": self.transport, "name": name, "url": self.url, "headers": pairs(&self.headers) })
        }
    }

    /// Whether a server that an editor brings is this one: the same in all that
    /// makes a difference, whatever it is called.
    pub fn equals(&self, server: &Value) -> bool {
        let mut ours = self.to_acp("");
        let mut theirs = server.clone();
        for server in [&mut ours, &mut theirs] {
            let Some(members) = server.as_object_mut() else { return false };
            members.remove("name");
            members.remove("_meta");
            for pairs in ["env", "headers"] {
                if let Some(pairs) = members.get_mut(pairs).and_then(Value::as_array_mut) {
                    pairs.sort_by_key(ToString::to_string);
                }
            }
        }
        ours == theirs
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_by_its_content() {
        let known: McpServer =
            toml::from_str("command = 'npx'\nargs = ['-y', 'x@1']\nenv = { A = '1', B = '2' }").unwrap();
        let as_editors_write_it = json!({
            "name": "whatever", "command": "npx", "args": ["-y", "x@1"],
            "env": [{ "name": "B", "value": "2" }, { "name": "A", "value": "1" }],
        });
        assert!(known.equals(&as_editors_write_it));
        for (key, value) in [
            ("command", json!("npx2")),
            ("args", json!(["-y", "x@2"])),
            ("env", json!([{ "name": "A", "value": "1" }])),
            (
                "env",
                json!([{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }, { "name": "LD_PRELOAD", "value": "x" }]),
            ),
            ("type", json!("stdio")),
            ("cwd", json!("/elsewhere")),
        ] {
            let mut other = as_editors_write_it.clone();
            other[key] = value;
            assert!(!known.equals(&other), "{other}");
        }
        assert!(!known.equals(&json!("npx")));
    }
}
