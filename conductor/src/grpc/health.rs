//! `grpc.health.v1`: whether sessions should be sent here. From the moment the
//! service drains it says no, so that whoever watches sends them elsewhere.

use tokio_util::sync::CancellationToken;
use tonic::server::NamedService;
use tonic_health::{ServingStatus, server::HealthReporter};

use super::{agents, history, policy, sessions, sharing, tokens, tunnel};
use crate::proto::{
    acp_server::AcpServer, agents_server::AgentsServer, history_server::HistoryServer,
    policy_server::PolicyServer, sessions_server::SessionsServer, sharing_server::SharingServer,
    tokens_server::TokensServer,
};

/// Every service that can be asked about; the empty name is all of them.
const SERVICES: [&str; 8] = [
    "",
    AcpServer::<tunnel::Tunnel>::NAME,
    AgentsServer::<agents::AgentsService>::NAME,
    HistoryServer::<history::HistoryService>::NAME,
    PolicyServer::<policy::PolicyService>::NAME,
    SessionsServer::<sessions::SessionsService>::NAME,
    SharingServer::<sharing::SharingService>::NAME,
    TokensServer::<tokens::TokensService>::NAME,
];

/// What was told of the services.
pub(super) struct Serving(HealthReporter);

impl Serving {
    /// All of them serve.
    pub(super) async fn begin(health: HealthReporter) -> Self {
        for service in SERVICES {
            health.set_service_status(service, ServingStatus::Serving).await;
        }
        Self(health)
    }

    /// None does once the service drains. When connections end, whoever still
    /// watches is let go, or they would hold up the end.
    pub(super) async fn end(mut self, draining: CancellationToken, closing: CancellationToken) {
        draining.cancelled().await;
        for service in SERVICES {
            self.0.set_service_status(service, ServingStatus::NotServing).await;
        }
        closing.cancelled().await;
        for service in SERVICES {
            self.0.clear_service_status(service).await;
        }
    }
}
