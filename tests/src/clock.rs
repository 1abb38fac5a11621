//! A wall clock that jumps when a test says so: the service runs with a small
//! library preloaded (`tests/faults/clock.c`). Clocks that only ever go forward
//! do not jump, as on a machine whose clock is set.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{fs, path::PathBuf};

use crate::{harness::Builder, preload::library};

/// Sets the clock of a service.
pub struct Clock {
    control: PathBuf,
}

impl Clock {
    /// Prepares a service to have such a clock; it is right until told
    /// otherwise.
    pub fn under(builder: Builder) -> (Self, Builder) {
        let control = builder.dir().join("clock-faults");
        fs::write(&control, "0").unwrap();
        let builder = builder
            .env("LD_PRELOAD", library("clock").to_str().unwrap())
            .env("CLOCK_FAULTS", control.to_str().unwrap());
        (Self { control }, builder)
    }

    /// From now on it is wrong by so many seconds.
    pub fn jump(&self, seconds: i64) {
        let draft = self.control.with_extension("new");
        fs::write(&draft, seconds.to_string()).unwrap();
        fs::rename(&draft, &self.control).unwrap();
    }
}
