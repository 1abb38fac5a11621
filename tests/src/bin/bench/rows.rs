//! What is measured, and the goals it is held against.

use crate::report::{
    Goal::{
        self, AcpAtLeast, AcpAtMost, AddedAtMost, AtLeast, AtMost, OwnAtLeast, RatioAtLeast, RatioAtMost,
        SshAtLeast, SshAtMost,
    },
    Row,
};

/// All rows.
pub struct Rows {
    pub prompt_p50: Row,
    pub prompt_p99: Row,
    /// Those that wait for the disk.
    pub prompt_durable_p50: Row,
    pub prompt_durable_p99: Row,
    pub prompt_plain: Row,
    /// Permissions that the policy gives, likewise.
    pub policy: Row,
    pub policy_durable: Row,
    pub permission: Row,
    pub decision_p50: Row,
    pub decision_p99: Row,
    pub decision_worst: Row,
    pub judged_p50: Row,
    pub judged_p99: Row,
    /// Peek, splice, route and decide.
    pub instructions: [Row; 4],
    pub stream_small: Row,
    pub stream_decoded: Row,
    pub stream_large: Row,
    pub stream_plain: Row,
    /// 16 and 128 sessions, each with small and large frames.
    pub crowds: [[Row; 2]; 2],
    pub slowest: Row,
    pub crowd_relay: Row,
    pub slowest_relay: Row,
    pub terminal: Row,
    pub paced: Row,
    pub cpu_small: Row,
    pub cpu_large: Row,
    pub start: Row,
    pub cold: Row,
    pub new: Row,
    pub new_slow: Row,
    pub rebind: Row,
    pub start_held: Row,
    pub guard_memory: Row,
    pub idle: Row,
    pub session: Row,
    pub fast_reader: Row,
    pub slow_reader: Row,
    /// In runs of 1, 10 and 100 frames.
    pub journal: [Row; 3],
    pub effect_p50: Row,
    pub effect_p99: Row,
    pub effects_p50: Row,
    pub effects_p99: Row,
    /// What waits for its disk against what does not.
    pub modes: Compared,
    pub prompt_sync: Row,
    /// This build against another.
    pub builds: Compared,
    pub postgres: Shipped,
    pub sqlite: Shipped,
    pub journal_bytes: Row,
    pub restart: Row,
    /// The same after the service was killed, and with the file of the sessions lost.
    pub restart_killed: Row,
    pub restart_lost: Row,
    pub on_record: Row,
    /// A long session opened again: the agent resumes it, or needs a hand-over.
    pub load: Row,
    pub load_handover: Row,
    pub missed: Row,
    pub back: Row,
    pub live: Row,
    pub live_plain: Row,
    pub detached: Row,
    pub parked: Row,
    pub links_back: Row,
    pub bridges_back: Row,
    pub bridges_restart: Row,
}

/// All sessions together keep up with one alone.
const OF_ONE: &[Goal] = &[OwnAtLeast(0.9, "one's")];

/// What is measured of two services.
pub struct Compared {
    pub prompt: Row,
    pub paced: Row,
    pub stream_small: Row,
    pub stream_large: Row,
}

impl Compared {
    fn into_rows(self) -> [Row; 4] {
        [self.prompt, self.paced, self.stream_small, self.stream_large]
    }
}

/// What is measured of the ledger in one database.
pub struct Shipped {
    pub frames: Row,
    pub derived: Row,
    pub catch_up: Row,
    pub bytes: Row,
    pub bytes_derived: Row,
}

impl Shipped {
    fn into_rows(self) -> [Row; 5] {
        [self.frames, self.derived, self.catch_up, self.bytes, self.bytes_derived]
    }
}

impl Rows {
    pub fn new() -> Self {
        // The second number of goals with ssh is ssh / direct as measured once on another machine.
        Self {
            prompt_p50: Row::new(
                "prompt round trip p50, no wait for the disk",
                "µs",
                &[SshAtMost(1.0, 126.0 / 18.0), AcpAtMost(0.4)],
            ),
            prompt_p99: Row::new(
                "prompt round trip p99, no wait for the disk",
                "µs",
                &[SshAtMost(1.5, 313.0 / 63.0)],
            ),
            prompt_durable_p50: Row::new("prompt p50 with the wait, against fdatasync", "µs", &[]),
            prompt_durable_p99: Row::new("prompt p99 with the wait, against fdatasync", "µs", &[]),
            prompt_plain: Row::new("prompt p50 without wait and TLS, against with TLS", "µs", &[]),
            policy: Row::new(
                "permission by policy p50, no wait for the disk",
                "µs",
                &[SshAtMost(1.0, 188.0 / 15.0)],
            ),
            policy_durable: Row::new("the same with the wait, against fdatasync", "µs", &[]),
            permission: Row::new(
                "permission by the editor p50, no wait for the disk",
                "µs",
                &[SshAtMost(1.0, 188.0 / 15.0)],
            ),
            decision_p50: Row::new("policy decision p50, 500 rules", "µs", &[]),
            decision_p99: Row::new("policy decision p99, 500 rules", "µs", &[AtMost(100.0)]),
            decision_worst: Row::new("the same, the largest requests", "ms", &[AtMost(5.0)]),
            judged_p50: Row::new("decision and its record p50, against fdatasync", "µs", &[RatioAtMost(1.5)]),
            judged_p99: Row::new("decision and its record p99, against fdatasync", "µs", &[RatioAtMost(2.0)]),
            instructions: [
                Row::new("instructions to peek at a frame", "instructions", &[]),
                Row::new("instructions to splice a frame", "instructions", &[]),
                Row::new("instructions to route a prompt, 20 routes", "instructions", &[]),
                Row::new("instructions to decide, 500 rules", "instructions", &[]),
            ],
            stream_small: Row::new(
                "stream of 64 B",
                "frames/s",
                &[SshAtLeast(1.3, 330.0 / 1440.0), AcpAtLeast(25.0), RatioAtLeast(0.35)],
            ),
            stream_decoded: Row::new("the same, editor that decodes", "frames/s", &[RatioAtLeast(0.35)]),
            stream_large: Row::new(
                "stream of 2 KiB",
                "frames/s",
                &[SshAtLeast(1.3, 92.0 / 734.0), AcpAtLeast(12.0)],
            ),
            stream_plain: Row::new("stream of 64 B without TLS, against with TLS", "frames/s", &[]),
            crowds: [
                [
                    Row::new("16 sessions at once, 64 B", "frames/s", OF_ONE),
                    Row::new("16 sessions at once, 2 KiB", "frames/s", OF_ONE),
                ],
                [
                    Row::new("128 sessions at once, 64 B", "frames/s", OF_ONE),
                    Row::new("128 sessions at once, 2 KiB", "frames/s", OF_ONE),
                ],
            ],
            slowest: Row::new("slowest of the 128, against their mean", "frames/s", &[RatioAtLeast(0.5)]),
            crowd_relay: Row::new("128 plain relays at once, against one", "frames/s", &[]),
            slowest_relay: Row::new("slowest of these, against their mean", "frames/s", &[]),
            terminal: Row::new("terminal output, against a pipe", "MiB/s", &[]),
            paced: Row::new("paced stream, delay p50", "µs", &[SshAtMost(1.3, 118.0 / 14.0), AcpAtMost(0.9)]),
            cpu_small: Row::new("CPU per frame of 64 B, bridge + serve", "µs", &[AtMost(3.0)]),
            cpu_large: Row::new("CPU per frame of 2 KiB, bridge + serve", "µs", &[AtMost(3.0)]),
            start: Row::new(
                "connect → initialize, against `true`",
                "ms",
                &[AddedAtMost(8.0), SshAtMost(0.05, f64::NAN)],
            ),
            cold: Row::new("start → initialize → session/new, nothing warm", "ms", &[]),
            new: Row::new("new session, warm, against a cold start", "ms", &[]),
            new_slow: Row::new("the same, agent that starts in 0.5 s", "ms", &[RatioAtMost(0.05)]),
            rebind: Row::new(
                "another warm agent for a prompt, against its new session",
                "ms",
                &[AddedAtMost(5.0)],
            ),
            start_held: Row::new(
                "an agent's start, with guard and sandbox against bare",
                "ms",
                &[AddedAtMost(5.0)],
            ),
            guard_memory: Row::new("memory of a guard of its own", "MiB", &[AtMost(3.0)]),
            idle: Row::new("memory of serve, idle", "MiB", &[]),
            session: Row::new("memory per idle session in serve", "KiB", &[AtMost(64.0)]),
            fast_reader: Row::new("memory of serve above idle, stream of 2 KiB", "MiB", &[AtMost(32.0)]),
            slow_reader: Row::new("the same, slow reader", "MiB", &[AtMost(32.0)]),
            journal: [
                Row::new("journal in runs of 1, against a plain append", "frames/s", &[]),
                Row::new("journal in runs of 10, against the same", "frames/s", &[AtLeast(500e3)]),
                Row::new("journal in runs of 100, against the same", "frames/s", &[AtLeast(500e3)]),
            ],
            effect_p50: Row::new("effect released p50, against fdatasync", "µs", &[RatioAtMost(1.5)]),
            effect_p99: Row::new("effect released p99, against fdatasync", "µs", &[RatioAtMost(2.0)]),
            effects_p50: Row::new("the same p50, 16 writers at once", "µs", &[RatioAtMost(1.5)]),
            effects_p99: Row::new("the same p99, 16 writers at once", "µs", &[RatioAtMost(2.0)]),
            modes: Compared {
                prompt: Row::new("prompt p50, durable against best-effort", "µs", &[]),
                paced: Row::new("paced stream p50, durable against best-effort", "µs", &[]),
                stream_small: Row::new("stream of 64 B, durable against best-effort", "frames/s", &[]),
                stream_large: Row::new("stream of 2 KiB, durable against best-effort", "frames/s", &[]),
            },
            prompt_sync: Row::new("what durable adds to a prompt, against fdatasync", "µs", &[]),
            builds: Compared {
                prompt: Row::new("prompt p50, against the other build", "µs", &[]),
                paced: Row::new("paced stream p50, against the other build", "µs", &[]),
                stream_small: Row::new("stream of 64 B, against the other build", "frames/s", &[]),
                stream_large: Row::new("stream of 2 KiB, against the other build", "frames/s", &[]),
            },
            postgres: Shipped {
                frames: Row::new("Postgres, frames only, against COPY", "frames/s", &[RatioAtLeast(0.6)]),
                derived: Row::new("Postgres, all tables, against COPY", "frames/s", &[RatioAtLeast(0.3)]),
                catch_up: Row::new("the same, against 500 frames/s", "frames/s", &[RatioAtLeast(10.0)]),
                bytes: Row::new("Postgres, frames only, against raw", "bytes/frame", &[]),
                bytes_derived: Row::new("Postgres, all tables, against raw", "bytes/frame", &[]),
            },
            sqlite: Shipped {
                frames: Row::new("SQLite, frames only, against INSERT", "frames/s", &[RatioAtLeast(0.6)]),
                derived: Row::new("SQLite, all tables, against INSERT", "frames/s", &[RatioAtLeast(0.3)]),
                catch_up: Row::new("the same, against 500 frames/s", "frames/s", &[RatioAtLeast(10.0)]),
                bytes: Row::new("SQLite, frames only, against raw", "bytes/frame", &[]),
                bytes_derived: Row::new("SQLite, all tables, against raw", "bytes/frame", &[]),
            },
            journal_bytes: Row::new("journal, against raw", "bytes/frame", &[]),
            restart: Row::new("ready with 10k sessions, 1 GiB, against none", "s", &[AtMost(2.0)]),
            restart_killed: Row::new("the same, killed while 1k were at work", "s", &[AtMost(2.0)]),
            restart_lost: Row::new("the same, all read from the journal", "s", &[]),
            on_record: Row::new("memory per session on record, not open", "KiB", &[AtMost(2.0)]),
            load: Row::new("session/load of 100k frames", "frames/s", &[AtLeast(200e3)]),
            load_handover: Row::new("the same, agent needs a hand-over", "frames/s", &[]),
            missed: Row::new("100k frames missed by a bridge", "frames/s", &[AtLeast(200e3)]),
            back: Row::new("the bridge is let through → the first of them", "ms", &[]),
            live: Row::new("memory per idle session, each its own editor", "KiB", &[AtMost(64.0)]),
            live_plain: Row::new("the same without TLS", "KiB", &[]),
            detached: Row::new("the same, editor away", "KiB", &[AtMost(64.0)]),
            parked: Row::new("memory per open session, process released", "KiB", &[AtMost(2.0)]),
            links_back: Row::new("1,000 connections back at once", "s", &[AtMost(10.0)]),
            bridges_back: Row::new("bridges cut at once, all answered", "s", &[AtMost(10.0)]),
            bridges_restart: Row::new("the same, service killed and ready again", "s", &[AtMost(10.0)]),
        }
    }

    /// In the order of the table.
    pub fn into_vec(self) -> Vec<Row> {
        let mut all = vec![
            self.prompt_p50,
            self.prompt_p99,
            self.prompt_durable_p50,
            self.prompt_durable_p99,
            self.prompt_plain,
            self.policy,
            self.policy_durable,
            self.permission,
            self.decision_p50,
            self.decision_p99,
            self.decision_worst,
            self.judged_p50,
            self.judged_p99,
        ];
        all.extend(self.instructions);
        all.extend([self.stream_small, self.stream_decoded, self.stream_plain, self.stream_large]);
        all.extend(self.crowds.into_iter().flatten());
        all.extend([
            self.slowest,
            self.crowd_relay,
            self.slowest_relay,
            self.terminal,
            self.paced,
            self.cpu_small,
            self.cpu_large,
            self.start,
            self.cold,
            self.new,
            self.new_slow,
            self.rebind,
            self.start_held,
            self.guard_memory,
            self.idle,
            self.session,
            self.fast_reader,
            self.slow_reader,
        ]);
        all.extend(self.journal);
        all.extend([self.effect_p50, self.effect_p99, self.effects_p50, self.effects_p99]);
        all.extend(self.modes.into_rows());
        all.push(self.prompt_sync);
        all.extend(self.builds.into_rows());
        all.extend(self.postgres.into_rows());
        all.extend(self.sqlite.into_rows());
        all.extend([self.journal_bytes, self.restart, self.restart_killed, self.restart_lost]);
        all.extend([self.load, self.load_handover, self.missed, self.back]);
        all.extend([self.live, self.live_plain, self.detached, self.parked, self.on_record]);
        all.extend([self.links_back, self.bridges_back, self.bridges_restart]);
        all
    }
}
