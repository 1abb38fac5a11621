//! What came of it: a table for people, and the same as JSON.

use std::{fmt::Write as _, sync::atomic::Ordering::Relaxed, time::Duration};

use serde_json::{Value, json};

use crate::{
    Plan,
    chaos::Chaos,
    findings::Kind,
    gauges::Trend,
    oracle::{Heard, Recorded},
    shared::Shared,
};

/// Everything that is told at the end.
pub struct Report<'a> {
    pub plan: &'a Plan,
    pub shared: &'a Shared,
    pub chaos: &'a Chaos,
    pub heard: &'a Heard,
    pub recorded: &'a Recorded,
    pub trends: &'a [Trend],
    pub took: Duration,
    pub database: &'static str,
}

impl Report<'_> {
    /// What was counted, by its name.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.shared.counts;
        vec![
            ("frames at editors", counts.frames.load(Relaxed)),
            ("frames in the ledger", self.recorded.frames),
            ("sessions", counts.sessions.load(Relaxed).into()),
            ("prompts", counts.prompts.load(Relaxed)),
            ("turns that ended well", counts.done.load(Relaxed)),
            ("turns cut short", counts.cut.load(Relaxed)),
            ("prompts that agents heard", self.heard.prompts.len() as u64),
            ("permissions allowed", self.heard.allowed.len() as u64),
            ("questions to people", counts.asks.load(Relaxed)),
            ("cancels", counts.cancels.load(Relaxed)),
            ("loads", counts.loads.load(Relaxed)),
            ("closes", counts.closes.load(Relaxed)),
            ("pauses of slow readers", counts.slow.load(Relaxed)),
        ]
    }

    fn kills(&self) -> u64 {
        self.chaos.done.iter().filter(|(fault, _)| fault.is_kill()).map(|(_, times)| times).sum()
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut table = String::new();
        let mut section = |title: &str, rows: Vec<(String, String)>| {
            let _ = writeln!(table, "\n{title}");
            for (name, value) in rows {
                let _ = writeln!(table, "  {name:<28} {value:>12}");
            }
        };
        let number = |(name, value): (&str, u64)| (name.to_owned(), value.to_string());
        section("work", self.counts().into_iter().map(number).collect());
        let faults = self.chaos.done.iter().map(|(fault, times)| (fault.name(), *times));
        section("faults", faults.chain([("kills", self.kills())]).map(number).collect());
        let trend = |trend: &Trend| {
            let hour = format!("{:+.1} {}/h", trend.per_hour(), trend.unit);
            (format!("{}, peak {}", trend.name, trend.peak), hour.replace(" /h", "/h"))
        };
        section("slope in the calm", self.trends.iter().map(trend).collect());
        let found = Kind::ALL.iter().map(|kind| (kind.name(), self.shared.findings.count(*kind)));
        section("found", found.map(number).collect());
        table
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let key = |name: &str| name.replace([' ', ','], "_");
        let counts: Value =
            self.counts().into_iter().map(|(name, value)| (key(name), json!(value))).collect();
        let faults: Value =
            self.chaos.done.iter().map(|(fault, times)| (format!("{fault:?}"), json!(times))).collect();
        let found: Value = Kind::ALL
            .iter()
            .map(|kind| (key(kind.name()), json!(self.shared.findings.count(*kind))))
            .collect();
        let evidence: Value = self
            .shared
            .findings
            .words()
            .into_iter()
            .map(|(kind, words)| (key(kind.name()), json!(words)))
            .collect();
        let slopes: Value = self.trends.iter().map(|trend| (key(trend.name), trend.json())).collect();
        json!({
            "ok": self.shared.findings.total() == 0,
            "seed": self.plan.seed, "minutes": self.plan.minutes, "seconds": self.took.as_secs_f64(),
            "editors": self.plan.editors, "sessions_per_editor": self.plan.sessions,
            "database": self.database, "counts": counts, "faults": faults, "kills": self.kills(),
            "slopes": slopes, "found": found, "evidence": evidence,
        })
    }
}
