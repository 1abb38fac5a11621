//! `grpc.health.v1`: whether sessions should be sent here. From the moment the
//! service drains it says no, so that whoever watches sends them elsewhere.

use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};

use super::rights;

/// Every service that can be asked about; the empty name is all of them.
fn services() -> impl Iterator<Item = &'static str> + Send {
    std::iter::once("").chain(rights::services())
}

/// What was told of the services.
pub(super) struct Serving(HealthReporter);

impl Serving {
    /// All of them serve.
    pub(super) async fn begin(health: HealthReporter) -> Self {
        for service in services() {
            health.set_service_status(service, ServingStatus::Serving).await;
        }
        Self(health)
    }

    /// None does once the service drains. When connections end, whoever still
    /// watches is let go, or they would hold up the end.
    pub(super) async fn end(mut self, draining: CancellationToken, closing: CancellationToken) {
        draining.cancelled().await;
        for service in services() {
            self.0.set_service_status(service, ServingStatus::NotServing).await;
        }
        closing.cancelled().await;
        for service in services() {
            self.0.clear_service_status(service).await;
        }
    }
}
