//! Whom to blame: the variable, the line of the file or, last, the line of
//! the defaults that gave a key its value.

use super::{
    environment::Variable,
    error::{self, ConfigError, Place},
    source::{Point, Source},
};

/// Everything that the configuration was merged from.
pub(super) struct Origins {
    pub(super) variables: Vec<Variable>,
    pub(super) file: Option<Source>,
    pub(super) defaults: Source,
}

impl Origins {
    /// Refuses the value at `path`.
    pub(super) fn refuse(
        &self,
        path: &[&str],
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConfigError {
        self.refuse_one_of(&[path], what, hint)
    }

    /// Refuses values that do not go together, pointing at the first that
    /// somebody wrote, and at a default only if nobody did.
    pub(super) fn refuse_one_of(
        &self,
        paths: &[&[&str]],
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConfigError {
        let by_user = paths.iter().find_map(|path| self.written(path, Point::Value));
        let place = by_user.or_else(|| paths.iter().find_map(|path| self.defaults.find(path, Point::Value)));
        self.refuse_at(place, what, hint)
    }

    /// Refuses the last name in `path` rather than its value.
    pub(super) fn refuse_key(
        &self,
        path: &[&str],
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConfigError {
        let place = self.written(path, Point::Key).or_else(|| self.defaults.find(path, Point::Key));
        self.refuse_at(place, what, hint)
    }

    /// Refuses a whole table, for which the file is a better place to look
    /// than one variable that reaches into it.
    pub(super) fn refuse_table(
        &self,
        path: &[&str],
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConfigError {
        let in_file = self.file.as_ref().and_then(|file| file.find(path, Point::Key));
        self.refuse_at(in_file.or_else(|| self.written(path, Point::Key)), what, hint)
    }

    /// Refuses what the types refuse.
    pub(super) fn refuse_extract(&self, error: &figment::Error) -> ConfigError {
        let (what, hint) = error::explain(&error.kind, &error.path);
        let path: Vec<&str> = error.path.iter().map(String::as_str).collect();
        self.refuse(&path, what, hint)
    }

    /// Whether the user, not the defaults, gave the key at `path` a value.
    pub(super) fn has(&self, path: &[&str]) -> bool {
        self.written(path, Point::Key).is_some()
    }

    /// Where the file gives the key at `path` the value that counts.
    pub(super) fn in_file(&self, path: &[&str]) -> Option<Place> {
        self.written(path, Point::Value).filter(|place| !matches!(place, Place::Variable(_)))
    }

    /// Where the user gave the key at `path` a value.
    fn written(&self, path: &[&str], point: Point) -> Option<Place> {
        // The environment overlays the file, and so is to blame first.
        let variable = self.variables.iter().rev().find(|variable| variable.sets(path));
        match variable {
            Some(variable) => Some(Place::Variable(variable.name.clone())),
            None => self.file.as_ref()?.find(path, point),
        }
    }

    fn refuse_at(
        &self,
        place: Option<Place>,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConfigError {
        let place = place.unwrap_or_else(|| self.file.as_ref().unwrap_or(&self.defaults).start());
        ConfigError { place, what: what.into(), hint: hint.into() }
    }
}
