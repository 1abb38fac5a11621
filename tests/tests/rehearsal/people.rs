//! Whoever drives somebody else's session is judged by what narrows the rules for them, too;
//! and what that was is on record.

use std::{fs, time::Duration};

use conductor::ledger::Settings;
use conductor_tests::{
    editor::Editor,
    harness::{Service, poll_until},
    people::Person,
    shipping,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    corpus::{RULES, candidate, ruled, runs},
    replay::replay,
};

/// What one user may not do.
const NO_KUBECTL: &str =
    "[[rule]]\nid = 'no-kubectl'\neffect = 'deny'\nreason = 'not you'\nrun = { program = ['kubectl'] }\n";

fn steps() -> Value {
    json!([runs("kubectl get pods")])
}

/// The option that the agent was told of last: what others did before may be heard late.
fn chosen(chunks: &[String]) -> String {
    let line = chunks.iter().rev().find_map(|chunk| chunk.strip_prefix("answer ")).unwrap();
    let answer: Value = serde_json::from_str(line).unwrap();
    answer["result"]["outcome"]["optionId"].as_str().unwrap_or("nothing").to_owned()
}

/// Somebody in an editor who allows whatever they are asked.
fn allowing(editor: Editor) -> Editor {
    editor.answer_with(|request| {
        let asks = request["method"] == "session/request_permission";
        asks.then(|| json!({ "outcome": { "outcome": "selected", "optionId": "once" } }))
    });
    editor
}

fn load(editor: &mut Editor, service: &Service, session: &str) {
    let params = json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] });
    editor.call("session/load", &params);
}

#[test]
fn whoever_drives_is_held_to_their_own_file() {
    let builder = ruled(RULES);
    let users = builder.dir().join("users");
    fs::create_dir(&users).unwrap();
    fs::write(users.join("bob.toml"), NO_KUBECTL).unwrap();
    fs::write(users.join("cleo.toml"), "[broken").unwrap();
    let mut service = builder.set("policy.users", users.to_str().unwrap()).start();
    let (ann, session) = service.session();
    let mut ann = allowing(ann);
    for user in ["bob", "cleo", "dora"] {
        let shared = service.run(&["sessions", "share", &session, "--with", user, "--as", "driver"]);
        assert!(shared.status.success(), "{shared:?}");
    }
    assert_eq!(chosen(&ann.turn_do(&session, &steps())), "once");

    let mut people: Vec<(Editor, &str)> = Vec::new();
    for (user, outcome) in [("bob", "no"), ("cleo", "no"), ("dora", "once")] {
        let mut editor = allowing(Person::named(&service, user).editor(&service));
        load(&mut editor, &service, &session);
        people.push((editor, outcome));
    }
    // Whoever takes turns: what one brings holds for their own turns, and for nobody else's.
    for _ in 0..2 {
        for (editor, outcome) in &mut people {
            assert_eq!(chosen(&editor.turn_do(&session, &steps())), *outcome);
        }
        assert_eq!(chosen(&ann.turn_do(&session, &steps())), "once");
    }
    // Who has a seat for one prompt only is held to it as well.
    let prompt = json!({ "do": steps() }).to_string();
    let typed = Person::named(&service, "bob").run(&service, &["prompt", "--session", &session, &prompt]);
    assert!(String::from_utf8_lossy(&typed.stdout).contains("\"no\""), "{typed:?}");

    let settings = Settings::embedded(&service.state());
    let runtime = Runtime::new().unwrap();
    let denied = "SELECT count(*) FROM decisions WHERE rule LIKE '%no-kubectl' AND ruled = 'deny' \
        AND CAST(subject AS text) LIKE '%\"user\":\"bob\"%'";
    let asked = "SELECT count(*) FROM decisions WHERE ruled = 'ask' AND decision = 'allow'";
    for (sql, wanted) in [(denied, 3), (asked, 5)] {
        let count = || runtime.block_on(shipping::number(&settings, sql));
        assert!(poll_until(Duration::from_secs(20), || count() == wanted), "{} of {wanted}", count());
    }
    service.term();
    // What they brought is on record: the files are not needed any more.
    fs::remove_dir_all(&users).unwrap();
    let (code, same) = replay(&service, &[&candidate(&service, "same.toml", RULES)]);
    assert_eq!((code, &same["flips"]), (Some(0), &json!([])), "{same:#}");
    assert_eq!((&same["same"], &same["not_judgeable"]), (&json!(10), &json!(0)), "{same:#}");
    // Rules that allow it leave what the files say.
    let open = format!(
        "{RULES}\n[[rule]]\nid = 'pods'\neffect = 'allow'\nreason = 'x'\nrun = {{ program = ['kubectl'], words = 'any' }}\n"
    );
    let (_, open) = replay(&service, &[&candidate(&service, "open.toml", &open)]);
    assert_eq!((&open["same"], &open["looser"]), (&json!(5), &json!(5)), "{open:#}");
}
