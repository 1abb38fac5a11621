//! A question as people and machines see it.

use std::{fmt::Write as _, time::Duration};

use serde_json::{Value, json};

use super::super::{diff, terminal::Style};
use crate::{
    clock,
    frame::escape,
    proto::{Approval, ApprovalOutcome},
};

/// Characters of one line.
const SHOWN: usize = 1000;

pub(super) fn since(at_us: i64, now: i64) -> Duration {
    Duration::from_micros(u64::try_from(now.saturating_sub(at_us)).unwrap_or_default())
}

/// How long a question still waits.
pub(super) fn time_left(approval: &Approval, now: i64) -> String {
    match (&approval.outcome, approval.due_us) {
        (Some(_), _) | (None, 0) => "-".to_owned(),
        (None, due) => clock::span(since(now, due)),
    }
}

/// What became of one, in a few words.
pub(super) fn outcome(outcome: &ApprovalOutcome) -> String {
    let how = outcome.how.replace('_', " ");
    match outcome.by.as_str() {
        "" => how,
        by => format!("{how} by {by}"),
    }
}

/// All that there is to know of one.
pub(super) fn block(approval: &Approval, now: i64, style: Style) -> String {
    // What would be done is shown in full.
    let whole = |text: &str| escape(text.as_bytes(), usize::MAX);
    let one = |text: &str| escape(text.as_bytes(), SHOWN);
    let mut out = String::new();
    let age = clock::age(since(approval.asked_us, now));
    let left = match (&approval.outcome, approval.due_us) {
        (Some(ended), _) => format!("{}, {}", outcome(ended), clock::rfc3339_us(ended.at_us)),
        (None, 0) => "waits".to_owned(),
        (None, _) => format!("{} left", time_left(approval, now)),
    };
    let head = format!("approval {}", one(&approval.id));
    let _ = writeln!(out, "{}  asked {age} ago, {}", style.bold(&head), one(&left));
    let mut line = |name: &str, text: &str| {
        if !text.is_empty() {
            let _ = writeln!(out, "  {} {text}", style.dim(&format!("{name:<8}")));
        }
    };
    for (at, action) in approval.actions.iter().enumerate() {
        line(if at == 0 { "would" } else { "" }, &style.bold(&whole(action)));
    }
    line("for", &format!("{}, with {} in {}", one(&approval.user), one(&approval.agent), one(&approval.cwd)));
    let owner =
        if approval.owner == approval.user { String::new() } else { format!(" of {}", one(&approval.owner)) };
    line("session", &format!("{}{owner}", one(&approval.session_id)));
    let rule = if approval.rule.is_empty() { "none" } else { approval.rule.as_str() };
    line("rule", &format!("{}: {}", one(rule), one(&approval.reason)));
    let besides = if approval.in_session { ", or whoever drives the session" } else { "" };
    line("answers", &format!("{}{besides}", one(&approval.approvers)));
    line("says", &format!("“{}” (the agent's words)", one(&approval.title)));
    if let Some(ended) = &approval.outcome {
        line("because", &one(&ended.reason));
    } else if !approval.may_answer {
        line("not you", &one(&approval.why_not));
    }
    for change in &approval.diffs {
        let what = match change.is_claim {
            true => "this is what the agent says that it will write:",
            false => "this will be written, whatever is there now:",
        };
        let _ = writeln!(out, "  {}", style.dim(what));
        out.push_str(&diff::render(&change.path, change.old_text.as_deref(), &change.new_text, style));
    }
    out
}

pub(super) fn as_json(approval: &Approval) -> Value {
    let diffs: Vec<_> = approval
        .diffs
        .iter()
        .map(|diff| {
            json!({
                "path": diff.path,
                "old_text": diff.old_text,
                "new_text": diff.new_text,
                "is_claim": diff.is_claim,
            })
        })
        .collect();
    let outcome = approval.outcome.as_ref().map(|outcome| {
        json!({
            "how": outcome.how,
            "by": (!outcome.by.is_empty()).then_some(&outcome.by),
            "reason": outcome.reason,
            "at_us": outcome.at_us,
        })
    });
    json!({
        "id": approval.id,
        "session_id": approval.session_id,
        "owner": approval.owner,
        "user": approval.user,
        "agent": approval.agent,
        "cwd": approval.cwd,
        "kind": approval.kind,
        "title": approval.title,
        "actions": approval.actions,
        "diffs": diffs,
        "rule": (!approval.rule.is_empty()).then_some(&approval.rule),
        "reason": approval.reason,
        "approvers": approval.approvers,
        "in_session": approval.in_session,
        "asked_us": approval.asked_us,
        "due_us": (approval.due_us != 0).then_some(approval.due_us),
        "may_answer": approval.may_answer,
        "why_not": (!approval.why_not.is_empty()).then_some(&approval.why_not),
        "outcome": outcome,
    })
}
