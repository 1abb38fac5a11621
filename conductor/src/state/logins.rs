//! What a user has for services elsewhere: for each, the token and the files of
//! TLS to present it with, as `conductor login` left them. All other commands
//! look here by themselves.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::PathBuf,
};

use nix::unistd::geteuid;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{StateDir, StateError, Token, is_missing, write_private};

/// A few hundred services with the longest of tokens.
const LARGEST: u64 = 1 << 20;

/// Everything that a user has logged in to, by endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logins {
    /// The one that is used where none is named: the last.
    pub current: Option<String>,
    /// What there is for each.
    pub services: BTreeMap<String, Login>,
}

/// How to be let in by one service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// What to present; nothing if the certificate does.
    #[serde(default, serialize_with = "expose", deserialize_with = "take")]
    pub token: Option<Token>,
    /// The CAs of the service's certificate; nothing for those of this host.
    pub ca_file: Option<PathBuf>,
    /// The user's own certificate.
    pub client_cert: Option<PathBuf>,
    /// Its key.
    pub client_key: Option<PathBuf>,
}

impl StateDir {
    /// What the user has logged in to; nothing if there is no file.
    pub fn read_logins(&self) -> Result<Logins, StateError> {
        let path = self.logins_file();
        let refuse = |why: String| StateError::BadLogins { path: path.clone(), why };
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Ok(Logins::default()),
            Err(error) => return Err(StateError::io("read", &path)(error)),
        };
        let read = |mut file: io::Take<fs::File>| {
            let mode = file.get_ref().metadata()?.mode();
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok((mode, text))
        };
        let (mode, text) = read(file.take(LARGEST)).map_err(StateError::io("read", &path))?;
        if mode & 0o077 != 0 {
            return Err(refuse(format!(
                "is open to other users (mode {:04o}) and may be known to them",
                mode & 0o7777
            )));
        }
        // What a parser says may repeat what it read.
        serde_json::from_str(&text)
            .map_err(|error| refuse(format!("makes no sense in line {}", error.line())))
    }

    /// Keeps what the user has logged in to, for the user alone.
    pub fn write_logins(&self, logins: &Logins) -> Result<(), StateError> {
        let path = self.logins_file();
        let failed = StateError::io("write", &path);
        DirBuilder::new().recursive(true).mode(0o700).create(self.path()).map_err(&failed)?;
        let directory = fs::metadata(self.path()).map_err(&failed)?;
        self.check_directory(directory.is_dir(), directory.uid(), directory.mode(), geteuid().as_raw())?;
        let text = serde_json::to_string_pretty(logins).map_err(|error| failed(error.into()))?;
        write_private(&path, &text)
    }

    fn logins_file(&self) -> PathBuf {
        self.path().join("logins.json")
    }
}

fn expose<S: Serializer>(token: &Option<Token>, to: S) -> Result<S::Ok, S::Error> {
    token.as_ref().map(Token::expose).serialize(to)
}

fn take<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Token>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| Token::parse(&text).map_err(D::Error::custom)).transpose()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn logins_are_kept_for_their_user_alone() {
        let root = tempfile::tempdir().unwrap();
        let dir = StateDir::resolve(Some(root.path().join("a/state")), |_| None).unwrap();
        assert_eq!(dir.read_logins().unwrap(), Logins::default());
        let token = Token::random().unwrap();
        let login = Login { token: Some(token.clone()), ca_file: Some("/ca".into()), ..Login::default() };
        let url = "https://team.example:7420".to_owned();
        let logins = Logins { current: Some(url.clone()), services: BTreeMap::from([(url, login)]) };
        dir.write_logins(&logins).unwrap();
        assert_eq!(dir.read_logins().unwrap(), logins);
        assert!(!format!("{logins:?}").contains(token.expose()));
        let file = dir.logins_file();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(dir.read_logins().unwrap_err().to_string().contains("open to other users"));
        fs::remove_file(&file).unwrap();
        write_private(&file, &format!("{{\"{}\": 1", token.expose())).unwrap();
        let refused = dir.read_logins().unwrap_err().to_string();
        assert!(refused.contains("log in again") && !refused.contains(token.expose()), "{refused}");
    }
}
