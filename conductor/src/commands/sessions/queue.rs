//! `conductor sessions queue`: the prompts that wait for a session's running
//! turn, and taking one of them back.

use std::io::stdout;

use serde_json::{Value, json};

use super::{Failure, print, source::Source};
use crate::{
    cli::{Global, QueueArgs},
    client::Client,
    clock::rfc3339_us,
    commands::{
        table::Table,
        terminal::{Style, in_json},
    },
    frame::escape,
    proto::{CancelQueuedRequest, ListQueueRequest, PromptQueued},
};

/// How much of a name and of a prompt is shown in a table.
const SHOWN: usize = 60;

pub(super) async fn run(global: &Global, args: &QueueArgs) -> Result<(), Failure> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let id = Source::Service(client.clone()).resolve(&args.id).await?;
    let session_id = id.to_string();
    if let Some(entry) = args.cancel {
        let request = CancelQueuedRequest { session_id: session_id.clone(), entry };
        client.sessions().cancel_queued(request).await.map_err(|status| client.explain(&status).message)?;
        return print(&if args.json {
            in_json(&json!({ "session_id": session_id, "entry": entry, "cancelled": true }))
        } else {
            format!("prompt {entry} is taken back\n")
        });
    }
    let request = ListQueueRequest { session_id: session_id.clone() };
    let listed = client.sessions().list_queue(request).await;
    let prompts = listed.map_err(|status| client.explain(&status).message)?.into_inner().prompts;
    if args.json {
        let prompts: Vec<_> = prompts.iter().map(as_json).collect();
        let all = json!({ "session_id": session_id, "prompts": prompts });
        return print(&in_json(&all));
    }
    let mut table = Table::new(0);
    table.row(["ENTRY", "USER", "SINCE", "PROMPT"]);
    for prompt in &prompts {
        table.row([
            prompt.entry.to_string(),
            escape(prompt.user.as_bytes(), SHOWN),
            rfc3339_us(prompt.since_us),
            escape(prompt.text.as_bytes(), SHOWN),
        ]);
    }
    let style = Style::of(&stdout());
    let mut lines = table.lines().into_iter();
    let mut out = lines.next().map(|header| format!("{}\n", style.bold(&header))).unwrap_or_default();
    lines.for_each(|line| out.push_str(&(line + "\n")));
    print(&out)
}

fn as_json(prompt: &PromptQueued) -> Value {
    json!({ "entry": prompt.entry, "user": prompt.user, "since_us": prompt.since_us, "text": prompt.text })
}
