//! [`conductor_tests::properties::lines`] for whatever libFuzzer makes up.
#![no_main]

use conductor_tests::properties;

libfuzzer_sys::fuzz_target!(init: properties::let_panics_be_caught(), |data: &[u8]| properties::lines(data));
