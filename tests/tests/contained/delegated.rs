//! A control group of version 2 that was handed over with its limits, as a service manager does
//! with `Delegate=yes`: the service, who has no rights, is alone in it and moves one further
//! down, and the kernel limits what is beside it. Where version 2 limits nothing (its controllers
//! are used by version 1, or not handed on to these tests), they do nothing, and say so.

use std::{
    fs,
    path::{Path, PathBuf},
};

use conductor_tests::{
    editor::DEADLINE,
    fake::process::{BOMB, GLUTTON},
    harness::{Builder, poll_until},
};
use nix::unistd::Uid;
use serde_json::json;
use uuid::Uuid;

use crate::{
    Cell, Sandbox,
    groups::{group, mounted},
    hogs::is_ended,
    who_ends_with_a_killed_guard, world,
};

/// What is handed over.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// A group for one service. Dropping it removes it.
struct Delegated(PathBuf);

impl Delegated {
    /// Makes one beneath the test's own.
    fn make() -> Result<Self, String> {
        if !Uid::current().is_root() {
            return Err("only root can hand one over".to_owned());
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        if !mounts.lines().any(|line| line.contains(" cgroup2 ")) {
            return Err("version 2 is not mounted".to_owned());
        }
        let own = mounted(&group(std::process::id().cast_signed()));
        for controller in CONTROLLERS {
            fs::write(own.join("cgroup.subtree_control"), format!("+{controller}"))
                .map_err(|error| format!("{} cannot hand on {controller}: {error}", own.display()))?;
        }
        let made = own.join(format!("test-{}", Uuid::now_v7()));
        fs::create_dir(&made).map_err(|error| format!("{} cannot be made: {error}", made.display()))?;
        Ok(Self(made))
    }

    /// A service in it.
    fn service(&self) -> Builder {
        world(Sandbox::Required)
            .within(&self.0)
            .set("agents.fake.sandbox_layers", json!(["landlock", "seccomp", "cgroup"]))
            .set("agents.fake.limits", json!({ "memory": "256MiB", "processes": 200, "cpu_weight": 50 }))
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // The service leaves the one that it has moved to.
        let inside = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        for directory in inside.filter(|path| path.is_dir()) {
            poll_until(DEADLINE, || fs::remove_dir(&directory).is_ok());
        }
        poll_until(DEADLINE, || fs::remove_dir(&self.0).is_ok());
    }
}

/// A group that limits, if there can be one.
#[allow(clippy::print_stderr, reason = "whoever reads why a test did nothing")]
fn delegated() -> Option<Delegated> {
    let made = Delegated::make();
    if let Err(why) = &made {
        eprintln!("skipped: no control group of version 2 with limits can be handed over here: {why}");
    }
    made.ok()
}

fn read(directory: &Path, file: &str) -> String {
    fs::read_to_string(directory.join(file)).unwrap_or_default().trim().to_owned()
}

#[test]
fn the_limits_of_an_agent_are_those_of_its_cell() {
    let Some(delegated) = delegated() else { return };
    let service = delegated.service().start();
    let mine = Cell::mine(&service);
    let own = mounted(&group(mine.agent));
    let cell = own.parent().unwrap();
    assert!(cell.starts_with(&delegated.0), "{}", cell.display());
    let limits = ["memory.max", "memory.swap.max", "pids.max", "cpu.weight"].map(|file| read(cell, file));
    // Not every kernel accounts for swap.
    let swap = if cell.join("memory.swap.max").exists() { "0" } else { "" };
    assert_eq!(limits, [(256 << 20).to_string(), swap.to_owned(), "200".to_owned(), "50".to_owned()]);
    assert!(read(cell, "pids.current").parse::<u64>().unwrap() > 0, "the agent counts");
    // The service has made way, and is not limited.
    let moved = mounted(&group(service.pid().cast_signed()));
    assert_eq!(moved.parent().unwrap(), delegated.0);
    assert_eq!(read(&moved, "memory.max"), "max");
}

#[test]
fn a25_too_many_processes() {
    let Some(delegated) = delegated() else { return };
    let bomb = json!({ "bomb": { "detach": true, "clear_env": true } });
    is_ended(&delegated.service().start(), &bomb, &["processes", "200"], BOMB);
}

#[test]
fn a26_too_much_memory() {
    let Some(delegated) = delegated() else { return };
    let glutton = json!({ "memory": { "mib": 1024 } });
    is_ended(&delegated.service().start(), &glutton, &["memory", "256 MiB"], GLUTTON);
}

#[test]
fn c03_a_killed_guard_takes_all_with_it() {
    let Some(delegated) = delegated() else { return };
    who_ends_with_a_killed_guard(&delegated.service().start());
}

#[test]
fn c04_a_killed_service_leaves_no_cell() {
    let Some(delegated) = delegated() else { return };
    let mut service = delegated.service().start();
    let mine = Cell::mine(&service);
    let base = mounted(group(mine.agent).ancestors().nth(2).unwrap());
    assert!(base.starts_with(&delegated.0) && base.is_dir(), "{}", base.display());
    service.kill9();
    assert!(poll_until(DEADLINE, || !base.exists()), "{} is left", base.display());
}
