//! Where the history comes from: the running service, or its ledger.

use tonic::{Code, Status};
use uuid::Uuid;

use super::dossier::Dossier;
use crate::{
    cli::{Global, HistoryArgs},
    client::{Client, finding::is_chosen},
    commands::{
        finish::say,
        ids::{self, Part, pick},
        ledger::{exists, settings, unreadable},
    },
    config::GivenUrl,
    ledger::{
        LedgerError, Settings,
        history::{Entry, Filter, Frame, History, Page, Session},
        search::{self, Cursor, Hit, SearchError},
    },
    proto::{self, GetSessionRequest, ListSessionsRequest, ReadFramesRequest, SearchRequest},
};

/// Sessions that are asked for at once.
const PAGE: usize = 500;

/// Where the history comes from.
pub(super) enum Source {
    /// A running service.
    Service(Client),
    /// The ledger itself.
    Ledger(Box<Settings>, History),
}

/// What a list of sessions does not have.
pub(super) struct LeftOut {
    /// There are more of them.
    pub(super) is_more: bool,
    /// There may be others, which were not looked at.
    pub(super) is_unseen: bool,
}

impl Source {
    /// The service, unless a ledger is named or no service answers, which is said under the
    /// command's name.
    pub(super) async fn open(global: &Global, args: &HistoryArgs, command: &str) -> Result<Self, String> {
        if args.database_url.is_some() {
            let settings = settings(global, args.database_url.as_ref(), None)?;
            exists(&settings)?;
            return Ok(Self::of(settings));
        }
        let unreachable = match Client::connect(global, &args.endpoint).await {
            Ok(client) => return Ok(Self::Service(client)),
            // Whoever names a service, or has logged in to one, wants that one.
            Err(error) if is_chosen(global, &args.endpoint) => return Err(error.message),
            Err(error) => error.message,
        };
        let given = std::env::var("CONDUCTOR_DATABASE_URL").ok().map(GivenUrl::from);
        let settings = settings(global, given.as_ref(), args.config.as_deref())?;
        exists(&settings).map_err(|none| format!("{unreachable}; and {none}"))?;
        say(command, &format!("no service answers; reading the ledger {}", settings.shown()));
        Ok(Self::of(settings))
    }

    fn of(settings: Settings) -> Self {
        let history = History::new(settings.clone(), None);
        Self::Ledger(Box::new(settings), history)
    }

    /// The id that is meant: itself, its beginning, or `last`.
    pub(super) async fn resolve(&self, given: &str) -> Result<Uuid, String> {
        if let Ok(id) = given.parse() {
            return Ok(id);
        }
        let (filter, most) = match given {
            "last" => (Filter::default(), 1),
            prefix if ids::is_part(prefix) => {
                (Filter { id_prefix: Some(prefix.to_owned()), ..Filter::default() }, ids::CANDIDATES + 1)
            }
            _ => return Err(format!("`{given}` is no session's id; give one, its beginning, or `last`")),
        };
        let (found, _) = self.sessions(filter, most).await?;
        let given_part = if given == "last" { "" } else { given };
        let picked = pick(found.iter().map(|s| s.session_id.as_str()), given_part, Part::Beginning)?;
        let id = picked.ok_or_else(|| match given {
            "last" => "there are no sessions yet".to_owned(),
            _ => format!("no session's id begins with `{given}`; `conductor sessions ls` lists them"),
        })?;
        id.parse().map_err(|_| "an id is none".to_owned())
    }

    /// At most so many sessions, newest first, and what that leaves out.
    pub(super) async fn sessions(
        &self,
        mut filter: Filter,
        most: usize,
    ) -> Result<(Vec<Session>, LeftOut), String> {
        let mut found = Vec::new();
        loop {
            filter.limit = (most - found.len()).min(PAGE);
            let page = self.page(&filter).await?;
            found.extend(page.items);
            if !page.more || found.len() >= most {
                let left_out = LeftOut { is_more: page.more, is_unseen: page.is_cut };
                return Ok((found, left_out));
            }
            filter.after = found.last().and_then(|session| session.session_id.parse().ok());
        }
    }

    async fn page(&self, filter: &Filter) -> Result<Page<Session>, String> {
        match self {
            Self::Ledger(settings, history) => {
                history.sessions(filter).await.map_err(|error| unreadable(settings, &error))
            }
            Self::Service(client) => {
                let text = |value: &Option<String>| value.clone().unwrap_or_default();
                let request = ListSessionsRequest {
                    user: text(&filter.user),
                    agent: text(&filter.agent),
                    model: text(&filter.model),
                    since_us: filter.since_us.unwrap_or_default(),
                    text: text(&filter.text),
                    path: text(&filter.path),
                    id_prefix: text(&filter.id_prefix),
                    page_size: u32::try_from(filter.limit).unwrap_or(u32::MAX),
                    page_token: filter.after.map(|id| id.to_string()).unwrap_or_default(),
                };
                let listed = client.history().list_sessions(request).await;
                let listed = listed.map_err(|status| explain(client, &status))?.into_inner();
                let more = !listed.next_page_token.is_empty();
                let (items, is_cut) = (listed.sessions.into_iter().map(Into::into).collect(), listed.is_cut);
                Ok(Page { items, more, is_cut })
            }
        }
    }

    /// At most so many hits, the best first; whether there are more; and a hint.
    pub(super) async fn search(
        &self,
        text: &str,
        mut filter: search::Filter,
        most: usize,
    ) -> Result<(Vec<Hit>, bool, String), String> {
        let mut found = Vec::new();
        loop {
            filter.limit = (most - found.len()).min(PAGE);
            let (hits, next, hint) = match self {
                Self::Ledger(settings, history) => {
                    let hits = history.search(text, &filter).await.map_err(|error| match &error {
                        SearchError::Refused(..) => error.to_string(),
                        SearchError::Ledger(error) => unreadable(settings, error),
                    })?;
                    (hits.items, hits.next, hits.hint.unwrap_or_default().to_owned())
                }
                Self::Service(client) => {
                    let answer = client.history().search(request(text, &filter)).await;
                    let answer = answer.map_err(|status| explain(client, &status))?.into_inner();
                    let next = Cursor::parse(&answer.next_page_token);
                    (answer.hits.into_iter().map(Into::into).collect(), next, answer.hint)
                }
            };
            found.extend(hits);
            if next.is_none() || found.len() >= most {
                return Ok((found, next.is_some(), hint));
            }
            filter.after = next;
        }
    }

    /// Everything that is known of a session, with the changes it made.
    pub(super) async fn dossier(&self, id: Uuid) -> Result<Dossier, String> {
        let mut dossier = match self {
            Self::Service(client) => from_service(client, id).await?,
            Self::Ledger(settings, history) => {
                let found = from_ledger(history, id).await.map_err(|error| unreadable(settings, &error))?;
                found.ok_or_else(|| {
                    format!(
                        "there is no session {id} in {}; `conductor sessions ls` lists them",
                        settings.shown()
                    )
                })?
            }
        };
        // The tables have the paths; the texts are in the frames.
        let Some(first) = dossier.tool_calls.first().map(|call| call.call) else { return Ok(dossier) };
        let first = u64::try_from(first).unwrap_or_default();
        self.frames(id, first, 0, |frame| {
            dossier.learn_diffs(&frame);
            Ok::<_, String>(())
        })
        .await?;
        Ok(dossier)
    }

    /// The frames of a session in order from a number on, at most so many; 0 for
    /// all.
    pub(super) async fn frames<E: From<String>>(
        &self,
        id: Uuid,
        from_seq: u64,
        limit: u64,
        mut take: impl FnMut(Frame) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Ledger(settings, history) => {
                let mut reading = history.frames(id, from_seq, (limit > 0).then_some(limit), false);
                let mut found = false;
                loop {
                    let frames = reading.next().await.map_err(|error| unreadable(settings, &error))?;
                    if frames.is_empty() {
                        break;
                    }
                    found = true;
                    frames.into_iter().try_for_each(&mut take)?;
                }
                if !found && from_seq <= 1 {
                    return Err(format!("there is no session {id} in {}", settings.shown()).into());
                }
            }
            Self::Service(client) => {
                let request = ReadFramesRequest { stream_id: id.to_string(), from_seq, limit, follow: false };
                let refused = |status: Status| explain(client, &status);
                let mut answer = client.history().read_frames(request).await.map_err(refused)?.into_inner();
                while let Some(some) = answer.message().await.map_err(refused)? {
                    some.frames.into_iter().map(Into::into).try_for_each(&mut take)?;
                }
            }
        }
        Ok(())
    }
}

fn request(text: &str, filter: &search::Filter) -> SearchRequest {
    let some = |value: &Option<String>| value.clone().unwrap_or_default();
    SearchRequest {
        text: text.to_owned(),
        user: some(&filter.user),
        agent: some(&filter.agent),
        repository: some(&filter.repository),
        session_id: filter.session.map(|id| id.to_string()).unwrap_or_default(),
        since_us: filter.since_us.unwrap_or_default(),
        until_us: filter.until_us.unwrap_or_default(),
        kinds: filter.kinds.iter().map(|kind| kind.name().to_owned()).collect(),
        page_size: u32::try_from(filter.limit).unwrap_or(u32::MAX),
        page_token: filter.after.map(|after| after.token()).unwrap_or_default(),
    }
}

async fn from_ledger(history: &History, id: Uuid) -> Result<Option<Dossier>, LedgerError> {
    let Some(session) = history.session(id).await? else { return Ok(None) };
    let mut dossier = Dossier::new(session);
    let mut entries = history.entries(id);
    loop {
        let some = entries.next().await?;
        if some.is_empty() {
            return Ok(Some(dossier));
        }
        some.into_iter().for_each(|entry| dossier.add(entry));
    }
}

async fn from_service(client: &Client, id: Uuid) -> Result<Dossier, String> {
    use proto::get_session_response::Entry as Told;
    let refused = |status: Status| explain(client, &status);
    let request = GetSessionRequest { session_id: id.to_string() };
    let mut answer = client.history().get_session(request).await.map_err(refused)?.into_inner();
    let mut dossier = None;
    while let Some(message) = answer.message().await.map_err(refused)? {
        let entry = match message.entry {
            Some(Told::Session(session)) => {
                dossier = Some(Dossier::new(session.into()));
                continue;
            }
            Some(Told::Turn(turn)) => Entry::Turn(turn.into()),
            Some(Told::Message(message)) => Entry::Message(message.into()),
            Some(Told::ToolCall(call)) => Entry::ToolCall(call.into()),
            Some(Told::FileAccess(access)) => Entry::FileAccess(access.into()),
            Some(Told::Command(command)) => Entry::Command(command.into()),
            Some(Told::Usage(usage)) => Entry::Usage(usage.into()),
            Some(Told::Decision(decision)) => Entry::Decision(decision.into()),
            // A newer service knows more kinds.
            None => continue,
        };
        if let Some(dossier) = &mut dossier {
            dossier.add(entry);
        }
    }
    dossier.ok_or_else(|| format!("{} told nothing of session {id}", client.endpoint))
}

/// The service is there, even if its ledger is not.
fn explain(client: &Client, status: &Status) -> String {
    match status.code() {
        Code::Unavailable if status.message().starts_with("history unavailable") => {
            status.message().to_owned()
        }
        Code::NotFound => format!("{}; `conductor sessions ls` lists those there were", status.message()),
        _ => client.explain(status).message,
    }
}
