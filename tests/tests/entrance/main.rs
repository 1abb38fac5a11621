//! Who comes in and how: TLS on the listener, certificates of people, tokens of
//! an issuer, and logins (`tests/faults`, rows U1 to U6).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod certificates;
mod issuers;
mod login;
mod remote;
mod tls;

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use conductor_tests::{
    certificates::{Authority, Certificate, Pair},
    harness::{Builder, Service, service},
};
use serde_json::{Value, json};

/// A service with a certificate of a CA of its own.
struct Site {
    service: Service,
    ca: Authority,
    pair: Pair,
}

impl Site {
    fn new() -> Self {
        Self::with(|builder, _| builder)
    }

    /// One that is set up further; `change` gets the CA, too.
    fn with(change: impl FnOnce(Builder, &Authority) -> Builder) -> Self {
        let builder = service(&json!({}));
        let ca = Authority::new(builder.dir(), "ca");
        let pair = ca.sign("server", &Certificate::server());
        let builder = builder.set("service.tls", pair.tls());
        let service = change(builder, &ca).start();
        Self { service, ca, pair }
    }

    /// A command of somebody on another machine, with nothing of this one's but
    /// the address and the CA.
    fn elsewhere(&self, args: &[&str]) -> Command {
        let mut command = self.service.command(args);
        command
            .env("CONDUCTOR_STATE_DIR", self.service.dir.join("elsewhere"))
            .env("CONDUCTOR_ENDPOINT", self.service.endpoint())
            .env("CONDUCTOR_CA_FILE", &self.ca.file);
        command
    }
}

/// Runs a command to its end.
fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// What a command that must succeed writes.
fn answer(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The same as JSON.
fn document(command: &mut Command) -> Value {
    let text = answer(command);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON ({error}): {text}"))
}

/// Why a command fails.
fn refusal(command: &mut Command) -> String {
    let output = run(command);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_configuration_in_the_readme_is_one() {
    fn merge(into: &mut toml::Table, from: toml::Table) {
        for (key, value) in from {
            match (into.get_mut(&key), value) {
                (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
                (_, value) => drop(into.insert(key, value)),
            }
        }
    }
    let readme = include_str!("../../../README.md");
    let section = readme.split("### Listening for a team").nth(1).unwrap().split("\n### ").next().unwrap();
    let mut whole = toml::Table::new();
    let blocks: Vec<&str> =
        section.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 3);
    blocks.iter().for_each(|block| merge(&mut whole, block.parse().unwrap()));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agents.toml");
    std::fs::write(&file, whole.to_string()).unwrap();
    let env = [("HOME".into(), dir.path().into())];
    let config = conductor::config::Config::load(Some(&file), env).unwrap().config;
    assert_eq!(config.identity.certificates.users["ann@example.org"].role, "admin");
    assert_eq!(config.identity.oidc.role_claim, "realm_access.roles");
    assert!(!config.service.listen.ip().is_loopback());
}

/// Whether `openssl` is installed.
fn has_openssl() -> bool {
    Command::new("openssl").arg("version").output().is_ok_and(|output| output.status.success())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
