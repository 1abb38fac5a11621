//! How the journal works: what people say in `[journal]`, and the rest.

use std::time::Duration;

use super::Recording;
use crate::{config, redact::Redaction};

/// A segment this large is sealed; the file system gets its room in one piece.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Room for the last words on a full disk.
const RESERVE_BYTES: u64 = 64 << 20;

/// How the journal works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What an effect waits for, and what happens when nothing can be written.
    pub recording: Recording,
    /// Most bytes that the ledger may be behind.
    pub cap_bytes: u64,
    /// How long what is shipped stays.
    pub keep: Duration,
    /// Size at which a new segment is begun.
    pub segment_bytes: u64,
    /// Size of the reserve; 0 for none.
    pub reserve_bytes: u64,
    /// Longest time between a write and the begin of its sync.
    pub sync_delay: Duration,
    /// So many unsynced bytes are synced at once.
    pub sync_bytes: u64,
    /// So many unsynced bytes make streams wait.
    pub unsynced_bytes: u64,
    /// Pause between attempts after a failure.
    pub retry: Duration,
    /// An effect that still waits so long after a failure is refused.
    pub refuse_after: Duration,
    /// How secrets are kept out of it, by those who write to it.
    pub redaction: Redaction,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            recording: Recording::Durable,
            cap_bytes: 10 << 30,
            keep: Duration::from_secs(7 * 86_400),
            segment_bytes: SEGMENT_BYTES,
            reserve_bytes: RESERVE_BYTES,
            sync_delay: Duration::from_millis(20),
            sync_bytes: 4 << 20,
            unsynced_bytes: 16 << 20,
            retry: Duration::from_millis(250),
            refuse_after: Duration::from_secs(5),
            redaction: Redaction::default(),
        }
    }
}

impl From<&config::Journal> for Settings {
    fn from(config: &config::Journal) -> Self {
        let settings =
            Self { recording: config.recording, cap_bytes: config.cap, keep: config.keep, ..Self::default() };
        // A small journal in large pieces could hardly be freed in time.
        let segment_bytes = (config.cap / 8).clamp(1 << 20, SEGMENT_BYTES);
        let reserve_bytes = (config.cap / 16).clamp(1 << 16, RESERVE_BYTES);
        Self { segment_bytes, reserve_bytes, ..settings }
    }
}
