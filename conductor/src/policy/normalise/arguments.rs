//! What the arguments of a tool that is not known name as commands, files and
//! addresses.

use std::{collections::BTreeSet, path::PathBuf};

use serde_json::Value;

use super::{Ground, SubAction, fetch, hidden, is_file_uri, place, strings, terminal::directory};
use crate::policy::{shell, text};

/// More texts than this are not looked at.
const MOST: usize = 256;

/// What stands beneath more lists and objects than this is not looked at.
const DEEPEST: usize = 16;

/// Keys whose values are commands.
const COMMANDS: [&str; 8] = ["command", "cmd", "commandline", "script", "shell", "argv", "exec", "bash"];

/// How keys end whose values are places on the disk.
const PLACES: [&str; 14] = [
    "path",
    "paths",
    "file",
    "files",
    "filename",
    "filepath",
    "dir",
    "directory",
    "directories",
    "folder",
    "cwd",
    "root",
    "workdir",
    "destination",
];

/// Keys whose values are addresses.
const ADDRESSES: [&str; 9] =
    ["url", "urls", "href", "link", "endpoint", "host", "hostname", "website", "webhook"];

/// Schemes of addresses; other words before a colon are just words.
const SCHEMES: [&str; 12] =
    ["http", "https", "ftp", "ftps", "ws", "wss", "ssh", "git", "sftp", "data", "javascript", "gopher"];

/// A call of a tool of an MCP server. What a tool does with a path is not known, so that it counts
/// as written.
pub fn mcp(server: &str, tool: &str, arguments: &Value, ground: &Ground<'_>) -> Vec<SubAction> {
    let mut found = vec![SubAction::Mcp { server: server.into(), tool: tool.into() }];
    if server.is_empty() || tool.is_empty() {
        found.push(SubAction::unknown("the server or the tool has no name"));
    }
    found.extend(hidden("the server's name", server));
    found.extend(hidden("the tool's name", tool));
    match arguments {
        Value::Object(_) | Value::Null => found.extend(named_in(arguments, ground)),
        _ => found.push(SubAction::unknown("the arguments of the tool are no object")),
    }
    found
}

/// What the texts in a value name. If one says where commands run, they are judged from there.
pub fn named_in(value: &Value, ground: &Ground<'_>) -> Vec<SubAction> {
    let mut directories = BTreeSet::new();
    directories_in(value, &["cwd", "workdir", "workingdirectory"], 0, &mut directories);
    let (directory, fault) = agreed(&directories, ground);
    let run = Ground { cwd: directory.as_deref().unwrap_or(ground.cwd), ..*ground };
    let mut scan = Scan { found: Vec::new(), texts: 0, commands: 0, ground, run: &run };
    if !scan.value("", value, 0) {
        scan.found.push(SubAction::unknown("there are too many arguments to look at"));
    }
    if let (Some(fault), 1..) = (fault, scan.commands) {
        scan.found.push(SubAction::unknown(fault));
    }
    scan.found
}

/// The texts at keys of these names, at any depth that is looked at.
pub fn directories_in<'a>(value: &'a Value, names: &[&str], depth: usize, found: &mut BTreeSet<&'a str>) {
    if depth > DEEPEST {
        return;
    }
    match value {
        Value::Array(list) => list.iter().for_each(|value| directories_in(value, names, depth + 1, found)),
        Value::Object(object) => {
            for (key, value) in object {
                match value {
                    Value::String(given) if !given.is_empty() && is_one_of(names, key) => {
                        found.insert(given);
                    }
                    Value::Array(_) | Value::Object(_) => directories_in(value, names, depth + 1, found),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// The one directory that all of these name, beneath a root; or what is wrong with them.
pub fn agreed(directories: &BTreeSet<&str>, ground: &Ground<'_>) -> (Option<PathBuf>, Option<String>) {
    let resolved: Result<BTreeSet<PathBuf>, String> =
        directories.iter().map(|given| directory(given, ground)).collect();
    match resolved {
        Err(why) => (None, Some(why)),
        Ok(resolved) if resolved.len() > 1 => (None, Some("it names two directories to run in".into())),
        Ok(resolved) => (resolved.into_iter().next(), None),
    }
}

/// A program with its arguments, as an agent names them. Some put the words together again and give
/// them to a shell.
pub fn words(argv: &[String], ground: &Ground<'_>) -> Vec<SubAction> {
    let program = argv.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
    let is_shell = matches!(program, "sh" | "bash" | "dash" | "zsh" | "ksh" | "ash");
    let takes_line = |option: &String| option.starts_with('-') && option.ends_with('c');
    // A line for a shell is read as one.
    let line = (is_shell && argv.get(1).is_some_and(takes_line)).then_some(2);
    let is_special = |word: &str| {
        let splits = word.split_whitespace().skip(1).any(|part| part.starts_with('-'));
        splits
            || word.contains([
                ';', '|', '&', '$', '`', '>', '<', '(', ')', '*', '?', '[', '{', '\n', '\'', '"', '\\',
            ])
    };
    let mut found = shell::argv(argv, ground);
    if argv.iter().enumerate().any(|(at, word)| Some(at) != line && is_special(word)) {
        found.push(SubAction::unknown("an agent may hand these words to a shell"));
    }
    found
}

struct Scan<'a> {
    found: Vec<SubAction>,
    texts: usize,
    commands: usize,
    ground: &'a Ground<'a>,
    /// Where commands run.
    run: &'a Ground<'a>,
}

impl Scan<'_> {
    /// Looks at a value; false if there is too much of it.
    fn value(&mut self, key: &str, value: &Value, depth: usize) -> bool {
        if depth > DEEPEST {
            return false;
        }
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => true,
            Value::String(given) => {
                self.texts += 1;
                self.text(key, given);
                self.texts <= MOST
            }
            Value::Array(list) => {
                if is_one_of(&COMMANDS, key)
                    && let Some(argv) = strings(value).filter(|argv| !argv.is_empty())
                {
                    self.commands += 1;
                    self.found.extend(words(&argv, self.run));
                    return true;
                }
                list.iter().all(|value| self.value(key, value, depth + 1))
            }
            Value::Object(object) => object.iter().all(|(name, value)| {
                // Some tools have a map from paths to what is to be done with them.
                self.texts += 1;
                if begins_as_path(name) {
                    self.found.push(SubAction::Write(place(name.trim(), self.ground)));
                }
                self.texts <= MOST && self.value(name, value, depth + 1)
            }),
        }
    }

    fn text(&mut self, key: &str, given: &str) {
        // Most tools leave out spaces around a path.
        let given = given.trim();
        if given.is_empty() {
            return;
        }
        if is_one_of(&COMMANDS, key) {
            self.commands += 1;
            self.found.extend(shell::line(given, self.run));
        } else if is_file_uri(given) {
            self.found.push(SubAction::Write(place(given, self.ground)));
        } else if is_address(given) || is_one_of(&ADDRESSES, key) {
            self.found.extend(fetch(given, self.ground));
        } else if begins_as_path(given) || is_place(key) || is_uri_key(key) || is_single_path(given) {
            self.found.push(SubAction::Write(place(given, self.ground)));
        }
    }
}

fn is_one_of(list: &[&str], key: &str) -> bool {
    let key = squeezed(key);
    list.contains(&key.as_str())
}

/// A key without what only separates its words, in lower case.
pub fn squeezed(key: &str) -> String {
    key.chars().filter(|c| !matches!(c, '_' | '-' | '.' | ' ')).map(|c| c.to_ascii_lowercase()).collect()
}

fn is_place(key: &str) -> bool {
    let key = squeezed(key);
    PLACES.iter().any(|place| key.ends_with(place))
}

fn is_uri_key(key: &str) -> bool {
    squeezed(key).ends_with("uri")
}

/// Whether a text is an address as a whole.
pub fn is_address(given: &str) -> bool {
    let given = given.trim();
    let Some((scheme, rest)) = given.split_once(':') else { return given.starts_with("//") };
    let is_known = SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let is_word =
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c));
    let is_one = !given.contains(char::is_whitespace);
    is_one && (is_known && !rest.is_empty() || is_word && rest.starts_with("//"))
}

/// Whether a text begins as only paths do.
fn begins_as_path(given: &str) -> bool {
    let given = given.trim_start();
    ["/", "./", "../", "~/", "~\\", ".\\", "..\\", "\\\\", "$HOME", "${HOME"]
        .iter()
        .any(|start| given.starts_with(start))
        || given == "~"
        || given == ".."
}

/// Whether a text may be a path: it has a slash, or begins with a dot, and no spaces.
fn is_single_path(given: &str) -> bool {
    let has_sign = given.contains('/') || given.contains('\\') || given.starts_with('.');
    has_sign && given.len() < 4096 && !given.contains(char::is_whitespace)
}

/// The addresses in a text that people may have written.
pub fn addresses_in(given: &str) -> Vec<&str> {
    let ends = |c: char| c.is_whitespace() || "\"'<>()[]{}`,".contains(c);
    given.split(ends).filter(|word| word.contains("://")).collect()
}

/// A text as it may be shown in a message.
pub fn quoted(given: &str) -> String {
    format!("`{}`", text::shown(given, 80))
}
