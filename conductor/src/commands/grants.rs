//! `conductor grants`: allows ahead of time what would be asked, shows what was
//! allowed so, and takes it back.

use std::{
    io::{IsTerminal as _, stderr, stdin, stdout},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tonic::{Code, Status};

use super::{
    approvals,
    finish::{explain, finish, say, tell},
    ids::{self, Part, pick},
    sessions::session_id,
    table::Table,
    terminal::{self, Style, in_json, print, print_json},
};
use crate::{
    cli::{
        GiveGrantArgs, Global, GrantScopeArgs, GrantsAction, GrantsArgs, ListGrantsArgs, RevokeGrantArgs,
        ShowGrantArgs,
    },
    client::Client,
    clock::{rfc3339_us, span},
    frame::escape,
    proto::{
        CreateGrantRequest, CreateGrantResponse, GetGrantRequest, Grant, GrantAction, GrantLike, GrantScope,
        ListGrantsRequest, PolicyEffect, RevokeGrantRequest, grant_action, grant_scope,
    },
};

/// What messages are said under.
const COMMAND: &str = "grants";

/// How much of one value is shown in a table.
const SHOWN: usize = 100;

/// How much of one value is shown where it stands alone.
const SHOWN_ALONE: usize = 2000;

/// How much of what is granted is shown: all of it, since a service grants nothing longer.
const SHOWN_OF_PART: usize = 20_000;

/// Grants asked for at once.
const PAGE: u32 = 500;

/// Runs the command.
pub fn run(global: &Global, args: &GrantsArgs) -> ExitCode {
    finish(COMMAND, async {
        match &args.action {
            GrantsAction::Give(args) => give(global, args).await,
            GrantsAction::Ls(args) => list(global, args).await,
            GrantsAction::Show(args) => show(global, args).await,
            GrantsAction::Revoke(args) => revoke(global, args).await,
        }
    })
}

async fn give(global: &Global, args: &GiveGrantArgs) -> Result<(), String> {
    let can_ask = stdin().is_terminal() && stderr().is_terminal();
    if !args.yes && !args.dry_run && !can_ask {
        return Err("nobody can be asked here whether that is what is meant: give --yes to grant it, or --dry-run to \
                    see what would be granted"
            .to_owned());
    }
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let mut request = wanted(&client, args).await?;
    request.dry_run = true;
    let created = |response: Result<tonic::Response<CreateGrantResponse>, Status>| {
        response.map(tonic::Response::into_inner).map_err(|status| explain(&client, &status))
    };
    let shown = created(client.grants().create(request.clone()).await)?;
    if args.dry_run {
        return print(&if args.json { as_answer(&shown) } else { preview(&shown) });
    }
    if !args.yes {
        if !terminal::confirm(&format!("{}Grant this? [y/N]", preview(&shown))).await? {
            return Err("nothing was granted".to_owned());
        }
    } else if !args.json {
        tell(preview(&shown).trim_end());
    }
    request.dry_run = false;
    request.expected_digest = shown.digest;
    request.expected_parts = shown.grant.map(|grant| grant.parts).unwrap_or_default();
    let given = created(client.grants().create(request).await)?;
    if args.json {
        return print(&as_answer(&given));
    }
    let id = given.grant.unwrap_or_default().id;
    print(&format!("{id}\n"))?;
    tell(&format!("granted. To take it back: conductor grants revoke {id}"));
    Ok(())
}

/// What is asked of the service.
async fn wanted(client: &Client, args: &GiveGrantArgs) -> Result<CreateGrantRequest, String> {
    let action = |action: grant_action::Action, wide: bool| GrantAction { action: Some(action), wide };
    let runs =
        args.run.iter().map(|line| action(grant_action::Action::Run(line.clone()), args.any_arguments));
    let reads = args.read.iter().map(|path| action(grant_action::Action::Read(path.clone()), args.beneath));
    let writes =
        args.write.iter().map(|path| action(grant_action::Action::Write(path.clone()), args.beneath));
    let fetches = args.fetch.iter().map(|url| action(grant_action::Action::Fetch(url.clone()), false));
    let like = match &args.like {
        Some(like) => Some(named_request(client, like).await?),
        None => None,
    };
    let approval_id = match &args.approval {
        Some(approval) => approvals::resolve(client, approval).await?,
        None => String::new(),
    };
    let ttl_seconds = args.time.as_secs();
    if ttl_seconds == 0 {
        return Err("--for must be a second at least".to_owned());
    }
    Ok(CreateGrantRequest {
        scope: Some(scope(client, &args.scope).await?),
        actions: runs.chain(reads).chain(writes).chain(fetches).collect(),
        like,
        approval_id,
        cwd: args.cwd.clone().unwrap_or_default(),
        ttl_seconds,
        max_uses: args.uses.unwrap_or_default(),
        reason: args.reason.clone(),
        ..CreateGrantRequest::default()
    })
}

async fn scope(client: &Client, args: &GrantScopeArgs) -> Result<GrantScope, String> {
    let scope = match args {
        GrantScopeArgs { session: Some(session), .. } => {
            grant_scope::Scope::SessionId(session_id(client, session).await?.to_string())
        }
        GrantScopeArgs { root: Some(root), .. } => {
            let root = std::path::absolute(root).map_err(|error| format!("--root: {error}"))?;
            grant_scope::Scope::Root(root.display().to_string())
        }
        GrantScopeArgs { user: Some(user), .. } => grant_scope::Scope::User(user.clone()),
        GrantScopeArgs { team: Some(team), .. } => grant_scope::Scope::Team(team.clone()),
        _ => return Err("say where it holds: --session, --root, --user or --team".to_owned()),
    };
    Ok(GrantScope { scope: Some(scope) })
}

async fn named_request(client: &Client, like: &str) -> Result<GrantLike, String> {
    let parts = like.rsplit_once(':').and_then(|(session, seq)| Some((session, seq.parse().ok()?)));
    let (session, seq) = parts
        .ok_or("--like is a session and a number, such as 0190a1b2:17; `decision_log` has the numbers")?;
    Ok(GrantLike { session_id: session_id(client, session).await?.to_string(), seq })
}

async fn list(global: &Global, args: &ListGrantsArgs) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let session = match &args.session {
        Some(session) => session_id(&client, session).await?.to_string(),
        None => String::new(),
    };
    let (grants, has_more) = some(&client, session, args.limit as usize).await?;
    if args.json {
        let grants: Vec<_> = grants.iter().map(as_json).collect();
        return print_json(&json!({ "grants": grants, "has_more": has_more }));
    }
    if grants.is_empty() {
        say(COMMAND, "no grant holds; `conductor grants give` gives one");
        return Ok(());
    }
    let mut table = Table::new(0);
    table.row(["ID", "SCOPE", "WHAT", "USES", "LEFT", "BY"]);
    for grant in &grants {
        table.row([
            grant.id.clone(),
            escape(where_of(grant).as_bytes(), SHOWN),
            escape(grant.parts.join("; ").as_bytes(), SHOWN),
            uses(grant),
            left(grant),
            escape(grant.author.as_bytes(), SHOWN),
        ]);
    }
    let style = Style::of(&stdout());
    let mut lines = table.lines().into_iter();
    let mut out = lines.next().map(|header| format!("{}\n", style.bold(&header))).unwrap_or_default();
    lines.for_each(|line| out.push_str(&(line + "\n")));
    print(&out)?;
    if has_more {
        say(COMMAND, &format!("there are more than {}; --limit shows more", grants.len()));
    }
    Ok(())
}

async fn show(global: &Global, args: &ShowGrantArgs) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let id = resolve(&client, &args.id).await?;
    let got =
        client.grants().get(GetGrantRequest { id }).await.map_err(|status| explain(&client, &status))?;
    let grant = got.into_inner().grant.unwrap_or_default();
    if args.json {
        return print_json(&as_json(&grant));
    }
    let mut table = Table::new(0);
    table.row(["grant", &grant.id]);
    table.row(["for", &escape(where_of(&grant).as_bytes(), SHOWN_ALONE)]);
    for part in &grant.parts {
        table.row(["allows", &escape(part.as_bytes(), SHOWN_OF_PART)]);
    }
    table.row(["until".to_owned(), format!("{} ({} left)", rfc3339_us(grant.expires_us), left(&grant))]);
    table.row(["used", &uses(&grant)]);
    table.row(["given".to_owned(), rfc3339_us(grant.given_us)]);
    table.row(["by", &escape(grant.author.as_bytes(), SHOWN_ALONE)]);
    if !grant.reason.is_empty() {
        table.row(["because", &escape(grant.reason.as_bytes(), SHOWN_ALONE)]);
    }
    print(&(table.lines().join("\n") + "\n"))
}

async fn revoke(global: &Global, args: &RevokeGrantArgs) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    match (&args.id, &args.by) {
        (Some(id), _) => {
            let grant = take_back(&client, resolve(&client, id).await?, &args.reason).await;
            let grant = grant.map_err(|status| explain(&client, &status))?;
            print(&if args.json { in_json(&as_json(&grant)) } else { revoked(&grant) })
        }
        (None, by) => revoke_all(&client, by.as_deref().unwrap_or_default(), args).await,
    }
}

/// Takes back all that somebody has given. One that cannot be does not keep the others.
async fn revoke_all(client: &Client, author: &str, args: &RevokeGrantArgs) -> Result<(), String> {
    let grants = all(client).await?;
    let (mut gone, mut failures) = (Vec::new(), Vec::new());
    for grant in grants.into_iter().filter(|grant| grant.author == author) {
        match take_back(client, grant.id.clone(), &args.reason).await {
            Ok(grant) => gone.push(grant),
            // Somebody else was quicker, or its time was over.
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => failures.push(format!("grant {}: {}", grant.id, explain(client, &status))),
        }
    }
    let shown = escape(author.as_bytes(), SHOWN);
    if args.json {
        let gone: Vec<_> = gone.iter().map(as_json).collect();
        print_json(&json!({ "grants": gone }))?;
    } else if gone.is_empty() && failures.is_empty() {
        print(&format!("no grant that holds and that you may see is by {shown}\n"))?;
    } else {
        print(&gone.iter().map(revoked).collect::<String>())?;
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

async fn take_back(client: &Client, id: String, reason: &str) -> Result<Grant, Status> {
    let request = RevokeGrantRequest { id, reason: reason.to_owned() };
    Ok(client.grants().revoke(request).await?.into_inner().grant.unwrap_or_default())
}

fn revoked(grant: &Grant) -> String {
    format!("grant {} for {} is revoked\n", grant.id, escape(where_of(grant).as_bytes(), SHOWN))
}

/// The id that is meant: itself, its beginning, or its end.
async fn resolve(client: &Client, given: &str) -> Result<String, String> {
    if given.parse::<uuid::Uuid>().is_ok() {
        return Ok(given.to_owned());
    }
    if given.len() < ids::SHORTEST {
        return Err(format!(
            "give {} characters of the id at least; `conductor grants ls` lists them",
            ids::SHORTEST
        ));
    }
    let grants = all(client).await?;
    let found = pick(grants.iter().map(|grant| grant.id.as_str()), given, Part::Either)?;
    found.map(str::to_owned).ok_or_else(|| {
        let shown = escape(given.as_bytes(), 40);
        format!(
            "no grant that holds has an id that begins or ends with `{shown}`; `conductor grants ls` lists them"
        )
    })
}

async fn all(client: &Client) -> Result<Vec<Grant>, String> {
    Ok(some(client, String::new(), usize::MAX).await?.0)
}

/// At most so many, and whether there are more.
async fn some(client: &Client, session_id: String, most: usize) -> Result<(Vec<Grant>, bool), String> {
    let (mut grants, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListGrantsRequest { session_id: session_id.clone(), page_size: PAGE, page_token };
        let listed = client.grants().list(request).await.map_err(|status| explain(client, &status))?;
        let listed = listed.into_inner();
        grants.extend(listed.grants);
        page_token = listed.next_page_token;
        if page_token.is_empty() || grants.len() >= most {
            let has_more = !page_token.is_empty() || grants.len() > most;
            grants.truncate(most);
            return Ok((grants, has_more));
        }
    }
}

/// What would be granted, for people: as the service has understood it.
fn preview(shown: &CreateGrantResponse) -> String {
    let grant = shown.grant.clone().unwrap_or_default();
    let text = |text: &str| escape(text.as_bytes(), SHOWN_ALONE);
    let mut out = format!("For {}, this is allowed without asking:\n", text(&where_of(&grant)));
    for part in &shown.parts {
        let why = match part.decision() {
            PolicyEffect::Allow => {
                let rule =
                    part.rules.first().map(|rule| format!(" by rule {}", text(rule))).unwrap_or_default();
                format!("allowed already{rule}")
            }
            _ => format!("asked now: {}", text(&part.reason)),
        };
        let what = escape(part.text.as_bytes(), SHOWN_OF_PART);
        out.push_str(&format!("  {what}\n      {why}\n"));
    }
    let times = match grant.max_uses {
        0 => "any number of times".to_owned(),
        1 => "once".to_owned(),
        most => format!("{most} times"),
    };
    out.push_str(&format!("until {} ({} from now), {times}.\n", rfc3339_us(grant.expires_us), left(&grant)));
    let more = if shown.more_sessions { " and more" } else { "" };
    out.push_str(&match (grant.scope.and_then(|scope| scope.scope), shown.session_ids.as_slice()) {
        (Some(grant_scope::Scope::SessionId(_)), _) => String::new(),
        (Some(grant_scope::Scope::Team(_)), _) => {
            "It concerns every session that somebody of the team prompts.\n".into()
        }
        (_, []) => "It concerns no session that you may see yet.\n".into(),
        (_, ids) => format!("It concerns {}{more}.\n", ids.join(", ")),
    });
    out
}

fn where_of(grant: &Grant) -> String {
    match grant.scope.as_ref().and_then(|scope| scope.scope.as_ref()) {
        Some(grant_scope::Scope::SessionId(id)) => format!("session {id}"),
        Some(grant_scope::Scope::Root(root)) => format!("root {root}"),
        Some(grant_scope::Scope::User(user)) => format!("user {user}"),
        Some(grant_scope::Scope::Team(team)) => format!("team {team}"),
        None => "-".to_owned(),
    }
}

fn uses(grant: &Grant) -> String {
    match grant.max_uses {
        0 => grant.uses.to_string(),
        most => format!("{}/{most}", grant.uses),
    }
}

/// How long it still holds.
fn left(grant: &Grant) -> String {
    let expires = UNIX_EPOCH + Duration::from_micros(u64::try_from(grant.expires_us).unwrap_or_default());
    span(expires.duration_since(SystemTime::now()).unwrap_or_default())
}

fn as_json(grant: &Grant) -> Value {
    let (scope, name) = match grant.scope.as_ref().and_then(|scope| scope.scope.as_ref()) {
        Some(grant_scope::Scope::SessionId(id)) => ("session", id.as_str()),
        Some(grant_scope::Scope::Root(root)) => ("root", root.as_str()),
        Some(grant_scope::Scope::User(user)) => ("user", user.as_str()),
        Some(grant_scope::Scope::Team(team)) => ("team", team.as_str()),
        None => ("", ""),
    };
    json!({
        "id": (!grant.id.is_empty()).then_some(&grant.id),
        "scope": scope,
        "scope_name": name,
        "parts": grant.parts,
        "author": grant.author,
        "reason": grant.reason,
        "given_us": grant.given_us,
        "expires_us": grant.expires_us,
        "max_uses": (grant.max_uses != 0).then_some(grant.max_uses),
        "uses": grant.uses,
    })
}

/// What was granted, or would be, for machines.
fn as_answer(answer: &CreateGrantResponse) -> String {
    let mut shown = as_json(&answer.grant.clone().unwrap_or_default());
    let judged = answer.parts.iter().map(|part| {
        let decision = match part.decision() {
            PolicyEffect::Allow => "allow",
            PolicyEffect::Deny => "deny",
            _ => "ask",
        };
        json!({ "text": part.text, "decision": decision, "rules": part.rules, "reason": part.reason })
    });
    shown["judged"] = judged.collect();
    shown["session_ids"] = json!(answer.session_ids);
    shown["more_sessions"] = answer.more_sessions.into();
    shown["digest"] = json!(answer.digest);
    in_json(&shown)
}
