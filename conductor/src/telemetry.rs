//! Logging: to stderr, as text for people on a terminal and as JSON for
//! machines everywhere else. Frame bodies and secrets are never logged.

use std::io::{IsTerminal as _, stderr};

use tracing_subscriber::EnvFilter;

/// What is logged if nothing else is asked for.
const DEFAULT: &str = "info";

/// Starts logging. `filter` is a level or filters as in `RUST_LOG`.
pub fn start(filter: Option<&str>) {
    let directives = filter.unwrap_or(DEFAULT);
    // A filter that makes no sense must not silence the service.
    let (filter, refused) = match EnvFilter::try_new(directives) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(DEFAULT), Some(error)),
    };
    // A reader of the log that goes away must not take the service with it:
    // reporting a failed write would panic on the same closed stderr.
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).log_internal_errors(false);
    let started = if stderr().is_terminal() {
        builder.compact().try_init()
    } else {
        builder.json().flatten_event(true).with_ansi(false).try_init()
    };
    // Only a second start could fail, and the first one is as good.
    started.ok();
    if let Some(error) = refused {
        tracing::warn!(
            %error,
            "--log or RUST_LOG makes no sense, and {DEFAULT} is used; write a level, as in debug, or TARGET=LEVEL"
        );
    }
}
