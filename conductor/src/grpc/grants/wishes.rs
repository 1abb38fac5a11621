//! From what somebody wants to grant to sub-actions, and to what the rules say.

use std::{
    env,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tonic::Status;
use uuid::Uuid;

use super::super::{approvals, history::id, policy::directory, rights::Admitted};
use crate::{
    connection::{Hub, rules_in},
    frame::escape,
    grants::{Author, Found, MOST_PARTS, Refused, Scope, Wanted, judge},
    identity::{Relation, Role, check_name},
    policy::{self, Absent, Action, Disk, Effect, Ground, SubAction, Subject, normalise},
    proto::{CreateGrantRequest, GrantAction, GrantLike, GrantScope, grant_action, grant_scope},
    record::note,
};

/// Actions that one request may name.
const MOST_ACTIONS: usize = 20;

/// Characters of a command, a path or an address.
const MOST_TEXT: usize = 4096;

/// Frames behind a request among which the verdict on it is looked for: they are written in
/// one append.
const NEAR: u64 = 4096;

/// A grant that somebody wants to give.
pub(super) struct Wish {
    pub(super) scope: Scope,
    wanted: Vec<Wanted>,
    subject: Subject,
    /// Those for whom it would be asked, as far as that is known.
    own: Vec<String>,
    /// The giver drives the session that it is for.
    drives: bool,
}

impl Wish {
    /// Where it is to hold, if the caller may say so.
    pub(super) fn scope(hub: &Hub, who: &Admitted, given: Option<GrantScope>) -> Result<Scope, Status> {
        let named = |what: &str, name: String| {
            check_name(what, &name)
                .map(|()| name)
                .map_err(|why| Status::invalid_argument(format!("scope: {why}")))
        };
        let scope = match given.and_then(|scope| scope.scope) {
            Some(grant_scope::Scope::SessionId(session)) => {
                let id = id("scope.session_id", &session)?;
                hub.router.admit(id, &who.caller, who.relation).map_err(|why| who.refusal(id, why))?;
                return Ok(Scope::Session(id));
            }
            Some(grant_scope::Scope::Root(root)) => Scope::Root(root.into()),
            Some(grant_scope::Scope::User(user)) => Scope::User(named("user", user)?),
            Some(grant_scope::Scope::Team(team)) => Scope::Team(named("team", team)?),
            None => {
                return Err(Status::invalid_argument(
                    "scope: it must name a session, a root, a user or a team",
                ));
            }
        };
        if !who.sees_all() {
            return Err(Status::permission_denied(
                "grants for a root, a user or a team are for approvers and administrators; give it for one of your \
                 sessions, or ask one of them",
            ));
        }
        match scope {
            Scope::Root(root) if root.as_os_str().is_empty() => {
                Err(Status::invalid_argument("scope.root: it is empty"))
            }
            Scope::Root(root) => Ok(Scope::Root(directory(hub, "", &root.to_string_lossy())?)),
            scope => Ok(scope),
        }
    }

    /// What is wanted, taken apart where it would be done.
    pub(super) async fn new(
        hub: &Hub,
        who: &Admitted,
        scope: Scope,
        request: CreateGrantRequest,
    ) -> Result<Self, Status> {
        let mut wish =
            Self { scope, wanted: Vec::new(), subject: Subject::default(), own: Vec::new(), drives: false };
        let base = wish.place(hub, who, &request.cwd)?;
        let cwd = if request.cwd.is_empty() { base.clone() } else { beneath(&base, &request.cwd)? };
        if request.actions.len() > MOST_ACTIONS {
            let text = format!(
                "a grant may name {MOST_ACTIONS} actions, and this one names {}",
                request.actions.len()
            );
            return Err(Status::invalid_argument(text));
        }
        wish.wanted = taken_apart(request.actions, base, &cwd)?;
        if let Some(like) = request.like {
            let actions = recorded(hub, who, &like).await?;
            wish.wanted.extend(actions.into_iter().map(|action| Wanted { action, is_wide: false }));
        }
        if !request.approval_id.is_empty() {
            let actions = waiting(hub, who, &request.approval_id)?;
            wish.wanted.extend(actions.into_iter().map(|action| Wanted { action, is_wide: false }));
        }
        match wish.wanted.len() {
            0 => Err(Status::invalid_argument("it says nothing that is to be granted")),
            1..=MOST_PARTS => Ok(wish),
            parts => {
                let text =
                    format!("this would do {parts} things at once, and a grant has {MOST_PARTS} at most");
                Err(Status::invalid_argument(text))
            }
        }
    }

    /// The directory that it is seen from, and whom the rules are asked about there.
    fn place(&mut self, hub: &Hub, who: &Admitted, cwd: &str) -> Result<PathBuf, Status> {
        let base = match &self.scope {
            Scope::Session(id) => {
                let row = hub.router.row(*id).ok_or_else(|| super::super::rights::nothing(*id))?;
                self.subject.user = row.owner.clone();
                self.subject.agent = row.agent.to_string();
                // Of others it is not known which teams they are in.
                if row.owner == who.caller.user {
                    self.subject.teams.clone_from(&who.caller.teams);
                    self.subject.role = who.caller.role().map(Role::name).unwrap_or_default().into();
                }
                let access = hub.router.access(*id, &who.caller);
                self.drives = access.is_some_and(crate::router::Access::drives);
                self.own = vec![row.owner];
                row.cwd
            }
            Scope::Root(root) => root.clone(),
            Scope::User(_) | Scope::Team(_) if cwd.is_empty() => {
                return Err(Status::invalid_argument(
                    "cwd: for a user or a team it must be said in which directory; commands and relative paths are \
                     seen from there",
                ));
            }
            Scope::User(user) => {
                (self.subject.user, self.own) = (user.clone(), vec![user.clone()]);
                directory(hub, "", cwd)?
            }
            Scope::Team(team) => {
                self.subject.teams = vec![team.clone()];
                directory(hub, "", cwd)?
            }
        };
        self.subject.cwd.clone_from(&base);
        Ok(base)
    }

    /// What the rules in force say to it.
    pub(super) fn judged(&self, hub: &Hub, who: &Admitted) -> Result<Vec<Found>, Status> {
        let user = Some(self.subject.user.as_str()).filter(|user| !user.is_empty());
        let policy = rules_in(hub, std::slice::from_ref(&self.subject.cwd), user);
        let author = Author { caller: &who.caller, drives: self.drives };
        let own: Vec<&str> = self.own.iter().map(String::as_str).collect();
        let found = judge(&policy, &self.subject, &self.wanted, author, &own);
        let found = found.map_err(|refused| match refused {
            Refused::Denied(why) | Refused::NotTheirs(why) => Status::permission_denied(why),
            Refused::Unclear(why) => Status::invalid_argument(why),
        })?;
        // Whoever gives it for others does not know who changes the file, and to what.
        let is_for_many = !matches!(self.scope, Scope::Session(_));
        if let Some(local) = found.iter().find(|found| is_for_many && found.part.is_local()) {
            return Err(Status::invalid_argument(format!(
                "`{}` cannot be granted for more than one session: an agent may have made or changed this program",
                local.part
            )));
        }
        Ok(found)
    }
}

/// What these would do, seen from a directory. Programs are looked for where agents' commands
/// find them.
fn taken_apart(given: Vec<GrantAction>, root: PathBuf, cwd: &Path) -> Result<Vec<Wanted>, Status> {
    let search = env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let disk = Disk::resolved(vec![root], search, Absent::default());
    let ground = Ground { cwd, resolver: &disk };
    let mut wanted = Vec::new();
    for given in given {
        let is_wide = given.wide;
        let apart = normalise(&action(given)?, &ground);
        if is_wide && apart.len() > 1 {
            let text = "only one command can be granted with any further arguments";
            return Err(Status::invalid_argument(text));
        }
        wanted.extend(apart.into_iter().map(|action| Wanted { action, is_wide }));
    }
    Ok(wanted)
}

/// A directory beneath the one that a grant is for.
fn beneath(base: &Path, given: &str) -> Result<PathBuf, Status> {
    let found = base.join(given).canonicalize().ok().filter(|path| path.starts_with(base) && path.is_dir());
    found.ok_or_else(|| {
        let shown = escape(given.as_bytes(), 500);
        Status::invalid_argument(format!(
            "cwd: `{shown}` is no directory beneath the one that the grant is for"
        ))
    })
}

fn action(given: GrantAction) -> Result<Action, Status> {
    let action = match given.action {
        Some(grant_action::Action::Run(line)) => Action::Shell(line),
        Some(grant_action::Action::Read(path)) => Action::Read(path),
        Some(grant_action::Action::Write(path)) => Action::Write(path),
        Some(grant_action::Action::Fetch(url)) => Action::Fetch(url),
        None => return Err(Status::invalid_argument("actions: one of them says nothing")),
    };
    let (Action::Shell(text) | Action::Read(text) | Action::Write(text) | Action::Fetch(text)) = &action
    else {
        return Err(Status::internal("an action of another sort"));
    };
    if text.trim().is_empty() || text.chars().count() > MOST_TEXT {
        return Err(Status::invalid_argument(format!(
            "actions: one of them is empty or has more than {MOST_TEXT} characters"
        )));
    }
    Ok(action)
}

/// Whoever gives a grant, as a reader. To give grants for every session is not to read all of
/// them: what a grant is made from is read with the right to read.
fn reader(who: &Admitted) -> Admitted {
    let reads_all = [Role::Admin, Role::Auditor].iter().any(|role| who.caller.roles.contains(role));
    let relation = if reads_all { who.relation } else { who.relation.min(Relation::Seen) };
    Admitted { caller: who.caller.clone(), relation }
}

/// What an approval asks.
fn waiting(hub: &Hub, who: &Admitted, given: &str) -> Result<Vec<SubAction>, Status> {
    let (id, who) = (id("approval_id", given)?, reader(who));
    let entry = hub.approvals.get(id).filter(|entry| approvals::may_see(hub, &who, &entry.approval));
    let asked = entry.ok_or_else(|| approvals::nothing(id))?.approval.asked.clone();
    if asked.is_empty() {
        return Err(Status::invalid_argument("approval_id: it asks for more than a grant may be about"));
    }
    Ok(asked)
}

/// What was asked by a request, as the record has it.
async fn recorded(hub: &Hub, who: &Admitted, like: &GrantLike) -> Result<Vec<SubAction>, Status> {
    let (session, who) = (id("like.session_id", &like.session_id)?, reader(who));
    hub.router.admit(session, &who.caller, who.relation).map_err(|why| who.refusal(session, why))?;
    let mut reading = hub.history.frames(session, like.seq, Some(NEAR), false);
    loop {
        let frames = reading.next().await.map_err(|error| Status::unavailable(error.to_string()))?;
        if frames.is_empty() {
            return Err(unasked(session, like.seq));
        }
        let ours = frames.iter().filter(|frame| frame.destination == "record" && frame.origin == "conductor");
        for frame in ours {
            let Ok(line) = serde_json::from_slice::<Value>(&frame.raw) else { continue };
            if line["method"] == note::JUDGED && line["params"]["seq"].as_u64() == Some(like.seq) {
                return asked(&line["params"]["subActions"]).ok_or_else(|| unasked(session, like.seq));
            }
        }
    }
}

fn unasked(session: Uuid, seq: u64) -> Status {
    Status::not_found(format!(
        "session {session} has no request {seq} that was asked about; `decision_log` has the numbers"
    ))
}

/// The sub-actions of a verdict that were not allowed.
fn asked(judged: &Value) -> Option<Vec<SubAction>> {
    let judged = policy::Recorded::list(&judged.to_string()).ok()?;
    let asked = judged.into_iter().filter(|judged| judged.decision != Effect::Allow);
    let actions: Vec<SubAction> = asked.map(|judged| judged.action).collect();
    (!actions.is_empty()).then_some(actions)
}
