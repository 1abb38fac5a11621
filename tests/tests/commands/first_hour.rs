//! What somebody meets who has just built it: no configuration, a home of their own, and every
//! next step named.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::Receiver,
};

use conductor_tests::{editor::DEADLINE, harness::poll_until};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::service::{Done, alone, finish, lines, signal};

const RULES: &str = r#"
use = ["default"]

[[rule]]
id = "no-production"
effect = "deny"
reason = "production is changed by the pipeline only"
run = { program = ["kubectl"] }
match = [{ shell = "kubectl get pods" }]
"#;

/// A home in which nothing is, and a service that was started there.
struct Newcomer {
    home: TempDir,
    service: Child,
    banner: Receiver<String>,
}

impl Newcomer {
    fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("project")).unwrap();
        let log = File::create(home.path().join("log")).unwrap();
        let mut command = at_home(home.path(), &["serve", "--listen", "127.0.0.1:0"]);
        let mut service = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let banner = lines(service.stdout.take().unwrap());
        Self { home, service, banner }
    }

    /// The banner, to its last line.
    fn banner(&self) -> String {
        let mut text = String::new();
        while !text.contains("Editors start") {
            text += &(self.banner.recv_timeout(DEADLINE).unwrap() + "\n");
        }
        text
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap()
    }

    fn run(&self, args: &[&str]) -> Done {
        let mut command = at_home(self.home.path(), args);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().unwrap(), "")
    }

    /// Puts a file where the program looks for it.
    fn configure(&self, name: &str, text: &str) {
        let directory = self.home.path().join(".config/conductor");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), text).unwrap();
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        signal(&self.service, Signal::SIGTERM);
        self.service.wait().ok();
    }
}

fn at_home(home: &Path, args: &[&str]) -> Command {
    let mut command = alone(args, &home.join("state"));
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME").current_dir(home.join("project"));
    command
}

#[test]
fn the_banner_names_what_can_be_typed_and_where_the_configuration_goes() {
    let newcomer = Newcomer::start();
    let banner = newcomer.banner();
    // It is not on PATH here, as it is not after `cargo run`.
    let next =
        banner.lines().find_map(|line| line.trim().strip_prefix("Try, in another terminal:  ")).unwrap();
    let (program, rest) = next.split_once(' ').unwrap();
    assert!(Path::new(program).is_file() && rest == "prompt help", "{banner}");
    let usual = newcomer.home.path().join(".config/conductor/agents.toml");
    assert!(banner.contains(&format!("none at {}", usual.display())), "{banner}");
    assert!(banner.contains("✓ demo") && banner.contains("Demo (default)"), "{banner}");
    let doctor = newcomer.run(&["doctor"]);
    assert!(doctor.stdout.contains(usual.to_str().unwrap()), "{}", doctor.stdout);
}

#[test]
fn a_first_rule_counts_without_a_restart_and_says_why_it_denies() {
    let newcomer = Newcomer::start();
    newcomer.banner();
    let prompt = ["prompt", "--allow", "run kubectl get pods"];
    let allowed = newcomer.run(&prompt);
    assert!(!allowed.stderr.contains("Denied"), "{allowed:?}");
    // Rules that nobody names are told of: who has written them expects them to count.
    newcomer.configure("policy.toml", RULES);
    let doctor = newcomer.run(&["doctor"]).stdout;
    assert!(doctor.contains("write into agents.toml: [policy] file = "), "{doctor}");
    newcomer.configure("agents.toml", "[policy]\nfile = '~/.config/conductor/policy.toml'\n");
    let is_read = poll_until(DEADLINE, || newcomer.log().contains("the configuration was reloaded"));
    assert!(is_read, "{}", newcomer.log());
    let denied = newcomer.run(&prompt);
    let told = "Denied by the policy: run `kubectl get pods` in ";
    let why = ": production is changed by the pipeline only (rule `no-production`)";
    assert!(denied.stderr.contains(told) && denied.stderr.contains(why), "{denied:?}");
    let explained = newcomer.run(&["policy", "explain", "--run", "kubectl get pods"]);
    assert_eq!(explained.code, Some(0), "{explained:?}");
    assert!(
        explained.stdout.starts_with("deny   by ") && explained.stdout.contains("no-production: production")
    );
    let json = newcomer.run(&["policy", "explain", "--json", "--write", "notes.txt"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["decision"], "ask");
}

#[test]
fn a_name_is_no_address_to_listen_on() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("project")).unwrap();
    let mut command = at_home(home.path(), &["serve", "--listen", "localhost:7420"]);
    let refused = finish(command.stderr(Stdio::piped()).spawn().unwrap(), "");
    assert!(refused.code == Some(2) && refused.stderr.contains("as in 127.0.0.1:7420"), "{refused:?}");
}

#[test]
fn a_token_is_handed_over_with_words_that_lead_somewhere() {
    let newcomer = Newcomer::start();
    newcomer.banner();
    let made = newcomer.run(&["token", "create", "--user", "ann"]);
    assert!(made.stderr.contains("[service.tls]") && made.stderr.contains("ssh -L "), "{made:?}");
    let elsewhere = newcomer.run(&["whoami", "--endpoint", "https://conductor.invalid:7420"]);
    assert!(
        elsewhere.stderr.contains("conductor login --endpoint https://conductor.invalid:7420"),
        "{elsewhere:?}"
    );
    let mut nowhere = at_home(newcomer.home.path(), &["prompt", "hi", "--state-dir", "/nowhere"]);
    let nowhere = nowhere.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let nowhere = finish(nowhere, "");
    assert!(nowhere.stderr.contains("`conductor serve`, or use one on another host"), "{nowhere:?}");
}
