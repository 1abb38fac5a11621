//! Small libraries that are preloaded into the service, so that system calls
//! fail or lie when a test says so. Needs neither root nor a tracer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Builds `tests/faults/NAME.c`, once for all tests.
pub fn library(name: &str) -> PathBuf {
    let built = env::current_exe().unwrap().parent().unwrap().join(format!("lib{name}faults.so"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("faults/{name}.c"));
    let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    if modified(&built) < modified(&source) {
        let draft = built.with_extension(format!("{}.so", std::process::id()));
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&draft)
            .arg(&source)
            .arg("-ldl")
            .status()
            .expect("the tests need a C compiler, `cc`");
        assert!(status.success(), "cc failed");
        fs::rename(&draft, &built).unwrap();
    }
    built
}
