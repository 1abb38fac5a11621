//! `conductor approvals watch`: questions as they come, and answers to them on a terminal.

use std::{
    collections::{HashSet, VecDeque},
    io::{IsTerminal as _, stdin, stdout},
};

use futures_util::StreamExt as _;
use serde_json::json;

use super::{
    super::{
        finish::say,
        terminal::{Style, forget_typed, harmless, print, read_line},
    },
    COMMAND, decide, explain, said,
    shown::{as_json, block, outcome},
    whole,
};
use crate::{
    cli::{Global, WatchApprovalsArgs},
    client::Client,
    proto::{Answer, Approval, WatchApprovalsRequest, WatchApprovalsResponse},
    record::now_us,
};

const QUESTION: &str = "[a]llow once, [d]eny, or Enter to leave it: ";

pub(super) async fn run(global: &Global, args: &WatchApprovalsArgs) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let watched = client.approvals().watch(WatchApprovalsRequest {}).await;
    let mut messages = watched.map_err(|status| explain(&client, &status))?.into_inner();
    let asks = !args.json && !args.no_answer && stdin().is_terminal() && stdout().is_terminal();
    let mut watching = Watching { args, asks, known: HashSet::new(), waiting: VecDeque::new() };
    if asks {
        say(COMMAND, "waiting for questions; Ctrl-C ends");
    }
    loop {
        let current = watching.waiting.front().filter(|_| asks).cloned();
        if let Some(approval) = &current {
            // All of it: what is not shown cannot be allowed with open eyes.
            match whole(&client, &approval.id).await {
                Ok(approval) => {
                    // Before it is shown: whoever reads it may answer at once.
                    forget_typed();
                    print(&(block(&approval, now_us(), Style::of(&stdout())) + QUESTION))?;
                }
                Err(message) => {
                    say(COMMAND, &message);
                    watching.waiting.pop_front();
                    continue;
                }
            }
        }
        let answer = async {
            match &current {
                Some(_) => read_line().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = messages.next() => match message {
                Some(Ok(message)) => {
                    if current.is_some() {
                        print("\n")?;
                    }
                    watching.hear(message)?;
                }
                Some(Err(status)) => return Err(explain(&client, &status)),
                None => return Err("the service has ended the watch; start it again once it is back".into()),
            },
            typed = answer => {
                let Some(approval) = watching.waiting.pop_front() else { continue };
                let typed = typed.map_err(|error| format!("cannot read the terminal: {error}"))?;
                let Some(typed) = typed else { return Ok(()) };
                let answer = match typed.trim() {
                    "a" | "allow" => Answer::Allow,
                    "d" | "deny" => Answer::Deny,
                    "" => continue,
                    _ => {
                        say(COMMAND, "answer with a, d or Enter");
                        watching.waiting.push_front(approval);
                        continue;
                    }
                };
                match decide(&client, approval.id, answer, "").await {
                    Ok(approval) => print(&said(&approval))?,
                    Err(message) => say(COMMAND, &message),
                }
            }
        }
    }
}

struct Watching<'a> {
    args: &'a WatchApprovalsArgs,
    /// They are answered here.
    asks: bool,
    known: HashSet<String>,
    /// Those to be answered here.
    waiting: VecDeque<Approval>,
}

impl Watching<'_> {
    fn hear(&mut self, message: WatchApprovalsResponse) -> Result<(), String> {
        for ended in &message.ended {
            self.known.remove(&ended.id);
            self.waiting.retain(|waiting| waiting.id != ended.id);
            self.show("ended", ended)?;
        }
        for approval in message.open {
            if !self.known.insert(approval.id.clone()) {
                continue;
            }
            match self.asks && approval.may_answer {
                true => self.waiting.push_back(approval),
                false => self.show("asked", &approval)?,
            }
        }
        Ok(())
    }

    fn show(&self, event: &str, approval: &Approval) -> Result<(), String> {
        if self.args.json {
            let shown = json!({ "event": event, "approval": as_json(approval) });
            return print(&harmless(format!("{shown}\n")));
        }
        match &approval.outcome {
            Some(ended) => print(&format!("approval {}: {}\n", approval.id, outcome(ended))),
            None => print(&block(approval, now_us(), Style::of(&stdout()))),
        }
    }
}
