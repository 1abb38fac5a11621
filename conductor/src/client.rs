//! The way from a program on someone's laptop to the service: finding it,
//! presenting the token, opening the tunnel.

use std::{error::Error as _, ffi::OsString, path::Path, time::Duration};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use crate::{
    cli::{ChoiceArgs, EndpointArgs, Global},
    grpc::{CONNECTION_WINDOW, HTTP2_FRAME, MAX_HISTORY_MESSAGE, MAX_MESSAGE, STREAM_WINDOW},
    proto::{
        ConnectRequest, ConnectResponse, Hello, Welcome, acp_client::AcpClient, agents_client::AgentsClient,
        connect_request, connect_response, history_client::HistoryClient, sessions_client::SessionsClient,
        sharing_client::SharingClient, tokens_client::TokensClient,
    },
    state::{StateDir, StateError, Token},
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

/// Presents the token.
#[derive(Clone)]
pub struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

/// Where the service is and how to be let in.
#[derive(Clone)]
pub struct Client {
    /// Its address, for messages.
    pub endpoint: String,
    channel: Authorized,
}

impl Client {
    /// Finds the service by flags, environment and state directory, and
    /// connects to it.
    pub async fn connect(global: &Global, endpoint: &EndpointArgs) -> Result<Self, Unreachable> {
        let (url, token) = find(global, endpoint)?;
        let mut bearer: MetadataValue<Ascii> = format!("Bearer {}", token.expose())
            .parse()
            .map_err(|_| Unreachable::new("the token has characters that no token has"))?;
        bearer.set_sensitive(true);
        let channel = Endpoint::from_shared(url.clone())
            .map_err(|error| Unreachable::new(format!("`{url}` is no address of a service: {error}")))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .max_frame_size(HTTP2_FRAME)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .connect()
            .await
            .map_err(|error| {
                Unreachable::passing(format!(
                    "no conductor answers at {url} ({}); start one with `conductor serve`, \
                     or name another with --endpoint",
                    root_cause(&error)
                ))
            })?;
        Ok(Self { endpoint: url, channel: InterceptedService::new(channel, Bearer(bearer)) })
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

    /// What sessions did.
    pub fn history(&self) -> HistoryClient<Authorized> {
        HistoryClient::new(self.channel.clone()).max_decoding_message_size(MAX_HISTORY_MESSAGE)
    }

    /// The sessions that are open.
    pub fn sessions(&self) -> SessionsClient<Authorized> {
        SessionsClient::new(self.channel.clone())
    }

    /// Who else may see sessions.
    pub fn sharing(&self) -> SharingClient<Authorized> {
        SharingClient::new(self.channel.clone())
    }

    /// Who else may use the service.
    pub fn tokens(&self) -> TokensClient<Authorized> {
        TokensClient::new(self.channel.clone())
    }

    /// Turns a refused call into words.
    pub fn explain(&self, status: &Status) -> Unreachable {
        let text = status.message();
        // A status that the service sent has no source: this one was made
        // here, because the connection broke.
        if let Some(source) = status.source() {
            let cause = root_cause(source);
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
            Code::Unauthenticated => format!("{} refused the token: {text}", self.endpoint),
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

fn find(global: &Global, endpoint: &EndpointArgs) -> Result<(String, Token), Unreachable> {
    // A service that starts again leaves no endpoint for a while.
    let say = |error: &dyn std::error::Error| Unreachable::passing(error.to_string());
    let state = StateDir::resolve(global.state_dir.clone(), std::env::var_os).map_err(|e| say(&e))?;
    let url = match &endpoint.endpoint {
        Some(url) if url.contains("://") => url.clone(),
        Some(address) => format!("http://{address}"),
        None => state.read_endpoint().map_err(|e| say(&e))?,
    };
    let remedy = "unset it to use the state directory's, or copy the service's token again";
    let token = match std::env::var_os("CONDUCTOR_TOKEN").map(OsString::into_string) {
        Some(Ok(text)) => {
            Token::parse(&text).map_err(|e| Unreachable::new(format!("CONDUCTOR_TOKEN {e}; {remedy}")))?
        }
        Some(Err(_)) => return Err(Unreachable::new(format!("CONDUCTOR_TOKEN is not text; {remedy}"))),
        None => match state.read_token() {
            // Whether a service runs there is beside the point.
            Err(StateError::NotRunning { path }) if endpoint.endpoint.is_some() => {
                return Err(Unreachable::new(format!(
                    "there is no token for {url} in the state directory {}; set CONDUCTOR_TOKEN to the one that \
                     stands in the file `token` of that service's state directory",
                    path.display()
                )));
            }
            token => token.map_err(|e| say(&e))?,
        },
    };
    Ok((url, token))
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
