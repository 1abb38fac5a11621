//! A file system that hangs when a test says so: the service runs with a small
//! library preloaded (`tests/faults/mount.c`), which lets calls wait that look at
//! certain paths, as a mount does whose server has gone.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{fs, path::PathBuf};

use crate::{harness::Builder, preload::library};

/// Lets paths of a service hang.
pub struct Mount {
    control: PathBuf,
}

impl Mount {
    /// Prepares a service to have such a file system; it answers until told otherwise.
    pub fn under(builder: Builder) -> (Self, Builder) {
        let control = builder.dir().join("mount-faults");
        fs::write(&control, "").unwrap();
        let builder = builder
            .env("LD_PRELOAD", library("mount").to_str().unwrap())
            .env("MOUNT_FAULTS", control.to_str().unwrap());
        (Self { control }, builder)
    }

    /// From now on paths with this part hang; with an empty one, none do.
    pub fn hang(&self, part: &str) {
        let draft = self.control.with_extension("new");
        fs::write(&draft, part).unwrap();
        fs::rename(&draft, &self.control).unwrap();
    }
}
