//! What agents really send, and what they might send to get around a rule.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod disguises;
mod requests;

use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::policy::Imagined;

fn imagined() -> Imagined {
    Imagined { roots: vec!["/workspace".into()] }
}

fn take_apart(action: &Action) -> Vec<SubAction> {
    let resolver = imagined();
    normalise(action, &Ground { cwd: Path::new("/workspace"), resolver: &resolver })
}

/// A sub-action in few words. What is unknown says so once, whatever it is.
fn brief(action: &SubAction) -> String {
    let path = |fact: &PathFact| {
        let shown =
            fact.resolved.as_ref().map_or_else(|| fact.given.clone(), |path| path.display().to_string());
        if fact.trouble.is_some() { format!("{shown} (trouble)") } else { shown }
    };
    match action {
        SubAction::Read(fact) => format!("read {}", path(fact)),
        SubAction::Write(fact) => format!("write {}", path(fact)),
        SubAction::Fetch(fact) if fact.trouble.is_some() => format!("fetch {} (trouble)", fact.given),
        SubAction::Fetch(fact) => format!("fetch {}:{}{}", fact.host, fact.port, fact.path),
        SubAction::Mcp { server, tool } => format!("mcp {server} {tool}"),
        SubAction::Tool { name } => format!("tool {name}"),
        SubAction::Mode { id } => format!("mode {id}"),
        SubAction::Unknown { .. } => "unknown".into(),
        other => format!("{other:?}"),
    }
}

fn briefs(actions: &[SubAction]) -> Vec<String> {
    let mut all: Vec<String> = actions.iter().map(brief).collect();
    all.sort();
    all.dedup();
    all
}

/// What is expected, in the same few words. `shell LINE` stands for all that such a line is found to
/// do, in the session's directory.
fn expected(wanted: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for word in wanted {
        match word.strip_prefix("shell ") {
            Some(line) => all.extend(briefs(&take_apart(&Action::Shell(line.into())))),
            None => all.push((*word).to_owned()),
        }
    }
    all.sort();
    all.dedup();
    all
}

fn asked(params: Value, earlier: &[Value]) -> Vec<String> {
    briefs(&take_apart(&Action::Permission { params, earlier: earlier.to_vec() }))
}

#[test]
fn what_agents_really_ask_is_understood() {
    let samples = [
        include_str!("samples/claude.json"),
        include_str!("samples/codex.json"),
        include_str!("samples/fast-agent.json"),
        include_str!("samples/gemini.json"),
        include_str!("samples/goose.json"),
        include_str!("samples/opencode.json"),
        include_str!("samples/qwen.json"),
    ];
    let mut wrong = Vec::new();
    for text in samples {
        let file: Value = serde_json::from_str(text).unwrap();
        for sample in file["samples"].as_array().unwrap() {
            let wanted: Vec<&str> =
                sample["expect"].as_array().unwrap().iter().map(|e| e.as_str().unwrap()).collect();
            let found = asked(sample["params"].clone(), sample["earlier"].as_array().unwrap());
            if found != expected(&wanted) {
                wrong.push(format!(
                    "{} {}\n  wanted {wanted:?}\n  found {found:?}",
                    file["agent"], sample["params"]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn terminals_are_read_as_they_are_run() {
    let terminal = |params: Value| briefs(&take_apart(&Action::Terminal(params)));
    let argv = |argv: &[&str]| {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        briefs(&take_apart(&Action::Argv(argv)))
    };
    assert_eq!(terminal(json!({ "command": "ls", "args": ["-l"] })), argv(&["ls", "-l"]));
    assert_eq!(terminal(json!({ "command": "ls", "args": null, "cwd": "/workspace" })), argv(&["ls"]));
    assert_eq!(
        terminal(json!({ "command": "ls -l | cat", "sessionId": "x" })),
        expected(&["shell ls -l | cat"])
    );
    let harmless = json!([{ "name": "CI", "value": "1" }, { "name": "LANG", "value": "C.UTF-8" }]);
    assert_eq!(terminal(json!({ "command": "ls", "env": harmless })), argv(&["ls"]));
    for params in [
        json!({ "command": "ls", "env": [{ "name": "PATH", "value": "/workspace" }] }),
        json!({ "command": "ls", "env": [{ "name": "GIT_PAGER", "value": "x" }] }),
        json!({ "command": "ls", "env": [{ "name": "LANG", "value": "../../x y" }] }),
        json!({ "command": "ls", "env": [{ "name": "LANG", "value": "zh_CN.GBK" }] }),
        json!({ "command": "ls", "env": [{ "name": "LC_ALL", "value": "ja_JP.SJIS" }] }),
        json!({ "command": "ls", "env": [{ "name": "LC_ALL", "value": "zh_CN.GBK.UTF-8" }] }),
        json!({ "command": "ls", "env": [{ "name": "LC_CTYPE", "value": "C" }] }),
        json!({ "command": "ls", "env": [{ "name": "CI" }] }),
        json!({ "command": "ls", "env": { "CI": "1" } }),
        json!({ "command": "ls", "cwd": "/etc" }),
        json!({ "command": "ls", "cwd": "/workspace/../etc" }),
        json!({ "command": "ls", "cwd": 3 }),
        json!({ "command": "ls", "args": "-l" }),
        json!({ "command": "ls", "args": ["-l", 3] }),
        json!({ "command": " " }),
        json!({ "command": ["ls"] }),
        json!({}),
        json!(null),
    ] {
        assert!(terminal(params.clone()).contains(&"unknown".into()), "{params}");
    }
}

#[test]
fn arguments_of_servers_name_places() {
    let mcp = |arguments: Value| {
        let mut found = briefs(&take_apart(&Action::Mcp { server: "s".into(), tool: "t".into(), arguments }));
        assert!(found.contains(&"mcp s t".into()));
        found.retain(|brief| brief != "mcp s t");
        found
    };
    for (arguments, wanted) in [
        (json!({}), &[][..]),
        (json!(null), &[]),
        (json!({ "title": "a bug", "body": "in this and/or that", "count": 3, "ok": true }), &[]),
        (json!({ "path": "a.rs" }), &["write /workspace/a.rs"]),
        (json!({ "filePath": "a.rs" }), &["write /workspace/a.rs"]),
        (json!({ "what": "../../etc/passwd" }), &["write /etc/passwd"]),
        (json!({ "what": ["x", { "y": "/etc/passwd" }] }), &["write /etc/passwd"]),
        (json!({ "what": { "/etc/passwd": "x" } }), &["write /etc/passwd"]),
        (json!({ "what": "~/.ssh/id_rsa" }), &["write ~/.ssh/id_rsa (trouble)"]),
        (json!({ "what": ".env" }), &["write /workspace/.env"]),
        (json!({ "what": "file:///etc/passwd" }), &["write /etc/passwd"]),
        (json!({ "what": " /etc/passwd " }), &["write /etc/passwd"]),
        (json!({ "uri": "file://evil/etc/passwd" }), &["write file://evil/etc/passwd (trouble)"]),
        (json!({ "what": "https://docs.rs/x" }), &["fetch docs.rs:443/x"]),
        (json!({ "url": "docs.rs" }), &["fetch docs.rs (trouble)"]),
        (json!({ "what": "HTTP://169.254.169.254" }), &["fetch HTTP://169.254.169.254 (trouble)"]),
        (json!({ "command": "ls" }), &["shell ls"]),
        (json!("/etc/passwd"), &["unknown"]),
        (json!(["/etc/passwd"]), &["unknown"]),
        (json!({ "many": vec!["x"; 300] }), &["unknown"]),
    ] {
        assert_eq!(mcp(arguments.clone()), expected(wanted), "{arguments}");
    }
    let nameless = Action::Mcp { server: String::new(), tool: "t".into(), arguments: Value::Null };
    assert!(briefs(&take_apart(&nameless)).contains(&"unknown".into()));
}

#[test]
fn addresses_of_files_are_paths() {
    for (given, wanted) in [
        ("a", "write /workspace/a"),
        ("file:///workspace/a", "write /workspace/a"),
        ("FILE:///workspace/a", "write /workspace/a"),
        ("file://localhost/workspace/a", "write /workspace/a"),
        ("file:/workspace/a", "write /workspace/a"),
        ("file:///workspace/%2E%2e/etc/x", "write /etc/x"),
        ("file:///workspace/a%2520b", "write /workspace/a%20b"),
        ("file:///workspace/..%2fetc/x", "write file:///workspace/..%2fetc/x (trouble)"),
        ("file:///workspace/a%00", "write file:///workspace/a%00 (trouble)"),
        ("file:///workspace/a%zz", "write file:///workspace/a%zz (trouble)"),
        ("file:///workspace/%ff", "write file:///workspace/%ff (trouble)"),
        ("file:///workspace/a?b", "write file:///workspace/a?b (trouble)"),
        ("file:///workspace/a#b", "write file:///workspace/a#b (trouble)"),
        ("file://evil/workspace/a", "write file://evil/workspace/a (trouble)"),
        ("file:a", "write file:a (trouble)"),
        ("file:", "write file: (trouble)"),
        ("https://x/y", "write https://x/y (trouble)"),
    ] {
        assert_eq!(briefs(&take_apart(&Action::Write(given.into()))), [wanted], "{given}");
    }
    let fetched = take_apart(&Action::Fetch("file:///etc/passwd".into()));
    assert_eq!(briefs(&fetched), ["fetch file:///etc/passwd (trouble)", "read /etc/passwd"]);
}

#[test]
fn people_can_write_actions_down() {
    let read = |value: Value| Action::from_json(&value);
    assert_eq!(read(json!({ "shell": "ls" })), Ok(Action::Shell("ls".into())));
    assert_eq!(read(json!({ "argv": ["ls", "-l"] })), Ok(Action::Argv(vec!["ls".into(), "-l".into()])));
    assert_eq!(read(json!({ "fetch": "https://docs.rs" })), Ok(Action::Fetch("https://docs.rs".into())));
    let mcp = Action::Mcp { server: "s".into(), tool: "t".into(), arguments: json!({ "a": 1 }) };
    assert_eq!(read(json!({ "mcp": { "server": "s", "tool": "t", "arguments": { "a": 1 } } })), Ok(mcp));
    let setting = Action::Setting { id: "a".into(), value: "true".into() };
    assert_eq!(read(json!({ "setting": { "id": "a", "value": true } })), Ok(setting));
    let permission = Action::Permission { params: json!({ "toolCall": {} }), earlier: Vec::new() };
    assert_eq!(read(json!({ "permission": { "toolCall": {} } })), Ok(permission));
    assert!(
        matches!(read(json!({ "server": { "name": "x", "remote": true } })), Ok(Action::Server(fact)) if fact.is_remote)
    );
    for value in [
        json!(null),
        json!("ls"),
        json!({}),
        json!({ "shell": "ls", "read": "x" }),
        json!({ "shell": ["ls"] }),
        json!({ "argv": [] }),
        json!({ "argv": "ls" }),
        json!({ "argv": ["ls", 1] }),
        json!({ "mcp": { "server": "s" } }),
        json!({ "mcp": { "server": "s", "tool": "t", "args": {} } }),
        json!({ "setting": { "id": "a" } }),
        json!({ "permission": [] }),
        json!({ "server": { "name": "x", "remote": "no" } }),
        json!({ "dance": true }),
    ] {
        assert!(read(value.clone()).is_err(), "{value}");
    }
}

#[test]
fn names_are_taken_as_they_are() {
    assert_eq!(briefs(&take_apart(&Action::Mode("plan".into()))), ["mode plan"]);
    assert!(briefs(&take_apart(&Action::Mode(String::new()))).contains(&"unknown".into()));
    let url = json!({ "mode": "url", "url": "https://docs.rs/", "elicitationId": "1" });
    assert_eq!(briefs(&take_apart(&Action::Elicitation(url))), ["fetch docs.rs:443/"]);
    assert_eq!(briefs(&take_apart(&Action::Elicitation(json!({ "mode": "form" })))), ["tool elicitation"]);
    assert_eq!(briefs(&take_apart(&Action::Elicitation(json!({ "mode": "url" })))), ["unknown"]);
}

/// Any JSON, of the keys and values that matter.
fn anything() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "toolCall",
        "rawInput",
        "command",
        "ls",
        "path",
        "/etc/x",
        "a",
        "kind",
        "read",
        "edit",
        "name",
        "Bash",
        "Write",
        "content",
        "diff",
        "type",
        "locations",
        "execute",
        "url",
        "https://docs.rs",
        "toolCallId",
        "1",
        "_meta",
        "claudeCode",
        "toolName",
        "args",
        "cwd",
        "env",
        "subject",
        "options",
        "edits",
        "changes",
        "input",
        "*** Begin Patch",
        "pattern",
        "../*",
        "mcp__a__b",
        "file:///%",
        "é",
        "prompt",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        words.clone().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((words.clone(), inner), 0..6).prop_map(|pairs| Value::Object(
                pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            )),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_is_asked_is_taken_apart(value in anything(), earlier in prop::collection::vec(anything(), 0..3), text in any::<String>()) {
        let mut wrapped = json!({ "toolCall": value });
        if let Some(call) = wrapped["toolCall"].as_object_mut() {
            call.insert("toolCallId".into(), "1".into());
        }
        let before: Vec<Value> = earlier
            .into_iter()
            .map(|mut update| {
                if let Some(update) = update.as_object_mut() {
                    update.insert("toolCallId".into(), "1".into());
                }
                update
            })
            .collect();
        for action in [
            Action::Permission { params: value.clone(), earlier: before.clone() },
            Action::Permission { params: wrapped, earlier: before },
            Action::Terminal(value.clone()),
            Action::Elicitation(value.clone()),
            Action::Mcp { server: "s".into(), tool: text.clone(), arguments: value.clone() },
            Action::Read(text.clone()),
            Action::Fetch(text.clone()),
            Action::Write(format!("file://{text}")),
        ] {
            prop_assert!(!take_apart(&action).is_empty());
        }
        let _ = Action::from_json(&value);
    }

    #[test]
    fn no_file_address_is_read_as_a_place_inside_that_is_outside(text in "[a-z./%25eEfF]{0,16}") {
        let SubAction::Read(fact) = take_apart(&Action::Read(format!("file:///workspace/{text}"))).remove(0) else {
            panic!("a read is a read");
        };
        // Decoded once, and only once, and then taken as the disk takes it.
        if let (None, Some(resolved)) = (&fact.trouble, &fact.resolved) {
            let inside = resolved.starts_with("/workspace");
            prop_assert_eq!(fact.root, inside.then(|| PathBuf::from("/workspace")));
        }
    }
}
