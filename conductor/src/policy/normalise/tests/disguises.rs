//! Requests that look like something harmless and ask for something else.

use std::{fs, os::unix::fs::symlink};

use serde_json::{Value, json};

use super::{asked, brief, briefs, expected, imagined, requests::request, take_apart};
use crate::policy::{Action, Disk, Effect, Ground, Policy, SubAction, Subject, normalise};

/// The policy that is shipped.
fn shipped() -> Policy {
    Policy::load(None).unwrap()
}

/// What it says to a request.
fn decision(policy: &Policy, fields: &Value) -> Effect {
    let action = Action::Permission { params: request(fields), earlier: Vec::new() };
    policy
        .evaluate(&Subject { cwd: "/workspace".into(), ..Subject::default() }, &take_apart(&action))
        .decision
}

/// All of these are asked about at least, and do not hide these sub-actions.
fn not_allowed(policy: &Policy, cases: &[(Value, &[&str])]) {
    let mut wrong = Vec::new();
    for (fields, wanted) in cases {
        let found = asked(request(fields), &[]);
        let has_all = expected(wanted).iter().all(|each| found.contains(each));
        if decision(policy, fields) == Effect::Allow || !has_all {
            wrong.push(format!("{fields}\n  found {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn allowed(policy: &Policy, cases: &[Value]) {
    let wrong: Vec<String> = cases
        .iter()
        .filter(|fields| decision(policy, fields) != Effect::Allow)
        .map(|fields| format!("{fields}\n  found {:?}", asked(request(fields), &[])))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_harmless_name_does_not_cover_what_is_done() {
    let policy = shipped();
    for name in [
        "TodoWrite",
        "todo_write",
        "think",
        "Think",
        "AskUserQuestion",
        "ToolSearch",
        "update_plan",
        "update_topic",
        "write_todos",
        "TaskCreate",
        "TaskUpdate",
        "manage_todo_list",
        "set_title",
        "report_intent",
        "EnterPlanMode",
        "enter_plan_mode",
    ] {
        let meta = json!({ "claudeCode": { "toolName": name } });
        not_allowed(
            &policy,
            &[
                (
                    json!({ "_meta": meta, "kind": "execute", "rawInput": { "command": "rm x" } }),
                    &["shell rm x", "unknown"],
                ),
                (
                    json!({ "name": name, "kind": "think", "rawInput": { "command": "rm x" } }),
                    &["shell rm x", "unknown"],
                ),
                (json!({ "name": name, "rawInput": { "cmd": ["rm", "x"] } }), &["shell rm x", "unknown"]),
                (
                    json!({ "name": name, "rawInput": { "todos": [], "script": "rm x" } }),
                    &["shell rm x", "unknown"],
                ),
                (
                    json!({ "_meta": meta, "kind": "edit", "rawInput": { "file_path": "a", "content": "x" } }),
                    &["write /workspace/a", "unknown"],
                ),
                (
                    json!({ "name": name, "kind": "other", "rawInput": { "file_path": "a" } }),
                    &["write /workspace/a"],
                ),
                (json!({ "name": name, "kind": "think", "rawInput": { "content": "x" } }), &["unknown"]),
                (
                    json!({ "name": name, "kind": "think", "rawInput": { "todos": [{ "command": "rm x" }] } }),
                    &["shell rm x", "unknown"],
                ),
                (
                    json!({ "name": name, "kind": "fetch", "rawInput": { "url": "https://x.example/" } }),
                    &["unknown"],
                ),
                (json!({ "name": name, "kind": "execute" }), &["unknown"]),
                (json!({ "name": name, "kind": "delete", "rawInput": { "todos": [] } }), &["unknown"]),
                (
                    json!({ "name": name, "rawInput": { "todos": [] }, "locations": [{ "path": "a" }] }),
                    &["unknown"],
                ),
            ],
        );
        let read = json!({ "name": name, "kind": "read", "rawInput": { "path": ".env" } });
        assert_ne!(decision(&policy, &read), Effect::Allow, "{name}");
        for kind in ["read", "search", "edit"] {
            let bare = json!({ "name": name, "kind": kind, "title": "Read .env" });
            assert_ne!(decision(&policy, &bare), Effect::Allow, "{bare}");
        }
        let announced =
            json!({ "toolCallId": "1", "sessionUpdate": "tool_call", "rawInput": { "command": "rm x" } });
        let found = asked(request(&json!({ "name": name, "rawInput": { "todos": [] } })), &[announced]);
        assert!(found.contains(&"unknown".into()), "{name}: {found:?}");
    }
    allowed(
        &policy,
        &[
            json!({ "name": "TodoWrite", "kind": "think", "rawInput": { "todos": [
            { "content": "see src/main.rs", "status": "pending", "activeForm": "seeing", "id": "1", "priority": "high" }] } }),
            json!({ "name": "update_plan", "kind": "think", "rawInput": { "plan": [{ "step": "a", "status": "pending" }], "explanation": "x" } }),
            json!({ "name": "AskUserQuestion", "kind": "other", "rawInput": { "questions": [
            { "question": "Which?", "header": "h", "multiSelect": false, "options": [{ "label": "a", "description": "b" }] }] } }),
            json!({ "name": "ToolSearch", "rawInput": { "query": "select:Read", "max_results": 5 } }),
            json!({ "name": "think", "rawInput": { "thought": "rm -rf /" } }),
            json!({ "name": "EnterPlanMode", "kind": "switch_mode", "rawInput": {} }),
            json!({ "name": "TaskCreate", "kind": "think", "rawInput": { "subject": "a", "description": "b", "activeForm": "c" } }),
        ],
    );
}

#[test]
fn patterns_are_looked_at_like_paths() {
    let policy = shipped();
    not_allowed(
        &policy,
        &[
            (
                json!({ "name": "Grep", "rawInput": { "pattern": "KEY", "glob": ".env" } }),
                &["read /workspace/.env"],
            ),
            (json!({ "name": "Grep", "rawInput": { "pattern": "KEY", "glob": "**/.env*" } }), &["unknown"]),
            (json!({ "name": "Grep", "rawInput": { "pattern": "KEY", "glob": "id_*" } }), &["unknown"]),
            (
                json!({ "name": "Grep", "rawInput": { "pattern": "KEY", "glob": "*.rs,.env" } }),
                &["read /workspace/.env"],
            ),
            (
                json!({ "name": "Grep", "rawInput": { "pattern": "KEY", "glob": "*.rs .ENV" } }),
                &["read /workspace/.ENV"],
            ),
            (json!({ "name": "Grep", "rawInput": { "pattern": "KEY", "glob": "*.{rs,pem}" } }), &["unknown"]),
            (
                json!({ "name": "Grep", "rawInput": { "pattern": "KEY", "glob": "{a,.en{v,x}}" } }),
                &["read /workspace/.env"],
            ),
            (json!({ "name": "Grep", "rawInput": { "pattern": "KEY", "glob": "**/.ssh/*" } }), &["unknown"]),
            (
                json!({ "name": "grep", "rawInput": { "pattern": "KEY", "include": ".env" } }),
                &["read /workspace/.env"],
            ),
            (json!({ "name": "grep", "rawInput": { "pattern": "KEY", "include": [".env"] } }), &["unknown"]),
            (
                json!({ "name": "Grep", "rawInput": { "pattern": "K", "path": "sub", "glob": ".env" } }),
                &["read /workspace/sub/.env"],
            ),
            (
                json!({ "name": "Grep", "rawInput": { "pattern": "K", "path": ".env" } }),
                &["read /workspace/.env"],
            ),
            (json!({ "name": "Glob", "rawInput": { "pattern": "/etc/*" } }), &["read /etc"]),
            (json!({ "name": "Glob", "rawInput": { "pattern": "../*" } }), &["read /"]),
            (json!({ "name": "Glob", "rawInput": { "pattern": "a/*/../../../x" } }), &["unknown"]),
            (json!({ "name": "Glob", "rawInput": { "pattern": "~/*" } }), &[]),
            (json!({ "kind": "search", "rawInput": { "pattern": ".env" } }), &["read /workspace/.env"]),
            (json!({ "kind": "search", "rawInput": { "pattern": "x", "glob": "cred*" } }), &["unknown"]),
        ],
    );
    allowed(
        &policy,
        &[
            json!({ "name": "Grep", "rawInput": { "pattern": "KEY", "glob": "*.{ts,tsx}", "path": "src", "-n": true } }),
            json!({ "name": "Grep", "rawInput": { "pattern": "a\\.b (c|d)$", "output_mode": "content", "head_limit": 5 } }),
            json!({ "name": "Glob", "rawInput": { "pattern": "src/**/*.rs" } }),
            json!({ "name": "Glob", "rawInput": { "pattern": "**/*.json" } }),
            json!({ "name": "Grep", "rawInput": { "pattern": "x", "glob": "!*.pem" } }),
            json!({ "kind": "search", "rawInput": { "pattern": "fn \\w+\\(", "path": "src" } }),
            json!({ "kind": "search", "rawInput": { "pattern": "**/*.md" } }),
        ],
    );
}

#[test]
fn links_before_a_pattern_are_followed() {
    let kept = tempfile::TempDir::new().unwrap();
    let base = kept.path().canonicalize().unwrap();
    for directory in ["app/src", "outside"] {
        fs::create_dir_all(base.join(directory)).unwrap();
    }
    symlink("../outside", base.join("app/evil")).unwrap();
    symlink("../../outside", base.join("app/src/evil")).unwrap();
    let app = base.join("app");
    let disk = Disk::new([&app], Vec::new());
    for input in [
        json!({ "pattern": "evil/*" }),
        json!({ "pattern": "evil/**/*.rs" }),
        json!({ "pattern": "{a,evil}/*" }),
        json!({ "pattern": "evil/*", "path": "src" }),
        json!({ "pattern": "evil" }),
    ] {
        for call in
            [json!({ "name": "Glob", "rawInput": input }), json!({ "kind": "search", "rawInput": input })]
        {
            let action = Action::Permission { params: request(&call), earlier: Vec::new() };
            let found = normalise(&action, &Ground { cwd: &app, resolver: &disk });
            let is_out = |action: &SubAction| matches!(action, SubAction::Read(fact) if fact.root.is_none());
            assert!(found.iter().any(is_out), "{call}: {:?}", found.iter().map(brief).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_search_may_be_one_of_the_web() {
    let policy = shipped();
    not_allowed(
        &policy,
        &[
            (json!({ "kind": "search", "rawInput": { "query": "my secret" } }), &["unknown"]),
            (
                json!({ "kind": "search", "rawInput": { "query": "see https://x.example/a" } }),
                &["unknown", "fetch x.example:443/a"],
            ),
        ],
    );
    allowed(
        &policy,
        &[
            json!({ "kind": "search", "rawInput": { "query": "fn main", "path": "src" } }),
            json!({ "name": "grep_search", "kind": "search", "rawInput": { "query": "fn main" } }),
        ],
    );
}

#[test]
fn words_may_be_handed_to_a_shell() {
    let policy = shipped();
    for words in [
        json!(["ls", ";", "rm", "x"]),
        json!(["ls", "a;rm x"]),
        json!(["ls", "&&", "rm"]),
        json!(["ls", "$(rm x)"]),
        json!(["ls", "`rm x`"]),
        json!(["ls", ">", "x"]),
        json!(["ls", "*"]),
        json!(["ls", "a\nrm x"]),
        json!(["rg", "a --pre=x", "src"]),
        json!(["bash", "-lc", "ls", "$(rm x)"]),
    ] {
        not_allowed(&policy, &[(json!({ "name": "Bash", "rawInput": { "command": words } }), &["unknown"])]);
        let subject = json!({ "type": "command", "command": words, "cwd": "/workspace" });
        assert!(asked(json!({ "subject": subject }), &[]).contains(&"unknown".into()), "{words}");
        let mcp = Action::Mcp { server: "s".into(), tool: "t".into(), arguments: json!({ "argv": words }) };
        assert!(briefs(&take_apart(&mcp)).contains(&"unknown".into()), "{words}");
    }
    allowed(
        &policy,
        &[
            json!({ "kind": "execute", "rawInput": { "command": ["ls", "-la", "src"] } }),
            json!({ "kind": "execute", "rawInput": { "command": ["bash", "-c", "ls -la | head -n 3"] } }),
        ],
    );
}

/// Where the commands of a request would run.
fn run_in(params: Value) -> (Vec<String>, bool) {
    let resolver = imagined();
    let ground = Ground { cwd: "/workspace".as_ref(), resolver: &resolver };
    let found = normalise(&Action::Permission { params, earlier: Vec::new() }, &ground);
    let is_unknown = found.iter().any(|action| matches!(action, SubAction::Unknown { .. }));
    let mut places: Vec<String> = found
        .iter()
        .filter_map(|action| match action {
            SubAction::Run(command) => Some(command.cwd.display().to_string()),
            _ => None,
        })
        .collect();
    places.dedup();
    (places, is_unknown)
}

#[test]
fn commands_are_judged_where_they_run() {
    for fields in [
        json!({ "kind": "execute", "rawInput": { "command": "ls", "cwd": "/workspace/sub" } }),
        json!({ "kind": "execute", "rawInput": { "command": "ls", "working_directory": "sub" } }),
        json!({ "kind": "execute", "cwd": "/workspace/sub", "rawInput": { "command": "ls" } }),
        json!({ "kind": "execute", "workdir": "sub", "rawInput": { "command": "ls" } }),
        json!({ "kind": "execute", "_meta": { "x": { "cwd": "/workspace/sub" } }, "rawInput": { "command": "ls" } }),
        json!({ "kind": "execute", "_meta": { "cwd": "/workspace/sub" }, "rawInput": { "command": "ls", "cwd": "/workspace/sub/." } }),
        json!({ "name": "mcp__a__b", "rawInput": { "command": "ls", "cwd": "/workspace/sub" } }),
    ] {
        assert_eq!(run_in(request(&fields)), (vec!["/workspace/sub".to_owned()], false), "{fields}");
    }
    for fields in [
        json!({ "kind": "execute", "rawInput": { "command": "ls", "cwd": "/etc" } }),
        json!({ "kind": "execute", "cwd": "/etc", "rawInput": { "command": "ls" } }),
        json!({ "kind": "execute", "_meta": { "x": [{ "directory": "/etc" }] }, "rawInput": { "command": "ls" } }),
        json!({ "kind": "execute", "cwd": "/workspace/a", "_meta": { "cwd": "/workspace/b" }, "rawInput": { "command": "ls" } }),
        json!({ "kind": "execute", "cwd": "/workspace/a", "rawInput": { "command": "ls", "cwd": "/workspace" } }),
        json!({ "kind": "execute", "rawInput": { "command": "ls", "cwd": "/workspace", "workdir": "/workspace/a" } }),
        json!({ "kind": "execute", "rawInput": { "command": "ls", "options": { "cwd": "/workspace/a" } } }),
        json!({ "name": "mcp__a__b", "rawInput": { "command": "ls", "options": { "cwd": "/etc" } } }),
    ] {
        assert!(run_in(request(&fields)).1, "{fields}");
    }
    let read = json!({ "name": "Read", "cwd": "/workspace/sub", "rawInput": { "file_path": "a" } });
    assert_eq!(asked(request(&read), &[]), ["read /workspace/sub/a"]);
}

#[test]
fn a_tool_that_reads_has_no_switch_to_write() {
    let policy = shipped();
    for (key, value) in [
        ("delete", json!(true)),
        ("overwrite", json!(1)),
        ("destination", json!("b")),
        ("new_path", json!("b")),
        ("edits", json!([{ "old_string": "a" }])),
        ("edits", json!([1])),
        ("new_string", json!("b")),
        ("replace", json!(true)),
        ("mode", json!("w")),
        ("write", json!(true)),
        ("truncate", json!(true)),
        ("content", json!("b")),
        ("follow_symlinks", json!(true)),
    ] {
        for name in ["Read", "Grep", "Glob", "ls"] {
            let fields = json!({ "name": name, "kind": "read", "rawInput": { "path": "a", key: value } });
            assert_ne!(decision(&policy, &fields), Effect::Allow, "{fields}");
        }
        let fields = json!({ "kind": "read", "rawInput": { "path": "a", key: value } });
        assert_ne!(decision(&policy, &fields), Effect::Allow, "{fields}");
    }
    allowed(
        &policy,
        &[
            json!({ "name": "Read", "rawInput": { "file_path": "a", "offset": 3, "limit": 10 } }),
            json!({ "name": "read_file", "rawInput": { "path": "a", "start_line": 3, "end_line": 10, "view_range": [1, 2] } }),
            json!({ "kind": "read", "rawInput": { "absolute_path": "/workspace/a", "delete": false, "edits": [], "mode": "" } }),
        ],
    );
}

#[test]
fn leaving_the_sandbox_is_asked_about() {
    let policy = shipped();
    for (key, value) in [
        ("dangerouslyDisableSandbox", json!(true)),
        ("with_escalated_permissions", json!(true)),
        ("sandbox_permissions", json!("require_escalated")),
        ("sandbox_permissions", json!({ "network": true })),
        ("runElevated", json!(1)),
    ] {
        let run = json!({ "name": "Bash", "kind": "execute", "rawInput": { "command": "ls", key: value } });
        let read = json!({ "name": "Read", "rawInput": { "path": "a", key: value } });
        not_allowed(&policy, &[(run, &["shell ls", "unknown"]), (read, &["unknown"])]);
    }
    allowed(
        &policy,
        &[
            json!({ "kind": "execute", "rawInput": { "command": "ls", "run_in_background": true } }),
            json!({ "kind": "execute", "rawInput": { "command": "ls", "dangerouslyDisableSandbox": false } }),
            json!({ "kind": "execute", "rawInput": { "command": "ls", "sandbox_permissions": "use_default" } }),
        ],
    );
}
