//! The long run in small: `make soak` runs the same program for minutes or hours, with
//! more of everything. Here it shows that a storm of a few seconds loses nothing, and
//! that its report can be read by machines.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{fs, process::Command};

use conductor_tests::harness::program;
use serde_json::Value;

#[test]
fn a_short_soak_loses_nothing_and_says_what_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("soak.json");
    let mut command = Command::new(program("soak"));
    for (name, value) in [
        ("SOAK_MINUTES", "0.2"),
        ("SOAK_SEED", "20261118"),
        ("SOAK_EDITORS", "4"),
        ("SOAK_SESSIONS", "2"),
        ("SOAK_JSON", json.to_str().unwrap()),
    ] {
        command.env(name, value);
    }
    let output = command.output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["ok"], true, "{report:#}");
    assert_eq!(report["seed"], 20_261_118);
    // It was a storm, and not a run in which nothing happened.
    let count = |name: &str| report["counts"][name].as_u64().unwrap_or_else(|| panic!("{name}: {report:#}"));
    assert!(report["kills"].as_u64() >= Some(1), "{report:#}");
    assert!(count("turns_that_ended_well") >= 20, "{report:#}");
    assert!(count("frames_in_the_ledger") > count("prompts"), "{report:#}");
    assert!(said.contains("SOAK_SEED=20261118"), "{said}");
}
