//! What makes a known agent ask.
//!
//! A policy only judges what it is asked about, and every agent has rules and
//! modes of its own under which it does not ask. A profile switches those off
//! with what the agent itself offers: variables, and files in a directory of
//! its own. What each still does unasked is said here, measured with the
//! versions of the lab.

use std::{io, path::Path};

use super::{beneath::put, process::Environment};

/// Stands in a variable's value for the directory that the files are in.
const DIRECTORY: &str = "{DIRECTORY}";

/// What is given to an agent so that it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// The files that the agent's program is known by.
    programs: &'static [&'static str],
    /// Variables that win over what is configured otherwise.
    env: &'static [(&'static str, &'static str)],
    /// Files, from the directory on.
    files: &'static [(&'static str, &'static str)],
    /// The agent finds the files only if the directory is its home.
    pub needs_home: bool,
    /// What it does without asking all the same, for people.
    pub unasked: &'static str,
    /// What is its own in a home that it shares with others; directories end in `/`.
    pub home_paths: &'static [&'static str],
    /// TCP ports that it needs to reach its models.
    pub ports: &'static [u16],
    /// It was seen to work when it reaches nothing else.
    pub is_tested: bool,
}

/// Rules to ask win over rules to allow, wherever those stand, also in the repository.
const CLAUDE: &str = r#"{
  "permissions": {
    "ask": [
      "Bash", "Edit", "Write", "NotebookEdit", "Read", "Glob", "Grep", "WebFetch", "WebSearch", "mcp__*"
    ],
    "defaultMode": "default",
    "disableBypassPermissionsMode": "disable"
  },
  "disableAutoMode": "disable",
  "disableAllHooks": true,
  "enableAllProjectMcpServers": false
}
"#;

/// The settings of the system win over those of the user and of the repository.
const QWEN: &str = r#"{
  "tools": { "approvalMode": "default" },
  "permissions": { "ask": ["Bash", "Edit", "Read", "WebFetch"] }
}
"#;

const GEMINI: &str = r#"{
  "general": { "defaultApprovalMode": "default" },
  "tools": { "allowed": [] },
  "security": { "disableYoloMode": true, "disableAlwaysAllow": true }
}
"#;

/// It names no tools here because a star stands for all of them, but later and closer rules of a
/// repository would win over a star alone.
const OPENCODE: &str = r#"{"*":"ask","bash":"ask","edit":"ask","read":"ask","glob":"ask","grep":"ask","list":"ask","task":"ask","webfetch":"ask","websearch":"ask","external_directory":"ask","doom_loop":"ask"}"#;

static PROFILES: &[Profile] = &[
    Profile {
        name: "claude",
        programs: &["claude-agent-acp", "claude-code-acp"],
        // Its shell would keep the directory that a command has changed to, and the paths of the
        // next one would be judged from another place than they are used from.
        env: &[("CLAUDE_BASH_MAINTAIN_PROJECT_WORKING_DIR", "1")],
        files: &[(".claude/settings.json", CLAUDE)],
        needs_home: true,
        unasked: "lists of tasks and searches among its own tools",
        home_paths: &[".claude/", ".claude.json", ".cache/claude-cli-nodejs/"],
        ports: &[443],
        is_tested: true,
    },
    Profile {
        name: "codex",
        programs: &["codex-acp"],
        env: &[("INITIAL_AGENT_MODE", "read-only")],
        files: &[],
        needs_home: false,
        unasked: "commands within its own sandbox, which can read every file and change none",
        home_paths: &[".codex/"],
        ports: &[443],
        is_tested: true,
    },
    Profile {
        name: "gemini",
        programs: &["gemini"],
        env: &[("GEMINI_CLI_SYSTEM_SETTINGS_PATH", "{DIRECTORY}/gemini-settings.json")],
        files: &[("gemini-settings.json", GEMINI)],
        needs_home: false,
        unasked: "reading files of the workspace, and commands that it takes for harmless",
        home_paths: &[".gemini/"],
        ports: &[443],
        is_tested: true,
    },
    Profile {
        name: "goose",
        programs: &["goose"],
        env: &[("GOOSE_MODE", "approve")],
        files: &[],
        needs_home: false,
        unasked: "nothing that was seen",
        home_paths: &[".config/goose/", ".local/share/goose/", ".local/state/goose/", ".cache/goose/"],
        ports: &[443],
        is_tested: true,
    },
    Profile {
        name: "opencode",
        programs: &["opencode"],
        env: &[("OPENCODE_PERMISSION", OPENCODE)],
        files: &[],
        needs_home: false,
        unasked: "nothing that was seen",
        home_paths: &[
            ".config/opencode/",
            ".local/share/opencode/",
            ".local/state/opencode/",
            ".cache/opencode/",
        ],
        ports: &[443],
        is_tested: true,
    },
    Profile {
        name: "qwen",
        programs: &["qwen"],
        env: &[("QWEN_CODE_SYSTEM_SETTINGS_PATH", "{DIRECTORY}/qwen-settings.json")],
        files: &[("qwen-settings.json", QWEN)],
        needs_home: false,
        unasked: "searches among its own tools",
        home_paths: &[".qwen/"],
        ports: &[443],
        is_tested: true,
    },
];

impl Profile {
    /// The profile of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        PROFILES.iter().find(|profile| profile.name == name).copied()
    }

    /// The profile for a program, by the name of its file.
    pub fn by_program(program: &Path) -> Option<Self> {
        let name = program.file_name()?.to_str()?;
        PROFILES.iter().find(|profile| profile.programs.contains(&name)).copied()
    }

    /// The names of all profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|profile| profile.name)
    }

    /// Writes the files anew, whatever has become of them, and sets the variables. `directory` is the
    /// agent's home if it has one of its own, else a directory for this alone.
    pub fn apply(&self, directory: &Path, env: &mut Environment) -> io::Result<()> {
        for (name, text) in self.files {
            let target = directory.join(name);
            put(&target, text.as_bytes()).map_err(|error| {
                io::Error::new(error.kind(), format!("what makes the agent ask is not in place: {error}"))
            })?;
        }
        for (name, value) in self.env {
            let value = match value.strip_prefix(DIRECTORY) {
                Some(rest) => {
                    let mut whole = directory.as_os_str().to_owned();
                    whole.push(rest);
                    whole
                }
                None => value.into(),
            };
            env.insert(name.into(), value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use std::{ffi::OsString, fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn every_profile_can_be_applied() {
        for name in Profile::names() {
            let profile = Profile::by_name(name).unwrap();
            let home = tempfile::tempdir().unwrap();
            let mut env = Environment::from([("GOOSE_MODE".into(), "auto".into())]);
            profile.apply(home.path(), &mut env).unwrap();
            profile.apply(home.path(), &mut env).unwrap();
            for (file, text) in profile.files {
                assert_eq!(fs::read_to_string(home.path().join(file)).unwrap(), *text, "{name}");
                serde_json::from_str::<serde_json::Value>(text).unwrap();
            }
            for (variable, value) in &env {
                let value = value.to_str().unwrap();
                assert!(
                    !value.contains('{') || serde_json::from_str::<serde_json::Value>(value).is_ok(),
                    "{variable:?}"
                );
                // What a variable points to is there.
                assert!(!value.starts_with('/') || Path::new(value).is_file(), "{name}: {variable:?}");
            }
            assert!(!profile.files.is_empty() || !profile.env.is_empty(), "{name} does nothing");
            let mode = &env[&OsString::from("GOOSE_MODE")];
            assert_eq!(mode, if name == "goose" { "approve" } else { "auto" });
        }
        assert_eq!(Profile::by_name("demo"), None);
        let claude = Profile::by_program(Path::new("/opt/bin/claude-agent-acp"));
        assert_eq!(claude.map(|profile| profile.name), Some("claude"));
        assert_eq!(Profile::by_program(Path::new("/opt/bin/claude-agent-acp-evil")), None);
    }

    #[test]
    fn a_link_in_the_way_is_replaced_and_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let precious = home.path().join("precious");
        fs::write(&precious, "mine").unwrap();
        fs::create_dir(home.path().join(".claude")).unwrap();
        symlink(&precious, home.path().join(".claude/settings.json")).unwrap();
        Profile::by_name("claude").unwrap().apply(home.path(), &mut Environment::new()).unwrap();
        assert_eq!(fs::read_to_string(precious).unwrap(), "mine");
        let entries = fs::read_dir(home.path().join(".claude")).unwrap().count();
        assert_eq!(entries, 1, "nothing else is left there");
    }
}
