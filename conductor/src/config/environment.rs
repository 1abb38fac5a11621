//! `CONDUCTOR_*` as an overlay: `CONDUCTOR_SERVICE__LISTEN` is `listen` in
//! `[service]`. The environment is handed in, never looked up, so that tests
//! need not change their own.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use figment::{
    Figment,
    error::Kind,
    value::{Dict, Value},
};

use super::{
    Config,
    error::{self, ConfigError, Place, nearest},
    source::{self, Layer},
};
use crate::contain;

const PREFIX: &str = "CONDUCTOR_";

/// Variables of ours that say something else than a key's value.
const NOT_KEYS: [&str; 9] = [
    "CONDUCTOR_STATE_DIR",
    "CONDUCTOR_CA_FILE",
    "CONDUCTOR_CLIENT_CERT",
    "CONDUCTOR_CLIENT_KEY",
    "CONDUCTOR_CONFIG",
    "CONDUCTOR_DATABASE_URL",
    "CONDUCTOR_ENDPOINT",
    "CONDUCTOR_TOKEN",
    // Agents may run our commands, too.
    contain::TAG,
];

/// The environment that a configuration is loaded in.
pub(super) struct Environment(BTreeMap<OsString, OsString>);

/// One variable and the value it lays over the rest.
pub(super) struct Variable {
    pub(super) name: String,
    values: Dict,
}

impl Environment {
    pub(super) fn new(env: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self(env.into_iter().collect())
    }

    /// The user's home directory.
    pub(super) fn home(&self) -> Option<PathBuf> {
        self.directory("HOME")
    }

    /// Where the user's own file would be.
    pub(super) fn user_file(&self) -> Option<PathBuf> {
        let config = self.directory("XDG_CONFIG_HOME").or_else(|| Some(self.home()?.join(".config")))?;
        Some(config.join("conductor/agents.toml"))
    }

    /// A directory that a variable names. A relative one would lead to the
    /// working directory and counts as unset.
    fn directory(&self, name: &str) -> Option<PathBuf> {
        self.0.get(OsStr::new(name)).map(PathBuf::from).filter(|path| Path::is_absolute(path))
    }

    /// Lays every variable over what is merged so far. Returns the variables
    /// too, to have whom to blame.
    pub(super) fn overlay(&self, mut merged: Figment) -> Result<(Figment, Vec<Variable>), ConfigError> {
        let mut variables = Vec::new();
        for (name, text) in &self.0 {
            if !name.as_bytes().starts_with(PREFIX.as_bytes()) {
                continue;
            }
            let shown = name.to_string_lossy().into_owned();
            if NOT_KEYS.contains(&shown.as_str()) {
                continue;
            }
            let Some(text) = text.to_str() else {
                return Err(refuse(&shown, "its value is not UTF-8", "set it to plain text or unset it"));
            };
            let path = key_path(&shown, &merged).ok_or_else(|| {
                refuse(
                    &shown,
                    "names no key",
                    "join table and key by two underscores, as in CONDUCTOR_SERVICE__LISTEN",
                )
            })?;
            let values;
            (merged, values) = lay_over(&merged, &shown, &path, text)?;
            variables.push(Variable { name: shown, values });
        }
        Ok((merged, variables))
    }
}

impl Variable {
    /// Whether it gave the key at `path` its value.
    pub(super) fn sets(&self, path: &[&str]) -> bool {
        let mut table = &self.values;
        for (depth, name) in path.iter().enumerate() {
            match table.get(*name) {
                Some(Value::Dict(_, deeper)) => table = deeper,
                // What follows can only be the position in a list.
                Some(_) => return path.len() - depth <= 2,
                None => return false,
            }
        }
        true
    }
}

/// Lays one variable over what is merged so far.
///
/// Whether `8080` is a number or text depends on the key. The types know: the
/// value is taken as text if text fits there, else as a TOML value.
fn lay_over(
    merged: &Figment,
    name: &str,
    path: &[String],
    text: &str,
) -> Result<(Figment, Dict), ConfigError> {
    let with = |value: Value| {
        let values = nested(path, value);
        let candidate = merged.clone().merge(Layer::new("environment", values.clone()));
        match candidate.extract::<Config>() {
            Ok(_) => Ok((candidate, values)),
            Err(error) => Err(Box::new(error)),
        }
    };
    let as_text = match with(Value::from(text)) {
        Ok(done) => return Ok(done),
        Err(error) => error,
    };
    let error = match source::lone_value(text) {
        Some(value) if matches!(as_text.kind, Kind::InvalidType(..)) => match with(value) {
            Ok(done) => return Ok(done),
            Err(error) => error,
        },
        _ => as_text,
    };
    if let Kind::UnknownField(field, known) = &error.kind {
        let table = &error.path[..error.path.len().saturating_sub(1)];
        let hint = match nearest(field, known.iter().copied()) {
            Some(guess) => {
                // What is beneath it, the error does not say.
                let beneath = path.get(error.path.len()..).unwrap_or_default();
                let meant = variable_name(&[table, &[guess.to_owned()], beneath].concat());
                format!("did you mean {meant}? unset it otherwise")
            }
            None => format!("unset it; keys there: {}", known.join(", ")),
        };
        let what = format!(
            "names no key: there is no {} in the configuration",
            error::quoted(&error.path.join("."))
        );
        return Err(refuse(name, &what, &hint));
    }
    let (what, hint) = error::explain(&error.kind, &error.path);
    Err(refuse(name, &what, &hint))
}

/// The key that a variable names.
fn key_path(name: &str, merged: &Figment) -> Option<Vec<String>> {
    let mut parts = name.strip_prefix(PREFIX)?.split("__");
    let mut path = Vec::new();
    while let Some(part) = parts.next() {
        if part.is_empty() {
            return None;
        }
        let part = part.to_ascii_lowercase();
        let free = matches!(path.as_slice(), [agents, _] if agents == "agents")
            && matches!(part.as_str(), "env" | "files");
        path.push(match path.as_slice() {
            [agents] if agents == "agents" => agent_name(part, merged),
            _ => part,
        });
        if free {
            // The rest is a name or path of somebody else's, to be kept as it is.
            let rest = parts.by_ref().collect::<Vec<_>>().join("__");
            path.extend(Some(rest).filter(|rest| !rest.is_empty()));
        }
    }
    Some(path)
}

/// The agent that a part of a variable means. Variables cannot well contain a
/// hyphen, so `MY_AGENT` also means `my-agent` unless there is a `my_agent`.
fn agent_name(part: String, merged: &Figment) -> String {
    let Ok(agents) = merged.extract_inner::<BTreeMap<String, Value>>("agents") else { return part };
    if agents.contains_key(&part) {
        return part;
    }
    agents.into_keys().find(|name| name.replace('-', "_") == part).unwrap_or(part)
}

fn variable_name(path: &[String]) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_ascii_uppercase()).collect();
    format!("{PREFIX}{}", parts.join("__"))
}

fn nested(path: &[String], value: Value) -> Dict {
    let Some((last, tables)) = path.split_last() else { return Dict::new() };
    let innermost = Dict::from([(last.clone(), value)]);
    tables.iter().rev().fold(innermost, |inner, name| Dict::from([(name.clone(), Value::from(inner))]))
}

fn refuse(name: &str, what: &str, hint: &str) -> ConfigError {
    // A name can hold anything but `=`; only what is harmless is shown as is.
    let name = name.chars().flat_map(char::escape_debug).collect();
    ConfigError { place: Place::Variable(name), what: what.to_owned(), hint: hint.to_owned() }
}
