//! Where the ledger is and how to get there. The password is read anew for
//! every connection, so that a rotated one needs no restart.

use std::path::{Path, PathBuf};

use sqlx::{ConnectOptions as _, postgres::PgConnectOptions};

use super::{error::LedgerError, evidence};
use crate::config::DatabaseUrl;

/// The file in the state directory, if no database is named.
pub const FILE: &str = "ledger.sqlite";

/// Where the ledger is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The database; empty for the file.
    pub url: DatabaseUrl,
    /// The same database for a role that may change the schema.
    pub owner_url: DatabaseUrl,
    /// Where the password of `url` stands.
    pub password_file: Option<PathBuf>,
    /// Where that of `owner_url` stands.
    pub owner_password_file: Option<PathBuf>,
    /// The file that is used if `url` is empty.
    pub file: PathBuf,
    /// Whose journal is carried there, for people.
    pub host: String,
    /// Where checkpoints and their key are.
    pub evidence: evidence::Files,
}

/// Which database it is. Without `Debug`, as the options would show the
/// password.
#[derive(Clone)]
pub enum Place {
    /// A file on this host.
    Sqlite(PathBuf),
    /// A server.
    Postgres(Box<PgConnectOptions>),
}

impl Settings {
    /// The file in a state directory.
    pub fn embedded(state: &Path) -> Self {
        Self {
            url: DatabaseUrl::default(),
            owner_url: DatabaseUrl::default(),
            password_file: None,
            owner_password_file: None,
            file: state.join(FILE),
            host: host(),
            evidence: evidence::Files::new(state),
        }
    }

    /// What the configuration says, for a state directory.
    pub fn new(config: &crate::config::Ledger, state: &Path) -> Self {
        Self {
            url: config.url.clone(),
            owner_url: config.owner_url.clone(),
            password_file: config.password_file.clone(),
            owner_password_file: config.owner_password_file.clone(),
            evidence: evidence::Files::configured(config, state),
            ..Self::embedded(state)
        }
    }

    /// Where the ledger is, with the password of this moment.
    pub fn place(&self) -> Result<Place, LedgerError> {
        let Some(options) = self.url.postgres() else {
            return Ok(Place::Sqlite(self.url.file().unwrap_or_else(|| self.file.clone())));
        };
        let options = with_password(options, "password_file", self.password_file.as_deref())?;
        Ok(Place::Postgres(Box::new(quiet(options))))
    }

    /// The owner's way to the same database, if there is one, with the password of this moment.
    pub fn owner(&self) -> Result<Option<PgConnectOptions>, LedgerError> {
        let Some(options) = self.owner_url.postgres() else { return Ok(None) };
        let file = self.owner_password_file.as_deref();
        with_password(options, "owner_password_file", file).map(|options| Some(quiet(options)))
    }

    /// Nonsense that no retry mends.
    pub fn check(&self) -> Result<(), LedgerError> {
        let is_postgres = |url: &DatabaseUrl| url.postgres().is_some();
        let is_amiss = !is_postgres(&self.owner_url) || !is_postgres(&self.url);
        if !self.owner_url.is_empty() && is_amiss {
            let why = "ledger.owner_url is for Postgres: set ledger.url to a Postgres, too, or remove it";
            return Err(LedgerError::Settings(why.to_owned()));
        }
        if self.password_file.is_some() && self.url.postgres().is_none() {
            let why = "ledger.password_file is for Postgres: set ledger.url, or remove it";
            return Err(LedgerError::Settings(why.to_owned()));
        }
        if self.owner_password_file.is_some() && self.owner_url.is_empty() {
            let why = "ledger.owner_password_file is for ledger.owner_url: set that, too, or remove it";
            return Err(LedgerError::Settings(why.to_owned()));
        }
        Ok(())
    }

    /// Takes every secret out of an error.
    pub fn hide(&self, error: LedgerError) -> LedgerError {
        error.map_text(|text| self.owner_url.hide(&self.url.hide(text)))
    }

    /// The ledger's place in words, without secrets.
    pub fn shown(&self) -> String {
        match self.url.postgres() {
            Some(_) => self.url.to_string(),
            None => self.url.file().unwrap_or_else(|| self.file.clone()).display().to_string(),
        }
    }
}

fn with_password(
    options: PgConnectOptions,
    key: &str,
    file: Option<&Path>,
) -> Result<PgConnectOptions, LedgerError> {
    let Some(file) = file else { return Ok(options) };
    let password = std::fs::read_to_string(file).map_err(|error| {
        let file = file.display();
        LedgerError::Unavailable(format!("ledger.{key} {file} cannot be read: {error}"))
    })?;
    // Editors and `echo` end a file with a newline; a password does not.
    Ok(options.password(password.trim_end_matches(['\r', '\n'])))
}

fn quiet(options: PgConnectOptions) -> PgConnectOptions {
    options.application_name("conductor").disable_statement_logging()
}

fn host() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
