//! `conductor agents`: tables for people, JSON for machines, restarts.

use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::service::{PATIENCE, Service, finish, lines, read_until, signal};

/// Watches until no process of the agent serves a session.
pub fn wait_for_idle(service: &Service, name: &str) {
    wait_for(service, name, |agent| {
        agent["processes"].as_array().unwrap().iter().all(|process| process["sessions"] == 0)
    });
}

/// Watches until the agent is as wanted; gives it as it is then.
fn wait_for(service: &Service, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut watch = service.spawn(&["agents", "ls", "--watch", "--json"]);
    let changes = lines(watch.stdout.take().unwrap());
    let found = loop {
        let line = changes.recv_timeout(PATIENCE).expect("the agent never got there");
        let agents: Value = serde_json::from_str(&line).expect("one document per line");
        let agent = find(&agents, name).clone();
        if wanted(&agent) {
            break agent;
        }
    };
    watch.kill().unwrap();
    watch.wait().unwrap();
    found
}

fn find<'a>(agents: &'a Value, name: &str) -> &'a Value {
    agents.as_array().unwrap().iter().find(|agent| agent["name"] == name).unwrap()
}

#[test]
fn the_table_shows_what_runs() {
    let service = Service::start();
    let mut prompt = service.spawn(&["prompt", "slow 30"]);
    read_until(prompt.stdout.as_mut().unwrap(), "second 1 of 30\n");
    let done = service.run(&["agents"]);
    assert_eq!((done.code, &*done.stderr), (Some(0), ""));
    assert!(!done.stdout.contains('\x1b'), "no colours in a pipe");
    let rows: Vec<Vec<&str>> = done.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows[0],
        "NAME STATE PROCESSES SESSIONS WAITING RESTARTS VERSION LAST EXIT".split(' ').collect::<Vec<_>>()
    );
    let demo = rows.iter().position(|row| row[0] == "demo*").unwrap();
    assert_eq!(rows[demo][1..3], ["ready", "1"]);
    assert!(done.stdout.contains("1 leased"), "{}", done.stdout);
    assert_eq!(rows[demo + 1], ["PID", "STATE", "AGE", "SESSIONS", "SANDBOX", "CWD"]);
    let project = service.project().canonicalize().unwrap();
    let leased = rows.iter().find(|row| row.get(1) == Some(&"leased")).unwrap();
    assert!(leased[0].parse::<u32>().unwrap() > 1);
    assert_eq!(leased[3..], ["1", "off", project.to_str().unwrap()]);
    assert_eq!(service.run(&["agents", "ls"]).code, Some(0));
    signal(&prompt, Signal::SIGINT);
    prompt.wait().unwrap();
    wait_for_idle(&service, "demo");
}

#[test]
fn json_has_the_fields_of_the_proto() {
    let service = Service::with_agents("[agents.absent]\ncommand = \"no-such-program-anywhere\"\n");
    assert_eq!(service.run(&["prompt", "stream 1"]).code, Some(0));
    let done = service.run(&["agents", "--json"]);
    let agents: Value = serde_json::from_str(&done.stdout).unwrap();
    let demo = find(&agents, "demo");
    let fields: Vec<_> = demo.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        [
            "name",
            "title",
            "state",
            "reason",
            "command",
            "is_default",
            "processes",
            "restarts",
            "last_exit",
            "max",
            "max_per_user",
            "waiting",
            "labels",
            "version",
            "secrets",
            "secrets_problem"
        ]
    );
    assert_eq!((&demo["state"], &demo["is_default"]), (&"ready".into(), &true.into()));
    assert!(demo["restarts"].is_u64() && demo["max"].is_u64(), "{demo}");
    assert_eq!(demo["labels"]["vendor"], "conductor");
    let absent = find(&agents, "absent");
    assert_eq!(absent["state"], "unavailable");
    assert!(absent["reason"].as_str().unwrap().contains("no-such-program-anywhere"), "{absent}");
    let table = service.run(&["agents"]).stdout;
    assert!(table.contains(absent["reason"].as_str().unwrap()), "{table}");
}

#[test]
fn a_restart_ends_what_it_says() {
    let service = Service::start();
    let mut prompt = service.spawn(&["prompt", "slow 30"]);
    read_until(prompt.stdout.as_mut().unwrap(), "second 1 of 30\n");
    let leased = |agent: &Value| {
        let processes = agent["processes"].as_array().unwrap();
        processes.iter().find(|process| process["state"] == "leased").map(|process| process["pid"].clone())
    };
    let before = wait_for(&service, "demo", |agent| leased(agent).is_some());
    let process = &before["processes"][0];
    assert!(process["age_ms"].is_u64() && process["pid"].is_u64() && process["cwd"].is_string(), "{process}");
    let done = service.run(&["agents", "restart", "demo", "--force"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("of `demo` end"), "{done:?}");
    let ended = finish(prompt, "");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    wait_for(&service, "demo", |agent| leased(agent).is_none());
    let done = service.run(&["agents", "restart", "demo", "--json"]);
    let document: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["name"], "demo");
    assert_eq!(document["quarantine_lifted"], false);
    assert!(document["stopped"].is_u64());
}

#[test]
fn a_restart_lifts_a_quarantine() {
    let agents = "[agents.broken]\ncommand = \"false\"\nrestart = { intensity = 1, within = \"60s\" }\n";
    let service = Service::with_agents(agents);
    while service.run(&["agents", "--json"]).stdout.matches("\"quarantined\"").count() == 0 {
        assert_eq!(service.run(&["prompt", "--agent", "broken", "help"]).code, Some(1));
    }
    let shown = service.run(&["agents"]).stdout;
    let broken = shown.lines().skip_while(|line| !line.starts_with("broken")).nth(1).unwrap();
    assert!(broken.starts_with("    ") && !broken.trim().is_empty(), "the reason stands below: {shown}");
    let done = service.run(&["agents", "restart", "broken"]);
    assert_eq!(done.stdout, "no process of `broken` had to end; quarantine lifted\n");
}

#[test]
fn an_unknown_agent_cannot_be_restarted() {
    let service = Service::start();
    let done = service.run(&["agents", "restart", "nobody"]);
    assert_eq!((done.code, &*done.stdout), (Some(1), ""));
    assert!(done.stderr.contains("there is no agent `nobody`"), "{done:?}");
    assert!(done.stderr.contains("conductor agents"), "says what helps: {done:?}");
}

#[test]
fn flags_stand_before_and_after_sub_commands() {
    let service = Service::start();
    let (endpoint, state) = (service.endpoint(), service.state());
    let (endpoint, state) = (&*endpoint, state.to_str().unwrap());
    let wrong = "http://127.0.0.1:1";
    for args in [
        &["agents", "--endpoint", endpoint, "--json", "ls"][..],
        &["agents", "ls", "--endpoint", endpoint, "--json"],
        &["--state-dir", state, "agents", "--json"],
        &["agents", "ls", "--json", "--state-dir", state],
        &["agents", "--endpoint", endpoint, "restart", "demo", "--json"],
        &["agents", "restart", "--endpoint", endpoint, "demo", "--json"],
        &["prompt", "--endpoint", endpoint, "stream 1"],
        &["prompt", "stream 1", "--state-dir", state],
    ] {
        let mut command = service.command(args);
        if args.contains(&"--endpoint") {
            command.env("CONDUCTOR_ENDPOINT", wrong);
        }
        let done = command.output().unwrap();
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let done = service.command(&["agents"]).env("CONDUCTOR_ENDPOINT", wrong).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(service.run(&["agents", "--watch", "restart", "demo"]).code, Some(2));
}

#[test]
fn whoever_reads_no_more_has_seen_enough() {
    let service = Service::start();
    for args in [
        &["agents"][..],
        &["agents", "--json"],
        &["agents", "--watch"],
        &["models"],
        &["models", "--json"],
        &["usage"],
        &["ledger", "status"],
        &["sessions", "ls"],
        &["whoami"],
        &["token", "ls"],
    ] {
        let mut command = service.command(args);
        let (nobody, out) = std::io::pipe().unwrap();
        drop(nobody);
        let child = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).spawn().unwrap();
        // Or it would keep the pipe open.
        drop(command);
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{args:?}: {done:?}");
        // That there is nothing to list is said apart from the list.
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            said.is_empty() || said.contains("no sessions were found") || said.contains("no tokens"),
            "{said}"
        );
    }
    // A disk that is full is another matter.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let done = service.command(&["models"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(String::from_utf8_lossy(&done.stderr).contains("cannot write to stdout"), "{done:?}");
}

/// Names that would turn what a terminal shows, or hide in it: machines read the same string,
/// people see that something is there.
#[test]
fn json_for_machines_harms_no_terminal_that_it_is_shown_in() {
    let odd = "a\u{202e}b\u{200b}c\u{e0041}d\u{9b}";
    let service = Service::with_agents(
        "[agents.odd]\ncommand = 'sh'\ntitle = \"a\\u202eb\\u200bc\\U000e0041d\\u009b\"\n",
    );
    for args in [&["agents", "--json"][..], &["models", "--json"]] {
        let done = service.run(args);
        assert_eq!(done.code, Some(0), "{done:?}");
        let unseen = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{200b}\u{e0041}".contains(c);
        assert!(!done.stdout.contains(unseen), "{args:?}: {:?}", done.stdout);
        let agents: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(find(&agents, "odd")["title"], odd, "{args:?}");
    }
}
