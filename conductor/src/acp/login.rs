//! Logging in to agents: the ways that an agent offers, how editors are offered them,
//! and what somebody is told who has to log in first.
//!
//! An editor is behind one connection and in front of many agents, so it is offered
//! the ways of all of them, each as `AGENT/METHOD`.

use std::collections::BTreeMap;

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{AgentHello, code};
use crate::frame::{Frame, Kind, splice};

/// Ways that are taken note of; no agent has nearly as many.
const MOST_METHODS: usize = 32;

/// A way to log in to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method {
    /// The agent's own name of it.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// How it is done in a terminal; otherwise by `authenticate`.
    pub terminal: Option<TerminalMethod>,
}

/// What is added to the agent's command so that somebody can log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalMethod {
    /// Arguments behind its own.
    pub args: Vec<String>,
    /// Variables beside its own.
    pub env: BTreeMap<String, String>,
}

/// Why somebody may not log in to an agent whose home is everybody's.
pub fn shared_home(agent: &str) -> String {
    format!(
        "the home of agent `{agent}` is not each user's own, so logging in to it and out of it is for \
         administrators; they can give users homes with agents.{agent}.home = \"user\""
    )
}

impl Method {
    fn read(value: &Value) -> Option<Self> {
        let id = value["id"].as_str().filter(|id| !id.is_empty())?.to_owned();
        let name = value["name"].as_str().unwrap_or(&id).to_owned();
        let terminal = (value["type"] == "terminal").then(|| TerminalMethod {
            args: texts(&value["args"]),
            env: value["env"].as_object().into_iter().flatten().filter_map(text).collect(),
        });
        Some(Self { id, name, terminal })
    }
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn text((name, value): (&String, &Value)) -> Option<(String, String)> {
    Some((name.clone(), value.as_str()?.to_owned()))
}

impl AgentHello {
    /// The ways to log in to the agent.
    pub fn methods(&self) -> Vec<Method> {
        self.raw_methods().filter_map(Method::read).collect()
    }

    fn raw_methods(&self) -> impl Iterator<Item = &Value> {
        self.result["authMethods"].as_array().into_iter().flatten().take(MOST_METHODS)
    }
}

/// The ways of an agent as an editor is offered them. What is done in a terminal is
/// offered to editors that have one: they start what they have started us with, and
/// these arguments behind it.
pub fn offered(agent: &str, title: &str, hello: &AgentHello, has_terminal: bool) -> Vec<Value> {
    let offer = |value: &Value| {
        let method = Method::read(value)?;
        let (id, name) = (format!("{agent}/{}", method.id), format!("{title}: {}", method.name));
        if method.terminal.is_none() {
            // Whatever else it says of itself stays.
            let mut offered = value.clone();
            offered["id"] = id.into();
            offered["name"] = name.into();
            return Some(offered);
        }
        let description = format!("Runs `{} --method {}`.", command(agent), method.id);
        has_terminal.then(|| {
            json!({
                "id": id, "name": name, "description": description,
                "type": "terminal", "args": ["--login", id],
            })
        })
    };
    hello.raw_methods().filter_map(offer).collect()
}

/// The command that logs somebody in to an agent.
pub fn command(agent: &str) -> String {
    format!("conductor agents login {agent}")
}

#[derive(Deserialize)]
struct ErrorParts<'a> {
    code: i64,
    #[serde(borrow)]
    message: &'a RawValue,
}

/// An agent's error which says that somebody has to log in, with the command for that at
/// the end of its message. Nothing else of it changes, above all not its `data`. `None`
/// for every other frame.
pub fn advised(frame: &Frame, agent: &str) -> Option<Frame> {
    let peek = frame.peek();
    if peek.kind != Kind::Error {
        return None;
    }
    let error = std::str::from_utf8(frame.get(peek.outcome)).ok()?;
    let ErrorParts { code, message } = serde_json::from_str(error).ok()?;
    if code != code::AUTH_REQUIRED {
        return None;
    }
    // The text of the message lies within that of the error.
    let end = message.get().as_ptr() as usize - error.as_ptr() as usize + message.get().len() - 1;
    if error.as_bytes().get(end) != Some(&b'"') {
        return None;
    }
    let advice = format!("\n\nTo log in, run: {}", command(agent)).replace('\n', "\\n");
    let told = [&error[..end], &advice, &error[end..]].concat();
    let mut out = BytesMut::new();
    splice(&mut out, frame.bytes(), [(peek.outcome, told.as_bytes())]);
    // A frame is without its line end.
    out.truncate(out.len() - 1);
    Frame::parse(out.freeze()).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn hello() -> AgentHello {
        let methods = json!([
            { "id": "browser", "name": "Browser", "x": 1 },
            { "id": "tui", "name": "Terminal", "type": "terminal", "args": ["login", 7], "env": { "A": "b" } },
            { "name": "without an id" },
            "nonsense",
        ]);
        AgentHello { result: json!({ "authMethods": methods }) }
    }

    #[test]
    fn methods_are_offered_by_agent() {
        let ids = |has_terminal| -> Vec<String> {
            let all = offered("claude", "Claude", &hello(), has_terminal);
            all.iter().map(|method| method["id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(ids(false), ["claude/browser"]);
        assert_eq!(ids(true), ["claude/browser", "claude/tui"]);
        let all = offered("claude", "Claude", &hello(), true);
        assert_eq!(all[0], json!({ "id": "claude/browser", "name": "Claude: Browser", "x": 1 }));
        assert_eq!(all[1]["args"], json!(["--login", "claude/tui"]));
        assert!(all[1].get("env").is_none(), "what it is started with is not the editor's affair");
        let terminal = hello().methods()[1].terminal.clone().unwrap();
        assert_eq!((terminal.args, terminal.env["A"].as_str()), (vec!["login".to_owned()], "b"));
        assert!(offered("x", "X", &AgentHello::default(), true).is_empty());
    }

    fn error(error: &str) -> Option<String> {
        let line = format!(r#"{{"jsonrpc":"2.0","id":"0:1","error":{error}}}"#);
        let frame = Frame::parse(Bytes::from(line)).unwrap();
        advised(&frame, "claude").map(|frame| String::from_utf8(frame.bytes().to_vec()).unwrap())
    }

    #[test]
    fn who_has_to_log_in_is_told_how() {
        let given = r#"{ "data": {"message":"inner","n":1e400,"s":"\ud800"}, "code":-32000,  "message" :"Log \"in\"" , "x":[ ] }"#;
        let told = error(given).unwrap();
        let advice = r"\n\nTo log in, run: conductor agents login claude";
        let wanted = given.replace(r#"Log \"in\"""#, &format!(r#"Log \"in\"{advice}""#));
        assert!(told.ends_with(&format!("{wanted}}}")), "{told}");
        let decoded: Value =
            serde_json::from_str(&told.replace("1e400", "1").replace("\\ud800", "")).unwrap();
        assert_eq!(
            decoded["error"]["message"],
            "Log \"in\"\n\nTo log in, run: conductor agents login claude"
        );
    }

    #[test]
    fn other_errors_stay_as_they_are() {
        for other in [
            r#"{"code":-32603,"message":"x"}"#,
            r#"{"code":-32000}"#,
            r#"{"code":-32000,"message":null}"#,
            r#"{"code":"-32000","message":"x"}"#,
            r#""text""#,
        ] {
            assert_eq!(error(other), None, "{other}");
        }
    }
}
