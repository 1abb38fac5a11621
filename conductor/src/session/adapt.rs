//! Where an editor and an agent differ in what they can do: what the editor
//! does not take is kept from it, what the agent does not take is refused
//! with a name.

use std::borrow::Cow;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{Session, members::Members, past::blocks};
use crate::{
    acp::{EditorCapabilities, Refusal, code},
    frame::{Frame, Peek, Span, splice},
    options::{Category, Chooser},
};

/// The frame without boolean config options, for an editor that does not know
/// them; `None` if there is nothing to keep from it. Everything else stays as
/// it is, byte for byte.
pub(super) fn withheld(able: &EditorCapabilities, bytes: &[u8], place: Span) -> Option<Bytes> {
    if able.boolean_options || memchr::memmem::find(bytes, b"\"boolean\"").is_none() {
        return None;
    }
    without_boolean_options(bytes, place)
}

/// Copies an update with our own id, and without what the editor does not know.
pub(super) fn put_update(
    able: &EditorCapabilities,
    name: &[u8],
    out: &mut BytesMut,
    bytes: &[u8],
    peek: &Peek,
) {
    if peek.update.of(bytes) == b"\"config_option_update\""
        && let Some(withheld) = withheld(able, bytes, peek.params).and_then(|b| Frame::parse(b).ok())
    {
        splice(out, withheld.bytes(), [(withheld.peek().session, name)]);
    } else {
        splice(out, bytes, [(peek.session, name)]);
    }
}

/// Whether an editor takes updates of this kind.
pub(super) fn takes(able: &EditorCapabilities, bytes: &[u8], peek: &Peek) -> bool {
    match peek.update.of(bytes) {
        b"\"notice\"" => able.notices,
        b"\"compaction_update\"" | b"\"compaction_summary_chunk\"" => able.compaction,
        _ => true,
    }
}

impl Session {
    /// Why this prompt cannot go to this agent: a block of a type that the
    /// agent has not said it takes.
    pub(super) fn unfit(&self, frame: &Frame) -> Option<Refusal> {
        let hello = &self.binding.as_ref()?.process().hello;
        let able = &hello.result["agentCapabilities"]["promptCapabilities"];
        // Blocks may be long; nothing but their type is taken out of them.
        let blocks = blocks(frame.bytes(), frame.peek());
        let kinds = blocks.iter().filter_map(|block| serde_json::from_str::<Block<'_>>(block.get()).ok());
        let refused = kinds.map(|block| block.kind).find(|kind| match &**kind {
            kind @ ("image" | "audio") => able[kind] != true,
            "resource" => able["embeddedContext"] != true,
            _ => false,
        })?;
        let text = format!("agent `{}` does not take content of type `{refused}`", self.agent());
        Some(Refusal::new(code::INVALID_PARAMS, text))
    }

    /// Takes note of what the agent tells of its options and modes, for those
    /// who come later.
    pub(super) fn take_options(&mut self, object: &[u8]) {
        let Ok(mut told) = serde_json::from_slice::<Value>(object) else { return };
        self.take_told(object, &told);
        for key in ["configOptions", "modes", "models"] {
            if let Some(value) = told.get_mut(key).filter(|value| !value.is_null()) {
                self.options[key] = value.take();
            }
        }
        if let Some(mode) = told.get_mut("currentModeId").filter(|mode| mode.is_string()) {
            self.options["modes"]["currentModeId"] = mode.take();
        }
        self.check_mode();
    }
}

impl Session {
    /// The same for what is shown, as it stands in the frame.
    fn take_told(&mut self, object: &[u8], told: &Value) {
        let Some(members) = Members::of(object) else { return };
        let raw = |name: &str| {
            let text = members.get(name).filter(|text| *text != "null")?;
            RawValue::from_string(text.to_owned()).ok()
        };
        if let Some(modes) = raw("modes") {
            self.told.modes = Some(modes);
            self.told.mode = told["modes"]["currentModeId"].as_str().map(str::to_owned);
        }
        if let Some(options) = raw("configOptions") {
            self.told.options = Some(options);
            let mode = Chooser::option(told, Category::Mode).and_then(|mode| mode.current);
            self.told.mode = mode.or_else(|| self.told.mode.take());
        }
        if let Some(mode) = told["currentModeId"].as_str() {
            self.told.mode = Some(mode.to_owned());
        }
        // A route's mode is over when the agent takes up another one itself.
        let set = self.routing.target.as_ref().and_then(|target| target.mode.as_ref());
        if self.is_ready() && set.is_some() && self.told.mode.as_ref() != set {
            self.routing.leave_mode();
        }
    }
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

/// What holds config options: a result, or the `update` in params.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Holder<'a> {
    #[serde(borrow, default)]
    config_options: Option<&'a RawValue>,
    #[serde(borrow, default)]
    update: Option<&'a RawValue>,
}

fn without_boolean_options(bytes: &[u8], place: Span) -> Option<Bytes> {
    let outer: Holder<'_> = serde_json::from_slice(place.of(bytes)).ok()?;
    let inner: Option<Holder<'_>> = outer.update.and_then(|update| serde_json::from_str(update.get()).ok());
    let options = outer.config_options.or(inner.and_then(|inner| inner.config_options))?.get();
    let all: Vec<&RawValue> = serde_json::from_str(options).ok()?;
    let is_boolean = |option: &&&RawValue| {
        serde_json::from_str::<Value>(option.get()).is_ok_and(|option| option["type"] == "boolean")
    };
    if !all.iter().any(|option| is_boolean(&option)) {
        return None;
    }
    let kept: Vec<&str> =
        all.iter().filter(|option| !is_boolean(option)).map(|option| option.get()).collect();
    // `options` is a slice of `bytes`, so its place is known.
    let start = options.as_ptr() as usize - bytes.as_ptr() as usize;
    let mut out = BytesMut::with_capacity(bytes.len());
    out.put_slice(&bytes[..start]);
    out.put_slice(format!("[{}]", kept.join(",")).as_bytes());
    out.put_slice(&bytes[start + options.len()..]);
    Some(out.freeze())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn filtered(line: &'static str, place: fn(&Frame) -> Span) -> Option<String> {
        let frame = Frame::parse(Bytes::from_static(line.as_bytes())).unwrap();
        let out = without_boolean_options(frame.bytes(), place(&frame))?;
        Some(String::from_utf8(out.to_vec()).unwrap())
    }

    #[test]
    fn boolean_options_go_and_every_other_byte_stays() {
        let result = r#"{"id":1,"result":{"x":1e3,"configOptions":[ {"id":"a","type":"select"}, {"id":"b","type":"boolean"} ],"y":"\ud83d"}}"#;
        let expected =
            r#"{"id":1,"result":{"x":1e3,"configOptions":[{"id":"a","type":"select"}],"y":"\ud83d"}}"#;
        assert_eq!(filtered(result, |frame| frame.peek().outcome).unwrap(), expected);
        let update = r#"{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"config_option_update","configOptions":[{"type":"boolean"}]}}}"#;
        let expected = update.replace(r#"{"type":"boolean"}"#, "");
        assert_eq!(filtered(update, |frame| frame.peek().params).unwrap(), expected);
    }

    #[test]
    fn what_has_none_is_not_touched() {
        for line in [
            r#"{"id":1,"result":{"configOptions":[{"id":"boolean","type":"select"}]}}"#,
            r#"{"id":1,"result":{"configOptions":null,"a":"boolean"}}"#,
            r#"{"id":1,"result":null}"#,
            r#"{"id":1,"result":{"configOptions":7}}"#,
        ] {
            assert_eq!(filtered(line, |frame| frame.peek().outcome), None, "{line}");
        }
    }
}
