//! The scripts that need the client: files, terminals, permissions, forms.
//!
//! They use only what the client offered in `initialize`, and say so when something is missing.

use std::path::Path;

use serde_json::{Value, json};

use super::turn::{Flow, Stop, Turn};
use super::wire::RpcError;

/// How much of a command's output the client has to keep for us.
const OUTPUT_BYTES: u64 = 64 * 1024;

/// Option id, kind, name. The ids differ from the kinds, because clients have to go by the kind.
const OPTIONS: [(&str, &str, &str); 4] = [
    ("yes", "allow_once", "Allow once"),
    ("yes-always", "allow_always", "Always allow"),
    ("no", "reject_once", "Reject once"),
    ("no-always", "reject_always", "Always reject"),
];

/// Reads a file through the client.
pub(super) async fn read(turn: &mut Turn, rest: &str) -> Flow {
    let Some(path) = path(turn, rest.trim()) else {
        return turn.say("Tell me what to read: `read PATH`.\n").await;
    };
    if !turn.offers.read {
        return missing(turn, "fs.readTextFile", "nothing was read").await;
    }
    let more = json!({ "locations": [{ "path": path }], "rawInput": { "path": path } });
    turn.open_tool(&format!("Read {}", path.escape_debug()), "read", more).await?;
    turn.tool("in_progress", json!({})).await?;
    let params = json!({ "sessionId": turn.session, "path": path });
    let answer = turn.ask("fs/read_text_file", &params).await?;
    match answer.and_then(|result| field(&result, "content")) {
        Ok(content) => {
            let more =
                json!({ "content": [text_content(&content)], "rawOutput": { "bytes": content.len() } });
            turn.tool("completed", more).await?;
            turn.say(&format!("I read {} bytes:\n\n{}\n", content.len(), fenced(&content))).await
        }
        Err(error) => failed(turn, "The client did not read it", &error).await,
    }
}

/// Asks, then writes a file through the client.
pub(super) async fn write(turn: &mut Turn, rest: &str) -> Flow {
    let rest = rest.trim_start();
    let (name, new_text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let Some(path) = path(turn, name) else {
        return turn.say("Tell me where to write what: `write PATH TEXT`.\n").await;
    };
    if !turn.offers.write {
        return missing(turn, "fs.writeTextFile", "nothing was written").await;
    }
    // The old text makes a better diff. A file that cannot be read is taken for a new one.
    let mut old_text = Value::Null;
    if turn.offers.read {
        let params = json!({ "sessionId": turn.session, "path": path });
        let answer = turn.ask("fs/read_text_file", &params).await?;
        old_text = answer.map_or(Value::Null, |result| result["content"].clone());
    }
    let diff = json!({ "type": "diff", "path": path, "oldText": old_text, "newText": new_text });
    let more = json!({
        "content": [diff],
        "locations": [{ "path": path }],
        "rawInput": { "path": path, "content": new_text },
    });
    let title = format!("Write {}", path.escape_debug());
    let call = turn.open_tool(&title, "edit", more.clone()).await?;
    if !may(turn, &call, &title, "edit", more).await? {
        return Ok(());
    }
    turn.tool("in_progress", json!({})).await?;
    let params = json!({ "sessionId": turn.session, "path": path, "content": new_text });
    match turn.ask("fs/write_text_file", &params).await? {
        Ok(_) => {
            let written = json!({ "rawOutput": { "bytes": new_text.len() } });
            turn.tool("completed", written).await?;
            turn.say(&format!("I wrote {} bytes to {}.\n", new_text.len(), path.escape_debug())).await
        }
        Err(error) => failed(turn, "The client did not write it", &error).await,
    }
}

/// Asks, then runs a command in a terminal of the client.
pub(super) async fn run(turn: &mut Turn, rest: &str) -> Flow {
    let mut words = rest.split_whitespace();
    let Some(command) = words.next() else {
        return turn.say("Tell me what to run: `run COMMAND…`.\n").await;
    };
    let args: Vec<_> = words.collect();
    if !turn.offers.terminal {
        return missing(turn, "terminal", "nothing was run").await;
    }
    // All words in one list, which nobody has to guess how to join.
    let words: Vec<_> = std::iter::once(&command).chain(&args).collect();
    let more = json!({ "rawInput": { "command": words, "cwd": turn.cwd } });
    let title = format!("Run {}", rest.trim().escape_debug());
    let call = turn.open_tool(&title, "execute", more.clone()).await?;
    if !may(turn, &call, &title, "execute", more).await? {
        return Ok(());
    }
    let params = json!({
        "sessionId": turn.session,
        "command": command,
        "args": args,
        "env": [],
        "cwd": turn.cwd,
        "outputByteLimit": OUTPUT_BYTES,
    });
    let answer = turn.ask("terminal/create", &params).await?;
    let terminal = match answer.and_then(|result| field(&result, "terminalId")) {
        Ok(terminal) => terminal,
        Err(error) => return failed(turn, "The client did not start it", &error).await,
    };
    turn.open_terminal = Some(terminal.clone());
    let shown = json!({ "content": [{ "type": "terminal", "terminalId": terminal }] });
    turn.tool("in_progress", shown).await?;
    let params = json!({ "sessionId": turn.session, "terminalId": terminal });
    let exit = turn.ask("terminal/wait_for_exit", &params).await?;
    let output = turn.ask("terminal/output", &params).await?;
    // The client keeps showing a released terminal inside the tool call.
    let released = turn.ask("terminal/release", &params).await?;
    turn.open_terminal = None;
    let (exit, output) = match exit.and_then(|exit| output.map(|output| (exit, output))) {
        Ok(both) => both,
        Err(error) => return failed(turn, "The client lost the terminal", &error).await,
    };
    let text = output["output"].as_str().unwrap_or_default();
    let how = match (exit["exitCode"].as_i64(), exit["signal"].as_str()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {}", signal.escape_debug()),
        (None, None) => "neither exit code nor signal".to_owned(),
    };
    let status = if exit["exitCode"] == 0 { "completed" } else { "failed" };
    let more = json!({ "rawOutput": {
        "exitCode": exit["exitCode"],
        "signal": exit["signal"],
        "output": text,
        "truncated": output["truncated"],
    } });
    turn.tool(status, more).await?;
    turn.say(&format!("The command ended with {how}:\n\n{}\n", fenced(text))).await?;
    match released {
        Ok(_) => Ok(()),
        Err(error) => {
            turn.say(&format!("The client did not release the terminal: {}.\n", error.message)).await
        }
    }
}

/// Asks for permission only.
pub(super) async fn ask(turn: &mut Turn) -> Flow {
    let call = format!("call-{}", uuid::Uuid::now_v7().simple());
    let more = json!({ "rawInput": { "nothing": true } });
    match permission(turn, &call, "Do nothing at all", "other", more).await? {
        Ok((id, kind)) => turn.say(&format!("You chose {id:?}, which means {kind}.\n")).await,
        Err(error) => turn.say(&format!("You did not choose: {}.\n", error.message)).await,
    }
}

/// Asks the client to show a form.
pub(super) async fn form(turn: &mut Turn) -> Flow {
    if !turn.offers.form {
        return missing(turn, "elicitation.form", "no form was shown").await;
    }
    let params = json!({
        "sessionId": turn.session,
        "mode": "form",
        "message": "How do you like the demo?",
        "requestedSchema": {
            "type": "object",
            "properties": {
                "name": { "type": "string", "title": "Your name" },
                "stars": { "type": "integer", "title": "Stars", "minimum": 1, "maximum": 5 },
                "again": { "type": "boolean", "title": "Would you try it again?", "default": true },
            },
            "required": ["stars"],
        },
    });
    let text = match turn.ask("elicitation/create", &params).await? {
        Ok(answer) => match answer["action"].as_str() {
            Some("accept") => format!("You filled in: {}\n", answer["content"]),
            Some("decline") => "You declined the form.\n".to_owned(),
            Some("cancel") => "You closed the form.\n".to_owned(),
            _ => format!("I do not understand this answer: {answer}\n"),
        },
        Err(error) => format!("The client did not show the form: {}.\n", error.message),
    };
    turn.say(&text).await
}

/// Whether the open tool call may go on. If not, it has been ended and the reason has been said.
async fn may(turn: &mut Turn, call: &str, title: &str, kind: &str, more: Value) -> Flow<bool> {
    if turn.settings.mode == "yolo" {
        return Ok(true);
    }
    let remembers = turn.settings.mode == "code";
    let mut allowed = if remembers { *turn.remembered.of(kind) } else { None };
    let mut why = "you said always, and I remember".to_owned();
    if allowed.is_none() {
        match permission(turn, call, title, kind, more).await? {
            Ok((_, chosen)) => {
                allowed = Some(chosen.starts_with("allow"));
                if remembers && chosen.ends_with("always") {
                    *turn.remembered.of(kind) = allowed;
                }
                why = format!("your answer was {chosen}");
            }
            Err(error) => why = format!("there was no usable answer: {}", error.message),
        }
    }
    if allowed == Some(true) {
        return Ok(true);
    }
    turn.tool("failed", json!({ "content": [text_content("Not permitted.")] })).await?;
    turn.say(&format!("I left it alone, because {why}.\n")).await?;
    Ok(false)
}

/// Asks for permission; yields the chosen option's id and kind. `cancelled` ends the turn.
async fn permission(
    turn: &mut Turn,
    call: &str,
    title: &str,
    kind: &str,
    more: Value,
) -> Flow<Result<(&'static str, &'static str), RpcError>> {
    let mut tool_call = more;
    tool_call["toolCallId"] = json!(call);
    tool_call["title"] = json!(title);
    tool_call["kind"] = json!(kind);
    tool_call["status"] = json!("pending");
    let options: Vec<_> = OPTIONS
        .iter()
        .map(|(id, kind, name)| json!({ "optionId": id, "kind": kind, "name": name }))
        .collect();
    let params = json!({ "sessionId": turn.session, "toolCall": tool_call, "options": options });
    let answer = match turn.ask("session/request_permission", &params).await? {
        Ok(answer) => answer,
        Err(error) => return Ok(Err(error)),
    };
    let outcome = &answer["outcome"];
    if outcome["outcome"] == "cancelled" {
        return Err(Stop::Cancelled);
    }
    let chosen =
        OPTIONS.iter().find(|(id, ..)| outcome["outcome"] == "selected" && outcome["optionId"] == *id);
    Ok(chosen.map(|(id, kind, _)| (*id, *kind)).ok_or_else(|| {
        RpcError::bad_params(format!("the answer {outcome} names none of the options that were offered"))
    }))
}

/// Ends the open tool call as failed, and says why.
async fn failed(turn: &mut Turn, what: &str, error: &RpcError) -> Flow {
    let why = format!("{what}: {} (code {}).", error.message, error.code);
    let raw = json!({ "code": error.code, "message": error.message, "data": error.data });
    turn.tool("failed", json!({ "content": [text_content(&why)], "rawOutput": raw })).await?;
    turn.say(&format!("{why}\n")).await
}

async fn missing(turn: &mut Turn, capability: &str, so: &str) -> Flow {
    turn.say(&format!("Your client does not offer `{capability}`, so {so}.\n")).await
}

/// The path as the client needs it, absolute; `None` if none was given.
fn path(turn: &Turn, name: &str) -> Option<String> {
    (!name.is_empty()).then(|| Path::new(&turn.cwd).join(name).to_string_lossy().into_owned())
}

/// A string field of an answer.
fn field(result: &Value, name: &str) -> Result<String, RpcError> {
    let text = result[name].as_str().map(str::to_owned);
    text.ok_or_else(|| RpcError::internal(format!("the client's answer has no string `{name}`")))
}

fn text_content(text: &str) -> Value {
    json!({ "type": "content", "content": { "type": "text", "text": text } })
}

/// Text in a fence that it cannot close by itself.
fn fenced(text: &str) -> String {
    let mut fence = "```".to_owned();
    while text.contains(&fence) {
        fence.push('`');
    }
    let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    format!("{fence}\n{text}{end}{fence}")
}
