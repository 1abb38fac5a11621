//! `conductor sessions attach`: a session in a terminal, its past and then what
//! happens, for as long as one likes.

use std::{
    io::{IsTerminal as _, stderr, stdin},
    path::Path,
};

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, Source};
use crate::{
    cli::{AttachSessionArgs, ChoiceArgs, Global},
    client::{Carry, Client},
    commands::{
        conversation::Conversation,
        opening::{Opened, find, hello},
        turn::{Attached, End, Turn},
    },
};

pub(super) async fn run(global: &Global, args: &AttachSessionArgs) -> Result<(), Failure> {
    let told = |why: &dyn std::fmt::Display| Failure::Told(why.to_string());
    let mut interrupts = signal(SignalKind::interrupt()).map_err(|error| told(&error))?;
    let mut leave = signal(SignalKind::interrupt()).map_err(|error| told(&error))?;
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let id = Source::Service(client.clone()).resolve(&args.id).await?.to_string();
    let choice = ChoiceArgs::default();
    let tunnel = client.tunnel(&choice, "conductor-attach", Path::new(""), Carry::Once).await;
    let mut conversation = Conversation::new(client, tunnel.map_err(|error| error.message)?);
    conversation.ask("initialize", &hello("conductor-attach")).await.map_err(|error| told(&error))?;
    let (id, cwd) = find(&mut conversation, &id).await.map_err(|error| told(&error))?;
    // Who cannot be asked anything must not be the one who is asked.
    let is_person = stdin().is_terminal() && stderr().is_terminal() && !args.json;
    let observes = args.observe || !is_person;
    let params = json!({
        "sessionId": id, "cwd": cwd, "mcpServers": [], "_meta": { "conductor": { "observe": observes } },
    });
    let opening = conversation.request("session/load", &params).await.map_err(|error| told(&error))?;
    let mut opened = Opened { conversation, session: id, can_continue: true };
    let attached = if observes { Attached::Watching } else { Attached::Driving };
    let turn = Turn::attach(&mut opened, &mut interrupts, args.json, opening, attached);
    let end = tokio::select! {
        biased;
        _ = leave.recv() => End::Interrupted,
        end = turn.run() => end,
    };
    opened.conversation.close().await;
    match end {
        End::Failed(message) => Err(Failure::Told(message)),
        End::Stopped(_) | End::Interrupted => Ok(()),
    }
}
