//! The way from a program on someone's laptop to the service: finding it,
//! shaking hands, presenting the token, opening the tunnel.

pub(crate) mod finding;
mod wire;

use std::{error::Error as _, path::Path, time::Duration};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use self::{finding::Found, wire::Wire};
use crate::{
    cli::{ChoiceArgs, EndpointArgs, Global},
    grpc::{CONNECTION_WINDOW, HTTP2_FRAME, MAX_HISTORY_MESSAGE, MAX_MESSAGE, STREAM_WINDOW},
    proto::{
        ConnectRequest, ConnectResponse, Hello, Welcome, acp_client::AcpClient, agents_client::AgentsClient,
        approvals_client::ApprovalsClient, connect_request, connect_response, grants_client::GrantsClient,
        history_client::HistoryClient, identity_client::IdentityClient, limits_client::LimitsClient,
        sessions_client::SessionsClient, sharing_client::SharingClient, tokens_client::TokensClient,
    },
    tls::{self, words::Failure},
};

/// How long the service may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A service that vanished without a word is noticed within the sum of these.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages that may wait to be sent; whoever produces more waits.
const OUTGOING: usize = 16;

/// Why the service cannot be used, with what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Unreachable {
    /// Cause and remedy.
    pub message: String,
    /// It may be there again in a while.
    pub passing: bool,
}

impl Unreachable {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), passing: false }
    }

    fn passing(message: impl Into<String>) -> Self {
        Self { message: message.into(), passing: true }
    }
}

/// What becomes of the connection when the tunnel breaks.
#[derive(Debug, Clone, Copy)]
pub enum Carry<'a> {
    /// It ends.
    Once,
    /// It can be carried on.
    New,
    /// This one is to be carried on.
    On(&'a Former),
}

/// A connection that can be carried on by another tunnel.
#[derive(Debug, Clone)]
pub struct Former {
    /// Its id.
    pub connection_id: String,
    /// What proves that it is ours.
    pub resume_key: String,
    /// The last frame that was taken from it.
    pub last_seq: u64,
}

/// A channel that presents the token with every call.
pub type Authorized = InterceptedService<Channel, Bearer>;

/// Presents the token, if there is one: a certificate may stand for it.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Where the service is and how to be let in.
#[derive(Clone)]
pub struct Client {
    /// Its address, for messages.
    pub endpoint: String,
    /// Whether a token is what it lets us in by.
    has_token: bool,
    channel: Authorized,
}

impl Client {
    /// Finds the service by flags, environment, logins and state directory, and
    /// connects to it.
    pub async fn connect(global: &Global, endpoint: &EndpointArgs) -> Result<Self, Unreachable> {
        Self::reach(Found::new(global, endpoint)?).await
    }

    /// Connects to a service that was found.
    pub(crate) async fn reach(found: Found) -> Result<Self, Unreachable> {
        let mut bearer = None;
        if let Some(token) = &found.token {
            let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.expose())
                .parse()
                .map_err(|_| Unreachable::new("the token has characters that no token has"))?;
            value.set_sensitive(true);
            bearer = Some(value);
        }
        let outward = found.outward()?;
        let url = found.url;
        let no_address = |error: &dyn std::error::Error| {
            Unreachable::new(format!("`{url}` is no address of a service: {error}"))
        };
        // TLS is ours to do, so the channel is given an address without.
        let endpoint = Endpoint::from_shared(url.replacen("https://", "http://", 1))
            .map_err(|error| no_address(&error))?
            .origin(url.parse().map_err(|error| no_address(&error))?)
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .max_frame_size(HTTP2_FRAME)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let channel = match outward {
            Some(outward) => endpoint.connect_with_connector(Wire { outward }).await,
            None => endpoint.connect().await,
        };
        let channel = channel.map_err(|error| match Failure::find(&error) {
            Some(failure) => Unreachable { message: failure.explain(&url), passing: failure.is_passing() },
            None => {
                let remedy = match tls::is_elsewhere(&url) {
                    true => {
                        "see that the address is right, that it runs there, and that no firewall is between"
                    }
                    false => "start one with `conductor serve`, or name another with --endpoint",
                };
                Unreachable::passing(format!(
                    "no conductor answers at {url} ({}); {remedy}",
                    root_cause(&error)
                ))
            }
        })?;
        let has_token = bearer.is_some();
        Ok(Self { endpoint: url, has_token, channel: InterceptedService::new(channel, Bearer(bearer)) })
    }

    /// Opens an ACP tunnel for a program that is likely to work in `cwd`.
    pub async fn tunnel(
        &self,
        choice: &ChoiceArgs,
        client: &str,
        cwd: &Path,
        carry: Carry<'_>,
    ) -> Result<Tunnel, Unreachable> {
        let cwd = cwd.display().to_string();
        let hello = Hello {
            client: format!("{client}/{}", env!("CARGO_PKG_VERSION")),
            agent: choice.agent.clone().unwrap_or_default(),
            model: choice.model.clone().unwrap_or_default(),
            mode: choice.mode.clone().unwrap_or_default(),
            cwd,
            resumable: !matches!(carry, Carry::Once),
            ..Hello::default()
        };
        let hello = match carry {
            Carry::Once | Carry::New => hello,
            Carry::On(Former { connection_id, resume_key, last_seq }) => Hello {
                connection_id: connection_id.clone(),
                resume_key: resume_key.clone(),
                last_seq: *last_seq,
                ..hello
            },
        };
        let (outgoing, queued) = mpsc::channel(OUTGOING);
        let hello = ConnectRequest { kind: Some(connect_request::Kind::Hello(hello)) };
        outgoing.try_send(hello).map_err(|_| Unreachable::new("the tunnel closed at once"))?;
        let mut acp = AcpClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        let answer =
            acp.connect(ReceiverStream::new(queued)).await.map_err(|status| self.explain(&status))?;
        let mut incoming = answer.into_inner();
        let welcome = match incoming.message().await.map_err(|status| self.explain(&status))? {
            Some(ConnectResponse { kind: Some(connect_response::Kind::Welcome(welcome)) }) => welcome,
            _ => {
                return Err(Unreachable::new(format!(
                    "{} does not speak the conductor's protocol",
                    self.endpoint
                )));
            }
        };
        Ok(Tunnel { outgoing, incoming, welcome })
    }

    /// The service's agents.
    pub fn agents(&self) -> AgentsClient<Authorized> {
        AgentsClient::new(self.channel.clone())
    }

    /// What waits for people.
    pub fn approvals(&self) -> ApprovalsClient<Authorized> {
        ApprovalsClient::new(self.channel.clone()).max_decoding_message_size(MAX_HISTORY_MESSAGE)
    }

    /// What sessions did.
    pub fn history(&self) -> HistoryClient<Authorized> {
        HistoryClient::new(self.channel.clone()).max_decoding_message_size(MAX_HISTORY_MESSAGE)
    }

    /// Who the caller is.
    pub fn identity(&self) -> IdentityClient<Authorized> {
        IdentityClient::new(self.channel.clone())
    }

    /// The sessions that are open.
    pub fn sessions(&self) -> SessionsClient<Authorized> {
        SessionsClient::new(self.channel.clone())
    }

    /// Who else may see sessions.
    pub fn sharing(&self) -> SharingClient<Authorized> {
        SharingClient::new(self.channel.clone())
    }

    /// Which answers are remembered.
    pub fn grants(&self) -> GrantsClient<Authorized> {
        GrantsClient::new(self.channel.clone()).max_decoding_message_size(MAX_HISTORY_MESSAGE)
    }

    /// Who else may use the service.
    pub fn tokens(&self) -> TokensClient<Authorized> {
        TokensClient::new(self.channel.clone())
    }

    /// What users and teams have used.
    pub fn limits(&self) -> LimitsClient<Authorized> {
        LimitsClient::new(self.channel.clone())
    }

    /// Turns a refused call into words.
    pub fn explain(&self, status: &Status) -> Unreachable {
        let text = status.message();
        // A status that the service sent has no source: this one was made
        // here, because the connection broke.
        if let Some(source) = status.source() {
            // With TLS 1.3 a client hears only now that its certificate is not taken.
            if let Some(failure) = Failure::find(source) {
                return Unreachable {
                    message: failure.explain(&self.endpoint),
                    passing: failure.is_passing(),
                };
            }
            let cause = root_cause(source);
            // An alert of TLS, read as HTTP/2.
            if self.endpoint.starts_with("http://") && cause.contains("frame with invalid size") {
                return Unreachable::new(format!(
                    "{} speaks TLS; write https:// instead of http://",
                    self.endpoint
                ));
            }
            return Unreachable::passing(format!(
                "lost the conductor at {}: {cause}; see whether it still runs, and try again",
                self.endpoint
            ));
        }
        let passing = matches!(
            status.code(),
            Code::Unknown
                | Code::Cancelled
                | Code::Internal
                | Code::Unavailable
                | Code::Aborted
                | Code::DeadlineExceeded
                // Found here: what came is not what was sent. It can be sent again.
                | Code::DataLoss
        );
        let message = match status.code() {
            Code::Unauthenticated => {
                let what = if self.has_token { "token" } else { "certificate" };
                format!("{} refused the {what}: {text}", self.endpoint)
            }
            Code::Unknown | Code::Cancelled | Code::Internal => {
                format!("lost the conductor at {}; is it still running? ({text})", self.endpoint)
            }
            Code::Unavailable | Code::DataLoss => format!("lost the conductor at {}: {text}", self.endpoint),
            Code::Unimplemented => {
                format!("{} does not know this call; it may be another version of conductor", self.endpoint)
            }
            _ => text.to_string(),
        };
        Unreachable { message, passing }
    }
}

/// An open ACP tunnel.
pub struct Tunnel {
    /// What goes to the service.
    pub outgoing: mpsc::Sender<ConnectRequest>,
    /// What comes from it.
    pub incoming: Streaming<ConnectResponse>,
    /// What the service said first.
    pub welcome: Welcome,
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
