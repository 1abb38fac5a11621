//! Logging, traces and metrics on their way out of the process.
//!
//! The log goes to stderr, as text for people on a terminal and as JSON for
//! machines everywhere else. With an OTLP endpoint, the spans of [`trace`] and the
//! numbers of [`metrics`](crate::metrics) go to a collector, on the thread that
//! also carries frames into the ledger: a collector that is down or slow costs
//! spans, which are counted, and delays nobody. Frame bodies, texts, paths and
//! secrets are in none of it.
//!
//! `settings` says where the collector is, `trace` makes spans, `spans` and
//! `numbers` carry them and the metrics to the `collector`.

mod collector;
mod numbers;
mod settings;
mod spans;
pub mod trace;

use std::{
    io::{IsTerminal as _, stderr},
    time::Duration,
};

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracerProvider},
};
use tokio::{runtime::Handle, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    EnvFilter, Layer as _, Registry,
    filter::{FilterExt as _, FilterFn},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use self::collector::Collector;
pub use self::settings::Settings;
use crate::{
    metrics::{Family, Metrics},
    tasks::Tasks,
};

/// What is logged if nothing else is asked for.
const DEFAULT: &str = "info";

/// When the service has stopped, what is left to tell is told within this time.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Everything that leaves the process for those who watch it.
pub struct Telemetry {
    metrics: Metrics,
    /// Where it goes; `None` if nowhere.
    export: Option<Export>,
}

struct Export {
    collector: Collector,
    interval: Duration,
    provider: SdkTracerProvider,
    tasks: Tasks,
    stop: CancellationToken,
    on: Handle,
}

impl Telemetry {
    /// Starts logging; with settings for it, traces too. `filter` is a level or
    /// filters as in `RUST_LOG`. What is sent is sent by the runtime `on`.
    pub fn start(filter: Option<&str>, settings: Option<Settings>, on: &Handle) -> Result<Self, String> {
        let metrics = Metrics::default();
        let export = settings.map(|settings| Export::start(settings, metrics.clone(), on)).transpose()?;
        log(filter, export.as_ref());
        Ok(Self { metrics, export })
    }

    /// What is counted.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Sends these numbers every now and then, if there is somebody to send them to.
    pub fn report(&self, families: impl Fn() -> Vec<Family> + Send + 'static) {
        let Some(export) = &self.export else { return };
        let _on = export.on.enter();
        let report = numbers::report(
            families,
            export.collector.clone(),
            export.interval,
            self.metrics.clone(),
            export.stop.clone(),
        );
        export.tasks.start("metrics", report);
    }

    /// Sends what is left, for a bounded time.
    pub async fn finish(self) {
        let Some(Export { provider, tasks, stop, .. }) = self.export else { return };
        // Nothing waits in it: our own processor passes every span on at once.
        let _ = provider.shutdown();
        stop.cancel();
        if timeout(LAST_WORDS, tasks.ended()).await.is_err() {
            tracing::warn!("the collector did not take the last spans and metrics in time");
        }
    }
}

impl Export {
    fn start(settings: Settings, metrics: Metrics, on: &Handle) -> Result<Self, String> {
        let _on = on.enter();
        let resource = Resource::builder().with_service_name(settings.service_name.clone()).build();
        let interval = settings.metrics_interval;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sample_ratio)));
        let collector = Collector::new(settings, &resource)?;
        let (outlet, spans) = spans::outlet(metrics.clone());
        let provider = SdkTracerProvider::builder()
            .with_span_processor(outlet)
            .with_sampler(sampler)
            .with_resource(resource)
            .build();
        let (tasks, stop) = (Tasks::counted(metrics.clone()), CancellationToken::new());
        tasks.start("spans", spans::carry(spans, collector.clone(), metrics, stop.clone()));
        Ok(Self { collector, interval, provider, tasks, stop, on: on.clone() })
    }
}

/// The reader of shell lines logs every line that it is given, and lines of agents may hold
/// anything.
fn tells_of_frames(module: &str) -> bool {
    module.split("::").next() == Some("brush_parser")
}

/// Starts logging, and making spans if they go anywhere.
fn log(filter: Option<&str>, export: Option<&Export>) {
    let directives = filter.unwrap_or(DEFAULT);
    // A filter that makes no sense must not silence the service.
    let (filter, refused) = match EnvFilter::try_new(directives) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(DEFAULT), Some(error)),
    };
    // Only a second start could fail, and the first one is as good.
    subscriber(filter, export).try_init().ok();
    if let Some(error) = refused {
        tracing::warn!(
            %error,
            "--log or RUST_LOG makes no sense, and {DEFAULT} is used; write a level, as in debug, or TARGET=LEVEL"
        );
    }
}

/// Who takes lines and spans. What nobody wants must be known by its level alone: libraries have a
/// span in every step of a stream, and one that is made and thrown away costs more than the step.
/// Hence the hints, and no layer that is not there: both would have every span made.
fn subscriber(filter: EnvFilter, export: Option<&Export>) -> impl Subscriber + Send + Sync + use<> {
    // Spans of traces are for the collector alone. As nobody else wants them,
    // making one costs nothing where there is none.
    let level = filter.max_level_hint().unwrap_or(LevelFilter::TRACE);
    let is_for_lines = FilterFn::new(|metadata| {
        metadata.target() != trace::TARGET && !metadata.module_path().is_some_and(tells_of_frames)
    });
    let filter = filter.and(is_for_lines.with_max_level_hint(level));
    // A reader of the log that goes away must not take the service with it:
    // reporting a failed write would panic on the same closed stderr.
    let lines = fmt::layer().with_writer(stderr).log_internal_errors(false);
    let lines = match stderr().is_terminal() {
        true => lines.compact().with_filter(filter).boxed(),
        false => lines.json().flatten_event(true).with_ansi(false).with_filter(filter).boxed(),
    };
    let spans = export.map(|export| {
        let is_of_trace = FilterFn::new(|metadata| metadata.is_span() && metadata.target() == trace::TARGET);
        tracing_opentelemetry::layer()
            .with_tracer(export.provider.tracer(env!("CARGO_PKG_NAME")))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false)
            .with_filter(is_of_trace.with_max_level_hint(trace::LEVEL))
            .boxed()
    });
    Registry::default().with(std::iter::once(lines).chain(spans).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_wants_is_known_by_its_level() {
        for (directives, level) in [
            ("info", LevelFilter::INFO),
            ("warn,conductor=debug", LevelFilter::DEBUG),
            ("off", LevelFilter::OFF),
        ] {
            let hint = subscriber(EnvFilter::new(directives), None).max_level_hint();
            assert_eq!(hint, Some(level), "{directives}");
        }
    }
}
