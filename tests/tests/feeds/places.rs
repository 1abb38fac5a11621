//! Cursors that lead nowhere are refused with what to do, and do no harm.

use conductor_tests::{
    admin::metric,
    editor::{DEADLINE, Editor},
    harness::{Builder, poll_until},
};
use serde_json::json;

use crate::{busy, lines, refusal, ruled, tail, text};

/// A journal in small pieces that keeps nothing which the ledger has.
pub fn forgetful(builder: Builder) -> Builder {
    builder.set("journal.cap", "64MiB").set("journal.keep", "1ms")
}

/// Has the agent say so much that the first piece of the journal is full, and the next.
pub fn flood(editor: &mut Editor, session: &str) {
    for _ in 0..4 {
        editor.turn_do(session, &json!([{ "update": { "n": 60, "size": 100_000 } }]));
    }
}

#[test]
fn what_is_no_cursor_of_this_service_is_refused() {
    let service = ruled().start();
    let (_editor, _) = busy(&service);
    let cursor = text(&tail(&service, &[])[5], "cursor").to_owned();
    let said = refusal(&service, &["--from", "yesterday"]);
    assert!(said.contains("`yesterday` is no cursor") && said.contains("oldest, now"), "{said}");
    let parts: Vec<_> = cursor.split('.').collect();
    let with = |at: usize, value: &str| {
        let mut parts = parts.clone();
        parts[at] = value;
        parts.join(".")
    };
    let said = refusal(&service, &["--from", &with(1, "00000000000000000000000000000007")]);
    assert!(said.contains("of another journal"), "{said}");
    let offset: u64 = parts[3].parse().unwrap();
    for (at, value) in [(3, offset + 1), (3, offset - 1), (3, 1 << 40), (2, 99), (2, u64::MAX)] {
        let said = refusal(&service, &["--from", &with(at, &value.to_string())]);
        assert!(said.contains("was not given out by this service"), "{value}: {said}");
    }
    // More frames and events than a record has: what follows is told.
    let behind = tail(&service, &["--from", &with(4, "4000000000")]);
    assert!(behind.len() < tail(&service, &[]).len());
    assert_eq!(metric(&service, "conductor_journal_damaged_parts"), 0.0, "nobody's cursor is damage");
    let both = service.run(&["ledger", "tail", "--from", "now", "--since", "1h"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn what_was_freed_is_said_to_be_gone() {
    let service = forgetful(ruled()).start();
    let (mut editor, session) = busy(&service);
    let first = text(&tail(&service, &[])[0], "cursor").to_owned();
    flood(&mut editor, &session);
    let mut said = String::new();
    let gone = || {
        let told = service.run(&["ledger", "tail", "--json", "--from", &first]);
        said = String::from_utf8(told.stderr).unwrap();
        // Old pieces go when the next is begun.
        editor.turn_do(&session, &json!([{ "update": { "n": 20, "size": 100_000 } }]));
        !told.status.success()
    };
    assert!(poll_until(DEADLINE * 2, gone), "nothing was freed");
    assert!(said.contains("is not kept any more") && said.contains("--from oldest"), "{said}");
    // From where it says that it can go on, it goes on, and knows whose session it is. That may
    // be freed as well by the time it is asked for; then it says from where on, again.
    let mut rest = Vec::new();
    let goes_on = || {
        let oldest = said.split_once("which is ").unwrap().1.split_whitespace().next().unwrap().to_owned();
        let told = service.run(&["ledger", "tail", "--json", "--from", &oldest]);
        said = String::from_utf8(told.stderr).unwrap();
        rest = lines(&told.stdout);
        told.status.success()
    };
    assert!(poll_until(DEADLINE, goes_on), "{said}");
    let prompt = rest.iter().find(|event| event["event"] == "prompt.ended").unwrap();
    assert_eq!((&prompt["agent"], &prompt["session"]), (&json!("fake"), &json!(session)));
    assert!(prompt["user"].is_string(), "{prompt}");
}
