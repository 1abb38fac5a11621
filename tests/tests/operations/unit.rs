//! The systemd unit that `deploy/` ships, started as systemd would start it: its
//! own command line, its own environment, and a socket that listens for its word.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use conductor_tests::{
    certificates::{Authority, Certificate, Pair},
    editor::DEADLINE,
    harness::{poll_until, program},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy")
}

/// The settings of the unit's `[Service]`, in order, by name.
fn unit() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(deploy().join("systemd/conductor.service")).unwrap();
    let service = text.split("[Service]").nth(1).unwrap().split("\n[").next().unwrap();
    let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in service.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("no setting: {line:?}"));
        settings.entry(name.to_owned()).or_default().push(value.to_owned());
    }
    settings
}

/// The unit's service in a directory that stands for the host's.
struct Unit {
    child: Child,
    root: tempfile::TempDir,
    manager: UnixDatagram,
}

impl Unit {
    fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc/conductor");
        let state = root.path().join("state/conductor");
        for directory in [&etc, &state, &root.path().join("code")] {
            fs::create_dir_all(directory).unwrap();
        }
        // The team's example, with the places of this host. Nothing listens at its
        // database and its collector: it starts all the same.
        for name in ["agents.toml", "policy.toml"] {
            let text = fs::read_to_string(deploy().join("examples/team").join(name)).unwrap();
            let text = text
                .replace("/etc/conductor", etc.to_str().unwrap())
                .replace("/srv/code", root.path().join("code").to_str().unwrap())
                .replace("127.0.0.1:5432", "127.0.0.1:1")
                .replace("127.0.0.1:4317", "127.0.0.1:1")
                .replace("0.0.0.0:7420", "127.0.0.1:0")
                .replace("127.0.0.1:9464", "127.0.0.1:0");
            fs::write(etc.join(name), text).unwrap();
        }
        fs::write(etc.join("ledger-password"), "secret\n").unwrap();
        let tls = etc.join("tls");
        fs::create_dir(&tls).unwrap();
        let pair = Pair { cert: tls.join("cert.pem"), key: tls.join("key.pem") };
        Authority::new(root.path(), "ca").sign_into(&pair, &Certificate::server());
        let unit = unit();
        let place = |text: &str| {
            text.replace("%S", root.path().join("state").to_str().unwrap())
                .replace("/etc/conductor", etc.to_str().unwrap())
                .replace("/usr/local/bin/conductor", program("conductor").to_str().unwrap())
        };
        let line = place(&unit["ExecStart"][0]);
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        for variable in &unit["Environment"] {
            let (name, value) = variable.split_once('=').unwrap();
            command.env(name, place(value));
        }
        let socket = root.path().join("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(DEADLINE)).unwrap();
        let watchdog = unit["WatchdogSec"][0].strip_suffix('s').unwrap().parse::<u64>().unwrap();
        assert!(watchdog >= 10, "a disk that hangs for a moment is no reason to restart");
        // The test does not wait half a minute for the first word.
        command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "400000");
        let log = fs::File::create(root.path().join("log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { child, root, manager }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.root.path().join("log")).unwrap_or_default()
    }

    /// Waits for a word to the manager.
    fn hear(&self, wanted: &str) {
        let until = Instant::now() + DEADLINE;
        while Instant::now() < until {
            let mut buffer = [0; 512];
            let Ok(length) = self.manager.recv(&mut buffer) else { break };
            let word = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if word.lines().any(|line| line == wanted) {
                return;
            }
        }
        panic!("the manager never heard {wanted}; the log:\n{}", self.log());
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_units_own_command_line_says_ready_and_feeds_the_watchdog() {
    let mut unit = Unit::start();
    unit.hear("READY=1");
    unit.hear("WATCHDOG=1");
    unit.hear("WATCHDOG=1");
    unit.signal(Signal::SIGHUP);
    unit.hear("RELOADING=1");
    unit.hear("READY=1");
    unit.signal(Signal::SIGTERM);
    unit.hear("STOPPING=1");
    let mut status = None;
    poll_until(Duration::from_secs(30), || {
        status = unit.child.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()), "{status:?}\n{}", unit.log());
    assert!(!unit.log().contains("secret"), "the password is in the log");
}

#[test]
fn the_unit_keeps_what_it_promises() {
    let unit = unit();
    let is = |name: &str, value: &str| assert_eq!(unit[name], [value], "{name}");
    is("Type", "notify");
    is("KillMode", "control-group");
    is("Delegate", "yes");
    is("NoNewPrivileges", "yes");
    is("ProtectSystem", "strict");
    is("StateDirectory", "conductor");
    assert_ne!(unit["User"], ["root"]);
    assert!(unit.contains_key("WatchdogSec"));
}
