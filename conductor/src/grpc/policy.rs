//! The `Policy` service: what the rules in force say, and which they are.

use std::{
    env,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tonic::{Request, Response, Status};

use super::rights::Admitted;
use crate::{
    clock::micros,
    connection::{Hub, rules_in},
    frame::escape,
    identity::{Role, check_name},
    policy::{Effect, Judged, Question, Verdict, approvers},
    proto::{
        ExplainRequest, ExplainResponse, GetRevisionRequest, GetRevisionResponse, JudgedPart, PolicyEffect,
        policy_server::Policy,
    },
};

#[derive(Debug)]
pub(super) struct PolicyService {
    hub: Hub,
    /// Where programs are looked for.
    search: Vec<PathBuf>,
}

impl PolicyService {
    pub(super) fn new(hub: Hub) -> Self {
        let search = env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
        Self { hub, search }
    }

    fn question(&self, who: &Admitted, request: ExplainRequest) -> Result<Question, Status> {
        let (user, teams, role) = subject(who, &request)?;
        let action = serde_json::from_str(&request.action_json)
            .map_err(|error| Status::invalid_argument(format!("`action_json` is not JSON: {error}")))?;
        let cwd = directory(&self.hub, &request.agent, &request.cwd)?;
        let mut roots = vec![cwd.clone()];
        for given in &request.additional_directories {
            if given.is_empty() {
                return Err(Status::invalid_argument("an additional directory has no name"));
            }
            roots.push(directory(&self.hub, &request.agent, given)?);
        }
        Ok(Question {
            user: Some(user),
            teams: Some(teams),
            role: Some(role),
            agent: Some(request.agent),
            mode: request.mode,
            model: request.model,
            cwd: Some(cwd),
            roots: Some(roots),
            interactive: Some(!request.non_interactive),
            action,
        })
    }
}

#[tonic::async_trait]
impl Policy for PolicyService {
    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        let who = Admitted::of(&request)?;
        let question = self.question(&who, request.into_inner())?;
        let roots = question.roots.as_deref().unwrap_or_default();
        let policy = rules_in(&self.hub, roots, question.user.as_deref());
        let explained = question.explain(&policy, Path::new("/"), &self.search);
        let explained = explained.map_err(Status::invalid_argument)?;
        let Verdict { decision: outcome, rule, rules, reason, sub_actions, asks } = explained.verdict;
        let parts = sub_actions.iter().map(|judged| part(judged, who.sees_all())).collect();
        Ok(Response::new(ExplainResponse {
            decision: decision(outcome).into(),
            rule: rule.unwrap_or_default(),
            rules,
            reason,
            parts,
            revision: explained.revision,
            approvers: match outcome {
                Effect::Ask if approvers::asks_driver(&asks) => {
                    format!("whoever drives the session, or {}", approvers::people(&asks))
                }
                Effect::Ask => approvers::people(&asks),
                _ => String::new(),
            },
        }))
    }

    async fn get_revision(
        &self,
        request: Request<GetRevisionRequest>,
    ) -> Result<Response<GetRevisionResponse>, Status> {
        let who = Admitted::of(&request)?;
        let policy = self.hub.policy.current();
        let mut response = GetRevisionResponse {
            revision: policy.revision().to_owned(),
            rules: u32::try_from(policy.rule_count()).unwrap_or(u32::MAX),
            loaded_us: micros(policy.loaded_at()),
            ..GetRevisionResponse::default()
        };
        if who.sees_all() {
            response.file = policy.file().map(|file| file.display().to_string()).unwrap_or_default();
            response.refused = self.hub.policy.refused.borrow().clone().unwrap_or_default();
        }
        Ok(Response::new(response))
    }
}

/// A directory of the session that is asked about. Whoever asks shall not learn of places
/// where they can have no session.
pub(super) fn directory(hub: &Hub, agent: &str, given: &str) -> Result<PathBuf, Status> {
    let config = hub.config.borrow();
    let roots = config.agents.get(agent).and_then(|agent| agent.roots.as_ref()).unwrap_or(&config.roots);
    let roots: Vec<_> = roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
    if given.is_empty() {
        let first = roots.first().cloned();
        return first.ok_or_else(|| Status::invalid_argument("this service has no roots; give a `cwd`"));
    }
    let resolved = Path::new(given).canonicalize().ok().filter(|path| path.is_absolute());
    resolved.filter(|path| roots.iter().any(|root| path.starts_with(root))).ok_or_else(|| {
        let shown = escape(given.as_bytes(), 500);
        let text = format!("`{shown}` is no directory beneath the roots that this conductor allows");
        Status::invalid_argument(text)
    })
}

/// Whom a request is about: user, teams, role.
fn subject(who: &Admitted, request: &ExplainRequest) -> Result<(String, Vec<String>, String), Status> {
    let caller = &who.caller;
    let names_other = !request.user.is_empty() && request.user != caller.user;
    if !who.sees_all() && (names_other || !request.teams.is_empty() || !request.role.is_empty()) {
        let text =
            "only administrators and auditors may ask about others; leave `user`, `teams` and `role` empty";
        return Err(Status::permission_denied(text));
    }
    let describes = !request.teams.is_empty() || !request.role.is_empty();
    if request.user.is_empty() && describes {
        let text = "user: `teams` and `role` describe the user that is named, and none is";
        return Err(Status::invalid_argument(text));
    }
    // Whoever names themselves is who they are.
    if request.user.is_empty() || (request.user == caller.user && !describes) {
        let role = caller.role().map(Role::name).unwrap_or_default();
        return Ok((caller.user.clone(), caller.teams.clone(), role.to_owned()));
    }
    let named = check_name("user", &request.user)
        .and_then(|()| request.teams.iter().try_for_each(|team| check_name("team", team)));
    named.map_err(Status::invalid_argument)?;
    let role = Role::given(&request.role).map_err(Status::invalid_argument)?;
    Ok((request.user.clone(), request.teams.clone(), role.name().to_owned()))
}

pub(super) fn decision(effect: Effect) -> PolicyEffect {
    match effect {
        Effect::Allow => PolicyEffect::Allow,
        Effect::Ask => PolicyEffect::Ask,
        Effect::Deny => PolicyEffect::Deny,
    }
}

fn part(judged: &Judged, tells_all: bool) -> JudgedPart {
    let mut action = serde_json::to_value(&judged.action).unwrap_or_default();
    if !tells_all {
        hide_outside(&mut action);
    }
    JudgedPart {
        action_json: action.to_string(),
        decision: decision(judged.decision).into(),
        rules: judged.rules.clone(),
        reason: judged.reason.clone(),
    }
}

/// Takes out where paths outside the roots lead.
fn hide_outside(value: &mut Value) {
    match value {
        Value::Object(keys) => {
            if keys.contains_key("given") && keys.get("root").is_some_and(Value::is_null) {
                keys.insert("resolved".to_owned(), Value::Null);
            }
            keys.values_mut().for_each(hide_outside);
        }
        Value::Array(items) => items.iter_mut().for_each(hide_outside),
        _ => {}
    }
}
