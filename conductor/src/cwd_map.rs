//! Paths of an editor's machine and those of this host, where they differ.
//!
//! Only places that are paths by the protocol are translated, never free text,
//! and every other byte stays: a path is found where it stands in the frame and
//! replaced there. Connections without a map have none of this.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::{
    config,
    frame::{Frame, Kind, Method, Run},
};

/// Prefixes that stand for each other, longest first in each direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CwdMap {
    to_host: Vec<(String, String)>,
    to_editor: Vec<(String, String)>,
}

/// A value's new text, and where its old one stands.
type Edit = (usize, usize, String);

impl CwdMap {
    /// The map of the configuration, if there is any.
    pub fn new(entries: &[config::CwdMapEntry]) -> Option<Self> {
        if entries.is_empty() {
            return None;
        }
        let trim = |path: &str| path.trim_end_matches('/').to_owned();
        let pair = |entry: &config::CwdMapEntry| (trim(&entry.editor), trim(&entry.host.to_string_lossy()));
        let mut to_host: Vec<_> = entries.iter().map(pair).collect();
        let mut to_editor: Vec<_> = to_host.iter().cloned().map(|(editor, host)| (host, editor)).collect();
        to_host.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        to_editor.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        Some(Self { to_host, to_editor })
    }

    /// A path of the editor as this host has it.
    pub fn host_path(&self, path: &str) -> String {
        swap(path, &self.to_host).unwrap_or_else(|| path.to_owned())
    }

    /// A path of this host as the editor has it.
    pub fn editor_path(&self, path: &str) -> String {
        swap(path, &self.to_editor).unwrap_or_else(|| path.to_owned())
    }

    /// What an editor says, with the paths of this host.
    pub fn from_editor(&self, frame: Frame) -> Frame {
        let mut edits = Edits { base: frame.bytes(), pairs: &self.to_host, found: Vec::new() };
        if let Some(params) = raw(frame.get(frame.peek().params)) {
            match frame.peek().method {
                Method::SessionNew | Method::SessionLoad | Method::SessionResume | Method::SessionList => {
                    edits.path(member(params, "cwd"));
                    items(member(params, "additionalDirectories")).for_each(|path| edits.path(Some(path)));
                }
                Method::SessionPrompt => {
                    items(member(params, "prompt")).for_each(|block| edits.content(block));
                }
                _ => {}
            }
        }
        match edits.apply() {
            Some(line) => Frame::parse(line).unwrap_or(frame),
            None => frame,
        }
    }

    /// What an agent says, with the paths of the editor. `ours` tells which
    /// requests this host answers; those stay.
    pub fn from_agent(&self, run: &Run, ours: impl Fn(Method) -> bool) -> Run {
        let mut block = Vec::with_capacity(run.size() + run.len());
        for index in 0..run.len() {
            let frame = run.frame(index);
            match self.to_editor(&frame, &ours) {
                Some(line) => block.extend_from_slice(&line),
                None => block.extend_from_slice(frame.bytes()),
            }
            block.push(b'\n');
        }
        Run::parse(block.into(), |_, _| {})
    }

    fn to_editor(&self, frame: &Frame, ours: impl Fn(Method) -> bool) -> Option<Bytes> {
        let peek = frame.peek();
        if !matches!(peek.kind, Kind::Request | Kind::Notification) || ours(peek.method) {
            return None;
        }
        let params = raw(frame.get(peek.params))?;
        let mut edits = Edits { base: frame.bytes(), pairs: &self.to_editor, found: Vec::new() };
        match peek.method {
            Method::SessionUpdate => edits.update(member(params, "update")?),
            Method::RequestPermission => edits.update(member(params, "toolCall")?),
            Method::FsRead | Method::FsWrite => edits.path(member(params, "path")),
            Method::Terminal => edits.path(member(params, "cwd")),
            _ => {}
        }
        edits.apply()
    }
}

struct Edits<'a> {
    base: &'a [u8],
    pairs: &'a [(String, String)],
    found: Vec<Edit>,
}

impl<'a> Edits<'a> {
    /// A tool call, or a message: its places, its diffs, its links.
    fn update(&mut self, update: &'a RawValue) {
        for location in items(member(update, "locations")) {
            self.path(member(location, "path"));
        }
        let Some(content) = member(update, "content") else { return };
        if content.get().starts_with('{') {
            return self.content(content);
        }
        for part in items(Some(content)) {
            match text(member(part, "type")).as_deref() {
                Some("diff") => self.path(member(part, "path")),
                Some("content") => {
                    if let Some(block) = member(part, "content") {
                        self.content(block);
                    }
                }
                _ => {}
            }
        }
    }

    /// A content block: only links and embedded files have a path.
    fn content(&mut self, block: &'a RawValue) {
        let uri = match text(member(block, "type")).as_deref() {
            Some("resource_link") => member(block, "uri"),
            Some("resource") => member(block, "resource").and_then(|resource| member(resource, "uri")),
            _ => None,
        };
        let new = |text: &str, pairs: &[(String, String)]| {
            let encoded: Vec<_> = pairs.iter().map(|(from, to)| (encode(from), encode(to))).collect();
            swap(text.strip_prefix("file://")?, &encoded).map(|path| format!("file://{path}"))
        };
        self.replace(uri, new);
    }

    fn path(&mut self, value: Option<&'a RawValue>) {
        self.replace(value, swap);
    }

    fn replace(
        &mut self,
        value: Option<&'a RawValue>,
        new: impl Fn(&str, &[(String, String)]) -> Option<String>,
    ) {
        let Some(value) = value else { return };
        let Some(new) = text(Some(value)).and_then(|old| new(&old, self.pairs)) else { return };
        // The value was borrowed from the frame, so this is its place there.
        let start = value.get().as_ptr().addr() - self.base.as_ptr().addr();
        let new = serde_json::Value::String(new).to_string();
        self.found.push((start, start + value.get().len(), new));
    }

    fn apply(mut self) -> Option<Bytes> {
        if self.found.is_empty() {
            return None;
        }
        self.found.sort_unstable();
        let mut out = Vec::with_capacity(self.base.len() + 64);
        let mut at = 0;
        for (start, end, new) in self.found {
            out.extend_from_slice(self.base.get(at..start)?);
            out.extend_from_slice(new.as_bytes());
            at = end;
        }
        out.extend_from_slice(self.base.get(at..)?);
        Some(out.into())
    }
}

/// Exchanges the prefix of a path, whole components only: `app` is not the
/// beginning of `app-evil`.
fn swap(path: &str, pairs: &[(String, String)]) -> Option<String> {
    pairs.iter().find_map(|(from, to)| {
        let rest = path.strip_prefix(from.as_str())?;
        let whole = rest.is_empty() || rest.starts_with(['/', '?', '#']);
        whole.then(|| if to.is_empty() && rest.is_empty() { "/".to_owned() } else { format!("{to}{rest}") })
    })
}

/// A path as URIs write it.
pub fn encode(path: &str) -> String {
    let mut encoded = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn raw(bytes: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice(bytes).ok()
}

fn member<'a>(value: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let members: BTreeMap<Cow<'a, str>, &'a RawValue> = serde_json::from_str(value.get()).ok()?;
    members.get(name).copied()
}

fn items(value: Option<&RawValue>) -> impl Iterator<Item = &RawValue> {
    value
        .and_then(|value| serde_json::from_str::<Vec<&RawValue>>(value.get()).ok())
        .unwrap_or_default()
        .into_iter()
}

fn text(value: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(value?.get()).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn map() -> CwdMap {
        let entry =
            |editor: &str, host: &str| config::CwdMapEntry { editor: editor.into(), host: host.into() };
        CwdMap::new(&[entry("/me/src", "/srv/src"), entry("/me/src/in ner/", "/data")]).unwrap()
    }

    fn to_host(line: &str) -> String {
        let frame = Frame::parse(Bytes::copy_from_slice(line.as_bytes())).unwrap();
        String::from_utf8(map().from_editor(frame).bytes().to_vec()).unwrap()
    }

    fn to_editor(line: &str) -> String {
        let run = Run::parse(Bytes::copy_from_slice(line.as_bytes()), |_, _| {});
        let mapped = map().from_agent(&run, |method| method == Method::Terminal);
        String::from_utf8(mapped.frame(0).bytes().to_vec()).unwrap()
    }

    #[test]
    fn prefixes_are_whole_components_and_the_longest_wins() {
        let map = map();
        for (editor, host) in [
            ("/me/src", "/srv/src"),
            ("/me/src/a/b", "/srv/src/a/b"),
            ("/me/src/in ner/x", "/data/x"),
            ("/me/src-evil/x", "/me/src-evil/x"),
            ("/other", "/other"),
        ] {
            assert_eq!(map.host_path(editor), host);
            assert_eq!(map.editor_path(host), editor);
        }
        assert_eq!(CwdMap::new(&[]), None);
    }

    #[test]
    fn requests_of_editors_name_paths_of_this_host_and_keep_every_other_byte() {
        let line = r#"{"id":1,"method":"session/new","params":{ "cwd" : "/me/src/p","x":1e999,"additionalDirectories":["/me/src/q" , "/z"],"mcpServers":[{"cwd":"/me/src"}]}}"#;
        let want = r#"{"id":1,"method":"session/new","params":{ "cwd" : "/srv/src/p","x":1e999,"additionalDirectories":["/srv/src/q" , "/z"],"mcpServers":[{"cwd":"/me/src"}]}}"#;
        assert_eq!(to_host(line), want);
        let line = r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"text","text":"file:///me/src/a"},{"type":"resource_link","uri":"file:///me/src/in%20ner/a%20b","name":"/me/src"},{"resource":{"text":"/me/src","uri":"file:///me/src/c#L1"},"type":"resource"},{"type":"resource_link","uri":"https://me/src"}]}}"#;
        let want = r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"text","text":"file:///me/src/a"},{"type":"resource_link","uri":"file:///data/a%20b","name":"/me/src"},{"resource":{"text":"/me/src","uri":"file:///srv/src/c#L1"},"type":"resource"},{"type":"resource_link","uri":"https://me/src"}]}}"#;
        assert_eq!(to_host(line), want);
    }

    #[test]
    fn updates_and_requests_of_agents_name_paths_of_the_editor() {
        let line = r#"{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","title":"/srv/src/a","locations":[{"path":"/srv/src/a","line":3}],"rawInput":{"path":"/srv/src/a"},"content":[{"type":"diff","path":"/data/x","oldText":"/data","newText":"n"},{"type":"content","content":{"type":"text","text":"/data/x"}}]}}}"#;
        let want = r#"{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","title":"/srv/src/a","locations":[{"path":"/me/src/a","line":3}],"rawInput":{"path":"/srv/src/a"},"content":[{"type":"diff","path":"/me/src/in ner/x","oldText":"/data","newText":"n"},{"type":"content","content":{"type":"text","text":"/data/x"}}]}}}"#;
        assert_eq!(to_editor(line), want);
        let line = r#"{"id":3,"method":"fs/read_text_file","params":{"path":"/srv/src/a"}}"#;
        assert_eq!(to_editor(line), line.replace("/srv/src", "/me/src"));
        let line = r#"{"id":3,"method":"terminal/create","params":{"cwd":"/srv/src/a"}}"#;
        assert_eq!(to_editor(line), line, "this host serves it");
    }
}
