//! Races for a link (M8): the agent swaps a directory of its own for a link that leads out,
//! all the time, while it asks for what lies beyond.

use std::{fs, os::unix::fs::symlink, path::Path, thread, time::Duration};

use conductor_tests::harness::Service;
use serde_json::{Value, json};

use crate::{Cell, SECRET, Sandbox, request, world};

/// Sessions that race at the same time; one sync of the journal is for all of them.
const SESSIONS: usize = 4;

/// How often each asks to read, to write, and to write where directories are yet to be made.
const ROUNDS: usize = 412;

/// Requests of such a round. A write waits for the disk, so most of them read.
const REQUESTS: usize = 6;

/// How often each asks for a terminal there.
const TERMINALS: usize = 30;

/// A request whose answer only the agent's own ledger tells.
fn ask(method: &str, params: &Value) -> Value {
    let mut step = request(method, params);
    step["request"]["quiet"] = json!(true);
    step
}

/// One session's part.
fn race(service: &Service, number: usize, outside: &Path) {
    let root = service.work().join(number.to_string());
    let mut cell = Cell::open(service, "fake", root.clone());
    fs::create_dir(root.join("swap")).unwrap();
    fs::write(root.join("swap/file"), "mine").unwrap();
    symlink(outside, root.join("paws")).unwrap();
    service.give(&root);
    cell.editor.set_deadline(Duration::from_secs(120));
    let write =
        |path: &str| ask("fs/write_text_file", &json!({ "path": root.join(path), "content": "EVIL" }));
    let read = ask("fs/read_text_file", &json!({ "path": root.join("swap/file") }));
    let asks = json!([read, read, read, read, write("swap/written"), write("swap/deep/down/written")]);
    let command =
        json!({ "command": "sh", "args": ["-c", "cat file; echo > touched"], "cwd": root.join("swap") });
    assert_eq!(cell.runs(&command), "mine", "without a race it is run");
    let terminal = json!({ "terminalId": "$terminal" });
    let commands = json!([
        ask("terminal/create", &command),
        ask("terminal/wait_for_exit", &terminal),
        ask("terminal/output", &terminal),
        ask("terminal/release", &terminal),
    ]);
    let steps = json!([{ "swapping": { "one": root.join("swap"), "other": root.join("paws"), "steps": [
        { "repeat": [ROUNDS, asks] },
        { "repeat": [TERMINALS, commands] },
    ] } }]);
    cell.editor.turn_do(&cell.session, &steps);
}

#[test]
fn m08_ten_thousand_races_for_a_link_are_lost() {
    // Rules allow all of it, so that only the kernel is in the way, and nobody is asked: there is
    // a limit to that.
    let allow = |id: &str, what: &str| {
        format!("[[rule]]\nid = '{id}'\neffect = 'allow'\nreason = 'a race'\n{what}\n")
    };
    let rules = [
        "use = ['trusted']\n".to_owned(),
        allow("read", "read = { path = ['/**'] }"),
        allow("write", "write = { path = ['/**'] }"),
    ];
    let service = world(Sandbox::Required).rules(&rules.concat()).start();
    let outside = service.dir.join("other/outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("file"), SECRET).unwrap();
    service.give(&outside);
    thread::scope(|scope| {
        for number in 0..SESSIONS {
            let (service, outside) = (&service, &outside);
            scope.spawn(move || race(service, number, outside));
        }
    });
    let received = service.received("fake");
    let answers =
        received.iter().filter_map(|entry| entry.json().filter(|line| line.get("method").is_none()));
    let answers: Vec<Value> = answers.collect();
    // Those to the four requests for the first terminal are among them.
    assert_eq!(answers.len(), SESSIONS * (REQUESTS * ROUNDS + 4 * TERMINALS + 4));
    const { assert!(SESSIONS * (REQUESTS * ROUNDS + TERMINALS) >= 10_000) };
    let leaked = answers.iter().filter(|answer| answer.to_string().contains(SECRET)).count();
    assert_eq!(leaked, 0, "nothing outside was read");
    let there: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(there, ["file"], "nothing outside was written");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), SECRET);
    // Many were let in and many were not, or there was no race.
    let well = answers.iter().filter(|answer| answer.get("result").is_some()).count();
    let refused = answers.iter().filter(|answer| answer["error"]["code"] == -32602).count();
    assert!(well > 100 && refused > 100, "{well} well, {refused} refused");
    let read = answers.iter().filter(|answer| answer["result"]["content"] == "mine").count();
    assert!(read > 100, "only {read} were read");
}
