//! The address of a database, which may hold a password: it is never shown,
//! neither by `Debug` nor in a message.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::Deserialize;
use sqlx::postgres::PgConnectOptions;

/// The address of a database: `postgres://USER@HOST/NAME`, `sqlite:/PATH`, or
/// empty for the file in the state directory.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The file, if it names one.
    pub fn file(&self) -> Option<PathBuf> {
        let path = self.0.strip_prefix("sqlite:")?;
        Some(PathBuf::from(path.strip_prefix("//").unwrap_or(path)))
    }

    /// How to connect, if it names a Postgres. The address was parsed before,
    /// so `None` means that it names something else.
    pub fn postgres(&self) -> Option<PgConnectOptions> {
        if !is_postgres(&self.0) {
            return None;
        }
        PgConnectOptions::from_str(&self.0).ok()
    }

    /// Whether it holds a password.
    pub fn has_password(&self) -> bool {
        secrets(&self.0).iter().any(|(from, to)| from < to)
    }

    /// Takes the password out of a text, should it be there.
    pub fn hide(&self, text: &str) -> String {
        let mut hidden = text.to_owned();
        for (from, to) in secrets(&self.0) {
            let secret = &self.0[from..to];
            let plain = percent_decoded(secret);
            // Very short ones would blank out half of every message.
            for secret in [secret, plain.as_str()].into_iter().filter(|secret| secret.len() > 3) {
                hidden = hidden.replace(secret, "…");
            }
        }
        hidden
    }
}

/// An address as it was given on the command line, not looked at yet: whoever
/// parses arguments shows those that are wrong, and with them the password.
#[derive(Clone)]
pub struct GivenUrl(String);

impl GivenUrl {
    /// The address, if it is one.
    pub fn check(&self) -> Result<DatabaseUrl, String> {
        self.0.parse()
    }
}

impl From<String> for GivenUrl {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for GivenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if is_postgres(text) {
            let options = PgConnectOptions::from_str(text).map_err(|error| {
                Self(text.to_owned()).hide(&format!("the database's address is wrong: {error}"))
            })?;
            if options.get_database().is_none_or(str::is_empty) {
                return Err("the database's address names no database; \
                    write it as postgres://USER@HOST/DATABASE"
                    .to_owned());
            }
            return Ok(Self(text.to_owned()));
        }
        let url = Self(text.to_owned());
        if text.is_empty() || url.file().is_some_and(|file| file.is_absolute()) {
            return Ok(url);
        }
        Err("the database's address must be postgres://USER@HOST/DATABASE, sqlite:/PATH (from / on), \
            or empty for a file in the state directory"
            .to_owned())
    }
}

impl TryFrom<String> for DatabaseUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = 0;
        for (from, to) in secrets(&self.0) {
            write!(f, "{}…", &self.0[shown..from])?;
            shown = to;
        }
        f.write_str(&self.0[shown..])
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

fn is_postgres(text: &str) -> bool {
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}

/// Where the passwords stand: between user and host, and as a parameter.
fn secrets(url: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let Some(start) = url.find("://").map(|at| at + 3) else { return found };
    // The host begins after the last @ before the path; a password may hold
    // one that should have been encoded, and must not be shown for that.
    let end = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    let at =
        url[start..].rfind('@').map(|at| start + at).filter(|at| *at < end || !url[end..*at].contains('?'));
    if let Some(at) = at
        && let Some(colon) = url[start..at].find(':')
    {
        found.push((start + colon + 1, at));
    }
    let mut position = url.find('?').map_or(url.len(), |at| at + 1);
    for parameter in url[position..].split('&') {
        if let Some((name, value)) = parameter.split_once('=')
            && name == "password"
        {
            let from = position + name.len() + 1;
            if found.iter().all(|(_, to)| *to <= from) {
                found.push((from, from + value.len()));
            }
        }
        position += parameter.len() + 1;
    }
    found
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for url in [
            "postgres://ann:s3cret-word@db.example:5432/ledger",
            "postgresql://ann:s3cret-word@db.example/ledger?sslmode=require",
            "postgres://ann@db.example/ledger?password=s3cret-word&sslmode=require",
            "postgres://ann:s3cret%2Dword@db.example/ledger",
        ] {
            let url: DatabaseUrl = url.parse().unwrap();
            for shown in [format!("{url}"), format!("{url:?}"), url.hide("login with s3cret-word failed")] {
                assert!(!shown.contains("s3cret"), "{shown}");
            }
            assert!(format!("{url}").contains("db.example") && format!("{url}").contains("/ledger"), "{url}");
            assert_eq!(url.postgres().unwrap().get_username(), "ann");
        }
    }

    #[test]
    fn an_address_names_a_database_or_a_file() {
        assert!("".parse::<DatabaseUrl>().unwrap().is_empty());
        assert_eq!("sqlite:/a/b".parse::<DatabaseUrl>().unwrap().file(), Some("/a/b".into()));
        assert_eq!("sqlite:///a/b".parse::<DatabaseUrl>().unwrap().file(), Some("/a/b".into()));
        for bad in
            ["mysql://a/b", "sqlite:b", "postgres://ann:s3cret-word@h:port/d", "s3cret-word", "postgres://h"]
        {
            let error = bad.parse::<DatabaseUrl>().unwrap_err();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
