//! Where traces and metrics go.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;

use super::duration;

/// What is sent to a collector.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// The collector's URL; empty: nothing is sent.
    pub otlp_endpoint: String,
    /// A file with headers for it, which are secrets as a rule.
    #[serde(default)]
    pub headers_file: Option<PathBuf>,
    /// What this service is called there.
    pub service_name: String,
    /// Which part of the traces is sent.
    pub sample_ratio: f64,
    /// How often metrics are sent.
    #[serde(with = "duration")]
    pub metrics_interval: Duration,
}
