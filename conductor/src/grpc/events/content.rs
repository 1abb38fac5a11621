//! The shapes inside updates: content, options, commands, plans. JSON → proto,
//! and for prompts the way back. What is of another shape is left out, never
//! refused: whoever needs it finds it in the raw frame.

use serde_json::{Value, json};

use crate::{
    ledger::project::{
        json::{dig, elements, int, members, pick, some, text},
        tokens,
    },
    proto::{
        AvailableCommand, ConfigChoice, ConfigOption, ContentBlock, Diff, Media, Mode, Modes,
        PermissionOption, PlanEntry, Resource, ResourceLink, ToolCallContent, ToolCallLocation, TurnUsage,
        config_option, content_block, resource, tool_call_content,
    },
};

/// Most entries of one list that are told: a frame of the largest size could
/// name millions.
const MOST: usize = 10_000;

/// A text; empty if there is none.
pub(super) fn string(json: Option<&str>) -> String {
    json.and_then(text).unwrap_or_default().into_owned()
}

/// A text that may be left out (it stays as it is) or null (there is none any
/// more).
pub(super) fn patch(json: Option<&str>) -> Option<String> {
    json.map(|json| string(Some(json)))
}

/// What stands in a list.
pub(super) fn list<T>(json: Option<&str>, each: impl Fn(&str) -> T) -> Vec<T> {
    json.into_iter().flat_map(elements).take(MOST).map(each).collect()
}

fn media(block: &str) -> Media {
    let [data, mime_type, uri] = pick(block, ["data", "mimeType", "uri"]);
    Media { data: string(data), mime_type: string(mime_type), uri: string(uri) }
}

/// A block of content.
pub(super) fn block(json: &str) -> ContentBlock {
    use content_block::Kind;
    let [kind, words] = pick(json, ["type", "text"]);
    let kind = match (kind.and_then(text).as_deref(), words.and_then(text)) {
        (Some("text"), Some(words)) => Kind::Text(words.into_owned()),
        (Some("image"), _) => Kind::Image(media(json)),
        (Some("audio"), _) => Kind::Audio(media(json)),
        (Some("resource_link"), _) => {
            let [uri, name, title, description, mime_type, size] =
                pick(json, ["uri", "name", "title", "description", "mimeType", "size"]);
            Kind::ResourceLink(ResourceLink {
                uri: string(uri),
                name: string(name),
                title: string(title),
                description: string(description),
                mime_type: string(mime_type),
                size: size.and_then(int),
            })
        }
        (Some("resource"), _) => {
            let inner = dig(json, &["resource"]).unwrap_or_default();
            let [uri, mime_type, words, blob] = pick(inner, ["uri", "mimeType", "text", "blob"]);
            let content = match (words.and_then(text), blob.and_then(text)) {
                (Some(words), _) => Some(resource::Content::Text(words.into_owned())),
                (None, blob) => blob.map(|blob| resource::Content::Blob(blob.into_owned())),
            };
            Kind::Resource(Resource { uri: string(uri), mime_type: string(mime_type), content })
        }
        _ => Kind::OtherJson(json.to_owned()),
    };
    ContentBlock { kind: Some(kind) }
}

/// Blocks of content.
pub(super) fn blocks(json: Option<&str>) -> Vec<ContentBlock> {
    list(json, block)
}

/// A block as ACP has it, or what is wrong with it.
pub(in crate::grpc) fn block_json(block: &ContentBlock) -> Result<Value, &'static str> {
    use content_block::Kind;
    let mut value = match block.kind.as_ref().ok_or("it has no kind")? {
        Kind::Text(words) => json!({ "type": "text", "text": words }),
        Kind::Image(image) => {
            json!({ "type": "image", "data": image.data, "mimeType": image.mime_type, "uri": image.uri })
        }
        Kind::Audio(audio) => json!({ "type": "audio", "data": audio.data, "mimeType": audio.mime_type }),
        Kind::ResourceLink(link) => {
            let mut value = json!({ "type": "resource_link", "uri": link.uri, "name": link.name,
                "title": link.title, "description": link.description, "mimeType": link.mime_type });
            if let Some(size) = link.size {
                value["size"] = size.into();
            }
            value
        }
        Kind::Resource(inner) => {
            let mut value = json!({ "uri": inner.uri });
            if !inner.mime_type.is_empty() {
                value["mimeType"] = inner.mime_type.as_str().into();
            }
            match inner.content.as_ref().ok_or("the resource has neither text nor blob")? {
                resource::Content::Text(words) => value["text"] = words.as_str().into(),
                resource::Content::Blob(blob) => value["blob"] = blob.as_str().into(),
            }
            json!({ "type": "resource", "resource": value })
        }
        Kind::OtherJson(other) => {
            let value: Value = serde_json::from_str(other).map_err(|_| "its other_json is not JSON")?;
            if value.is_object() { value } else { return Err("its other_json is not an object") }
        }
    };
    // What may be left out is left out, instead of being empty.
    if let Some(members) = value.as_object_mut() {
        for optional in ["uri", "title", "description", "mimeType"] {
            let is_needed = matches!((optional, &block.kind), ("uri", Some(Kind::ResourceLink(_))))
                || matches!((optional, &block.kind), ("mimeType", Some(Kind::Image(_) | Kind::Audio(_))));
            if !is_needed && members.get(optional).is_some_and(|value| *value == "") {
                members.remove(optional);
            }
        }
    }
    Ok(value)
}

/// What people are shown of a tool call.
pub(super) fn tool_content(json: &str) -> ToolCallContent {
    use tool_call_content::Kind;
    let [kind, content, path, old_text, new_text, terminal] =
        pick(json, ["type", "content", "path", "oldText", "newText", "terminalId"]);
    let kind = match (kind.and_then(text).as_deref(), content) {
        (Some("content"), Some(content)) => Kind::Content(block(content)),
        (Some("diff"), _) => Kind::Diff(Diff {
            path: string(path),
            old_text: some(old_text).and_then(text).map(Into::into),
            new_text: string(new_text),
        }),
        (Some("terminal"), _) => Kind::TerminalId(string(terminal)),
        _ => Kind::OtherJson(json.to_owned()),
    };
    ToolCallContent { kind: Some(kind) }
}

pub(super) fn location(json: &str) -> ToolCallLocation {
    let [path, line] = pick(json, ["path", "line"]);
    ToolCallLocation {
        path: string(path),
        line: line.and_then(int).and_then(|line| u32::try_from(line).ok()),
    }
}

pub(super) fn plan_entry(json: &str) -> PlanEntry {
    let [content, priority, status] = pick(json, ["content", "priority", "status"]);
    PlanEntry { content: string(content), priority: string(priority), status: string(status) }
}

pub(super) fn command(json: &str) -> AvailableCommand {
    let [name, description, input] = pick(json, ["name", "description", "input"]);
    let hint = input.and_then(|input| dig(input, &["hint"]));
    AvailableCommand { name: string(name), description: string(description), input_hint: string(hint) }
}

pub(super) fn permission_option(json: &str) -> PermissionOption {
    let [option_id, name, kind] = pick(json, ["optionId", "name", "kind"]);
    PermissionOption { option_id: string(option_id), name: string(name), kind: string(kind) }
}

/// The modes in the answer that opens a session.
pub(in crate::grpc) fn modes(json: &str) -> Modes {
    let [current, available] = pick(json, ["currentModeId", "availableModes"]);
    let mode = |json: &str| {
        let [id, name, description] = pick(json, ["id", "name", "description"]);
        Mode { id: string(id), name: string(name), description: string(description) }
    };
    Modes { current_mode_id: string(current), available: list(available, mode) }
}

/// The options of a session.
pub(in crate::grpc) fn config_options(json: Option<&str>) -> Vec<ConfigOption> {
    list(json, config_option)
}

fn config_option(json: &str) -> ConfigOption {
    use config_option::Value;
    let [id, name, description, category, kind, current, choices] =
        pick(json, ["id", "name", "description", "category", "type", "currentValue", "options"]);
    let value = match (kind.and_then(text).as_deref(), current) {
        (Some("select"), Some(current)) => Value::Selected(string(Some(current))),
        (Some("boolean"), Some(current)) => Value::Flag(current == "true"),
        _ => Value::OtherJson(json.to_owned()),
    };
    let mut all = Vec::new();
    for entry in choices.into_iter().flat_map(elements).take(MOST) {
        let [group, name, inner] = pick(entry, ["group", "name", "options"]);
        match inner {
            Some(inner) => {
                let group = if name.is_some() { string(name) } else { string(group) };
                let choices = elements(inner).take(MOST.saturating_sub(all.len()));
                all.extend(choices.map(|entry| choice(entry, group.clone())));
            }
            None => all.push(choice(entry, String::new())),
        }
    }
    all.truncate(MOST);
    ConfigOption {
        id: string(id),
        name: string(name),
        description: string(description),
        category: string(category),
        value: Some(value),
        choices: all,
    }
}

fn choice(json: &str, group: String) -> ConfigChoice {
    let [value, name, description] = pick(json, ["value", "name", "description"]);
    ConfigChoice { value: string(value), name: string(name), description: string(description), group }
}

/// The tokens that the answer to a prompt reports.
pub(super) fn turn_usage(result: &str) -> Option<TurnUsage> {
    let usage = some(pick(result, ["usage"])[0]).filter(|usage| members(usage).next().is_some())?;
    let [input_tokens, output_tokens, thought_tokens, cached_read_tokens, cached_write_tokens, total_tokens] =
        tokens(usage);
    Some(TurnUsage {
        input_tokens,
        output_tokens,
        thought_tokens,
        cached_read_tokens,
        cached_write_tokens,
        total_tokens,
    })
}
