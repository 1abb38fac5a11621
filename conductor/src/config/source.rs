//! One TOML text: read with suspicion, turned into values for the merge, and
//! able to say in which line a key stands.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    ops::Range,
    os::unix::fs::PermissionsExt as _,
    path::{self, Path, PathBuf},
};

use figment::{
    Metadata, Profile, Provider,
    value::{Dict, Map, Value},
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    DEFAULTS,
    error::{self, ConfigError, Place},
};

/// Far beyond any real configuration; a bigger file is a mistake.
const LARGEST: u64 = 1024 * 1024;

/// A TOML text.
#[derive(Debug)]
pub(super) struct Source {
    /// Where it was read from; `None` for the compiled-in defaults.
    path: Option<PathBuf>,
    /// Every user of this machine may read it.
    pub(super) is_open: bool,
    text: String,
}

/// What of a key to point at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Point {
    Key,
    Value,
}

impl Source {
    pub(super) fn built_in() -> Self {
        Self { path: None, is_open: false, text: DEFAULTS.to_owned() }
    }

    /// Reads a file that somebody asked for by name.
    pub(super) fn read_required(path: &Path) -> Result<Self, ConfigError> {
        // Absolute, so that a reload finds it from wherever it runs.
        let path = path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match Self::read(&path)? {
            Some(source) => Ok(source),
            None => Err(ConfigError {
                place: Place::File(path),
                what: "there is no such file".to_owned(),
                hint: "correct `--config` or CONDUCTOR_CONFIG, or leave it out to use the defaults"
                    .to_owned(),
            }),
        }
    }

    /// Reads the first of these files that exists.
    pub(super) fn read_first<'a>(
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Option<Self>, ConfigError> {
        for path in paths {
            if let Some(source) = Self::read(path)? {
                return Ok(Some(source));
            }
        }
        Ok(None)
    }

    /// Whether there is something to be read, be it good or not.
    pub(super) fn is_there(path: &Path) -> bool {
        !fs::metadata(path).is_err_and(|error| is_missing(&error))
    }

    fn read(path: &Path) -> Result<Option<Self>, ConfigError> {
        let refuse = |what: String, hint: &str| ConfigError {
            place: Place::File(path.to_owned()),
            what,
            hint: hint.to_owned(),
        };
        let unreadable = |error: io::Error| {
            refuse(format!("cannot be read: {error}"), "let the user who runs the conductor read it")
        };
        // Looked at before it is opened: opening a pipe would wait for ever.
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        };
        if metadata.is_dir() {
            return Err(refuse("is a directory".to_owned(), "name the file in it, normally agents.toml"));
        }
        if !metadata.is_file() {
            return Err(refuse("is not a regular file".to_owned(), "use a plain file; an empty one is fine"));
        }
        let file = File::open(path).map_err(unreadable)?;
        // Asked of the open file, so that it cannot be another one by now.
        let mode = file.metadata().map_err(unreadable)?.permissions().mode();
        if mode & 0o002 != 0 {
            return Err(refuse(
                format!("may be changed by every user of this machine (mode {:04o})", mode & 0o7777),
                "take that right away: chmod o-w FILE",
            ));
        }
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > LARGEST {
            return Err(refuse(
                "is larger than 1 MiB".to_owned(),
                "check that it is the right file; a configuration is small",
            ));
        }
        let source = Self::from_bytes(path, bytes)?;
        Ok(Some(Self { is_open: mode & 0o004 != 0, ..source }))
    }

    fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, ConfigError> {
        let text = String::from_utf8(bytes).map_err(|error| {
            let (good, bad) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
            let before = String::from_utf8_lossy(good);
            let found = bad.first().copied().unwrap_or_default();
            ConfigError {
                place: place(Some(path), before.strip_prefix('\u{feff}').unwrap_or(&before), good.len()),
                what: format!("is not UTF-8: found the byte 0x{found:02x}"),
                hint: "save the file as UTF-8".to_owned(),
            }
        })?;
        // Some editors write a byte order mark; it means nothing in UTF-8.
        let text = match text.strip_prefix('\u{feff}') {
            Some(rest) => rest.to_owned(),
            None => text,
        };
        Ok(Self { path: Some(path.to_owned()), is_open: false, text })
    }

    pub(super) fn into_path(self) -> Option<PathBuf> {
        self.path
    }

    /// The values in it.
    pub(super) fn parse(&self) -> Result<Dict, ConfigError> {
        let table = DeTable::parse(&self.text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let what = error.message().lines().collect::<Vec<_>>().join("; ");
            let hint = if what.contains("duplicate") {
                "every table and every key may stand in the file once: join the two"
            } else {
                "correct the TOML here; text needs quotes, tables look like [agents.NAME], comments begin with #"
            };
            self.refusal(offset, what, hint)
        })?;
        self.dict(table.get_ref())
    }

    fn dict(&self, table: &DeTable<'_>) -> Result<Dict, ConfigError> {
        table.iter().map(|(key, value)| Ok((key.get_ref().to_string(), self.value(value)?))).collect()
    }

    fn value(&self, value: &Spanned<DeValue<'_>>) -> Result<Value, ConfigError> {
        let offset = value.span().start;
        Ok(match value.get_ref() {
            DeValue::String(text) => Value::from(text.as_ref()),
            DeValue::Boolean(flag) => Value::from(*flag),
            DeValue::Integer(digits) => {
                Value::from(i64::from_str_radix(digits.as_str(), digits.radix()).map_err(|_| {
                    self.refusal(offset, "this number is too large", "write a number below 2^63")
                })?)
            }
            DeValue::Float(digits) => Value::from(
                digits
                    .as_str()
                    .parse::<f64>()
                    .map_err(|_| self.refusal(offset, "this is not a number", "write a whole number"))?,
            ),
            DeValue::Datetime(_) => {
                return Err(self.refusal(
                    offset,
                    "this is a date or a time, and no key takes one",
                    "put it in quotes if it is meant as text",
                ));
            }
            DeValue::Array(items) => {
                Value::from(items.iter().map(|item| self.value(item)).collect::<Result<Vec<_>, _>>()?)
            }
            DeValue::Table(table) => Value::from(self.dict(table)?),
        })
    }

    /// Where the key at `path` stands, if it does.
    pub(super) fn find(&self, path: &[&str], point: Point) -> Option<Place> {
        // Parsed anew: this runs once, on the way to an error message.
        let table = DeTable::parse(&self.text).ok()?;
        let span = span(table.get_ref(), path, point)?;
        Some(place(self.path.as_deref(), &self.text, span.start))
    }

    /// The refusal of what this file added to the merge.
    pub(super) fn refuse(&self, error: &figment::Error) -> ConfigError {
        let (what, hint) = error::explain(&error.kind, &error.path);
        let point = match error.kind {
            figment::error::Kind::UnknownField(..) => Point::Key,
            _ => Point::Value,
        };
        let path: Vec<&str> = error.path.iter().map(String::as_str).collect();
        // The key itself if it can be found, else the nearest table above it.
        let place = (1..=path.len()).rev().find_map(|depth| self.find(&path[..depth], point));
        let place = place.unwrap_or_else(|| self.start());
        ConfigError { place, what, hint }
    }

    /// Its beginning, for what stands nowhere in particular.
    pub(super) fn start(&self) -> Place {
        place(self.path.as_deref(), &self.text, 0)
    }

    fn refusal(&self, offset: usize, what: impl Into<String>, hint: &str) -> ConfigError {
        ConfigError {
            place: place(self.path.as_deref(), &self.text, offset),
            what: what.into(),
            hint: hint.to_owned(),
        }
    }
}

/// A TOML value on its own, as an environment variable holds it; `None` if
/// the text is not one.
pub(super) fn lone_value(text: &str) -> Option<Value> {
    let value = DeValue::parse(text).ok()?;
    Source { path: None, is_open: false, text: text.to_owned() }.value(&value).ok()
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn span(table: &DeTable<'_>, path: &[&str], point: Point) -> Option<Range<usize>> {
    let (name, rest) = path.split_first()?;
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == name)?;
    match (rest, value.get_ref()) {
        // A table's own span may be its header or its first key: its name is
        // what people look for.
        ([], value) if point == Point::Key || value.is_table() => Some(key.span()),
        ([], _) => Some(value.span()),
        (rest, DeValue::Table(table)) => span(table, rest, point),
        ([index, rest @ ..], DeValue::Array(items)) => {
            let item = index.parse().ok().and_then(|index: usize| items.get(index))?;
            // The key of a table among them, or the table if it has none such.
            let inner = item.get_ref().as_table().and_then(|table| span(table, rest, point));
            Some(inner.unwrap_or_else(|| item.span()))
        }
        _ => None,
    }
}

fn place(path: Option<&Path>, text: &str, offset: usize) -> Place {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    match path {
        Some(file) => Place::Line { file: file.to_owned(), line, column },
        None => Place::BuiltIn { line, column },
    }
}

/// Values as one layer of the merge.
pub(super) struct Layer {
    name: &'static str,
    values: Dict,
}

impl Layer {
    pub(super) fn new(name: &'static str, values: Dict) -> Self {
        Self { name, values }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    fn source(text: &str) -> Source {
        Source { path: Some("/x.toml".into()), is_open: false, text: text.to_owned() }
    }

    fn found(text: &str, path: &[&str], point: Point) -> Option<String> {
        source(text).find(path, point).map(|place| place.to_string())
    }

    #[test]
    fn keys_are_found_however_they_are_written() {
        let text = "a = 1\n[b.c]\n  d = [1,\n  \"é\", 3]\ne.f = { g = true }\n\"h i\" = 2\n";
        let at = |path: &[&str], point| found(text, path, point).unwrap();
        assert_eq!(at(&["a"], Point::Key), "/x.toml:1:1");
        assert_eq!(at(&["a"], Point::Value), "/x.toml:1:5");
        assert_eq!(at(&["b", "c"], Point::Value), "/x.toml:2:4");
        assert_eq!(at(&["b", "c", "d"], Point::Key), "/x.toml:3:3");
        assert_eq!(at(&["b", "c", "d", "2"], Point::Value), "/x.toml:4:8");
        assert_eq!(at(&["b", "c", "e", "f", "g"], Point::Value), "/x.toml:5:13");
        assert_eq!(at(&["b", "c", "h i"], Point::Key), "/x.toml:6:1");
        assert_eq!(found(text, &["b", "x"], Point::Key), None);
        assert_eq!(found(text, &["a", "x"], Point::Key), None);
        assert_eq!(found(text, &[], Point::Key), None);
    }

    #[test]
    fn dates_and_numbers_without_end_are_refused_where_they_stand() {
        let refused = source("a = 1\nb = 1979-05-27\n").parse().unwrap_err().to_string();
        assert!(refused.starts_with("/x.toml:2:5: this is a date"), "{refused}");
        let refused = source("a = 99999999999999999999\n").parse().unwrap_err().to_string();
        assert!(refused.starts_with("/x.toml:1:5: this number is too large"), "{refused}");
    }

    #[test]
    fn nesting_without_end_is_refused() {
        let text = format!("a = {}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let refused = source(&text).parse().unwrap_err().to_string();
        assert!(refused.starts_with("/x.toml:1:"), "{refused}");
    }

    #[test]
    fn f01_a_byte_order_mark_is_ignored() {
        let read = Source::from_bytes(Path::new("/x.toml"), b"\xef\xbb\xbfa = 1\n".to_vec()).unwrap();
        assert_eq!(read.find(&["a"], Point::Value).unwrap().to_string(), "/x.toml:1:5");
    }

    #[test]
    fn the_first_byte_that_is_not_utf8_is_named() {
        let refused =
            Source::from_bytes(Path::new("/x.toml"), b"a = 1\nb = \"\xff\"\n".to_vec()).unwrap_err();
        assert!(
            refused.to_string().starts_with("/x.toml:2:6: is not UTF-8: found the byte 0xff"),
            "{refused}"
        );
    }
}
