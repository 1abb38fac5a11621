//! What teams do today: `ssh host agent`. Where OpenSSH is installed, a server of the benchmark's own listens on
//! loopback, as the user who runs the benchmark, with keys and settings that live as long as it does.

use std::{
    env, fs,
    fs::DirBuilder,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::{User, getuid};
use tempfile::TempDir;

use crate::editor::Editor;

/// Where servers lie that are not on the path of ordinary users.
const SERVER_DIRS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/sbin"];

/// How long the server may take to listen.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// What the server says when it is run by root and lacks a directory that its package makes at boot.
const MISSING_DIR: &str = "Missing privilege separation directory: ";

/// A running server, and how to reach it.
pub struct Ssh {
    client: PathBuf,
    server: Child,
    dir: TempDir,
    user: String,
    port: u16,
}

impl Ssh {
    /// Starts a server; the text says why there is none.
    pub fn start() -> Result<Self, String> {
        let find = |name: &str| {
            let path = env::var_os("PATH").unwrap_or_default();
            let dirs = env::split_paths(&path).chain(SERVER_DIRS.map(PathBuf::from));
            let found = dirs.map(|dir| dir.join(name)).find(|path| path.is_absolute() && path.is_file());
            found.ok_or_else(|| format!("there is no `{name}`; install OpenSSH's client and server"))
        };
        let (client, server, keygen) = (find("ssh")?, find("sshd")?, find("ssh-keygen")?);
        Self::start_with(client, &server, &keygen).map_err(|why| format!("{why:#}"))
    }

    fn start_with(client: PathBuf, server: &Path, keygen: &Path) -> Result<Self> {
        let user = User::from_uid(getuid())?.context("the present user has no name")?.name;
        let dir = TempDir::with_prefix("conductor-bench-ssh-")?;
        // Someone else may take the port before the server does; then the server ends, and that is reported.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        for name in ["host_key", "user_key"] {
            let mut make = Command::new(keygen);
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.path().join(name));
            ensure!(make.stdin(Stdio::null()).status()?.success(), "ssh-keygen made no key");
        }
        let host = fs::read_to_string(dir.path().join("host_key.pub"))?;
        fs::write(dir.path().join("known_hosts"), format!("[127.0.0.1]:{port} {host}"))?;
        fs::write(dir.path().join("config"), configuration(dir.path(), port))?;
        make_missing_dir(server, dir.path())?;
        let log = fs::File::create(dir.path().join("log"))?;
        // It starts itself again for each connection, hence the absolute path; -D keeps it in the foreground.
        let mut command = Command::new(server);
        command.args(["-D", "-e", "-f"]).arg(dir.path().join("config"));
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        let mut ssh = Self { client, server, dir, user, port };
        ssh.until_ready()?;
        Ok(ssh)
    }

    fn until_ready(&mut self) -> Result<()> {
        let due = Instant::now() + READY_TIMEOUT;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            if let Some(status) = self.server.try_wait()? {
                bail!("sshd ended at once ({status}): {}", self.log());
            }
            ensure!(Instant::now() < due, "sshd does not listen after {READY_TIMEOUT:?}");
            sleep(Duration::from_millis(2));
        }
        let status = self.command("true").stdin(Stdio::null()).output()?;
        let words = String::from_utf8_lossy(&status.stderr);
        ensure!(status.status.success(), "ssh cannot log in: {words}{}", self.log());
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// An agent behind ssh.
    pub fn spawn(&self, stub: &Path) -> Result<Editor> {
        Editor::spawn(&mut self.command(&stub.to_string_lossy()))
    }

    /// The client with none of the user's own settings, keys and agents.
    fn command(&self, remote: &str) -> Command {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let mut command = Command::new(&self.client);
        command.args(["-F", "none", "-T", "-i", &path("user_key"), "-p", &self.port.to_string()]);
        for option in [
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "StrictHostKeyChecking=yes",
            "GlobalKnownHostsFile=none",
            &format!("UserKnownHostsFile={}", path("known_hosts")),
            &format!("User={}", self.user),
        ] {
            command.args(["-o", option]);
        }
        command.args(["127.0.0.1", "exec", remote]);
        command
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

fn configuration(dir: &Path, port: u16) -> String {
    let dir = dir.display();
    format!(
        "ListenAddress 127.0.0.1:{port}\n\
         HostKey {dir}/host_key\n\
         AuthorizedKeysFile {dir}/user_key.pub\n\
         PidFile none\n\
         UsePAM no\n\
         StrictModes no\n\
         PasswordAuthentication no\n\
         KbdInteractiveAuthentication no\n\
         PermitRootLogin prohibit-password\n\
         PrintMotd no\n\
         PrintLastLog no\n"
    )
}

/// Makes the empty directory that a server run by root wants, should nothing have made it since boot. It stays, as
/// it would after a boot.
fn make_missing_dir(server: &Path, dir: &Path) -> Result<()> {
    let check = Command::new(server).args(["-t", "-f"]).arg(dir.join("config")).output()?;
    let words = String::from_utf8_lossy(&check.stderr);
    if let Some(missing) = words.lines().find_map(|line| line.strip_prefix(MISSING_DIR)) {
        let made = DirBuilder::new().mode(0o755).create(missing.trim());
        made.with_context(|| format!("sshd needs an empty directory {missing}; create it as root"))?;
    }
    Ok(())
}
