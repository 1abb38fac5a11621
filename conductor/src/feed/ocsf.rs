//! Events in the shape of the Open Cybersecurity Schema Framework, for a SIEM. A pure
//! function; README.md, "Feeds", has the table of classes. What the schema has no place for
//! stands in `unmapped`, by the names of the ledger's columns.

use serde_json::{Map, Value as Json, json};

use super::{
    cursor::Cursor,
    event::{Event, Kind},
    line::words,
};

/// The version of the schema whose classes these are.
pub const VERSION: &str = "1.3.0";

/// A class of the schema: its category, its number, its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Class(u32, u32, &'static str);

const FILE: Class = Class(1, 1001, "File System Activity");
const PROCESS: Class = Class(1, 1007, "Process Activity");
const FINDING: Class = Class(2, 2004, "Detection Finding");
const AUTHENTICATION: Class = Class(3, 3002, "Authentication");
const AUTHORIZE: Class = Class(3, 3003, "Authorize Session");
const ACCESS: Class = Class(3, 3005, "User Access Management");
const API: Class = Class(6, 6003, "API Activity");

/// An activity that the class has no number for.
const OTHER: u32 = 99;

/// The class, the activity and its name.
fn class(kind: Kind) -> (Class, u32, &'static str) {
    match kind {
        Kind::SessionOpened => (API, 1, "Create"),
        Kind::SessionReopened => (API, OTHER, "Reopen"),
        Kind::SessionEnded => (API, OTHER, "End"),
        Kind::SessionShared => (ACCESS, 1, "Assign Privileges"),
        Kind::SessionUnshared => (ACCESS, 2, "Revoke Privileges"),
        Kind::SessionJoined => (API, OTHER, "Join"),
        Kind::SessionLeft => (API, OTHER, "Leave"),
        Kind::PromptSent => (API, 1, "Create"),
        Kind::PromptRouted => (API, OTHER, "Route"),
        Kind::PromptEnded => (API, OTHER, "End"),
        Kind::ToolCalled => (API, OTHER, "Call"),
        Kind::ToolEnded => (API, OTHER, "End"),
        Kind::CommandStarted | Kind::ProcessStarted => (PROCESS, 1, "Launch"),
        Kind::CommandChanged => (PROCESS, OTHER, "Change"),
        Kind::CommandEnded | Kind::ProcessEnded | Kind::ProcessCrashed | Kind::ProcessLeftovers => {
            (PROCESS, 2, "Terminate")
        }
        Kind::FileRead => (FILE, 2, "Read"),
        Kind::FileWrite => (FILE, 3, "Update"),
        Kind::FileDelete => (FILE, 4, "Delete"),
        Kind::FileMove => (FILE, 5, "Rename"),
        Kind::FileMention => (FILE, OTHER, "Mention"),
        Kind::FileTouch => (FILE, OTHER, "Touch"),
        Kind::FileFailed => (FILE, OTHER, "Fail"),
        Kind::PermissionDecided => (AUTHORIZE, 1, "Assign Privileges"),
        Kind::ApprovalAsked => (AUTHORIZE, OTHER, "Ask"),
        Kind::ApprovalAnswered => (AUTHORIZE, OTHER, "Answer"),
        Kind::GrantGiven => (ACCESS, 1, "Assign Privileges"),
        Kind::GrantUsed => (AUTHORIZE, OTHER, "Use Grant"),
        Kind::GrantRevoked => (ACCESS, 2, "Revoke Privileges"),
        Kind::EditorConnected => (AUTHENTICATION, 1, "Logon"),
        Kind::EditorDetached => (AUTHENTICATION, OTHER, "Detach"),
        Kind::EditorReattached => (AUTHENTICATION, OTHER, "Reattach"),
        Kind::EditorDisconnected => (AUTHENTICATION, 2, "Logoff"),
        Kind::ToolChanged
        | Kind::ActionUnmediated
        | Kind::ActionUnseen
        | Kind::RecordingGap
        | Kind::RecordingChanged
        | Kind::FeedGap => (FINDING, 1, "Create"),
    }
}

/// 1 is informational, 2 low, 3 medium, 4 high.
fn severity(kind: Kind) -> (u32, &'static str) {
    match kind {
        Kind::ActionUnmediated | Kind::ToolChanged | Kind::RecordingGap | Kind::FeedGap => (4, "High"),
        Kind::ActionUnseen | Kind::RecordingChanged | Kind::ProcessCrashed => (3, "Medium"),
        Kind::FileFailed | Kind::ProcessLeftovers => (2, "Low"),
        _ => (1, "Informational"),
    }
}

/// 0 is unknown, 1 success, 2 failure.
fn status(event: &Event) -> (u32, &'static str) {
    let is = |name: &str, values: &[&str]| event.text(name).is_some_and(|value| values.contains(&value));
    let has = |name: &str| event.details.contains_key(name);
    let failed = match event.kind {
        Kind::PermissionDecided => !is("decision", &["allow"]),
        Kind::ApprovalAnswered => !is("outcome", &["allowed"]),
        Kind::PromptEnded => has("error"),
        Kind::ToolEnded => is("status", &["failed"]),
        Kind::CommandEnded => {
            has("error")
                || has("exit_signal")
                || event.details.get("exit_code").and_then(Json::as_i64).is_some_and(|code| code != 0)
        }
        Kind::FileFailed | Kind::ProcessCrashed => true,
        // What is to be done may still be refused.
        Kind::FileRead
        | Kind::FileWrite
        | Kind::FileDelete
        | Kind::FileMove
        | Kind::FileTouch
        | Kind::CommandStarted
        | Kind::CommandChanged
        | Kind::ToolCalled
        | Kind::ApprovalAsked => return (0, "Unknown"),
        _ => false,
    };
    if failed { (2, "Failure") } else { (1, "Success") }
}

/// An event as the schema has it.
pub fn event(event: &Event, cursor: &Cursor, host: &str) -> Json {
    let (Class(category, class_uid, class_name), activity, activity_name) = class(event.kind);
    let (severity_id, severity) = severity(event.kind);
    let (status_id, status) = status(event);
    let said = words(event);
    let message = format!("{} {said}", event.kind.name());
    let time_ms = event.at_us.div_euclid(1000);
    let mut line = json!({
        "class_uid": class_uid,
        "class_name": class_name,
        "category_uid": category,
        "activity_id": activity,
        "activity_name": activity_name,
        "type_uid": class_uid * 100 + activity,
        "time": time_ms,
        "severity_id": severity_id,
        "severity": severity,
        "status_id": status_id,
        "status": status,
        "message": message.trim_end(),
        "metadata": {
            "version": VERSION,
            "uid": event.uid(),
            "event_code": event.kind.name(),
            "sequence": event.seq,
            "log_provider": "conductor",
            "original_time": super::line::time(event.at_us),
            "product": {
                "name": "conductor",
                "vendor_name": "conductor",
                "version": env!("CARGO_PKG_VERSION"),
            },
        },
    });
    let Some(fields) = line.as_object_mut() else { return line };
    let mut put = |name: &str, value: Json| fields.insert(name.to_owned(), value);
    put("actor", actor(event));
    let user = || user(event.user.as_deref());
    let privileges = || json!([privilege(event)]);
    match class(event.kind).0 {
        FILE => {
            put("device", device(host));
            put("file", file(event));
        }
        PROCESS => {
            put("device", device(host));
            put("process", process(event));
            if let Some(code) = event.details.get("exit_code") {
                put("exit_code", code.clone());
            }
        }
        FINDING => {
            put(
                "finding_info",
                json!({ "uid": event.uid(), "title": title(event.kind), "created_time": time_ms }),
            );
            put("is_alert", true.into());
        }
        AUTHENTICATION => {
            put("user", user());
            put("service", json!({ "name": "conductor" }));
            put("dst_endpoint", json!({ "hostname": host }));
            put("session", json!({ "uid": event.stream.id.to_string() }));
        }
        AUTHORIZE => {
            put("user", user());
            put("privileges", privileges());
            put("session", json!({ "uid": event.session.map(|id| id.to_string()) }));
        }
        ACCESS => {
            put("user", user());
            put("privileges", privileges());
        }
        _ => {
            put("api", json!({ "operation": event.kind.name(), "service": { "name": "conductor" } }));
            put("src_endpoint", json!({ "hostname": host }));
            let session = event.session.map(|id| json!({ "type": "session", "uid": id.to_string() }));
            put("resources", session.into_iter().collect());
        }
    }
    if let Some(error) = ["error", "reason"].iter().find_map(|name| event.text(name)) {
        put("status_detail", error.into());
    }
    let mut ours = Map::new();
    ours.insert("cursor".into(), cursor.to_string().into());
    ours.insert("event".into(), event.kind.name().into());
    ours.insert("stream".into(), event.stream.kind.name().into());
    ours.insert("stream_id".into(), event.stream.id.to_string().into());
    ours.insert("seq".into(), event.seq.into());
    for (name, value) in [
        ("session", event.session.map(|id| id.to_string())),
        ("user", event.user.clone()),
        ("team", event.team.clone()),
        ("agent", event.agent.clone()),
    ] {
        if let Some(value) = value {
            ours.insert(name.into(), value.into());
        }
    }
    ours.insert("details".into(), event.details.clone().into());
    put("unmapped", ours.into());
    line
}

/// Who did it: a person, or else the agent at work for one.
fn actor(event: &Event) -> Json {
    let person = event.by.as_deref().or(event.user.as_deref());
    let mut actor =
        json!({ "user": user(person), "app_name": event.agent.as_deref().unwrap_or("conductor") });
    if let (Some(session), Some(fields)) = (event.session, actor.as_object_mut()) {
        fields.insert("session".into(), json!({ "uid": session.to_string() }));
    }
    if let (Some(team), Some(Json::Object(user))) = (&event.team, actor.get_mut("user")) {
        let groups = team.split(',').map(|team| json!({ "name": team }));
        user.insert("groups".into(), groups.collect());
    }
    actor
}

/// 1 is a person, 3 the system.
fn user(name: Option<&str>) -> Json {
    json!({ "name": name.unwrap_or("conductor"), "type_id": if name.is_some() { 1 } else { 3 } })
}

/// 1 is a server.
fn device(host: &str) -> Json {
    json!({ "hostname": host, "type_id": 1, "type": "Server" })
}

/// 1 is a regular file.
fn file(event: &Event) -> Json {
    let path = event.text("path").unwrap_or_default();
    let name = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path);
    json!({ "path": path, "name": name, "type_id": 1 })
}

fn process(event: &Event) -> Json {
    let line = event.text("line").or_else(|| event.text("command"));
    let mut process = Map::new();
    let program = line.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    process.insert("name".into(), program.rsplit('/').next().unwrap_or_default().into());
    if let Some(line) = line {
        process.insert("cmd_line".into(), line.into());
    }
    if let Some(pid) = event.details.get("pid") {
        process.insert("pid".into(), pid.clone());
    }
    let id = match event.details.get("seq").filter(|_| event.session.is_some()) {
        // A command is named by the frame that tells of it first.
        Some(seq) => format!("{}:{seq}", event.stream.id),
        None => event.stream.id.to_string(),
    };
    process.insert("uid".into(), id.into());
    if let Some(cwd) = event.text("cwd") {
        process.insert("working_directory".into(), cwd.into());
    }
    process.into()
}

/// What is allowed, or asked for, in a word.
fn privilege(event: &Event) -> String {
    let words = ["what", "tool", "method", "as", "grant_id", "rule"];
    words.iter().find_map(|name| event.text(name)).unwrap_or("permission").to_owned()
}

fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::ActionUnmediated => "An agent did something, and nobody was asked",
        Kind::ActionUnseen => "Protected places could not be looked at",
        Kind::ToolChanged => "A tool call was changed after it was allowed",
        Kind::RecordingGap => "Frames passed without being recorded",
        Kind::RecordingChanged => "Recording stopped, or went on",
        _ => "Events were lost before they were told",
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        journal::Position,
        record::{Stream, StreamKind},
    };

    /// What every event has, and what those of a class have, by the schema: attributes that
    /// are required, and of those constraints that one of several is.
    const BASE: &[&str] = &[
        "class_uid",
        "category_uid",
        "activity_id",
        "type_uid",
        "time",
        "severity_id",
        "metadata.version",
        "metadata.product.vendor_name",
    ];
    const REQUIRED: &[(u64, &[&str])] = &[
        (1001, &["actor.user.name", "device.type_id", "file.name", "file.type_id"]),
        (1007, &["actor.user.name", "device.type_id", "process.name", "process.uid"]),
        (2004, &["finding_info.uid", "finding_info.title"]),
        (3002, &["user.name", "service.name"]),
        (3003, &["user.name", "privileges"]),
        (3005, &["user.name", "privileges"]),
        (6003, &["actor.user.name", "api.operation", "src_endpoint.hostname"]),
    ];

    fn sample(kind: Kind) -> Json {
        let stream = Stream { id: Uuid::from_u128(1), kind: StreamKind::Session };
        let details = json!({ "line": "cargo test", "path": "/w/a.rs", "seq": 7, "exit_code": 1 });
        let details = serde_json::from_value(details).unwrap_or_default();
        let told = Event {
            kind,
            at_us: 1_794_830_400_123_456,
            stream,
            seq: 9,
            item: 1,
            session: Some(stream.id),
            user: Some("ann".into()),
            by: None,
            team: Some("core,web".into()),
            agent: Some("demo".into()),
            details,
        };
        event(&told, &Cursor::before(Uuid::nil(), Position::default()), "host")
    }

    #[test]
    fn every_kind_has_what_its_class_requires() {
        for kind in Kind::ALL {
            let line = sample(*kind);
            let class_uid = line["class_uid"].as_u64().unwrap_or_default();
            let of_class = REQUIRED.iter().find(|(class, _)| *class == class_uid);
            let of_class = of_class.map(|(_, required)| *required);
            assert!(of_class.is_some(), "{kind:?}: {class_uid} is none of the classes");
            for path in BASE.iter().chain(of_class.unwrap_or_default()) {
                let pointer = format!("/{}", path.replace('.', "/"));
                let value = line.pointer(&pointer);
                assert!(
                    value.is_some_and(|value| !value.is_null() && value != ""),
                    "{kind:?}: {path}: {line}"
                );
            }
            assert_eq!(line["type_uid"], class_uid * 100 + line["activity_id"].as_u64().unwrap_or_default());
            assert_eq!(line["category_uid"], class_uid / 1000);
            assert_eq!(line["time"], 1_794_830_400_123_i64);
            assert_eq!(line["unmapped"]["event"], kind.name());
        }
    }

    #[test]
    fn a_command_that_failed_says_so() {
        let line = sample(Kind::CommandEnded);
        assert_eq!((&line["status_id"], &line["exit_code"]), (&json!(2), &json!(1)));
        assert_eq!(line["process"]["cmd_line"], "cargo test");
        assert_eq!(line["process"]["uid"], format!("{}:7", Uuid::from_u128(1)));
        assert_eq!(line["actor"]["user"]["groups"], json!([{ "name": "core" }, { "name": "web" }]));
    }
}
