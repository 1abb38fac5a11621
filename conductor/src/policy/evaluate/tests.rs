//! What verdicts come to, and what no set of rules can change about that. Facts are
//! made by hand here: how they are found is another matter.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use proptest::prelude::*;

use super::*;
use crate::policy::{Network, PathFact, ServerFact, UrlFact, Word};

/// Rules, each as its effect and its other keys; ids are letters in their order.
fn policy(rules: &[(&str, &str)]) -> Policy {
    Policy::parse("policy.toml", &text(rules, "")).unwrap_or_else(|error| panic!("{error}"))
}

fn text<S: AsRef<str>>(rules: &[(S, S)], prefix: &str) -> String {
    let one = |(at, (effect, rest)): (usize, &(S, S))| {
        let (effect, rest) = (effect.as_ref(), rest.as_ref());
        format!(
            "[[rule]]\nid = \"{prefix}r{at}\"\neffect = \"{effect}\"\nreason = \"{prefix}r{at}\"\n{rest}\n"
        )
    };
    rules.iter().enumerate().map(one).collect()
}

fn fact(path: &str) -> PathFact {
    let resolved = if path.starts_with('/') { path.to_owned() } else { format!("/w/{path}") };
    PathFact {
        given: path.into(),
        root: resolved.starts_with("/w/").then(|| "/w".into()),
        resolved: Some(resolved.into()),
        secret: path.contains(".env"),
        protected: (path.contains(".env") || path.contains(".git/")).then(|| "protected".into()),
        trouble: path.contains("trouble").then(|| "odd".into()),
    }
}

fn run(line: &str) -> SubAction {
    let mut words = line.split(' ').map(str::to_owned);
    let program = words.next().unwrap();
    let word = |text: String| Word {
        path: Some(fact(&text)),
        value: text.split_once('=').map(|(_, value)| fact(value)),
        text,
    };
    let (file, is_local) = match program.strip_prefix("./") {
        Some(local) => (format!("/w/{local}"), true),
        None => (format!("/usr/bin/{}", program.rsplit('/').next().unwrap()), false),
    };
    SubAction::Run(Command {
        file: Some(file.into()),
        is_local,
        words: words.map(word).collect(),
        cwd: "/w".into(),
        is_piped: false,
        program,
    })
}

fn fetch(scheme: &str, host: &str, port: u16, path: &str) -> SubAction {
    let (scheme, host, path) = (scheme.to_owned(), host.to_owned(), path.to_owned());
    let network = Network::Name;
    SubAction::Fetch(UrlFact { given: String::new(), scheme, host, port, path, network, trouble: None })
}

fn subject() -> Subject {
    Subject {
        user: "ann".into(),
        teams: vec!["core".into(), "web".into()],
        role: "developer".into(),
        agent: "codex".into(),
        mode: Some("edit".into()),
        model: None,
        cwd: "/srv/src/app".into(),
    }
}

fn decide(policy: &Policy, action: &SubAction) -> Effect {
    policy.evaluate(&subject(), std::slice::from_ref(action)).decision
}

use Effect::{Allow, Ask, Deny};

#[test]
fn programs_and_their_words() {
    let cases: &[(&str, &str, &str, Effect)] = &[
        ("allow", r#"run = { program = ["git"] }"#, "git", Allow),
        ("allow", r#"run = { program = ["git"] }"#, "git log", Ask),
        ("allow", r#"run = { program = ["git"] }"#, "git -v", Ask),
        ("allow", r#"run = { program = ["git"] }"#, "Git", Ask),
        ("allow", r#"run = { program = ["git"] }"#, "git2", Ask),
        ("allow", r#"run = { program = ["git"] }"#, "/usr/bin/git", Allow),
        ("allow", r#"run = { program = ["git"] }"#, "./git", Ask),
        ("allow", r#"run = { program = ["git"] }"#, "../usr/bin/git", Ask),
        ("allow", r#"run = { program = ["*"] }"#, "./git", Ask),
        ("allow", r#"run = { program = ["*"], local = true }"#, "./git", Allow),
        ("allow", r#"run = { program = ["*"], local = true }"#, "git", Ask),
        ("allow", r#"run = { program = ["git"], subcommand = ["log", "remote show"] }"#, "git log", Allow),
        (
            "allow",
            r#"run = { program = ["git"], subcommand = ["log", "remote show"] }"#,
            "git remote show",
            Allow,
        ),
        ("allow", r#"run = { program = ["git"], subcommand = ["log", "remote show"] }"#, "git remote", Ask),
        ("allow", r#"run = { program = ["git"], subcommand = ["log"] }"#, "git -C x log", Ask),
        (
            "allow",
            r#"run = { program = ["git"], subcommand = ["log"], globals = ["-P"] }"#,
            "git -P log",
            Allow,
        ),
        (
            "allow",
            r#"run = { program = ["git"], subcommand = ["log"], globals = ["-P"] }"#,
            "git log -P",
            Ask,
        ),
        ("allow", r#"run = { program = ["x"], words = "any" }"#, "x --y z /etc/passwd", Allow),
        ("allow", r#"run = { program = ["x"], subcommand = ["y"], words = "any" }"#, "x y --z", Allow),
        ("allow", r#"run = { program = ["x"], subcommand = ["y"], words = "any" }"#, "x --z y", Ask),
        ("deny", r#"run = { program = ["rm"] }"#, "rm -rf x", Deny),
        ("deny", r#"run = { program = ["rm"] }"#, "/bin/rm -rf x", Deny),
        ("deny", r#"run = { program = ["rm"] }"#, "./rm", Deny),
        ("deny", r#"run = { program = ["mkfs*"] }"#, "mkfs.ext4 x", Deny),
        ("deny", r#"run = { program = ["*"], local = true }"#, "./x", Deny),
        ("deny", r#"run = { program = ["*"], local = true }"#, "x", Ask),
        ("deny", r#"run = { program = ["git"], subcommand = ["push"] }"#, "git push -f", Deny),
        ("deny", r#"run = { program = ["git"], subcommand = ["push"] }"#, "git -C x push", Deny),
        ("deny", r#"run = { program = ["git"], subcommand = ["push"] }"#, "git -c a=b --x push", Deny),
        ("deny", r#"run = { program = ["git"], subcommand = ["push"] }"#, "git log push", Ask),
        ("deny", r#"run = { program = ["sort"], any_option = ["--output", "-o"] }"#, "sort x --outp=y", Deny),
        ("deny", r#"run = { program = ["sort"], any_option = ["--output", "-o"] }"#, "sort -uo y x", Deny),
        ("deny", r#"run = { program = ["sort"], any_option = ["--output", "-o"] }"#, "sort x o", Ask),
        ("deny", r#"run = { program = ["*"], any_word = ["*secret*"] }"#, "cat a/secret/b", Deny),
        ("deny", r#"run = { program = ["*"], any_word = ["*secret*"] }"#, "cat a/b", Ask),
        ("ask", r#"run = { program = ["x"], positionals = ["number"] }"#, "x 5", Ask),
    ];
    for (effect, rest, line, expected) in cases {
        assert_eq!(decide(&policy(&[(effect, rest)]), &run(line)), *expected, "{effect} {rest}: {line}");
    }
}

#[test]
fn a_path_says_nothing_about_a_program_of_another_name() {
    let allow = policy(&[("allow", r#"run = { program = ["git"], words = "any" }"#)]);
    let deny = policy(&[("deny", r#"run = { program = ["python3"] }"#)]);
    let with = |program: &str, file: Option<&str>| {
        let SubAction::Run(command) = run("git") else { panic!() };
        SubAction::Run(Command { program: program.into(), file: file.map(Into::into), ..command })
    };
    let link = with("/opt/git", Some("/usr/bin/python3"));
    assert_eq!((decide(&allow, &link), decide(&deny, &link)), (Ask, Deny));
    // What is found by its bare name is what the system calls so.
    assert_eq!(decide(&allow, &with("git", Some("/usr/lib/git-core/git2"))), Allow);
    assert_eq!(decide(&allow, &with("git", None)), Allow);
    assert_eq!(decide(&allow, &with("/usr/bin/git", None)), Ask);
    let everything = policy(&[("allow", r#"run = { program = ["*"], words = "any" }"#)]);
    assert_eq!(decide(&everything, &with("", None)), Ask);
}

#[test]
fn words_are_judged_as_what_they_are() {
    let rules = policy(&[
        ("allow", "read = {}"),
        ("allow", "write = { path = [\"out/**\"] }"),
        ("allow", "fetch = { host = [\"docs.rs\"] }"),
        ("deny", "read = { path = [\"secret/**\"] }"),
        ("allow", r#"run = { program = ["cat"], positionals = ["read*"] }"#),
        (
            "allow",
            r#"run = { program = ["cp"], options = ["--log=write", "-f=read"], positionals = ["read", "write"] }"#,
        ),
        ("allow", r#"run = { program = ["get"], options = ["--from=url"], positionals = ["url?"] }"#),
        ("ask", r#"run = { program = ["cat"], any_word = ["asked*"] }"#),
    ]);
    for (line, expected) in [
        ("cat", Allow),
        ("cat a b", Allow),
        ("cat /etc/passwd", Ask),
        ("cat a /etc/passwd", Ask),
        ("cat .env", Ask),
        ("cat .git/config", Allow),
        ("cat trouble", Ask),
        ("cat secret/a", Deny),
        ("cat -- secret/a", Deny),
        ("cat asked secret/a", Deny),
        ("cat -x secret/a", Ask),
        ("cp a out/b", Allow),
        ("cp a b", Ask),
        ("cp secret/a out/b", Deny),
        ("cp --log=out/l a out/b", Allow),
        ("cp --log out/l a out/b", Allow),
        ("cp --log=l a out/b", Ask),
        ("cp -f secret/x a out/b", Deny),
        ("get https://docs.rs/x", Allow),
        ("get https://evil.example/x", Ask),
        ("get --from=https://docs.rs/x", Allow),
        ("get --from=https://evil.example/x", Ask),
        ("get docs.rs", Ask),
    ] {
        assert_eq!(decide(&rules, &run(line)), expected, "{line}");
    }
    let verdict = rules.evaluate(&subject(), &[run("cp secret/a out/b")]);
    let shown: Vec<_> =
        verdict.sub_actions.iter().map(|each| (each.decision, each.rules.join(" "))).collect();
    assert_eq!(shown, [(Allow, "r5".into()), (Deny, "r3".into()), (Allow, "r1".into())]);
    assert_eq!((verdict.rule.as_deref(), verdict.reason.as_str()), (Some("r3"), "r3"));
    assert_eq!(verdict.rules, ["r3", "r0", "r1", "r5"]);
}

#[test]
fn the_mildest_way_to_read_words_counts() {
    let reads = ("allow", r#"run = { program = ["x"], positionals = ["read"] }"#);
    let texts = ("allow", r#"run = { program = ["x"], positionals = ["text"] }"#);
    let deny = ("deny", "read = {}");
    assert_eq!(decide(&policy(&[reads, deny]), &run("x a")), Deny);
    assert_eq!(decide(&policy(&[texts, deny]), &run("x a")), Allow);
    let verdict = policy(&[reads, texts, deny]).evaluate(&subject(), &[run("x a")]);
    assert_eq!((verdict.decision, verdict.sub_actions.len()), (Allow, 1));
    assert_eq!(verdict.sub_actions[0].rules, ["r1"]);
}

#[test]
fn paths() {
    for (effect, rest, path, expected) in [
        ("allow", "{}", "a", Allow),
        ("allow", "{}", "/etc/passwd", Ask),
        ("allow", "{}", ".env", Ask),
        ("allow", "{}", "trouble", Ask),
        ("allow", "{ inside = false }", "/etc/passwd", Allow),
        ("allow", "{ inside = false }", "a", Ask),
        ("allow", "{ protected = true }", ".env", Allow),
        ("allow", "{ protected = true }", "a", Ask),
        ("allow", "{ path = [\"*.md\"] }", "a.md", Allow),
        ("allow", "{ path = [\"*.md\"] }", "b/a.md", Ask),
        ("allow", "{ path = [\"/etc/*\"] }", "/etc/passwd", Ask),
        ("allow", "{ path = [\"/etc/*\"], inside = false }", "/etc/passwd", Allow),
        ("deny", "{}", "/etc/passwd", Deny),
        ("deny", "{}", "trouble", Deny),
        ("deny", "{ inside = false }", "a", Ask),
        ("deny", "{ inside = false }", "/a", Deny),
        ("deny", "{ protected = true }", ".env", Deny),
        ("deny", "{ protected = false }", ".env", Ask),
        ("deny", "{ path = [\"**/*.key\"] }", "/home/x.key", Deny),
    ] {
        for (key, action) in [("read", SubAction::Read(fact(path))), ("write", SubAction::Write(fact(path)))]
        {
            let rules = policy(&[(effect, &format!("{key} = {rest}"))]);
            assert_eq!(decide(&rules, &action), expected, "{effect} {key} {rest}: {path}");
            let other =
                if key == "read" { SubAction::Write(fact(path)) } else { SubAction::Read(fact(path)) };
            assert_eq!(decide(&rules, &other), Ask, "{effect} {key} {rest}: {path}");
        }
    }
    // Only what is secret is protected from being read.
    let hooks = fact(".git/hooks");
    assert_eq!(decide(&policy(&[("allow", "read = {}")]), &SubAction::Read(hooks.clone())), Allow);
    assert_eq!(decide(&policy(&[("allow", "write = {}")]), &SubAction::Write(hooks.clone())), Ask);
    assert_eq!(decide(&policy(&[("deny", "write = { protected = true }")]), &SubAction::Write(hooks)), Deny);
    let unresolved =
        SubAction::Read(PathFact { given: "a".into(), root: Some("/w".into()), ..PathFact::default() });
    assert_eq!(decide(&policy(&[("allow", "read = {}")]), &unresolved), Ask);
}

/// What is not public is meant only by a rule that names it.
#[test]
fn addresses_that_are_not_public() {
    for (host, network, by_star, by_name) in [
        ("docs.rs", Network::Name, Allow, Allow),
        ("1.1.1.1", Network::Public, Allow, Allow),
        ("127.0.0.1", Network::Loopback, Ask, Allow),
        ("10.0.0.1", Network::Private, Ask, Allow),
        ("169.254.169.254", Network::LinkLocal, Ask, Allow),
        ("odd", Network::None, Ask, Allow),
    ] {
        let fact =
            UrlFact { host: host.into(), network, scheme: "https".into(), port: 443, ..UrlFact::default() };
        let fetch = SubAction::Fetch(fact);
        assert_eq!(decide(&policy(&[("allow", r#"fetch = { host = ["*"] }"#)]), &fetch), by_star, "{host}");
        let named = format!("fetch = {{ host = [\"{host}\"] }}");
        assert_eq!(decide(&policy(&[("allow", &named)]), &fetch), by_name, "{host}");
    }
}

#[test]
fn addresses() {
    for (effect, rest, (scheme, host, port, path), expected) in [
        ("allow", r#"{ host = ["docs.rs"] }"#, ("https", "docs.rs", 443, "/"), Allow),
        ("allow", r#"{ host = ["docs.rs"] }"#, ("https", "docs.rs", 8443, "/"), Ask),
        ("allow", r#"{ host = ["docs.rs"] }"#, ("http", "docs.rs", 80, "/"), Ask),
        ("allow", r#"{ host = ["docs.rs"] }"#, ("https", "docs.rs.evil.example", 443, "/"), Ask),
        ("allow", r#"{ host = ["docs.rs"] }"#, ("https", "a.docs.rs", 443, "/"), Ask),
        ("allow", r#"{ host = ["*.docs.rs"] }"#, ("https", "a.docs.rs", 443, "/"), Allow),
        ("allow", r#"{ host = ["*.docs.rs"] }"#, ("https", "adocs.rs", 443, "/"), Ask),
        ("allow", r#"{ host = ["*.docs.rs"] }"#, ("https", "docs.rs", 443, "/"), Ask),
        ("allow", r#"{ scheme = ["http"], host = ["x"] }"#, ("http", "x", 80, "/"), Allow),
        ("allow", r#"{ scheme = ["http"], host = ["x"], port = [8080] }"#, ("http", "x", 8080, "/"), Allow),
        ("allow", r#"{ scheme = ["http"], host = ["x"], port = [8080] }"#, ("http", "x", 80, "/"), Ask),
        ("allow", r#"{ scheme = ["ftp"], host = ["x"] }"#, ("ftp", "x", 21, "/"), Ask),
        ("allow", r#"{ host = ["x"], path = ["/api/**"] }"#, ("https", "x", 443, "/api/a/b"), Allow),
        ("allow", r#"{ host = ["x"], path = ["/api/**"] }"#, ("https", "x", 443, "/apis"), Ask),
        ("allow", r#"{ host = ["*"] }"#, ("https", "", 443, "/"), Ask),
        ("deny", r#"{ host = ["*"] }"#, ("ftp", "x", 21, "/"), Deny),
        ("deny", r#"{ host = ["*evil*"] }"#, ("http", "an.evil.example", 99, "/"), Deny),
        ("deny", r#"{ scheme = ["http"] }"#, ("https", "x", 443, "/"), Ask),
    ] {
        let rules = policy(&[(effect, &format!("fetch = {rest}"))]);
        assert_eq!(
            decide(&rules, &fetch(scheme, host, port, path)),
            expected,
            "{effect} {rest} {host}:{port}"
        );
    }
    let SubAction::Fetch(fact) = fetch("https", "docs.rs", 443, "/") else { panic!() };
    let odd = SubAction::Fetch(UrlFact { trouble: Some("user information".into()), ..fact });
    assert_eq!(decide(&policy(&[("allow", "fetch = {}")]), &odd), Ask);
    assert_eq!(decide(&policy(&[("deny", "fetch = {}")]), &odd), Deny);
}

#[test]
fn all_other_sub_actions() {
    let text = str::to_owned;
    let server = |known: Option<&str>, is_remote| {
        SubAction::Server(ServerFact {
            name: "db".into(),
            known: known.map(Into::into),
            transport: "stdio".into(),
            is_remote,
            shown: String::new(),
        })
    };
    let mcp = SubAction::Mcp { server: text("github"), tool: text("get_issue") };
    let setting = SubAction::Setting { id: text("effort"), value: text("high") };
    for (rest, action, expected) in [
        (r#"mcp = { server = ["github"], tool = ["get_*"] }"#, &mcp, Allow),
        (r#"mcp = { server = ["github"] }"#, &mcp, Allow),
        (r#"mcp = { tool = ["set_*"] }"#, &mcp, Ask),
        (r#"mcp = { server = ["git"] }"#, &mcp, Ask),
        (r#"tool = ["get_*"]"#, &mcp, Ask),
        (r#"tool = ["Todo*"]"#, &SubAction::Tool { name: text("TodoWrite") }, Allow),
        (r#"tool = ["Todo"]"#, &SubAction::Tool { name: text("TodoWrite") }, Ask),
        (r#"set_mode = ["plan"]"#, &SubAction::Mode { id: text("plan") }, Allow),
        (r#"set_mode = ["plan"]"#, &SubAction::Mode { id: text("bypass") }, Ask),
        (r#"set_model = ["*"]"#, &SubAction::Mode { id: text("plan") }, Ask),
        (r#"set_model = ["*"]"#, &SubAction::Model { id: text("a/b") }, Allow),
        (r#"setting = { id = ["effort"], value = ["*"] }"#, &setting, Allow),
        (r#"setting = { id = ["effort"], value = ["low"] }"#, &setting, Ask),
        (r#"use_agent = ["demo"]"#, &SubAction::Agent { name: text("demo") }, Allow),
        (r#"use_agent = ["demo"]"#, &SubAction::Agent { name: text("codex") }, Ask),
        (r#"server = {}"#, &server(Some("db"), false), Allow),
        (r#"server = {}"#, &server(None, false), Ask),
        (r#"server = { name = ["db"] }"#, &server(None, false), Ask),
        (r#"server = { name = ["db"] }"#, &server(Some("other"), false), Ask),
        (r#"server = { name = ["other"] }"#, &server(Some("other"), false), Allow),
        (r#"server = { known = false }"#, &server(None, true), Allow),
        (r#"server = { remote = false }"#, &server(Some("db"), true), Ask),
        (r#"server = { transport = ["http"] }"#, &server(Some("db"), true), Ask),
    ] {
        assert_eq!(decide(&policy(&[("allow", rest)]), action), expected, "{rest} {action:?}");
    }
    for (rest, action, expected) in [
        (r#"server = { name = ["db"] }"#, server(Some("other"), false), Deny),
        (r#"server = { known = false, remote = true }"#, server(None, true), Deny),
        (r#"server = { known = false, remote = true }"#, server(None, false), Ask),
        ("anything = true", SubAction::unknown("x"), Deny),
        ("anything = true", mcp, Deny),
        (r#"tool = ["*"]"#, SubAction::unknown("x"), Ask),
    ] {
        assert_eq!(decide(&policy(&[("deny", rest)]), &action), expected, "{rest} {action:?}");
    }
}

#[test]
fn whom_and_where() {
    for (rest, expected) in [
        (r#"who = { user = ["ann"] }"#, Allow),
        (r#"who = { user = ["a*", "bob"] }"#, Allow),
        (r#"who = { user = ["bob"] }"#, Ask),
        (r#"who = { user = ["ann"], team = ["ops"] }"#, Ask),
        (r#"who = { team = ["ops", "web"] }"#, Allow),
        (r#"who = { role = ["admin"] }"#, Ask),
        (r#"who = { role = ["developer"] }"#, Allow),
        (r#"agent = ["claude", "codex*"]"#, Allow),
        (r#"agent = ["claude"]"#, Ask),
        (r#"mode = ["edit"]"#, Allow),
        (r#"mode = [""]"#, Ask),
        (r#"model = [""]"#, Allow),
        (r#"model = ["?*"]"#, Ask),
        (r#"root = ["/srv/src/**"]"#, Allow),
        (r#"root = ["/srv/src"]"#, Ask),
        (r#"root = ["/srv/*"]"#, Ask),
        (r#"root = ["**"]"#, Allow),
        (r#"root = ["/srv/src/app"]"#, Allow),
        ("", Allow),
    ] {
        let rules = policy(&[("allow", &format!("{rest}\ntool = [\"*\"]"))]);
        assert_eq!(decide(&rules, &SubAction::Tool { name: "T".into() }), expected, "{rest}");
    }
}

#[test]
fn the_strictest_counts_and_says_why() {
    let rules =
        policy(&[("allow", "tool = [\"*\"]"), ("ask", "tool = [\"b*\"]"), ("deny", "tool = [\"bc*\"]")]);
    let tools = |names: &[&str]| {
        names.iter().map(|name| SubAction::Tool { name: (*name).into() }).collect::<Vec<_>>()
    };
    let verdict = |names: &[&str]| rules.evaluate(&subject(), &tools(names));
    assert_eq!(verdict(&["a"]).decision, Allow);
    assert_eq!(verdict(&["a", "b"]).rule.as_deref(), Some("r1"));
    let denied = verdict(&["a", "b", "bc"]);
    assert_eq!((denied.decision, denied.rule.as_deref(), denied.reason.as_str()), (Deny, Some("r2"), "r2"));
    assert_eq!(denied.rules, ["r2", "r1", "r0"]);
    assert_eq!(denied.clone().non_interactive(), denied);
    assert_eq!(verdict(&["a"]).non_interactive(), verdict(&["a"]));
    let asked = verdict(&["b"]).non_interactive();
    assert_eq!(asked.decision, Deny);
    assert!(
        asked.reason.starts_with("r1 ") && asked.reason.contains("nobody can be asked"),
        "{}",
        asked.reason
    );

    let nothing = rules.evaluate(&subject(), &[]);
    assert_eq!((nothing.decision, nothing.rule), (Ask, None));
    let unknown = rules.evaluate(&subject(), &[tools(&["a"]).remove(0), SubAction::unknown("a \u{1b} loop")]);
    assert_eq!((unknown.decision, unknown.rule), (Ask, None));
    assert!(unknown.reason.contains("loop"), "{}", unknown.reason);
}

#[test]
fn too_many_words_are_not_allowed() {
    let rules = policy(&[
        ("allow", r#"run = { program = ["cat"], positionals = ["text*"] }"#),
        ("deny", r#"run = { program = ["*"], any_word = ["bad"] }"#),
    ]);
    let line = |count: usize| format!("cat{}", " x".repeat(count));
    assert_eq!(decide(&rules, &run(&line(MOST_WORDS))), Allow);
    assert_eq!(decide(&rules, &run(&line(MOST_WORDS + 1))), Ask);
    assert_eq!(decide(&rules, &run(&(line(MOST_WORDS + 1) + " bad"))), Deny);
    let half = run(&line(MOST_WORDS / 2 + 1));
    assert_eq!(rules.evaluate(&subject(), &[half.clone(), half]).decision, Ask);
}

/// What rules can be about in what follows, and what can be done: few enough to meet often.
const WHATS: &[&str] = &[
    "read = {}",
    "read = { path = [\"a/**\"] }",
    "read = { inside = false }",
    "write = { path = [\"**/*.md\"] }",
    "write = { protected = true }",
    "run = { program = [\"x\"] }",
    "run = { program = [\"x\"], flags = \"ab\", positionals = [\"text*\"] }",
    "run = { program = [\"x\"], positionals = [\"read*\"] }",
    "run = { program = [\"x\"], positionals = [\"write\"] }",
    "run = { program = [\"x\", \"y\"], subcommand = [\"a\"], options = [\"--in=read\"] }",
    "run = { program = [\"*\"], words = \"any\" }",
    "run = { program = [\"y\"], local = true, positionals = [\"text\"] }",
    "fetch = { host = [\"docs.rs\"] }",
    "tool = [\"t*\"]",
    "agent = [\"other\"]\nread = {}",
    "who = { team = [\"web\"] }\nrun = { program = [\"y\"], positionals = [\"text*\"] }",
];

/// As above, for rules that do not allow only.
const STRICT: &[&str] = &[
    "anything = true",
    "run = { program = [\"x\"], any_option = [\"-b\"] }",
    "run = { program = [\"*\"], any_word = [\"a*\"] }",
    "run = { program = [\"?\"], subcommand = [\"a\"] }",
];

fn actions() -> impl Strategy<Value = Vec<SubAction>> {
    let one = prop_oneof![
        prop::sample::select(vec![
            "x",
            "x a",
            "x -a b",
            "x -ab a/b.md",
            "x -b",
            "y a",
            "y a --in=a/b",
            "./y a",
            "x /etc/x",
            "z a",
            "x .env",
            "x trouble",
            "y a --in a/b",
        ])
        .prop_map(run),
        prop::sample::select(vec!["a/b", "b.md", "/etc/x", ".env", "trouble"])
            .prop_map(|path| SubAction::Read(fact(path))),
        prop::sample::select(vec!["a/b.md", "b", "/etc/x.md", ".git/x"])
            .prop_map(|path| SubAction::Write(fact(path))),
        Just(fetch("https", "docs.rs", 443, "/")),
        Just(SubAction::Tool { name: "t1".into() }),
        Just(SubAction::unknown("?")),
    ];
    prop::collection::vec(one, 1..4)
}

fn strict_rule() -> impl Strategy<Value = (String, String)> {
    let what = prop::sample::select([WHATS, STRICT].concat());
    (prop::sample::select(vec!["ask", "deny"]), what).prop_map(|(effect, what)| {
        // Only a rule that allows says so.
        (effect.to_owned(), what.replace(", words = \"any\"", ""))
    })
}

fn allow_rule() -> impl Strategy<Value = (String, String)> {
    prop::sample::select(WHATS.to_vec()).prop_map(|what| ("allow".to_owned(), what.to_owned()))
}

fn some_rules() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(prop_oneof![allow_rule(), allow_rule(), strict_rule()], 1..8)
}

fn of(text: &str) -> Policy {
    Policy::parse("policy.toml", text).unwrap_or_else(|error| panic!("{error}"))
}

proptest! {
    #[test]
    fn order_means_nothing(
        (rules, shuffled) in some_rules().prop_flat_map(|rules| {
            let rules: Vec<String> = (0..rules.len()).map(|at| text(&rules[at..=at], &format!("n{at}"))).collect();
            (Just(rules.clone()), Just(rules).prop_shuffle())
        }),
        actions in actions(),
    ) {
        let (one, other) = (of(&rules.concat()), of(&shuffled.concat()));
        prop_assert_eq!(one.evaluate(&subject(), &actions), other.evaluate(&subject(), &actions));
    }

    #[test]
    fn another_ask_or_deny_never_makes_it_milder(rules in some_rules(), more in strict_rule(), actions in actions()) {
        let before = of(&text(&rules, "")).evaluate(&subject(), &actions).decision;
        let after = of(&(text(&rules, "") + &text(&[more], "more"))).evaluate(&subject(), &actions).decision;
        prop_assert!(after >= before);
    }

    /// A rule that allows a command says what its words are, and those may be denied; but that is
    /// then what is said about them on their own.
    #[test]
    fn another_allow_never_makes_it_stricter(rules in some_rules(), more in allow_rule(), actions in actions()) {
        let before = of(&text(&rules, "")).evaluate(&subject(), &actions).decision;
        let policy = of(&(text(&rules, "") + &text(&[more], "more")));
        let after = policy.evaluate(&subject(), &actions);
        let of_words = after.sub_actions.iter().filter(|each| !actions.contains(&each.action));
        let own = of_words.map(|each| policy.evaluate(&subject(), std::slice::from_ref(&each.action)).decision).max();
        prop_assert!(after.decision <= before.max(own.unwrap_or(Allow)));
    }

    #[test]
    fn layers_only_narrow(
        rules in some_rules(),
        layer in prop_oneof![
            prop::collection::vec(strict_rule(), 0..5).prop_map(|rules| text(&rules, "")),
            some_rules().prop_map(|rules| text(&rules, "")),
            "\\PC{0,80}",
        ],
        actions in actions(),
    ) {
        let policy = of(&text(&rules, ""));
        let before = policy.evaluate(&subject(), &actions).decision;
        let narrowed = policy.narrowed("repo", &layer);
        let after = narrowed.evaluate(&subject(), &actions).decision;
        prop_assert!(after >= before);
        prop_assert!(narrowed.narrowed("user", &layer).evaluate(&subject(), &actions).decision >= after);
    }

    #[test]
    fn what_is_not_understood_is_never_allowed(rules in some_rules(), actions in actions()) {
        let policy = of(&text(&rules, ""));
        let verdict = policy.evaluate(&subject(), &actions);
        let odd = |action: &SubAction| match action {
            SubAction::Unknown { .. } => true,
            SubAction::Read(fact) | SubAction::Write(fact) => fact.trouble.is_some() || fact.resolved.is_none(),
            SubAction::Fetch(fact) => fact.trouble.is_some(),
            _ => false,
        };
        for each in &verdict.sub_actions {
            prop_assert!(!odd(&each.action) || each.decision != Allow, "{:?}", each);
        }
        prop_assert!(verdict.sub_actions.iter().all(|each| each.decision <= verdict.decision));
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in prop_oneof![
        "\\PC{0,200}",
        "(\\[\\[rule\\]\\]\n|id = \"[a-c]\"\n|effect = \"(allow|ask|deny)\"\n|reason = \"x\"\n|run = \\{ program = \\[\"[*a-z\\[{]{0,3}\"\\], options = \\[\"[-a#=?]{0,4}\"\\] \\}\n|read = \\{ path = \\[\"[a*/{,}\\[\\]~.]{0,6}\"\\] \\}\n|use = \\[\"default\"\\]\n|match = \\[\\{ shell = \"[a-z |;<>$]{0,9}\" \\}\\]\n){0,8}",
    ]) {
        let _ = Policy::parse("policy.toml", &text);
        let _ = crate::policy::rules::lint::check(&text);
        // What is narrowed does not matter; reading a preset each time would take most of the time.
        let base = "[[rule]]\nid = \"a\"\neffect = \"ask\"\nreason = \"x\"\nanything = true\n";
        let _ = of(base).narrowed("repo", &text);
    }
}
