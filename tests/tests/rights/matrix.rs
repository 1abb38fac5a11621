//! Every call × role × relation × token: what comes of it is what the protos
//! say, and nothing is learnt of what one may not know of.

use std::collections::BTreeMap;

use conductor::proto::{DESCRIPTORS, Relation};
use conductor_tests::people::channel;
use prost_reflect::{DescriptorPool, Value};
use tonic::Code;

use crate::{
    calls::{Call, call, grant_like},
    cast::{BONDS, Bond, Cast, PASSES, Pass, Player, ROLES},
    raw,
};

/// Every rpc, and what the protos say of each role.
pub fn table() -> BTreeMap<String, BTreeMap<&'static str, Relation>> {
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let callers = pool.get_extension_by_name("conductor.v1.callers").unwrap();
    let services = pool.services().filter(|service| service.full_name().starts_with("conductor."));
    let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
    let row = |method: prost_reflect::MethodDescriptor| {
        let options = method.options();
        let said = options.get_extension(&callers);
        let relation = |role: &'static str| {
            let Value::EnumNumber(number) = *said.as_message().unwrap().get_field_by_name(role).unwrap()
            else {
                panic!("{role} of {}", method.full_name())
            };
            (role, Relation::try_from(number).unwrap())
        };
        let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
        (path, ROLES.map(relation).into())
    };
    methods.map(row).collect()
}

/// What is to come of a call.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It is made, whatever comes of it.
    Made,
    NoToken,
    NotForRole,
    NotForShare,
    /// As if there were no such session.
    NoSession,
}

fn expected(relation: Relation, call: &Call, bond: Bond, pass: Pass) -> Outcome {
    if pass != Pass::Valid {
        return Outcome::NoToken;
    }
    if relation == Relation::Unspecified {
        return Outcome::NotForRole;
    }
    if !call.names_session {
        return Outcome::Made;
    }
    let has = [Relation::Own, Relation::Driven, Relation::Seen, Relation::Any];
    let has = match bond {
        Bond::Own => &has[..],
        Bond::Drives => &has[1..],
        Bond::Watches => &has[2..],
        Bond::Stranger => &has[3..],
        Bond::NoSuch => return Outcome::NoSession,
    };
    match bond {
        _ if has.contains(&relation) => Outcome::Made,
        Bond::Stranger => Outcome::NoSession,
        _ => Outcome::NotForShare,
    }
}

/// What has come of it.
fn outcome(answer: &Result<bytes::Bytes, tonic::Status>, call: &Call, session: &str) -> Outcome {
    let status = match answer {
        Ok(_) => {
            assert_eq!(call.outcome, None, "it was to fail");
            return Outcome::Made;
        }
        Err(status) => status,
    };
    let text = status.message();
    match (status.code(), call.outcome) {
        (Code::Unauthenticated, _) => Outcome::NoToken,
        (Code::PermissionDenied, _) if text.starts_with("this is for ") => Outcome::NotForRole,
        (Code::PermissionDenied, _) => Outcome::NotForShare,
        (Code::NotFound, _) if text == format!("there is no session {session}") => {
            assert!(status.details().is_empty(), "{status:?}");
            Outcome::NoSession
        }
        (code, Some((wanted, words))) if code == wanted && text.contains(words) => Outcome::Made,
        _ => panic!("{status:?}"),
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v01_every_call_role_relation_and_token() {
    let cast = Cast::new();
    let channel = channel(&cast.service).await;
    let cwd = cast.work().display().to_string();
    let (mut cells, mut wrong) = (0, Vec::new());
    for (path, relations) in table() {
        for player in &cast.players {
            let relation = relations[player.role];
            for (bond, pass) in BONDS.iter().flat_map(|bond| PASSES.map(|pass| (*bond, pass))) {
                let session = cast.session(player, bond);
                let made = call(&path, &session, &cwd)
                    .unwrap_or_else(|| panic!("{path} has no message in calls.rs: add one"));
                let wanted = expected(relation, &made, bond, pass);
                let person = player.presents(pass);
                let answer = raw::call(&channel, &path, person.as_ref(), made.message.clone()).await;
                let came = outcome(&answer, &made, &session);
                cells += 1;
                let cell = format!("{path} by {} with {bond:?} and {pass:?}", player.role);
                if came != wanted {
                    wrong.push(format!("{cell}: {came:?} instead of {wanted:?}: {answer:?}"));
                }
                if let Ok(bytes) = &answer
                    && relation != Relation::Any
                    && [cast.hidden.as_str(), cast.secret].iter().any(|secret| holds(bytes, secret))
                {
                    wrong.push(format!("{cell}: it tells of what is hidden"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cells} cells:\n{}", wrong.len(), wrong.join("\n"));
    assert!(cells >= 1_000, "only {cells} cells");
    refusals_are_on_record(&cast);
}

/// What a grant is to be like is read from a session's record: whoever may give grants for
/// every session may not read every session for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v01_a_grant_is_like_what_its_giver_may_read() {
    let cast = Cast::new();
    let channel = channel(&cast.service).await;
    let reads = [Relation::Own, Relation::Seen, Relation::Unspecified, Relation::Any];
    for (player, relation) in cast.players.iter().zip(reads) {
        for bond in BONDS {
            let session = cast.session(player, bond);
            let made = grant_like(&cast.session(player, Bond::Own), &session);
            let wanted = expected(relation, &made, bond, Pass::Valid);
            let person = player.presents(Pass::Valid);
            let path = "/conductor.v1.Grants/Create";
            let answer = raw::call(&channel, path, person.as_ref(), made.message.clone()).await;
            let came = outcome(&answer, &made, &session);
            assert_eq!(came, wanted, "{} with {bond:?}: {answer:?}", player.role);
        }
    }
}

/// Both what a role and what a session refused is in the log, and neither tells
/// whether there is such a session.
fn refusals_are_on_record(cast: &Cast) {
    let log = cast.service.log();
    for words in ["it is not for this role", "no such session, or not for this user"] {
        assert!(log.contains(words), "{words:?} is not in the log");
    }
}

/// What those see who may see everything: this proves that what the others did
/// not see was there to be seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v01_those_who_may_see_everything_do() {
    let cast = Cast::new();
    let channel = channel(&cast.service).await;
    let sees = |player: &Player| ["auditor", "admin"].contains(&player.role);
    for player in cast.players.iter().filter(|player| sees(player)) {
        for (path, told) in [
            ("/conductor.v1.Agents/List", cast.secret),
            ("/conductor.v1.Agents/Watch", cast.secret),
            ("/conductor.v1.Sessions/List", cast.hidden.as_str()),
            ("/conductor.v1.History/ListSessions", cast.hidden.as_str()),
            ("/conductor.v1.History/GetSession", cast.secret),
        ] {
            let made = call(path, &cast.hidden, "").unwrap();
            let person = player.presents(Pass::Valid);
            let answer = raw::call(&channel, path, person.as_ref(), made.message).await.unwrap();
            assert!(holds(&answer, told), "{path} does not tell a {} of {told}", player.role);
        }
    }
}

/// Whoever sends sessions elsewhere by the health of one service must not learn that there is
/// no such service.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_service_has_a_health() {
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };
    let service = conductor_tests::harness::service(&serde_json::json!({})).start();
    let mut health = HealthClient::new(channel(&service).await);
    let of_path = |path: &String| path.split('/').nth(1).unwrap().to_owned();
    let names: std::collections::BTreeSet<String> = table().keys().map(of_path).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names.into_iter().chain([String::new()]) {
        let checked = health.check(HealthCheckRequest { service: name.clone() }).await;
        let checked = checked.unwrap_or_else(|status| panic!("{name}: {status}")).into_inner();
        assert_eq!(checked.status(), ServingStatus::Serving, "{name}");
    }
}

/// Which calls are open to whom beside ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn v01_reflection_needs_a_token_and_health_does_not() {
    let service = conductor_tests::harness::service(&serde_json::json!({})).start();
    let channel = channel(&service).await;
    let auditor = conductor_tests::people::Person::new(&service, &["--user", "aud", "--role", "auditor"]);
    let health = raw::call(&channel, "/grpc.health.v1.Health/Check", None, bytes::Bytes::new()).await;
    assert!(health.is_ok(), "{health:?}");
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    // Field 7: all services.
    let list = bytes::Bytes::from_static(b"\x3a\0");
    let refused = raw::call(&channel, reflection, None, list.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let told = raw::call(&channel, reflection, Some(&auditor), list).await.unwrap();
    assert!(holds(&told, "conductor.v1.Sessions"));
    for (path, person, code) in [
        ("/conductor.v1.Sessions/Nothing", Some(&auditor), Code::Unimplemented),
        ("/conductor.v1.Nothing/List", Some(&auditor), Code::Unimplemented),
        ("/conductor.v1.Sessions/Nothing", None, Code::Unauthenticated),
        // Nearly a path that needs no token.
        ("/grpc.health.v1.Healthy/Check", None, Code::Unauthenticated),
    ] {
        let status = raw::call(&channel, path, person, bytes::Bytes::new()).await.unwrap_err();
        assert_eq!(status.code(), code, "{path}: {status:?}");
    }
}
