//! `conductor policy` as a program, and the `Policy` service: both say what the
//! rules say, to whom it may be said.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Output, Stdio},
};

use conductor::proto::{ExplainRequest, GetRevisionRequest, PolicyEffect, policy_client::PolicyClient};
use conductor_tests::{
    harness::{program, service},
    people::{Person, channel, owner},
};
use serde_json::{Value, json};
use tonic::Code;

const RULES: &str = r#"
[[rule]]
id = "look"
effect = "allow"
reason = "looks only"
read = {}
match = [{ read = "a" }]
not_match = [{ write = "a" }]

[[rule]]
id = "plan-only"
effect = "deny"
reason = "this team plans"
set_mode = ["yolo*"]
match = [{ mode = "yolo" }]
"#;

/// A policy file in a directory of its own.
fn file(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.toml");
    fs::write(&path, text).unwrap();
    let shown = path.to_str().unwrap().to_owned();
    (directory, shown)
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(program("conductor"));
    command.arg("policy").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str], stdin: &str) -> (Option<i32>, String, String) {
    let mut child = command(args).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn explain(policy: &str, request: &Value) -> Value {
    let (code, out, told) = run(&["explain", "--policy", policy], &request.to_string());
    assert_eq!((code, told.as_str()), (Some(0), ""), "{request} {out}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn a_file_is_checked() {
    let (_kept, good) = file(RULES);
    let (code, out, told) = run(&["check", &good], "");
    assert_eq!((code, told.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("policy.toml: 2 rules, 0 warnings; revision "), "{out}");

    let (_kept, odd) =
        file(&(RULES.to_owned() + &RULES.replace("\"look\"", "\"b\"").replace("plan-only", "c")));
    let (code, out, _) = run(&["check", &odd], "");
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("warning: ") && out.contains("rule `b`: it says the same as rule `look`\nhint: "),
        "{out}"
    );

    let (_kept, bad) = file(&RULES.replace("write = \"a\"", "read = \"a\"").replace("yolo*", "zen"));
    let (code, out, _) = run(&["check", &bad], "");
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("policy.toml:8: rule `look`: the rule matches what it is not for"), "{out}");
    assert!(out.contains("rule `plan-only`: the rule does not match its example"), "{out}");
    assert!(out.ends_with("policy.toml: 2 errors; it cannot be used\n"), "{out}");
    let (code, out, _) = run(&["check", &bad, "--json"], "");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, report["errors"].as_array().unwrap().len()), (Some(1), 2), "{out}");
    assert_eq!((&report["errors"][0]["line"], &report["errors"][0]["rule"]), (&json!(8), &json!("look")));

    let (code, out, told) = run(&["check", "/nowhere/policy.toml"], "");
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(told.contains("/nowhere/policy.toml: cannot be read"), "{told}");
    assert_eq!(run(&["check"], "").0, Some(2));
}

#[test]
fn the_rules_in_the_readme_can_be_used() {
    let readme = include_str!("../../README.md");
    let blocks = readme.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let rules: Vec<&str> = blocks.filter(|block| block.contains("[[rule]]")).collect();
    assert!(rules.len() >= 3, "{rules:#?}");
    for block in rules {
        let (_kept, path) = file(block);
        let (code, out, told) = run(&["check", &path], "");
        assert_eq!((code, told.as_str()), (Some(0), ""), "{out}\n{block}");
    }
}

#[test]
fn presets_are_shown_and_can_be_checked() {
    let (code, out, _) = run(&["show"], "");
    assert_eq!(code, Some(0));
    let (_, listed, _) = run(&["show", "--json"], "");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    for name in ["default", "accept-edits", "plan", "trusted"] {
        assert!(out.lines().any(|line| line.starts_with(name)), "{out}");
        assert!(
            listed["presets"].as_array().unwrap().iter().any(|preset| preset["name"] == name),
            "{listed}"
        );
        let (code, text, _) = run(&["show", name], "");
        assert_eq!(code, Some(0));
        let (_kept, path) = file(&text);
        let (code, out, _) = run(&["check", &path], "");
        assert_eq!(code, Some(0), "{name}: {out}");
    }
    let (code, out, told) = run(&["show", "lax"], "");
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(told.contains("the presets are default"), "{told}");
}

#[test]
fn one_request_is_explained() {
    let (_kept, policy) = file(RULES);
    let denied = explain(&policy, &json!({ "action": { "mode": "yolo" } }));
    assert_eq!((&denied["decision"], &denied["rule"]), (&json!("deny"), &json!("plan-only")));
    assert_eq!((&denied["rules"], &denied["reason"]), (&json!(["plan-only"]), &json!("this team plans")));
    assert_eq!(denied["sub_actions"][0]["decision"], "deny");
    assert_eq!(denied["revision"].as_str().unwrap().len(), 16);
    let asked = explain(&policy, &json!({ "action": { "mode": "edit" } }));
    assert_eq!(
        (&asked["decision"], &asked["rule"], &asked["rules"]),
        (&json!("ask"), &Value::Null, &json!([]))
    );
    let nobody = explain(&policy, &json!({ "action": { "mode": "edit" }, "interactive": false }));
    assert_eq!(nobody["decision"], "deny");
    assert!(nobody["reason"].as_str().unwrap().contains("nobody can be asked"), "{nobody}");

    for bad in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"action": 1}"#,
        r#"{"action": {"leap": 1}}"#,
        r#"{"user": 1, "action": {"mode": "x"}}"#,
    ] {
        let (code, out, told) = run(&["explain", "--policy", &policy], bad);
        let answer: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &answer["decision"]), (Some(1), &json!("deny")), "{bad}");
        assert!(
            answer["error"].is_string() && told.starts_with("conductor policy explain: "),
            "{bad} {told}"
        );
    }
    let (_kept, broken) = file("[[rule]]");
    let (code, out, told) = run(&["explain", "--policy", &broken], "{}");
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(told.contains("policy.toml:1"), "{told}");
}

#[test]
fn a_directory_of_the_request_is_where_paths_lead() {
    let (kept, policy) = file(RULES);
    fs::write(kept.path().join("a"), "").unwrap();
    let ask = |cwd: &Path, path: &str| {
        explain(&policy, &json!({ "cwd": cwd, "action": { "read": path } }))["decision"].clone()
    };
    assert_eq!(ask(kept.path(), "a"), "allow");
    assert_eq!(ask(kept.path(), "../a"), "ask");
    assert_eq!(ask(Path::new("/usr"), kept.path().join("a").to_str().unwrap()), "ask");
    let roots = json!({ "cwd": "/usr", "roots": [kept.path()], "action": { "read": kept.path().join("a") } });
    assert_eq!(explain(&policy, &roots)["decision"], "allow");
}

#[test]
fn without_a_request_it_says_how_to_make_one_and_people_are_told_who_is_asked() {
    let (_kept, policy) = file(RULES);
    let (code, out, told) = run(&["explain", "--policy", &policy], "\n");
    assert_eq!(code, Some(1), "{out}");
    assert!(told.contains("name what to explain, as in `conductor policy explain --run"), "{told}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["decision"], "deny", "nobody takes it for a yes");
    let asks = format!(
        "{RULES}\n[[rule]]\nid = 'careful'\neffect = 'ask'\nreason = 'r'\n\
        run = {{ program = ['make'] }}\nask = {{ self = false, timeout = '30m' }}\n"
    );
    let (_kept, policy) = file(&asks);
    let (_, out, _) = run(&["explain", "--policy", &policy, "--run", "make"], "");
    assert!(out.contains("answered by an approver or the driver, not their own, within 30m\n"), "{out}");
}

#[test]
fn a_batch_is_answered_line_by_line() {
    let (_kept, policy) = file(RULES);
    let mut child = command(&["explain", "--batch", "--policy", &policy]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let long = format!("\"{}\"", "x".repeat(2 << 20));
    // Each is answered before the next is sent.
    for (line, decision) in [
        (r#"{"action": {"mode": "yolo"}}"#, "deny"),
        (r#"{"action": {"mode": "edit"}}"#, "ask"),
        ("", "error"),
        ("\u{1b}[2J", "error"),
        (&long, "error"),
        (r#"{"action": {"mode": "yolo\u009b"}}"#, "deny"),
        (r#"{"action": {"read": "a"}, "cwd": "/usr"}"#, "allow"),
    ] {
        stdin.write_all(line.as_bytes()).and_then(|()| stdin.write_all(b"\n")).unwrap();
        let text = lines.next().unwrap().unwrap();
        assert!(!text.contains(char::is_control), "{text:?}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        match decision {
            "error" => assert!(answer["decision"] == "deny" && answer["error"].is_string(), "{text}"),
            decision => assert_eq!(answer["decision"], decision, "{text}"),
        }
    }
    stdin.write_all(br#"{"action": {"mode": "edit"}}"#).unwrap();
    drop(stdin);
    assert!(lines.next().unwrap().unwrap().contains("\"ask\""), "the last line needs no end");
    assert!(lines.next().is_none());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

// The service stops only once its clients have heard so.
#[tokio::test(flavor = "multi_thread")]
async fn the_service_says_the_same() {
    let service = service(&json!({})).set("policy", json!({})).start();
    let work = fs::canonicalize(service.work()).unwrap();
    let (me, ann) = (owner(&service), Person::new(&service, &["--user", "ann", "--team", "web"]));
    let mut policy = PolicyClient::new(channel(&service).await);
    let revision = policy.get_revision(ann.request(GetRevisionRequest {})).await.unwrap().into_inner();
    assert!(revision.rules > 0 && revision.loaded_us > 0, "{revision:?}");
    assert_eq!((revision.file.as_str(), revision.refused.as_str()), ("", ""));
    let request = |action: &Value| ExplainRequest {
        action_json: action.to_string(),
        agent: "fake".into(),
        cwd: work.to_str().unwrap().into(),
        ..ExplainRequest::default()
    };
    for action in [
        json!({ "read": "a" }),
        json!({ "write": "/etc/passwd" }),
        json!({ "shell": "git status; rm -rf /" }),
        json!({ "shell": "cat a" }),
        json!({ "mode": "bypassPermissions" }),
    ] {
        let said = policy.explain(ann.request(request(&action))).await.unwrap().into_inner();
        let question = json!({ "user": "ann", "teams": ["web"], "role": "developer", "agent": "fake", "cwd": work, "action": action });
        let mut told = service
            .command(&["policy", "explain"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        told.stdin.take().unwrap().write_all(question.to_string().as_bytes()).unwrap();
        let told: Value = serde_json::from_slice(&told.wait_with_output().unwrap().stdout).unwrap();
        let decision = match said.decision() {
            PolicyEffect::Allow => "allow",
            PolicyEffect::Ask => "ask",
            PolicyEffect::Deny => "deny",
            PolicyEffect::Unspecified => "-",
        };
        assert_eq!(
            (decision, said.reason.as_str()),
            (told["decision"].as_str().unwrap(), told["reason"].as_str().unwrap())
        );
        assert_eq!((json!(said.rules), &said.revision), (told["rules"].clone(), &revision.revision));
        assert_eq!(said.parts.len(), told["sub_actions"].as_array().unwrap().len());
        let denied = ExplainRequest { non_interactive: true, ..request(&action) };
        let denied = policy.explain(ann.request(denied)).await.unwrap().into_inner();
        assert_ne!(denied.decision(), PolicyEffect::Ask, "{action}");
    }

    // Where paths outside lead is nobody's business but the administrators'.
    let outside = request(&json!({ "read": "/usr/../etc/passwd" }));
    for (person, hidden) in [(&ann, true), (&me, false)] {
        let said = policy.explain(person.request(outside.clone())).await.unwrap().into_inner();
        let action: Value = serde_json::from_str(&said.parts[0].action_json).unwrap();
        assert_eq!(action["read"]["resolved"].is_null(), hidden, "{action}");
    }

    let other = ExplainRequest { user: "bob".into(), ..request(&json!({ "read": "a" })) };
    assert!(policy.explain(me.request(other.clone())).await.is_ok());
    let good = request(&json!({ "read": "a" }));
    for (person, bad, code) in [
        (&ann, other, Code::PermissionDenied),
        (&ann, ExplainRequest { role: "admin".into(), ..good.clone() }, Code::PermissionDenied),
        (&ann, ExplainRequest { teams: vec!["core".into()], ..good.clone() }, Code::PermissionDenied),
        (&me, ExplainRequest { role: "admin".into(), ..good.clone() }, Code::InvalidArgument),
        (&me, ExplainRequest { teams: vec!["core".into()], ..good.clone() }, Code::InvalidArgument),
        (
            &me,
            ExplainRequest { user: "bob".into(), role: "god".into(), ..good.clone() },
            Code::InvalidArgument,
        ),
        (&ann, ExplainRequest { cwd: "/etc".into(), ..good.clone() }, Code::InvalidArgument),
        (&ann, ExplainRequest { cwd: "work".into(), ..good.clone() }, Code::InvalidArgument),
        (
            &ann,
            ExplainRequest { additional_directories: vec!["/".into()], ..good.clone() },
            Code::InvalidArgument,
        ),
        (&ann, ExplainRequest { action_json: "{".into(), ..good.clone() }, Code::InvalidArgument),
        (&ann, ExplainRequest { action_json: "{}".into(), ..good.clone() }, Code::InvalidArgument),
    ] {
        let status = policy.explain(person.request(bad.clone())).await.unwrap_err();
        assert_eq!(status.code(), code, "{bad:?} {status:?}");
    }
    let nobody = Person { token: "x".into(), id: String::new() };
    let status = policy.explain(nobody.request(good)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
}

/// A rule for a team, another that a repository adds, and a third of somebody's own: what is
/// explained is what would happen to the caller there.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_explained_is_what_holds_for_the_caller_there() {
    let rules = "[[rule]]\nid = 'web'\neffect = 'allow'\nreason = 'theirs'\nwho = { team = ['web'] }\n\
                 run = { program = ['truncate', 'ls', 'true'], words = 'any' }\n";
    let builder = service(&json!({})).rules(rules);
    let users = builder.dir().join("users");
    fs::create_dir(&users).unwrap();
    let deny = |id: &str, program: &str| {
        format!(
            "[[rule]]\nid = '{id}'\neffect = 'deny'\nreason = 'not here'\nrun = {{ program = ['{program}'] }}\n"
        )
    };
    fs::write(users.join("ann.toml"), deny("own", "true")).unwrap();
    let service = builder.set("policy.users", users.to_str().unwrap()).start();
    for (dir, program) in [(service.work(), "ls"), (service.dir.join("other"), "truncate")] {
        fs::create_dir(dir.join(".conductor")).unwrap();
        fs::write(dir.join(".conductor/policy.toml"), deny("repository", program)).unwrap();
    }
    let ann = Person::new(&service, &["--user", "ann", "--team", "web"]);
    let mut policy = PolicyClient::new(channel(&service).await);
    for (program, further, decision) in [
        ("truncate", false, PolicyEffect::Allow),
        ("truncate", true, PolicyEffect::Deny),
        ("ls", false, PolicyEffect::Deny),
        ("true", false, PolicyEffect::Deny),
    ] {
        for user in ["", "ann"] {
            let request = ExplainRequest {
                action_json: json!({ "shell": program }).to_string(),
                user: user.into(),
                agent: "fake".into(),
                cwd: service.work().to_str().unwrap().into(),
                additional_directories: Vec::from_iter(
                    further.then(|| service.dir.join("other").to_str().unwrap().to_owned()),
                ),
                ..ExplainRequest::default()
            };
            let said = policy.explain(ann.request(request)).await.unwrap().into_inner();
            assert_eq!(said.decision(), decision, "{program} by {user:?}: {said:?}");
        }
    }
}
