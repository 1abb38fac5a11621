//! Who may make which call. The protos say it beside each rpc, the build makes
//! a table of it, and this layer goes by the table before a service sees the
//! call. What a caller must have to do with the session that a call names, it
//! puts beside the call; the services hand that to the router with the id.

use std::task::{Context, Poll};

use futures_util::future::Either;
use http::{Request, Response};
use tonic::{Status, body::Body};
use tower::{Layer, Service};
use uuid::Uuid;

use super::{layers::is_open, reading::Turns};
use crate::{
    identity::{Caller, Relation, Role},
    router::NotAdmitted,
};

/// Reflection tells what everybody can read in the protos; any token will do.
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/";

/// What the protos say of one rpc.
struct Row {
    path: &'static str,
    /// For each of [`Role::ALL`]; nothing if it may not call.
    relations: [Option<Relation>; Role::ALL.len()],
    /// Its requests are a stream.
    is_stream: bool,
}

/// Every rpc, in the order of its path.
const TABLE: &[Row] = include!(concat!(env!("OUT_DIR"), "/rights.rs"));

/// Every service of ours, by the name that it has in paths.
pub(super) fn services() -> impl Iterator<Item = &'static str> + Send {
    let service = |row: &'static Row| row.path.trim_start_matches('/').split('/').next().unwrap_or_default();
    // Those of one service stand together.
    let mut last = "";
    TABLE.iter().map(service).filter(move |name| std::mem::replace(&mut last, *name) != *name)
}

/// What becomes of a call.
enum Right {
    /// It is let in, for sessions to which the caller has this to do.
    Granted { relation: Relation, is_stream: bool },
    /// It is for others.
    Denied(&'static Row),
    /// There is no such call.
    Unknown,
}

fn right(path: &str, caller: &Caller) -> Right {
    if path.starts_with(REFLECTION) {
        return Right::Granted { relation: Relation::Nothing, is_stream: true };
    }
    let Ok(at) = TABLE.binary_search_by_key(&path, |row| row.path) else { return Right::Unknown };
    let row = &TABLE[at];
    let roles = Role::ALL.iter().zip(row.relations).filter(|(role, _)| caller.roles.contains(role));
    match roles.filter_map(|(_, relation)| relation).max() {
        Some(relation) => Right::Granted { relation, is_stream: row.is_stream },
        None => Right::Denied(row),
    }
}

impl Row {
    /// Whom the call is for, in words.
    fn people(&self) -> String {
        let may = Role::ALL.iter().zip(self.relations).filter(|(_, relation)| relation.is_some());
        let people: Vec<_> = may.map(|(role, _)| role.people()).collect();
        match people.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
            None => "nobody".to_owned(),
        }
    }
}

/// Lets a call in if a role of its caller's may make it.
#[derive(Debug, Clone, Default)]
pub(super) struct Authorised {
    turns: Turns,
}

impl<S> Layer<S> for Authorised {
    type Service = AuthorisedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AuthorisedService { inner, turns: self.turns.clone() }
    }
}

#[derive(Debug, Clone)]
pub(super) struct AuthorisedService<S> {
    inner: S,
    turns: Turns,
}

impl<S> Service<Request<Body>> for AuthorisedService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, std::future::Ready<Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if is_open(&request) {
            return Either::Left(self.inner.call(request));
        }
        let refused = match request.extensions().get::<Caller>() {
            Some(caller) => match right(request.uri().path(), caller) {
                Right::Granted { relation, is_stream } => {
                    let user = caller.user.clone();
                    request.extensions_mut().insert(relation);
                    if !is_stream {
                        request = request.map(|body| self.turns.await_turn(&user, body));
                    }
                    return Either::Left(self.inner.call(request));
                }
                Right::Denied(row) => denied(row, caller),
                Right::Unknown => Status::unimplemented("there is no such call"),
            },
            None => no_caller(),
        };
        Either::Right(std::future::ready(Ok(refused.into_http())))
    }
}

fn denied(row: &Row, caller: &Caller) -> Status {
    let (people, roles) = (row.people(), caller.role_names());
    tracing::warn!(user = caller.user, roles, path = row.path, "call refused: it is not for this role");
    let yours =
        if roles.is_empty() { "you have no role".to_owned() } else { format!("your role is {roles}") };
    Status::permission_denied(format!(
        "this is for {people}, and {yours}; ask an administrator, or use the service's own token on its host"
    ))
}

fn no_caller() -> Status {
    Status::internal("a call without a caller")
}

/// Who calls, and what they must have to do with the session that the call
/// names.
#[derive(Debug, Clone)]
pub(super) struct Admitted {
    pub(super) caller: Caller,
    pub(super) relation: Relation,
}

impl Admitted {
    /// Of a call that was let in.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Result<Self, Status> {
        let relation = request.extensions().get::<Relation>().copied();
        let relation = relation.ok_or_else(|| Status::internal("a call without a right"))?;
        Ok(Self { caller: caller(request)?, relation })
    }

    /// Whether the caller may know of everything, whosever it is.
    pub(super) fn sees_all(&self) -> bool {
        self.relation == Relation::Any
    }

    /// What a caller is told who was not let at a session. What is not there and
    /// what they may not know of looks the same, here as in the log.
    pub(super) fn refusal(&self, id: Uuid, why: NotAdmitted) -> Status {
        let user = self.caller.user.as_str();
        match why {
            NotAdmitted::Nothing => {
                tracing::info!(session.id = %id, user, "call refused: no such session, or not for this user");
                nothing(id)
            }
            NotAdmitted::NotTheirs(owner) => {
                tracing::info!(session.id = %id, user, "call refused: the session is shared for less than this");
                Status::permission_denied(match self.relation {
                    Relation::Driven => {
                        "you may watch this session, but not drive it; its owner can share it with you as a driver"
                            .to_owned()
                    }
                    _ => format!(
                        "the session is {owner}'s and only shared with you; its owner or an administrator can do this"
                    ),
                })
            }
        }
    }
}

/// Who calls.
pub(super) fn caller<T>(request: &tonic::Request<T>) -> Result<Caller, Status> {
    request.extensions().get::<Caller>().cloned().ok_or_else(no_caller)
}

/// What is not there, and what is not the caller's.
pub(super) fn nothing(id: Uuid) -> Status {
    Status::not_found(format!("there is no session {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(roles: &[Role]) -> Caller {
        Caller { user: "ann".into(), teams: Vec::new(), roles: roles.to_vec() }
    }

    fn granted(path: &str, roles: &[Role]) -> Option<Relation> {
        match right(path, &with(roles)) {
            Right::Granted { relation, .. } => Some(relation),
            Right::Denied(_) | Right::Unknown => None,
        }
    }

    #[test]
    fn the_widest_of_several_roles_counts_and_no_role_is_none() {
        let observe = "/conductor.v1.Sessions/Observe";
        assert_eq!(granted(observe, &[Role::Developer]), Some(Relation::Seen));
        assert_eq!(granted(observe, &[Role::Developer, Role::Auditor]), Some(Relation::Any));
        assert_eq!(granted(observe, &[]), None);
        assert_eq!(granted("/conductor.v1.Sessions/Prompt", &[Role::Auditor]), None);
        assert_eq!(granted("/conductor.v1.Sessions/Nothing", &[Role::Admin]), None);
        assert_eq!(granted("", &[Role::Admin]), None);
    }

    #[test]
    fn whoever_is_refused_reads_whom_it_is_for() {
        let Right::Denied(row) = right("/conductor.v1.Sessions/Prompt", &with(&[Role::Auditor])) else {
            unreachable!("auditors prompt nobody")
        };
        let text = denied(row, &with(&[Role::Auditor])).message().to_owned();
        assert!(
            text.starts_with(
                "this is for developers, approvers and administrators, and your role is auditor;"
            ),
            "{text}"
        );
    }

    /// What is looked up by halving must be in order.
    #[test]
    fn the_table_is_in_order() {
        assert!(TABLE.is_sorted_by_key(|row| row.path));
        assert!(TABLE.len() > 25, "{} calls", TABLE.len());
    }
}
