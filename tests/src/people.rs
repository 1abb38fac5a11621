//! People other than the one the service runs as: each has an API token, and
//! with it commands, editors and calls of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tonic::{Request, metadata::MetadataMap, transport::Channel};

use crate::{editor::Editor, harness::Service};

/// Somebody with a token.
#[derive(Debug, Clone)]
pub struct Person {
    /// The token.
    pub token: String,
    /// Its id.
    pub id: String,
}

impl Person {
    /// Makes a token as the user the service runs as; `args` are those of
    /// `conductor token create`.
    pub fn new(service: &Service, args: &[&str]) -> Self {
        let made = service.run(&[&["token", "create", "--json"], args].concat());
        assert!(made.status.success(), "no token was made: {made:?}");
        let made: Value = serde_json::from_slice(&made.stdout).unwrap();
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        Self { token: text("token"), id: text("id") }
    }

    /// A developer of this name.
    pub fn named(service: &Service, user: &str) -> Self {
        Self::new(service, &["--user", user])
    }

    /// Any sub-command, by this person.
    pub fn command(&self, service: &Service, args: &[&str]) -> Command {
        let mut command = service.command(args);
        command.env("CONDUCTOR_TOKEN", &self.token);
        command
    }

    /// Runs a sub-command to its end.
    pub fn run(&self, service: &Service, args: &[&str]) -> Output {
        self.command(service, args).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts this person's `conductor connect` and shakes hands.
    pub fn editor(&self, service: &Service) -> Editor {
        let mut editor = Editor::spawn(&mut self.command(service, &["connect"]));
        editor.initialize();
        editor
    }

    /// What goes with this person's calls.
    pub fn metadata(&self) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert("authorization", format!("Bearer {}", self.token).parse().unwrap());
        metadata
    }

    /// A call of this person's.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.metadata();
        request
    }
}

/// The user the service runs as, with its own token.
pub fn owner(service: &Service) -> Person {
    Person { token: service.token(), id: String::new() }
}

/// Shares a session of the user the service runs as.
pub fn share(service: &Service, session: &str, with: &str, role: &str) {
    let shared = service.run(&["sessions", "share", session, "--with", with, "--as", role]);
    assert!(shared.status.success(), "{shared:?}");
}

/// A connection to the service.
pub async fn channel(service: &Service) -> Channel {
    Channel::from_shared(service.endpoint()).unwrap().connect().await.unwrap()
}
