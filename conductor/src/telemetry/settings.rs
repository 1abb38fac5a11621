//! Where the collector is, from `[telemetry]` and the variables that every
//! program with OpenTelemetry knows. Variables win, as everywhere here.

use std::time::Duration;

use crate::{config, fetch};

/// How long a collector may take for one message.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What is sent, and where to. There is no `Debug`: headers are secrets.
pub struct Settings {
    /// The collector's URL.
    pub endpoint: String,
    /// What goes with every message.
    pub headers: Vec<(String, String)>,
    /// What this service is called.
    pub service_name: String,
    /// Which part of the traces is sent, of those that nobody else has begun.
    pub sample_ratio: f64,
    /// How often numbers are sent.
    pub metrics_interval: Duration,
    /// How long a message may take.
    pub timeout: Duration,
}

impl Settings {
    /// The settings; `None` if nothing is to be sent.
    pub fn new(
        config: &config::Telemetry,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let endpoint = given("OTEL_EXPORTER_OTLP_ENDPOINT").unwrap_or_else(|| config.otlp_endpoint.clone());
        let is_disabled = given("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        if endpoint.is_empty() || is_disabled {
            return Ok(None);
        }
        if let Some(other) = given("OTEL_EXPORTER_OTLP_PROTOCOL").filter(|protocol| protocol != "grpc") {
            let other = other.escape_debug();
            return Err(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is `{other}`, and only grpc is spoken; unset it"
            ));
        }
        let mut headers = match &config.headers_file {
            Some(file) => fetch::headers("telemetry.headers_file", file)?,
            None => Vec::new(),
        };
        if let Some(more) = given("OTEL_EXPORTER_OTLP_HEADERS") {
            headers.extend(from_variable(&more)?);
        }
        let millis = |name: &str| match given(name).map(|text| text.parse()) {
            None => Ok(None),
            Some(Ok(ms)) if ms > 0 => Ok(Some(Duration::from_millis(ms))),
            Some(_) => Err(format!("{name} is not a number of milliseconds; correct or unset it")),
        };
        let sample_ratio = match given("OTEL_TRACES_SAMPLER_ARG").map(|text| text.parse()) {
            None => config.sample_ratio,
            Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => ratio,
            Some(_) => {
                return Err("OTEL_TRACES_SAMPLER_ARG is not between 0 and 1; correct or unset it".into());
            }
        };
        Ok(Some(Self {
            endpoint,
            headers,
            service_name: given("OTEL_SERVICE_NAME").unwrap_or_else(|| config.service_name.clone()),
            sample_ratio,
            metrics_interval: millis("OTEL_METRIC_EXPORT_INTERVAL")?.unwrap_or(config.metrics_interval),
            timeout: millis("OTEL_EXPORTER_OTLP_TIMEOUT")?.unwrap_or(TIMEOUT),
        }))
    }
}

/// `name=value,name=value`; values may be percent-encoded.
fn from_variable(text: &str) -> Result<Vec<(String, String)>, String> {
    let wrong = || "OTEL_EXPORTER_OTLP_HEADERS is not of the form NAME=VALUE,NAME=VALUE".to_owned();
    let header = |pair: &str| {
        let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
        Ok((name.trim().to_owned(), decoded(value.trim()).ok_or_else(wrong)?))
    };
    text.split(',').filter(|pair| !pair.trim().is_empty()).map(header).collect()
}

fn decoded(value: &str) -> Option<String> {
    let mut parts = value.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn config() -> config::Telemetry {
        toml::from_str("otlp_endpoint = ''\nservice_name = 'c'\nsample_ratio = 0.5\nmetrics_interval = '60s'")
            .unwrap()
    }

    fn with(variables: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let value = |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, to)| (*to).to_owned());
        Settings::new(&config(), value)
    }

    #[test]
    fn nothing_is_sent_unless_somebody_says_where() {
        assert!(with(&[]).unwrap().is_none());
        assert!(with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().is_none());
        let there = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
        assert!(with(&[there, ("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
        let settings = with(&[there, ("OTEL_SERVICE_NAME", "x"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "250")]);
        let settings = settings.unwrap().unwrap();
        assert_eq!((settings.service_name.as_str(), settings.sample_ratio), ("x", 0.5));
        assert_eq!(settings.timeout, Duration::from_millis(250));
    }

    #[test]
    fn headers_come_from_variables_and_files_and_are_never_repeated() {
        let there = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
        let given = with(&[there, ("OTEL_EXPORTER_OTLP_HEADERS", "a=b%20c, x-y = z")]).unwrap().unwrap();
        assert_eq!(given.headers, [("a".into(), "b c".into()), ("x-y".into(), "z".into())]);
        let refused = with(&[there, ("OTEL_EXPORTER_OTLP_HEADERS", "canary")]).err().unwrap();
        assert!(!refused.contains("canary"), "{refused}");

        let from_file = |file: &std::path::Path| fetch::headers("telemetry.headers_file", file);
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("headers");
        fs::write(&file, "authorization: Bearer canary\n\nx: y:z\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(from_file(&file).unwrap_err().contains("chmod o-r"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(from_file(&file).unwrap()[1], ("x".into(), "y:z".into()));
        fs::write(&file, "canary").unwrap();
        let refused = from_file(&file).unwrap_err();
        assert!(refused.contains(":1: is no header") && !refused.contains("canary"), "{refused}");
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let there = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
            ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ] {
            assert!(with(&[there, (name, value)]).err().unwrap().contains(name), "{name}");
        }
    }
}
