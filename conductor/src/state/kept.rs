//! What sessions were given for their MCP servers and their record does not hold, because it is
//! secret: one file for each such session, which nobody else may read.
//!
//! A session that somebody drives while no editor is there is opened again with it. It goes when
//! the session is closed or deleted.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;
use uuid::Uuid;

/// Its directory in the state directory.
const DIRECTORY: &str = "kept";

/// Where it is kept. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Kept(Arc<Path>);

impl Kept {
    /// In this state directory. Nothing is made there before there is something to keep.
    pub fn new(state: &Path) -> Self {
        Self(state.join(DIRECTORY).into())
    }

    fn file(&self, session: Uuid) -> PathBuf {
        self.0.join(format!("{session}.json"))
    }

    /// Keeps the MCP servers of a session, in JSON; those of before are forgotten. That it
    /// cannot be done keeps nobody from working now, so it is only logged.
    pub fn keep(&self, session: Uuid, servers: &[u8]) {
        let path = self.file(session);
        let draft = path.with_extension("tmp");
        let write = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
            // A leftover would keep its permissions.
            remove(&draft)?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(servers)?;
            fs::rename(&draft, &path)
        };
        if let Err(error) = write() {
            tracing::warn!(
                session.id = %session, %error,
                "the secrets of a session's MCP servers are not kept; an editor must hand them over again"
            );
        }
    }

    /// The MCP servers of a session; `None` if nothing is kept of it.
    pub fn servers(&self, session: Uuid) -> Option<Value> {
        let text = fs::read(self.file(session)).ok()?;
        serde_json::from_slice(&text).ok().filter(Value::is_array)
    }

    /// The session does not need it any more.
    pub fn forget(&self, session: Uuid) {
        let path = self.file(session);
        // Whoever was killed while keeping it has left a draft.
        let removed = remove(&path.with_extension("tmp")).and_then(|()| remove(&path));
        if let Err(error) = removed {
            tracing::warn!(session.id = %session, %error, "the secrets of a session's MCP servers are still kept");
        }
    }

    /// Forgets what belongs to no session any more.
    pub fn sweep(&self, is_there: impl Fn(Uuid) -> bool) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let session = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            let is_draft = path.extension().is_some_and(|end| end == "tmp");
            if is_draft || !session.is_some_and(&is_there) {
                remove(&path).ok();
            }
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_kept_is_private_and_goes_with_its_session() {
        let temp = tempfile::tempdir().unwrap();
        let kept = Kept::new(temp.path());
        let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
        assert_eq!(kept.servers(one), None);
        kept.forget(one);
        kept.keep(one, b"[1]");
        kept.keep(one, b"[2]");
        kept.keep(other, b"[3]");
        assert_eq!(kept.servers(one).unwrap(), serde_json::json!([2]));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&kept.0), mode(&kept.file(one))), (0o700, 0o600));
        fs::write(temp.path().join("kept/x.tmp"), "").unwrap();
        kept.sweep(|session| session == one);
        assert_eq!(fs::read_dir(&kept.0).unwrap().count(), 1);
        fs::write(kept.file(one).with_extension("tmp"), "").unwrap();
        kept.forget(one);
        assert_eq!(kept.servers(one), None);
        assert_eq!(fs::read_dir(&kept.0).unwrap().count(), 0);
    }
}
