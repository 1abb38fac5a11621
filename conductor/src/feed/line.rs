//! An event as one line: as JSON in our own words, and in words for people. No I/O.

use serde::Deserialize as _;
use serde_json::{Map, Value as Json, json, value::RawValue};

use super::{
    cursor::Cursor,
    event::{Event, Kind},
    reader::Frame,
};
use crate::clock;
pub use crate::config::FeedFormat as Format;

impl Format {
    /// An event as JSON, without a newline.
    pub fn line(self, event: &Event, cursor: &Cursor, host: &str) -> String {
        match self {
            Self::Conductor => conductor(event, cursor).to_string(),
            Self::Ocsf => super::ocsf::event(event, cursor, host).to_string(),
        }
    }
}

/// A time to the microsecond, as `2026-11-16T12:00:00.000000Z`.
pub fn time(at_us: i64) -> String {
    let seconds = clock::rfc3339_us(at_us);
    format!("{}.{:06}Z", seconds.trim_end_matches('Z'), at_us.max(0) % 1_000_000)
}

fn conductor(event: &Event, cursor: &Cursor) -> Json {
    let mut line = Map::new();
    let mut put = |name: &str, value: Option<Json>| {
        if let Some(value) = value {
            line.insert(name.to_owned(), value);
        }
    };
    put("cursor", Some(cursor.to_string().into()));
    put("event", Some(event.kind.name().into()));
    put("uid", Some(event.uid().into()));
    put("time", Some(time(event.at_us).into()));
    put("at_us", Some(event.at_us.into()));
    put("stream", Some(event.stream.kind.name().into()));
    put("stream_id", Some(event.stream.id.to_string().into()));
    put("seq", Some(event.seq.into()));
    put("session", event.session.map(|id| id.to_string().into()));
    put("user", event.user.clone().map(Into::into));
    put("by", event.by.clone().map(Into::into));
    put("team", event.team.clone().map(Into::into));
    put("agent", event.agent.clone().map(Into::into));
    put("details", Some(event.details.clone().into()));
    line.into()
}

/// A frame as JSON: its bytes as they came, if they are JSON; else in base64.
pub fn frame(frame: &Frame, cursor: &Cursor) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let mut line = json!({
        "cursor": cursor.to_string(),
        "stream": frame.stream.kind.name(),
        "stream_id": frame.stream.id.to_string(),
        "seq": frame.seq,
        "time": time(frame.at_us),
        "at_us": frame.at_us,
        "origin": frame.origin.name(),
        "destination": frame.to.name(),
        "outgoing_id": frame.outgoing,
        "user": frame.user,
        "agent": frame.agent,
    })
    .to_string();
    let raw = std::str::from_utf8(&frame.raw).ok().filter(|raw| {
        let mut parsed = serde_json::Deserializer::from_str(raw);
        <&RawValue>::deserialize(&mut parsed).is_ok() && parsed.end().is_ok() && !raw.contains(['\n', '\r'])
    });
    // Whatever stands in the frame is passed on as it is, big numbers and all.
    line.pop();
    match raw {
        Some(raw) => line.push_str(&format!(",\"frame\":{raw}}}")),
        None => line.push_str(&format!(",\"frame_base64\":\"{}\"}}", STANDARD.encode(&frame.raw))),
    }
    line
}

/// What happened, in a few words for people.
pub fn words(event: &Event) -> String {
    let text = |name: &str| event.text(name).unwrap_or_default();
    let number = |name: &str| event.details.get(name).and_then(Json::as_i64);
    let because = |reason: &str| match text(reason) {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    let by = event.by.as_deref().map(|by| format!(" by {by}")).unwrap_or_default();
    match event.kind {
        Kind::SessionOpened | Kind::SessionReopened => format!("in {}", text("cwd")),
        Kind::SessionEnded => text("end_reason").to_owned(),
        Kind::SessionShared | Kind::SessionUnshared => format!("with {}{by}", text("with")),
        Kind::SessionJoined | Kind::SessionLeft => {
            format!("{} {}", event.by.as_deref().or(event.user.as_deref()).unwrap_or_default(), text("as"))
        }
        Kind::PromptSent => text("prompt").lines().next().unwrap_or_default().to_owned(),
        Kind::PromptRouted => {
            format!("to {}{}", event.agent.as_deref().unwrap_or_default(), because("reason"))
        }
        Kind::PromptEnded => [text("stop_reason"), text("error")].concat(),
        Kind::ToolCalled => format!("{} {}", text("name"), text("tool_call_id")),
        Kind::ToolEnded => format!("{} {}", text("name"), text("status")),
        Kind::ToolChanged | Kind::ActionUnmediated => match text("toolCallId") {
            "" => event.details.get("paths").map(ToString::to_string).unwrap_or_default(),
            id => format!("tool call {id}"),
        },
        Kind::CommandStarted | Kind::CommandChanged => text("line").to_owned(),
        Kind::CommandEnded => {
            let end = match (number("exit_code"), text("exit_signal"), text("error")) {
                (_, _, error) if !error.is_empty() => error.to_owned(),
                (_, signal, _) if !signal.is_empty() => signal.to_owned(),
                (Some(code), ..) => format!("exit {code}"),
                _ => "ended".to_owned(),
            };
            format!("{end}: {}", text("line"))
        }
        Kind::FileRead
        | Kind::FileWrite
        | Kind::FileDelete
        | Kind::FileMove
        | Kind::FileMention
        | Kind::FileTouch => text("path").to_owned(),
        Kind::FileFailed => format!("{}: {}", text("path"), text("error")),
        Kind::PermissionDecided => {
            let what = [text("tool"), text("method")].into_iter().find(|what| !what.is_empty());
            let rule = match text("rule") {
                "" => String::new(),
                rule => format!(" (rule {rule})"),
            };
            format!("{} {}{by}{rule}", text("decision"), what.unwrap_or_default())
        }
        Kind::ApprovalAsked => format!("of {}{}", text("approvers"), because("reason")),
        Kind::ApprovalAnswered => format!("{}{by}{}", text("outcome"), because("answer_reason")),
        Kind::GrantGiven => format!("{}{by} for {} {}", text("what"), text("scope"), text("scope_name")),
        Kind::GrantUsed => format!("{} ({} left)", text("grant_id"), number("uses_left").unwrap_or_default()),
        Kind::GrantRevoked => format!("{}{by}", text("grant_id")),
        Kind::ProcessStarted => text("command").to_owned(),
        Kind::ProcessEnded | Kind::ProcessCrashed => text("end_reason").to_owned(),
        Kind::ProcessLeftovers => format!("{} processes", number("leftovers").unwrap_or_default()),
        Kind::EditorConnected | Kind::EditorDetached | Kind::EditorReattached => text("client").to_owned(),
        Kind::EditorDisconnected => text("close_reason").to_owned(),
        Kind::ActionUnseen => event.details.get("paths").map(ToString::to_string).unwrap_or_default(),
        Kind::RecordingGap | Kind::RecordingChanged | Kind::FeedGap => text("reason").to_owned(),
    }
}
