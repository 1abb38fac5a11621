//! A collector that speaks OTLP over gRPC: one connection, made when it is first
//! needed and again when it breaks; one deadline for every message.

use opentelemetry_proto::{
    tonic::{
        collector::{
            metrics::v1::{ExportMetricsServiceRequest, metrics_service_client::MetricsServiceClient},
            trace::v1::{ExportTraceServiceRequest, trace_service_client::TraceServiceClient},
        },
        common::v1::InstrumentationScope,
        metrics::v1::{Metric, ResourceMetrics, ScopeMetrics},
        resource::v1::Resource as SentResource,
    },
    transform::{
        common::tonic::ResourceAttributesWithSchema, trace::tonic::group_spans_by_resource_and_scope,
    },
};
use opentelemetry_sdk::{Resource, trace::SpanData};
use tonic::{
    Request, Status,
    metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap},
    transport::{Channel, ClientTlsConfig, Endpoint},
};

use super::settings::Settings;

/// The handle.
#[derive(Clone)]
pub(super) struct Collector {
    channel: Channel,
    /// What goes with every message; secrets are among it, so it is never shown.
    headers: MetadataMap,
    resource: std::sync::Arc<ResourceAttributesWithSchema>,
}

impl Collector {
    /// One that is not connected yet. Must be made where a runtime is.
    pub(super) fn new(settings: Settings, resource: &Resource) -> Result<Self, String> {
        let Settings { endpoint, headers, timeout, .. } = settings;
        let is_tls = endpoint.starts_with("https:");
        let mut endpoint = Endpoint::from_shared(endpoint)
            .map_err(|error| format!("telemetry.otlp_endpoint is no URL: {error}"))?;
        if is_tls {
            // Whom this host trusts is whom we trust; SSL_CERT_FILE names others.
            endpoint = endpoint
                .tls_config(ClientTlsConfig::new().with_native_roots())
                .map_err(|error| format!("the collector cannot be spoken to over TLS: {error}"))?;
        }
        let mut all = MetadataMap::new();
        for (name, value) in headers {
            // The value is a secret as a rule, and not repeated.
            let key = AsciiMetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes())
                .map_err(|_| format!("`{}` is no name of a header for the collector", name.escape_debug()))?;
            let mut value = AsciiMetadataValue::try_from(value).map_err(|_| {
                format!("the value of the collector's header `{key}` has characters that none has")
            })?;
            value.set_sensitive(true);
            all.insert(key, value);
        }
        let channel = endpoint.connect_timeout(timeout).timeout(timeout).connect_lazy();
        Ok(Self { channel, headers: all, resource: std::sync::Arc::new(resource.into()) })
    }

    /// Hands spans over.
    pub(super) async fn spans(&self, spans: Vec<SpanData>) -> Result<(), String> {
        let resource_spans = group_spans_by_resource_and_scope(spans, &self.resource);
        let request = self.request(ExportTraceServiceRequest { resource_spans });
        let sent = TraceServiceClient::new(self.channel.clone()).export(request).await;
        sent.map(|_| ()).map_err(|status| why(&status))
    }

    /// Hands numbers over.
    pub(super) async fn metrics(&self, metrics: Vec<Metric>) -> Result<(), String> {
        let resource =
            SentResource { attributes: self.resource.attributes.0.clone(), ..SentResource::default() };
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope = ScopeMetrics { scope: Some(scope), metrics, schema_url: String::new() };
        let resource_metrics = vec![ResourceMetrics {
            resource: Some(resource),
            scope_metrics: vec![scope],
            schema_url: String::new(),
        }];
        let request = self.request(ExportMetricsServiceRequest { resource_metrics });
        let sent = MetricsServiceClient::new(self.channel.clone()).export(request).await;
        sent.map(|_| ()).map_err(|status| why(&status))
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.headers.clone();
        request
    }
}

/// Why it did not take something, for the log.
fn why(status: &Status) -> String {
    let text: String = status.message().chars().filter(|c| !c.is_control()).take(200).collect();
    format!("{}: {text}", status.code())
}
