//! Two hundred canaries, planted by every way in, and searched for everywhere.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use conductor::proto::{CreateSessionRequest, PromptRequest, sessions_client::SessionsClient};
use conductor_tests::{
    collector::Collector,
    editor::Editor,
    harness::{Builder, Service, service},
    people::{Person, channel, owner},
    postgres::Database,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::canaries::Canaries;

/// How many are planted.
const MOST: usize = 200;

/// A secret in the directory that users' secrets come from.
fn put(dir: &Path, path: &str, value: &str) {
    let path = dir.join("secrets").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, value).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// MCP servers with canaries in all that they are described by.
fn servers(canaries: &mut Canaries) -> Value {
    json!([
        {
            "name": "one", "command": "true",
            "args": ["-y", "--token", canaries.next(), format!("--api-key={}", canaries.next()), "--header",
                format!("Authorization: Bearer {}", canaries.next()),
                format!("postgres://app:{}@db/x", canaries.next())],
            "env": [
                { "name": "ONE", "value": canaries.next() },
                { "value": canaries.awkward(), "name": "TWO" },
                { "name": "PASSWORD", "value": canaries.next() },
            ],
        },
        {
            "name": "two", "type": "http",
            "url": format!("https://me:{}@host/mcp?key={}&page=2", canaries.next(), canaries.next()),
            "headers": [
                { "name": "Authorization", "value": format!("Bearer {}", canaries.next()) },
                { "name": "X-Whatever", "value": canaries.next() },
            ],
        },
    ])
}

/// Everything that an agent can say a text in, as steps of a turn.
fn echoes(service: &Service, text: &str) -> Value {
    let update = |update: Value| json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": update } } });
    let ask = |method: &str, params: Value| json!({ "request": { "method": method, "params": params } });
    let file = service.work().join("note.txt");
    json!([
        update(json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } })),
        update(json!({ "sessionUpdate": "agent_thought_chunk",
            "content": { "type": "text", "text": json!({ "nested": text }).to_string() } })),
        update(json!({ "sessionUpdate": "session_info_update", "title": format!("about {text}") })),
        update(json!({ "sessionUpdate": "plan", "entries": [
            { "content": text, "priority": "high", "status": "pending" }] })),
        update(json!({ "sessionUpdate": "tool_call", "toolCallId": "t1", "title": text, "kind": "execute",
            "status": "pending", "rawInput": { "command": "curl", "env": { "K": text } } })),
        update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t1", "status": "completed",
            "rawOutput": { "stdout": format!("K={text}\n") },
            "content": [{ "type": "content", "content": { "type": "text", "text": text } },
                { "type": "diff", "path": file, "oldText": text, "newText": format!("{text}\n{text}") }] })),
        ask("session/request_permission", json!({ "sessionId": "$sid",
            "toolCall": { "toolCallId": "t2", "title": text, "kind": "execute",
                "rawInput": { "command": format!("curl -H 'X-Key: {text}' https://example.com") } },
            "options": [{ "optionId": "yes", "name": "Yes", "kind": "allow_once" },
                { "optionId": "always", "name": "Always", "kind": "allow_always" },
                { "optionId": "no", "name": "No", "kind": "reject_once" }] })),
        ask("fs/write_text_file", json!({ "sessionId": "$sid", "path": file, "content": format!("key: {text}\n") })),
        ask("fs/read_text_file", json!({ "sessionId": "$sid", "path": file })),
        ask("terminal/create", json!({ "sessionId": "$sid", "command": "echo", "args": [text],
            "env": [{ "name": "K", "value": text }] })),
        ask("terminal/wait_for_exit", json!({ "sessionId": "$sid", "terminalId": "$terminal" })),
        ask("terminal/output", json!({ "sessionId": "$sid", "terminalId": "$terminal" })),
        ask("terminal/release", json!({ "sessionId": "$sid", "terminalId": "$terminal" })),
        ask("_x/unknown", json!({ "sessionId": "$sid", "what": text })),
        { "stderr": format!("warning: {text}\n") },
        { "line": format!("this is no frame: {text}") },
    ])
}

/// A turn in which the agent says a text in every way. The editor and the agent see it as it is.
fn echoed(service: &Service, editor: &mut Editor, session: &str, text: &str) {
    let id = editor.prompt_do(session, &echoes(service, text));
    editor.stop_reason(&id);
    let seen = editor.lines();
    let is_whole = |line: &conductor_tests::editor::Line| {
        line.json["params"]["update"]["content"]["text"] == text
            && line.json["params"]["sessionId"] == session
    };
    assert!(seen.iter().any(is_whole), "the editor did not see {text:?}");
}

/// What the agent got last with a method, as it came.
fn heard(service: &Service, method: &str, text: &str) -> Value {
    let heard = service.wait_received("fake", method, |entry| {
        entry.json().is_some_and(|line| line["method"] == method && line.to_string().contains(text))
    });
    heard.json().unwrap()
}

/// Says yes to everything, for longer where that is offered.
fn answer(request: &Value) -> Option<Value> {
    let options = request["params"]["options"].as_array();
    let Some(options) = options else { return Some(json!({})) };
    let of = |kind: &str| options.iter().find(|option| option["kind"] == kind);
    let chosen = of("allow_always").or_else(|| of("allow_once")).unwrap();
    Some(json!({ "outcome": { "outcome": "selected", "optionId": chosen["optionId"] } }))
}

/// Whoever has these in its environment has nobody else's.
fn others_have_not(service: &Service, own: &[&str], injected: &[(&str, String)]) {
    let env = |pid: u32| {
        String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()).into_owned()
    };
    let running = service.processes().into_iter().map(|process| env(process.pid));
    let holders: Vec<String> = running.filter(|env| own.iter().any(|value| env.contains(value))).collect();
    assert!(!holders.is_empty(), "nobody was given anything");
    for holder in holders {
        let has = |value: &str| !own.contains(&value) && holder.contains(value);
        assert!(!injected.iter().any(|(_, value)| has(value)), "somebody has what is another's");
    }
}

/// The rest of them, over the typed API.
async fn over_the_typed_api(service: &Service, canaries: &mut Canaries, team_env: &str, team_args: &str) {
    let mut typed = SessionsClient::new(channel(service).await);
    let person = owner(service);
    let own = json!([{ "name": "team", "command": "true", "args": ["--token", team_args],
        "env": [{ "name": "TEAM", "value": team_env }] }]);
    let request = CreateSessionRequest {
        cwd: service.work().to_str().unwrap().to_owned(),
        mcp_servers_json: own.to_string(),
        ..Default::default()
    };
    let session = typed.create(person.request(request)).await.unwrap().into_inner().session_id;
    while canaries.all.len() < MOST {
        let text = format!("over the typed API: {}", canaries.token());
        let request = PromptRequest { session_id: session.clone(), text, ..Default::default() };
        let mut events = typed.prompt(person.request(request)).await.unwrap().into_inner();
        while events.message().await.unwrap().is_some() {}
    }
}

fn plant(mut builder: Builder, runtime: &Runtime, database: Option<&Database>) {
    let mut canaries = Canaries::default();
    let collector = Collector::new();
    let dir = builder.dir().to_path_buf();
    // What processes are given.
    let mut injected = Vec::new();
    for user in ["ann", "bob"] {
        for number in 0..6 {
            let value = canaries.next();
            put(&dir, &format!("users/{user}/fake/env/KEY_{number}"), &value);
            injected.push((user, value));
        }
        put(
            &dir,
            &format!("users/{user}/fake/files/.netrc"),
            &format!("machine h login me password {}\n", canaries.next()),
        );
        let stored = json!({ "token": canaries.next(), "nested": { "refresh": canaries.next() } });
        put(&dir, &format!("users/{user}/fake/files/.config/auth.json"), &stored.to_string());
    }
    let (handed_on, configured) = (canaries.next(), canaries.next());
    let (team_env, team_args) = (canaries.next(), canaries.next());
    if let Some(database) = database {
        builder = builder.set("ledger.url", database.url());
    }
    let mut service = builder
        .env("RUST_LOG", "debug")
        .env("HANDED_ON", &handed_on)
        .set("agents.fake.env.CONFIG_API_KEY", configured.as_str())
        .set("agents.fake.env_from", json!(["HANDED_ON"]))
        .set("secrets.dir", dir.join("secrets").to_str().unwrap())
        .set("agents.fake.secrets", "optional")
        .set("agents.fake.home", "user")
        .set(
            "mcp.team",
            json!({ "command": "true", "args": ["--token", team_args], "env": { "TEAM": team_env },
            "inject": true }),
        )
        .set("telemetry.otlp_endpoint", collector.endpoint())
        .set("telemetry.metrics_interval", "100ms")
        .start();

    // Two users, each with their own.
    for user in ["ann", "bob"] {
        let person = Person::named(&service, user);
        let mut editor = person.editor(&service);
        editor.answer_with(answer);
        let servers = servers(&mut canaries);
        let before = canaries.all.len();
        let opened = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": servers }));
        let session = opened["sessionId"].as_str().unwrap().to_owned();
        // The agent gets everything as it was said, and what every session gets.
        let given = heard(&service, "session/new", servers[0]["env"][0]["value"].as_str().unwrap());
        let all = given["params"]["mcpServers"].as_array().unwrap();
        assert_eq!(all[..2], servers.as_array().unwrap()[..]);
        assert_eq!(all[2]["env"][0]["value"], team_env.as_str());
        let handed: Vec<String> = canaries.all[before - 11..before].to_vec();
        // In one text, between others: each is found however it is written there.
        echoed(&service, &mut editor, &session, &handed.join("> and <"));
        echoed(&service, &mut editor, &session, &handed[5]);
        for canary in &handed {
            editor.turn(&session, &format!("say {canary}"));
            // As a header has it: what of it depends on the bytes around it may stay.
            let coded = STANDARD.encode(format!("user:{canary}"));
            canaries.all.push(coded[8..coded.len() - 6].to_owned());
            editor.turn(&session, &format!("Basic {coded}"));
        }
        let own = injected.iter().filter(|(of, _)| *of == user).map(|(_, value)| value);
        let own: Vec<&str> =
            own.chain([&handed_on, &configured, &team_env, &team_args]).map(String::as_str).collect();
        echoed(&service, &mut editor, &session, &own.join(","));
        others_have_not(&service, &own[..6], &injected);
        // Nobody has handed these over: they are known by their looks.
        while canaries.all.len() < before + 41 {
            let token = canaries.token();
            if canaries.all.len() % 8 == 0 {
                echoed(&service, &mut editor, &session, &format!("try {token} instead"));
            }
            editor.turn(&session, &format!("my key is {token}, keep it safe"));
        }
        canaries.are_in_no_command_line(&service);
        // It is opened again with others.
        editor.call("session/close", &json!({ "sessionId": session }));
        for method in ["session/load", "session/resume"] {
            let servers = self::servers(&mut canaries);
            editor
                .call(method, &json!({ "sessionId": session, "cwd": service.work(), "mcpServers": servers }));
            let value = servers[0]["env"][0]["value"].as_str().unwrap().to_owned();
            editor.turn(&session, &format!("say {value}"));
            editor.call("session/close", &json!({ "sessionId": session }));
        }
        // Refused before there is a session.
        let refused = self::servers(&mut canaries);
        editor.call_error("session/new", &json!({ "cwd": "/nowhere", "mcpServers": refused }));
        // A crash, with the last words on stderr.
        let last = self::servers(&mut canaries);
        let opened = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": last }));
        let session = opened["sessionId"].as_str().unwrap().to_owned();
        let words = last[0]["env"][0]["value"].as_str().unwrap();
        let id = editor.prompt_do(&session, &json!([
            { "stderr": format!("died of {words}\n") }, { "line": format!("{words} is no frame") }, { "exit": 3 }]));
        let error = editor.error_of(&id);
        canaries.are_not_in("an error after a crash", error.to_string().as_bytes());
    }

    // Somebody logs in.
    let mut editor = service.editor();
    let (key, header) = (canaries.next(), canaries.next());
    let id = editor.request(
        "authenticate",
        &json!({ "methodId": "fake/key",
        "_meta": { "api-key": key, "gateway": { "headers": { "x": header } } } }),
    );
    editor.response(&id);

    runtime.block_on(over_the_typed_api(&service, &mut canaries, &team_env, &team_args));
    assert!(canaries.all.len() >= MOST, "{}", canaries.all.len());

    canaries.are_in_no_command_line(&service);
    drop(editor);
    collector.wait_span("turn", |span| span.name == "turn");
    service.term();
    canaries.are_not_in("telemetry", collector.everything().as_bytes());
    canaries.are_not_in("the log", service.log().as_bytes());
    // Homes belong to the agents; what must be handed over again is kept in one place.
    let state = service.state();
    canaries.are_not_beneath(&state, &[state.join("homes"), state.join("kept")]);
    for entry in fs::read_dir(state.join("kept")).into_iter().flatten().flatten() {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    if let Some(database) = database {
        runtime.block_on(canaries.are_in_no_table(database));
    }
}

#[test]
fn g14_two_hundred_canaries_are_found_nowhere_with_sqlite() {
    plant(service(&json!({})), &Runtime::new().unwrap(), None);
}

#[test]
fn g14_two_hundred_canaries_are_found_nowhere_with_postgres() {
    let runtime = Runtime::new().unwrap();
    let database = runtime.block_on(Database::new());
    plant(service(&json!({})), &runtime, Some(&database));
}
