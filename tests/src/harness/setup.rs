//! What a test's service is given before it starts: agents, configuration, rules, and as whom
//! and where it runs.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, OpenOptions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use super::{Service, TAG, program};
use crate::user::User;

/// Processes and threads that somebody without rights may have beyond all those of this host.
const NET: u64 = 3000;

/// What is set up before the service starts.
pub struct Builder {
    config: Value,
    dir: PathBuf,
    tag: String,
    env: BTreeMap<String, String>,
    listen: String,
    without_rights: bool,
    within: Option<PathBuf>,
}

/// A service whose default agent is the fake agent with this script.
pub fn service(script: &Value) -> Builder {
    let tag = uuid::Uuid::now_v7().to_string();
    let dir = env::temp_dir().join(format!("conductor-test-{tag}"));
    for name in ["home", "work", "other", "ledger", "store"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    // Most tests are about something else than the policy.
    fs::write(dir.join("policy.toml"), "use = ['trusted']\n").unwrap();
    let defaults: Value = toml::from_str(conductor::config::DEFAULTS).unwrap();
    let built_in = defaults["agents"].as_object().unwrap();
    let config = json!({
        "default": "fake",
        "policy": { "file": dir.join("policy.toml") },
        "roots": [dir.join("work"), dir.join("other")],
        "service": { "drain_timeout": "2s", "cancel_grace": "5s", "stall_timeout": "5s" },
        // Nor is an agent asked what it offers that no test is about.
        "agents": built_in.keys().map(|name| (name.clone(), json!({ "warm": 0 }))).collect::<Value>(),
    });
    let listen = "127.0.0.1:0".to_owned();
    Builder { config, dir, tag, env: BTreeMap::new(), listen, without_rights: false, within: None }
        .agent("fake", script)
}

impl Builder {
    /// Adds an agent: the fake one with this script.
    #[must_use]
    pub fn agent(mut self, name: &str, script: &Value) -> Self {
        fs::create_dir_all(self.dir.join("ledger").join(name)).unwrap();
        fs::create_dir_all(self.dir.join("store").join(name)).unwrap();
        self.config["agents"][name] = json!({
            "command": program("fake-agent"),
            // Spares would blur what tests count; the tests of the pool ask for them.
            "warm": 0,
            "env": {
                TAG: self.tag,
                "FAKE_AGENT_SCRIPT": script.to_string(),
                "FAKE_AGENT_LEDGER": self.dir.join("ledger").join(name),
                "FAKE_AGENT_STORE": self.dir.join("store").join(name),
            },
        });
        self
    }

    /// Makes a program that nobody here wrote the default agent, as `peer`.
    #[must_use]
    pub fn peer(self, command: &Path, args: &[&Path]) -> Self {
        let env = json!({ TAG: self.tag });
        let agent = json!({ "command": command, "args": args, "warm": 0, "env": env });
        self.set("agents.peer", agent).set("default", "peer")
    }

    /// Makes the demo agent the only one.
    #[must_use]
    pub fn demo(self) -> Self {
        let env = json!({ TAG: self.tag });
        let demo = json!({ "warm": 0, "env": env });
        self.set("agents.demo", demo).set("agents.fake.enabled", false).set("default", "demo")
    }

    /// Sets a key of the configuration, for example `service.cancel_grace`.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Self {
        set(&mut self.config, path, value.into());
        self
    }

    /// Has the service judge by these rules.
    #[must_use]
    pub fn rules(self, rules: &str) -> Self {
        fs::write(self.dir.join("policy.toml"), rules).unwrap();
        self
    }

    /// Sets a variable of the service's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Has the service listen elsewhere than on loopback alone.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        address.clone_into(&mut self.listen);
        self
    }

    /// Has the service, its agents and its commands run as somebody without rights, whoever
    /// runs the test. All that is in its directory by now will be theirs.
    #[must_use]
    pub fn without_rights(mut self) -> Self {
        self.without_rights = true;
        self
    }

    /// Has the service start in a control group, which will be its user's. Only root can do
    /// that.
    #[must_use]
    pub fn within(mut self, group: &Path) -> Self {
        self.within = Some(group.to_path_buf());
        self
    }

    /// Directory that scripts may name.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts the service and waits until it is ready.
    pub fn start(self) -> Service {
        let Self { mut config, dir, tag, env, listen, without_rights, within } = self;
        let user = without_rights.then(User::without_rights).flatten();
        if let Some(user) = user {
            user.give(&dir);
            let (fake, reachable) =
                (json!(program("fake-agent")), json!(reachable("fake-agent", &dir, Some(user))));
            let agents = config["agents"].as_object_mut().unwrap().values_mut();
            agents
                .filter(|agent| agent["command"] == fake)
                .for_each(|agent| agent["command"] = reachable.clone());
        }
        let file = dir.join("agents.toml");
        fs::write(&file, toml::to_string(&config).unwrap()).unwrap();
        // It may hold secrets.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some(user) = user {
            user.give(&file);
        }
        if let (Some(user), Some(group)) = (user, &within) {
            user.give(group);
        }
        let child = serve(&dir, &tag, &env, &listen, without_rights, within.as_deref(), user);
        let mut service = Service {
            child,
            dir,
            tag,
            config,
            env,
            listen,
            without_rights,
            within,
            user,
            stopped: None,
            kept: false,
        };
        service.wait_ready();
        service
    }
}

/// Path by which the user of a service can run a program that cargo built.
pub(super) fn reachable(name: &str, dir: &Path, user: Option<User>) -> PathBuf {
    let built = program(name);
    // A place of its own: an agent may read whatever is installed with it.
    user.map_or(built.clone(), |user| user.reach(&built, &dir.join("programs/bin")))
}

/// A command that can have no more processes and threads than this host can bear, whatever it
/// starts: a net beneath agents that fork without end.
fn above_net(program: &Path) -> Command {
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let tasks = load.split_whitespace().nth(3).and_then(|tasks| tasks.split_once('/')).unwrap().1;
    let most = tasks.parse::<u64>().unwrap() + NET;
    // Somebody's own limit may be lower, and is not raised.
    let most = getrlimit(Resource::Nproc).maximum.map_or(most, |own| own.min(most));
    // By its whole path: what a test has as PATH may lead nowhere.
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|place| place.join("prlimit"));
    let mut command = Command::new(places.find(|place| place.exists()).expect("the tests need `prlimit`"));
    command.arg(format!("--nproc={most}:{most}")).arg(program);
    command
}

/// A command that enters a control group, and then runs as somebody else: what the group is in
/// is not theirs.
fn entering(group: &Path, program: &Path, user: Option<User>) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo 0 > \"$0\" && exec \"$@\""]).arg(group.join("cgroup.procs"));
    command.args(user.iter().flat_map(|user| user.becoming())).arg(program);
    command
}

pub(super) fn serve(
    dir: &Path,
    tag: &str,
    env: &BTreeMap<String, String>,
    listen: &str,
    without_rights: bool,
    within: Option<&Path>,
    user: Option<User>,
) -> Child {
    let output = |name| OpenOptions::new().create(true).append(true).open(dir.join(name)).unwrap();
    let program = reachable("conductor", dir, user);
    let mut command = match within {
        Some(group) => entering(group, &program, user),
        None if without_rights => above_net(&program),
        None => Command::new(program),
    };
    command.arg("serve").arg("--config").arg(dir.join("agents.toml")).args(["--listen", listen]);
    clean(&mut command, dir, tag, env, user.filter(|_| within.is_none()));
    command.stdin(Stdio::null()).stdout(output("serve.out")).stderr(output("serve.log")).spawn().unwrap()
}

pub(super) fn set(config: &mut Value, path: &str, value: Value) {
    let mut place = config;
    for key in path.split('.') {
        place = &mut place[key];
    }
    *place = value;
}

/// Nothing of the machine's own configuration may reach a test.
pub(super) fn clean(
    command: &mut Command,
    dir: &Path,
    tag: &str,
    env: &BTreeMap<String, String>,
    user: Option<User>,
) {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CONDUCTOR_") || text.starts_with("XDG_") || text == "RUST_LOG" {
            command.env_remove(&name);
        }
    }
    command.env("HOME", dir.join("home")).env("CONDUCTOR_STATE_DIR", dir.join("state")).env(TAG, tag);
    command.envs(env).current_dir(dir.join("home"));
    if let Some(user) = user {
        user.run(command);
    }
}
