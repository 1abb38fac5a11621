//! The service's own part in letting go of sessions: done by the service if one runs, and in
//! its place if none does.

use std::collections::HashSet;

use uuid::Uuid;

use crate::{
    cli::Global,
    client::{
        Client,
        finding::{Files, Found},
    },
    config::Config,
    erasure::Offline,
    ledger::Settings,
    proto::{EraseSessionsRequest, WithdrawSessionsRequest},
    state::{StateDir, StateError},
};

/// So many ids go into one call.
const IDS: usize = 10_000;

/// Who has the journal and the store.
pub(super) enum Premises {
    /// A service that runs.
    Service(Box<Client>),
    /// We ourselves, and no service starts meanwhile.
    Here(Box<Offline>),
}

impl Premises {
    /// Finds the service of a state directory, or takes its place. From here on the ledger has
    /// every frame that was recorded before.
    pub(super) async fn open(
        global: &Global,
        state: &StateDir,
        config: &Config,
        settings: &Settings,
    ) -> Result<Self, String> {
        let token = match state.read_token() {
            Ok(token) => token,
            Err(StateError::NotRunning { .. } | StateError::NotHeld { .. }) => {
                return Ok(Self::Here(Box::new(Offline::open(state, config, settings).await?)));
            }
            Err(error) => return Err(error.to_string()),
        };
        let url = state.read_endpoint().map_err(|error| error.to_string())?;
        let found = Found::named(url, Some(token), Files::default(), global);
        let client = Client::reach(found).await.map_err(|error| error.message)?;
        let premises = Self::Service(Box::new(client));
        premises.withdraw(&[]).await?;
        Ok(premises)
    }

    /// Hides sessions from everybody; those that somebody has open are the answer.
    pub(super) async fn withdraw(&self, sessions: &[Uuid]) -> Result<Vec<Uuid>, String> {
        let Self::Service(client) = self else { return Ok(Vec::new()) };
        let mut open = Vec::new();
        // Also if there are none: the ledger is waited for.
        let parts = if sessions.is_empty() { vec![sessions] } else { sessions.chunks(IDS).collect() };
        for part in parts {
            let session_ids = part.iter().map(Uuid::to_string).collect();
            let asked = client.history().withdraw_sessions(WithdrawSessionsRequest { session_ids }).await;
            let answer = asked.map_err(|status| client.explain(&status).message)?.into_inner();
            open.extend(answer.open_session_ids.iter().filter_map(|id| id.parse::<Uuid>().ok()));
        }
        Ok(open)
    }

    /// Erases what is left of sessions and other streams. Returns how many records of the
    /// journal had something of it.
    pub(super) async fn finish(&self, sessions: Vec<Uuid>, streams: HashSet<Uuid>) -> Result<u64, String> {
        let client = match self {
            Self::Here(offline) => return offline.finish(sessions, streams).await,
            Self::Service(client) => client,
        };
        let texts = |ids: &[Uuid]| ids.iter().map(Uuid::to_string).collect::<Vec<_>>();
        let streams: Vec<_> = streams.into_iter().collect();
        let (mut session_parts, mut stream_parts) = (sessions.chunks(IDS), streams.chunks(IDS));
        let mut erased = 0;
        loop {
            let (session_part, stream_part) = (session_parts.next(), stream_parts.next());
            if session_part.is_none() && stream_part.is_none() {
                return Ok(erased);
            }
            let request = EraseSessionsRequest {
                session_ids: texts(session_part.unwrap_or_default()),
                stream_ids: texts(stream_part.unwrap_or_default()),
            };
            let refused = |status: tonic::Status| client.explain(&status).message;
            let mut answer = client.history().erase_sessions(request).await.map_err(refused)?.into_inner();
            while let Some(done) = answer.message().await.map_err(refused)? {
                erased += done.journal_records;
            }
        }
    }

    /// Lets go of the state directory, if it was taken.
    pub(super) async fn close(self) {
        if let Self::Here(offline) = self {
            offline.close().await;
        }
    }
}
