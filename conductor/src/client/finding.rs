//! Where the service is, how to trust it and with what to be let in: by flags
//! and variables, by what `conductor login` has kept, or by the state directory
//! of a service on this host.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use url::Url;

use super::Unreachable;
use crate::{
    cli::{EndpointArgs, Global},
    state::{
        StateDir, StateError, Token,
        logins::{Login, Logins},
    },
    tls::{
        self,
        outward::{Inside, Outward, Trust},
    },
};

/// A service, and how to be let in.
pub(crate) struct Found {
    /// Its address in its one form, as in `https://team.example:7420`.
    pub(crate) url: String,
    /// What to present; nothing if a certificate does.
    pub(crate) token: Option<Token>,
    /// The files of TLS.
    files: Files,
    /// By what the certificate of the service on this host is known.
    fingerprint: Option<[u8; 32]>,
}

/// The files of TLS that were named.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files {
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) client_cert: Option<PathBuf>,
    pub(crate) client_key: Option<PathBuf>,
}

impl Files {
    /// Those of the command line, else those of a login.
    pub(crate) fn new(args: &EndpointArgs, login: Option<&Login>) -> Result<Self, Unreachable> {
        let login = login.cloned().unwrap_or_default();
        // An empty variable is how people unset one.
        let given = |file: &Option<PathBuf>| file.clone().filter(|path| !path.as_os_str().is_empty());
        // A certificate goes with its own key, wherever the two were named.
        let (client_cert, client_key) = match (given(&args.client_cert), given(&args.client_key)) {
            (None, None) => (login.client_cert, login.client_key),
            pair => pair,
        };
        if client_cert.is_some() != client_key.is_some() {
            return Err(Unreachable::new(
                "a certificate and its key belong together; name both with --client-cert and --client-key \
                 (or CONDUCTOR_CLIENT_CERT and CONDUCTOR_CLIENT_KEY)",
            ));
        }
        Ok(Self { ca_file: given(&args.ca_file).or(login.ca_file), client_cert, client_key })
    }

    fn own(&self) -> Option<(&Path, &Path)> {
        Some((self.client_cert.as_deref()?, self.client_key.as_deref()?))
    }
}

impl Found {
    /// Looks everywhere, in order.
    pub(crate) fn new(global: &Global, args: &EndpointArgs) -> Result<Self, Unreachable> {
        // A service that starts again leaves no endpoint for a while.
        let say = |error: StateError| Unreachable::passing(error.to_string());
        let state = StateDir::resolve(global.state_dir.clone(), std::env::var_os).map_err(say)?;
        let Logins { current, mut services } =
            state.read_logins().map_err(|error| Unreachable::new(error.to_string()))?;
        let local = state.read_endpoint();
        let url = match (&args.endpoint, current) {
            (Some(given), _) => address(given)?,
            (None, Some(current)) => current,
            (None, None) => local.as_ref().map_err(|error| Unreachable::passing(error.to_string()))?.clone(),
        };
        let login = services.remove(&url);
        let files = Files::new(args, login.as_ref())?;
        let is_local = local.is_ok_and(|local| local == url);
        let fingerprint = state.read_fingerprint().filter(|_| is_local && files.ca_file.is_none());
        let token = match (variable()?, login) {
            (Some(token), _) => Some(token),
            // Whoever names a certificate for this once wants that to count.
            (None, Some(login)) if files.client_cert == login.client_cert => login.token,
            (None, _) if files.client_cert.is_some() => None,
            (None, _) => Some(of_state(&state, &url, args.endpoint.is_some())?),
        };
        Ok(Self { url, token, files, fingerprint })
    }

    /// A service that is named, with what is presented to it.
    pub(crate) fn named(url: String, token: Option<Token>, files: Files, global: &Global) -> Self {
        let state = StateDir::resolve(global.state_dir.clone(), std::env::var_os).ok();
        let here = state.filter(|state| state.read_endpoint().is_ok_and(|local| local == url));
        let fingerprint = here.and_then(|state| state.read_fingerprint()).filter(|_| files.ca_file.is_none());
        Self { url, token, files, fingerprint }
    }

    /// How to shake hands, if the service is reached by TLS.
    pub(super) fn outward(&self) -> Result<Option<Outward>, Unreachable> {
        if !self.url.starts_with("https://") {
            if self.files.client_cert.is_some() {
                let text = "a certificate can only be presented by TLS; write https:// in the address";
                return Err(Unreachable::new(text));
            }
            return Ok(None);
        }
        let trust = match (&self.files.ca_file, self.fingerprint) {
            (Some(file), _) => Trust::File(file),
            (None, Some(fingerprint)) => Trust::Only(fingerprint),
            (None, None) => Trust::Host,
        };
        let outward = Outward::new(trust, self.files.own(), Inside::Http2);
        outward.map(Some).map_err(|error| Unreachable::new(error.to_string()))
    }
}

/// Whether a service is named or logged in to, so that the one of the state
/// directory is not meant.
pub(crate) fn is_chosen(global: &Global, args: &EndpointArgs) -> bool {
    let state = StateDir::resolve(global.state_dir.clone(), std::env::var_os);
    let is_logged_in =
        || state.and_then(|state| state.read_logins()).is_ok_and(|logins| logins.current.is_some());
    args.endpoint.is_some() || is_logged_in()
}

/// An address in its one form. Without a scheme it is TLS, except on this host.
pub(crate) fn address(given: &str) -> Result<String, Unreachable> {
    let wrong = |why: &str| Unreachable::new(format!("`{given}` is no address of a service: {why}"));
    let parse = |text: &str| Url::parse(text).map_err(|error| wrong(&error.to_string()));
    let mut url = if given.contains("://") { parse(given)? } else { parse(&format!("http://{given}"))? };
    if !given.contains("://") && !tls::is_loopback(&url) {
        url = parse(&format!("https://{given}"))?;
    }
    if !["http", "https"].contains(&url.scheme()) {
        return Err(wrong("it begins with https:// or http://"));
    }
    if !tls::is_protected(&url) {
        return Err(Unreachable::new(format!(
            "{given} is on another host, and nothing would protect the token on the way; write https:// instead of \
             http://, or use an SSH tunnel (ssh -L 7420:127.0.0.1:7420 HOST)"
        )));
    }
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return Err(wrong("it names no host"));
    };
    Ok(format!("{}://{host}:{port}", url.scheme()))
}

/// The token in the environment.
fn variable() -> Result<Option<Token>, Unreachable> {
    let remedy = "unset it to use what `conductor login` or the state directory has, or copy the token again";
    match std::env::var_os("CONDUCTOR_TOKEN").map(OsString::into_string) {
        Some(Ok(text)) => match Token::parse(&text) {
            Ok(token) => Ok(Some(token)),
            Err(error) => Err(Unreachable::new(format!("CONDUCTOR_TOKEN {error}; {remedy}"))),
        },
        Some(Err(_)) => Err(Unreachable::new(format!("CONDUCTOR_TOKEN is not text; {remedy}"))),
        None => Ok(None),
    }
}

/// The token of the service on this host, which no other host is told.
fn of_state(state: &StateDir, url: &str, is_named: bool) -> Result<Token, Unreachable> {
    let none = || {
        Unreachable::new(format!(
            "there is no token for {url} in the state directory {}; log in with `conductor login --endpoint {url}`, or \
             set CONDUCTOR_TOKEN",
            state.path().display()
        ))
    };
    if tls::is_elsewhere(url) {
        return Err(none());
    }
    match state.read_token() {
        // Whether a service runs there is beside the point.
        Err(StateError::NotRunning { .. }) if is_named => Err(none()),
        // One that starts again is there in a while; something else is logged in to.
        Err(error @ StateError::NotHeld { .. }) if is_named => Err(Unreachable::passing(format!(
            "{error}; if {url} is another one, log in to it with `conductor login --endpoint {url}`, or set \
             CONDUCTOR_TOKEN"
        ))),
        token => token.map_err(|error| Unreachable::passing(error.to_string())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_form_and_leave_this_host_by_tls_only() {
        for (given, meant) in [
            ("127.0.0.1:7420", "http://127.0.0.1:7420"),
            ("localhost:7420", "http://localhost:7420"),
            ("[::1]:7420", "http://[::1]:7420"),
            ("http://127.0.0.1:7420/", "http://127.0.0.1:7420"),
            ("team.example:7420", "https://team.example:7420"),
            ("HTTPS://Team.Example", "https://team.example:443"),
            ("10.0.0.1:7420", "https://10.0.0.1:7420"),
        ] {
            assert_eq!(address(given).unwrap(), meant, "{given}");
        }
        for bad in
            ["", "http://team.example:7420", "http://10.0.0.1:1", "ftp://127.0.0.1:1", "https://", "a b"]
        {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
