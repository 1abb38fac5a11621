//! Real sessions of the fake agent, with requests of every kind, in a ledger.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink, path::Path, process::Output, time::Duration};

use conductor::ledger::Settings;
use conductor_tests::{
    disk,
    harness::{Builder, Service, poll_until, service},
    shipping,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// What the team's policy says when all of this is asked.
pub const RULES: &str = r#"
use = ["default"]

[[rule]]
id = "our-tests"
effect = "allow"
reason = "they run in a container"
run = { program = ["make"], subcommand = ["test"] }

[[rule]]
id = "installs"
effect = "ask"
reason = "it changes the machine"
run = { program = ["make"], subcommand = ["install"] }

[[rule]]
id = "no-curl"
effect = "deny"
reason = "use the fetch tool"
run = { program = ["curl"] }

[[rule]]
id = "edits-only"
effect = "deny"
reason = "this mode is for edits"
mode = ["acceptEdits"]
run = { program = ["docker"] }

[[rule]]
id = "docs"
effect = "allow"
reason = "public documentation"
fetch = { host = ["docs.rs"] }

[[rule]]
id = "issues"
effect = "allow"
reason = "they are public"
mcp = { server = ["github"], tool = ["get_*"] }
"#;

/// What a repository adds.
const NARROWING: &str =
    "[[rule]]\nid = 'quiet'\neffect = 'deny'\nreason = 'not here'\nrun = { program = ['ls'] }\n";

/// A service whose sessions have modes, and the editor that it is asked by.
pub fn ruled(rules: &str) -> Builder {
    let modes = json!({ "session": { "modes": { "currentModeId": "default", "availableModes": [
        { "id": "default", "name": "Default" }, { "id": "acceptEdits", "name": "Edits" },
        { "id": "bypassPermissions", "name": "Bypass" },
    ] } } });
    service(&modes).rules(rules)
}

/// A request for permission, as Claude Code writes them.
pub fn asks(tool: &str, kind: &str, input: &Value) -> Value {
    json!({ "request": { "method": "session/request_permission", "params": {
        "sessionId": "$sid",
        "toolCall": {
            "toolCallId": format!("call-{}", input.to_string().len()), "title": "innocent", "kind": kind,
            "rawInput": input, "_meta": { "claudeCode": { "toolName": tool } },
        },
        "options": [
            { "optionId": "ever", "name": "Always", "kind": "allow_always" },
            { "optionId": "once", "name": "Yes", "kind": "allow_once" },
            { "optionId": "no", "name": "No", "kind": "reject_once" },
        ],
    } } })
}

/// A shell line.
pub fn runs(line: &str) -> Value {
    asks("Bash", "execute", &json!({ "command": line }))
}

/// A request that asks for no permission.
pub fn direct(method: &str, mut params: Value) -> Value {
    params["sessionId"] = "$sid".into();
    json!({ "request": { "method": method, "params": params } })
}

fn tells(update: &Value) -> Value {
    json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": update } } })
}

/// What a person says: `deploy` is allowed for good, `clean` never, all else once.
pub fn answer(request: &Value) -> Option<Value> {
    if request["method"] != "session/request_permission" {
        return None;
    }
    let params = &request["params"];
    let input = params["toolCall"]["rawInput"].to_string();
    let kind = match () {
        () if input.contains("deploy") => "allow_always",
        () if input.contains("clean") => "reject_once",
        () => "allow_once",
    };
    let option = params["options"].as_array()?.iter().find(|option| option["kind"] == kind)?;
    Some(json!({ "outcome": { "outcome": "selected", "optionId": option["optionId"] } }))
}

/// Everything that a first session asks for. What is on disk matters to much of it.
fn requests(work: &Path) -> Value {
    let file = |name: &str| work.join(name);
    let write = |name: &str| asks("Write", "edit", &json!({ "file_path": file(name), "content": "x" }));
    let read = |name: &str| asks("Read", "read", &json!({ "file_path": file(name) }));
    json!([
        runs("ls -la"),
        runs("git log --oneline | head -n 3"),
        runs("cat notes.txt"),
        runs("cat out/secret.txt"),
        runs("cat .env"),
        runs("make test"),
        runs("make install"),
        runs("make clean"),
        runs("make deploy"),
        runs("make deploy"),
        runs("curl -s https://example.com"),
        runs("./tool.sh --fast"),
        runs("env FOO=1 make test"),
        runs("cd sub && ls; rm -rf sub"),
        runs("rm -rf $HOME"),
        runs("echo $(whoami) > notes.txt"),
        runs(&format!("cat {}", "a ".repeat(1100))),
        read("notes.txt"),
        read("out/secret.txt"),
        read("missing.txt"),
        write("new.txt"),
        write("out/new.txt"),
        write(".git/hooks/pre-commit"),
        asks("WebFetch", "fetch", &json!({ "url": "https://docs.rs/serde", "prompt": "read" })),
        asks("WebFetch", "fetch", &json!({ "url": "http://169.254.169.254/latest", "prompt": "read" })),
        asks("mcp__github__get_issue", "other", &json!({ "number": 3 })),
        asks("mcp__github__close_issue", "other", &json!({ "number": 3 })),
        asks("Brainstorm", "other", &json!({ "topic": "names" })),
        asks("Bash", "execute", &Value::Null),
        direct("fs/read_text_file", json!({ "path": file("notes.txt") })),
        direct("fs/write_text_file", json!({ "path": file("direct.txt"), "content": "x" })),
        direct("fs/write_text_file", json!({ "path": file(".env"), "content": "x" })),
        direct("terminal/create", json!({ "command": "ls", "args": ["-l"] })),
        direct("terminal/create", json!({ "command": "curl", "args": ["https://example.com"] })),
        // A mode that the agent takes by itself allows nothing, and forbids what it forbids.
        runs("docker ps"),
        tells(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": "acceptEdits" })),
        write("unasked.txt"),
        runs("docker ps"),
    ])
}

/// Fills the ledger of a service, and leaves nothing on disk as it was.
pub fn fill(service: &Service) {
    let work = service.work();
    fs::create_dir_all(work.join("sub")).unwrap();
    fs::write(work.join("notes.txt"), "notes\n").unwrap();
    fs::write(work.join("tool.sh"), "#!/bin/sh\n").unwrap();
    fs::write(service.dir.join("home/secret.txt"), "secret\n").unwrap();
    symlink(service.dir.join("home"), work.join("out")).unwrap();
    let mut editor = service.editor();
    editor.answer_with(answer);
    let session = editor.new_session(&work);
    editor.turn_do(&session, &requests(&work));
    // Set by a person, the same mode allows it; what the rules deny cannot be set at all.
    let mode = |id: &str| json!({ "sessionId": session, "modeId": id });
    editor.call("session/set_mode", &mode("acceptEdits"));
    editor.call_error("session/set_mode", &mode("bypassPermissions"));
    let option = json!({ "sessionId": session, "configId": "mode", "value": "default" });
    let id = editor.request("session/set_config_option", &option);
    editor.response(&id);
    let steps = json!([asks("Write", "edit", &json!({ "file_path": work.join("b.txt"), "content": "x" }))]);
    editor.turn_do(&session, &steps);

    // A repository with rules of its own, which are gone later.
    let other = service.dir.join("other");
    fs::create_dir_all(other.join(".conductor")).unwrap();
    fs::write(other.join(".conductor/policy.toml"), NARROWING).unwrap();
    let narrowed = editor.new_session(&other);
    editor.turn_do(&narrowed, &json!([runs("ls"), runs("make test"), runs("make install")]));

    // Servers that nobody knows are asked about before there is a session.
    let server = json!([{ "name": "mine", "command": "some-mcp", "args": ["--x"], "env": [] }]);
    editor.call("session/new", &json!({ "cwd": work, "mcpServers": server }));
    drop(editor);

    fs::remove_dir_all(other.join(".conductor")).unwrap();
    fs::remove_file(work.join("out")).unwrap();
    fs::create_dir(work.join("out")).unwrap();
    fs::remove_file(work.join("notes.txt")).unwrap();
    symlink("/etc", work.join("notes.txt")).unwrap();
    fs::remove_file(work.join("tool.sh")).unwrap();
}

/// Waits until the ledger has every decision that the journal has; how many they are.
pub fn settle(service: &mut Service, settings: &Settings) -> i64 {
    service.term();
    let mut noted = BTreeSet::new();
    for record in disk::journal(service) {
        for line in record.lines() {
            let Ok(note) = serde_json::from_slice::<Value>(line) else { continue };
            if note["method"] == "_conductor/judged" {
                noted.insert((record.stream.id, note["params"]["seq"].as_i64().unwrap()));
            }
        }
    }
    service.start_again();
    let runtime = Runtime::new().unwrap();
    let rows = || {
        runtime.block_on(shipping::number(settings, "SELECT count(*) FROM decisions WHERE ruled IS NOT NULL"))
    };
    let noted = i64::try_from(noted.len()).unwrap();
    assert!(poll_until(Duration::from_secs(30), || rows() == noted), "{} of {noted} are there", rows());
    let count = |what: &str| {
        let sql = format!("SELECT count(*) FROM decisions WHERE {what}");
        runtime.block_on(shipping::number(settings, &sql))
    };
    // Something of everything is among them, or they would prove little.
    for kind in ["run", "read", "write", "fetch", "mcp", "tool", "mode", "server", "unknown"] {
        assert!(count(&format!("CAST(sub_actions AS text) LIKE '%\"{kind}\":%'")) > 0, "{kind}");
    }
    assert!(count("verdict = 'allow' AND ruled = 'ask'") > 0, "something was granted");
    assert!(count("CAST(subject AS text) LIKE '%\"narrowing\":%'") > 0, "something was narrowed");
    assert!(count("rule = 'edits-only' AND CAST(subject AS text) LIKE '%\"agent_mode\":%'") > 0);
    noted
}

/// What a command says as JSON, and its exit code.
pub fn told(output: &Output) -> (Option<i32>, Value) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let json = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), json)
}

/// A policy file beside the service.
pub fn candidate(service: &Service, name: &str, text: &str) -> String {
    let file = service.dir.join(name);
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}
