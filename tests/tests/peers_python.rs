//! Peers made with the official Python SDK, on both sides of the conductor.

use conductor_tests::{
    harness::service,
    peers::{self, drive_agent, drive_client},
};
use serde_json::json;

#[test]
fn an_agent_of_the_python_sdk_works_behind_us() {
    let language = peers::python();
    let script = language.script("agent.py");
    drive_agent(service(&json!({})).peer(&language.program, &[&script]));
}

#[test]
fn a_client_of_the_python_sdk_works_against_us() {
    drive_client(&peers::python());
}
