//! `conductor usage`: what users and teams have used, and what they may.

use std::{io::stdout, process::ExitCode};

use serde_json::{Value, json};

use super::{
    finish::finish,
    table::Table,
    terminal::{Style, in_json, print},
    turn_usage::count,
};
use crate::{
    cli::{Global, UsageArgs},
    client::Client,
    clock::micros,
    frame::escape,
    identity::{TEAM, USER},
    proto::{GetUsageRequest, PartyUsage, UsedSums, party},
};

/// Characters of a name that are shown in the table.
const SHOWN: usize = 100;

/// Runs the command.
pub fn run(global: &Global, args: &UsageArgs) -> ExitCode {
    finish("usage", show(global, args))
}

async fn show(global: &Global, args: &UsageArgs) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let request = GetUsageRequest {
        user: args.user.clone().unwrap_or_default(),
        team: args.team.clone().unwrap_or_default(),
        since_us: args.since.map(micros).unwrap_or_default(),
    };
    let told = client.limits().get_usage(request).await.map_err(|status| client.explain(&status).message)?;
    let parties = told.into_inner().parties;
    print(&if args.json {
        let parties: Vec<_> = parties.iter().map(as_json).collect();
        in_json(&json!({ "usage": parties }))
    } else {
        table(&parties, args.since.is_some())
    })
}

/// Used and, behind a slash, what may be used.
fn of(used: &impl ToString, most: Option<impl ToString>) -> String {
    match most {
        Some(most) => format!("{} / {}", used.to_string(), most.to_string()),
        None => used.to_string(),
    }
}

fn table(parties: &[PartyUsage], has_since: bool) -> String {
    let mut table = Table::new(0);
    let mut head =
        vec!["WHO", "SESSIONS", "PROCESSES", "PROMPTS/MIN", "PROMPTS TODAY", "TOKENS TODAY", "COST TODAY"];
    if has_since {
        head.extend(["PROMPTS SINCE", "TOKENS SINCE", "COST SINCE"]);
    }
    table.row(head);
    for usage in parties {
        let (today, since) = (usage.today.unwrap_or_default(), usage.since.unwrap_or_default());
        let limits = usage.limits.unwrap_or_default();
        let mut row = vec![
            escape(name(usage).as_bytes(), SHOWN),
            of(&usage.sessions, limits.sessions),
            of(&usage.processes, limits.processes),
            of(&usage.prompts_last_minute, limits.prompts_per_minute),
            count(today.prompts),
            of(&count(today.tokens), limits.tokens_per_day.map(count)),
            of(&money(today.cost), limits.cost_per_day.map(money)),
        ];
        if has_since {
            row.extend([count(since.prompts), count(since.tokens), money(since.cost)]);
        }
        table.row(row);
    }
    let style = Style::of(&stdout());
    let mut lines = table.lines().into_iter();
    let mut out = lines.next().map(|header| format!("{}\n", style.bold(&header))).unwrap_or_default();
    lines.for_each(|line| out.push_str(&(line + "\n")));
    out
}

fn money(amount: f64) -> String {
    format!("{amount:.2}")
}

/// The name, with the mark of a team.
fn name(usage: &PartyUsage) -> String {
    match usage.party.as_ref().and_then(|party| party.party.as_ref()) {
        Some(party::Party::User(name)) => name.clone(),
        Some(party::Party::Team(name)) => format!("{TEAM}{name}"),
        None => "-".to_owned(),
    }
}

fn as_json(usage: &PartyUsage) -> Value {
    let sums = |sums: UsedSums| json!({ "prompts": sums.prompts, "tokens": sums.tokens, "cost": sums.cost });
    let limits = usage.limits.unwrap_or_default();
    let who = name(usage);
    let (kind, name) = match who.strip_prefix(TEAM) {
        Some(team) => (TEAM.trim_end_matches(':'), team),
        None => (USER.trim_end_matches(':'), who.as_str()),
    };
    json!({
        "kind": kind,
        "name": name,
        "sessions": usage.sessions,
        "processes": usage.processes,
        "prompts_last_minute": usage.prompts_last_minute,
        "today": sums(usage.today.unwrap_or_default()),
        "since": sums(usage.since.unwrap_or_default()),
        "limits": {
            "sessions": limits.sessions,
            "processes": limits.processes,
            "prompts_per_minute": limits.prompts_per_minute,
            "tokens_per_day": limits.tokens_per_day,
            "cost_per_day": limits.cost_per_day,
        },
    })
}
