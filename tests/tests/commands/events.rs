//! `conductor prompt --json`: what machines see.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::hostile;
use crate::service::{Done, Service, finish, read_until, signal};

/// The events of a run; each is one line.
fn events(done: &Done) -> Vec<Value> {
    done.stdout.lines().map(|line| serde_json::from_str(line).expect("one object per line")).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

fn only<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == kind).collect()
}

#[test]
fn a_turn_is_a_line_per_event_from_session_to_end() {
    let service = Service::start();
    let done = service.run(&["prompt", "--json", "stream 3"]);
    assert_eq!((done.code, &*done.stderr), (Some(0), ""), "{done:?}");
    let events = events(&done);
    assert_eq!((kinds(&events)[0], *kinds(&events).last().unwrap()), ("session", "end"));
    let text: String = only(&events, "text").iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(text, "chunk 1 of 3\nchunk 2 of 3\nchunk 3 of 3\n");
    let first = only(&events, "text")[0];
    assert_eq!(first["raw"]["sessionUpdate"], "agent_message_chunk");
    let (session, end) = (&events[0], events.last().unwrap());
    assert_eq!(session["can_continue"], true);
    assert_eq!((&end["stop_reason"], &end["session"]), (&"end_turn".into(), &session["session"]));
    assert!(end["ms"].is_u64(), "{end}");
}

#[test]
fn thoughts_tools_plans_and_usage_have_events_of_their_own() {
    let service = Service::start();
    let run = |text| events(&service.run(&["prompt", "--json", text]));
    let thought = run("think");
    assert!(only(&thought, "thought")[0]["text"].as_str().unwrap().starts_with("The user wants"));
    let tools = run("tool");
    let states: Vec<_> = only(&tools, "tool").iter().map(|tool| tool["status"].as_str().unwrap()).collect();
    assert_eq!(states, ["pending", "in_progress", "completed"]);
    let last = *only(&tools, "tool").last().unwrap();
    assert_eq!((&last["title"], &last["kind"]), (&"Search for \"demo\"".into(), &"search".into()));
    assert!(last["ms"].is_u64() && only(&tools, "tool")[0]["ms"].is_null(), "{last}");
    assert_eq!(last["raw"]["rawOutput"], json!({ "matches": 0 }));
    let plan = run("plan");
    assert_eq!(only(&plan, "plan")[0]["entries"][0]["content"], "Look around");
    let usage = run("usage");
    let (told, end) = (only(&usage, "usage")[0], usage.last().unwrap());
    assert!(told["used"].is_u64() && told["cost"]["currency"] == "USD", "{told}");
    assert_eq!(end["usage"]["used"], told["used"]);
}

#[test]
fn permissions_say_what_was_asked_and_answered() {
    let service = Service::start();
    let allowed = events(&service.run(&["prompt", "--json", "--allow", "ask"]));
    let asked = only(&allowed, "permission")[0];
    assert_eq!((&asked["outcome"], &asked["option"]), (&"selected".into(), &"yes".into()));
    assert_eq!(
        (&asked["title"], asked["options"].as_array().unwrap().len()),
        (&"Do nothing at all".into(), 4)
    );
    assert_eq!(asked["raw"]["toolCall"]["toolCallId"], asked["id"]);
    let nobody = events(&service.run(&["prompt", "--json", "ask"]));
    assert!(only(&nobody, "permission")[0]["note"].as_str().unwrap().contains("--allow"));
}

#[test]
fn what_goes_wrong_is_an_event_too() {
    let service = Service::start();
    let failed = service.run(&["prompt", "--json", "fail"]);
    assert_eq!(failed.code, Some(1));
    let events_of = events(&failed);
    let error = events_of.last().unwrap();
    assert_eq!(error["event"], "error");
    assert!(error["message"].as_str().unwrap().contains("the demo agent failed, as you asked"), "{error}");
    assert!(failed.stderr.contains("the demo agent failed"), "people read stderr: {failed:?}");
    let refused = service.run(&["prompt", "--json", "refuse"]);
    assert_eq!(
        (refused.code, &events(&refused).last().unwrap()["stop_reason"]),
        (Some(3), &"refusal".into())
    );
    let unknown = service.run(&["prompt", "--json", "--agent", "nobody", "x"]);
    assert_eq!((unknown.code, kinds(&events(&unknown))), (Some(1), vec!["error"]));
}

#[test]
fn an_interrupted_turn_has_its_end_too() {
    let service = Service::start();
    let mut prompt = service.spawn(&["prompt", "--json", "slow 30"]);
    read_until(prompt.stdout.as_mut().unwrap(), "second 1 of 30");
    signal(&prompt, Signal::SIGINT);
    let done = finish(prompt, "");
    assert_eq!(done.code, Some(130));
    let last: Value = serde_json::from_str(done.stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["stop_reason"]), (&"end".into(), &"cancelled".into()));
}

#[test]
fn hostile_text_stays_within_its_line_and_whole() {
    let turn = r#"chunk 'a\u001b[2J\u009b\u202e\nb'
        update '{"sessionUpdate":"tool_call","toolCallId":"1","title":"T\u001b]0;x\u0007"}'
        update '{"sessionUpdate":"something_new","x":"\u001b"}'
        update '{"sessionUpdate":7}'
        stop end_turn"#;
    let (service, _directory) = hostile::service(turn);
    let done = service.run(&["prompt", "--agent", "odd", "--json", "go"]);
    assert!(!done.stdout.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'), "{done:?}");
    let mut events = events(&done);
    // What the service learns of its agents meanwhile is told, too, whenever that is.
    events.retain(|event| event["kind"] != "config_option_update");
    assert_eq!(kinds(&events), ["session", "text", "tool", "update", "update", "end"], "{done:?}");
    assert_eq!(events[1]["text"], "a\u{1b}[2J\u{9b}\u{202e}\nb");
    assert_eq!(events[3]["kind"], "something_new");
    assert_eq!(events[0]["can_continue"], true, "whatever the agent can do");
}
