//! Each user with their own agents: secrets, homes and names of commits reach the
//! processes of their user, and nothing else of ours ever holds them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use conductor_tests::{
    admin::{wait_metric, watched},
    editor::{DEADLINE, Editor},
    files::files,
    harness::{Builder, Service, assert_says, poll_until, program, service},
    mount::Mount,
    people::Person,
};
use serde_json::{Value, json};

/// Values that must be found nowhere but where they belong.
const OF_ANN: &str = "canary-of-ann-5f1c";
const OF_BOB: &str = "canary-of-bob-77ae";
const OF_TEAM: &str = "canary-of-web-c01d";

/// Puts a secret into the directory of a test.
fn put(dir: &Path, path: &str, value: &str, mode: u32) {
    let path = dir.join("secrets").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, value).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A service whose agent gets secrets of users from a directory.
fn with_secrets(script: &Value) -> Builder {
    let builder = service(script);
    let dir = builder.dir().to_path_buf();
    put(&dir, "users/ann/fake/env/API_KEY", OF_ANN, 0o600);
    put(&dir, "users/bob/fake/env/API_KEY", OF_BOB, 0o600);
    put(&dir, "teams/web/fake/env/TEAM_KEY", OF_TEAM, 0o640);
    builder
        .set("secrets.dir", dir.join("secrets").to_str().unwrap())
        .set("agents.fake.secrets", "required")
        .set("agents.fake.home", "user")
}

/// The environment of every process of this test, by its id.
fn environments(service: &Service) -> BTreeMap<u32, Vec<String>> {
    let read = |pid: u32| {
        let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    };
    let all = service.processes().into_iter().map(|running| running.pid).chain([service.pid()]);
    all.map(|pid| (pid, read(pid))).collect()
}

/// The processes that have a value in their environment.
fn holders(service: &Service, value: &str) -> Vec<u32> {
    let has = |env: &Vec<String>| env.iter().any(|variable| variable.contains(value));
    environments(service).into_iter().filter(|(_, env)| has(env)).map(|(pid, _)| pid).collect()
}

/// A variable of a process.
fn variable(service: &Service, pid: u32, name: &str) -> Option<String> {
    let env = environments(service).remove(&pid)?;
    env.iter().find_map(|variable| Some(variable.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// The agent of somebody's session, found by its answer to a prompt.
fn agent_pid(service: &Service, editor: &mut Editor, session: &str) -> u32 {
    let mark = service.dir.join(format!("mark-{}", uuid::Uuid::now_v7()));
    editor.turn_do(session, &json!([{ "touch": mark }]));
    let pids = service.agents_alive();
    // The fake agent names its sessions after its process.
    let entry = service.wait_received("fake", "the prompt", |entry| {
        entry.method().as_deref() == Some("session/prompt")
            && entry.text.as_deref().is_some_and(|text| text.contains(mark.to_str().unwrap()))
    });
    let named = entry.json().unwrap()["params"]["sessionId"].as_str().unwrap().to_owned();
    let pid = named.split('-').nth(2).unwrap().parse().unwrap();
    assert!(pids.contains(&pid), "{pid} is not among {pids:?}");
    pid
}

/// No canary is in a command line, a log, the journal, the ledger or any other file.
fn nothing_leaked(service: &Service) {
    let canaries = [OF_ANN, OF_BOB, OF_TEAM];
    for running in service.processes() {
        for canary in canaries {
            assert!(!running.command.contains(canary), "in a command line: {running:?}");
        }
    }
    let found = files(&service.dir, &[service.dir.join("secrets")]);
    assert!(
        found.iter().any(|path| path.starts_with(service.state().join("journal"))),
        "no journal was read"
    );
    for path in found {
        let bytes = fs::read(&path).unwrap_or_default();
        for canary in canaries {
            let is_there = memchr::memmem::find(&bytes, canary.as_bytes()).is_some();
            assert!(!is_there, "{canary} is in {}", path.display());
        }
    }
}

#[test]
fn each_users_secrets_reach_only_their_own_processes() {
    let service = with_secrets(&json!({})).start();
    let ann = Person::new(&service, &["--user", "ann", "--team", "web"]);
    let bob = Person::named(&service, "bob");
    let (mut of_ann, mut of_bob) = (ann.editor(&service), bob.editor(&service));
    let (session_a, session_b) = (of_ann.new_session(&service.work()), of_bob.new_session(&service.work()));
    let pid_a = agent_pid(&service, &mut of_ann, &session_a);
    let pid_b = agent_pid(&service, &mut of_bob, &session_b);
    assert_ne!(pid_a, pid_b);
    assert_eq!(variable(&service, pid_a, "API_KEY").as_deref(), Some(OF_ANN));
    assert_eq!(variable(&service, pid_a, "TEAM_KEY").as_deref(), Some(OF_TEAM));
    assert_eq!(variable(&service, pid_b, "API_KEY").as_deref(), Some(OF_BOB));
    assert_eq!(variable(&service, pid_b, "TEAM_KEY"), None, "bob is in no team");
    // Besides each agent only its own guard has them: the parent of the process.
    for (value, pid) in [(OF_ANN, pid_a), (OF_TEAM, pid_a), (OF_BOB, pid_b)] {
        let holders = holders(&service, value);
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let parent: u32 =
            stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(
            holders.contains(&pid) && holders.iter().all(|holder| [pid, parent].contains(holder)),
            "{holders:?}"
        );
        assert!(!holders.contains(&service.pid()));
    }
    // Commands that an agent has us run get the user's home, and no secrets.
    let run = json!([{ "request": { "method": "terminal/create", "params": {
        "sessionId": "$sid", "command": "env > told", "env": [service.tag()],
    } } }]);
    of_ann.turn_do(&session_a, &run);
    let told = service.work().join("told");
    assert!(poll_until(DEADLINE, || fs::read_to_string(&told).is_ok_and(|text| text.contains("HOME="))));
    let told = fs::read_to_string(&told).unwrap();
    assert!(told.contains("/homes/@ann/fake\n") && !told.contains("canary"), "{told}");
    drop((of_ann, of_bob));
    service.wait_no_process("fake");
    let show = service.run(&["sessions", "export", &session_a]);
    assert!(!String::from_utf8_lossy(&show.stdout).contains("canary"));
    nothing_leaked(&service);
}

#[test]
fn homes_are_each_users_own_and_stay() {
    let mut service = with_secrets(&json!({})).start();
    let dir = service.dir.clone();
    put(&dir, "users/ann/fake/files/.config/token.json", "first", 0o400);
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let home = |user: &str| service_home(&dir, user);
    {
        let (mut of_ann, mut of_bob) = (ann.editor(&service), bob.editor(&service));
        let (session_a, session_b) =
            (of_ann.new_session(&service.work()), of_bob.new_session(&service.work()));
        let pid_a = agent_pid(&service, &mut of_ann, &session_a);
        let pid_b = agent_pid(&service, &mut of_bob, &session_b);
        assert_eq!(variable(&service, pid_a, "HOME").map(PathBuf::from), Some(home("ann")));
        assert_eq!(variable(&service, pid_b, "HOME").map(PathBuf::from), Some(home("bob")));
    }
    assert_eq!(fs::metadata(home("ann")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::read_to_string(home("ann").join(".config/token.json")).unwrap(), "first");
    assert!(!home("bob").join(".config").exists());
    fs::write(home("ann").join("remembered"), "x").unwrap();
    // The file is rotated, and later taken away, and the home stays across restarts.
    fs::remove_file(dir.join("secrets/users/ann/fake/files/.config/token.json")).unwrap();
    put(&dir, "users/ann/fake/files/.config/token.json", "second", 0o400);
    service.term();
    service.start_again();
    ann.editor(&service).new_session(&service.work());
    assert_eq!(fs::read_to_string(home("ann").join(".config/token.json")).unwrap(), "second");
    assert!(home("ann").join("remembered").exists());
    fs::remove_file(dir.join("secrets/users/ann/fake/files/.config/token.json")).unwrap();
    ann.editor(&service).new_session(&service.work());
    assert!(!home("ann").join(".config/token.json").exists(), "what is no secret any more is taken away");
    assert!(home("ann").join("remembered").exists());
}

#[test]
fn what_an_agent_leaves_in_its_home_leads_nowhere() {
    let builder = with_secrets(&json!({}));
    let dir = builder.dir().to_path_buf();
    fs::write(dir.join("settings.json"), "configured").unwrap();
    put(&dir, "users/ann/fake/files/.config/token.json", "secret", 0o400);
    let service =
        builder.set("agents.fake.files", json!({ ".fake/settings.json": dir.join("settings.json") })).start();
    let ann = Person::named(&service, "ann");
    ann.editor(&service).new_session(&service.work());
    service.wait_no_process("fake");
    let home = service_home(&dir, "ann");
    // The agent would have the service write, and later remove, what is another's.
    let victim = dir.join("victim");
    fs::create_dir(&victim).unwrap();
    for name in ["settings.json", "token.json"] {
        fs::write(victim.join(name), "mine").unwrap();
    }
    fs::remove_file(home.join(".fake/settings.json")).unwrap();
    std::os::unix::fs::symlink(victim.join("settings.json"), home.join(".fake/settings.json")).unwrap();
    ann.editor(&service).new_session(&service.work());
    assert_eq!(fs::read_to_string(home.join(".fake/settings.json")).unwrap(), "configured");
    service.wait_no_process("fake");
    fs::remove_dir_all(home.join(".config")).unwrap();
    std::os::unix::fs::symlink(&victim, home.join(".config")).unwrap();
    let new = json!({ "cwd": service.work(), "mcpServers": [] });
    let refused = ann.editor(&service).call_error("session/new", &new);
    assert_says(&refused, &[".config is a link, or no directory"]);
    fs::remove_file(dir.join("secrets/users/ann/fake/files/.config/token.json")).unwrap();
    let refused = ann.editor(&service).call_error("session/new", &new);
    assert_says(&refused, &["cannot take .config/token.json away"]);
    for name in ["settings.json", "token.json"] {
        assert_eq!(fs::read_to_string(victim.join(name)).unwrap(), "mine", "{name}");
    }
    fs::remove_file(home.join(".config")).unwrap();
    ann.editor(&service).new_session(&service.work());
}

fn service_home(dir: &Path, user: &str) -> PathBuf {
    dir.join("state/homes").join(format!("@{user}")).join("fake").canonicalize().unwrap()
}

#[test]
fn spares_and_restarts_never_mix_users() {
    let mut service = with_secrets(&json!({})).set("agents.fake.warm", 1).start();
    let people = [("ann", OF_ANN, OF_BOB), ("bob", OF_BOB, OF_ANN)];
    let people = people.map(|(user, own, other)| (Person::named(&service, user), own, other));
    let owner_spares = || holders(&service, "canary").len();
    assert_eq!(owner_spares(), 0, "nobody has used it, so nothing is started ahead");
    for round in 0..4 {
        for (person, own, other) in &people {
            let mut editor = person.editor(&service);
            let session = editor.new_session(&service.work());
            let pid = agent_pid(&service, &mut editor, &session);
            assert_eq!(variable(&service, pid, "API_KEY").as_deref(), Some(*own), "round {round}");
            assert!(!holders(&service, other).contains(&pid));
            // A spare for the next session of the same user appears.
            let has_spare = || {
                let pids = holders(&service, own);
                service.agents_alive().iter().filter(|pid| pids.contains(pid)).count() == 2
            };
            assert!(poll_until(DEADLINE, has_spare), "no spare: {:?}", service.agent_json("fake"));
        }
        if round == 1 {
            assert!(service.run(&["agents", "restart", "fake", "--force"]).status.success());
        }
        if round == 2 {
            service.term();
            service.start_again();
        }
    }
    // What a process told is one thing, what it holds is another: none holds both.
    let both = |env: &Vec<String>| [OF_ANN, OF_BOB].iter().all(|value| env.iter().any(|v| v.contains(value)));
    assert!(!environments(&service).values().any(both));
    nothing_leaked(&service);
}

#[test]
fn rotated_secrets_reach_the_next_process() {
    let service = with_secrets(&json!({})).set("agents.fake.warm", 1).start();
    let ann = Person::named(&service, "ann");
    let mut editor = ann.editor(&service);
    let first = editor.new_session(&service.work());
    assert!(
        poll_until(DEADLINE, || service.agents_alive().len() == 2),
        "a spare with the old value is there"
    );
    put(&service.dir, "users/ann/fake/env/API_KEY", "canary-of-ann-rotated", 0o600);
    let second = editor.new_session(&service.work());
    let pid = agent_pid(&service, &mut editor, &second);
    assert_eq!(variable(&service, pid, "API_KEY").as_deref(), Some("canary-of-ann-rotated"));
    // Who runs goes on with what they have.
    let pid = agent_pid(&service, &mut editor, &first);
    assert_eq!(variable(&service, pid, "API_KEY").as_deref(), Some(OF_ANN));
}

#[test]
fn one_users_trouble_with_secrets_is_theirs_alone() {
    let service = with_secrets(&json!({})).start();
    put(&service.dir, "users/bob/fake/env/API_KEY", OF_BOB, 0o644);
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let carl = Person::named(&service, "carl");
    let mut of_bob = bob.editor(&service);
    let new = json!({ "cwd": service.work(), "mcpServers": [] });
    for _ in 0..6 {
        let refused = of_bob.call_error("session/new", &new);
        assert_says(&refused, &["users/bob/fake/env/API_KEY may be read or changed by every user"]);
        assert_says(&refused, &["chmod o="]);
        assert!(!refused.to_string().contains("canary"));
    }
    let refused = carl.editor(&service).call_error("session/new", &new);
    assert_says(&refused, &["there are no secrets for user `carl`; put them into"]);
    // The agent is not quarantined for that.
    ann.editor(&service).new_session(&service.work());
    fs::remove_file(service.dir.join("secrets/users/bob/fake/env/API_KEY")).unwrap();
    put(&service.dir, "users/bob/fake/env/API_KEY", OF_BOB, 0o600);
    of_bob.new_session(&service.work());
    nothing_leaked(&service);
}

#[test]
fn secrets_come_from_their_directory_and_are_no_more_than_a_process_takes() {
    let service = with_secrets(&json!({})).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let secrets = service.dir.join("secrets");
    let env = secrets.join("users/ann/fake/env");
    let new = json!({ "cwd": service.work(), "mcpServers": [] });
    let mut editor = ann.editor(&service);
    let mut refused = || editor.call_error("session/new", &new);
    // Whatever the service itself can read stays where it is.
    let link = env.join("STOLEN");
    std::os::unix::fs::symlink(service.state().join("token"), &link).unwrap();
    let told = refused();
    assert_says(&told, &["users/ann/fake/env/STOLEN leads out of"]);
    assert!(!told.to_string().contains(&service.token()));
    fs::remove_file(link).unwrap();
    fs::set_permissions(secrets.join("users"), fs::Permissions::from_mode(0o777)).unwrap();
    assert_says(&refused(), &["secrets/users may be changed by every user of this host; chmod o-w"]);
    fs::set_permissions(secrets.join("users"), fs::Permissions::from_mode(0o755)).unwrap();
    // More than the kernel starts a program with is nobody's crash.
    for number in 0..40 {
        let size = if number == 7 { 60_000 } else { 50_000 };
        put(&service.dir, &format!("users/ann/fake/env/BIG_{number}"), &"x".repeat(size), 0o600);
    }
    for _ in 0..6 {
        assert_says(&refused(), &["a process can be given 512 kib; the largest is big_7 with 59 kib"]);
    }
    assert_eq!(service.agent_json("fake")["restarts"], 0);
    bob.editor(&service).new_session(&service.work());
    for number in 0..40 {
        fs::remove_file(env.join(format!("BIG_{number}"))).unwrap();
    }
    editor.new_session(&service.work());
    nothing_leaked(&service);
}

#[test]
fn a_place_of_secrets_that_hangs_holds_up_only_whose_they_are() {
    let builder = with_secrets(&json!({})).agent("plain", &json!({})).set("secrets.timeout", "500ms");
    let (mount, builder) = Mount::under(builder);
    let service = builder.start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let (mut of_ann, mut of_bob) = (ann.editor(&service), bob.editor(&service));
    mount.hang("/secrets/users/bob");
    let new = json!({ "cwd": service.work(), "mcpServers": [] });
    // More than there are turns of a user; each is told in time.
    let asked: Vec<Value> = (0..6).map(|_| of_bob.request("session/new", &new)).collect();
    of_ann.new_session(&service.work());
    for id in &asked {
        let refused = of_bob.error_of(id);
        assert_says(&refused, &["could not be read within 500ms", "secrets.timeout"]);
    }
    let mut plain = Editor::spawn(&mut bob.command(&service, &["connect", "--agent", "plain"]));
    plain.initialize();
    plain.new_session(&service.work());
    let listed = bob.run(&service, &["agents", "--json"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("could not be read within 500ms"), "{listed:?}");
    of_ann.new_session(&service.work());
    mount.hang("");
    of_bob.new_session(&service.work());
}

#[test]
fn stopping_does_not_wait_for_secrets() {
    let builder = with_secrets(&json!({})).set("secrets.timeout", "10m");
    let (mount, builder) = Mount::under(watched(builder));
    let mut service = builder.start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    // Bob's handshake needs a process of his own, and ann's session is looked for.
    let mut of_ann = ann.editor(&service);
    mount.hang("/secrets/users");
    let new = of_ann.request("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    let mut of_bob = Editor::spawn(&mut bob.command(&service, &["connect"]));
    let hello = of_bob.request("initialize", &json!({ "protocolVersion": 1 }));
    let starting = r#"conductor_processes{agent="fake",state="starting"}"#;
    wait_metric(&service, starting, |count| count == 1.0);
    assert_eq!((of_ann.answers_to(&new), of_bob.answers_to(&hello)), (0, 0));
    assert_eq!(service.term().code(), Some(0));
    assert!(!service.log().contains("did not end in time"), "{}", service.log());
}

/// A service whose agent gets its secrets from a program.
fn with_command(script: &str) -> Builder {
    let builder = service(&json!({}));
    let program = builder.dir().join("print-secrets");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    builder
        .set("secrets.command", json!([program, "--for-us"]))
        .set("secrets.timeout", "2s")
        .set("agents.fake.secrets", "optional")
}

#[test]
fn a_command_prints_secrets_for_whom_it_is_told() {
    let print = r#"printf '{"env":{"API_KEY":"%s-%s-%s-%s"}}' "$1" "$SECRETS_USER" "$SECRETS_TEAMS" "$SECRETS_AGENT""#;
    let service = with_command(print).start();
    let ann = Person::new(&service, &["--user", "ann", "--team", "web", "--team", "data"]);
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&service.work());
    let pid = agent_pid(&service, &mut editor, &session);
    assert_eq!(variable(&service, pid, "API_KEY").as_deref(), Some("--for-us-ann-data,web-fake"));
    assert_eq!(variable(&service, pid, "SECRETS_USER"), None, "only the program is told");
}

#[test]
fn the_list_of_agents_does_not_run_the_command_at_will() {
    let service =
        with_command(r#"echo "$SECRETS_USER" >> "$0.asked"; echo '{"env":{"API_KEY":"v"}}'"#).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    for person in [&ann, &bob, &ann, &ann, &bob] {
        let listed = person.run(&service, &["agents", "--json"]);
        assert!(String::from_utf8_lossy(&listed.stdout).contains("API_KEY"), "{listed:?}");
    }
    let asked = || fs::read_to_string(service.dir.join("print-secrets.asked")).unwrap();
    assert_eq!(asked(), "ann\nbob\n", "once for each");
    // A process is given what there is now.
    ann.editor(&service).new_session(&service.work());
    assert_eq!(asked(), "ann\nbob\nann\n");
}

#[test]
fn a_command_that_fails_floods_or_hangs_refuses_and_tells_nothing() {
    let cases = [
        (
            "echo '{\"env\":{\"API_KEY\":\"canary-of-ann\"}}'; echo canary-of-ann >&2; exit 3",
            "exited with status 3",
        ),
        ("echo canary-of-ann", "did not print what it should (line 1"),
        ("yes canary-of-ann", "printed more than 4 MiB"),
        ("sleep 3600 & echo canary-of-ann; wait", "did not end within 2s"),
        ("echo '{\"env\":{\"LD_PRELOAD\":\"canary-of-ann\"}}'", "LD_PRELOAD decides which programs run"),
        ("echo '{\"files\":{\"x\":\"canary-of-ann\"}}'", "agents.fake.home = \"user\""),
    ];
    for (script, told) in cases {
        let service = with_command(script).start();
        let ann = Person::named(&service, "ann");
        let mut editor = ann.editor(&service);
        let refused = editor.call_error("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
        assert_says(&refused, &[told]);
        assert!(!refused.to_string().contains("canary"), "{refused}");
        assert!(!service.log().contains("canary"), "{}", service.log());
        let gone = || service.processes().iter().all(|running| !running.command.contains("print-secrets"));
        assert!(poll_until(DEADLINE, gone), "{:?}", service.processes());
        drop(editor);
        for path in files(&service.dir, &[service.dir.join("print-secrets")]) {
            let bytes = fs::read(&path).unwrap_or_default();
            assert!(memchr::memmem::find(&bytes, b"canary").is_none(), "in {}", path.display());
        }
    }
}

#[test]
fn commits_of_agents_are_their_users() {
    let service = service(&json!({}))
        .set("git", json!({ "name": "{user}", "email": "{user}@example.com" }))
        .set("users.ann.git", json!({ "name": "Ann Example", "email": "ann@elsewhere.example" }))
        .set("agents.fake.warm", 1)
        .start();
    let commit =
        "git init -q . && git commit -q --allow-empty -m x && git log -1 --format='%an %ae %cn %ce' > who";
    for (user, wanted) in [
        ("ann", "Ann Example ann@elsewhere.example Ann Example ann@elsewhere.example\n"),
        ("bob", "bob bob@example.com bob bob@example.com\n"),
    ] {
        let person = Person::named(&service, user);
        let mut editor = person.editor(&service);
        let cwd = service.work().join(user);
        fs::create_dir(&cwd).unwrap();
        let session = editor.new_session(&cwd);
        let pid = agent_pid(&service, &mut editor, &session);
        let name = wanted.split(" ").next().unwrap();
        assert!(variable(&service, pid, "GIT_AUTHOR_NAME").unwrap().starts_with(name));
        editor.turn_do(
            &session,
            &json!([{ "request": { "method": "terminal/create", "params": {
                "sessionId": "$sid", "command": commit, "env": [service.tag()],
            } } }]),
        );
        let told = cwd.join("who");
        assert!(poll_until(DEADLINE, || fs::read_to_string(&told).is_ok_and(|text| text == wanted)));
    }
    // Even with the same directory, one user's spare is not another's.
    let people = ["ann", "bob"].map(|user| Person::named(&service, user));
    for person in people.iter().cycle().take(4) {
        person.editor(&service).new_session(&service.work());
    }
}

#[test]
fn agents_without_anything_of_users_are_shared_as_before() {
    let service = service(&json!({})).set("agents.fake.sessions_per_process", 4).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let (mut of_ann, mut of_bob) = (ann.editor(&service), bob.editor(&service));
    let (session_a, session_b) = (of_ann.new_session(&service.work()), of_bob.new_session(&service.work()));
    let pid_a = agent_pid(&service, &mut of_ann, &session_a);
    assert_eq!(pid_a, agent_pid(&service, &mut of_bob, &session_b));
    assert_eq!(variable(&service, pid_a, "GIT_AUTHOR_NAME"), None);
}

#[test]
fn shared_processes_are_each_users_own_once_something_is() {
    let service = with_secrets(&json!({})).set("agents.fake.sessions_per_process", 4).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let (mut of_ann, mut of_bob) = (ann.editor(&service), bob.editor(&service));
    let first = of_ann.new_session(&service.work());
    let second = of_ann.new_session(&service.work());
    let third = of_bob.new_session(&service.work());
    let pid = agent_pid(&service, &mut of_ann, &first);
    assert_eq!(pid, agent_pid(&service, &mut of_ann, &second));
    assert_ne!(pid, agent_pid(&service, &mut of_bob, &third));
}

#[test]
fn the_doctor_and_the_list_name_secrets_and_never_show_them() {
    let service = with_secrets(&json!({})).start();
    let ann = Person::named(&service, "ann");
    let listed = ann.run(&service, &["agents", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let fake = listed.as_array().unwrap().iter().find(|agent| agent["name"] == "fake").unwrap().clone();
    assert_eq!(fake["secrets"], json!(["API_KEY"]), "{fake}");
    let carl = Person::named(&service, "carl");
    let shown = carl.run(&service, &["agents"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("there are no secrets for user `carl`"), "{shown}");
    let me = String::from_utf8(std::process::Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    put(&service.dir, &format!("users/{}/fake/env/MY_KEY", me.trim()), OF_ANN, 0o600);
    let config = service.dir.join("agents.toml");
    let doctor = service.run(&["doctor", "--config", config.to_str().unwrap(), "--agent", "fake"]);
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.contains("your secrets: MY_KEY") && !doctor.contains("canary"), "{doctor}");
}

#[test]
#[allow(clippy::print_stderr, reason = "whoever reads why a test did nothing")]
fn secrets_that_an_orchestrator_mounts_are_read() {
    let mounts = std::process::Command::new("unshare").args(["--mount", "true"]).output();
    if !mounts.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user may not mount anything, not even where nobody else sees it");
        return;
    }
    let service = with_secrets(&json!({})).start();
    let me = conductor::identity::Caller::local().user;
    let env = service.dir.join(format!("secrets/users/{me}/fake/env"));
    fs::create_dir_all(&env).unwrap();
    // As kubelets do it: open to everybody, mounted read-only, and all of it links.
    let script = r#"
        set -e; place=$1; fix=$2; shift 2
        mount -t tmpfs -o mode=1777 none "$place"
        cd "$place"; mkdir ..2026; printf canary > ..2026/MY_KEY; chmod 440 ..2026/MY_KEY
        ln -s ..2026 ..data; ln -s ..data/MY_KEY MY_KEY; cd /
        [ "$fix" = no ] || mount -o remount,ro "$place"
        exec "$@""#;
    let look = |fix: &str| {
        let mut command = service.beside(Path::new("unshare"));
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&env).arg(fix);
        command.arg(program("conductor")).args(["doctor", "--agent", "fake", "--config"]);
        let output = command.arg(service.dir.join("agents.toml")).output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(!shown.contains("canary"), "{shown}");
        shown
    };
    let shown = look("yes");
    assert!(shown.contains("your secrets: MY_KEY"), "{shown}");
    let shown = look("no");
    assert!(shown.contains("may be changed by every user of this host"), "{shown}");
}

#[test]
fn one_users_crashes_quarantine_nobody_else() {
    let script = json!({ "start": [{ "exit_if_home_has": "broken" }] });
    let mut service = with_secrets(&script).set("agents.fake.restart.backoff", "1ms").start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let home = service.state().join("homes/@bob/fake");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("broken"), "").unwrap();
    let mut of_bob = bob.editor(&service);
    let new = json!({ "cwd": service.work(), "mcpServers": [] });
    let quarantined = (0..20).map(|_| of_bob.call_error("session/new", &new));
    let mut messages = quarantined.map(|error| error["message"].as_str().unwrap().to_owned());
    assert!(messages.any(|message| message.contains("agent `fake` is quarantined")), "never");
    ann.editor(&service).new_session(&service.work());
    let listed = service.agent_json("fake");
    assert_eq!(
        (&listed["state"], &listed["reason"]),
        (&json!("ready"), &json!("quarantined for 1 of its users alone"))
    );
    fs::remove_file(home.join("broken")).unwrap();
    assert!(service.run(&["agents", "restart", "fake"]).status.success());
    of_bob.new_session(&service.work());
    drop(of_bob);
    service.term();
}
