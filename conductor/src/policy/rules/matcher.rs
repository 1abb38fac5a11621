//! What a rule is about, compiled: whom, where, and which sub-actions.

use std::path::Path;

use crate::policy::{Command, Network, PathFact, ServerFact, Subject, UrlFact, Word, paths, urls};

use super::{
    globs::{Globs, PathGlobs, Sight},
    words::{Found, Line, Options, could_be_option, exact_subcommand, possible_subcommand},
};

/// Whom and where; a key that is not given matches everybody and everywhere.
#[derive(Debug, Clone, Default)]
pub(super) struct Scope {
    pub user: Option<Globs>,
    pub team: Option<Globs>,
    pub role: Option<Globs>,
    pub agent: Option<Globs>,
    pub mode: Option<Globs>,
    pub model: Option<Globs>,
    pub root: Option<PathGlobs>,
}

impl Scope {
    pub(super) fn matches(&self, subject: &Subject) -> bool {
        let is = |globs: &Option<Globs>, text: &str| globs.as_ref().is_none_or(|globs| globs.matches(text));
        is(&self.user, &subject.user)
            && is(&self.role, &subject.role)
            && is(&self.agent, &subject.agent)
            && is(&self.mode, subject.mode.as_deref().unwrap_or_default())
            && is(&self.model, subject.model.as_deref().unwrap_or_default())
            && self.team.as_ref().is_none_or(|globs| subject.teams.iter().any(|team| globs.matches(team)))
            && self.root.as_ref().is_none_or(|globs| globs.matches_absolute(&subject.cwd))
    }
}

/// Which sub-actions.
#[derive(Debug, Clone)]
pub(super) enum What {
    Run(RunMatcher),
    Read(PathMatcher),
    Write(PathMatcher),
    Fetch(FetchMatcher),
    Mcp { server: Option<Globs>, tool: Option<Globs> },
    Tool(Globs),
    Mode(Globs),
    Model(Globs),
    Setting { id: Option<Globs>, value: Option<Globs> },
    Agent(Globs),
    Server(ServerMatcher),
    Anything,
}

/// Programs that a rule names.
#[derive(Debug, Clone)]
pub(super) enum Programs {
    /// Every one.
    Any,
    /// These.
    Named(Vec<String>),
    /// Those that match; not for rules that allow.
    Like(Globs),
}

/// Programs with their words.
#[derive(Debug, Clone)]
pub(super) struct RunMatcher {
    pub is_strict: bool,
    pub programs: Programs,
    /// Each a sequence of words.
    pub subcommands: Option<Vec<Vec<String>>>,
    pub globals: Options,
    pub line: Line,
    pub local: Option<bool>,
    /// Only in the session's directory, not where a command before it has gone.
    pub at_start: bool,
    pub any_option: Option<Vec<String>>,
    /// A word has to be like this, or lead to such a path.
    pub any_word: Option<Globs>,
    pub any_path: Option<Box<PathGlobs>>,
}

impl RunMatcher {
    /// What the words are, if the rule is about this command. Several ways to read them give
    /// several answers, of which one has to be harmless.
    pub(super) fn matches(&self, command: &Command) -> Vec<Vec<Found>> {
        if !self.is_program(command) || !self.is_place(command) {
            return Vec::new();
        }
        let words = &command.words;
        if let Some(options) = &self.any_option {
            let is_there = |option: &String| words.iter().any(|word| could_be_option(&word.text, option));
            if !options.iter().any(is_there) {
                return Vec::new();
            }
        }
        if (self.any_word.is_some() || self.any_path.is_some())
            && !words.iter().any(|word| self.is_meant(word))
        {
            return Vec::new();
        }
        let Some(subcommands) = &self.subcommands else {
            return self.line.fits(words, 0).into_iter().collect();
        };
        // Each part has to be one of the words, in whatever order they are read.
        let is_there =
            |sequence: &&Vec<String>| sequence.iter().all(|part| words.iter().any(|word| word.text == *part));
        let after = |sequence: &Vec<String>| match self.is_strict {
            true => possible_subcommand(&self.globals, sequence, words),
            false => exact_subcommand(&self.globals, sequence, words).into_iter().collect(),
        };
        let ends = subcommands.iter().filter(is_there).flat_map(after);
        ends.filter_map(|end| self.line.fits(words, end)).collect()
    }

    /// Whether a rule that looks for a word has found it.
    fn is_meant(&self, word: &Word) -> bool {
        let is_like = |globs: &Globs| {
            globs.matches(&word.text) || usual_forms(word).iter().any(|form| globs.matches(form))
        };
        self.any_word.as_ref().is_some_and(is_like)
            || self.any_path.as_ref().is_some_and(|globs| leads_to(word, globs))
    }

    fn is_program(&self, command: &Command) -> bool {
        let written = base_name(&command.program);
        let found = command.file.as_deref().and_then(|file| file.file_name()).and_then(|name| name.to_str());
        let is = |test: &dyn Fn(&str) -> bool| {
            // A link to a program is that program, too, where that is stricter.
            test(written) || (self.is_strict && found.is_some_and(test))
        };
        match &self.programs {
            Programs::Any => true,
            Programs::Named(names) => is(&|name| names.iter().any(|known| known == name)),
            Programs::Like(globs) => is(&|name| globs.matches(name)),
        }
    }

    /// Whether the program lies where a rule about names may hold.
    fn is_place(&self, command: &Command) -> bool {
        if self.is_strict {
            return self.local.is_none_or(|local| local == command.is_local);
        }
        if command.program.is_empty() || self.local.unwrap_or(false) != command.is_local {
            return false;
        }
        if command.is_local || !command.program.contains('/') {
            return true;
        }
        // A path that leads to a program of another name says nothing about that one.
        let found = command.file.as_deref().and_then(|file| file.file_name()).and_then(|name| name.to_str());
        command.program.starts_with('/') && found == Some(base_name(&command.program))
    }
}

/// An address without a scheme is longer, however it is written; other numbers are mostly not.
const SHORTEST_ADDRESS: usize = 7;

/// The paths and addresses in a word as they are mostly written, also behind `NAME=`, where they are
/// written otherwise.
fn usual_forms(word: &Word) -> Vec<String> {
    let text = word.text.as_str();
    let mut forms = Vec::new();
    let value = text.find('=').map(|at| text.split_at(at + 1));
    for (before, given) in [Some(("", text)), value].into_iter().flatten() {
        if given.starts_with('/') {
            forms.push(format!("{before}{}", paths::flat(Path::new(given)).display()));
        } else if given.contains("://") {
            forms.extend(usual_address(given).map(|usual| format!("{before}{usual}")));
        } else if given.len() > SHORTEST_ADDRESS
            && given.starts_with(|c: char| c.is_ascii_digit() || c == '[')
        {
            forms.extend(usual_address(&format!("http://{given}")).map(|usual| format!("{before}{usual}")));
        }
    }
    if let (Some((before, _)), Some(PathFact { resolved: Some(resolved), root: None, .. })) =
        (value, &word.value)
    {
        forms.push(format!("{before}{}", resolved.display()));
    }
    forms
}

fn usual_address(given: &str) -> Option<String> {
    let fact = urls::fact(given);
    (!fact.host.is_empty()).then(|| format!("{}://{}{}", fact.scheme, fact.host, fact.path))
}

/// Whether a word is a path to such a place outside of all roots.
fn leads_to(word: &Word, globs: &PathGlobs) -> bool {
    let Some(fact) = &word.path else { return false };
    // Whoever has the whole disk for a root means it no less.
    let is_outside = fact.root.as_deref().is_none_or(|root| root == Path::new("/"));
    let is_flat =
        || fact.given.starts_with('/') && globs.matches_absolute(&paths::flat(Path::new(&fact.given)));
    is_outside && (globs.matches_sight(&Sight::of(fact)) || is_flat())
}

/// The last part of a program's path.
pub(in crate::policy) fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Files and directories.
#[derive(Debug, Clone)]
pub(super) struct PathMatcher {
    pub is_strict: bool,
    pub path: Option<PathGlobs>,
    pub inside: Option<bool>,
    pub protected: Option<bool>,
}

impl PathMatcher {
    /// `is_protected`: for what the sub-action would do; `sight`: what patterns see of it.
    pub(super) fn matches(&self, fact: &PathFact, is_protected: bool, sight: &Sight<'_>) -> bool {
        let is_inside = fact.root.is_some();
        if !self.is_strict {
            if fact.trouble.is_some() || fact.resolved.is_none() {
                return false;
            }
            if is_inside != self.inside.unwrap_or(true) || is_protected != self.protected.unwrap_or(false) {
                return false;
            }
        }
        self.inside.is_none_or(|inside| inside == is_inside)
            && self.protected.is_none_or(|protected| protected == is_protected)
            && self.path.as_ref().is_none_or(|globs| globs.matches_sight(sight))
    }
}

/// Addresses.
#[derive(Debug, Clone)]
pub(super) struct FetchMatcher {
    pub is_strict: bool,
    pub scheme: Option<Vec<String>>,
    pub host: Option<Globs>,
    pub port: Option<Vec<u16>>,
    pub path: Option<Globs>,
}

impl FetchMatcher {
    pub(super) fn matches(&self, fact: &UrlFact) -> bool {
        if !self.is_strict {
            if fact.trouble.is_some() || fact.host.is_empty() {
                return false;
            }
            // What is not public is meant only by a rule that names it.
            let is_public = matches!(fact.network, Network::Name | Network::Public);
            if !is_public && !self.host.as_ref().is_some_and(|globs| globs.names(&fact.host)) {
                return false;
            }
            if self.scheme.is_none() && fact.scheme != "https" {
                return false;
            }
            let own = match fact.scheme.as_str() {
                "https" | "wss" => Some(443),
                "http" | "ws" => Some(80),
                _ => None,
            };
            if self.port.is_none() && own != Some(fact.port) {
                return false;
            }
        }
        self.scheme.as_ref().is_none_or(|schemes| schemes.contains(&fact.scheme))
            && self.host.as_ref().is_none_or(|globs| globs.matches(&fact.host))
            && self.port.as_ref().is_none_or(|ports| ports.contains(&fact.port))
            && self.path.as_ref().is_none_or(|globs| globs.matches(&fact.path))
    }
}

/// MCP servers of editors.
#[derive(Debug, Clone)]
pub(super) struct ServerMatcher {
    pub is_strict: bool,
    pub name: Option<Globs>,
    pub known: Option<bool>,
    pub transport: Option<Vec<String>>,
    pub remote: Option<bool>,
}

impl ServerMatcher {
    pub(super) fn matches(&self, fact: &ServerFact) -> bool {
        // A name alone is no reason to trust what somebody calls so.
        let known = if self.is_strict { self.known } else { Some(self.known.unwrap_or(true)) };
        let is_named = |globs: &Globs| match (&fact.known, self.is_strict) {
            (Some(known), true) => globs.matches(known) || globs.matches(&fact.name),
            (Some(known), false) => globs.matches(known),
            (None, _) => globs.matches(&fact.name),
        };
        known.is_none_or(|known| known == fact.known.is_some())
            && self.name.as_ref().is_none_or(is_named)
            && self.transport.as_ref().is_none_or(|names| names.contains(&fact.transport))
            && self.remote.is_none_or(|remote| remote == fact.is_remote)
    }
}
