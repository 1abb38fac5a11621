//! `terminal/create`, as the workspace would carry it out.

use std::path::PathBuf;

use serde_json::Value;

use super::{Ground, SubAction, hidden, strings};
use crate::policy::{shell, text};

/// Variables that change how a program's output looks, and nothing that it does.
const HARMLESS: [&str; 10] = [
    "CI",
    "CLICOLOR",
    "COLORTERM",
    "COLUMNS",
    "FORCE_COLOR",
    "LINES",
    "NO_COLOR",
    "NO_UPDATE_NOTIFIER",
    "TERM",
    "TZ",
];

/// What a terminal would do.
pub fn create(params: &Value, ground: &Ground<'_>) -> Vec<SubAction> {
    let mut found = Vec::new();
    let unknown = |what: &str| vec![SubAction::unknown(what)];
    let Some(command) = params.get("command").and_then(Value::as_str) else {
        return unknown("the terminal has no command");
    };
    let args = match present(params, "args") {
        None => Vec::new(),
        Some(args) => match strings(args) {
            Some(args) => args,
            None => return unknown("the terminal's arguments are no list of texts"),
        },
    };
    found.extend(variables(present(params, "env")));
    let directory = match present(params, "cwd") {
        None => None,
        Some(Value::String(cwd)) => match directory(cwd, ground) {
            Ok(directory) => Some(directory),
            Err(why) => {
                found.push(SubAction::unknown(why));
                None
            }
        },
        Some(_) => return unknown("the terminal's directory is no text"),
    };
    let ground = Ground { cwd: directory.as_deref().unwrap_or(ground.cwd), ..*ground };
    if command.trim().is_empty() {
        found.push(SubAction::unknown("the terminal's command is empty"));
    } else if !args.is_empty() || is_word(command) {
        let argv: Vec<String> = std::iter::once(command.to_owned()).chain(args).collect();
        found.extend(shell::argv(&argv, &ground));
    } else {
        // What is no program is a line for a shell. A file whose name is that line would be
        // started instead; an agent may only make one where it may write.
        if !command.contains('/') && ground.resolver.program(ground.cwd, command).1 {
            found.push(SubAction::unknown(
                "a file in PATH that has this line as its name would be run instead",
            ));
        }
        found.extend(shell::line(command, &ground));
    }
    found
}

/// The directory that something is to run in, which must be beneath a root.
pub fn directory(given: &str, ground: &Ground<'_>) -> Result<PathBuf, String> {
    let fact = super::place(given, ground);
    match (fact.trouble, fact.root, fact.resolved) {
        (None, Some(_), Some(resolved)) => Ok(resolved),
        (trouble, ..) => {
            let why = trouble.unwrap_or_else(|| "it is not beneath a root".into());
            Err(format!("it would run in `{}`: {why}", text::shown(given, 200)))
        }
    }
}

/// A parameter that is there and not null.
fn present<'a>(params: &'a Value, name: &str) -> Option<&'a Value> {
    params.get(name).filter(|value| !value.is_null())
}

/// A single word that means the same to a shell and to the system.
fn is_word(command: &str) -> bool {
    command.chars().all(|c| c.is_ascii_alphanumeric() || "_./+-".contains(c)) && !command.starts_with('-')
}

/// Most variables can change what a program does, down to which program it is.
fn variables(env: Option<&Value>) -> Vec<SubAction> {
    let list = match env {
        None => return Vec::new(),
        Some(Value::Array(list)) => list,
        Some(_) => return vec![SubAction::unknown("the terminal's variables are no list")],
    };
    let judge = |variable: &Value| {
        let name = variable.get("name").and_then(Value::as_str);
        let value = variable.get("value").and_then(Value::as_str);
        let (Some(name), Some(value)) = (name, value) else {
            return Some(SubAction::unknown("a variable of the terminal has no name or no value"));
        };
        if is_harmless(name, value) {
            return None;
        }
        let shown = text::shown(name, 60);
        Some(hidden("a variable's name", name).unwrap_or_else(|| {
            let value = text::shown(value, usize::MAX);
            SubAction::unknown(format!(
                "the variable `{shown}`, set to `{value}`, may change what the command does"
            ))
        }))
    };
    list.iter().filter_map(judge).collect()
}

/// Whether a variable changes nothing that a command does.
fn is_harmless(name: &str, value: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    match name {
        "LANG" | "LC_ALL" => is_usual_locale(value),
        name => HARMLESS.contains(&name) && value.len() <= 64 && value.chars().all(is_plain),
    }
}

/// Locales in which a shell reads bytes as they were read here. In others a quote or a backslash can be
/// the second half of a letter.
fn is_usual_locale(value: &str) -> bool {
    let is_place = |place: &str| {
        (1..=32).contains(&place.len())
            && place.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
    };
    matches!(value, "C" | "POSIX")
        || matches!(value.split_once('.'), Some((place, "UTF-8" | "utf8")) if is_place(place))
}
