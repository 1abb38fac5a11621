//! Ways to what is not the agent's: files, processes, sockets, the network, the kernel.

use std::{
    fs,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::{PermissionsExt as _, symlink},
            net::{SocketAddr, UnixListener},
        },
    },
    path::Path,
};

use conductor_tests::{
    fake::syscall::{CALLS, DELAYS, landlock},
    harness::Service,
};
use serde_json::{Value, json};

use crate::{
    Cell, Outcome, SECRET, Sandbox, UNIX_SOCKETS_SINCE, Who, all_refused, all_well, files, has, world,
};

/// Everything one can do to a file of somebody else's, with a place of one's own to take it to.
fn grasps(file: &Path, own: &Path) -> Vec<Value> {
    let beside = file.with_file_name("planted");
    vec![
        json!({ "read": file }),
        json!({ "open": file }),
        json!({ "list": file.parent().unwrap() }),
        json!({ "write": file }),
        json!({ "write": beside }),
        json!({ "make_dir": beside }),
        json!({ "symlink": ["/etc/passwd", beside] }),
        json!({ "truncate": file }),
        json!({ "hard_link": [file, own.join("linked")] }),
        json!({ "rename": [file, own.join("moved")] }),
        json!({ "remove": file }),
        json!({ "run": file }),
        json!({ "read": format!("/proc/self/root{}", file.display()) }),
        json!({ "read": format!("/proc/thread-self/root{}", file.display()) }),
        // By a link that the agent may well make, but that leads nowhere for it.
        json!({ "read": own.join("out").join(file.strip_prefix("/").unwrap()) }),
    ]
}

/// An agent's own root, with a way out of it that only looks like one.
fn cell(service: &Service) -> Cell {
    let mine = Cell::mine(service);
    symlink("/", mine.root.join("out")).unwrap();
    mine
}

/// What an agent does all day in its own places, which must go well.
fn daily_work(service: &Service, mine: &mut Cell, who: Who) {
    let root = mine.root.clone();
    fs::copy("/bin/true", root.join("built")).unwrap();
    service.give(&root.join("built"));
    let mut work = vec![
        json!({ "read": root.join("file") }),
        json!({ "list": root }),
        json!({ "write": root.join("file") }),
        json!({ "write": root.join("new") }),
        json!({ "make_dir": root.join("directory") }),
        json!({ "rename": [root.join("new"), root.join("directory/renamed")] }),
        json!({ "hard_link": [root.join("file"), root.join("directory/second")] }),
        json!({ "symlink": ["file", root.join("link")] }),
        json!({ "read": root.join("link") }),
        json!({ "truncate": root.join("directory/renamed") }),
        json!({ "remove": root.join("directory/renamed") }),
        json!({ "run": root.join("built") }),
        json!({ "run": "/bin/true" }),
        json!({ "read": "/etc/passwd" }),
        json!({ "read": "/proc/self/environ" }),
        json!({ "open": "/dev/null" }),
        json!({ "write": "/dev/null" }),
    ];
    for name in ["HOME", "TMPDIR"] {
        let place = mine.tries_by(service, who, &json!([{ "variable": name }])).remove(0).unwrap();
        let place = place.as_str().unwrap_or_else(|| panic!("there is no {name}")).to_owned();
        assert!(!Path::new(&place).starts_with(service.dir.join("home")), "{name} is the user's: {place}");
        assert_ne!(place, "/tmp", "{name} is everybody's");
        work.push(json!({ "write": Path::new(&place).join("mine") }));
        work.push(json!({ "read": Path::new(&place).join("mine") }));
    }
    let work = json!(work);
    all_well(&work, &mine.tries_by(service, who, &work));
}

/// The state of the service, the roots of other sessions, the user's home: none of it.
pub fn files_of_others(who: Who) {
    let service = world(Sandbox::Required).start();
    let (mut mine, mut theirs) = (cell(&service), Cell::theirs(&service));
    let home = service.dir.join("home/.ssh/id_ed25519");
    fs::create_dir_all(home.parent().unwrap()).unwrap();
    fs::write(&home, SECRET).unwrap();
    service.give(&service.dir.join("home"));

    // The agent's own home is among the state, and is its own.
    let state = files(&service.state(), &service.state().join("homes"));
    let named = |name: &str| state.iter().any(|path| path.to_string_lossy().contains(name));
    assert!(named("/token") && named("/journal/") && named("ledger"), "{state:?}");
    let mut wanted = state.clone();
    wanted.extend([theirs.root.join("file"), home.clone(), service.dir.join("agents.toml")]);
    wanted.extend([service.dir.join("policy.toml"), service.dir.join("serve.log")]);
    let mut attempts: Vec<Value> = wanted.iter().flat_map(|file| grasps(file, &mine.root)).collect();
    let everybodys = service.dir.with_file_name("planted-by-a-contained-agent");
    attempts.extend([json!({ "write": everybodys }), json!({ "list": "/tmp" })]);
    let attempts = json!(attempts);
    all_refused(&attempts, &mine.tries_by(&service, who, &attempts));

    assert_eq!(fs::read_to_string(&home).unwrap(), SECRET);
    assert_eq!(fs::read_to_string(theirs.root.join("file")).unwrap(), SECRET);
    assert_eq!(fs::read_dir(&theirs.root).unwrap().count(), 1, "nothing was planted");
    assert!(state.iter().filter(|path| path.ends_with("token")).all(|path| path.exists()));
    daily_work(&service, &mut mine, who);
    theirs.is_well();
}

/// Without a sandbox all of that is there to be had, or the test above proves nothing.
pub fn files_without_a_sandbox(who: Who) {
    let service = world(Sandbox::Off).start();
    let (mut mine, theirs) = (cell(&service), Cell::theirs(&service));
    let token = service.state().join("token");
    let file = theirs.root.join("file");
    let attempts = json!([
        { "read": token },
        { "read": file },
        { "write": file },
        { "write": theirs.root.join("planted") },
        { "hard_link": [file, mine.root.join("linked")] },
        { "read": format!("/proc/self/root{}", file.display()) },
        { "read": mine.root.join("out").join(file.strip_prefix("/").unwrap()) },
        { "list": service.state() },
    ]);
    let outcomes = mine.tries_by(&service, who, &attempts);
    all_well(&attempts, &outcomes);
    assert_eq!(outcomes[0].as_ref().unwrap().as_str().unwrap().trim(), service.token());
    assert_eq!(outcomes[1], Ok(json!(SECRET)));
}

#[test]
fn m04_state_other_roots_and_home_are_out_of_reach() {
    files_of_others(Who::Agent);
}

#[test]
fn m04_without_a_sandbox_they_are_within_reach() {
    files_without_a_sandbox(Who::Agent);
}

/// What `/proc` tells of a process to whoever may trace it.
fn looks(pid: i32) -> Vec<Value> {
    vec![
        json!({ "read": format!("/proc/{pid}/environ") }),
        json!({ "open": format!("/proc/{pid}/mem") }),
        json!({ "open": format!("/proc/{pid}/fd/0") }),
        json!({ "read": format!("/proc/{pid}/root/etc/passwd") }),
        json!({ "list": format!("/proc/{pid}/cwd/.") }),
        json!({ "list": format!("/proc/{pid}/map_files") }),
        json!({ "read_memory": pid }),
        json!({ "take_descriptor": pid }),
    ]
}

/// The service, the guards, and the agent of somebody else.
fn strangers(service: &Service, mine: &Cell, theirs: &Cell) -> [i32; 4] {
    [service.pid().cast_signed(), mine.guard, theirs.guard, theirs.agent]
}

/// Environments, memory and descriptors of the service, of guards and of other agents.
pub fn insides_of_others(who: Who) {
    let service = world(Sandbox::Required).env("SERVICE_SECRET", SECRET).start();
    let (mut mine, mut theirs) = (Cell::mine(&service), Cell::theirs(&service));
    let strangers = strangers(&service, &mine, &theirs);
    let attempts: Vec<Value> = strangers.into_iter().chain([1]).flat_map(looks).collect();
    let attempts = json!(attempts);
    all_refused(&attempts, &mine.tries_by(&service, who, &attempts));
    // Nor is anything of it handed to the agent.
    let own = mine.tries_by(
        &service,
        who,
        &json!([{ "variable": "SERVICE_SECRET" }, { "read": "/proc/self/environ" }]),
    );
    assert_eq!(own[0], Ok(Value::Null));
    assert!(own[1].is_ok(), "{own:?}");
    theirs.is_well();
}

#[test]
fn m04_environments_memory_and_descriptors_of_others_stay_theirs() {
    insides_of_others(Who::Agent);
}

#[test]
fn m04_without_a_sandbox_they_are_an_open_book() {
    let service = world(Sandbox::Off).start();
    let (mut mine, theirs) = (Cell::mine(&service), Cell::theirs(&service));
    for pid in strangers(&service, &mine, &theirs) {
        let outcomes = mine.tries(&json!([
            { "read": format!("/proc/{pid}/environ") },
            { "read": format!("/proc/{pid}/root/etc/passwd") },
            { "open": format!("/proc/{pid}/fd/0") },
        ]));
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    }
}

/// Signals to the service, to guards and to other agents.
pub fn signals(who: Who) {
    if !has("scope") {
        return;
    }
    let service = world(Sandbox::Required).start();
    let (mut mine, mut theirs) = (Cell::mine(&service), Cell::theirs(&service));
    let ways = |pid: i32| {
        let (group, all) = (json!({ "signal": [-pid, 9] }), json!({ "signal": [pid, 0] }));
        [json!({ "signal": [pid, 9] }), json!({ "signal": [pid, 19] }), group, all]
            .into_iter()
            .chain([json!({ "signal_by_descriptor": [pid, 9] })])
    };
    let strangers = strangers(&service, &mine, &theirs);
    let attempts: Vec<Value> = strangers.into_iter().flat_map(ways).collect();
    let outcomes = mine.tries_by(&service, who, &json!(attempts));
    for (attempt, outcome) in attempts.iter().zip(&outcomes) {
        // Not every process leads a group.
        assert!(
            matches!(outcome, Err(error) if ["EPERM", "ESRCH"].contains(&error.as_str())),
            "{attempt}: {outcome:?}"
        );
    }
    // Everybody at once, which spares only who asks.
    let _ = mine.tries_by(&service, who, &json!([{ "signal": [-1, 9] }]));
    assert!(strangers.into_iter().all(crate::runs), "somebody died of it");
    theirs.is_well();
}

#[test]
fn m05_signals_to_others_are_refused() {
    signals(Who::Agent);
}

/// A debugger attached to the service, to guards and to other agents.
pub fn tracing(who: Who) {
    let service = world(Sandbox::Required).start();
    let (mut mine, mut theirs) = (Cell::mine(&service), Cell::theirs(&service));
    let ways = |pid: i32| [json!({ "trace": pid }), json!({ "seize": pid })];
    let attempts: Vec<Value> = strangers(&service, &mine, &theirs).into_iter().flat_map(ways).collect();
    let attempts = json!(attempts);
    all_refused(&attempts, &mine.tries_by(&service, who, &attempts));
    theirs.is_well();
}

#[test]
fn m05_nobody_can_be_traced() {
    tracing(Who::Agent);
}

/// What needs no tracing and no signal: a process of the same user can be starved by its limits
/// and by its place among those that wait for a processor.
pub fn starving(who: Who) {
    let service = world(Sandbox::Required).start();
    let (mut mine, mut theirs) = (Cell::mine(&service), Cell::theirs(&service));
    let delays = |pid: i32| DELAYS.iter().map(move |how| json!({ "slow_other": [pid, how] }));
    let ways = |pid: i32| delays(pid).chain([json!({ "limit_other": pid })]);
    let attempts: Vec<Value> = strangers(&service, &mine, &theirs).into_iter().flat_map(ways).collect();
    let attempts = json!(attempts);
    all_refused(&attempts, &mine.tries_by(&service, who, &attempts));
    theirs.is_well();
}

#[test]
fn m05_nobody_can_be_starved() {
    starving(Who::Agent);
}

#[test]
fn m05_without_a_sandbox_others_can_be_signalled_and_starved() {
    let service = world(Sandbox::Off).start();
    let (mut mine, theirs) = (Cell::mine(&service), Cell::theirs(&service));
    let mut attempts = vec![
        json!({ "signal": [service.pid(), 0] }),
        json!({ "signal": [mine.guard, 0] }),
        json!({ "signal": [theirs.agent, 0] }),
    ];
    attempts.extend(DELAYS.iter().map(|how| json!({ "slow_other": [theirs.agent, how] })));
    attempts.push(json!({ "limit_other": theirs.agent }));
    attempts.push(json!({ "signal_by_descriptor": [theirs.agent, 9] }));
    let attempts = json!(attempts);
    all_well(&attempts, &mine.tries(&attempts));
}

/// Calls that no agent needs are refused by a filter, not for want of a right.
pub fn calls(who: Who) {
    let names = || CALLS.iter().map(|call| call.name);
    let attempts: Value = names().map(|name| json!({ "call": name })).collect();
    let tried = |sandbox: Sandbox| -> Vec<Outcome> {
        let service = world(sandbox).start();
        Cell::mine(&service).tries_by(&service, who, &attempts)
    };
    let forbidden = |outcome: &Outcome| matches!(outcome, Err(error) if ["EPERM", "EACCES", "ENOSYS", "SIGSYS"].contains(&error.as_str()));
    let contained = tried(Sandbox::Required);
    let passed: Vec<_> = names().zip(&contained).filter(|(_, outcome)| !forbidden(outcome)).collect();
    assert!(passed.is_empty(), "not forbidden: {passed:?}");
    let free = tried(Sandbox::Off);
    for (call, outcome) in CALLS.iter().zip(&free).filter(|(call, _)| call.is_telling) {
        assert!(!matches!(outcome, Err(error) if error == "EPERM"), "{}: {outcome:?}", call.name);
    }
}

#[test]
fn m05_calls_that_no_agent_needs_are_forbidden() {
    calls(Who::Agent);
}

/// Only the ports that are named can be reached, by whichever road, and nobody can be waited for.
pub fn network(who: Who) {
    if !has("network") {
        return;
    }
    let (allowed, database) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (allowed, database) = (allowed.local_addr().unwrap(), database.local_addr().unwrap());
    let layers = ["landlock", "seccomp", "network"];
    let service = world(Sandbox::Required)
        .set("agents.fake.sandbox_layers", layers.as_slice())
        .set("agents.fake.reach.network", json!([allowed.port()]))
        .start();
    let mut mine = Cell::mine(&service);
    let grpc = service.endpoint().replace("http://", "");
    let attempts = json!([
        { "connect": database },
        { "connect_multipath": database },
        { "connect_fast": database },
        { "connect": format!("[::1]:{}", database.port()) },
        { "connect": format!("[::ffff:127.0.0.1]:{}", database.port()) },
        { "connect": grpc },
        { "connect_multipath": grpc },
        { "connect_fast": grpc },
        // Where clouds keep credentials.
        { "connect": "169.254.169.254:80" },
        { "bind": 0 },
        { "bind": allowed.port() },
        "listen",
    ]);
    all_refused(&attempts, &mine.tries_by(&service, who, &attempts));
    let attempts = json!([{ "connect": allowed }]);
    all_well(&attempts, &mine.tries_by(&service, who, &attempts));
}

#[test]
fn m06_only_the_named_ports_can_be_reached() {
    network(Who::Agent);
}

#[test]
fn m06_an_open_network_is_open() {
    let database = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = database.local_addr().unwrap();
    for sandbox in [Sandbox::Off, Sandbox::Required] {
        let service = match sandbox {
            Sandbox::Off => world(sandbox).start(),
            Sandbox::Required => world(sandbox).set("agents.fake.reach.network", "open").start(),
        };
        let mut mine = Cell::mine(&service);
        let attempts = json!([{ "connect": address }, { "connect_fast": address }, { "bind": 0 }, "listen"]);
        all_well(&attempts, &mine.tries(&attempts));
    }
}

#[test]
fn m06_no_credentials_are_in_its_environment() {
    let service = world(Sandbox::Required)
        .env("PGPASSWORD", SECRET)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("SSH_AUTH_SOCK", "/run/agent.sock")
        .start();
    let mut mine = Cell::mine(&service);
    for who in [Who::Agent, Who::Terminal] {
        let names = ["PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "CONDUCTOR_TOKEN"];
        let attempts = names.map(|name| json!({ "variable": name }));
        let outcomes = mine.tries_by(&service, who, &json!(attempts));
        assert!(outcomes.iter().all(|outcome| *outcome == Ok(Value::Null)), "{who:?}: {outcomes:?}");
    }
}

/// Sockets of others on this host: those with a name in no directory, and those with a path.
#[allow(clippy::print_stderr, reason = "whoever reads why a part of a test did nothing")]
pub fn sockets(who: Who) {
    if !has("scope") {
        return;
    }
    let service = world(Sandbox::Required).start();
    let (mut mine, theirs) = (Cell::mine(&service), Cell::theirs(&service));
    let name = format!("conductor-test-{}", uuid::Uuid::now_v7());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let path = theirs.root.join("socket");
    let _path = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let attempts = json!([{ "connect_unix": format!("@{name}") }]);
    all_refused(&attempts, &mine.tries_by(&service, who, &attempts));
    let attempts = json!([{ "connect_unix": path }]);
    let outcomes = mine.tries_by(&service, who, &attempts);
    if landlock() >= UNIX_SOCKETS_SINCE {
        all_refused(&attempts, &outcomes);
    } else {
        eprintln!("not judged: this kernel's Landlock does not know of sockets with a path: {outcomes:?}");
    }
}

#[test]
fn m04_sockets_of_others_are_refused() {
    sockets(Who::Agent);
}

#[test]
fn m04_without_a_sandbox_sockets_of_others_are_open() {
    let service = world(Sandbox::Off).start();
    let mut mine = Cell::mine(&service);
    let name = format!("conductor-test-{}", uuid::Uuid::now_v7());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let attempts = json!([{ "connect_unix": format!("@{name}") }]);
    all_well(&attempts, &mine.tries(&attempts));
}
