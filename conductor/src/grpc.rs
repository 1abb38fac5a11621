//! gRPC: proto ↔ our types, our ends → `Status`. No decisions are made here.

mod agents;
mod approvals;
mod breakage;
pub mod codec;
mod convert;
mod erasing;
mod events;
mod grants;
mod health;
mod history;
mod identity;
mod incoming;
mod layers;
mod lease;
mod login;
mod looks;
mod patience;
mod policy;
mod reading;
mod rights;
mod searching;
mod sessions;
mod sharing;
mod strangers;
mod tail;
mod tokens;
mod tunnel;
mod limits;

use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tower::ServiceBuilder;

use crate::{
    agent::stdio::READ_BYTES,
    connection::Hub,
    frame::MAX_FRAME,
    identity::door::Door,
    proto::{
        self, acp_server::AcpServer, agents_server::AgentsServer, approvals_server::ApprovalsServer,
        grants_server::GrantsServer, history_server::HistoryServer, identity_server::IdentityServer,
        limits_server::LimitsServer, policy_server::PolicyServer, sessions_server::SessionsServer,
        sharing_server::SharingServer, tokens_server::TokensServer,
    },
    tether::Tethers,
    tls::listener::Listener,
};

/// The largest message: the largest frame, what the same read brings behind
/// it, and room for our session ids, which may be longer than the agent's.
pub const MAX_MESSAGE: usize = MAX_FRAME + 4 * READ_BYTES;

/// The largest message of the history: a tool call holds the input and the
/// output of a tool, and each may have filled a frame.
pub const MAX_HISTORY_MESSAGE: usize = 3 * MAX_MESSAGE;

/// Streams one client connection may have open.
const MAX_STREAMS: u32 = 128;

/// Bytes of headers a call may have.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// Resets a client may have pending before it is cut off.
const MAX_PENDING_RESETS: usize = 32;

/// A peer that vanished without a word is noticed within the sum of these.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Flow-control windows: what may be in flight towards a slow peer.
pub const STREAM_WINDOW: u32 = 1 << 20;
/// The same for a whole connection.
pub const CONNECTION_WINDOW: u32 = 4 << 20;

/// Bytes in one HTTP/2 frame. The default of 16 KiB costs a run of frames
/// several writes.
pub const HTTP2_FRAME: u32 = 256 << 10;

/// Serves until `stop`, then lets calls in flight end.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Listener>,
    hub: Hub,
    tethers: Tethers,
    door: Door,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let most = hub.config.borrow().service.max_connections;
    let (health, health_service) = tonic_health::server::health_reporter();
    let serving = health::Serving::begin(health).await;
    hub.tasks.start("health", serving.end(hub.draining.clone(), hub.closing.clone()));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1();

    let layers = ServiceBuilder::new()
        .layer(layers::Traced)
        .layer(layers::Authenticated::new(
            door.clone(),
            hub.grants.clone(),
            hub.config.clone(),
            hub.metrics.clone(),
        ))
        .layer(rights::Authorised::default())
        .layer(patience::Patient::new(hub.config.clone()))
        .into_inner();
    let mut server = Server::builder()
        .layer(layers)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_frame_size(HTTP2_FRAME)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let tunnel = AcpServer::new(tunnel::Tunnel::new(hub.clone(), tethers))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let agents = AgentsServer::new(agents::AgentsService::new(hub.clone()));
    let approvals = ApprovalsServer::new(approvals::ApprovalsService::new(hub.clone()))
        .max_encoding_message_size(MAX_HISTORY_MESSAGE);
    let history = HistoryServer::new(history::HistoryService::new(hub.clone()))
        .max_encoding_message_size(MAX_HISTORY_MESSAGE);
    let policy = PolicyServer::new(policy::PolicyService::new(hub.clone()));
    let limits = LimitsServer::new(limits::LimitsService::new(hub.router.limits().clone()));
    let grants = GrantsServer::new(grants::GrantsService::new(hub.clone()))
        .max_encoding_message_size(MAX_HISTORY_MESSAGE);
    let sharing = SharingServer::new(sharing::SharingService::new(hub.clone()));
    let metrics = hub.metrics.clone();
    let sessions = SessionsServer::new(sessions::SessionsService::new(hub))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_HISTORY_MESSAGE);
    let mut routes = server
        .add_service(tunnel)
        .add_service(agents)
        .add_service(approvals)
        .add_service(grants)
        .add_service(history)
        .add_service(IdentityServer::new(identity::IdentityService))
        .add_service(policy)
        .add_service(sessions)
        .add_service(sharing)
        .add_service(TokensServer::new(tokens::TokensService::new(door.tokens().clone())))
        .add_service(limits)
        .add_service(health_service);
    match reflection {
        Ok(reflection) => routes = routes.add_service(reflection),
        Err(error) => tracing::warn!(%error, "reflection is not available"),
    }
    let incoming = incoming::incoming(listener, tls, most, metrics);
    routes.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await
}
