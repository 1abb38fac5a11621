//! Agents that take what is everybody's: processes, memory, descriptors, disk. One that goes
//! over its limits is stopped or ended, with the limit as the reason, and nobody else notices.

use std::{fs, time::Duration};

use conductor_tests::{
    fake::{
        attempt::ERRAND,
        process::{BOMB, GLUTTON},
    },
    harness::{Service, assert_says, poll_until},
};
use serde_json::{Value, json};

use crate::{Cell, ONE_SECOND, Outcome, Sandbox, Who, end_reason, world};

/// How long it may take until an agent that goes over a limit is ended.
const NOTICED: Duration = Duration::from_secs(15);

/// An agent that is ended for what it takes; others go on meanwhile.
pub fn is_ended(service: &Service, attempt: &Value, words: &[&str], mark: &str) {
    let (mut mine, mut theirs) = (Cell::mine(service), Cell::theirs(service));
    mine.editor.set_deadline(NOTICED);
    let turn = mine.editor.prompt_do(&mine.session, &json!([{ "try": [attempt] }, "hang"]));
    for _ in 0..3 {
        theirs.is_well();
    }
    let error = mine.editor.error_of(&turn);
    words.iter().for_each(|word| assert_says(&error, &[word]));
    service.wait_gone(mark, ONE_SECOND);
    let reason = end_reason(service, mine.agent);
    assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
    theirs.is_well();
    // The agent is as welcome as before.
    Cell::open(service, "fake", service.work().join("again")).is_well();
}

/// A command in a terminal that is ended for what it takes; others go on meanwhile.
fn terminal_is_ended(service: &Service, params: &Value, mark: &str) {
    let (mut mine, mut theirs) = (Cell::mine(service), Cell::theirs(service));
    mine.editor.set_deadline(NOTICED);
    let id = mine.creates(params);
    theirs.is_well();
    let ended = mine.asks_well("terminal/wait_for_exit", &id);
    assert_eq!(ended["signal"], "SIGKILL", "{ended}");
    service.wait_gone(mark, ONE_SECOND);
    theirs.is_well();
    Cell::open(service, "fake", service.work().join("again")).is_well();
}

/// Forks without end.
fn bomb(bomb: &Value) {
    let service = world(Sandbox::Required).set("agents.fake.limits.processes", 200).start();
    is_ended(&service, &json!({ "bomb": bomb }), &["processes", "200"], BOMB);
}

/// The same in a terminal, whose own command would never end.
pub fn bomb_in_a_terminal() {
    let service = world(Sandbox::Required).set("agents.fake.limits.processes", 200).start();
    let fake = service.program("fake-agent").display().to_string();
    let attempts = json!([{ "bomb": { "detach": true, "clear_env": true } }]).to_string();
    let line = format!("'{fake}' {ERRAND} '{attempts}'; sleep 3600");
    terminal_is_ended(&service, &json!({ "command": "sh", "args": ["-c", line] }), BOMB);
}

#[test]
fn a25_a_fork_bomb_is_ended() {
    bomb(&json!({}));
}

#[test]
fn a25_a_fork_bomb_that_leaves_its_session_and_its_environment_is_ended() {
    bomb(&json!({ "detach": true, "clear_env": true }));
}

#[test]
fn a25_threads_count_as_processes() {
    let service = world(Sandbox::Required).set("agents.fake.limits.processes", 200).start();
    is_ended(&service, &json!({ "threads": 400 }), &["processes", "200"], "no other process");
}

#[test]
fn a25_so_many_processes_are_fine() {
    let service = world(Sandbox::Required).set("agents.fake.limits.processes", 200).start();
    let mut mine = Cell::mine(&service);
    assert_eq!(mine.tries(&json!([{ "threads": 100 }])), [Ok(json!(100))]);
    mine.is_well();
}

/// A service whose agent may have little memory.
fn limited() -> Service {
    world(Sandbox::Required).set("agents.fake.limits.memory", "256MiB").start()
}

#[test]
fn a26_who_takes_too_much_memory_is_ended() {
    is_ended(&limited(), &json!({ "memory": { "mib": 1024 } }), &["memory", "256 MiB"], GLUTTON);
}

/// The same in a terminal, which is ended alone.
pub fn memory_in_a_terminal() {
    let service = limited();
    let args = json!([ERRAND, json!([{ "memory": { "mib": 1024 } }, { "sleep": 3600 }]).to_string()]);
    let params = json!({ "command": service.program("fake-agent"), "args": args });
    terminal_is_ended(&service, &params, ERRAND);
}

#[test]
fn a26_the_memory_of_children_counts_and_the_greediest_are_ended() {
    let service = limited();
    let (mut mine, mut theirs) = (Cell::mine(&service), Cell::theirs(&service));
    let attempts = json!([{ "memory": { "mib": 64, "children": 8 } }]);
    assert_eq!(mine.tries(&attempts), [Ok(Value::Null)]);
    theirs.is_well();
    // Four would be too much, with what the agent itself has.
    let gluttons = || service.processes().iter().filter(|running| running.command.contains(GLUTTON)).count();
    assert!(poll_until(NOTICED, || gluttons() <= 3), "{:?}", service.processes());
    mine.is_well();
    theirs.is_well();
}

#[test]
fn a26_some_memory_is_fine() {
    let service = limited();
    let mut mine = Cell::mine(&service);
    assert_eq!(mine.tries(&json!([{ "memory": { "mib": 128 } }])), [Ok(Value::Null)]);
    mine.is_well();
}

/// How far an attempt went before it failed.
fn after(told: &str) -> (Option<u64>, String) {
    let told: Value = serde_json::from_str(told).unwrap();
    (told[0]["after"].as_u64(), told[0]["error"].as_str().unwrap_or_default().to_owned())
}

/// Opens many files: refused to it alone, and it lives on.
pub fn descriptors(who: Who) {
    let service = world(Sandbox::Required).set("agents.fake.limits.open_files", 1000).start();
    let (mut mine, mut theirs) = (Cell::mine(&service), Cell::theirs(&service));
    let attempts = json!([{ "open_files": 100_000 }]);
    let told = match who {
        Who::Agent => mine.editor.turn_do(&mine.session, &json!([{ "try": attempts }])).remove(0),
        Who::Terminal => {
            let args = json!([ERRAND, attempts.to_string()]);
            mine.runs(&json!({ "command": service.program("fake-agent"), "args": args }))
        }
    };
    let (count, error) = after(&told);
    assert_eq!(error, "EMFILE");
    assert!((900..=1000).contains(&count.unwrap()), "{count:?} files were opened");
    mine.is_well();
    theirs.is_well();
    // Limits that it was given are for ever, but may be made stricter.
    let limits = mine.tries_by(
        &service,
        who,
        &json!([{ "limit": ["nofile", 1001] }, { "limit": ["core", 1 << 20] }, { "limit": ["nofile", 500] }]),
    );
    let refused: Outcome = Err("EPERM".to_owned());
    assert_eq!(limits, [refused.clone(), refused, Ok(Value::Null)]);
}

#[test]
fn a27_who_opens_too_many_files_is_refused_more() {
    descriptors(Who::Agent);
}

#[test]
fn a27_nothing_of_ours_is_inherited() {
    let service = world(Sandbox::Required).start();
    let mut mine = Cell::mine(&service);
    let told = mine.editor.turn_do(&mine.session, &json!(["describe"])).remove(0);
    let told: Value = serde_json::from_str(&told).unwrap();
    let own = |target: &str| target.contains("/ledger/") || target.starts_with("/proc/");
    let open = told["fds"].as_object().unwrap();
    let inherited: Vec<_> =
        open.iter().filter(|(_, target)| !own(target.as_str().unwrap())).map(|(number, _)| number).collect();
    assert_eq!(inherited, ["0", "1", "2"], "{open:?}");
    let listed = mine.runs(&json!({ "command": "ls", "args": ["/proc/self/fd"] }));
    // One is the directory that is being listed.
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
}

/// Writes a file without end: refused to it alone, and it lives on.
pub fn disk(who: Who) {
    let service = world(Sandbox::Required).set("agents.fake.limits.file_size", "8MiB").start();
    let (mut mine, mut theirs) = (Cell::mine(&service), Cell::theirs(&service));
    let fill = |cell: &Cell| json!([{ "fill": { "path": cell.root.join("full"), "mib": 12 } }]);
    let attempts = fill(&mine);
    let outcomes = mine.tries_by(&service, who, &attempts);
    assert_eq!(outcomes, [Err("EFBIG".to_owned())]);
    assert_eq!(fs::metadata(mine.root.join("full")).unwrap().len(), 8 << 20);
    mine.is_well();
    let attempts = fill(&theirs);
    assert_eq!(theirs.tries(&attempts), [Ok(Value::Null)], "the limit is of one agent");
    assert_eq!(fs::metadata(theirs.root.join("full")).unwrap().len(), 12 << 20);
}

#[test]
fn m10_files_grow_no_longer_than_they_may() {
    disk(Who::Agent);
}
