//! The metrics as OTLP has them, sent every now and then.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum, metric,
        number_data_point,
    },
};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::collector::Collector;
use crate::metrics::{Branch, Family, Kind, Metrics, Sample, Spread, Value};

/// Sends the numbers until `stop`, and then once more.
pub(super) async fn report(
    families: impl Fn() -> Vec<Family>,
    collector: Collector,
    every: Duration,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let began = now();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_down = false;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => {}
        }
        let numbers = families().into_iter().map(|family| told(family, began)).collect();
        match collector.metrics(numbers).await {
            Ok(()) => is_down = false,
            Err(why) => {
                metrics.best_effort(Branch::MetricsNotSent);
                if !std::mem::replace(&mut is_down, true) {
                    warn!(why, "the collector does not take metrics; they are sent again when they are due");
                }
            }
        }
        if stop.is_cancelled() {
            return;
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn told(family: Family, began: u64) -> Metric {
    let Family { name, help, kind, samples } = family;
    let temporality = AggregationTemporality::Cumulative as i32;
    let data = match kind {
        Kind::Gauge => metric::Data::Gauge(Gauge { data_points: points(samples, began) }),
        Kind::Counter => metric::Data::Sum(Sum {
            data_points: points(samples, began),
            aggregation_temporality: temporality,
            is_monotonic: true,
        }),
        Kind::Histogram => metric::Data::Histogram(Histogram {
            data_points: samples.into_iter().filter_map(|sample| spread(sample, began)).collect(),
            aggregation_temporality: temporality,
        }),
    };
    let unit = if name.ends_with("_seconds") { "s" } else { "" };
    Metric {
        name: name.to_owned(),
        description: help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn points(samples: Vec<Sample>, began: u64) -> Vec<NumberDataPoint> {
    let point = |sample: Sample| match sample.value {
        Value::Number(number) => Some(NumberDataPoint {
            attributes: attributes(sample.labels),
            start_time_unix_nano: began,
            time_unix_nano: now(),
            value: Some(number_data_point::Value::AsDouble(number)),
            ..NumberDataPoint::default()
        }),
        Value::Spread(_) => None,
    };
    samples.into_iter().filter_map(point).collect()
}

fn spread(sample: Sample, began: u64) -> Option<HistogramDataPoint> {
    let Value::Spread(spread) = sample.value else { return None };
    let count = spread.count();
    let Spread { bounds, counts, sum } = spread;
    Some(HistogramDataPoint {
        attributes: attributes(sample.labels),
        start_time_unix_nano: began,
        time_unix_nano: now(),
        count,
        sum: Some(sum),
        bucket_counts: counts,
        explicit_bounds: bounds,
        ..HistogramDataPoint::default()
    })
}

fn attributes(labels: Vec<(&'static str, String)>) -> Vec<KeyValue> {
    let attribute = |(key, value): (&str, String)| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(value)) }),
        ..KeyValue::default()
    };
    labels.into_iter().map(attribute).collect()
}
