//! The state directory: how a service and its clients on one host find and
//! trust each other. It holds the lock that keeps a second service out, the
//! token that clients present, the endpoint to present it to and, with TLS, by
//! what clients on this host know its certificate, whatever name that is for.
//! [`logins`] keeps what a user has for services elsewhere, [`kept`] what sessions were given
//! and their record does not hold.
//!
//! Only its owner may write to it, since whoever can replace the token or the
//! endpoint can impersonate the service or its clients.

pub mod kept;
pub mod logins;
mod tag_key;

use std::{
    ffi::OsString,
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    hint,
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{self, Path, PathBuf},
    process, thread,
    time::Duration,
};

use nix::unistd::geteuid;

/// No file that we read here is nearly as long.
const LARGEST: u64 = 4096;

/// Fewer characters could be guessed.
const SHORTEST_TOKEN: usize = 32;

/// Random bytes in a token of our own making.
const TOKEN_BYTES: usize = 32;

/// How often, and after which pauses, the lock is tried: a client that looks whether
/// a service holds it has it for a moment.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Where the service keeps its state. It need not exist yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// `given` is `--state-dir` or `CONDUCTOR_STATE_DIR`. `variable` looks up
    /// the environment, normally `std::env::var_os`.
    pub fn resolve(
        given: Option<PathBuf>,
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Self, StateError> {
        // Relative values of these count as unset: they would depend on where
        // each client happens to be started.
        let directory = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let path = given
            .filter(|path| !path.as_os_str().is_empty())
            .or_else(|| Some(directory("XDG_STATE_HOME")?.join("conductor")))
            .or_else(|| Some(directory("HOME")?.join(".local/state/conductor")))
            .ok_or(StateError::NoHome)?;
        let path = path::absolute(&path).map_err(StateError::io("find", &path))?;
        Ok(Self { path })
    }

    /// The directory, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory if need be and takes it for this process, until
    /// the returned guard is dropped.
    pub fn open_for_service(&self) -> Result<ServiceState, StateError> {
        let create = DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        let metadata = match (create, fs::metadata(&self.path)) {
            (_, Ok(metadata)) => metadata,
            (Err(error), Err(_)) | (Ok(()), Err(error)) => {
                return Err(StateError::io("create the state directory", &self.path)(error));
            }
        };
        self.check_directory(metadata.is_dir(), metadata.uid(), metadata.mode(), geteuid().as_raw())?;
        let lock = self.lock()?;
        // Left behind by a service that was killed.
        remove_if_there(&self.endpoint_file())?;
        remove_if_there(&self.fingerprint_file())?;
        let token = match self.token_in_file()? {
            Some(token) => token,
            None => {
                let token = Token::random()?;
                write_private(&self.token_file(), token.expose())?;
                token
            }
        };
        Ok(ServiceState { dir: self.clone(), token, _lock: lock })
    }

    /// Where the running service listens.
    pub fn read_endpoint(&self) -> Result<String, StateError> {
        let file = self.endpoint_file();
        match read_small(&file) {
            Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
            Ok(_) => Err(self.not_running()),
            Err(error) if is_missing(&error) => Err(self.not_running()),
            Err(error) => Err(StateError::io("read", &file)(error)),
        }
    }

    /// By what the running service's certificate is known, if it has one that
    /// can be told.
    pub fn read_fingerprint(&self) -> Option<[u8; 32]> {
        let text = read_small(&self.fingerprint_file()).ok()?;
        let digits = text.trim().as_bytes();
        let mut fingerprint = [0; 32];
        if digits.len() != 2 * fingerprint.len() {
            return None;
        }
        for (byte, digits) in fingerprint.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(fingerprint)
    }

    /// Tells clients on this host by what they know the certificate. For the
    /// service alone, which holds the lock.
    pub fn write_fingerprint(&self, fingerprint: &[u8; 32]) -> Result<(), StateError> {
        let digits: String = fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        write_private(&self.fingerprint_file(), &digits)
    }

    /// What the running service expects from its clients. None if no service runs: who
    /// listens where the last one did may be anybody by now.
    pub fn read_token(&self) -> Result<Token, StateError> {
        let token = self.token_in_file()?.ok_or_else(|| self.not_running())?;
        match self.is_held()? {
            true => Ok(token),
            false => Err(StateError::NotHeld { path: self.path.clone() }),
        }
    }

    /// Whether a service holds the directory. The lock ends with its process, however
    /// that ends.
    fn is_held(&self) -> Result<bool, StateError> {
        let path = self.lock_file();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Ok(false),
            Err(error) => return Err(StateError::io("read", &path)(error)),
        };
        // Shared, so that clients do not take each other for a service.
        match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(StateError::io("lock", &path)(error)),
        }
    }

    fn check_directory(&self, is_dir: bool, owner: u32, mode: u32, me: u32) -> Result<(), StateError> {
        let path = self.path.clone();
        if !is_dir {
            return Err(StateError::NotADirectory { path });
        }
        if owner != me {
            return Err(StateError::Foreign { path, owner });
        }
        if mode & 0o022 != 0 {
            return Err(StateError::Shared { path, mode: mode & 0o7777 });
        }
        Ok(())
    }

    fn lock(&self) -> Result<File, StateError> {
        let path = self.lock_file();
        let failed = StateError::io("write", &path);
        let opened =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) => return Err(failed(error)),
        };
        let mut tries = 1;
        let locked = loop {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) if tries < TRIES => {
                    tries += 1;
                    thread::sleep(PAUSE);
                }
                locked => break locked,
            }
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = read_small(&path).ok().and_then(|text| text.trim().parse().ok());
                return Err(StateError::Busy { path: self.path.clone(), holder: Holder(pid) });
            }
            Err(TryLockError::Error(error)) => return Err(StateError::io("lock", &path)(error)),
        }
        // For the message of whoever comes second; the lock is what counts,
        // and it ends with the process, whatever the file says.
        let written = file.set_len(0).and_then(|()| writeln!(file, "{}", process::id()));
        written.map_err(failed)?;
        Ok(file)
    }

    fn token_in_file(&self) -> Result<Option<Token>, StateError> {
        let path = self.token_file();
        let refuse = |why: String| StateError::BadToken { path: path.clone(), why };
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(StateError::io("read", &path)(error)),
        };
        if metadata.mode() & 0o077 != 0 {
            return Err(refuse(format!(
                "is open to other users (mode {:04o}) and may be known to them",
                metadata.mode() & 0o7777
            )));
        }
        let text = read_small(&path).map_err(StateError::io("read", &path))?;
        match Token::parse(&text) {
            Ok(token) => Ok(Some(token)),
            Err(error) => Err(refuse(error.to_string())),
        }
    }

    fn not_running(&self) -> StateError {
        StateError::NotRunning { path: self.path.clone() }
    }

    fn lock_file(&self) -> PathBuf {
        self.path.join("lock")
    }

    fn endpoint_file(&self) -> PathBuf {
        self.path.join("endpoint")
    }

    fn fingerprint_file(&self) -> PathBuf {
        self.path.join("fingerprint")
    }

    fn token_file(&self) -> PathBuf {
        self.path.join("token")
    }
}

/// The state directory, held by the service. Dropping it withdraws the
/// endpoint and lets another service in.
#[derive(Debug)]
pub struct ServiceState {
    dir: StateDir,
    token: Token,
    _lock: File,
}

impl ServiceState {
    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The directory, as those know it who do not hold it.
    pub fn dir(&self) -> &StateDir {
        &self.dir
    }

    /// What clients must present.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Tells clients where the service listens: last of all, once it does.
    pub fn write_endpoint(&self, url: &str) -> Result<(), StateError> {
        write_private(&self.dir.endpoint_file(), url)
    }
}

impl Drop for ServiceState {
    fn drop(&mut self) {
        // Runs before the lock is released. If it fails, clients find nobody
        // at the old endpoint, and the next service removes it.
        let _ = remove_if_there(&self.dir.endpoint_file());
        let _ = remove_if_there(&self.dir.fingerprint_file());
    }
}

/// A secret that lets its bearer in. It is never shown by `Debug`, and
/// compared in a time that does not tell how much of it was right.
#[derive(Clone, Eq)]
pub struct Token(String);

impl Token {
    /// A token as written in a file or a variable.
    pub fn parse(text: &str) -> Result<Self, BadToken> {
        let text = text.trim();
        if text.len() < SHORTEST_TOKEN {
            return Err(BadToken::Short);
        }
        // It travels in a header.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadToken::Characters);
        }
        Ok(Self(text.to_owned()))
    }

    /// A new one.
    pub fn random() -> Result<Self, StateError> {
        Self::random_with("")
    }

    /// A new one that begins with a mark.
    pub fn random_with(mark: &str) -> Result<Self, StateError> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| StateError::NoRandomness { why: error.to_string() })?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(format!("{mark}{digits}")))
    }

    /// The secret itself, to be put on the wire and nowhere else.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether this is what somebody presented.
    pub fn matches(&self, presented: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differing = own.iter().zip(presented).fold(0, |seen, (a, b)| hint::black_box(seen | (a ^ b)));
        // The length is no secret.
        own.len() == presented.len() && differing == 0
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.matches(other.0.as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why a text is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// It could be guessed.
    #[error("holds no token of at least {SHORTEST_TOKEN} characters")]
    Short,
    /// It would not fit into a header.
    #[error("holds characters that no token has")]
    Characters,
}

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Nothing says where it is.
    #[error(
        "there is no place for the state directory; set HOME, or name one with --state-dir or CONDUCTOR_STATE_DIR"
    )]
    NoHome,
    /// Something else has its name.
    #[error("the state directory {} is not a directory; move it away, or name another with --state-dir", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Somebody else's.
    #[error(
        "the state directory {} belongs to another user (uid {owner}); run the conductor as that user, or name another \
         with --state-dir",
        path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Others can plant files in it.
    #[error(
        "other users may write to the state directory {} (mode {mode:04o}); take that right away: chmod go-w {}",
        path.display(),
        path.display()
    )]
    Shared {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A service holds it.
    #[error(
        "another conductor{holder} is running with the state directory {}; stop it first, or name another directory \
         with --state-dir",
        path.display()
    )]
    Busy {
        /// The directory.
        path: PathBuf,
        /// Who holds it.
        holder: Holder,
    },
    /// No service holds it.
    #[error(
        "no conductor is running with the state directory {}; start one with `conductor serve`, \
         or use one on another host after `conductor login --endpoint https://HOST:7420`",
        path.display()
    )]
    NotRunning {
        /// The directory.
        path: PathBuf,
    },
    /// One did, and has left what clients would use.
    #[error(
        "no conductor is running with the state directory {} any more, and its token is told to nobody else; start \
         one with `conductor serve`",
        path.display()
    )]
    NotHeld {
        /// The directory.
        path: PathBuf,
    },
    /// The token must not be used.
    #[error("{} {why}; remove it and start the conductor again, which makes a new one", path.display())]
    BadToken {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The key of tags must not be used.
    #[error(
        "{} {why}; remove it and start the conductor again, which makes a new one: secrets have other tags from \
         then on",
        path.display()
    )]
    BadKey {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// What was logged in to must not be used.
    #[error("{} {why}; remove it and log in again with `conductor login`", path.display())]
    BadLogins {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The system has no random numbers.
    #[error("cannot make a token: {why}")]
    NoRandomness {
        /// What the system said.
        why: String,
    },
    /// The system refused.
    #[error("cannot {doing} {}: {source}; check its permissions and those of the directories above it", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl StateError {
    fn io(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}

/// The process that holds a state directory, if it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder(pub Option<u32>);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, " (pid {pid})"),
            None => Ok(()),
        }
    }
}

/// Writes a file that only its owner can read, whole or not at all.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), StateError> {
    let temporary = path.with_extension("tmp");
    let failed = StateError::io("write", path);
    // A leftover would keep its permissions. Nobody else writes here: we hold
    // the lock.
    remove_if_there(&temporary)?;
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(failed)
}

/// Makes a database's file for us alone, if it is not there: what SQLite makes by itself, and beside it
/// as it goes on, has the rights that everybody's files have. One that is there stays as somebody has
/// set it.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(drop)
}

fn remove_if_there(path: &Path) -> Result<(), StateError> {
    match fs::remove_file(path) {
        Err(error) if !is_missing(&error) => Err(StateError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

fn read_small(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(LARGEST).read_to_string(&mut text)?;
    Ok(text)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests;
