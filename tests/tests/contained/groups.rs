//! Control groups: where whoever runs the service may make some, the kernel holds the limits and
//! ends everything through them. Where these tests may make none, they do nothing, and say so.

use std::{
    fs,
    path::{Path, PathBuf},
};

use conductor::contain::cells::offered;
use conductor_tests::{
    editor::DEADLINE,
    fake::process::{BOMB, GLUTTON},
    harness::{Builder, poll_until},
};
use serde_json::{Value, json};

use crate::{Cell, Sandbox, hogs::is_ended, populated, who_ends_with_a_killed_guard};

/// A service that may make groups, with the layer required; `None` if none can be made.
#[allow(clippy::print_stderr, reason = "whoever reads why a test did nothing")]
fn grouped(kind: &str) -> Option<Builder> {
    let offered = offered();
    let has = |word: &str| offered.iter().any(|found| found.contains(word));
    if !has("version 2") || !has(kind) {
        eprintln!("skipped: control groups ({kind}) cannot be made here, only {offered:?}");
        return None;
    }
    let layers = json!(["landlock", "seccomp", "cgroup"]);
    Some(populated(Sandbox::Required).set("agents.fake.sandbox_layers", layers))
}

/// The group of version 2 that a process is in.
pub fn group(pid: i32) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap().into()
}

/// Where groups of version 2 are.
pub fn mounted(group: &Path) -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let point = mounts.lines().find(|line| line.contains(" cgroup2 ")).unwrap();
    let point = point.split(' ').nth(1).unwrap();
    Path::new(point).join(group.strip_prefix("/").unwrap())
}

#[test]
fn an_agent_is_born_into_a_group_of_its_own_beside_those_of_its_terminals() {
    let Some(builder) = grouped("version 2") else { return };
    let service = builder.start();
    let mut mine = Cell::mine(&service);
    let own = group(mine.agent);
    assert_eq!(own.file_name().unwrap().to_str().unwrap(), mine.guard.to_string());
    assert_ne!(group(mine.guard), own, "the guard is not held by it");
    let output = mine.runs(&json!({ "command": "cat", "args": ["/proc/self/cgroup"] }));
    let terminal: PathBuf = output.lines().find_map(|line| line.strip_prefix("0::")).unwrap().into();
    assert!(terminal.parent() == own.parent() && terminal != own, "{} and {output}", own.display());
    let cell = mounted(own.parent().unwrap());
    assert!(cell.is_dir() && !mounted(&terminal).exists(), "the terminal's is gone with it");
    mine.close();
    assert!(poll_until(DEADLINE, || !cell.exists()), "{} is left", cell.display());
}

#[test]
fn a25_the_kernel_bounds_processes() {
    let Some(builder) = grouped("pids") else { return };
    let service = builder.set("agents.fake.limits.processes", 200).start();
    is_ended(
        &service,
        &json!({ "bomb": { "detach": true, "clear_env": true } }),
        &["processes", "200"],
        BOMB,
    );
}

#[test]
fn a26_the_kernel_bounds_memory() {
    let Some(builder) = grouped("memory") else { return };
    let service = builder.set("agents.fake.limits.memory", "256MiB").start();
    is_ended(&service, &json!({ "memory": { "mib": 1024 } }), &["memory", "256 MiB"], GLUTTON);
}

#[test]
fn c03_a_killed_guard_takes_all_with_it() {
    let Some(builder) = grouped("version 2") else { return };
    who_ends_with_a_killed_guard(&builder.start());
}

#[test]
fn c04_a_killed_service_leaves_no_group() {
    let Some(builder) = grouped("version 2") else { return };
    let mut service = builder.start();
    let mine = Cell::mine(&service);
    let base = mounted(group(mine.agent).ancestors().nth(2).unwrap());
    assert!(base.is_dir());
    service.kill9();
    assert!(poll_until(DEADLINE, || !base.exists()), "{} is left", base.display());
}

#[test]
fn what_an_agent_is_held_by_is_shown() {
    let Some(builder) = grouped("version 2") else { return };
    let service = builder.start();
    let mine = Cell::mine(&service);
    let agent = service.agent_json("fake");
    let process = agent["processes"].as_array().unwrap().iter().find(|one| one["pid"] == mine.agent).unwrap();
    let layers = process["sandbox"]["layers"].as_array().unwrap();
    assert!(layers.contains(&Value::from("cgroup")), "{process}");
}
