//! The program that makes bubbles, installed if this host lets us.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{env, fs::File, path::Path, process::Command};

use conductor::contain::bubble::PROGRAMS;
use nix::unistd::Uid;

use crate::user::User;

fn installed() -> Option<&'static str> {
    PROGRAMS.into_iter().find(|path| Path::new(path).is_file())
}

/// Installs it if only root is needed for that. Of all tests that miss it, only one can have
/// the package manager.
fn install() {
    let lock = File::create(env::temp_dir().join("conductor-tests-install")).unwrap();
    lock.lock().unwrap();
    if installed().is_some() || !Uid::current().is_root() {
        return;
    }
    for arguments in [&["update"][..], &["install", "-y", "--no-install-recommends", "bubblewrap"]] {
        // Whether it is there now is all that counts.
        let order = Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(arguments).output();
        order.ok();
    }
}

/// Whether bubbles can be made here, also by somebody without rights; says so if a test does
/// nothing because they cannot.
#[allow(clippy::print_stderr, reason = "whoever reads why a test did nothing")]
pub fn is_there() -> bool {
    if installed().is_none() {
        install();
    }
    let Some(program) = installed() else {
        eprintln!("skipped: there is no bubblewrap on this host; install the package bubblewrap");
        return false;
    };
    let mut trial = Command::new(program);
    trial.args(["--unshare-pid", "--bind", "/", "/", "--proc", "/proc", "--", "true"]);
    if let Some(user) = User::without_rights() {
        user.run(&mut trial);
    }
    let output = trial.output().unwrap();
    if !output.status.success() {
        eprintln!("skipped: no bubble can be made here: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}
