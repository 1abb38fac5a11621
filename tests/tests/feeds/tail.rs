//! Following: from any event on, over restarts, for those who may.

use std::{
    fs::{self, File},
    process::{Child, Command, Stdio},
    time::Duration,
};

use conductor_tests::{editor::DEADLINE, harness::poll_until, people::Person};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{busy, lines, ruled, sql, tail, text, uids};

#[test]
fn from_every_event_on_there_is_no_gap_and_no_duplicate() {
    let service = ruled().start();
    let (_editor, _) = busy(&service);
    for form in [&[][..], &["--ocsf"], &["--raw"]] {
        let all = tail(&service, form);
        assert!(all.len() > 20, "{all:#?}");
        let cursor = |line: &serde_json::Value| {
            let cursor = if form == ["--ocsf"] { &line["unmapped"]["cursor"] } else { &line["cursor"] };
            cursor.as_str().unwrap_or_else(|| panic!("no cursor: {line}")).to_owned()
        };
        // Those of one frame and of one record are the hard ones, so each is tried.
        for (at, line) in all.iter().enumerate() {
            let rest = tail(&service, &[form, &["--from", &cursor(line)]].concat());
            assert!(rest.len() >= all.len() - at - 1, "something is missing behind {line}");
            assert_eq!(rest[..all.len() - at - 1], all[at + 1..], "behind {line}");
        }
    }
}

#[test]
fn every_frame_is_told_as_it_came() {
    let service = ruled().start();
    let (_editor, _) = busy(&service);
    let told = tail(&service, &["--raw"]);
    let stored = sql(&service, "SELECT stream_id, seq, json FROM frames ORDER BY stream_id, seq");
    let key = |line: &serde_json::Value| (text(line, "stream_id").to_owned(), line["seq"].as_u64().unwrap());
    let mut keys: Vec<_> = told.iter().map(key).collect();
    keys.sort();
    assert_eq!(keys, stored.iter().map(key).collect::<Vec<_>>());
    assert!(told.iter().all(|line| line["frame"].is_object()), "{told:#?}");
    let prompts = told.iter().filter(|line| line["frame"]["method"] == "session/prompt");
    assert_eq!(prompts.count(), 7);
}

/// Who follows, and what they have heard.
struct Follower {
    child: Child,
    out: std::path::PathBuf,
    err: std::path::PathBuf,
}

impl Follower {
    fn new(mut command: Command, dir: &std::path::Path, name: &str) -> Self {
        let (out, err) = (dir.join(format!("{name}.out")), dir.join(format!("{name}.err")));
        command.stdin(Stdio::null()).stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        Self { child: command.spawn().unwrap(), out, err }
    }

    fn heard(&self) -> Vec<serde_json::Value> {
        let text = fs::read(&self.out).unwrap();
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        lines(&text[..whole])
    }

    fn wait(&self, what: &str, heard: impl Fn(&[serde_json::Value]) -> bool) {
        let said = || fs::read_to_string(&self.err).unwrap();
        assert!(poll_until(DEADLINE, || heard(&self.heard())), "{what}: {:#?}\n{}", self.heard(), said());
    }

    /// Ends it as people do; what it says then.
    fn interrupt(mut self) -> String {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        fs::read_to_string(&self.err).unwrap()
    }
}

#[test]
fn whoever_follows_hears_everything_over_restarts_and_kills() {
    let mut service = ruled().start();
    let command = service.command(&["ledger", "tail", "--json", "--follow", "--from", "oldest"]);
    let follower = Follower::new(command, &service.dir, "follower");
    let prompts = |heard: &[serde_json::Value]| heard.iter().filter(|e| e["event"] == "prompt.ended").count();
    for (round, ends_well) in [(1, true), (2, false), (3, true)] {
        let (editor, _) = busy(&service);
        follower.wait("all turns of a round", |heard| prompts(heard) == 7 * round);
        if round < 3 {
            match ends_well {
                true => {
                    service.term();
                }
                false => service.kill9(),
            }
            drop(editor);
            service.start_again();
        } else {
            drop(editor);
        }
    }
    let all = tail(&service, &[]);
    follower.wait("as much as there is", |heard| heard.len() >= all.len());
    let heard = follower.heard();
    let said = follower.interrupt();
    let mut once = uids(&heard);
    once.sort();
    once.dedup();
    assert_eq!(once.len(), heard.len(), "something was told twice");
    assert_eq!(uids(&heard)[..all.len()], uids(&all));
    assert!(said.contains("the service is away") && said.contains("the service is back"), "{said}");
    let cursor = said.rsplit("--from ").next().unwrap().trim();
    let rest = uids(&tail(&service, &["--from", cursor]));
    assert_eq!(rest, uids(&tail(&service, &[]))[heard.len()..heard.len() + rest.len()]);
}

#[test]
fn it_is_for_auditors_and_administrators() {
    let service = ruled().start();
    let (_editor, _) = busy(&service);
    let run = |role: &str| {
        let person = Person::new(&service, &["--user", role, "--role", role]);
        person.run(&service, &["ledger", "tail", "--json"])
    };
    for role in ["developer", "approver"] {
        let refused = run(role);
        assert_eq!(refused.status.code(), Some(1));
        assert!(refused.stdout.is_empty());
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains("auditors") && said.contains("administrators"), "{said}");
    }
    for role in ["auditor", "admin"] {
        let told = run(role);
        assert!(told.status.success(), "{told:?}");
        assert_eq!(uids(&lines(&told.stdout)), uids(&tail(&service, &[])));
    }
}

#[test]
fn one_can_ask_for_less() {
    let service = ruled().start();
    let (_editor, session) = busy(&service);
    let all = tail(&service, &[]);
    let only = |args: &[&str]| uids(&tail(&service, args));
    let fits = |fit: &dyn Fn(&serde_json::Value) -> bool| {
        let fitting: Vec<_> = all.iter().filter(|event| fit(event)).cloned().collect();
        assert!(!fitting.is_empty() && fitting.len() < all.len());
        uids(&fitting)
    };
    assert_eq!(only(&["--kind", "command"]), fits(&|e| text(e, "event").starts_with("command.")));
    let kinds = ["--kind", "prompt.sent", "--kind", "session"];
    assert_eq!(
        only(&kinds),
        fits(&|e| e["event"] == "prompt.sent" || text(e, "event").starts_with("session."))
    );
    assert_eq!(only(&["--session", &session]), fits(&|e| e["session"] == session.as_str()));
    assert_eq!(only(&["--agent", "fake"]), fits(&|e| e["agent"] == "fake"));
    assert!(only(&["--user", "nobody"]).is_empty());
    assert!(only(&["--from", "now"]).is_empty());
    assert_eq!(only(&["--since", "1h"]), uids(&all));
    assert!(only(&["--since", "1ms"]).len() < all.len());
    let unknown = crate::refusal(&service, &["--kind", "nonsense"]);
    assert!(unknown.contains("there is no `nonsense`") && unknown.contains("command.ended"), "{unknown}");
    // For people: one line each, with who and what.
    let shown = service.run(&["ledger", "tail", "--kind", "command.started"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(shown.lines().count(), fits(&|e| e["event"] == "command.started").len(), "{shown}");
    assert!(shown.contains("cargo test") && shown.contains(" fake "), "{shown}");
    // Nobody who reads no more keeps it from ending.
    let mut head = service.command(&["ledger", "tail", "--json", "--follow", "--from", "oldest"]);
    let mut child = head.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut ended = None;
    assert!(poll_until(Duration::from_secs(20), || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    }));
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
}
