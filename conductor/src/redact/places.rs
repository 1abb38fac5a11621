//! What in a frame is a secret by its place: variables and headers of MCP servers, credentials
//! in their addresses and arguments, what is said to log in.
//!
//! The frame is read once from front to end, as bytes; nothing is built of it.

use serde::Deserialize;

use super::{Kind, text::Text, words};

/// What a value is, by where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Anything.
    Plain,
    /// The parts of the envelope that everything is found by.
    Envelope,
    /// All servers: a list, or by name.
    Servers,
    /// One of them.
    Server,
    /// Variables or headers: a list of names and values, or by name.
    Pairs(Kind),
    /// One of a list of these.
    Pair(Kind),
    /// The same as one text, `NAME=VALUE`.
    Assigned(Kind),
    /// The address of a server.
    Address,
    /// Its arguments.
    Arguments,
    /// What is said to log in, or in answer to a form.
    Login,
    /// The answer to a form.
    Answer,
    /// A secret, whatever it consists of.
    Secret(Kind),
}

/// A value or a name in a frame.
#[derive(Debug)]
pub(super) struct Met<'a> {
    /// Where it stands: a string without its quotes.
    pub(super) span: (usize, usize),
    /// What it says, if it is a string.
    pub(super) text: Option<Text<'a>>,
    /// What it is.
    pub(super) place: Place,
    /// As it stands in the frame.
    pub(super) raw: &'a [u8],
    /// What it is called.
    pub(super) name: &'a str,
    /// It is a member's name.
    pub(super) is_name: bool,
}

/// What a frame is for, as far as that makes secrets of what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Anything.
    Any,
    /// It says something to log in.
    Login,
    /// It answers a form.
    Form,
}

/// A container that is being read.
struct Level {
    is_object: bool,
    place: Place,
    /// Of the member in hand.
    name: String,
    /// What the members of a pair are called by.
    pair: String,
}

/// Frames may be nested as deep as they are long; nothing that means anything is.
const DEEPEST: usize = 10_000;

/// Reads a frame and tells of every string and every other scalar in it. `false` if it is no
/// JSON; what was told until then holds.
pub(super) fn walk(frame: &[u8], purpose: Purpose, met: &mut impl FnMut(Met<'_>)) -> bool {
    let mut stack: Vec<Level> = Vec::new();
    let mut at = 0;
    let mut expects_name = false;
    // An argument that names a secret, which is the next one.
    let mut flag = String::new();
    while at < frame.len() {
        let byte = frame[at];
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' | b':' => at += 1,
            b',' => {
                expects_name = stack.last().is_some_and(|level| level.is_object);
                at += 1;
            }
            b'{' | b'[' => {
                if stack.len() >= DEEPEST {
                    return false;
                }
                let is_object = byte == b'{';
                let place = inner(&stack, is_object, purpose);
                let pair = match place {
                    Place::Pair(_) => pair_name(&frame[at..]),
                    _ => String::new(),
                };
                stack.push(Level { is_object, place, name: String::new(), pair });
                expects_name = is_object;
                flag.clear();
                at += 1;
            }
            b'}' | b']' => {
                if stack.pop().is_none_or(|level| level.is_object != (byte == b'}')) {
                    return false;
                }
                expects_name = false;
                at += 1;
            }
            b'"' => {
                let Some(end) = string_end(frame, at + 1) else { return false };
                let Some(text) = Text::read(frame, at + 1, end) else { return false };
                let span = (at + 1, end);
                if std::mem::take(&mut expects_name) {
                    let said = String::from_utf8_lossy(&text.bytes).into_owned();
                    let place = if stack.len() <= 1 { Place::Envelope } else { Place::Plain };
                    met(Met {
                        span,
                        text: Some(text),
                        place,
                        raw: &frame[at + 1..end],
                        name: "",
                        is_name: true,
                    });
                    if let Some(level) = stack.last_mut() {
                        level.name = said;
                    }
                } else {
                    let place = scalar(&stack, purpose);
                    let next = match place {
                        Place::Arguments => flag_of(&text.bytes),
                        _ => String::new(),
                    };
                    let name = if place == Place::Arguments { flag.as_str() } else { name_of(&stack) };
                    met(Met {
                        span,
                        text: Some(text),
                        place,
                        raw: &frame[at + 1..end],
                        name,
                        is_name: false,
                    });
                    flag = next;
                }
                at = end + 1;
            }
            _ => {
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n');
                let end = at + frame[at..].iter().position(ends).unwrap_or(frame.len() - at);
                let is_scalar =
                    |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
                let begins = matches!(byte, b'-' | b'0'..=b'9' | b't' | b'f' | b'n');
                if !begins || stack.is_empty() || !frame[at..end].iter().all(is_scalar) {
                    return false;
                }
                let place = scalar(&stack, purpose);
                let (span, raw) = ((at, end), &frame[at..end]);
                met(Met { span, text: None, place, raw, name: name_of(&stack), is_name: false });
                at = end;
            }
        }
    }
    stack.is_empty()
}

fn string_end(frame: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr::memchr2(b'"', b'\\', frame.get(at..)?)?;
        if frame[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// What the value in hand is called.
fn name_of(stack: &[Level]) -> &str {
    match stack.last() {
        Some(level) if !level.pair.is_empty() => &level.pair,
        // A list is called what it is the value of.
        Some(level) if !level.is_object => {
            stack.iter().rev().find(|level| level.is_object).map_or("", |level| &level.name)
        }
        Some(level) => &level.name,
        None => "",
    }
}

/// The place of the container that begins.
fn inner(stack: &[Level], is_object: bool, purpose: Purpose) -> Place {
    match member(stack, purpose) {
        Place::Pairs(kind) if is_object && stack.last().is_some_and(|level| !level.is_object) => {
            Place::Pair(kind)
        }
        Place::Servers if is_object && stack.last().is_some_and(|level| !level.is_object) => Place::Server,
        place => place,
    }
}

/// The place of a scalar.
fn scalar(stack: &[Level], purpose: Purpose) -> Place {
    match member(stack, purpose) {
        // By name; in a list it is a name with its value behind it.
        Place::Pairs(kind) if stack.last().is_some_and(|level| level.is_object) => Place::Secret(kind),
        Place::Pairs(kind) => Place::Assigned(kind),
        place => place,
    }
}

/// The place of what stands where the reader is.
fn member(stack: &[Level], purpose: Purpose) -> Place {
    let Some(level) = stack.last() else { return Place::Plain };
    let name = level.name.as_str();
    let is_top = stack.len() == 1;
    match level.place {
        // Lists hand on what they are.
        place if !level.is_object => place,
        Place::Plain | Place::Envelope | Place::Address | Place::Arguments | Place::Assigned(_) => match name
        {
            "mcpServers" | "mcp_servers" => Place::Servers,
            "params" if is_top && purpose == Purpose::Login => Place::Login,
            "result" if is_top && purpose == Purpose::Form => Place::Answer,
            "jsonrpc" | "method" | "id" if is_top => Place::Envelope,
            _ => Place::Plain,
        },
        Place::Servers => Place::Server,
        Place::Server => match name {
            "env" => Place::Pairs(Kind::McpEnv),
            "headers" | "http_headers" | "httpHeaders" => Place::Pairs(Kind::McpHeader),
            "url" | "uri" | "endpoint" => Place::Address,
            "args" => Place::Arguments,
            "name" | "type" | "command" | "cwd" => Place::Plain,
            name if words::speaks_of_secret(name) => Place::Secret(Kind::Mcp),
            _ => Place::Plain,
        },
        Place::Pairs(kind) => Place::Secret(kind),
        Place::Pair(kind) => {
            if name == "name" {
                Place::Plain
            } else {
                Place::Secret(kind)
            }
        }
        Place::Answer => match name {
            "content" => Place::Login,
            _ => Place::Plain,
        },
        Place::Login => match name {
            "methodId" | "method_id" | "sessionId" | "id" | "type" | "name" | "apiType" => Place::Plain,
            "headers" | "env" => Place::Pairs(Kind::Auth),
            _ => Place::Login,
        },
        Place::Secret(kind) => Place::Secret(kind),
    }
}

/// The name in a pair, wherever in it that stands.
fn pair_name(from: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Pair {
        #[serde(default)]
        name: String,
    }
    let mut pairs = serde_json::Deserializer::from_slice(from).into_iter::<Pair>();
    pairs.next().and_then(Result::ok).map(|pair| pair.name).unwrap_or_default()
}

/// The name of an argument if the next one is its value, and a secret.
fn flag_of(argument: &[u8]) -> String {
    let argument = String::from_utf8_lossy(argument);
    let is_flag = argument.starts_with('-') && !argument.contains(['=', ' ']);
    let is_header = matches!(&*argument, "-H" | "--header");
    if is_flag && (is_header || words::speaks_of_secret(&argument)) {
        argument.into_owned()
    } else {
        String::new()
    }
}

/// A part of a text that is a secret, and what it is called.
pub(super) type Part = (usize, usize, String);

/// What is secret of a header's value: all behind the scheme.
pub(super) fn header(value: &str) -> usize {
    let scheme = value.split_once(' ').filter(|(scheme, rest)| {
        !rest.trim().is_empty()
            && ["bearer", "basic", "token", "digest"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
    });
    scheme.map_or(0, |(scheme, rest)| scheme.len() + 1 + (rest.len() - rest.trim_start().len()))
}

/// What is secret of an argument, which may be the value of a flag.
pub(super) fn argument(flag: &str, value: &str) -> Vec<Part> {
    if matches!(flag, "-H" | "--header") {
        let Some((name, rest)) = value.split_once(':') else { return Vec::new() };
        let content = rest.trim_start();
        let from = value.len() - content.len() + header(content);
        let is_one = !words::is_reference(&value[from..])
            && (words::speaks_of_secret(name) || !words::is_ordinary(&value[from..]));
        return if is_one { vec![(from, value.len(), name.to_owned())] } else { Vec::new() };
    }
    if !flag.is_empty() && !value.starts_with('-') && !words::is_reference(value) {
        return vec![(0, value.len(), flag.to_owned())];
    }
    if value.contains("://") {
        return address(value);
    }
    match value.split_once('=') {
        Some((name, rest)) if words::speaks_of_secret(name) && !words::is_reference(rest) => {
            vec![(name.len() + 1, value.len(), name.to_owned())]
        }
        _ => Vec::new(),
    }
}

/// What is secret of an address: the password, or all that stands for a user; values in the
/// query; what a generator has made in the path.
pub(super) fn address(value: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let Some(begin) = value.find("://").map(|at| at + 3) else { return parts };
    let rest = &value[begin..];
    let path = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    if let Some(at) = rest[..path].rfind('@') {
        let from = match rest[..at].find(':') {
            Some(colon) if !super::is_mark(&rest.as_bytes()[..at]) => colon + 1,
            _ => 0,
        };
        if !words::is_reference(&rest[from..at]) {
            parts.push((begin + from, begin + at, "password".to_owned()));
        }
    }
    let query = rest.find(['?', '#']).unwrap_or(rest.len()).max(path);
    let mut at = path;
    for segment in rest[path..query].split('/') {
        let is_made = segment.len() >= 20 && words::is_dense(segment.as_bytes(), 8);
        if is_made && !segment.contains(['<', '>']) {
            parts.push((begin + at, begin + at + segment.len(), "url".to_owned()));
        }
        at += segment.len() + 1;
    }
    let mut at = query;
    for pair in rest[query..].split_inclusive(['?', '&', '#', ';']) {
        if let Some((name, content)) = pair.split_once('=') {
            let content = content.trim_end_matches(['?', '&', '#', ';']);
            let from = at + name.len() + 1;
            let is_one =
                words::speaks_of_secret(name) || (content.len() >= 8 && !words::is_ordinary(content));
            if is_one && !words::is_reference(content) {
                parts.push((begin + from, begin + from + content.len(), name.to_owned()));
            }
        }
        at += pair.len();
    }
    parts
}
