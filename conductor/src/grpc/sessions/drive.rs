//! Driving a session from a seat: prompts, options, cancelling. A session that
//! nobody has open is opened again first.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::{sync::mpsc, time::sleep};
use tonic::{Code, Status};
use uuid::Uuid;

use super::{
    super::{
        events::Events,
        history::{Messages, unavailable},
        rights::nothing,
    },
    feed::{self, Out, Sight, Stop},
    inner,
};
use crate::{
    clock::micros,
    connection::{Greeting, Hub, guest},
    frame::{self, Frame, Method},
    identity::Caller,
    proto::{Event, PromptQueued, TurnEnded, event::Kind},
    queue::NotSent,
    redact,
    router::Access,
    session::{QueuedPrompt, Seat, SeatRole, Seated, SessionHandle, Told},
};

/// How often a seat is tried for at a session that ends meanwhile, or that is
/// being opened, and the pause then.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// Frames at the beginning of a record among which the opening request is.
const FIRST_FRAMES: u64 = 16;

/// A session that is driven, and who drives it.
#[derive(Clone)]
pub(super) struct Drive {
    pub(super) hub: Hub,
    pub(super) caller: Caller,
    pub(super) id: Uuid,
}

impl Drive {
    /// A seat at the session, which is opened again if nobody has it open.
    async fn sit(&self) -> Result<(Seat, Seated), Status> {
        for _ in 0..ATTEMPTS {
            let Some(handle) = self.hub.router.live(self.id) else {
                match self.revive().await {
                    // Somebody else is about to open it.
                    Err(status) if status.code() == Code::ResourceExhausted => sleep(PAUSE).await,
                    revived => revived?,
                }
                continue;
            };
            if let Some(seated) = handle.sit(guest(&self.hub, &self.caller, SeatRole::Driver)).await {
                // It may have taken a while.
                let access = self.hub.router.access(self.id, &self.caller);
                return access
                    .filter(|access| access.drives())
                    .map(|_| seated)
                    .ok_or_else(|| nothing(self.id));
            }
            if !handle.is_ending() {
                break;
            }
            // Only then can it be opened again.
            handle.over().await;
        }
        let text = "the session has all the seats it can have, or is too busy; try again later";
        Err(Status::resource_exhausted(text))
    }

    /// Opens the session again, with what it was opened with first.
    async fn revive(&self) -> Result<(), Status> {
        let row = self.hub.router.row(self.id).ok_or_else(|| nothing(self.id))?;
        let first = self.first_request().await?;
        let servers = self.servers(&first["mcpServers"])?;
        let mut params = json!({ "sessionId": self.id.to_string(), "cwd": row.cwd.to_string_lossy(),
            "mcpServers": servers });
        if first["additionalDirectories"].is_array() {
            params["additionalDirectories"] = first["additionalDirectories"].clone();
        }
        let request = inner::request("session/resume", &params)?;
        // Agent and directory let the process that the handshake needs serve the
        // session as well.
        let greeting = Greeting {
            client: super::CLIENT.into(),
            agent: row.agent.to_string(),
            cwd: Some(row.cwd),
            lingers: true,
            ..Greeting::default()
        };
        inner::open(&self.hub, &self.caller, greeting, request).await.map(|_| ())
    }

    /// The MCP servers that the session is opened with again. The record has them without their
    /// secrets, which are kept elsewhere.
    fn servers(&self, recorded: &Value) -> Result<Value, Status> {
        if let Some(kept) = self.hub.kept.servers(self.id) {
            return Ok(kept);
        }
        if redact::has_marks(recorded.to_string().as_bytes()) {
            let text = "this session was given secrets for its MCP servers, and they are not kept any longer; open \
                        it in an editor, or with session/resume, and hand them over again";
            return Err(Status::failed_precondition(text));
        }
        Ok(recorded.as_array().cloned().unwrap_or_default().into())
    }

    /// The parameters of the request that made the session.
    async fn first_request(&self) -> Result<Value, Status> {
        let mut reading = self.hub.history.frames(self.id, 1, Some(FIRST_FRAMES), false);
        let frames = reading.next().await.map_err(|error| unavailable(&error))?;
        let params = frames.iter().find_map(|recorded| {
            let peek = frame::peek(&recorded.raw).ok().filter(|peek| peek.method == Method::SessionNew)?;
            serde_json::from_slice(peek.params.of(&recorded.raw)).ok()
        });
        Ok(params.unwrap_or_default())
    }

    /// Waits until the caller may not drive the session any more.
    async fn lost(&self) {
        self.hub.router.lost(self.id, &self.caller, Access::Driver).await;
    }

    /// Asks the agent something, and gives the result as JSON.
    pub(super) async fn ask(&self, method: &str, params: &Value) -> Result<String, Status> {
        let request = inner::request(method, params)?;
        let (seat, mut seated) = self.sit().await?;
        say(&seat, &request)?;
        while let Some(told) = seated.told.recv().await {
            if let Told::Answer { line, .. } = told
                && let Some(outcome) = inner::answered(trimmed(&line), &request)
            {
                return outcome;
            }
        }
        Err(ended())
    }

    /// Ends the running turn, and the caller's prompts that wait.
    pub(super) async fn cancel(&self) -> Result<(), Status> {
        let Some(handle) = self.hub.router.live(self.id) else { return Ok(()) };
        let waiting = handle.queue().await;
        for prompt in waiting.iter().filter(|prompt| prompt.user == self.caller.user) {
            handle.unqueue(prompt.entry).await;
        }
        let Some((seat, _seated)) = handle.sit(guest(&self.hub, &self.caller, SeatRole::Driver)).await else {
            return Ok(());
        };
        seat.tell(inner::notification("session/cancel", &json!({ "sessionId": self.id.to_string() }))?);
        // The seat is kept until that was heard: what follows is heard later.
        handle.queue().await;
        Ok(())
    }

    /// Prompts, and tells what happens until the turn has ended.
    pub(super) fn prompt(self, request: Frame, text: String) -> Messages<Event> {
        let hub = self.hub.clone();
        feed::start(&hub, 0, |mut out| async move {
            let (seat, seated) = tokio::select! {
                biased;
                () = out.gone() => return Err(Stop::Gone),
                () = self.hub.closing.cancelled() => return Err(out.draining()),
                seat = self.sit() => seat?,
            };
            out.begin(seated.at_seq + 1);
            say(&seat, &request)?;
            let turn = Turn { drive: self, request, text };
            turn.tell(&seat, seated, &mut out).await
        })
    }
}

/// A prompt under way.
struct Turn {
    drive: Drive,
    request: Frame,
    text: String,
}

impl Turn {
    async fn tell(&self, seat: &Seat, seated: Seated, out: &mut Out) -> Result<(), Stop> {
        let Seated { at_seq, mut told, .. } = seated;
        if let Some(waiting) = self.queued(seat.handle()).await {
            out.send(not_recorded(Kind::PromptQueued(queued(waiting)))).await?;
        }
        let outgoing = tokio::select! {
            biased;
            () = out.gone() => return Err(Stop::Gone),
            () = self.drive.hub.closing.cancelled() => return Err(out.draining()),
            () = self.drive.lost() => return Err(nothing(self.drive.id).into()),
            begun = self.begun(&mut told) => match begun? {
                Some(outgoing) => outgoing,
                // It was taken back before its turn came.
                None => {
                    let end = TurnEnded { stop_reason: "cancelled".into(), ..TurnEnded::default() };
                    return out.send(not_recorded(Kind::TurnEnded(end))).await;
                }
            },
        };
        let owner = self.drive.hub.router.row(self.drive.id).map(|row| row.owner).unwrap_or_default();
        let Drive { hub, caller, id } = self.drive.clone();
        let mut telling =
            feed::Telling::behind(&Sight { hub, caller, sees_all: false, id }, at_seq, Events::of(owner));
        let mut turn = None;
        while let Some((frame, events)) = telling.next(out).await? {
            // Nobody hears of anything else here, and it must not pile up.
            while told.try_recv().is_ok() {}
            let is_own = frame.outgoing_id.and_then(|id| u64::try_from(id).ok()) == Some(outgoing);
            for event in events {
                if turn.is_none() && is_own && matches!(event.kind, Some(Kind::TurnStarted(_))) {
                    turn = Some(event.seq);
                }
                if turn.is_some() {
                    let is_end = turn == Some(event.turn) && matches!(event.kind, Some(Kind::TurnEnded(_)));
                    out.send(event).await?;
                    if is_end {
                        return Ok(());
                    }
                }
            }
        }
        Err(out.draining())
    }

    /// The entry of the queue that this prompt is, if it waits.
    async fn queued(&self, handle: &SessionHandle) -> Option<QueuedPrompt> {
        let user = &self.drive.caller.user;
        let waiting = handle.queue().await;
        waiting.into_iter().rfind(|prompt| prompt.user == *user && self.text.starts_with(&prompt.text))
    }

    /// Waits for the turn, and gives the id that the prompt goes on with;
    /// nothing if it will not.
    async fn begun(&self, told: &mut mpsc::Receiver<Told>) -> Result<Option<u64>, Status> {
        while let Some(word) = told.recv().await {
            match word {
                Told::Own { outgoing, .. } => return Ok(Some(outgoing)),
                Told::Answer { line, .. } => {
                    if let Some(outcome) = inner::answered(trimmed(&line), &self.request) {
                        return outcome.map(|_| None);
                    }
                }
                Told::Withdrawn { .. } => {}
            }
        }
        Err(ended())
    }
}

fn say(seat: &Seat, request: &Frame) -> Result<(), Status> {
    seat.ask(request.clone()).map_err(|refused| match refused {
        NotSent::Full(_) => {
            Status::resource_exhausted("the agent of this session does not take its input; try again later")
        }
        NotSent::Closed(_) => ended(),
    })
}

fn ended() -> Status {
    Status::unavailable("the session has ended, or is too far ahead; try again")
}

fn trimmed(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\n").unwrap_or(line)
}

/// An event that has no frame.
fn not_recorded(kind: Kind) -> Event {
    Event { at_us: micros(SystemTime::now()), kind: Some(kind), ..Event::default() }
}

/// A prompt that waits.
pub(super) fn queued(prompt: QueuedPrompt) -> PromptQueued {
    PromptQueued { entry: prompt.entry, user: prompt.user, text: prompt.text, since_us: micros(prompt.since) }
}
