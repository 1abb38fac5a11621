//! Requests for permission in every form, as tables.

use serde_json::{Value, json};

use super::{asked, expected};

/// A call as it is announced, and the request for it.
pub(super) fn call(fields: &Value) -> Value {
    let mut call = json!({ "toolCallId": "1" });
    call.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    call
}

pub(super) fn request(fields: &Value) -> Value {
    json!({ "toolCall": call(fields), "options": [{ "optionId": "a", "kind": "allow_once", "name": "yes" }] })
}

#[test]
fn inputs_of_known_tools_are_read() {
    for (fields, wanted) in [
        (json!({ "name": "Bash", "rawInput": { "command": "ls" } }), &["shell ls"][..]),
        (
            json!({ "name": "Bash", "kind": "read", "rawInput": { "command": "ls", "timeout": 3, "description": "x" } }),
            &["shell ls"],
        ),
        (json!({ "kind": "execute", "rawInput": { "cmd": "ls", "workdir": "/workspace" } }), &["shell ls"]),
        (
            json!({ "name": "Read", "rawInput": { "file_path": "a.rs", "offset": 3 } }),
            &["read /workspace/a.rs"],
        ),
        (
            json!({ "name": "Read", "rawInput": { "file_path": "file:///workspace/a%20b.rs" } }),
            &["read /workspace/a b.rs"],
        ),
        (
            json!({ "name": "read_many_files", "rawInput": { "paths": ["a", "../b"] } }),
            &["read /workspace/a", "read /b"],
        ),
        (
            json!({ "name": "Grep", "rawInput": { "pattern": "/etc", "-n": true, "output_mode": "content" } }),
            &["read /workspace"],
        ),
        (json!({ "name": "Grep", "rawInput": { "pattern": "x", "path": "/etc" } }), &["read /etc"]),
        (
            json!({ "name": "Grep", "rawInput": { "pattern": "x", "glob": "/etc/*" } }),
            &["read /etc", "read /workspace"],
        ),
        (
            json!({ "name": "Glob", "rawInput": { "pattern": "src/**/*.rs" } }),
            &["read /workspace", "read /workspace/src"],
        ),
        (json!({ "name": "Glob", "rawInput": { "pattern": "/etc/**" } }), &["read /etc", "read /workspace"]),
        (
            json!({ "kind": "search", "rawInput": { "pattern": "/etc/**" } }),
            &["read /etc", "read /workspace"],
        ),
        (json!({ "kind": "search", "rawInput": { "pattern": "a..b|c" } }), &["read /workspace"]),
        (
            json!({ "name": "Glob", "rawInput": { "pattern": "{a,../../etc}/*" } }),
            &["read /etc", "read /workspace", "read /workspace/a", "unknown"],
        ),
        (
            json!({ "name": "Glob", "rawInput": { "pattern": "../../x/*.rs", "path": "src" } }),
            &["read /workspace/src", "read /x"],
        ),
        (
            json!({ "name": "Edit", "rawInput": { "file_path": "a", "old_string": "x", "new_string": "y" } }),
            &["write /workspace/a"],
        ),
        (
            json!({ "name": "MultiEdit", "rawInput": { "file_path": "a", "edits": [{ "old_string": "x", "new_string": "y" }] } }),
            &["write /workspace/a"],
        ),
        (
            json!({ "kind": "edit", "rawInput": { "changes": { "/workspace/a": { "type": "update", "move_path": "/b" } } } }),
            &["write /workspace/a", "write /b"],
        ),
        (
            json!({ "name": "apply_patch", "rawInput": { "input": "*** Begin Patch\n*** Update File: a\n@@\n-x\n+*** Add File: no\n*** Move to: /b\n*** End Patch" } }),
            &["write /workspace/a", "write /b"],
        ),
        (
            json!({ "name": "developer__text_editor", "rawInput": { "command": "view", "path": "a" } }),
            &["read /workspace/a"],
        ),
        (
            json!({ "name": "text_editor", "rawInput": { "command": "str_replace", "path": "a", "old_str": "x" } }),
            &["write /workspace/a"],
        ),
        (
            json!({ "kind": "edit", "content": [{ "type": "diff", "path": "/workspace/a", "newText": "" }] }),
            &["write /workspace/a"],
        ),
        (
            json!({ "name": "WebFetch", "rawInput": { "url": "https://docs.rs/x", "prompt": "https://no.example" } }),
            &["fetch docs.rs:443/x"],
        ),
        (
            json!({ "name": "web_fetch", "rawInput": { "prompt": "see https://docs.rs/x, and http://a.example" } }),
            &["fetch docs.rs:443/x", "fetch a.example:80/"],
        ),
        (
            json!({ "name": "TodoWrite", "rawInput": { "todos": [{ "content": "look at /etc/passwd" }] } }),
            &["tool TodoWrite"],
        ),
        (json!({ "name": "enter_plan_mode", "kind": "switch_mode", "rawInput": {} }), &["mode plan"]),
        (json!({ "name": "Brainstorm", "rawInput": { "topic": "what to do next" } }), &["tool Brainstorm"]),
        (
            json!({ "name": "mcp__github__get_issue", "rawInput": { "number": 3, "repo": "thing" } }),
            &["mcp github get_issue"],
        ),
        (
            json!({ "name": "read", "_meta": { "goose": { "toolCall": { "toolName": "read", "extensionName": "evil" } } }, "rawInput": { "path": "a" } }),
            &["mcp evil read", "write /workspace/a"],
        ),
    ] {
        assert_eq!(asked(request(&fields), &[]), expected(wanted), "{fields}");
    }
}

#[test]
fn what_is_missing_or_contradicts_itself_is_unknown() {
    for (fields, wanted) in [
        (json!({}), &["unknown"][..]),
        (json!({ "title": "ls" }), &["unknown"]),
        (json!({ "title": "ls", "kind": "execute" }), &["shell ls", "unknown"]),
        (json!({ "title": "Read a", "kind": "read" }), &["unknown"]),
        (
            json!({ "kind": "read", "locations": [{ "path": "/workspace/a" }] }),
            &["read /workspace/a", "unknown"],
        ),
        (json!({ "kind": "read", "rawInput": {} }), &["unknown"]),
        (
            json!({ "kind": "read", "rawInput": { "path": "a", "content": "x" } }),
            &["read /workspace/a", "unknown"],
        ),
        (
            json!({ "kind": "read", "rawInput": { "path": "a", "command": "rm x" } }),
            &["read /workspace/a", "unknown"],
        ),
        (
            json!({ "kind": "read", "rawInput": { "path": "a" }, "content": [{ "type": "diff", "path": "b" }] }),
            &["read /workspace/a", "unknown", "write /workspace/b"],
        ),
        (
            json!({ "name": "Read", "kind": "edit", "rawInput": { "file_path": "a" } }),
            &["read /workspace/a", "unknown"],
        ),
        (
            json!({ "name": "Read", "_meta": { "claudeCode": { "toolName": "Write" } }, "rawInput": { "file_path": "a" } }),
            &["read /workspace/a", "unknown"],
        ),
        (
            json!({ "name": "Bash", "rawInput": { "command": "ls", "cmd": "rm x" } }),
            &["shell ls", "shell rm x", "unknown"],
        ),
        (
            json!({ "name": "Bash", "rawInput": { "command": "ls", "env": { "LD_PRELOAD": "x" } } }),
            &["shell ls", "unknown"],
        ),
        (
            json!({ "name": "Bash", "rawInput": { "command": "ls", "shell": "/workspace/sh" } }),
            &["shell ls", "unknown"],
        ),
        (json!({ "name": "Bash", "rawInput": { "command": "ls", "cwd": "/etc" } }), &["shell ls", "unknown"]),
        (json!({ "name": "Bash", "rawInput": { "command": { "x": 1 } } }), &["unknown"]),
        (json!({ "name": "Bash", "rawInput": "ls" }), &["unknown"]),
        (json!({ "name": "Write", "rawInput": { "content": "x" } }), &["unknown"]),
        (
            json!({ "name": "Write", "rawInput": { "file_path": "a", "also": "/etc/passwd" } }),
            &["unknown", "write /workspace/a"],
        ),
        (
            json!({ "name": "Write", "rawInput": { "file_path": "a" }, "content": [{ "type": "diff", "path": "/etc/b" }] }),
            &["unknown", "write /etc/b", "write /workspace/a"],
        ),
        (
            json!({ "name": "Write", "rawInput": { "file_path": "a" }, "content": [{ "type": "diff" }] }),
            &["unknown", "write /workspace/a"],
        ),
        (
            json!({ "name": "Write", "rawInput": { "file_path": "a" }, "locations": [{ "path": "/etc/b" }] }),
            &["write /etc/b", "write /workspace/a"],
        ),
        (json!({ "name": "Write", "rawInput": { "file_path": ["a", 1] } }), &["unknown"]),
        (json!({ "name": "apply_patch", "rawInput": { "input": "--- a\n+++ b\n" } }), &["unknown"]),
        (
            json!({ "name": "text_editor", "rawInput": { "command": "explode", "path": "a" } }),
            &["unknown", "write /workspace/a"],
        ),
        (json!({ "name": "WebFetch", "rawInput": { "prompt": "x" } }), &["unknown"]),
        (
            json!({ "name": "Glob", "rawInput": { "pattern": "*/../../etc/*" } }),
            &["read /workspace", "unknown"],
        ),
        (json!({ "name": "Brainstorm" }), &["tool Brainstorm", "unknown"]),
        (
            json!({ "kind": "execute", "title": "lab/execute", "rawInput": { "command": "ls" } }),
            &["mcp lab execute", "shell ls", "unknown"],
        ),
        (
            json!({ "kind": "read", "title": "lab/read_and_remove", "rawInput": { "path": "a" } }),
            &["mcp lab read_and_remove", "unknown", "write /workspace/a"],
        ),
        (
            json!({ "kind": "execute", "rawInput": { "server": "lab", "tool": "look_up", "arguments": {} } }),
            &["unknown"],
        ),
        (
            json!({ "kind": "execute", "title": "socks5 network access to x", "rawInput": { "command": "ls" } }),
            &["shell ls", "unknown"],
        ),
        (
            json!({ "kind": "edit", "content": [{ "type": "diff", "path": "a" }],
                "locations": [{ "path": "a" }, { "path": "b" }] }),
            &["unknown", "write /workspace/a", "write /workspace/b"],
        ),
        (
            json!({ "_meta": { "toolName": "read_file", "provenance": "mcp" }, "rawInput": { "path": "a" } }),
            &["read /workspace/a", "unknown"],
        ),
        (
            json!({ "name": "Write", "rawInput": { "file_path": "a", "content": [{ "path": "/etc/x" }] } }),
            &["unknown", "write /workspace/a"],
        ),
        (
            json!({ "name": "Read", "rawInput": { "file_path": " /etc/passwd" } }),
            &["read  /etc/passwd (trouble)"],
        ),
        (
            json!({ "name": "Brainstorm", "kind": "execute", "rawInput": { "topic": "x" } }),
            &["tool Brainstorm", "unknown"],
        ),
        (
            json!({ "name": "Brainstorm", "rawInput": { "where": "/etc/passwd" } }),
            &["tool Brainstorm", "unknown", "write /etc/passwd"],
        ),
        (
            json!({ "name": "Ba\u{441}h", "rawInput": { "command": "ls" } }),
            &["shell ls", "tool Ba\u{441}h", "unknown"],
        ),
        (
            json!({ "name": "TodoWrite", "rawInput": { "todos": [] }, "content": [{ "type": "diff", "path": "a" }] }),
            &["tool TodoWrite", "unknown", "write /workspace/a"],
        ),
        (json!({ "name": "ExitPlanMode", "kind": "switch_mode" }), &["mode a", "unknown"]),
        (json!({ "kind": "switch_mode" }), &["mode a", "unknown"]),
        (json!({ "name": "mcp__fs__write" }), &["mcp fs write", "unknown"]),
        (
            json!({ "name": "mcp__fs__x", "_meta": { "claudeCode": { "mcpServer": { "name": "other" } } }, "rawInput": { "n": 1 } }),
            &["mcp other x", "unknown"],
        ),
    ] {
        assert_eq!(asked(request(&fields), &[]), expected(wanted), "{fields}");
    }
    for params in [json!({}), json!(null), json!([]), json!({ "toolCall": 3 }), json!({ "toolCall": {} })] {
        assert_eq!(asked(params.clone(), &[]), ["unknown"], "{params}");
    }
    let none = json!({ "toolCall": { "rawInput": { "command": "ls" }, "kind": "execute" } });
    assert_eq!(asked(none, &[]), expected(&["shell ls", "unknown"]), "it has no id");
}

#[test]
fn a_request_is_read_together_with_what_came_before() {
    let update = |kind: &str, fields: &Value| {
        let mut update = call(fields);
        update["sessionUpdate"] = kind.into();
        update
    };
    let bare = request(&json!({}));
    let announced = update("tool_call", &json!({ "name": "Read", "rawInput": { "path": "a" } }));
    assert_eq!(asked(bare.clone(), std::slice::from_ref(&announced)), ["read /workspace/a"]);
    // What is given later replaces what was given before.
    let later = update("tool_call_update", &json!({ "rawInput": { "path": "b" } }));
    assert_eq!(asked(bare.clone(), &[announced.clone(), later]), ["read /workspace/b"]);
    let other =
        json!({ "toolCallId": "2", "rawInput": { "path": "b" }, "sessionUpdate": "tool_call_update" });
    assert_eq!(asked(bare.clone(), &[announced.clone(), other]), ["read /workspace/a"]);
    // What has ended has nothing to do with it.
    let ended = update("tool_call_update", &json!({ "status": "completed" }));
    assert_eq!(asked(bare, &[announced.clone(), ended]), ["unknown"]);
    // The request says something else than the announcement.
    let changed = request(&json!({ "rawInput": { "path": "/etc/x" } }));
    assert_eq!(
        asked(changed, std::slice::from_ref(&announced)),
        ["read /etc/x", "read /workspace/a", "unknown"]
    );
    let command = update("tool_call", &json!({ "name": "Bash", "rawInput": { "command": "ls" } }));
    let changed = request(&json!({ "rawInput": { "command": "rm x" } }));
    assert_eq!(
        asked(changed, std::slice::from_ref(&command)),
        expected(&["shell ls", "shell rm x", "unknown"])
    );
    let renamed = request(&json!({ "name": "Write", "rawInput": { "path": "a" } }));
    assert_eq!(asked(renamed, &[announced]), ["read /workspace/a", "unknown"]);
    let mcp = update("tool_call", &json!({ "name": "mcp__a__b", "rawInput": { "x": 1 } }));
    let changed = request(&json!({ "name": "mcp__a__b", "rawInput": { "x": 2 } }));
    assert_eq!(asked(changed, &[mcp]), ["mcp a b", "unknown"]);
}

#[test]
fn the_second_version_asks_about_commands() {
    let subject = |subject: Value| asked(json!({ "title": "x", "options": [], "subject": subject }), &[]);
    let ls = json!({ "type": "command", "command": "ls", "cwd": "/workspace" });
    assert_eq!(subject(ls), expected(&["shell ls"]));
    let outside = json!({ "type": "command", "command": "ls", "cwd": "/etc" });
    assert_eq!(subject(outside), expected(&["shell ls", "unknown"]));
    let nowhere = json!({ "type": "command", "command": "ls" });
    assert_eq!(subject(nowhere), expected(&["shell ls", "unknown"]));
    assert_eq!(subject(json!({ "type": "command" })), ["unknown"]);
    assert_eq!(subject(json!({ "type": "spell", "path": "/etc/x" })), ["unknown", "write /etc/x"]);
    assert_eq!(subject(json!("ls")), ["unknown"]);
    let call = json!({ "type": "tool_call", "toolCall": call(&json!({ "name": "Read", "rawInput": { "path": "a" } })) });
    assert_eq!(subject(call), ["read /workspace/a"]);
}
