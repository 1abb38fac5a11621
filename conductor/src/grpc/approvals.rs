//! The `Approvals` service: what waits for people, and their answers.

use std::{collections::HashSet, pin::Pin};

use futures_util::{Stream, stream};
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::{history::id, rights::Admitted};
use crate::{
    approvals::{self, Entry},
    clock,
    connection::Hub,
    policy::text,
    proto::{
        self, Answer, ApprovalDiff, ApprovalOutcome, DecideApprovalRequest, DecideApprovalResponse,
        GetApprovalRequest, GetApprovalResponse, ListApprovalsRequest, ListApprovalsResponse,
        WatchApprovalsRequest, WatchApprovalsResponse, approvals_server::Approvals,
    },
    router::Access,
    session::Decided,
};

/// Questions in one answer, unless the caller says so, and at most.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// What would be done, in lists: so many things, with so many characters each.
const MOST_IN_BRIEF: usize = 8;
const LONGEST_IN_BRIEF: usize = 300;

/// Characters of what an approver says about an answer.
const LONGEST_REASON: usize = 1000;

#[derive(Debug)]
pub(super) struct ApprovalsService {
    hub: Hub,
}

impl ApprovalsService {
    pub(super) fn new(hub: Hub) -> Self {
        Self { hub }
    }

    /// A question that the caller may see.
    fn find(&self, given: &str, who: &Admitted) -> Result<Entry, Status> {
        let id = id("id", given)?;
        let entry = self.hub.approvals.get(id).filter(|entry| may_see(&self.hub, who, &entry.approval));
        entry.ok_or_else(|| nothing(id))
    }
}

pub(super) fn nothing(id: Uuid) -> Status {
    Status::not_found(format!(
        "there is no approval {id}, or it ended long ago; the ledger has all that there were"
    ))
}

fn drives(hub: &Hub, who: &Admitted, session: Uuid) -> bool {
    hub.router.access(session, &who.caller).is_some_and(Access::drives)
}

/// Whether somebody may know of a question: the session is theirs to see, or the answer
/// theirs to give.
pub(super) fn may_see(hub: &Hub, who: &Admitted, approval: &approvals::Approval) -> bool {
    who.sees_all()
        || hub.router.access(approval.session, &who.caller).is_some()
        || approval.refusal(&who.caller, false).is_none()
}

#[tonic::async_trait]
impl Approvals for ApprovalsService {
    async fn list(
        &self,
        request: Request<ListApprovalsRequest>,
    ) -> Result<Response<ListApprovalsResponse>, Status> {
        let who = Admitted::of(&request)?;
        let ListApprovalsRequest { include_ended, session_id, limit } = request.into_inner();
        let session = match session_id.as_str() {
            "" => None,
            given => Some(id("session_id", given)?),
        };
        let limit = match limit as usize {
            0 => PAGE,
            limit => limit.min(LARGEST_PAGE),
        };
        let mut found = self.hub.approvals.list(include_ended, |approval| {
            session.is_none_or(|session| session == approval.session) && may_see(&self.hub, &who, approval)
        });
        let has_more = found.len() > limit;
        found.truncate(limit);
        let approvals = found.iter().map(|entry| in_brief(&self.hub, &who, entry)).collect();
        Ok(Response::new(ListApprovalsResponse { approvals, has_more }))
    }

    async fn get(
        &self,
        request: Request<GetApprovalRequest>,
    ) -> Result<Response<GetApprovalResponse>, Status> {
        let who = Admitted::of(&request)?;
        let entry = self.find(&request.get_ref().id, &who)?;
        Ok(Response::new(GetApprovalResponse { approval: Some(shown(&self.hub, &who, &entry)) }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchApprovalsResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<WatchApprovalsRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let who = Admitted::of(&request)?;
        let watching = Watching { hub: self.hub.clone(), who, known: None };
        let changes = self.hub.approvals.watch();
        let closing = self.hub.closing.clone();
        let messages = stream::unfold((watching, changes), move |(mut watching, mut changes)| {
            let closing = closing.clone();
            async move {
                loop {
                    if let Some(message) = watching.news() {
                        return Some((Ok(message), (watching, changes)));
                    }
                    tokio::select! {
                        () = changes.next() => {}
                        () = closing.cancelled() => return None,
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(messages)))
    }

    async fn decide(
        &self,
        request: Request<DecideApprovalRequest>,
    ) -> Result<Response<DecideApprovalResponse>, Status> {
        let who = Admitted::of(&request)?;
        let request = request.into_inner();
        let allow = match request.answer() {
            Answer::Allow => true,
            Answer::Deny => false,
            Answer::Unspecified => {
                return Err(Status::invalid_argument("answer: it must be allow or deny"));
            }
        };
        if request.reason.chars().count() > LONGEST_REASON {
            return Err(Status::invalid_argument(format!(
                "reason: it has more than {LONGEST_REASON} characters"
            )));
        }
        let entry = self.find(&request.id, &who)?;
        let approval = entry.approval.clone();
        if entry.outcome.is_some() {
            return Err(ended(&entry));
        }
        if let Some(why) = approval.refusal(&who.caller, drives(&self.hub, &who, approval.session)) {
            return Err(not_theirs(&why));
        }
        let (caller, user) = (who.caller.clone(), who.caller.user.clone());
        let decided = match self.hub.approvals.session(approval.id) {
            Some(handle) => handle.decide(caller, approval.id, allow, request.reason).await,
            None => Decided::Ended,
        };
        match decided {
            Decided::Taken => {
                tracing::info!(approval = %approval.id, user, allow, "a question was answered");
                let entry = self.find(&request.id, &who)?;
                let approval = Some(shown(&self.hub, &who, &entry));
                Ok(Response::new(DecideApprovalResponse { approval }))
            }
            Decided::Ended => Err(ended(&self.find(&request.id, &who)?)),
            Decided::NotTheirs(why) => Err(not_theirs(&why)),
            Decided::NotRecorded(why) => Err(Status::unavailable(format!(
                "it cannot be recorded now, so nobody can allow it; it stays open: {why}"
            ))),
            Decided::NoAllowOnce => Err(Status::failed_precondition(
                "the agent offers no way to allow this one time only, so it can only be denied",
            )),
        }
    }
}

fn not_theirs(why: &str) -> Status {
    Status::permission_denied(format!("you may not answer this: {why}"))
}

/// What somebody is told who comes late.
fn ended(entry: &Entry) -> Status {
    let Some(outcome) = &entry.outcome else {
        return Status::aborted("it is being answered by somebody else");
    };
    let when = clock::rfc3339_us(outcome.at_us);
    let by = outcome.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let why = if outcome.reason.is_empty() { String::new() } else { format!(" ({})", outcome.reason) };
    Status::aborted(format!("it was {}{by} at {when}{why}", outcome.how.name().replace('_', " ")))
}

/// What somebody who watches has been told.
struct Watching {
    hub: Hub,
    who: Admitted,
    known: Option<HashSet<Uuid>>,
}

impl Watching {
    /// What has changed for them; nothing, if others only.
    fn news(&mut self) -> Option<WatchApprovalsResponse> {
        let mut open = self.hub.approvals.list(false, |approval| may_see(&self.hub, &self.who, approval));
        open.truncate(LARGEST_PAGE);
        let now: HashSet<Uuid> = open.iter().map(|entry| entry.approval.id).collect();
        if self.known.as_ref() == Some(&now) {
            return None;
        }
        let gone = self.known.iter().flatten().filter(|id| !now.contains(id));
        // What they may not see any more has not ended for that.
        let ended = gone.filter_map(|id| self.hub.approvals.get(*id));
        let ended =
            ended.filter(|entry| entry.outcome.is_some() && may_see(&self.hub, &self.who, &entry.approval));
        let ended: Vec<_> = ended.collect();
        let shown = |entry: &Entry| in_brief(&self.hub, &self.who, entry);
        let message = WatchApprovalsResponse {
            open: open.iter().map(shown).collect(),
            ended: ended.iter().map(shown).collect(),
        };
        self.known = Some(now);
        Some(message)
    }
}

/// The same for lists, which may be long: what is left out is said.
fn in_brief(hub: &Hub, who: &Admitted, entry: &Entry) -> proto::Approval {
    let mut approval = shown(hub, who, entry);
    approval.diffs.clear();
    let more = approval.actions.len().saturating_sub(MOST_IN_BRIEF);
    approval.actions.truncate(MOST_IN_BRIEF);
    for action in &mut approval.actions {
        // They are escaped already; this only cuts.
        *action = text::shown(action, LONGEST_IN_BRIEF);
    }
    if more > 0 {
        approval.actions.push(format!("… and {more} more"));
    }
    approval
}

fn shown(hub: &Hub, who: &Admitted, entry: &Entry) -> proto::Approval {
    let approval = &entry.approval;
    let why_not = match entry.outcome {
        Some(_) => Some("it has ended".to_owned()),
        None => approval.refusal(&who.caller, drives(hub, who, approval.session)),
    };
    let diffs = approval.diffs.iter().map(|diff| ApprovalDiff {
        path: diff.path.clone(),
        old_text: diff.old.clone(),
        new_text: diff.new.clone(),
        is_claim: diff.is_claim,
    });
    proto::Approval {
        id: approval.id.to_string(),
        session_id: approval.session.to_string(),
        owner: approval.owner.clone(),
        user: approval.user.clone(),
        agent: approval.agent.clone(),
        cwd: approval.cwd.clone(),
        kind: approval.kind.clone(),
        title: approval.title.clone(),
        actions: approval.actions.clone(),
        diffs: diffs.collect(),
        rule: approval.rule.clone().unwrap_or_default(),
        reason: approval.reason.clone(),
        approvers: approval.people(),
        in_session: approval.is_shown,
        asked_us: approval.asked_us,
        due_us: approval.due_us.unwrap_or_default(),
        may_answer: why_not.is_none(),
        why_not: why_not.unwrap_or_default(),
        outcome: entry.outcome.as_ref().map(|outcome| ApprovalOutcome {
            how: outcome.how.name().to_owned(),
            by: outcome.by.clone().unwrap_or_default(),
            reason: outcome.reason.clone(),
            at_us: outcome.at_us,
        }),
    }
}
