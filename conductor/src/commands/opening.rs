//! Opening the session of a prompt: a new one, or one that is continued.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{
    conversation::{Conversation, Failure},
    ids::{self, Part},
};
use crate::{
    acp::{self, PROTOCOL_VERSION},
    cli::{ChoiceArgs, Global, PromptArgs},
    client::{Carry, Client},
    frame::escape,
};

/// Pages of the list of sessions that are looked at.
const MOST_PAGES: usize = 1000;

/// An open session.
pub(super) struct Opened {
    /// The way to it.
    pub(super) conversation: Conversation,
    /// Its id.
    pub(super) session: String,
    /// Whether it can be continued later.
    pub(super) can_continue: bool,
}

/// Connects and opens the session.
pub(super) async fn open(global: &Global, args: &PromptArgs) -> Result<Opened, Failure> {
    let cwd = directory(args.cwd.as_ref()).map_err(Failure::Answered)?;
    let client = Client::connect(global, &args.endpoint).await?;
    let tunnel = client.tunnel(&args.choice, "conductor-prompt", Path::new(&cwd), Carry::Once).await?;
    let mut conversation = Conversation::new(client, tunnel);
    let hello = conversation.ask("initialize", &hello("conductor-prompt")).await?;
    if let Some(given) = &args.session {
        let (session, its_cwd) = find(&mut conversation, given).await?;
        let cwd = if args.cwd.is_some() { cwd } else { its_cwd };
        let result = reopen(&mut conversation, &session, &cwd).await?;
        choose(&mut conversation, &session, &args.choice, &result).await?;
        return Ok(Opened { conversation, session, can_continue: true });
    }
    let can = &hello["agentCapabilities"];
    let can_continue = can["loadSession"] == true || can["sessionCapabilities"]["resume"].is_object();
    let opened = conversation.ask("session/new", &json!({ "cwd": cwd, "mcpServers": [] })).await?;
    match opened["sessionId"].as_str() {
        Some(session) => Ok(Opened { conversation, session: session.to_string(), can_continue }),
        None => Err(Failure::Answered("the service opened a session without an id; see its log".into())),
    }
}

/// What a client at a terminal can do: take notices.
pub(super) fn hello(name: &str) -> Value {
    json!({
        "protocolVersion": PROTOCOL_VERSION,
        "clientCapabilities": {
            "fs": { "readTextFile": false, "writeTextFile": false },
            "terminal": false,
            "session": { "notices": {} },
        },
        "clientInfo": { "name": name, "version": env!("CARGO_PKG_VERSION") },
    })
}

/// The session that is meant, and where it works, by the service's list: by its id, by the beginning
/// of that, or as the last one that was opened.
pub(super) async fn find(conversation: &mut Conversation, given: &str) -> Result<(String, String), Failure> {
    let mut params = json!({});
    let mut known = Vec::new();
    for _ in 0..MOST_PAGES {
        let page = conversation.ask("session/list", &params).await?;
        for session in page["sessions"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let text = |name: &str| session[name].as_str().unwrap_or_default().to_string();
            known.push((text("sessionId"), text("cwd")));
        }
        match page.get("nextCursor").filter(|cursor| !cursor.is_null()) {
            Some(cursor) if !known.iter().any(|(id, _)| id == given) => params = json!({ "cursor": cursor }),
            _ => break,
        }
    }
    let ids = || known.iter().map(|(id, _)| id.as_str());
    let meant = match given {
        // Ids begin with the time.
        "last" => ids().max(),
        given if ids::is_part(given) => {
            ids::pick(ids(), given, Part::Beginning).map_err(Failure::Answered)?
        }
        given => ids().find(|id| *id == given),
    };
    let found = meant.and_then(|meant| known.iter().find(|(id, _)| id == meant)).cloned();
    found.ok_or_else(|| {
        Failure::Answered(format!(
            "there is no session `{}` of yours; `conductor sessions ls` lists them. Leave --session out to begin \
             a new one",
            escape(given.as_bytes(), 100)
        ))
    })
}

/// Without history if the agent can do that, else with it, unseen. The agent
/// is the session's own, so what this connection's agent can do says nothing.
async fn reopen(conversation: &mut Conversation, id: &str, cwd: &str) -> Result<Value, Failure> {
    let params = json!({ "sessionId": id, "cwd": cwd, "mcpServers": [] });
    match conversation.ask("session/resume", &params).await {
        Err(Failure::NotOffered(_)) => {}
        answered => return answered,
    }
    match conversation.ask("session/load", &params).await {
        Err(Failure::NotOffered(why)) => Err(Failure::Answered(format!(
            "this session cannot be continued: {why}. Leave --session out to begin a new one"
        ))),
        answered => answered,
    }
}

/// Sets the model and mode of a continued session; new ones get theirs from
/// the service.
async fn choose(
    conversation: &mut Conversation,
    session: &str,
    choice: &ChoiceArgs,
    result: &Value,
) -> Result<(), Failure> {
    for (category, wanted) in [("model", &choice.model), ("mode", &choice.mode)] {
        let Some(wanted) = wanted else { continue };
        let (method, params) = match acp::find_option(result, category, wanted) {
            Ok(option) => {
                let params = json!({ "sessionId": session, "configId": option, "value": wanted });
                ("session/set_config_option", params)
            }
            Err(_) if category == "mode" && has_mode(result, wanted) => {
                ("session/set_mode", json!({ "sessionId": session, "modeId": wanted }))
            }
            Err(offered) => {
                let offered = if offered.is_empty() { "no choice".into() } else { offered.join(", ") };
                let offered = escape(offered.as_bytes(), 1000);
                let text = format!("the session's agent has no {category} `{wanted}`; it offers: {offered}");
                return Err(Failure::Answered(text));
            }
        };
        conversation.ask(method, &params).await?;
    }
    Ok(())
}

/// Whether the agent has the mode in the older form.
fn has_mode(result: &Value, wanted: &str) -> bool {
    let modes = result["modes"]["availableModes"].as_array().map(Vec::as_slice).unwrap_or_default();
    modes.iter().any(|mode| mode["id"] == wanted)
}

/// The directory of the session: absolute, and text, as the protocol wants.
fn directory(given: Option<&PathBuf>) -> Result<String, String> {
    let path = match given {
        Some(path) => {
            std::path::absolute(path).map_err(|error| format!("--cwd {}: {error}", path.display()))?
        }
        None => std::env::current_dir()
            .map_err(|error| format!("the current directory cannot be used: {error}; name one with --cwd"))?,
    };
    path.into_os_string()
        .into_string()
        .map_err(|path| format!("the directory `{}` is not text; name another with --cwd", path.display()))
}
