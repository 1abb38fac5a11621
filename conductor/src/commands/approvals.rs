//! `conductor approvals`: what waits for people, and their answers.

mod shown;
mod watching;

use std::{io::stdout, process::ExitCode};

use serde_json::json;

use self::shown::{as_json, block, outcome, time_left};
use super::{
    finish::{explain, finish, say},
    ids::{self, Part, pick},
    table::Table,
    terminal::{Style, in_json, print, print_json},
};
use crate::{
    cli::{AnswerApprovalArgs, ApprovalsAction, ApprovalsArgs, Global, ListApprovalsArgs, ShowApprovalArgs},
    client::Client,
    clock,
    frame::escape,
    proto::{Answer, Approval, DecideApprovalRequest, GetApprovalRequest, ListApprovalsRequest},
    record::now_us,
};

/// What messages are said under.
const COMMAND: &str = "approvals";

/// Characters of an id in a table. Ids begin with the time, so their ends differ most.
const SHORT_ID: usize = 8;

/// Characters of what would be done in a table.
const SHOWN: usize = 60;

/// Runs the command.
pub fn run(global: &Global, args: &ApprovalsArgs) -> ExitCode {
    finish(COMMAND, async {
        match &args.action {
            ApprovalsAction::Ls(args) => list(global, args).await,
            ApprovalsAction::Show(args) => show(global, args).await,
            ApprovalsAction::Watch(args) => watching::run(global, args).await,
            ApprovalsAction::Allow(args) => answer(global, args, Answer::Allow).await,
            ApprovalsAction::Deny(args) => answer(global, args, Answer::Deny).await,
        }
    })
}

async fn list(global: &Global, args: &ListApprovalsArgs) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let request = ListApprovalsRequest {
        include_ended: args.all,
        session_id: args.session.clone().unwrap_or_default(),
        limit: args.limit,
    };
    let listed = client.approvals().list(request).await.map_err(|status| explain(&client, &status))?;
    let listed = listed.into_inner();
    if args.json {
        let all: Vec<_> = listed.approvals.iter().map(as_json).collect();
        return print_json(&json!({ "approvals": all, "has_more": listed.has_more }));
    }
    if listed.approvals.is_empty() {
        let none = match args.all {
            true => "nothing was left to people yet that you may see",
            false => "nothing waits for an answer; --all lists what was answered, too",
        };
        say(COMMAND, none);
        return Ok(());
    }
    let now = now_us();
    let mut table = Table::new(0);
    table.row(["ID", "AGE", "LEFT", "FOR", "AGENT", "RULE", "STATE", "WOULD"]);
    for approval in &listed.approvals {
        let text = |text: &str| if text.is_empty() { "-".to_owned() } else { escape(text.as_bytes(), SHOWN) };
        let state = match (&approval.outcome, approval.may_answer) {
            (Some(ended), _) => outcome(ended),
            (None, true) => "waits for you".to_owned(),
            (None, false) => format!("waits for {}", approval.approvers),
        };
        table.row([
            approval.id.chars().skip(approval.id.len().saturating_sub(SHORT_ID)).collect(),
            clock::age(shown::since(approval.asked_us, now)),
            time_left(approval, now),
            text(&approval.user),
            text(&approval.agent),
            text(&approval.rule),
            text(&state),
            text(approval.actions.first().unwrap_or(&approval.title)),
        ]);
    }
    let style = Style::of(&stdout());
    let mut lines = table.lines().into_iter();
    let mut out = lines.next().map(|header| format!("{}\n", style.bold(&header))).unwrap_or_default();
    lines.for_each(|line| out.push_str(&(line + "\n")));
    print(&out)?;
    if listed.has_more {
        say(COMMAND, &format!("there are more than {}; --limit shows more", listed.approvals.len()));
    }
    Ok(())
}

async fn show(global: &Global, args: &ShowApprovalArgs) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let id = resolve(&client, &args.id).await?;
    let approval = whole(&client, &id).await?;
    print(&match args.json {
        true => in_json(&as_json(&approval)),
        false => block(&approval, now_us(), Style::of(&stdout())),
    })
}

async fn answer(global: &Global, args: &AnswerApprovalArgs, answer: Answer) -> Result<(), String> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let id = resolve(&client, &args.id).await?;
    let approval = decide(&client, id, answer, &args.reason).await?;
    print(&match args.json {
        true => in_json(&as_json(&approval)),
        false => said(&approval),
    })
}

/// All of a question; lists have only the beginning.
async fn whole(client: &Client, id: &str) -> Result<Approval, String> {
    let got = client.approvals().get(GetApprovalRequest { id: id.to_owned() }).await;
    Ok(got.map_err(|status| explain(client, &status))?.into_inner().approval.unwrap_or_default())
}

/// What is said of an answer that counts.
fn said(approval: &Approval) -> String {
    let what = approval.actions.first().unwrap_or(&approval.title);
    let how = approval.outcome.as_ref().map(|outcome| outcome.how.as_str()).unwrap_or_default();
    format!("{how}: {}, for {}\n", escape(what.as_bytes(), 200), escape(approval.user.as_bytes(), 100))
}

async fn decide(client: &Client, id: String, answer: Answer, reason: &str) -> Result<Approval, String> {
    let request = DecideApprovalRequest { id, answer: answer.into(), reason: reason.to_owned() };
    let decided = client.approvals().decide(request).await;
    Ok(decided.map_err(|status| explain(client, &status))?.into_inner().approval.unwrap_or_default())
}

/// The id that is meant: itself, or its end.
pub(super) async fn resolve(client: &Client, given: &str) -> Result<String, String> {
    if given.parse::<uuid::Uuid>().is_ok() {
        return Ok(given.to_owned());
    }
    if !ids::is_part(given) || given.len() < ids::SHORTEST {
        return Err("that is no id; `conductor approvals ls` lists them".to_owned());
    }
    let request = ListApprovalsRequest { include_ended: true, limit: 1000, ..Default::default() };
    let listed = client.approvals().list(request).await.map_err(|status| explain(client, &status))?;
    let listed = listed.into_inner().approvals;
    let found = pick(listed.iter().map(|approval| approval.id.as_str()), given, Part::End)?;
    let none = || format!("no id ends with `{given}`; `conductor approvals ls --all` lists them");
    found.map(str::to_owned).ok_or_else(none)
}
