//! One turn of `conductor prompt`, or all that `conductor sessions attach` sees: a
//! loop over what can happen in it.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal as _, stdout},
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{signal::unix::Signal, time::timeout_at};

use super::{
    answer::Answer,
    conversation::{Conversation, Failure, Heard},
    events,
    notes::Notes,
    opening::Opened,
    permission::{Decision, Question, Stance},
    plan::Plan,
    terminal,
    tool::Calls,
    turn_usage::Usage,
};
use crate::{acp, frame::escape};

/// How many questions may wait for the one that is being answered; more are
/// rejected.
const MAX_QUESTIONS: usize = 64;

/// Some agents report what a turn took just after its end. For so long they
/// are listened to, where somebody wants to know.
const AFTERTHOUGHTS: Duration = Duration::from_millis(100);

/// Bytes of somebody's prompt that are shown.
const SHOWN_PROMPT: usize = 2000;

/// What the first Ctrl-C says.
const CANCELLING: &str = "cancelling the turn; Ctrl-C again leaves at once";

/// How a turn ended.
#[derive(Debug)]
pub(super) enum End {
    /// The agent gave this stop reason.
    Stopped(String),
    /// Somebody pressed Ctrl-C.
    Interrupted,
    /// Something went wrong: cause and remedy.
    Failed(String),
}

/// How one is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attached {
    /// What is typed is sent.
    Driving,
    /// Somebody else does the talking.
    Watching,
}

/// A running turn.
pub(super) struct Turn<'a> {
    conversation: &'a mut Conversation,
    interrupts: &'a mut Signal,
    stance: Stance,
    session: &'a str,
    can_continue: bool,
    /// Whether a machine reads.
    json: bool,
    begun: Instant,
    /// Our request whose answer ends the turn; when attached, the one that
    /// opened the session.
    prompt: u64,
    /// Nothing ends it but the session's end; what is typed is a prompt.
    attached: Option<Attached>,
    answer: Answer,
    notes: Notes,
    calls: Calls,
    plan: Plan,
    usage: Usage,
    /// Waiting to be answered; the first one is on the screen.
    questions: VecDeque<Question>,
    interrupted: bool,
    /// Whether the answer and the notes are on the same screen.
    shared_screen: bool,
}

impl<'a> Turn<'a> {
    /// Sends the prompt.
    pub(super) async fn begin(
        opened: &'a mut Opened,
        interrupts: &'a mut Signal,
        stance: Stance,
        json: bool,
        text: &str,
    ) -> Result<Self, Failure> {
        let params = json!({ "sessionId": opened.session, "prompt": [{ "type": "text", "text": text }] });
        let prompt = opened.conversation.request("session/prompt", &params).await?;
        Ok(Self::new(opened, interrupts, stance, json, prompt, None))
    }

    /// Shows what comes after the request that has opened the session.
    pub(super) fn attach(
        opened: &'a mut Opened,
        interrupts: &'a mut Signal,
        json: bool,
        opening: u64,
        attached: Attached,
    ) -> Self {
        Self::new(opened, interrupts, Stance::Ask, json, opening, Some(attached))
    }

    fn new(
        opened: &'a mut Opened,
        interrupts: &'a mut Signal,
        stance: Stance,
        json: bool,
        prompt: u64,
        attached: Option<Attached>,
    ) -> Self {
        let Opened { conversation, session, can_continue } = opened;
        let notes = Notes::new(json);
        let shared_screen = notes.style().is_terminal && stdout().is_terminal();
        let mut answer = Answer::new();
        if json {
            answer.line(&events::session(session, *can_continue));
        }
        Self {
            conversation,
            interrupts,
            stance,
            session,
            can_continue: *can_continue,
            json,
            begun: Instant::now(),
            prompt,
            attached,
            answer,
            calls: Calls::new(notes.style()),
            notes,
            plan: Plan::default(),
            usage: Usage::default(),
            questions: VecDeque::new(),
            interrupted: false,
            shared_screen,
        }
    }

    /// Runs it to its end.
    pub(super) async fn run(mut self) -> End {
        let end = self.events().await;
        let took = self.begun.elapsed();
        if matches!(end, End::Stopped(_)) && !self.interrupted {
            self.listen_on().await;
        }
        self.notes.end_thought();
        if self.json {
            self.answer.line(&match &end {
                End::Stopped(reason) => events::end(self.session, reason, took, &self.usage),
                End::Interrupted => events::end(self.session, "cancelled", took, &self.usage),
                End::Failed(message) => events::error(message),
            });
        }
        match (end, self.answer.end().await) {
            (end, written) if self.interrupted => {
                if written.is_ok() && !matches!(end, End::Failed(_)) {
                    self.sum_up(took);
                }
                End::Interrupted
            }
            (End::Stopped(_), Err(error)) => unwritten(&error),
            (End::Failed(message), _) if self.can_go_on() => {
                End::Failed(format!("{message}\nto go on: conductor prompt --session {} …", self.session))
            }
            (end, _) => {
                if let End::Stopped(_) = &end {
                    self.sum_up(took);
                }
                end
            }
        }
    }

    /// Whether somebody at a terminal wants to know how the session goes on.
    fn can_go_on(&self) -> bool {
        self.notes.style().is_terminal && self.attached.is_none() && self.can_continue
    }

    /// Takes what comes just after the end of the turn.
    async fn listen_on(&mut self) {
        if !self.json && !self.notes.style().is_terminal {
            return;
        }
        let until = tokio::time::Instant::now() + AFTERTHOUGHTS;
        while let Ok(Ok(heard)) = timeout_at(until, self.conversation.next()).await {
            match heard {
                Heard::Told { method, params } if method == "session/update" => {
                    self.update(&params["update"]).await;
                }
                Heard::Asked { id, method, .. } => self.conversation.cannot(&id, &method).await,
                Heard::Answer { .. } | Heard::Told { .. } => {}
            }
        }
    }

    /// What people at a terminal may want to know in the end.
    fn sum_up(&mut self, took: Duration) {
        if !self.notes.style().is_terminal || self.attached.is_some() {
            return;
        }
        self.notes.note(&self.usage.line(took));
        if self.can_go_on() {
            self.notes.note(&format!("to go on: conductor prompt --session {} …", self.session));
        }
    }

    async fn events(&mut self) -> End {
        loop {
            if (!self.conversation.has_more() || self.answer.is_full())
                && let Err(error) = self.write().await
            {
                // Whoever wanted the answer is gone.
                self.cancel().await;
                return unwritten(&error);
            }
            tokio::select! {
                Some(()) = self.interrupts.recv() => self.interrupt().await,
                heard = self.conversation.next() => match heard {
                    Ok(heard) => {
                        if let Some(end) = self.hear(heard).await {
                            return end;
                        }
                    }
                    Err(lost) => return End::Failed(lost.message),
                },
                typed = terminal::read_line(), if !self.questions.is_empty() => self.reply(typed).await,
                typed = terminal::read_line(), if self.questions.is_empty() && self.takes_prompts() => {
                    if let Some(end) = self.prompt(typed).await {
                        return end;
                    }
                }
            }
        }
    }

    /// Writes the answer. A reader that pauses must not keep Ctrl-C from
    /// reaching the agent.
    async fn write(&mut self) -> io::Result<()> {
        let mut asked = false;
        {
            let writing = self.answer.write();
            tokio::pin!(writing);
            loop {
                tokio::select! {
                    written = &mut writing => {
                        written?;
                        break;
                    }
                    Some(()) = self.interrupts.recv(), if !asked => {
                        asked = true;
                        self.notes.note(CANCELLING);
                        let params = json!({ "sessionId": self.session });
                        self.conversation.notify("session/cancel", &params).await;
                    }
                }
            }
        }
        if asked {
            self.interrupted = true;
            self.dismiss_questions().await;
        }
        Ok(())
    }

    /// The first Ctrl-C; whoever runs the turn leaves at the second.
    async fn interrupt(&mut self) {
        self.interrupted = true;
        self.note(CANCELLING).await;
        self.cancel().await;
    }

    async fn cancel(&mut self) {
        self.conversation.notify("session/cancel", &json!({ "sessionId": self.session })).await;
        self.dismiss_questions().await;
    }

    async fn dismiss_questions(&mut self) {
        for question in std::mem::take(&mut self.questions) {
            self.cancelled(&question, "the turn was cancelled").await;
        }
    }

    fn takes_prompts(&self) -> bool {
        self.attached == Some(Attached::Driving)
    }

    /// Sends what was typed; at the end of the input one leaves.
    async fn prompt(&mut self, typed: io::Result<Option<String>>) -> Option<End> {
        let text = match typed {
            Ok(Some(text)) => text,
            Ok(None) | Err(_) => return Some(End::Interrupted),
        };
        let text = text.trim();
        if !text.is_empty() {
            let params = json!({ "sessionId": self.session, "prompt": [{ "type": "text", "text": text }] });
            if let Err(failure) = self.conversation.request("session/prompt", &params).await {
                self.note(&failure.to_string()).await;
            }
        }
        None
    }

    /// What was asked when attached: first the session itself, then prompts.
    async fn attached_hears(&mut self, is_opening: bool, outcome: Result<Value, Failure>) -> Option<End> {
        match outcome {
            Err(failure) if is_opening => return Some(End::Failed(failure.to_string())),
            Err(failure) => self.note(&format!("! {failure}")).await,
            Ok(_) if is_opening => self.note("· from here on, as it happens; Ctrl-C leaves").await,
            Ok(result) => {
                self.usage.ended(&result);
                let reason = result["stopReason"].as_str().unwrap_or_default();
                self.note(&format!("· the turn has ended ({})", escape(reason.as_bytes(), 40))).await;
            }
        }
        None
    }

    async fn hear(&mut self, heard: Heard) -> Option<End> {
        match heard {
            Heard::Answer { number, outcome } if self.attached.is_some() => {
                return self.attached_hears(number == self.prompt, outcome).await;
            }
            Heard::Answer { number, outcome } if number == self.prompt => {
                return Some(match outcome {
                    Ok(result) => {
                        self.usage.ended(&result);
                        match result["stopReason"].as_str() {
                            Some(reason) => End::Stopped(reason.to_string()),
                            None => End::Failed("the agent ended the turn without saying why".into()),
                        }
                    }
                    Err(failure) => End::Failed(failure.to_string()),
                });
            }
            Heard::Told { method, params } if method == "session/update" => {
                let update = &params["update"];
                self.update(update).await;
                if self.attached.is_some() && update["_meta"]["conductor"]["ended"] == true {
                    return Some(End::Stopped("end_turn".into()));
                }
            }
            Heard::Told { method, params } if method == "$/cancel_request" => {
                self.withdraw(&params).await;
            }
            Heard::Asked { id, method, params } if method == "session/request_permission" => {
                self.ask(id, &params).await;
            }
            Heard::Asked { id, method, .. } => self.conversation.cannot(&id, &method).await,
            Heard::Answer { .. } | Heard::Told { .. } => {}
        }
        None
    }

    async fn update(&mut self, update: &Value) {
        if update["sessionUpdate"] == "usage_update" {
            self.usage.update(update);
        }
        if self.json {
            return self.answer.line(&events::update(update, &mut self.calls));
        }
        let content = &update["content"];
        match update["sessionUpdate"].as_str() {
            Some("user_message_chunk") if self.attached.is_some() => {
                let text = escape(content["text"].as_str().unwrap_or("[content]").as_bytes(), SHOWN_PROMPT);
                self.note(&format!("> {text}")).await;
            }
            Some("agent_message_chunk") => match content["text"].as_str() {
                Some(text) => {
                    self.notes.end_thought();
                    self.answer.add(text, update.get("messageId").filter(|id| !id.is_null()));
                }
                None => {
                    let kind = escape(content["type"].as_str().unwrap_or("something").as_bytes(), 40);
                    self.note(&format!("· the answer has a part that is not text, and not shown: {kind}"))
                        .await;
                }
            },
            Some("agent_thought_chunk") => {
                self.make_room().await;
                self.notes.think(content["text"].as_str().unwrap_or_default());
            }
            Some(kind @ ("tool_call" | "tool_call_update")) => {
                if let Some(note) = self.calls.note(update) {
                    self.make_room().await;
                    self.notes.tool(&note);
                }
                if kind == "tool_call" {
                    self.answer.pause();
                }
            }
            Some("plan") => {
                let plan = self.plan.update(update, self.notes.style());
                if !plan.is_empty() {
                    self.make_room().await;
                    self.notes.detail(&plan);
                }
            }
            Some("notice") => {
                let part = |name: &str| escape(update[name].as_str().unwrap_or_default().as_bytes(), 1000);
                let is_grave = matches!(update["severity"].as_str(), Some("warning" | "error"));
                let (title, more) = (part("title"), part("description"));
                self.make_room().await;
                self.notes.notice(&title, &more, is_grave);
            }
            None => self.note("· an update of the agent could not be read, and is not shown").await,
            Some(_) => {}
        }
    }

    async fn ask(&mut self, id: Bytes, params: &Value) {
        let call = match self.stance {
            Stance::Ask => self.calls.learn_and_show(&params["toolCall"]),
            _ => self.calls.learn(&params["toolCall"]),
        };
        let question = Question::new(id, call, params);
        if self.interrupted {
            return self.cancelled(&question, "the turn was cancelled").await;
        }
        let decision = if self.questions.len() >= MAX_QUESTIONS {
            Some(question.reject("too many questions wait already"))
        } else {
            question.decide(self.stance)
        };
        match decision {
            Some(decision) => self.decided(&question, &decision).await,
            None => {
                self.questions.push_back(question);
                if self.questions.len() == 1 {
                    self.show_question().await;
                }
            }
        }
    }

    /// Shows the first question that waits.
    async fn show_question(&mut self) {
        self.make_room().await;
        if let Some(question) = self.questions.front() {
            terminal::forget_typed();
            self.notes.print(&question.show(self.notes.style()));
        }
    }

    async fn reply(&mut self, typed: io::Result<Option<String>>) {
        // A terminal that cannot be read is nobody.
        let typed = typed.unwrap_or_default();
        let Some(question) = self.questions.pop_front() else { return };
        match question.reply(typed.as_deref()) {
            Some(decision) => {
                self.decided(&question, &decision).await;
                self.show_question().await;
            }
            None => {
                self.notes.print(&question.hint());
                self.questions.push_front(question);
            }
        }
    }

    async fn decided(&mut self, question: &Question, decision: &Decision) {
        self.conversation.answer(&question.id, &decision.result).await;
        if self.json {
            self.answer.line(&events::permission(question, &decision.result, &decision.note));
        }
        self.note(&decision.note).await;
    }

    /// Nobody decides about it any more.
    async fn cancelled(&mut self, question: &Question, note: &str) {
        self.conversation.answer(&question.id, acp::CANCELLED_PERMISSION).await;
        if self.json {
            self.answer.line(&events::permission(question, acp::CANCELLED_PERMISSION, note));
        }
    }

    /// The agent takes a question back, or somebody else has answered it; it
    /// still gets its answer.
    async fn withdraw(&mut self, params: &Value) {
        let id = &params["requestId"];
        let same =
            |question: &Question| serde_json::from_slice::<Value>(&question.id).is_ok_and(|own| own == *id);
        let Some(at) = self.questions.iter().position(same) else { return };
        let why = match params["_meta"]["conductor"]["answeredBy"].as_str() {
            Some(user) => format!("{} has answered the question", escape(user.as_bytes(), 100)),
            None => "the agent took the question back".into(),
        };
        if let Some(question) = self.questions.remove(at) {
            self.cancelled(&question, &why).await;
        }
        if at == 0 {
            self.notes.print("\n");
            self.note(&why).await;
            self.show_question().await;
        }
    }

    async fn note(&mut self, text: &str) {
        self.make_room().await;
        self.notes.note(text);
    }

    /// Before stderr speaks: what was said first is shown first, and on one
    /// screen a note begins on a line of its own.
    async fn make_room(&mut self) {
        self.answer.settle();
        // If it cannot be written, the next attempt says so.
        self.answer.write().await.ok();
        if self.answer.leave_line() && self.shared_screen {
            self.notes.print("\n");
        }
    }
}

fn unwritten(error: &io::Error) -> End {
    End::Failed(format!("the answer cannot be written to stdout: {error}; the turn was cancelled"))
}
