//! An OpenTelemetry collector of a test's own: a real OTLP receiver that keeps
//! what it is sent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::{
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    metrics::v1::Metric,
    trace::v1::Span,
};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Response, Status,
    metadata::MetadataMap,
    transport::{Identity, Server, ServerTlsConfig},
};

use crate::{editor::DEADLINE, harness::poll_until};

/// What was received.
#[derive(Debug, Default)]
struct Kept {
    spans: Vec<Span>,
    metrics: Vec<Metric>,
    headers: MetadataMap,
    resources: String,
}

/// A running collector.
pub struct Collector {
    address: SocketAddr,
    is_tls: bool,
    kept: Arc<Mutex<Kept>>,
    _runtime: Runtime,
}

#[derive(Clone)]
struct Receiver(Arc<Mutex<Kept>>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut kept = self.0.lock().unwrap();
        kept.headers = request.metadata().clone();
        for resource in request.into_inner().resource_spans {
            kept.resources = format!("{:?}", resource.resource);
            kept.spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Receiver {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let resources = request.into_inner().resource_metrics.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_metrics);
        self.0.lock().unwrap().metrics = scopes.flat_map(|scope| scope.metrics).collect();
        Ok(Response::new(Default::default()))
    }
}

impl Default for Collector {
    fn default() -> Self {
        Self::new()
    }
}

impl Collector {
    /// Starts one on a free port.
    pub fn new() -> Self {
        Self::start(None)
    }

    /// The same over TLS, with a certificate for `localhost` that is its own authority;
    /// it is put into this file.
    pub fn over_tls(certificate: &Path) -> Self {
        let key = certificate.with_extension("key");
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(certificate)
            .output()
            .expect("the tests need openssl");
        assert!(made.status.success(), "{made:?}");
        let identity = Identity::from_pem(fs::read(certificate).unwrap(), fs::read(&key).unwrap());
        Self::start(Some(ServerTlsConfig::new().identity(identity)))
    }

    fn start(tls: Option<ServerTlsConfig>) -> Self {
        let is_tls = tls.is_some();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let kept = Arc::<Mutex<Kept>>::default();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let receiver = Receiver(kept.clone());
        let mut server = Server::builder();
        if let Some(tls) = tls {
            server = server.tls_config(tls).unwrap();
        }
        let server = server
            .add_service(TraceServiceServer::new(receiver.clone()))
            .add_service(MetricsServiceServer::new(receiver));
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, is_tls, kept, _runtime: runtime }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        match self.is_tls {
            true => format!("https://localhost:{}", self.address.port()),
            false => format!("http://{}", self.address),
        }
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.kept.lock().unwrap().spans.clone()
    }

    /// Waits for a span that fits.
    pub fn wait_span(&self, what: &str, fits: impl Fn(&Span) -> bool) -> Span {
        let mut found = None;
        poll_until(DEADLINE, || {
            found = self.spans().into_iter().find(&fits);
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("no span {what} among {:#?}", self.spans()))
    }

    /// The metrics that came last.
    pub fn metrics(&self) -> Vec<Metric> {
        self.kept.lock().unwrap().metrics.clone()
    }

    /// A header of the last message with spans.
    pub fn header(&self, name: &str) -> Option<String> {
        let kept = self.kept.lock().unwrap();
        kept.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    }

    /// Everything that was received, as text, to look for what must not be in it.
    pub fn everything(&self) -> String {
        let kept = self.kept.lock().unwrap();
        format!("{:?}\n{:?}\n{}", kept.spans, kept.metrics, kept.resources)
    }
}

/// An id as people write it.
pub fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
