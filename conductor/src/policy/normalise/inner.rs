//! Tools that do nothing outside of the agent: its notes, its questions, its
//! modes.
//!
//! Rules allow them by their names, so that a name must not be all that is
//! looked at: whoever gives a command such a name would have it run.

use serde_json::{Map, Value};

use super::arguments::squeezed;

/// Keys of such tools, without what separates their words.
const KEYS: [&str; 49] = [
    "active",
    "activeform",
    "addblockedby",
    "addblocks",
    "agent",
    "alloweddomains",
    "answers",
    "bashid",
    "block",
    "blockeddomains",
    "description",
    "explanation",
    "filter",
    "goal",
    "header",
    "id",
    "intent",
    "maxresults",
    "merge",
    "metadata",
    "model",
    "mode",
    "multiselect",
    "objective",
    "operation",
    "options",
    "owner",
    "plan",
    "planfilepath",
    "prompt",
    "query",
    "question",
    "questions",
    "reason",
    "shellid",
    "skill",
    "status",
    "strategicintent",
    "subagenttype",
    "subject",
    "summary",
    "taskid",
    "thought",
    "thoughts",
    "timeout",
    "title",
    "todolist",
    "todos",
    "topic",
];

/// Names of such tools of which it is not known what all agents mean by them, squeezed. Rules may allow
/// them only with such an input.
const NOTES: [&str; 7] =
    ["managetodolist", "reportintent", "settitle", "taskcreate", "taskget", "tasklist", "taskupdate"];

/// Keys, at any depth, that such a tool has no use for.
const FOREIGN: [&str; 22] = [
    "argv",
    "cmd",
    "command",
    "commandline",
    "cwd",
    "destination",
    "diff",
    "exec",
    "file",
    "filepath",
    "files",
    "newstring",
    "newtext",
    "oldstring",
    "patch",
    "path",
    "paths",
    "script",
    "shell",
    "uri",
    "url",
    "urls",
];

/// Keys of what is written to files.
const CONTENTS: [&str; 9] =
    ["content", "contents", "newstring", "oldstring", "newtext", "oldtext", "patch", "diff", "edits"];

/// More lists and objects in one another than such a tool is given.
const DEEPEST: usize = 8;

/// Whether a call of this kind may be one of such a tool. `name` is squeezed. One that is said to read
/// has to say what it is given: then that is seen to be nothing on the disk.
pub fn is_kind(name: &str, kind: Option<&str>, has_input: bool) -> bool {
    match kind {
        None | Some("other" | "think") => true,
        Some("switch_mode") => matches!(name, "" | "enterplanmode" | "exitplanmode" | "switchmode"),
        Some("read" | "search") if has_input => true,
        Some("fetch") => matches!(name, "websearch" | "googlewebsearch"),
        Some("execute" | "read") => {
            matches!(name, "bashoutput" | "killshell" | "killbash" | "taskoutput" | "taskstop")
        }
        Some(_) => false,
    }
}

/// Whether a tool has the name of such a one, and is given what such a one is not.
pub fn is_misnamed(name: &str, inputs: &[&Map<String, Value>]) -> bool {
    NOTES.contains(&squeezed(name).as_str()) && !inputs.iter().all(|input| is_input(input))
}

/// Whether an input may be one of such a tool.
pub fn is_input(input: &Map<String, Value>) -> bool {
    input.iter().all(|(key, value)| {
        let is_known = KEYS.contains(&squeezed(key).as_str());
        (is_known || matches!(value, Value::Null | Value::Bool(false))) && is_inner(value, 0)
    })
}

/// Whether an input has something that may be written to a file.
pub fn has_content(input: &Map<String, Value>) -> bool {
    input.keys().any(|key| CONTENTS.contains(&squeezed(key).as_str()))
}

fn is_inner(value: &Value, depth: usize) -> bool {
    match value {
        _ if depth > DEEPEST => false,
        Value::Array(list) => list.iter().all(|value| is_inner(value, depth + 1)),
        Value::Object(object) => object
            .iter()
            .all(|(key, value)| !FOREIGN.contains(&squeezed(key).as_str()) && is_inner(value, depth + 1)),
        _ => true,
    }
}
