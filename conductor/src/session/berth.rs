//! What a session needs of one agent: which process, what this host does for
//! it, where it may work, how patient one is with it. A session that goes on
//! with another agent gets another berth.

use std::{
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use super::Hosting;
use crate::{
    acp::{EditorCapabilities, OpenParams, Refusal, WorkspaceCapabilities, code},
    config::{Config, OnStall, Sandbox, SpawnCwd, Workspace},
    frame::{self, Frame},
    identity::Person,
    pool::Key,
    workspace::Roots,
};

/// Directories that a session may have beside its own; each is held open.
const MOST_DIRECTORIES: usize = 64;

/// What a session needs of one agent.
#[derive(Debug)]
pub struct Berth {
    /// Which process it needs.
    pub key: Key,
    /// What this host does for it; `None` leaves files and terminals to the
    /// editor.
    pub hosting: Option<Hosting>,
    /// The directories it may work in, resolved.
    pub roots: Vec<PathBuf>,
    /// After so long without anything to do its process is released; zero for
    /// never.
    pub park_after: Duration,
    /// So long its process is kept after the session has gone on to another
    /// agent.
    pub linger: Duration,
    /// A turn in which the agent shows no sign of work for so long is reported;
    /// zero for never.
    pub stall_timeout: Duration,
    /// After twice that time it is cancelled.
    pub cancels_stalled: bool,
    /// Its process may go on when it does not need it any more.
    pub shares_process: bool,
}

impl Berth {
    /// The berth at an agent for the session of `owner` that `request` opens in `cwd`;
    /// or why it can have none there.
    pub fn new(
        config: &Config,
        agent: &Arc<str>,
        owner: &Person,
        request: &Frame,
        cwd: &Path,
        able: EditorCapabilities,
    ) -> Result<Self, Refusal> {
        let roots = roots_of(config, agent);
        if nearest_root(cwd, roots).is_none() {
            return Err(Refusal::new(code::INVALID_PARAMS, outside("cwd", &cwd.to_string_lossy(), roots)));
        }
        let settings = config.agents.get(&**agent);
        let roots = session_roots(request, cwd, roots);
        let mut key = key(config, agent.clone(), owner, cwd, able);
        // What an agent can reach is settled when it is started.
        if settings.is_some_and(|agent| agent.sandbox != Some(Sandbox::Off)) {
            key.more = roots.iter().filter(|root| !root.starts_with(&key.cwd)).cloned().collect();
            key.more.sort_unstable();
        }
        Ok(Self {
            key,
            hosting: hosting(config, agent, request, cwd)?,
            roots,
            park_after: settings.map(|agent| agent.park_after).unwrap_or_default(),
            linger: settings.map(|agent| agent.linger).unwrap_or_default(),
            stall_timeout: settings.map(|agent| agent.turn_stall_timeout).unwrap_or_default(),
            cancels_stalled: settings.is_some_and(|agent| agent.on_stall == OnStall::Cancel),
            shares_process: settings.is_some_and(|agent| agent.sessions_per_process > 1),
        })
    }
}

/// The directories of a session, resolved; those that cannot be used are none.
fn session_roots(frame: &Frame, cwd: &Path, roots: &[PathBuf]) -> Vec<PathBuf> {
    let params = frame.decode::<OpenParams<'_>>(frame.peek().params);
    let more = params.map(|params| params.additional_directories).unwrap_or_default();
    let more = strings(&more).unwrap_or_default().into_iter().take(MOST_DIRECTORIES);
    let more = more.filter_map(|path| directory("additionalDirectories", path, roots).ok());
    std::iter::once(cwd.to_path_buf()).chain(more).collect()
}

/// The process that somebody's session of an agent needs in a directory.
pub fn key(config: &Config, agent: Arc<str>, owner: &Person, cwd: &Path, able: EditorCapabilities) -> Key {
    let settings = config.agents.get(&*agent);
    let is_personal = settings.is_some_and(|agent| config.is_personal(agent, &owner.user));
    let person = is_personal.then(|| Arc::new(owner.clone()));
    let roots = roots_of(config, &agent);
    let cwd = match settings.map(|agent| agent.spawn_cwd) {
        Some(SpawnCwd::Root) => nearest_root(cwd, roots).unwrap_or_else(|| cwd.to_path_buf()),
        _ => cwd.to_path_buf(),
    };
    let capabilities = match settings.map(|agent| agent.workspace) {
        Some(Workspace::Editor) => able.workspace(),
        // The same for all editors, so that they share processes.
        _ => WorkspaceCapabilities::ALL,
    };
    Key { agent, cwd, more: Vec::new(), capabilities, person }
}

/// Where an agent may work.
pub fn roots_of<'a>(config: &'a Config, agent: &str) -> &'a [PathBuf] {
    config.agents.get(agent).and_then(|agent| agent.roots.as_ref()).unwrap_or(&config.roots)
}

/// What this host does for a session of this agent: nothing, or all beneath the
/// directories that the opening request names.
fn hosting(config: &Config, agent: &str, frame: &Frame, cwd: &Path) -> Result<Option<Hosting>, Refusal> {
    let settings = config.agents.get(agent).filter(|agent| agent.workspace == Workspace::Host);
    let (Some(settings), Some(params)) = (settings, frame.decode::<OpenParams<'_>>(frame.peek().params))
    else {
        return Ok(None);
    };
    let invalid = |text: String| Refusal::new(code::INVALID_PARAMS, text);
    let more =
        strings(&params.additional_directories).filter(|more| more.len() <= MOST_DIRECTORIES).ok_or_else(
            || invalid(format!("additionalDirectories must be an array of at most {MOST_DIRECTORIES} paths")),
        )?;
    let mut directories = vec![(PathBuf::from(&*params.cwd), cwd.to_path_buf())];
    for given in more {
        let real = directory("additionalDirectories", given, roots_of(config, agent)).map_err(invalid)?;
        directories.push((given.into(), real));
    }
    let roots = Roots::open(directories).map_err(|why| Refusal::new(code::INTERNAL, why))?;
    Ok(Some(Hosting {
        roots: Arc::new(roots),
        prefer_client_fs: settings.prefer_client_fs,
        prefer_client_terminal: settings.prefer_client_terminal,
    }))
}

/// The texts of an optional array; `None` if it is something else.
fn strings(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// A directory of the session, resolved; or why it cannot be that.
pub fn directory(what: &str, given: &str, roots: &[PathBuf]) -> Result<PathBuf, String> {
    let shown = frame::escape(given.as_bytes(), 500);
    let path = Path::new(given);
    if !path.is_absolute() || given.contains('\0') {
        return Err(format!("{what} must be an absolute path, and `{shown}` is not"));
    }
    let resolved = path
        .canonicalize()
        .map_err(|error| format!("{what} `{shown}` cannot be used on the conductor's host: {error}"))?;
    if !resolved.is_dir() {
        return Err(format!("{what} `{shown}` is not a directory on the conductor's host"));
    }
    if nearest_root(&resolved, roots).is_none() {
        return Err(outside(what, &shown, roots));
    }
    Ok(resolved)
}

fn outside(what: &str, shown: &str, roots: &[PathBuf]) -> String {
    let list: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
    format!(
        "{what} `{shown}` lies outside the roots that this conductor allows ({}); \
         work beneath one of them, or add it to `roots` in the service's agents.toml",
        list.join(", ")
    )
}

/// The innermost root above a resolved path. Roots are compared component by
/// component: `app` is not above `app-evil`.
fn nearest_root(path: &Path, roots: &[PathBuf]) -> Option<PathBuf> {
    let resolved = roots.iter().filter_map(|root| root.canonicalize().ok());
    let above = resolved.filter(|root| path.starts_with(root));
    above.max_by_key(|root| root.components().filter(|part| matches!(part, Component::Normal(_))).count())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn sessions_stay_beneath_the_roots() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        for dir in ["app/inner", "app-evil"] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
        }
        std::os::unix::fs::symlink(base.join("app-evil"), base.join("app/link")).unwrap();
        let roots = [base.join("app")];
        let ok = |path: &str| directory("cwd", base.join(path).to_str().unwrap(), &roots);
        assert_eq!(ok("app/inner").unwrap(), base.join("app/inner"));
        assert_eq!(ok("app").unwrap(), base.join("app"));
        assert!(ok("app-evil").unwrap_err().contains("outside the roots"));
        assert!(ok("app/link").unwrap_err().contains("outside the roots"));
        assert!(ok("app/../app-evil").unwrap_err().contains("outside the roots"));
        assert!(ok("app/missing").unwrap_err().contains("cannot be used"));
        assert!(directory("cwd", "app", &roots).unwrap_err().contains("absolute"));
    }
}
