//! The nearest peer: the official `agent-client-protocol-conductor`, here with no proxies, so that it does what ours
//! does least of all: pass frames on. It is fetched and built once, into the user's cache.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Result;

use crate::editor::Editor;

const NAME: &str = "agent-client-protocol-conductor";

/// The goals were set against this one.
const VERSION: &str = "5.0.0";

/// The installed program.
pub struct Acp {
    program: PathBuf,
}

impl Acp {
    /// Finds it in the cache, or installs it there. The text says why there is none.
    pub fn install() -> Result<Self, String> {
        let root = cache()?.join("conductor-bench").join(format!("{NAME}-{VERSION}"));
        let program = root.join("bin").join(NAME);
        if !program.is_file() {
            eprintln!("installing {NAME} {VERSION} in {}, once; this takes some minutes", root.display());
            // With the versions that it was released with, if they can still be had.
            build(&root, &["--locked"]).or_else(|_| build(&root, &[]))?;
        }
        Ok(Self { program })
    }

    /// An agent behind it.
    pub fn spawn(&self, stub: &Path) -> Result<Editor> {
        // It takes a command line apart as a shell does.
        let stub = format!("'{}'", stub.display());
        Editor::spawn(Command::new(&self.program).args(["agent", &stub]).env_remove("RUST_LOG"))
    }
}

/// Where programs may keep what they can get again.
fn cache() -> Result<PathBuf, String> {
    let named = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let found = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    found.ok_or_else(|| "neither XDG_CACHE_HOME nor HOME says where it could be kept".into())
}

fn build(root: &Path, flags: &[&str]) -> Result<(), String> {
    let failed = |why: &dyn std::fmt::Display| format!("it cannot be installed: {why}");
    fs::create_dir_all(root).map_err(|error| failed(&error))?;
    let target = root.join("build");
    let mut install = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    install.args(["install", "--quiet", NAME, "--version", &format!("={VERSION}")]).args(flags);
    install.arg("--root").arg(root).arg("--target-dir").arg(&target);
    // Away from the settings of this tree, and as its authors want it built.
    install.current_dir(root).stdin(Stdio::null());
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PROFILE_") {
            install.env_remove(name);
        }
    }
    let output = install.output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(failed(&words.trim().lines().last().unwrap_or("cargo does not say why")));
    }
    // What it was built from is of no further use; that some of it may stay does no harm.
    fs::remove_dir_all(target).ok();
    Ok(())
}
