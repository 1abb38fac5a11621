//! Secrets that an agent says in pieces: no frame has them, and the record must not join them.

use conductor_tests::{harness::service, postgres::Database};
use serde_json::{Value, json};
use sqlx::Row as _;

use crate::canaries::{Canaries, journal};

/// A text in pieces of so many characters. What the agent is to say stands in the prompt, which is
/// recorded, too; so it is told in digits.
fn said(own: &str, text: &str, size: usize, kind: &str, id: &Value) -> Vec<Value> {
    let letters: Vec<char> = text.chars().collect();
    let pieces = letters.chunks(size).map(|piece| piece.iter().collect::<String>());
    let lines = pieces.map(|piece| {
        json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": own, "update": {
            "sessionUpdate": kind, "messageId": id, "content": { "type": "text", "text": piece } } } })
    });
    let digits =
        |line: Value| format!("{line}\n").bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    lines.map(|line| json!({ "bytes": digits(line) })).collect()
}

/// Twelve bytes of one are too many, behind what tokens begin with.
fn are_gone(canaries: &Canaries, what: &str, bytes: &[u8]) {
    for canary in &canaries.all {
        let behind = canary.rfind("ey").or_else(|| canary.rfind(['-', '_'])).map_or(4, |at| at + 1);
        for part in canary.as_bytes()[behind..].windows(12) {
            if let Some(at) = memchr::memmem::find(bytes, part) {
                let near = &bytes[at.saturating_sub(300)..(at + 100).min(bytes.len())];
                panic!("a part of {canary:?} is in {what}: …{}…", String::from_utf8_lossy(near));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_in_pieces_are_not_joined_by_the_record() {
    let database = Database::new().await;
    let mut canaries = Canaries::default();
    let configured = canaries.next();
    let mut service = service(&json!({}))
        .set("ledger.url", database.url())
        .set("agents.fake.env.CONFIG_API_KEY", configured.as_str())
        .start();
    let mut editor = service.editor();
    let handed = [canaries.next(), canaries.awkward()];
    let servers = json!([{ "name": "one", "command": "true", "args": [],
        "env": [{ "name": "ONE", "value": handed[0] }, { "name": "TWO", "value": handed[1] }] }]);
    let opened = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": servers }));
    let session = opened["sessionId"].as_str().unwrap().to_owned();
    editor.turn(&session, "who are you?");
    let prompted = service
        .wait_received("fake", "the prompt", |entry| entry.method().as_deref() == Some("session/prompt"));
    let own = prompted.json().unwrap()["params"]["sessionId"].as_str().unwrap().to_owned();
    let tokens: Vec<String> = (0..8).map(|_| canaries.token()).collect();
    let secrets: Vec<&String> = handed.iter().chain([&configured]).chain(&tokens).collect();
    let text: Vec<String> = secrets.iter().map(|secret| format!("so {secret} it is")).collect();
    let text = text.join(", and ");
    let mut number = 0;
    for size in [1, 2, 3, 5, 7, 11, 23] {
        for kind in ["agent_message_chunk", "agent_thought_chunk"] {
            number += 1;
            let id = if number % 2 == 0 { Value::Null } else { json!(format!("m{number}")) };
            let before = editor.lines().len();
            editor.turn_do(&session, &json!(said(&own, &text, size, kind, &id)));
            // The editor has been told everything.
            let told: String = editor.lines()[before..]
                .iter()
                .filter_map(|line| line.json["params"]["update"]["content"]["text"].as_str())
                .collect();
            assert_eq!(told, text);
        }
    }
    // In two, at every place of each.
    for secret in &secrets {
        let at = secret.char_indices().map(|(at, _)| at).skip(1);
        let steps: Vec<Value> = at
            .flat_map(|at| [format!("so {}", &secret[..at]), format!("{} it is", &secret[at..])])
            .flat_map(|piece| said(&own, &piece, usize::MAX, "agent_message_chunk", &json!("halves")))
            .collect();
        editor.turn_do(&session, &json!(steps));
    }
    drop(editor);
    assert!(service.term().success());
    canaries.are_not_beneath(&service.state(), &[service.state().join("kept")]);
    canaries.are_in_no_table(&database).await;
    let bytes = journal(&service);
    are_gone(&canaries, "the journal", &bytes);
    let mut connection = database.connect().await;
    let rows = sqlx::query("SELECT text FROM messages WHERE role <> 'user' UNION ALL SELECT convert_from(raw, 'UTF8') FROM frames")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let texts: Vec<String> = rows.iter().filter_map(|row| row.get::<Option<String>, _>(0)).collect();
    let joined = texts.iter().find(|text| text.contains("<secret:env:") && text.contains(" it is, and so "));
    assert!(joined.is_some_and(|text| text.contains("<secret:token:")), "marks and all the rest: {texts:?}");
    for text in &texts {
        are_gone(&canaries, "a row", text.as_bytes());
    }
}
