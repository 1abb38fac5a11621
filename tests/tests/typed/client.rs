//! A client of the typed service.

use conductor::proto::{
    AnswerPermissionRequest, CancelRequest, CloseSessionRequest, CreateSessionRequest, Event, ListRequest,
    ListedSession, ObserveRequest, PromptRequest, event::Kind, sessions_client::SessionsClient,
};
use conductor_tests::{
    harness::Service,
    people::{Person, channel, owner},
    shipping::PATIENCE,
};
use serde_json::Value;
use tokio::time::timeout;
use tonic::{Request, Status, Streaming, transport::Channel};

/// Larger than any event.
const MOST: usize = 64 << 20;

/// A client with its token.
#[derive(Clone)]
pub struct Typed {
    pub calls: SessionsClient<Channel>,
    person: Person,
}

impl Typed {
    /// The user that the service runs as.
    pub async fn new(service: &Service) -> Self {
        Self::of(service, owner(service)).await
    }

    /// Someone else, with a token of their own.
    pub async fn named(service: &Service, user: &str) -> Self {
        Self::of(service, Person::named(service, user)).await
    }

    async fn of(service: &Service, person: Person) -> Self {
        let calls = SessionsClient::new(channel(service).await).max_decoding_message_size(MOST);
        Self { calls, person }
    }

    pub fn with<T>(&self, message: T) -> Request<T> {
        self.person.request(message)
    }

    /// A new session of the default agent.
    pub async fn create(&mut self, service: &Service) -> String {
        let cwd = service.work().to_str().unwrap().to_owned();
        let request = CreateSessionRequest { cwd, ..Default::default() };
        self.calls.create(self.with(request)).await.unwrap().into_inner().session_id
    }

    pub async fn prompt(&mut self, session: &str, text: &str) -> Events {
        self.try_prompt(session, text).await.unwrap()
    }

    pub async fn try_prompt(&mut self, session: &str, text: &str) -> Result<Events, Status> {
        let request =
            PromptRequest { session_id: session.to_owned(), text: text.to_owned(), ..Default::default() };
        let stream = self.calls.prompt(self.with(request)).await?.into_inner();
        Ok(Events { stream, seen: Vec::new() })
    }

    /// A prompt that the fake agent runs as steps.
    pub async fn prompt_do(&mut self, session: &str, steps: &Value) -> Events {
        self.prompt(session, &serde_json::json!({ "do": steps }).to_string()).await
    }

    pub async fn observe(&mut self, session: &str, from_seq: u64) -> Events {
        let request = ObserveRequest { session_id: session.to_owned(), from_seq, history_only: false };
        let stream = self.calls.observe(self.with(request)).await.unwrap().into_inner();
        Events { stream, seen: Vec::new() }
    }

    /// All that is on record from a number on.
    pub async fn history(&mut self, session: &str, from_seq: u64) -> Vec<Event> {
        let request = ObserveRequest { session_id: session.to_owned(), from_seq, history_only: true };
        let stream = self.calls.observe(self.with(request)).await.unwrap().into_inner();
        Events { stream, seen: Vec::new() }.rest().await.unwrap()
    }

    pub async fn cancel(&mut self, session: &str) {
        self.calls.cancel(self.with(CancelRequest { session_id: session.to_owned() })).await.unwrap();
    }

    pub async fn answer(&mut self, session: &str, request: u64, option: &str) -> Result<(), Status> {
        let answer =
            AnswerPermissionRequest { session_id: session.to_owned(), request, option_id: option.to_owned() };
        self.calls.answer_permission(self.with(answer)).await.map(|_| ())
    }

    pub async fn list(&mut self) -> Vec<ListedSession> {
        self.calls.list(self.with(ListRequest::default())).await.unwrap().into_inner().sessions
    }

    pub async fn close(&mut self, session: &str) {
        self.calls.close(self.with(CloseSessionRequest { session_id: session.to_owned() })).await.unwrap();
    }
}

/// A stream of events.
pub struct Events {
    stream: Streaming<Event>,
    pub seen: Vec<Event>,
}

impl Events {
    /// The next event; nothing at the end.
    pub async fn next(&mut self) -> Result<Option<Event>, Status> {
        let next = timeout(PATIENCE, self.stream.message()).await;
        let next = next.unwrap_or_else(|_| panic!("nothing came any more; seen: {:?}", names(&self.seen)))?;
        self.seen.extend(next.clone());
        Ok(next)
    }

    /// The first event from here on that something can be found in.
    pub async fn find<T>(&mut self, what: &str, mut find: impl FnMut(&Kind) -> Option<T>) -> T {
        while let Some(event) = self.next().await.unwrap_or_else(|status| panic!("{what}: {status}")) {
            if let Some(found) = event.kind.as_ref().and_then(&mut find) {
                return found;
            }
        }
        panic!("{what} never came; seen: {:?}", names(&self.seen));
    }

    /// All events up to the end of the stream.
    pub async fn rest(&mut self) -> Result<Vec<Event>, Status> {
        let mut rest = Vec::new();
        while let Some(event) = self.next().await? {
            rest.push(event);
        }
        Ok(rest)
    }

    /// How the turn ended: its stop reason, or its error.
    pub async fn end(&mut self) -> String {
        let end = self.find("the end of the turn", |kind| match kind {
            Kind::TurnEnded(end) => Some(end.clone()),
            _ => None,
        });
        let end = end.await;
        if end.error.is_empty() { end.stop_reason } else { end.error }
    }
}

/// What the agent said.
pub fn said(events: &[Event]) -> String {
    use conductor::proto::content_block::Kind::Text;
    let chunk = |event: &Event| match event.kind.as_ref()? {
        Kind::AgentMessage(chunk) => match chunk.content.as_ref()?.kind.as_ref()? {
            Text(text) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    };
    events.iter().filter_map(chunk).collect()
}

/// The events by the names of their kinds.
pub fn names(events: &[Event]) -> Vec<String> {
    let name = |event: &Event| {
        let kind = format!("{:?}", event.kind.as_ref().unwrap());
        kind.split('(').next().unwrap().to_owned()
    };
    events.iter().map(name).collect()
}
