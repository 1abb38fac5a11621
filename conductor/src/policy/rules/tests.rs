//! Reading and layering of rules, and what every set of rules must hold to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use super::{presets::PRESETS, *};

fn refused(text: &str) -> String {
    Policy::parse("policy.toml", text).expect_err(text).0
}

/// A rule with everything that it needs but what it is about.
fn rule(id: &str, effect: &str, rest: &str) -> String {
    format!("[[rule]]\nid = \"{id}\"\neffect = \"{effect}\"\nreason = \"because\"\n{rest}\n")
}

#[test]
fn presets_can_be_used_and_their_examples_hold() {
    for (name, text) in PRESETS {
        let policy = Policy::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
        assert!(policy.rule_count() > 0, "{name}");
        assert!(!presets::summary(text).is_empty(), "{name} does not begin by saying what it is for");
        let used = Policy::parse("policy.toml", &format!("use = [\"{name}\"]")).unwrap();
        assert_eq!(used.rule_count(), policy.rule_count());
    }
    let all: Vec<_> = PRESETS.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    Policy::parse("policy.toml", &format!("use = [{}]", all.join(", "))).unwrap();
    assert_eq!(Policy::load(None).unwrap().file(), None);
}

/// Text, what the message has in it.
#[test]
fn mistakes_are_refused_with_place_and_remedy() {
    let allow = |rest: &str| rule("a", "allow", rest);
    let deny = |rest: &str| rule("a", "deny", rest);
    let ask = |how: &str| rule("a", "ask", &format!("read = {{}}\nask = {{ {how} }}"));
    for (text, expected) in [
        (allow("read = {}\nask = {}"), "policy.toml:6: rule `a`: `ask` is for rules that ask"),
        (ask("approvers = {}"), "policy.toml:6: rule `a`: `approvers` names nobody"),
        (ask("approvers = { role = [\"boss\"] }"), "there is no role `boss`\nhint: roles are developer"),
        (ask("approvers = { team = [\"lead*\"] }"), "`lead*` is no name"),
        (ask("approvers = { role = [\"auditor\"] }"), "auditors read everything and change nothing"),
        (ask("timeout = \"0s\""), "`0s` is no time to wait"),
        (ask("timeout = \"30\""), "`30` is no time to wait"),
        (ask("timeout = \"8d\""), "`8d` is no time to wait"),
        (ask("notify = \"x\""), "unknown key `notify`"),
        (String::new(), "policy.toml: it has no rules\nhint: write use = [\"default\"]"),
        ("use = \"default\"".into(), "policy.toml:1: "),
        (
            "use = [\"defalt\"]".into(),
            "policy.toml:1: there is no preset `defalt`\nhint: the presets are default",
        ),
        ("\n\nuses = []".into(), "policy.toml:3: unknown key `uses`"),
        ("use = [\"default\"]\ndrop = [\"nothing\"]".into(), "policy.toml:2: `drop` names `nothing`"),
        ("[[rule]".into(), "policy.toml:1: "),
        (allow("read = {}\nreads = {}"), "policy.toml:6: rule `a`: unknown key `reads`"),
        (allow("read = { paths = [] }"), "policy.toml:5: rule `a`: unknown key `paths`"),
        ("[[rule]]\nid = \"a\"\neffect = \"allow\"\nread = {}".into(), "rule `a`: `reason` is missing"),
        (rule("a", "permit", "read = {}"), "policy.toml:3: rule `a`: unknown variant `permit`"),
        (rule("A b", "allow", "read = {}"), "policy.toml:2: rule `A b`: this cannot be the id"),
        (rule("", "allow", "read = {}"), "this cannot be the id"),
        (allow("read = {}").replace("because", " "), "policy.toml:4: rule `a`: `reason` is empty"),
        (allow("read = {}").replace("because", &"x".repeat(501)), "more than 500"),
        (allow(""), "rule `a`: it is about nothing"),
        (allow("read = {}\nwrite = {}"), "rule `a`: it is about several things"),
        (allow("anything = true"), "`anything` cannot be allowed"),
        (deny("anything = false"), "`anything` cannot be allowed, nor be false"),
        (
            allow("read = {}") + &allow("write = {}"),
            "policy.toml:7: rule `a`: line 2 has a rule with this id",
        ),
        (
            "use = [\"default\"]\n".to_owned() + &rule(preset_rule(), "deny", "anything = true"),
            "has a rule with this id\nhint: choose another id, or write drop",
        ),
        (allow("agent = []\nread = {}"), "`agent` is empty"),
        (allow("who = { user = [] }\nread = {}"), "`who.user` is empty"),
        (allow("who = { users = [\"a\"] }\nread = {}"), "unknown key `users`"),
        (allow("root = [\"src\"]\nread = {}"), "root `src` matches no directory"),
        (allow("read = { path = [\"src/\"] }"), "ends with `/` and matches nothing"),
        (allow("read = { path = [\"../x\"] }"), "matches nothing"),
        (allow("read = { path = [\"{a\"] }"), "hint: correct the pattern"),
        (allow("run = {}"), "`program` is missing"),
        (allow("run = { program = [] }"), "`run.program` is empty"),
        (allow("run = { program = [\"bin/x\"] }"), "no program's name"),
        (allow("run = { program = [\"py*\"] }"), "by their full names"),
        (allow("run = { program = [\"x\"], words = \"all\" }"), "`words` can only be \"any\""),
        (allow("run = { program = [\"x\"], words = \"any\", flags = \"a\" }"), "leaves nothing to list"),
        (allow("run = { program = [\"x\"], any_word = [\"--help\"] }"), "allow everything beside"),
        (allow("run = { program = [\"x\"], any_option = [\"--help\"] }"), "allow everything beside"),
        (allow("run = { program = [\"x\"], any_path = [\"/etc\"] }"), "allow everything beside"),
        (deny("run = { program = [\"x\"], any_path = [\"src\"] }"), "outside of all roots"),
        (deny("run = { program = [\"x\"], any_path = [\"/etc/\"] }"), "matches nothing"),
        (allow("run = { program = [\"x\"], globals = [\"-c=text\"] }"), "there is none"),
        (
            allow("run = { program = [\"x\"], subcommand = [\"a\"], globals = [\"-C=read\"] }"),
            "would not be judged",
        ),
        (allow("run = { program = [\"x\"], subcommand = [\"a  b\"] }"), "is no sub-command"),
        (allow("run = { program = [\"x\"], subcommand = [\"--\"] }"), "is no sub-command"),
        (allow("run = { program = [\"x\"], options = [\"a\"] }"), "`a` is no option"),
        (allow("run = { program = [\"x\"], positionals = [\"file\"] }"), "no kind of word"),
        (deny("run = { program = [\"x\"], any_option = [\"o\"] }"), "no option's name"),
        (allow("fetch = { host = [\"docs.*\"] }"), "could match hosts of others"),
        (allow("fetch = { host = [\"*docs.rs\"] }"), "could match hosts of others"),
        (allow("fetch = { host = [\"https://x\"] }"), "matches no host"),
        (allow("fetch = { host = [\"Docs.rs\"] }"), "matches no host"),
        (allow("fetch = { port = [] }"), "`fetch.port` is empty"),
        (allow("fetch = { port = [70000] }"), "policy.toml:5: rule `a`: "),
        (allow("fetch = { path = [\"api\"] }"), "no path of an address"),
        (allow("server = { transport = [\"pipe\"] }"), "no transport"),
        (
            allow("read = {}\nmatch = [{ write = \"x\" }]"),
            "policy.toml:6: rule `a`: the rule does not match its example",
        ),
        (
            allow("read = {}\nnot_match = [\n{ read = \"x\" }]"),
            "policy.toml:7: rule `a`: the rule matches what it is not",
        ),
        (allow("read = {}\nmatch = [{ leap = \"x\" }]"), "an example cannot be read"),
        (
            allow("read = {}").replace("because", "\\u001b[2J\\u202e") + "match = 1",
            "policy.toml:6: rule `a`: ",
        ),
    ] {
        let message = refused(&text);
        assert!(message.contains(expected), "{text}\n{message}\nshould have: {expected}");
        assert!(message.contains("\nhint: "), "{message}");
        assert!(message.starts_with("policy.toml"), "{message}");
        let seen = |c: char| !c.is_control() || c == '\n';
        assert!(message.chars().all(seen), "{message:?}");
    }
}

/// Some rule of the default preset.
fn preset_rule() -> &'static str {
    let (_, text) = PRESETS[0];
    text.lines().find_map(|line| line.strip_prefix("id = \"")).unwrap().trim_end_matches('"')
}

#[test]
fn a_rule_of_a_preset_can_be_dropped_and_replaced() {
    let id = preset_rule();
    let whole = Policy::load(None).unwrap();
    let without = Policy::parse("policy.toml", &format!("use = [\"default\"]\ndrop = [\"{id}\"]")).unwrap();
    assert_eq!(without.rule_count(), whole.rule_count() - 1);
    let text = format!("use = [\"default\"]\ndrop = [\"{id}\"]\n{}", rule(id, "deny", "anything = true"));
    assert_eq!(Policy::parse("policy.toml", &text).unwrap().rule_count(), whole.rule_count());
}

#[test]
fn the_revision_names_the_text_and_not_its_place() {
    let one = rule("a", "deny", "anything = true");
    let other = rule("b", "deny", "anything = true");
    let revision = |origin: &str, text: &str| Policy::parse(origin, text).unwrap().revision().to_owned();
    assert_eq!(revision("x", &one), revision("y", &one));
    assert_ne!(revision("x", &one), revision("x", &other));
    assert_eq!(revision("x", &one).len(), 16);
    let policy = Policy::parse("x", &one).unwrap();
    assert_ne!(policy.revision(), policy.narrowed("y", &other).revision());
    assert_eq!(policy.narrowed("y", &other).revision(), policy.narrowed("z", &other).revision());
    assert_ne!(policy.revision(), policy.narrowed("y", "").revision());
    assert_ne!(policy.narrowed("y", &other).revision(), policy.narrowed("y", "[broken").revision());
}

#[test]
fn a_narrowing_text_that_cannot_be_used_makes_everything_ask() {
    let policy = Policy::parse("x", &rule("a", "allow", "tool = [\"*\"]")).unwrap();
    let tool = [SubAction::Tool { name: "T".into() }];
    let subject = Subject::default();
    assert_eq!(policy.evaluate(&subject, &tool).decision, Effect::Allow);
    assert_eq!(policy.narrowed("repo", "").evaluate(&subject, &tool).decision, Effect::Allow);
    let many: String = (0..1001).map(|at| rule(&format!("r{at}"), "deny", "tool = [\"x\"]")).collect();
    // None of these is compiled, or this would take minutes.
    let large = "run = { program = [\"x\"], positionals = [\"match:/(\\\\w{60}){8}/\"] }";
    let expressions: String = (0..900).map(|at| rule(&format!("r{at}"), "deny", large)).collect();
    for text in [
        "[broken",
        "use = [\"trusted\"]",
        "drop = [\"a\"]",
        &rule("b", "allow", "tool = [\"*\"]"),
        &rule("b", "deny", "tool = []"),
        &many,
        &format!("# {}", "x".repeat(256 << 10)),
        &format!("x = {}", "[".repeat(200_000)),
        &rule("b", "deny", &format!("match = {}{}", "[".repeat(50_000), "]".repeat(50_000))),
        &rule("b", "deny", &format!("read = {{ path = [\"{}\"] }}", "*?[a-z]".repeat(100))),
        &rule("b", "deny", "run = { program = [\"x\"], positionals = [\"match:/a/\"] }"),
        &rule("b", "deny", "run = { program = [\"x\"], positionals = [\"read:/a/*\"] }"),
        &rule("b", "ask", "run = { program = [\"x\"], options = [\"-n=match:/a/\"] }"),
        &rule("b", "ask", "run = { program = [\"x\"], subcommand = [\"y\"], globals = [\"-n=match:/a/\"] }"),
        &expressions,
    ] {
        let verdict = policy.narrowed("repo", text).evaluate(&subject, &tool);
        assert_eq!(verdict.decision, Effect::Ask, "{}", text.chars().take(80).collect::<String>());
        assert_eq!(verdict.rule.as_deref(), Some("repo:unusable"));
        assert!(verdict.reason.starts_with("repo"), "{}", verdict.reason);
    }
    let verdict = policy.narrowed("repo", &rule("a", "deny", "tool = [\"*\"]")).evaluate(&subject, &tool);
    assert_eq!((verdict.decision, verdict.rule.as_deref()), (Effect::Deny, Some("repo:a")));
}

#[test]
fn files_that_are_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.toml");
    let load = || Policy::load(Some(&file)).unwrap_err().0;
    assert!(load().contains("cannot be read"), "{}", load());
    std::fs::write(&file, b"# x\n\xff").unwrap();
    assert!(load().contains("line 2 is not UTF-8"), "{}", load());
    std::fs::write(&file, vec![b'#'; LONGEST_FILE + 1]).unwrap();
    assert!(load().contains("longer than 1 MiB"), "{}", load());
    std::fs::write(&file, "\u{feff}use = [\"default\"]").unwrap();
    assert_eq!(Policy::load(Some(&file)).unwrap().file(), Some(file.as_path()));
}

/// Somebody else's repository must not keep the service busy for long.
#[test]
fn hostile_patterns_are_read_in_bounded_time() {
    let pattern = "{a*,b?,[a-z]*}".repeat(18);
    let many: String = (0..900)
        .map(|at| rule(&format!("r{at}"), "deny", &format!("read = {{ path = [\"{pattern}\"] }}")))
        .take_while({
            let mut length = 0;
            move |rule| {
                length += rule.len();
                length < 256 << 10
            }
        })
        .collect();
    let policy = Policy::load(None).unwrap();
    let begun = std::time::Instant::now();
    let narrowed = policy.narrowed("repo", &many);
    let took = begun.elapsed();
    assert!(narrowed.rule_count() > policy.rule_count() + 500, "{}", narrowed.rule_count());
    assert!(took < std::time::Duration::from_secs(30), "{took:?}");
}

/// A denial holds however a path or an address is written, and not for what lies in a root.
#[test]
fn words_are_found_in_every_form() {
    let run =
        r#"{ program = ["x"], any_word = ["of=/dev/sd*", "*169.254.1.1/*"], any_path = ["/*", "/etc/**"] }"#;
    let is_denied = |line: &str| {
        let example = serde_json::to_string(line).unwrap();
        let text = rule("a", "deny", &format!("run = {run}\nmatch = [{{ shell = {example} }}]"));
        Policy::parse("policy.toml", &text).is_ok()
    };
    for line in [
        "x of=/dev/sda",
        "x of=//dev/sda",
        "x of=/dev/./sda",
        "x of=/tmp/../dev/sda",
        "x of=../dev/sda",
        "x http://169.254.1.1/",
        "x http://0xa9.254.1.1/?a=b",
        "x --url=http://0251.254.257/",
        "x 0xa9fe0101",
        "x '[::ffff:169.254.1.1]:80'",
        "x /",
        "x //",
        "x /srv",
        "x /srv/",
        "x /srv/a/..",
        "x ../srv",
        "x /etc",
        "x /etc/a/b",
        "x //etc/./a",
    ] {
        assert!(is_denied(line), "{line}");
    }
    for line in [
        "x if=/dev/sda",
        "x of=dev/sda",
        "x http://169.254.1.10/",
        "x 1693",
        "x /srv/a",
        "x /workspace",
        "x /workspace/etc",
        "x etc",
        "x --option=/etc",
    ] {
        assert!(!is_denied(line), "{line}");
    }
}
