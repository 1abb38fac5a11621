//! `conductor login` and `logout`: keeps what a service lets its user in with,
//! once the service has said that it does, and forgets it again.

use std::{
    io::{self, IsTerminal as _, Read as _, Write as _, stderr, stdin},
    path::{self, PathBuf},
    process::ExitCode,
};

use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
use serde_json::json;
use tokio::{signal::ctrl_c, task::spawn_blocking};

use super::{
    finish::{fail, finish},
    terminal::{in_json, print},
    whoami::{as_json, as_text, ask},
};
use crate::{
    cli::{EndpointArgs, Global, LoginArgs, LogoutArgs},
    client::{
        Client,
        finding::{Files, Found, address},
    },
    state::{StateDir, Token, logins::Login},
};

/// No token is longer; what comes in a header has less room.
const LONGEST: u64 = 64 << 10;

/// Logs in.
pub fn run(global: &Global, args: &LoginArgs) -> ExitCode {
    finish("login", login(global, args))
}

/// Logs out.
pub fn logout(global: &Global, args: &LogoutArgs) -> ExitCode {
    match forget(global, args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail("logout", &message),
    }
}

async fn login(global: &Global, args: &LoginArgs) -> Result<(), String> {
    let state = StateDir::resolve(global.state_dir.clone(), std::env::var_os);
    let state = state.map_err(|error| error.to_string())?;
    let mut logins = state.read_logins().map_err(|error| error.to_string())?;
    let url = match (&args.endpoint.endpoint, &logins.current) {
        (Some(given), _) => address(given).map_err(|error| error.message)?,
        (None, Some(current)) => current.clone(),
        (None, None) => {
            return Err("to which service? name it with --endpoint https://HOST:PORT".to_owned());
        }
    };
    // Commands are run anywhere; what is kept must not depend on it.
    let endpoint = absolute(&args.endpoint)?;
    let files = Files::new(&endpoint, logins.services.get(&url)).map_err(|error| error.message)?;
    let token = read_token(&url, files.client_cert.is_some()).await?;
    let login = Login {
        token: token.clone(),
        ca_file: files.ca_file.clone(),
        client_cert: files.client_cert.clone(),
        client_key: files.client_key.clone(),
    };
    let found = Found::named(url.clone(), token, files, global);
    let client = Client::reach(found).await.map_err(|error| error.message)?;
    let answer = ask(&client).await?;
    logins.current = Some(url.clone());
    logins.services.insert(url.clone(), login);
    state.write_logins(&logins).map_err(|error| error.to_string())?;
    print(&if args.json {
        in_json(&as_json(&answer, &url))
    } else {
        format!("logged in; all commands use this service from now on\n{}", as_text(&answer, &url))
    })
}

fn forget(global: &Global, args: &LogoutArgs) -> Result<(), String> {
    let state = StateDir::resolve(global.state_dir.clone(), std::env::var_os);
    let state = state.map_err(|error| error.to_string())?;
    let mut logins = state.read_logins().map_err(|error| error.to_string())?;
    let url = match (&args.endpoint.endpoint, &logins.current) {
        (Some(given), _) => address(given).map_err(|error| error.message)?,
        (None, Some(current)) => current.clone(),
        (None, None) => return Err("you are not logged in anywhere; there is nothing to forget".to_owned()),
    };
    if logins.services.remove(&url).is_none() {
        return Err(format!("you are not logged in to {url}; there is nothing to forget"));
    }
    logins.current.take_if(|current| *current == url);
    state.write_logins(&logins).map_err(|error| error.to_string())?;
    print(&if args.json {
        in_json(&json!({ "endpoint": url, "logged_in": false }))
    } else {
        format!("logged out of {url}; the token itself is good until it expires or is revoked\n")
    })
}

fn absolute(args: &EndpointArgs) -> Result<EndpointArgs, String> {
    let file = |path: &Option<PathBuf>| {
        let whole = |path: &PathBuf| {
            path::absolute(path).map_err(|error| format!("cannot find {}: {error}", path.display()))
        };
        path.as_ref().filter(|path| !path.as_os_str().is_empty()).map(whole).transpose()
    };
    Ok(EndpointArgs {
        endpoint: args.endpoint.clone(),
        ca_file: file(&args.ca_file)?,
        client_cert: file(&args.client_cert)?,
        client_key: file(&args.client_key)?,
    })
}

/// The token that somebody types or a program writes. Nothing, if nothing was
/// given and a certificate may stand for it.
async fn read_token(url: &str, has_certificate: bool) -> Result<Option<Token>, String> {
    let text = if stdin().is_terminal() { typed(url).await } else { piped() };
    let text = text.map_err(|error| format!("cannot read the token: {error}"))?;
    match text.trim() {
        "" if has_certificate => Ok(None),
        "" => {
            Err("no token was given; write it to stdin, or name a certificate with --client-cert".to_owned())
        }
        text => match Token::parse(text) {
            Ok(token) => Ok(Some(token)),
            Err(error) => Err(format!("what was given {error}; copy the token again")),
        },
    }
}

fn piped() -> io::Result<String> {
    let mut text = String::new();
    stdin().take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// Asks on the terminal, which shows nothing of the answer. Whoever interrupts
/// that gets the terminal back as it was.
async fn typed(url: &str) -> io::Result<String> {
    write!(stderr(), "Token for {url}: ")?;
    stderr().flush()?;
    let hidden = Hidden::new()?;
    let read = spawn_blocking(|| {
        let mut text = String::new();
        stdin().read_line(&mut text).map(|_| text)
    });
    let text = tokio::select! {
        read = read => read.map_err(io::Error::other)?,
        _ = ctrl_c() => Err(io::ErrorKind::Interrupted.into()),
    };
    drop(hidden);
    writeln!(stderr())?;
    text
}

/// A terminal that does not show what is typed, until this is dropped.
struct Hidden(nix::sys::termios::Termios);

impl Hidden {
    fn new() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut quiet = before.clone();
        quiet.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(stdin(), SetArg::TCSANOW, &quiet)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        tcsetattr(stdin(), SetArg::TCSANOW, &self.0).ok();
    }
}
