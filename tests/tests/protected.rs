//! What an agent's own tools do to protected places (fault M7): found after the turn, told before
//! its end, and never what somebody has decided or done themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs::{self, File},
    path::Path,
    time::{Duration, Instant},
};

use conductor::ledger::Settings;
use conductor_tests::{
    admin::{metric, watched},
    disk,
    editor::Editor,
    harness::{Builder, Service, poll_until, service},
    mount::Mount,
    postgres::Database,
    shipping,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// People are asked about nearly everything; an editor of the tests says yes to the conductor.
const RULES: &str = "[[rule]]\nid = 'shows'\neffect = 'allow'\nreason = 'x'\n\
    run = { program = ['ls'], words = 'any' }\n\
    [[rule]]\nid = 'zed'\neffect = 'allow'\nreason = 'x'\n\
    write = { path = ['**/.zed/settings.json'] }\n";

/// An editor that takes notices, and a session.
fn open(service: &Service) -> (Editor, String) {
    let mut editor = service.connect(&[]);
    editor.initialize_with(&json!({ "session": { "notices": {} } }));
    let opened = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    (editor, opened["sessionId"].as_str().unwrap().to_owned())
}

/// A step by which the agent writes a file in the session's directory and asks nobody.
fn plants(service: &Service, path: &str) -> Value {
    json!({ "plant": [service.work().join(path), "planted, and longer than what was there"] })
}

/// A step that asks for permission to run a command, as Claude Code does.
fn asks_to_run(command: &str) -> Value {
    json!({ "request": { "method": "session/request_permission", "params": {
        "sessionId": "$sid",
        "toolCall": {
            "toolCallId": "call-1", "title": "x", "kind": "execute", "rawInput": { "command": command },
            "_meta": { "claudeCode": { "toolName": "Bash" } },
        },
        "options": [
            { "optionId": "once", "name": "Yes", "kind": "allow_once" },
            { "optionId": "no", "name": "No", "kind": "reject_once" },
        ],
    } } })
}

/// Answers the agent's own question; the conductor's have been answered by then.
fn says(editor: &mut Editor, option: &str) {
    let request = loop {
        let request = editor.next_request("session/request_permission");
        if request["params"]["toolCall"]["toolCallId"] == "call-1" {
            break request;
        }
    };
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": option } }));
}

/// A step that writes a file by asking for it.
fn writes(path: &Path) -> Value {
    json!({ "request": { "method": "fs/write_text_file", "params": {
        "sessionId": "$sid", "path": path, "content": "written as asked" } } })
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// What the notices with this title said.
fn notices(editor: &Editor, title: &str) -> Vec<String> {
    let lines = editor.lines();
    let updates = lines.iter().filter_map(|line| serde_json::from_str::<Value>(&line.text()).ok());
    updates
        .map(|line| line["params"]["update"].clone())
        .filter(|update| update["sessionUpdate"] == "notice" && update["title"] == title)
        .map(|update| update["description"].as_str().unwrap().to_owned())
        .collect()
}

/// What people were told of changes.
fn told(editor: &Editor) -> Vec<String> {
    notices(editor, "Changed without asking")
}

/// Our notes of one kind, in the journal of a service that is stopped for it.
fn noted(service: &mut Service, method: &str) -> Vec<Value> {
    service.term();
    let records = disk::journal(service);
    let lines = records.iter().flat_map(|record| record.lines().map(<[u8]>::to_vec).collect::<Vec<_>>());
    let lines = lines.filter_map(|line| serde_json::from_slice::<Value>(&line).ok());
    lines.filter(|line| line["method"] == method).map(|line| line["params"].clone()).collect()
}

/// Everything that an agent may plant, in a ledger of either kind.
fn what_is_planted_is_told(builder: Builder, settings: impl Fn(&Service) -> Settings) {
    let mut service = watched(builder).start();
    let work = service.work();
    put(&work.join(".git/config"), "[core]");
    put(&work.join(".claude/settings.json"), "{}");
    let (mut editor, session) = open(&service);
    let prompt = editor.prompt_do(
        &session,
        &json!([
            plants(&service, ".git/hooks/pre-commit"),
            plants(&service, ".git/config"),
            plants(&service, ".vscode/tasks.json"),
            plants(&service, ".github/workflows/x.yml"),
            { "link": [work.join(".claude/settings.json"), "/etc/passwd"] },
            plants(&service, "src/main.rs"),
            { "update": { "text": "done " } },
        ]),
    );
    assert_eq!(editor.stop_reason(&prompt), "end_turn");
    let lines: Vec<String> = editor.lines().iter().map(|line| line.text()).collect();
    let at = |part: &str| lines.iter().position(|line| line.contains(part));
    let (notice, answer) = (at("Changed without asking").unwrap(), at("end_turn").unwrap());
    assert!(notice < answer, "{}", editor.story());
    let places = [
        (".claude/settings.json", "changed"),
        (".git/config", "changed"),
        (".git/hooks/pre-commit", "appeared"),
        (".github/workflows/x.yml", "appeared"),
        (".vscode/tasks.json", "appeared"),
    ];
    let said = told(&editor);
    assert_eq!(said.len(), 1, "{said:?}");
    for (place, _) in places {
        assert!(said[0].contains(&format!("`{place}`")), "{place} is missing: {said:?}");
    }
    assert!(!said[0].contains("main.rs") && said[0].contains("git checkout"), "{said:?}");
    assert_eq!(metric(&service, "conductor_unmediated_total"), 5.0);
    service.wait_log("what is protected was changed in a turn");

    let settings = settings(&service);
    let runtime = Runtime::new().unwrap();
    for (place, _) in places {
        let path = work.canonicalize().unwrap().join(place);
        let rows = format!(
            "SELECT count(*) FROM unmediated JOIN turns ON turns.session_id = unmediated.session_id \
             WHERE unmediated.path = '{}' AND unmediated.kind = 'edit' AND unmediated.agent = 'fake' \
             AND unmediated.agent_version IS NOT NULL AND unmediated.tool IS NULL",
            path.display()
        );
        let found =
            poll_until(Duration::from_secs(20), || runtime.block_on(shipping::number(&settings, &rows)) == 1);
        assert!(found, "{place} is not in the ledger");
    }
    let rows = "SELECT count(*) FROM file_accesses WHERE source = 'survey' AND turn IS NOT NULL";
    assert_eq!(runtime.block_on(shipping::number(&settings, rows)), 5, "it belongs to the turn");

    let noted = noted(&mut service, "_conductor/unmediated");
    assert_eq!(noted.len(), 1, "{noted:?}");
    let root = work.canonicalize().unwrap();
    let expected: Vec<Value> =
        places.iter().map(|(path, change)| json!({ "path": root.join(path), "change": change })).collect();
    assert_eq!(noted[0], json!({ "paths": expected, "more": 0 }));
}

#[test]
fn m7_what_is_planted_is_told_before_the_turn_ends() {
    what_is_planted_is_told(service(&json!({})), |service| Settings::embedded(&service.state()));
}

#[test]
fn m7_what_is_planted_is_in_the_ledger_of_postgres() {
    let database = Runtime::new().unwrap().block_on(Database::new());
    what_is_planted_is_told(service(&json!({})).set("ledger.url", database.url()), |service| {
        let mut settings = Settings::embedded(&service.state());
        settings.url = database.url().parse().unwrap();
        settings
    });
}

#[test]
fn what_was_decided_is_not_told() {
    let mut service = service(&json!({})).rules(RULES).start();
    let work = service.work();
    put(&work.join(".git/config"), "[core]");
    let (mut editor, session) = open(&service);
    // A person allows a write of the very place.
    let tasks = work.join(".vscode/tasks.json");
    editor.turn_do(&session, &json!([writes(&tasks)]));
    assert_eq!(fs::read_to_string(&tasks).unwrap(), "written as asked");
    // A rule does.
    let settings = work.join(".zed/settings.json");
    editor.turn_do(&session, &json!([writes(&settings)]));
    assert_eq!(fs::read_to_string(&settings).unwrap(), "written as asked");
    // The agent's own tool does what it was allowed to.
    let prompt = editor.prompt_do(
        &session,
        &json!([asks_to_run("git remote add origin x"), plants(&service, ".git/config")]),
    );
    says(&mut editor, "once");
    assert_eq!(editor.stop_reason(&prompt), "end_turn");
    assert_eq!(told(&editor), [""; 0], "{}", editor.story());
    assert!(noted(&mut service, "_conductor/unmediated").is_empty());
}

#[test]
fn what_was_denied_or_something_else_explains_nothing() {
    let service = service(&json!({})).rules(RULES).start();
    let work = service.work();
    let (mut editor, session) = open(&service);
    // Another place was allowed.
    let steps = json!([writes(&work.join(".vscode/tasks.json")), plants(&service, ".vscode/launch.json")]);
    editor.turn_do(&session, &steps);
    assert!(work.join(".vscode/tasks.json").exists(), "{}", editor.story());
    assert!(told(&editor)[0].contains("`.vscode/launch.json`. "), "{}", editor.story());
    // A person said no.
    let prompt = editor
        .prompt_do(&session, &json!([asks_to_run("make hooks"), plants(&service, ".git/hooks/pre-push")]));
    says(&mut editor, "no");
    assert_eq!(editor.stop_reason(&prompt), "end_turn");
    assert!(told(&editor)[1].contains("`.git/hooks/pre-push`. "), "{}", editor.story());
    // What only shows something writes nothing.
    let chunks = editor.turn_do(&session, &json!([asks_to_run("ls -la"), plants(&service, ".mcp.json")]));
    assert!(chunks[0].contains("once"), "{chunks:?}");
    assert!(told(&editor)[2].contains("`.mcp.json`. "), "{}", editor.story());
}

#[test]
fn what_people_do_between_turns_and_ordinary_work_are_not_told() {
    let mut service = service(&json!({})).start();
    let work = service.work();
    put(&work.join(".git/HEAD"), "ref: refs/heads/main");
    let (mut editor, session) = open(&service);
    let works = json!([
        plants(&service, ".git/index"),
        plants(&service, ".git/objects/ab/cdef"),
        plants(&service, ".git/refs/heads/main"),
        plants(&service, ".git/logs/HEAD"),
        plants(&service, ".git/COMMIT_EDITMSG"),
        plants(&service, "src/lib.rs"),
    ]);
    editor.turn_do(&session, &works);
    put(&work.join(".git/hooks/pre-commit"), "#!/bin/sh");
    put(&work.join(".vscode/settings.json"), "{}");
    editor.turn_do(&session, &json!([{ "update": {} }]));
    fs::remove_file(work.join(".git/hooks/pre-commit")).unwrap();
    editor.turn_do(&session, &json!([{ "update": {} }]));
    assert_eq!(told(&editor), [""; 0], "{}", editor.story());
    assert!(noted(&mut service, "_conductor/unmediated").is_empty());
}

#[test]
fn a_large_directory_holds_up_nobody_and_is_said_not_to_be_seen() {
    let mut service = watched(service(&json!({}))).start();
    let many = service.work().join(".vscode");
    fs::create_dir_all(&many).unwrap();
    for number in 0..100_000 {
        File::create(many.join(number.to_string())).unwrap();
    }
    let (mut editor, session) = open(&service);
    let began = Instant::now();
    editor.turn_do(&session, &json!([plants(&service, ".mcp.json"), { "update": {} }]));
    editor.turn_do(&session, &json!([{ "update": {} }]));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "two turns took {took:?}");
    let said = notices(&editor, "Not all was looked at");
    assert_eq!(said.len(), 1, "once is enough: {said:?}");
    assert!(said[0].contains("`.vscode`"), "{said:?}");
    assert!(told(&editor)[0].contains("`.mcp.json`. "), "{}", editor.story());
    assert_eq!(metric(&service, r#"conductor_best_effort_total{branch="places_unseen"}"#), 2.0);
    service.wait_log("not all that is protected was looked at");
    let root = service.work().canonicalize().unwrap();
    assert_eq!(noted(&mut service, "_conductor/unseen"), [json!({ "paths": [root.join(".vscode")] })]);
}

#[test]
fn m9_names_are_shown_escaped_and_a_long_list_is_cut() {
    let service = service(&json!({})).start();
    let (mut editor, session) = open(&service);
    editor.turn_do(&session, &json!([plants(&service, ".vscode/a\n\u{1b}[2J`b")]));
    assert!(told(&editor)[0].contains(r"`.vscode/a\n\u{1b}[2J\u{60}b`"), "{}", editor.story());
    let plenty: Vec<Value> =
        (0..9).map(|number| plants(&service, &format!(".vscode/{number}.json"))).collect();
    editor.turn_do(&session, &json!(plenty));
    assert!(told(&editor)[1].contains("`.vscode/4.json` and 4 more. "), "{}", editor.story());
}

#[test]
fn an_agent_that_plants_and_dies_is_told_of() {
    let service = service(&json!({})).start();
    let (mut editor, session) = open(&service);
    let prompt = editor.prompt_do(&session, &json!([plants(&service, ".envrc"), { "exit": 3 }]));
    editor.error_of(&prompt);
    assert!(told(&editor)[0].contains("`.envrc`"), "{}", editor.story());
}

#[test]
fn an_agent_that_plants_and_never_ends_its_turn_is_told_of() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = open(&service);
    editor.prompt_do(&session, &json!([plants(&service, ".envrc"), { "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    editor.call("session/close", &json!({ "sessionId": session }));
    let noted = noted(&mut service, "_conductor/unmediated");
    assert_eq!(noted.len(), 1, "{noted:?}");
}

#[test]
fn a_workspace_at_the_editor_is_not_looked_at() {
    let mut service = service(&json!({})).set("agents.fake.workspace", "editor").start();
    let (mut editor, session) = open(&service);
    editor.turn_do(&session, &json!([plants(&service, ".git/hooks/pre-commit"), { "update": {} }]));
    assert_eq!(told(&editor), [""; 0], "{}", editor.story());
    assert!(noted(&mut service, "_conductor/unmediated").is_empty());
}

#[test]
fn a_disk_that_hangs_holds_up_no_turn_for_long() {
    let (mount, builder) = Mount::under(service(&json!({})));
    let service = builder.start();
    let (mut editor, session) = open(&service);
    mount.hang("/work/.git");
    for _ in 0..3 {
        editor.turn_do(&session, &json!([plants(&service, ".mcp.json"), { "update": {} }]));
    }
    let said = notices(&editor, "Not all was looked at");
    assert_eq!(said.len(), 1, "{said:?}");
    mount.hang("");
    // The thread that hung is back, and the next one looks.
    let mut sees = || {
        editor.turn_do(&session, &json!([plants(&service, ".envrc"), { "update": {} }]));
        fs::remove_file(service.work().join(".envrc")).unwrap();
        !told(&editor).is_empty()
    };
    assert!(poll_until(Duration::from_secs(20), &mut sees), "{}", editor.story());
}
