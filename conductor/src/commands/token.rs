//! `conductor token`: gives others access to the service, and takes it back.

use std::{io::stdout, process::ExitCode};

use serde_json::{Value, json};

use super::{
    finish::{explain, finish, say, tell},
    ids::{self, Part, pick},
    table::Table,
    terminal::{Style, in_json, print, print_json},
};
use crate::{
    cli::{CreateTokenArgs, GivenRole, Global, ListTokensArgs, RevokeTokenArgs, TokenAction, TokenArgs},
    client::Client,
    clock::rfc3339_us,
    frame::escape,
    proto::{ApiToken, CreateTokenRequest, ListTokensRequest, RevokeTokenRequest, TokenState},
    tls,
};

/// What messages are said under.
const COMMAND: &str = "token";

/// How much of one value is shown in a table.
const SHOWN: usize = 100;

/// Runs the command.
pub fn run(global: &Global, args: &TokenArgs) -> ExitCode {
    finish(COMMAND, async {
        match &args.action {
            TokenAction::Create(args) => create(global, args).await,
            TokenAction::Ls(args) => list(global, args).await,
            TokenAction::Revoke(args) => revoke(global, args).await,
        }
    })
}

async fn create(global: &Global, args: &CreateTokenArgs) -> Result<(), String> {
    let ttl_seconds = args.ttl.as_secs();
    if ttl_seconds == 0 {
        return Err("--ttl must be a second at least".to_owned());
    }
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let role = match args.role {
        GivenRole::Developer => "developer",
        GivenRole::Approver => "approver",
        GivenRole::Auditor => "auditor",
        GivenRole::Admin => "admin",
    };
    let request = CreateTokenRequest {
        user: args.user.clone(),
        teams: args.team.clone(),
        role: role.to_owned(),
        ttl_seconds,
    };
    let made = client.tokens().create(request).await.map_err(|status| explain(&client, &status))?;
    let made = made.into_inner();
    let info = made.info.unwrap_or_default();
    if args.json {
        let mut shown = as_json(&info);
        shown["token"] = made.token.into();
        return print_json(&shown);
    }
    print(&format!("{}\n", made.token))?;
    tell(&format!(
        "token {} for {}, good until {}. It is not shown again.\n{}\n\
         To take it back: conductor token revoke {}",
        info.id,
        info.user,
        rfc3339_us(info.expires_us),
        handing_over(&client.endpoint),
        info.id,
    ));
    Ok(())
}

/// How the token's user uses it. The address by which this host calls itself leads nowhere on
/// another one.
fn handing_over(endpoint: &str) -> String {
    let port = endpoint.rsplit(':').next().unwrap_or_default();
    match (tls::is_elsewhere(endpoint), endpoint.starts_with("https://")) {
        (true, _) => {
            format!(
                "Its user gives it to `conductor login --endpoint {endpoint}`, or sets it as CONDUCTOR_TOKEN."
            )
        }
        (false, true) => format!(
            "Its user gives it to `conductor login --endpoint https://HOST:{port}`, where HOST is a name in the \
             service's certificate, or sets it as CONDUCTOR_TOKEN."
        ),
        (false, false) => format!(
            "Its user sets it as CONDUCTOR_TOKEN, on this host or behind `ssh -L {port}:127.0.0.1:{port} HOST`: \
             without TLS ([service.tls] in agents.toml) no other host is listened to."
        ),
    }
}

async fn list(global: &Global, args: &ListTokensArgs) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let tokens = all(&client).await?;
    if args.json {
        let tokens: Vec<_> = tokens.iter().map(as_json).collect();
        return print_json(&json!({ "tokens": tokens }));
    }
    if tokens.is_empty() {
        say(COMMAND, "there are no tokens; `conductor token create --user NAME` makes one");
        return Ok(());
    }
    let mut table = Table::new(0);
    table.row(["ID", "USER", "TEAMS", "ROLE", "STATE", "EXPIRES", "MADE BY"]);
    for token in &tokens {
        let text = |text: &str| if text.is_empty() { "-".to_owned() } else { escape(text.as_bytes(), SHOWN) };
        table.row([
            token.id.clone(),
            text(&token.user),
            text(&token.teams.join(",")),
            text(&token.roles.join(",")),
            state(token).to_owned(),
            rfc3339_us(token.expires_us),
            text(&token.created_by),
        ]);
    }
    let style = Style::of(&stdout());
    let mut lines = table.lines().into_iter();
    let mut out = lines.next().map(|header| format!("{}\n", style.bold(&header))).unwrap_or_default();
    lines.for_each(|line| out.push_str(&(line + "\n")));
    print(&out)
}

async fn revoke(global: &Global, args: &RevokeTokenArgs) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let id = resolve(&client, &args.id).await?;
    let revoked = client.tokens().revoke(RevokeTokenRequest { id }).await;
    let info = revoked.map_err(|status| explain(&client, &status))?.into_inner().info.unwrap_or_default();
    print(&if args.json {
        in_json(&as_json(&info))
    } else {
        format!("token {} of {} is revoked\n", info.id, escape(info.user.as_bytes(), SHOWN))
    })
}

/// The id that is meant: itself, or its beginning.
async fn resolve(client: &Client, given: &str) -> Result<String, String> {
    if given.parse::<uuid::Uuid>().is_ok() {
        return Ok(given.to_owned());
    }
    // Whoever gives the token itself shall not find it in what we say.
    if !ids::is_part(given) || given.len() < ids::SHORTEST {
        return Err("that is no token's id; `conductor token ls` lists them".to_owned());
    }
    let tokens = all(client).await?;
    let found = pick(tokens.iter().map(|token| token.id.as_str()), given, Part::Beginning)?;
    let none = || format!("no token's id begins with `{given}`; `conductor token ls` lists them");
    found.map(str::to_owned).ok_or_else(none)
}

async fn all(client: &Client) -> Result<Vec<ApiToken>, String> {
    let listed = client.tokens().list(ListTokensRequest {}).await;
    Ok(listed.map_err(|status| explain(client, &status))?.into_inner().tokens)
}

fn state(token: &ApiToken) -> &'static str {
    match token.state() {
        TokenState::Valid => "valid",
        TokenState::Expired => "expired",
        TokenState::Revoked => "revoked",
        TokenState::Unspecified => "-",
    }
}

fn as_json(token: &ApiToken) -> Value {
    json!({
        "id": token.id,
        "user": token.user,
        "teams": token.teams,
        "roles": token.roles,
        "state": state(token),
        "created_by": token.created_by,
        "created_us": token.created_us,
        "expires_us": token.expires_us,
        "revoked_us": (token.revoked_us != 0).then_some(token.revoked_us),
    })
}
