//! The configuration, the state directory and the service on this host.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::unistd::geteuid;
use serde_json::json;
use tokio::time::timeout;

use super::report::{Check, Verdict};
use crate::{
    cli::{ChoiceArgs, EndpointArgs, Global},
    client::{Carry, Client, Unreachable, finding::is_chosen},
    config::{Config, Loaded},
    policy::Policy,
    state::{StateDir, StateError},
};

/// How long the service may take to answer.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(15);

/// The configuration that `serve` would use, and what is to be said about it.
pub(super) fn config(explicit: Option<&Path>) -> (Option<Config>, Vec<Check>) {
    let Loaded { config, file } = match Config::load(explicit, std::env::vars_os()) {
        Ok(loaded) => loaded,
        Err(refused) => {
            let check =
                Check::new("config", "file", Verdict::Broken, format!("{}: {}", refused.place, refused.what));
            return (None, vec![check.remedy(refused.hint)]);
        }
    };
    let found = match &file {
        Some(file) => Check::new("config", "file", Verdict::Fine, file.display().to_string()),
        None => {
            let usual = Config::usual_files(std::env::vars_os());
            let detail = match usual.first() {
                Some(usual) => {
                    format!("none, so the built-in defaults are used; yours would be {}", usual.display())
                }
                None => "none, so the built-in defaults are used".into(),
            };
            Check::new("config", "file", Verdict::Fine, detail)
        }
    };
    let listen = Check::new("config", "listen", Verdict::Fine, config.service.listen.to_string());
    let rules = policy(config.policy.file.as_deref());
    let checks = vec![found.data(json!({ "path": file })), roots(&config.roots), listen, rules];
    (Some(config), checks)
}

/// The rules that `serve` would use.
fn policy(file: Option<&Path>) -> Check {
    let shown = file.map_or_else(|| "the built-in rules".to_string(), |file| file.display().to_string());
    match Policy::load(file) {
        Ok(policy) => {
            let (count, revision) = (policy.rule_count(), policy.revision());
            let detail = format!("{shown}: {count} rules, revision {revision}");
            let data = json!({ "path": file, "rules": count, "revision": revision });
            match unused() {
                Some(other) if file.is_none() => {
                    let remedy =
                        format!("to use {0}, write into agents.toml: [policy] file = {0:?}", other.display());
                    Check::new("config", "policy", Verdict::Info, detail).remedy(remedy).data(data)
                }
                _ => Check::new("config", "policy", Verdict::Fine, detail).data(data),
            }
        }
        Err(refused) => Check::new("config", "policy", Verdict::Broken, refused.to_string())
            .remedy("`conductor policy check FILE` shows all that is wrong with it"),
    }
}

/// Rules beside the configuration, where people may expect them to count.
fn unused() -> Option<PathBuf> {
    let beside =
        Config::usual_files(std::env::vars_os()).into_iter().map(|file| file.with_file_name("policy.toml"));
    beside.into_iter().find(|file| file.is_file())
}

fn roots(roots: &[PathBuf]) -> Check {
    let (there, missing): (Vec<&PathBuf>, Vec<_>) = roots.iter().partition(|root| root.is_dir());
    let list = |paths: &[&PathBuf]| {
        paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    let verdict = match (there.is_empty(), missing.is_empty()) {
        (true, _) => Verdict::Broken,
        (false, true) => Verdict::Fine,
        (false, false) => Verdict::Info,
    };
    let mut detail = list(&there);
    if !missing.is_empty() {
        let comma = if there.is_empty() { "" } else { "; " };
        detail.push_str(&format!("{comma}not there: {}", list(&missing)));
    }
    let check = Check::new("config", "roots", verdict, detail).data(json!({ "roots": roots }));
    if missing.is_empty() {
        return check;
    }
    check.remedy("make the directory, or name others in `roots`: sessions work beneath them only")
}

/// The state directory, unless there is no place for it, and what is to be
/// said about it.
pub(super) fn state(global: &Global) -> (Option<StateDir>, Vec<Check>) {
    let state = match StateDir::resolve(global.state_dir.clone(), std::env::var_os) {
        Ok(state) => state,
        Err(error) => return (None, vec![broken("directory", &error)]),
    };
    let path = state.path().display().to_string();
    let check = |verdict, detail: String| Check::new("state", "directory", verdict, detail);
    let directory = match fs::metadata(state.path()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            check(Verdict::Info, format!("{path}, not there yet; `conductor serve` makes it"))
        }
        Err(error) => check(Verdict::Broken, format!("{path} cannot be looked at: {error}"))
            .remedy("check the permissions of the directories above it, or name another with --state-dir"),
        Ok(found) if !found.is_dir() => check(Verdict::Broken, format!("{path} is not a directory"))
            .remedy("move it away, or name another with --state-dir"),
        Ok(found) if found.uid() != geteuid().as_raw() => {
            check(Verdict::Broken, format!("{path} belongs to another user (uid {})", found.uid()))
                .remedy("run the conductor as that user, or name another with --state-dir")
        }
        Ok(found) if found.mode() & 0o022 != 0 => {
            let mode = found.mode() & 0o7777;
            check(Verdict::Broken, format!("{path}: other users may write to it (mode {mode:04o})"))
                .remedy(format!("take that right away: chmod go-w {path}"))
        }
        Ok(found) => check(Verdict::Fine, format!("{path} (mode {:04o})", found.mode() & 0o7777)),
    };
    let token = match state.read_token() {
        Ok(_) | Err(StateError::NotHeld { .. }) => {
            Check::new("state", "token", Verdict::Fine, "there, and readable by you alone")
        }
        Err(StateError::NotRunning { .. }) => {
            Check::new("state", "token", Verdict::Info, "none yet; `conductor serve` makes one")
        }
        Err(error) => broken("token", &error),
    };
    (Some(state), vec![directory, token])
}

fn broken(name: &str, error: &StateError) -> Check {
    let text = error.to_string();
    // Their last part is what to do.
    let (what, remedy) = text.split_once("; ").unwrap_or((&text, ""));
    Check::new("state", name, Verdict::Broken, what).remedy(remedy)
}

/// Whether a service runs, and can be used.
pub(super) async fn service(global: &Global, endpoint: &EndpointArgs, state: &StateDir) -> Check {
    let check = |verdict, detail: String| Check::new("service", "running", verdict, detail);
    let named = is_chosen(global, endpoint);
    let holder = holder(state);
    if !named && let Err(StateError::NotRunning { .. }) = state.read_endpoint() {
        return match holder {
            Some(pid) => {
                check(Verdict::Info, format!("pid {pid} holds the state directory, and is not ready"))
                    .remedy("it is starting or stopping; look again, and see its log")
            }
            None => check(Verdict::Info, "no".into()).remedy("start it with `conductor serve`"),
        };
    }
    let asked = timeout(SERVICE_TIMEOUT, greet(global, endpoint)).await;
    let late = || {
        let message = format!("it does not answer within {SERVICE_TIMEOUT:?}");
        Err(Unreachable { message, passing: true })
    };
    match asked.unwrap_or_else(|_| late()) {
        Ok((endpoint, version)) => {
            let pid = holder.filter(|_| !named);
            let shown = pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
            let data = json!({ "endpoint": endpoint, "version": version, "pid": pid });
            let found = check(Verdict::Fine, format!("version {version} at {endpoint}{shown}")).data(data);
            if version == env!("CARGO_PKG_VERSION") {
                return found;
            }
            let own = env!("CARGO_PKG_VERSION");
            Check { verdict: Verdict::Info, ..found }
                .remedy(format!("this program is version {own}; restart the service with the same one"))
        }
        // What a killed service left behind harms nobody.
        Err(_) if !named && holder.is_none() => {
            check(Verdict::Info, "no; the last one did not stop in good order".into())
                .remedy("start it with `conductor serve`")
        }
        Err(unreachable) => {
            let (what, remedy) = unreachable.message.split_once("; ").unwrap_or((
                &unreachable.message,
                "see the service's log; --endpoint and CONDUCTOR_TOKEN must belong to the same service",
            ));
            check(Verdict::Broken, what.to_string()).remedy(remedy)
        }
    }
}

/// Presents the token; gives the service's address and version.
async fn greet(global: &Global, endpoint: &EndpointArgs) -> Result<(String, String), Unreachable> {
    let client = Client::connect(global, endpoint).await?;
    let tunnel =
        client.tunnel(&ChoiceArgs::default(), "conductor-doctor", Path::new("/"), Carry::Once).await?;
    Ok((client.endpoint.clone(), tunnel.welcome.server_version))
}

/// Who holds the state directory's lock. It is looked up, not tried, since that tells
/// who it is; a client that tries it shares it.
pub(super) fn holder(state: &StateDir) -> Option<u32> {
    let file = fs::metadata(state.path().join("lock")).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, "FLOCK", _, "WRITE", pid, place, ..] = words.as_slice() else { return None };
        let inode = place.rsplit(':').next()?.parse::<u64>().ok()?;
        (inode == file.ino()).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn some_missing_roots_are_worth_knowing_and_none_at_all_is_broken() {
        let directory = tempfile::tempdir().unwrap();
        let (here, gone) = (directory.path().to_path_buf(), directory.path().join("gone"));
        assert_eq!(roots(std::slice::from_ref(&here)).verdict, Verdict::Fine);
        let some = roots(&[here, gone.clone()]);
        assert_eq!(some.verdict, Verdict::Info);
        assert!(some.detail.contains("not there: ") && !some.remedy.is_empty(), "{some:?}");
        assert_eq!(roots(&[gone]).verdict, Verdict::Broken);
    }

    #[test]
    fn the_holder_of_the_lock_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::resolve(Some(directory.path().join("state")), |_| None).unwrap();
        assert_eq!(holder(&state), None);
        let held = state.open_for_service().unwrap();
        if cfg!(target_os = "linux") {
            assert_eq!(holder(&state), Some(std::process::id()));
        }
        drop(held);
        assert_eq!(holder(&state), None);
    }
}
