//! A disk that fails when a test says so: the service runs with a small library
//! preloaded (`tests/faults/disk.c`), which lets system calls on the journal's
//! files fail, wait or be short. Needs neither root nor a tracer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{fs, path::PathBuf};

use conductor::{
    journal::{Journal, Record, Settings},
    record::Origin,
};

use crate::{
    harness::{Builder, Service},
    preload::library,
    shipping::{Known, sorted},
};

/// Lets the disk of a service fail.
pub struct Disk {
    control: PathBuf,
}

impl Disk {
    /// Prepares a service to have a failing disk; it works until told
    /// otherwise.
    pub fn under(builder: Builder) -> (Self, Builder) {
        let control = builder.dir().join("disk-faults");
        fs::write(&control, "").unwrap();
        let builder = builder
            .env("LD_PRELOAD", library("disk").to_str().unwrap())
            .env("DISK_FAULTS", control.to_str().unwrap());
        (Self { control }, builder)
    }

    /// From now on this rule holds; see `tests/faults/disk.c`.
    pub fn rule(&self, rule: &str) {
        let draft = self.control.with_extension("new");
        fs::write(&draft, rule).unwrap();
        fs::rename(&draft, &self.control).unwrap();
    }

    /// From now on it works.
    pub fn works(&self) {
        self.rule("");
    }
}

/// Everything in the journal of a service that has been stopped, in order.
pub fn journal(service: &Service) -> Vec<Record> {
    let (journal, recovered) = Journal::open(&service.state().join("journal"), Settings::default()).unwrap();
    assert!(recovered.findings.is_empty(), "{:?}", recovered.findings);
    let mut all = Vec::new();
    let mut from = conductor::journal::Position::default();
    loop {
        let (records, next) = journal.read(from, 1 << 20).unwrap();
        if records.is_empty() {
            return all;
        }
        all.extend(records);
        from = next;
    }
}

/// The frames of one origin as text, in order.
pub fn texts(records: &[Record], origin: Origin) -> Vec<String> {
    let of = records.iter().filter(|record| record.origin == origin);
    of.flat_map(|record| {
        record.lines().map(|line| String::from_utf8_lossy(line).into_owned()).collect::<Vec<_>>()
    })
    .collect()
}

/// Everything in the journal of a stopped service, as the ledger should have it.
pub fn journaled(service: &Service) -> Vec<Known> {
    let records = journal(service);
    let known = records.iter().flat_map(|record| {
        let first = record.first_seq;
        record.lines().enumerate().map(move |(at, line)| Known {
            stream: record.stream.id,
            seq: i64::try_from(first).unwrap() + at as i64,
            raw: line.to_vec(),
        })
    });
    sorted(known.collect())
}
