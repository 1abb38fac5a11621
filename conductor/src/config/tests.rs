//! The whole way from files and variables to a configuration or a refusal.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt as _, slice};

use super::*;

mod access;
mod damage;
mod refusals;

/// A home of its own, and the file in it.
struct Fixture {
    root: tempfile::TempDir,
    env: Vec<(OsString, OsString)>,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let env = vec![("HOME".into(), root.path().join("home").into())];
        Self { root, env }
    }

    fn var(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        path
    }

    fn load(&self, explicit: Option<&Path>) -> Result<Loaded, ConfigError> {
        let system = self.root.path().join("etc/agents.toml");
        Config::load_with(explicit, &Environment::new(self.env.clone()), &system)
    }

    fn text(&self, text: &str) -> Result<Config, ConfigError> {
        Ok(self.load(Some(&self.write("test.toml", text)))?.config)
    }

    /// The refusal of a text, without the name of its directory.
    fn refusal(&self, text: impl AsRef<[u8]>) -> String {
        let path = self.write("test.toml", text);
        let refused = match self.load(Some(&path)) {
            Ok(_) => panic!("accepted: {}", fs::read_to_string(path).unwrap_or_default()),
            Err(error) => error.to_string(),
        };
        refused.replace(&format!("{}/", self.root.path().display()), "")
    }
}

#[test]
fn the_defaults_alone_are_a_configuration() {
    let fixture = Fixture::new();
    let loaded = fixture.load(None).unwrap();
    assert_eq!(loaded.file, None);
    let config = loaded.config;
    assert_eq!(config.default, "demo");
    assert_eq!(config.roots, [fixture.root.path().join("home")]);
    assert_eq!(config.service.listen.to_string(), "127.0.0.1:7420");
    let commands: Vec<_> = config
        .agents
        .values()
        .map(|agent| [slice::from_ref(&agent.command), &agent.args].concat().join(" "))
        .collect();
    assert_eq!(
        commands,
        [
            "claude-agent-acp",
            "cline --acp",
            "codex-acp",
            "copilot --acp",
            "conductor demo-agent",
            "gemini --acp",
            "goose acp",
            "kimi acp",
            "opencode acp",
            "qwen --acp",
            "vibe-acp",
        ]
    );
    for (name, agent) in &config.agents {
        assert_eq!(&agent.name, name);
        assert!(agent.title.is_some() && agent.labels.contains_key("vendor"), "{name}");
        assert_eq!(agent.env_from.is_empty(), name == "demo", "{name}");
    }
}

/// The commented-out example at the end of the defaults, made real.
fn example() -> String {
    let start = DEFAULTS.find("# [agents.example]").unwrap();
    DEFAULTS[start..].lines().map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line))).collect()
}

#[test]
fn the_example_shows_every_key_and_the_true_defaults() {
    let config = Fixture::new().text(&example()).unwrap();
    let shown = format!("{:#?}", config.agents["example"]);
    let bare = Fixture::new().text("[agents.example]\ncommand = \"x\"\n").unwrap();
    let table: toml::Table = toml::from_str(&example()).unwrap();
    let keys: BTreeSet<_> = table["agents"]["example"].as_table().unwrap().keys().cloned().collect();
    let refused = Fixture::new().refusal("[agents.x]\nzzzzzzzz = 1\n");
    let known: BTreeSet<_> =
        refused.split_once("keys here: ").unwrap().1.split(", ").map(str::to_owned).collect();
    assert_eq!(keys, known);
    // What the example calls a default is one.
    let defaults = example();
    let marks = ["# default;", "# default: started", "# default: files"];
    let claimed = defaults.lines().filter(|line| marks.iter().any(|mark| line.contains(mark)));
    let mut text = "[agents.example]\ncommand = \"x\"\n".to_owned();
    let mut count = 0;
    for line in claimed {
        text.push_str(line);
        text.push('\n');
        count += 1;
    }
    assert_eq!(count, 24);
    let stated = Fixture::new().text(&text).unwrap();
    assert_eq!(format!("{:?}", stated.agents["example"]), format!("{:?}", bare.agents["example"]));
    assert!(shown.contains("EXAMPLE_REGION"));
}

#[test]
fn the_files_are_searched_in_order_and_never_in_the_working_directory() {
    let fixture = Fixture::new();
    let named = |agent: &str| format!("default = \"{agent}\"\n");
    let choice = |fixture: &Fixture, explicit: Option<&Path>| {
        let loaded = fixture.load(explicit).unwrap();
        (loaded.config.default, loaded.file)
    };
    let system = fixture.write("etc/agents.toml", named("codex"));
    assert_eq!(choice(&fixture, None), ("codex".to_owned(), Some(system)));
    let user = fixture.write("home/.config/conductor/agents.toml", named("gemini"));
    assert_eq!(choice(&fixture, None), ("gemini".to_owned(), Some(user)));
    let xdg = fixture.write("xdg/conductor/agents.toml", named("goose"));
    let explicit = fixture.write("mine.toml", named("qwen"));
    let xdg_home = fixture.root.path().join("xdg");
    let fixture = fixture.var("XDG_CONFIG_HOME", xdg_home.to_str().unwrap());
    assert_eq!(choice(&fixture, None), ("goose".to_owned(), Some(xdg)));
    assert_eq!(choice(&fixture, Some(&explicit)), ("qwen".to_owned(), Some(explicit.clone())));

    assert_eq!(choice(&fixture, Some(Path::new(""))), choice(&fixture, None));

    // The package's directory, where tests run, must not matter.
    for relative in ["", ".", "../conductor"] {
        let fixture = Fixture::new().var("XDG_CONFIG_HOME", relative);
        assert_eq!(choice(&fixture, None), ("demo".to_owned(), None));
    }
}

#[test]
fn a_file_overlays_the_defaults_key_by_key() {
    let config = Fixture::new()
        .text("[agents.claude]\nwarm = 2\nlabels = { team = \"x\" }\n[service]\nparallel_spawns = 9\n")
        .unwrap();
    let claude = &config.agents["claude"];
    assert_eq!(claude.warm, 2);
    assert_eq!(claude.command, "claude-agent-acp");
    assert_eq!(claude.labels.keys().collect::<Vec<_>>(), ["team", "vendor"]);
    assert_eq!(config.service.parallel_spawns, 9);
    assert_eq!(config.service.max_connections, 1024);
    // Lists are replaced.
    let config = Fixture::new().text("roots = [\"/srv\"]\n[agents.gemini]\nargs = []\n").unwrap();
    assert_eq!(config.roots, [Path::new("/srv")]);
    assert!(config.agents["gemini"].args.is_empty());
}

#[test]
fn f01_empty_files_are_fine() {
    for text in ["", "\n", "# nothing\n", "\u{feff}", "\u{feff}default = \"claude\"\r\n"] {
        Fixture::new().text(text).unwrap();
    }
}

#[test]
fn a_tilde_is_the_home_directory() {
    let fixture = Fixture::new();
    let home = fixture.root.path().join("home");
    let config = fixture
        .text(
            "roots = [\"~\", \"~/\", \"~/src\"]\n[agents.demo]\ncommand = \"~/bin/x\"\ncwd = \"~/a\"\n\
             roots = [\"~/b\"]\nwarm_keys = [\"~/c\"]\nfiles = { d = \"~/e\" }\nargs = [\"~/kept\"]\n",
        )
        .unwrap();
    let demo = &config.agents["demo"];
    assert_eq!(config.roots, [home.clone(), home.clone(), home.join("src")]);
    assert_eq!(Path::new(&demo.command), home.join("bin/x"));
    assert_eq!(demo.cwd, Some(home.join("a")));
    assert_eq!(demo.roots, Some(vec![home.join("b")]));
    assert_eq!(demo.warm_keys, [home.join("c")]);
    assert_eq!(demo.files[Path::new("d")], home.join("e"));
    assert_eq!(demo.args, ["~/kept"]);
}

#[test]
fn variables_overlay_the_file() {
    let config = Fixture::new()
        .var("CONDUCTOR_DEFAULT", "claude")
        .var("CONDUCTOR_SERVICE__LISTEN", "127.0.0.1:0")
        .var("CONDUCTOR_SERVICE__MAX_CONNECTIONS", "7")
        .var("CONDUCTOR_ROOTS", "[\"/srv\"]")
        .var("CONDUCTOR_AGENTS__CLAUDE__ENABLED", "true")
        .var("CONDUCTOR_AGENTS__CLAUDE__ENV__My__Port", "8080")
        .var("CONDUCTOR_AGENTS__CLAUDE__LABELS__TEAM", "5")
        .var("CONDUCTOR_AGENTS__CLAUDE__RESTART__WITHIN", "1m")
        .var("CONDUCTOR_AGENTS__CLAUDE__TITLE", "[1]")
        .var("CONDUCTOR_AGENTS__MY_AGENT__WARM", "3")
        .var("CONDUCTOR_AGENTS__NEW__ARGS", "[\"acp\"]")
        .var("CONDUCTOR_AGENTS__NEW__COMMAND", "new")
        .var("PATH", "/bin")
        .text("default = \"codex\"\n[service]\nmax_connections = 3\n[agents.my-agent]\ncommand = \"x\"\n")
        .unwrap();
    assert_eq!(config.default, "claude");
    assert_eq!(config.service.listen.port(), 0);
    assert_eq!(config.service.max_connections, 7);
    assert_eq!(config.roots, [Path::new("/srv")]);
    let claude = &config.agents["claude"];
    assert_eq!(claude.env["My__Port"], "8080");
    assert_eq!(claude.labels["team"], "5");
    assert_eq!(claude.title.as_deref(), Some("[1]"));
    assert_eq!(claude.restart.within, Duration::from_secs(60));
    assert_eq!(claude.restart.intensity, 5);
    assert_eq!(config.agents["my-agent"].warm, 3);
    assert_eq!(config.agents["new"].args, ["acp"]);
}

#[test]
fn a_variable_can_complete_what_the_file_began() {
    let fixture = Fixture::new().var("CONDUCTOR_AGENTS__X__COMMAND", "x");
    assert_eq!(fixture.text("[agents.x]\nwarm = 2\n").unwrap().agents["x"].command, "x");
}

#[test]
fn other_variables_of_ours_are_not_keys() {
    let mut fixture = Fixture::new();
    for name in [
        "STATE_DIR",
        "CONFIG",
        "ENDPOINT",
        "TOKEN",
        "PROCESS",
        "DATABASE_URL",
        "CA_FILE",
        "CLIENT_CERT",
        "CLIENT_KEY",
    ] {
        fixture = fixture.var(&format!("CONDUCTOR_{name}"), "x");
    }
    fixture.load(None).unwrap();
}

#[test]
fn values_of_env_are_never_shown() {
    let text = "[agents.claude]\nenv = { API_KEY = \"hunter2\" }\n";
    let config = Fixture::new().text(text).unwrap();
    let shown = format!("{config:?} {config:#?}");
    assert!(shown.contains("API_KEY") && !shown.contains("hunter2"), "{shown}");
    let refused = Fixture::new().refusal("[agents.claude]\nenv = { API_KEY = 31337 }\n");
    assert!(refused.contains("API_KEY") && !refused.contains("31337"), "{refused}");
}
