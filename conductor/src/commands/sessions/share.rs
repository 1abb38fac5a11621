//! `conductor sessions share`, `unshare` and `shares`: who else may see and
//! drive a session.

use std::io::stdout;

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Failure, print, source::Source};
use crate::{
    cli::{EndpointArgs, GivenAccess, Global, ListSharesArgs, ShareSessionArgs, UnshareSessionArgs},
    client::Client,
    clock::rfc3339_us,
    commands::{
        finish::explain,
        table::Table,
        terminal::{Style, in_json},
    },
    frame::escape,
    identity::{TEAM, USER},
    proto::{
        ListSharesRequest, Party, SessionShare, ShareRole, ShareSessionRequest, UnshareSessionRequest, party,
    },
};

/// How much of a name is shown in a table.
const SHOWN: usize = 100;

pub(super) async fn share(global: &Global, args: &ShareSessionArgs) -> Result<(), Failure> {
    let (client, id) = open(global, &args.endpoint, &args.id).await?;
    let role = match args.access {
        GivenAccess::Driver => ShareRole::Driver,
        GivenAccess::Observer => ShareRole::Observer,
    };
    let request =
        ShareSessionRequest { session_id: id.to_string(), with: Some(named(&args.with)), role: role.into() };
    let shared = client.sharing().share(request).await.map_err(|status| explain(&client, &status))?;
    let share = shared.into_inner().share.unwrap_or_default();
    print(&if args.json {
        in_json(&as_json(id, &share))
    } else {
        format!("session {id} is shared with {} as {}\n", shown(share.with.as_ref()), role_name(&share))
    })
}

pub(super) async fn unshare(global: &Global, args: &UnshareSessionArgs) -> Result<(), Failure> {
    let (client, id) = open(global, &args.endpoint, &args.id).await?;
    let with = named(&args.with);
    let request = UnshareSessionRequest { session_id: id.to_string(), with: Some(with.clone()) };
    client.sharing().unshare(request).await.map_err(|status| explain(&client, &status))?;
    let with = shown(Some(&with));
    print(&if args.json {
        in_json(&json!({ "session_id": id.to_string(), "with": with, "shared": false }))
    } else {
        format!("session {id} is not shared with {with}\n")
    })
}

pub(super) async fn list(global: &Global, args: &ListSharesArgs) -> Result<(), Failure> {
    let (client, id) = open(global, &args.endpoint, &args.id).await?;
    let request = ListSharesRequest { session_id: id.to_string() };
    let listed = client.sharing().list_shares(request).await.map_err(|status| explain(&client, &status))?;
    let shares = listed.into_inner().shares;
    if args.json {
        let shares: Vec<_> = shares.iter().map(|share| as_json(id, share)).collect();
        return print(&in_json(&json!({ "shares": shares })));
    }
    let mut table = Table::new(0);
    table.row(["WITH", "AS", "SINCE", "BY"]);
    for share in &shares {
        table.row([
            shown(share.with.as_ref()),
            role_name(share).to_owned(),
            rfc3339_us(share.shared_us),
            escape(share.shared_by.as_bytes(), SHOWN),
        ]);
    }
    let style = Style::of(&stdout());
    let mut lines = table.lines().into_iter();
    let mut out = lines.next().map(|header| format!("{}\n", style.bold(&header))).unwrap_or_default();
    lines.for_each(|line| out.push_str(&(line + "\n")));
    print(&out)
}

async fn open(global: &Global, endpoint: &EndpointArgs, id: &str) -> Result<(Client, Uuid), Failure> {
    let client = Client::connect(global, endpoint).await.map_err(|error| error.message)?;
    let id = Source::Service(client.clone()).resolve(id).await?;
    Ok((client, id))
}

/// Who is meant: a team by its mark, else a user, who may have a mark.
fn named(text: &str) -> Party {
    let party = match text.strip_prefix(TEAM) {
        Some(team) => party::Party::Team(team.to_owned()),
        None => party::Party::User(text.strip_prefix(USER).unwrap_or(text).to_owned()),
    };
    Party { party: Some(party) }
}

fn shown(party: Option<&Party>) -> String {
    match party.and_then(|party| party.party.as_ref()) {
        Some(party::Party::User(user)) => escape(user.as_bytes(), SHOWN),
        Some(party::Party::Team(team)) => format!("{TEAM}{}", escape(team.as_bytes(), SHOWN)),
        None => "-".to_owned(),
    }
}

fn role_name(share: &SessionShare) -> &'static str {
    match share.role() {
        ShareRole::Driver => "driver",
        ShareRole::Observer => "observer",
        ShareRole::Unspecified => "-",
    }
}

fn as_json(id: Uuid, share: &SessionShare) -> Value {
    json!({
        "session_id": id.to_string(),
        "with": shown(share.with.as_ref()),
        "as": role_name(share),
        "shared_by": share.shared_by,
        "shared_us": share.shared_us,
    })
}
