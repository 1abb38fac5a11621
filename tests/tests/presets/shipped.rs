//! The rule files that ship: each can be used, says nothing that is not meant, means the same in any order, and differs from the
//! default where it should.

use std::{collections::BTreeMap, fs, process::Command};

use conductor_tests::harness::program;
use serde_json::{Value, json};

use super::{
    asked::{Place, Question, decision, run},
    bypass,
};

const NAMES: [&str; 4] = ["default", "accept-edits", "plan", "trusted"];

fn policy(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(program("conductor"));
    command.arg("policy").args(args);
    run(command, "")
}

fn text(name: &str) -> String {
    let (code, out, err) = policy(&["show", name]);
    assert_eq!(code, Some(0), "{err}");
    out
}

#[test]
fn every_preset_is_clean() {
    let place = Place::new();
    for name in NAMES {
        let file = place.policy(&text(name));
        let (code, out, err) = policy(&["check", "--json", file.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{name}: {out}{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["errors"], json!([]), "{name}");
        let warnings = report["warnings"].as_array().unwrap();
        // What `trusted` is for is what a check warns of.
        let meant = |warning: &&Value| {
            name != "trusted" || !warning["what"].as_str().unwrap().contains("it allows every")
        };
        let warnings: Vec<_> = warnings.iter().filter(meant).collect();
        assert!(warnings.is_empty(), "{name}: {warnings:#?}");
    }
}

#[test]
fn every_rule_has_examples_for_and_against() {
    for name in NAMES {
        let table: toml::Table = text(name).parse().unwrap();
        for rule in table["rule"].as_array().unwrap() {
            let count = |key: &str| rule.get(key).and_then(toml::Value::as_array).map_or(0, Vec::len);
            assert!(count("match") > 0 && count("not_match") > 0, "{name}: rule {}", rule["id"]);
        }
    }
}

/// The presets and some lines of each table, with what comes out of every one.
fn outcomes(place: &Place, policy: &std::path::Path) -> Vec<String> {
    let lines = bypass::tables().flat_map(|(_, _, lines)| lines.iter().take(3));
    let everyday = ["ls -la", "git log --oneline -5", "sed -n 1,5p a.txt", "cat a.txt | sort | uniq -c"];
    let questions: Vec<_> = lines.chain(&everyday).map(|line| Question::shell(line)).collect();
    let answers = place.ask(Some(policy), &questions);
    answers.iter().map(|answer| format!("{} {}", decision(answer), answer["rules"])).collect()
}

#[test]
fn the_order_of_rules_means_nothing() {
    let place = Place::new();
    let mut table: toml::Table = text("default").parse().unwrap();
    let expected = outcomes(&place, &place.policy(&table.to_string()));
    assert!(expected.iter().any(|outcome| outcome.starts_with("allow")));
    for turn in 0..4 {
        let rules = table.get_mut("rule").unwrap().as_array_mut().unwrap();
        match turn {
            0 => rules.reverse(),
            1 => rules.sort_by_key(|rule| rule["effect"].to_string()),
            2 => rules.reverse(),
            _ => rules.rotate_left(17),
        }
        let shuffled = place.policy(&table.to_string());
        assert_eq!(outcomes(&place, &shuffled), expected, "turn {turn}");
    }
}

/// Taking one rule that asks or denies away makes nothing stricter; taking one that allows away lets nothing more pass.
/// (It may make an ask of a denial: which words of a command are paths is known from the rule that allows it.)
#[test]
fn every_rule_pulls_one_way() {
    let place = Place::new();
    let strictness: BTreeMap<&str, u8> = [("allow", 0), ("ask", 1), ("deny", 2)].into();
    let rank = |outcome: &String| strictness[outcome.split(' ').next().unwrap()];
    let table: toml::Table = text("default").parse().unwrap();
    let all = outcomes(&place, &place.policy(&table.to_string()));
    let rules = table["rule"].as_array().unwrap();
    for (at, rule) in rules.iter().enumerate().step_by(7) {
        let mut fewer = rules.clone();
        fewer.remove(at);
        let mut table = table.clone();
        table.insert("rule".into(), fewer.into());
        let without = outcomes(&place, &place.policy(&table.to_string()));
        let allows = rule["effect"].as_str() == Some("allow");
        for (before, after) in all.iter().zip(&without) {
            let (before, after) = (rank(before), rank(after));
            let is_right = if allows { after > 0 || before == 0 } else { after <= before };
            assert!(is_right, "without {}", rule["id"]);
        }
    }
}

fn decisions(preset: &str, rows: &[(&str, Value)]) {
    let place = Place::new();
    let policy = place.policy(&format!("use = [\"{preset}\"]\n"));
    let questions: Vec<_> = rows.iter().map(|(_, action)| Question::new(action.clone())).collect();
    let answers = place.ask(Some(&policy), &questions);
    let bad = rows.iter().zip(&answers).filter(|((expected, _), answer)| decision(answer) != *expected);
    let bad: Vec<_> =
        bad.map(|((expected, action), answer)| format!("{action} is not {expected}: {answer}")).collect();
    assert!(bad.is_empty(), "{preset}:\n{}", bad.join("\n"));
}

fn shell(line: &str) -> Value {
    json!({ "shell": line })
}

fn write(path: &str) -> Value {
    json!({ "write": path })
}

#[test]
fn accept_edits_edits_and_runs_nothing() {
    decisions(
        "accept-edits",
        &[
            ("allow", write("src/main.rs")),
            ("allow", write("new/file.txt")),
            ("allow", shell("mkdir -p src/new && touch src/new/a.rs")),
            ("allow", shell("rmdir empty")),
            ("deny", write(".git/config")),
            ("deny", shell("touch .git/hooks/pre-commit")),
            ("deny", shell("mkdir -p .claude")),
            ("deny", shell("mkdir .GIT")),
            ("ask", shell("touch ../outside/x")),
            ("ask", shell("mkdir link-out/x")),
            ("ask", shell("touch link-new")),
            ("deny", shell("touch HEAD")),
            ("deny", write("sub/HEAD")),
            ("ask", write("rust-toolchain.toml")),
            ("ask", shell("touch -r /etc/passwd a.txt")),
            ("ask", shell("cp a.txt b.txt")),
            ("ask", shell("mv a.txt b.txt")),
            ("ask", shell("rm a.txt")),
            ("ask", shell("cargo test")),
            ("ask", shell("npm test")),
            ("ask", shell("./script.sh")),
            ("ask", shell("cd evil.git && git status")),
            ("ask", shell("echo x > a.txt")),
        ],
    );
}

#[test]
fn plan_changes_nothing() {
    decisions(
        "plan",
        &[
            ("allow", json!({ "read": "src/main.rs" })),
            ("allow", shell("git log --oneline")),
            ("deny", write("src/main.rs")),
            ("deny", write("/tmp/x")),
            ("deny", write("link-out/x")),
            ("deny", shell("rm a.txt")),
            ("deny", shell("echo x > a.txt")),
            ("deny", shell("ls && mv a.txt b.txt")),
            ("deny", shell("git commit -m x")),
            ("deny", shell("git -C src push")),
            ("deny", shell("npm install")),
            ("deny", shell("sed -i 1d a.txt")),
            ("deny", json!({ "mode": "acceptEdits" })),
            ("allow", json!({ "mode": "plan" })),
            ("ask", json!({ "mode": "build" })),
            ("ask", json!({ "mode": "code" })),
            ("ask", json!({ "mode": "agent" })),
            ("deny", json!({ "setting": { "id": "effort", "value": "bypassPermissions" } })),
        ],
    );
}

#[test]
fn trusted_runs_and_stays_off_protected_places() {
    decisions(
        "trusted",
        &[
            ("allow", shell("cargo test")),
            ("allow", shell("npm run build && ./script.sh")),
            ("allow", shell("cp a.txt b.txt")),
            ("allow", write("src/main.rs")),
            ("allow", json!({ "fetch": "https://docs.rs/serde" })),
            ("ask", json!({ "fetch": "http://docs.rs/serde" })),
            ("ask", json!({ "fetch": "https://127.0.0.1/" })),
            ("ask", json!({ "fetch": "https://10.0.0.1/" })),
            ("ask", json!({ "fetch": "https://localhost/" })),
            ("ask", json!({ "fetch": "https://[::1]/" })),
            ("ask", json!({ "fetch": "https://192.168.1.1/" })),
            ("deny", json!({ "fetch": "https://169.254.169.254/" })),
            ("deny", write(".git/config")),
            ("deny", shell("sudo make install")),
            ("deny", shell("rm -rf /")),
            ("deny", shell("cat /etc/shadow")),
            ("deny", shell("ls /home/ann/.ssh")),
            ("allow", shell("grep -rn /etc/shadow src")),
            ("allow", shell("cat /etc/passwd")),
            ("deny", shell("echo x > .git/hooks/pre-commit")),
            ("deny", json!({ "mode": "bypassPermissions" })),
            ("ask", shell("git push --force")),
            ("ask", shell("git push origin +main")),
            ("ask", shell("git push origin :main")),
            ("deny", json!({ "fetch": "https://168.63.129.16/" })),
            ("deny", json!({ "fetch": "https://vault.secrets.svc/" })),
            ("ask", json!({ "fetch": "https://10-0-0-1.traefik.me/" })),
            ("deny", shell("curl http://168.63.129.16/")),
            ("deny", shell("curl http://2852039166/latest")),
            ("deny", shell("curl http://0xA9FEA9FE/")),
            ("deny", shell("curl http://0251.0376.0251.0376/")),
            ("deny", shell("curl 'http://[::ffff:a9fe:a9fe]/'")),
            ("ask", write("../outside/x")),
            ("ask", shell("echo $(id)")),
            ("ask", shell("conductor policy show")),
        ],
    );
}

/// A repository's file narrows: all that it is given is asked for less.
#[test]
fn the_shipped_files_are_what_the_program_shows() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for name in NAMES {
        let file = source.join(format!("conductor/src/policy/presets/{name}.toml"));
        assert_eq!(text(name), fs::read_to_string(file).unwrap(), "{name}");
    }
}
