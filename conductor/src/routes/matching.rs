//! What a route is for, and whether that is asked for.

use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};

use super::{Asked, Field, Unroutable, Wanted, known};
use crate::config::Route;

/// The longest pattern; a longer one is none that people write.
const LONGEST: usize = 512;

/// Whether a pattern can be used; if not, why.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.len() > LONGEST {
        return Err(format!("it has more than {LONGEST} characters"));
    }
    GlobBuilder::new(pattern).build().map(|_| ()).map_err(|error| error.kind().to_string())
}

/// The patterns of a route that do not stand for themselves only, made ready when the
/// configuration is read: with each decision it would take longer than all the rest of it.
#[derive(Debug, Clone, Default)]
pub struct Compiled {
    names: Vec<(String, GlobMatcher)>,
    paths: Vec<(String, GlobMatcher)>,
}

impl Compiled {
    /// Those of a route whose patterns were checked.
    pub fn of(route: &Route) -> Self {
        let compiled = |patterns: &mut dyn Iterator<Item = &String>, of_paths| {
            let others = patterns.filter(|pattern| !is_literal(pattern));
            others.filter_map(|pattern| Some((pattern.clone(), glob(pattern, of_paths)?))).collect()
        };
        let names = [&route.model, &route.mode, &route.user, &route.team];
        Self {
            names: compiled(&mut names.into_iter().flatten(), false),
            paths: compiled(&mut route.cwd.iter(), true),
        }
    }
}

/// They say nothing that the patterns do not.
impl PartialEq for Compiled {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Compiled {}

/// Whether a pattern stands for itself only.
pub(super) fn is_literal(pattern: &str) -> bool {
    !pattern.contains(['*', '?', '[', ']', '{', '}', '\\'])
}

/// Why a route is not for what is asked, if so.
pub(super) fn mismatch(route: &Route, wanted: &Wanted<'_>) -> Option<String> {
    let asked = wanted.asked;
    if !route.model.is_empty() {
        let Some(given) = asked.model else { return Some("no model was chosen".into()) };
        let full = wanted.agent.zip(wanted.model).map(|(agent, model)| format!("{agent}/{model}"));
        let names = [Some(given), wanted.model, full.as_deref()];
        if !names.into_iter().flatten().any(|name| any(route, &route.model, name)) {
            return Some(format!("model `{given}` is not {}", list(&route.model)));
        }
    }
    if !route.mode.is_empty() {
        let Some(mode) = asked.mode else { return Some("no mode was chosen".into()) };
        if !any(route, &route.mode, mode) {
            return Some(format!("mode `{mode}` is not {}", list(&route.mode)));
        }
    }
    place_mismatch(route, asked)
}

/// Why a route is not for this user, place or label, if so.
pub(super) fn place_mismatch(route: &Route, asked: &Asked<'_>) -> Option<String> {
    if !route.user.is_empty() && !any(route, &route.user, asked.user) {
        return Some(format!("user `{}` is not {}", asked.user, list(&route.user)));
    }
    if !route.team.is_empty() && !asked.teams.iter().any(|team| any(route, &route.team, team)) {
        return Some(format!("the user is in no team that is {}", list(&route.team)));
    }
    if !route.cwd.is_empty() && !route.cwd.iter().any(|pattern| is_beneath(route, asked.cwd, pattern)) {
        return Some(format!("{} does not lie in {}", asked.cwd.display(), list(&route.cwd)));
    }
    let missing = route.labels.iter().find(|(key, value)| asked.labels.get(*key) != Some(*value));
    missing.map(|(key, value)| format!("the request has no label {key} = `{value}`"))
}

/// What a route is for, in words.
pub(super) fn description(route: &Route) -> String {
    let lists = [
        ("model", &route.model),
        ("mode", &route.mode),
        ("user", &route.user),
        ("team", &route.team),
        ("cwd", &route.cwd),
    ];
    let lists = lists.iter().filter(|(_, patterns)| !patterns.is_empty());
    let mut parts: Vec<String> = lists.map(|(what, patterns)| format!("{what} {}", list(patterns))).collect();
    parts.extend(route.labels.iter().map(|(key, value)| format!("label {key} = `{value}`")));
    if parts.is_empty() { "it is for everything".into() } else { format!("it is for {}", parts.join(", ")) }
}

/// The agent and the model that a model's name means.
pub(super) fn named<'a>(
    text: &'a str,
    field: &Field<'a>,
) -> Result<(Option<&'a str>, Option<&'a str>), Unroutable> {
    let model = |model: &'a str| Some(model).filter(|model| !model.is_empty());
    if let Some(name) = text.strip_prefix("acp:") {
        let (agent, rest) = name.split_once('/').unwrap_or((name, ""));
        return Ok((Some(known(agent, field.config)?), model(rest)));
    }
    // Models have slashes, too: only the name of an agent makes it one.
    if let Some((agent, rest)) = text.split_once('/')
        && let Ok(agent) = known(agent, field.config)
    {
        return Ok((Some(agent), model(rest)));
    }
    let is_model = field.offers.values().any(|offer| offer.models.iter().any(|own| own.value == text));
    match known(text, field.config) {
        Ok(agent) if !is_model => Ok((Some(agent), None)),
        _ => Ok((None, model(text))),
    }
}

fn any(route: &Route, patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| match is_literal(pattern) {
        true => pattern == text,
        false => ready(&route.compiled.names, pattern).is_some_and(|glob| glob.is_match(text)),
    })
}

fn ready<'a>(compiled: &'a [(String, GlobMatcher)], pattern: &str) -> Option<&'a GlobMatcher> {
    compiled.iter().find(|(text, _)| text == pattern).map(|(_, glob)| glob)
}

/// Whether a directory is the one that is named, lies beneath it, or matches.
fn is_beneath(route: &Route, path: &Path, pattern: &str) -> bool {
    if is_literal(pattern) {
        return path.starts_with(pattern);
    }
    let glob = ready(&route.compiled.paths, pattern);
    glob.is_some_and(|glob| path.ancestors().any(|above| glob.is_match(above)))
}

/// Patterns were checked when the configuration was read.
fn glob(pattern: &str, of_paths: bool) -> Option<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(of_paths).build();
    glob.ok().map(|glob| glob.compile_matcher())
}

fn list(patterns: &[String]) -> String {
    let all: Vec<String> = patterns.iter().map(|pattern| format!("`{pattern}`")).collect();
    all.join(" or ")
}
