//! The typed service from a foreign stack, as a plug-in author would use it: the
//! documented example in Python, with code that grpc_tools makes from the protos.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::process::Stdio;

use conductor_tests::peers::{self, demo};
use serde_json::{Value, json};

#[test]
fn the_tour_of_the_python_example_sees_what_it_should() {
    let language = peers::python_example();
    let service = demo();
    let output = service
        .beside(&language.program)
        .arg(language.script("tour.py"))
        .arg(service.work())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the tour ended with {}:\n{words}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let wanted = json!({
        "options": ["model", "mode", "thought_level"],
        "tool": {
            "said": "The tool call is complete; it only pretended.\n",
            "tools": [["pretend", "pending"], ["pretend", "in_progress"], ["pretend", "completed"]],
            "end": "end_turn",
        },
        "model": "demo/demo-large",
        "offered": ["allow_once", "allow_always", "reject_once", "reject_always"],
        "decision": "allow_once",
        "second answer": "ABORTED",
        "ask": { "said": "You chose \"yes\", which means allow_once.\n", "tools": [], "end": "end_turn" },
        "queue": ["stream 3"],
        "taken back": "cancelled",
        "cancelled": "cancelled",
        "listed": true,
        "nonsense": "INVALID_ARGUMENT",
        // The second client saw every turn, though it was away for some of them.
        "watched": {
            "in order": true,
            "twice": 0,
            "turns": ["end_turn", "end_turn", "cancelled"],
            "ended": "session_ended",
        },
    });
    assert_eq!(report, wanted, "\nwanted: {wanted:#}\nseen: {report:#}\n{words}");
    // It prints what it sees, in order.
    for line in ["tool pretend (", "permission ", "turn ended: cancelled", "watcher"] {
        assert!(words.contains(line), "{line:?} is missing:\n{words}");
    }
}
