//! `conductor whoami`: who one is to the service, how that is proven, and until
//! when.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    finish::finish,
    terminal::{in_json, print},
};
use crate::{
    cli::{Global, WhoAmIArgs},
    client::Client,
    clock::rfc3339_us,
    frame::escape,
    proto::{ProofKind, WhoAmIRequest, WhoAmIResponse},
};

/// How much of one value is shown.
const SHOWN: usize = 200;

/// Runs the command.
pub fn run(global: &Global, args: &WhoAmIArgs) -> ExitCode {
    finish("whoami", async {
        let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
        let answer = ask(&client).await?;
        print(&if args.json {
            in_json(&as_json(&answer, &client.endpoint))
        } else {
            as_text(&answer, &client.endpoint)
        })
    })
}

/// Who the caller is.
pub(super) async fn ask(client: &Client) -> Result<WhoAmIResponse, String> {
    let answer = client.identity().who_am_i(WhoAmIRequest {}).await;
    Ok(answer.map_err(|status| client.explain(&status).message)?.into_inner())
}

/// For machines.
pub(super) fn as_json(answer: &WhoAmIResponse, endpoint: &str) -> Value {
    json!({
        "user": answer.user,
        "teams": answer.teams,
        "roles": answer.roles,
        "proof": proof(answer).0,
        "proof_detail": (!answer.proof_detail.is_empty()).then_some(&answer.proof_detail),
        "expires_us": (answer.expires_us != 0).then_some(answer.expires_us),
        "endpoint": endpoint,
        "server_version": answer.server_version,
    })
}

/// For people.
pub(super) fn as_text(answer: &WhoAmIResponse, endpoint: &str) -> String {
    let text = |text: &str| if text.is_empty() { "-".to_owned() } else { escape(text.as_bytes(), SHOWN) };
    let detail = match answer.proof_detail.as_str() {
        "" => String::new(),
        detail => format!(" {}", escape(detail.as_bytes(), SHOWN)),
    };
    let until =
        if answer.expires_us == 0 { "it is removed".to_owned() } else { rfc3339_us(answer.expires_us) };
    format!(
        "user      {}\nteams     {}\nroles     {}\nproof     {}{detail}\nuntil     {until}\nendpoint  {endpoint}\n",
        text(&answer.user),
        text(&answer.teams.join(", ")),
        text(&answer.roles.join(", ")),
        proof(answer).1,
    )
}

/// How it was proven, for machines and for people.
fn proof(answer: &WhoAmIResponse) -> (&'static str, &'static str) {
    match answer.proof() {
        ProofKind::Local => ("local", "the token in the state directory"),
        ProofKind::Token => ("token", "API token"),
        ProofKind::Oidc => ("oidc", "token of"),
        ProofKind::Certificate => ("certificate", "certificate of"),
        ProofKind::Unspecified => ("unknown", "in a way that this version does not know"),
    }
}
