//! Spans on their way to the collector: a bounded queue, and a task that empties
//! it. What does not fit and what the collector does not take is dropped and
//! counted; nobody who makes a span ever waits.

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanProcessor},
};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::collector::Collector;
use crate::metrics::{Branch, Metrics};

/// Spans that may wait: a few seconds of a busy service. One has about a kilobyte.
const WAITING: usize = 4096;

/// Spans that go in one message.
const BATCH: usize = 512;

/// How long a span waits for company.
const GATHER: Duration = Duration::from_millis(500);

/// Where finished spans go.
#[derive(Debug)]
pub(super) struct Outlet {
    queue: mpsc::Sender<SpanData>,
    metrics: Metrics,
}

/// A queue for spans, and its other end.
pub(super) fn outlet(metrics: Metrics) -> (Outlet, mpsc::Receiver<SpanData>) {
    let (queue, spans) = mpsc::channel(WAITING);
    (Outlet { queue, metrics }, spans)
}

impl SpanProcessor for Outlet {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        if let Err(TrySendError::Full(_) | TrySendError::Closed(_)) = self.queue.try_send(span) {
            self.metrics.best_effort(Branch::SpanDropped);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Carries spans to the collector until `stop`, and then those that are left.
pub(super) async fn carry(
    mut spans: mpsc::Receiver<SpanData>,
    collector: Collector,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut is_down = false;
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            count = spans.recv_many(&mut batch, BATCH) => if count == 0 { return },
            () = stop.cancelled() => spans.close(),
        }
        if !stop.is_cancelled() && batch.len() < BATCH {
            // Others end in a moment; stopping does not wait for them.
            timeout(GATHER, stop.cancelled()).await.ok();
        }
        while batch.len() < BATCH
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        if batch.is_empty() {
            continue;
        }
        let count = batch.len() as u64;
        match collector.spans(batch).await {
            Ok(()) => is_down = false,
            Err(why) => {
                metrics.best_effort.of(Branch::SpanDropped).add(count);
                if !std::mem::replace(&mut is_down, true) {
                    warn!(why, "the collector does not take spans; they are dropped until it does");
                }
                // One that refuses at once is not asked all the time.
                tokio::select! {
                    () = sleep(GATHER) => {}
                    () = stop.cancelled() => {}
                }
            }
        }
    }
}
