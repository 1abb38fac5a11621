//! Numbers as Prometheus reads them (text format, version 0.0.4).

use std::fmt::Write as _;

use super::{Family, Kind, Sample, Value};

/// What the text is.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All families, one after the other.
pub fn as_text(families: &[Family]) -> String {
    let mut out = String::with_capacity(16 << 10);
    for family in families {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {0} {1}\n# TYPE {0} {kind}", family.name, family.help);
        for sample in &family.samples {
            put(&mut out, family.name, sample);
        }
    }
    out
}

fn put(out: &mut String, name: &str, sample: &Sample) {
    match &sample.value {
        Value::Number(number) => line(out, name, "", &sample.labels, None, *number),
        Value::Spread(spread) => {
            let mut count = 0;
            for (place, more) in spread.counts.iter().enumerate() {
                count += more;
                let bound = spread.bounds.get(place).map_or_else(|| "+Inf".to_owned(), f64::to_string);
                line(out, name, "_bucket", &sample.labels, Some(&bound), count as f64);
            }
            line(out, name, "_sum", &sample.labels, None, spread.sum);
            line(out, name, "_count", &sample.labels, None, count as f64);
        }
    }
}

fn line(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &[(&'static str, String)],
    bound: Option<&str>,
    value: f64,
) {
    let _ = write!(out, "{name}{suffix}");
    let own = labels.iter().map(|(label, value)| (*label, value.as_str()));
    let mut before = '{';
    for (label, value) in own.chain(bound.map(|bound| ("le", bound))) {
        let _ = write!(out, "{before}{label}=\"{}\"", escaped(value));
        before = ',';
    }
    let end = if before == ',' { "}" } else { "" };
    let _ = writeln!(out, "{end} {value}");
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Histogram;

    #[test]
    fn it_is_the_format_that_prometheus_reads() {
        let histogram = Histogram::new(&[1_000, 1_000_000]);
        histogram.took_us(500);
        histogram.took_us(2_000_000);
        let families = [
            Family {
                name: "x_total",
                help: "What x is.",
                kind: Kind::Counter,
                samples: vec![Sample {
                    labels: vec![("agent", "a\"\\\n".into()), ("state", "b".into())],
                    value: Value::Number(3.0),
                }],
            },
            Family {
                name: "y_seconds",
                help: "What y is.",
                kind: Kind::Histogram,
                samples: vec![Sample { labels: Vec::new(), value: Value::Spread(histogram.spread()) }],
            },
        ];
        let expected = "# HELP x_total What x is.\n# TYPE x_total counter\n\
            x_total{agent=\"a\\\"\\\\\\n\",state=\"b\"} 3\n\
            # HELP y_seconds What y is.\n# TYPE y_seconds histogram\n\
            y_seconds_bucket{le=\"0.001\"} 1\ny_seconds_bucket{le=\"1\"} 1\ny_seconds_bucket{le=\"+Inf\"} 2\n\
            y_seconds_sum 2.0005\ny_seconds_count 2\n";
        assert_eq!(as_text(&families), expected);
    }
}
