//! Every mistake is refused where it stands, with what to do about it.

use std::{
    ffi::OsString, fs, os::unix::ffi::OsStringExt as _, os::unix::fs::PermissionsExt as _, path::Path,
};

use super::{DEFAULTS, Fixture};

/// Asserts that `text` is refused at `place` with these words in what is
/// wrong, and these in the hint.
#[track_caller]
fn refuses(text: impl AsRef<[u8]>, place: &str, what: &str, hint: &str) {
    let refused = Fixture::new().refusal(text);
    let (first, second) = refused.split_once("\nhint: ").unwrap();
    // A place without a column is written `3:`.
    let after = if place.ends_with(':') { "" } else { ": " };
    assert!(first.starts_with(&format!("test.toml:{place}{after}")), "wanted {place}: {refused}");
    assert!(first.contains(what), "wanted {what:?}: {refused}");
    assert!(second.contains(hint), "wanted {hint:?}: {refused}");
}

/// Asserts that a variable is refused by name.
#[track_caller]
fn refuses_var(name: &str, value: &str, what: &str, hint: &str) {
    let refused = Fixture::new().var(name, value).load(None).unwrap_err().to_string();
    let (first, second) = refused.split_once("\nhint: ").unwrap();
    assert!(first.starts_with(&format!("environment variable {name}: ")), "{refused}");
    assert!(first.contains(what), "wanted {what:?}: {refused}");
    assert!(second.contains(hint), "wanted {hint:?}: {refused}");
}

#[test]
fn a_missing_file_is_an_error_only_if_it_was_asked_for() {
    let fixture = Fixture::new();
    let refused = fixture.load(Some(Path::new("/nowhere/x.toml"))).unwrap_err().to_string();
    assert!(
        refused.starts_with("/nowhere/x.toml: there is no such file\nhint: correct `--config`"),
        "{refused}"
    );
    let refused = fixture.load(Some(Path::new("nowhere.toml"))).unwrap_err().to_string();
    assert!(refused.starts_with('/'), "{refused}");
}

#[test]
fn f01_bad_toml_is_refused() {
    refuses("default = \n", "1:11", "", "correct the TOML");
    refuses("\n\n  default = \"x\n", "3:", "", "correct the TOML");
    refuses("[agents.claude\n", "1:", "", "correct the TOML");
    refuses("default = demo\n", "1:11", "", "quotes");
    refuses("default = 1979-05-27\n", "1:11", "date", "quotes");
    refuses(b"default = \"de\xffmo\"\n", "1:14", "not UTF-8", "UTF-8");
    refuses("[service]\nmax_connections = 99999999999999999999\n", "2:19", "too large", "");
}

#[test]
fn f01_duplicates_are_refused() {
    refuses("[agents.x]\ncommand = \"a\"\n[agents.x]\nargs = []\n", "3:", "duplicate", "join the two");
    refuses("default = \"demo\"\ndefault = \"demo\"\n", "2:1", "duplicate", "join the two");
}

#[test]
fn f01_unknown_keys_are_refused_with_a_guess() {
    refuses(
        "[agents.x]\ncommand = \"a\"\nidle_timout = \"1s\"\n",
        "3:1",
        "`idle_timout` in `[agents.x]`",
        "did you mean `idle_timeout`?",
    );
    refuses("defualt = \"demo\"\n", "1:1", "`defualt` at the top level", "did you mean `default`?");
    refuses("[agent.x]\ncommand = \"a\"\n", "1:2", "`agent`", "did you mean `agents`?");
    refuses("[service]\n  colour = 1\n", "2:3", "`colour` in `[service]`", "keys here: listen, ");
    refuses("[agents.x]\ncommand = \"a\"\nrestart = { withn = \"1s\" }\n", "3:13", "withn", "`within`");
    refuses("[agents.x]\ncommand = \"a\"\nname = \"y\"\n", "3:1", "unknown key `name`", "");
    refuses("\"a\\u001bb\" = 1\n", "1:1", "`a\\u{1b}b`", "");
}

#[test]
fn f01_wrong_types_are_refused() {
    refuses(
        "[service]\nmax_connections = \"4\"\n",
        "2:19",
        "must be a whole number that is not negative, not text",
        "without quotes",
    );
    refuses("[service]\nmax_connections = -4\n", "2:19", "not a negative number", "");
    refuses("[service]\nmax_connections = 4.5\n", "2:19", "fraction", "");
    refuses("default = 5\n", "1:11", "must be text, not a number", "quotes");
    refuses("roots = \"/srv\"\n", "1:9", "must be a list, not text", "[\"one\"");
    refuses("roots = [\"/srv\", 5]\n", "1:18", "must be text", "quotes");
    refuses("service = 5\n", "1:11", "must be a table", "[table]");
    refuses("agents = []\n", "1:10", "must be a table", "");
    refuses("[agents]\nclaude = \"x\"\n", "2:10", "must be a table", "");
    refuses("[agents.claude]\nenabled = \"yes\"\n", "2:11", "true or false", "without quotes");
    refuses("[agents.claude]\nhome = 1\n", "2:8", "must be text", "");
    refuses("[agents.claude]\nenv = [\"A\"]\n", "2:7", "must be a table", "");
    refuses("[agents.claude.command]\nx = 1\n", "1:16", "must be text, not a table", "");
}

#[test]
fn words_outside_a_closed_set_are_refused() {
    refuses(
        "[agents.claude]\nhome = \"isolate\"\n",
        "2:8",
        "`isolate`",
        "did you mean \"isolated\"? allowed are \"inherit\" and \"isolated\"",
    );
    refuses("[agents.claude]\nspawn_cwd = \"here\"\n", "2:13", "`here`", "\"session\" and \"root\"");
}

#[test]
fn bad_durations_and_addresses_are_refused() {
    refuses("[journal]\ncap = \"10\"\n", "2:7", "`10` is not a size", "\"10GiB\"");
    refuses("[journal]\ncap = 10\n", "2:7", "must be a size, not a number", "\"64MiB\"");
    refuses("[journal]\ncap = \"9999TiB\"\n", "2:7", "larger than any disk", "1024TiB");
    refuses("[journal]\ncap = \"1MiB\"\n", "2:7", "no room", "64MiB");
    refuses("[journal]\nrecording = \"often\"\n", "2:13", "often", "best-effort");
    refuses("[journal]\nkeep = \"7\"\n", "2:8", "`7` is not a duration", "\"7d\"");
    refuses("[journal]\ncup = \"1GiB\"\n", "2:1", "cup", "cap");
    refuses("[service]\ndrain_timeout = \"10\"\n", "2:17", "`10` is not a duration", "\"30s\"");
    refuses("[service]\ndrain_timeout = 10\n", "2:17", "must be a duration, not a number", "\"10s\"");
    refuses("[service]\ndrain_timeout = \"400d\"\n", "2:17", "longer than a year", "365d");
    refuses("[service]\nlisten = \"localhost\"\n", "2:10", "`localhost` is not an address", "IP:PORT");
    refuses("[service]\nlisten = \"127.0.0.1:70000\"\n", "2:10", "not an address", "IP:PORT");
    refuses(
        "[service]\nlisten = \"0.0.0.0:7420\"\n",
        "2:10",
        "can be reached from other hosts, and there is no TLS",
        "SSH tunnel",
    );
    Fixture::new().text("[service]\nlisten = \"[::1]:0\"\ndrain_timeout = \"0s\"\n").unwrap();
}

#[test]
fn agents_must_be_whole() {
    refuses("[agents.x]\ntitle = \"X\"\n", "1:9", "agent `x` has no `command`", "add command");
    refuses("[agents.claud]\nwarm = 2\n", "1:9", "has no `command`", "did you mean `agents.claude`?");
    refuses("[agents.claude]\ncommand = \"\"\n", "2:11", "has no `command`", "path of a program");
    refuses("[agents.My]\ncommand = \"x\"\n", "1:9", "`My` cannot be the name", "a-z");
    refuses("[agents.\"\"]\ncommand = \"x\"\n", "1:9", "cannot be the name", "a-z");
    refuses("default = \"claud\"\n", "1:11", "`claud`, which is no agent", "did you mean \"claude\"?");
    refuses("[agents.demo]\nenabled = false\n", "2:11", "not enabled", "another `default`");
}

#[test]
fn zero_is_refused_where_it_makes_no_sense() {
    for key in
        ["max_connections", "max_connections_per_user", "max_sessions_per_connection", "parallel_spawns"]
    {
        let at = format!("2:{}", key.len() + 4);
        refuses(format!("[service]\n{key} = 0\n"), &at, "must not be 0", "1 or more");
        refuses(format!("[service]\n{key} = 1000001\n"), &at, "too large", "at most 1000000");
    }
    for key in ["max", "sessions_per_process"] {
        refuses(format!("[agents.demo]\n{key} = 0\n"), "2:", "must not be 0", "1 or more");
    }
    for key in ["start_timeout", "warm_max_age"] {
        refuses(format!("[agents.demo]\n{key} = \"0s\"\n"), "2:", "must not be zero", "30s");
    }
    refuses("[service]\nstall_timeout = \"0ms\"\n", "2:17", "must not be zero", "");
    refuses("[ledger]\ncheckpoint_every = \"0s\"\n", "2:20", "must not be zero", "30s");
    refuses("[ledger]\ncheckpoint_command = [\"\"]\n", "2:22", "names no program", "PROGRAM");
    refuses("[ledger]\ncheckpoint_key_file = \"key\"\n", "2:23", "relative path", "");
    refuses("[agents.demo]\nrestart.intensity = 0\n", "2:21", "must not be 0", "");
    refuses("[agents.demo.restart]\nwithin = \"0s\"\n", "2:10", "must not be zero", "");
    refuses("[agents.demo.restart]\nbackoff = \"0s\"\n", "2:11", "must not be zero", "");
    Fixture::new().text("[agents.demo]\nwarm = 0\nwarm_total = 0\nidle_timeout = \"0s\"\n").unwrap();
}

#[test]
fn warm_beyond_its_total_is_refused_where_it_was_written() {
    refuses("[agents.demo]\nwarm = 5\n", "2:8", "warm = 5 is more than warm_total = 4", "raise warm_total");
    refuses("[agents.demo]\nwarm_total = 0\n", "2:14", "warm = 1 is more than warm_total = 0", "lower warm");
}

#[test]
fn relative_paths_are_refused() {
    refuses("roots = [\"/srv\", \"src\"]\n", "1:18", "`src` is a relative path", "from `/` or from `~/` on");
    refuses("roots = [\"\"]\n", "1:10", "relative", "");
    refuses("roots = [\"~alice/src\"]\n", "1:10", "another user's home", "");
    refuses("roots = [\"/srv/../etc\"]\n", "1:10", "contains `..`", "");
    refuses("roots = [\"/srv\\u0000\"]\n", "1:10", "NUL", "");
    refuses("[agents.demo]\ncwd = \".\"\n", "2:7", "relative", "");
    refuses("[agents.demo]\nroots = [\"x\"]\n", "2:10", "relative", "");
    refuses("[agents.demo]\nwarm_keys = [\"x\"]\n", "2:14", "relative", "");
    refuses("[agents.demo]\nfiles = { a = \"b\" }\n", "2:15", "relative", "");
    refuses("[agents.demo]\ncommand = \"./run\"\n", "2:11", "relative", "");
}

#[test]
fn what_no_process_can_be_given_is_refused() {
    refuses("[agents.demo]\ncommand = \"a\\u0000\"\n", "2:11", "NUL", "");
    refuses("[agents.demo]\nargs = [\"a\", \"a\\u0000\"]\n", "2:14", "NUL", "");
    refuses(
        "[agents.demo]\nenv = { A = \"secret\\u0000\" }\n",
        "2:13",
        "`agents.demo.env.A` contains a NUL",
        "",
    );
    refuses("[agents.demo]\nenv = { \"A=B\" = \"x\" }\n", "2:9", "`A=B` cannot be the name", "");
    refuses("[agents.demo]\nenv_from = [\"\"]\n", "2:13", "cannot be the name", "");
}

#[test]
fn files_need_a_home_of_their_own_and_stay_in_it() {
    refuses("[agents.claude]\nfiles = { a = \"/b\" }\n", "2:1", "needs a home", "home = \"isolated\"");
    for target in ["/a", "../a", "a/../../b", "", "~/a", "./a"] {
        let text = format!("[agents.demo]\nfiles = {{ {target:?} = \"/b\" }}\n");
        refuses(text, "2:11", "is not a path beneath the agent's home", "without `..`");
    }
    let config = Fixture::new().text("[agents.demo]\nfiles = { \".a/b\" = \"/c\" }\n").unwrap();
    assert_eq!(config.agents["demo"].files[Path::new(".a/b")], Path::new("/c"));
}

#[test]
fn without_a_home_the_line_that_needs_one_is_named() {
    let mut fixture = Fixture::new();
    fixture.env.clear();
    let refused = fixture.load(None).unwrap_err().to_string();
    let line = DEFAULTS.lines().position(|line| line.starts_with("roots = ")).unwrap() + 1;
    let wanted = format!("built-in agents.toml:{line}:10: `~` needs the home directory");
    assert!(refused.starts_with(&wanted), "{refused}");
    assert!(refused.contains("set HOME"), "{refused}");
    assert!(fixture.text("roots = [\"/srv\"]\n").is_ok());
}

#[test]
fn variables_that_name_no_key_are_refused() {
    refuses_var("CONDUCTOR_DEFUALT", "x", "names no key", "did you mean CONDUCTOR_DEFAULT?");
    refuses_var("CONDUCTOR_SERVICE__LISTN", "x", "names no key", "did you mean CONDUCTOR_SERVICE__LISTEN?");
    refuses_var("CONDUCTOR_SERVCE__LISTEN", "x", "names no key", "did you mean CONDUCTOR_SERVICE__LISTEN?");
    refuses_var("CONDUCTOR_SERVICE_LISTEN", "x", "names no key", "");
    refuses_var("CONDUCTOR_AGENTS__CLAUDE__WRAM", "1", "names no key", "CONDUCTOR_AGENTS__CLAUDE__WARM");
    refuses_var("CONDUCTOR_", "1", "names no key", "two underscores");
    refuses_var("CONDUCTOR_SERVICE__", "1", "names no key", "two underscores");
    refuses_var("CONDUCTOR_AGENTS____WARM", "1", "names no key", "two underscores");
}

#[test]
fn variables_with_bad_values_are_refused_by_name() {
    refuses_var("CONDUCTOR_SERVICE__MAX_CONNECTIONS", "many", "whole number", "without quotes");
    refuses_var("CONDUCTOR_SERVICE__MAX_CONNECTIONS", "-1", "not a negative number", "");
    refuses_var("CONDUCTOR_SERVICE__MAX_CONNECTIONS", "0", "must not be 0", "");
    refuses_var("CONDUCTOR_SERVICE__DRAIN_TIMEOUT", "10", "`10` is not a duration", "30s");
    refuses_var("CONDUCTOR_SERVICE__LISTEN", "10.0.0.1:1", "TLS", "tunnel");
    refuses_var("CONDUCTOR_SERVICE", "x", "must be a table", "");
    refuses_var("CONDUCTOR_ROOTS", "/srv", "must be a list", "[");
    refuses_var("CONDUCTOR_ROOTS", "[\"/srv\", \"x\"]", "`x` is a relative path", "");
    refuses_var("CONDUCTOR_AGENTS__CLAUD__WARM", "2", "has no `command`", "agents.claude");
    refuses_var("CONDUCTOR_AGENTS__CLAUDE__HOME", "mine", "`mine`", "\"inherit\"");
    refuses_var("CONDUCTOR_DEFAULT", "nobody", "no agent", "demo");
    let mut fixture = Fixture::new();
    fixture.env.push(("CONDUCTOR_DEFAULT".into(), OsString::from_vec(vec![0xff])));
    let refused = fixture.load(None).unwrap_err().to_string();
    assert!(
        refused.starts_with("environment variable CONDUCTOR_DEFAULT: its value is not UTF-8"),
        "{refused}"
    );
}

#[test]
fn the_file_is_blamed_for_its_own_mistakes_only() {
    let fixture = Fixture::new().var("CONDUCTOR_SERVICE__PARALLEL_SPAWNS", "2");
    assert!(fixture.refusal("[service]\nmax_connections = 0\n").starts_with("test.toml:2:19: "));
    let fixture = Fixture::new().var("CONDUCTOR_AGENTS__DEMO__WARM", "9");
    assert!(
        fixture
            .refusal("[agents.demo]\nwarm = 2\n")
            .starts_with("environment variable CONDUCTOR_AGENTS__DEMO__WARM: ")
    );
}

#[test]
fn f01_files_that_cannot_be_trusted_or_read_are_refused() {
    let fixture = Fixture::new();
    let refusal = |path: &Path| fixture.load(Some(path)).unwrap_err().to_string();
    let path = fixture.write("open.toml", "");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o646)).unwrap();
    let refused = refusal(&path);
    assert!(
        refused.contains("open.toml: may be changed by every user of this machine (mode 0646)"),
        "{refused}"
    );
    assert!(refused.contains("hint: take that right away: chmod o-w"), "{refused}");
    let refused = refusal(fixture.root.path());
    assert!(refused.contains(": is a directory\nhint: "), "{refused}");
    let refused = refusal(Path::new("/dev/null"));
    assert!(refused.contains("is not a regular file"), "{refused}");
    let refused = refusal(&fixture.write("large.toml", "#".repeat(1024 * 1024 + 1)));
    assert!(refused.contains("is larger than 1 MiB"), "{refused}");
    fixture.load(Some(&fixture.write("large.toml", "#".repeat(1024 * 1024)))).unwrap();
    // A name too long for the file system fails for everybody, root included.
    let refused = refusal(&fixture.root.path().join("x".repeat(300)));
    assert!(refused.contains("cannot be read: "), "{refused}");
}

#[test]
fn routes_that_lead_nowhere_are_refused() {
    refuses("[[route]]\nmodel = \"x\"\n", "1:", "to", "");
    refuses("[[route]]\nto = \"claud\"\n", "2:", "no agent `claud`", "did you mean \"claude\"?");
    refuses("[[route]]\nto = []\n", "2:", "leads nowhere", "name an agent");
    refuses("[[route]]\nto = \"demo\"\nfallback = [\"x\"]\n", "3:", "no agent `x`", "the agents are");
    refuses("[[route]]\nto = \"label:a=b\"\n", "2:", "no agent has the label `a=b`", "label:KEY=VALUE");
    refuses("[[route]]\nto = \"demo\"\nmodel = \"a[\"\n", "3:", "`a[` is no pattern", "anything");
    refuses("[[route]]\nto = \"demo\"\ncwd = \"src\"\n", "3:", "`src` is not a path", "from `/`");
    refuses("[[route]]\nto = \"demo\"\npick = \"any\"\n", "3:", "any", "least-busy");
    refuses("[[route]]\nto = 7\n", "2:", "", "");
    refuses(
        "[[route]]\nto = \"demo\"\nname = \"a\"\n[[route]]\nto = \"demo\"\nname = \"a\"\n",
        "6:",
        "name",
        "own",
    );
    refuses("[agents.demo]\nquota_errors = [\"(\"]\n", "2:", "no regular expression", "correct it");
}

#[test]
fn what_is_each_users_own_must_come_from_somewhere() {
    let agent = "[agents.x]\ncommand = \"a\"\n";
    refuses(format!("{agent}secrets = \"optional\"\n"), "3:11", "nowhere to get them from", "in [secrets]");
    refuses(format!("{agent}secrets = \"yes\"\n"), "3:11", "`yes`", "\"optional\" and \"required\"");
    refuses("[secrets]\ndir = \"secrets\"\n", "2:7", "relative path", "");
    refuses("[secrets]\ncommand = [\"vault\"]\n", "2:12", "relative path", "");
    let beneath = "roots = [\"/srv\"]\n[secrets]\ndir = \"/srv/x/secrets\"\n";
    refuses(beneath, "3:7", "agents may read what is beneath `/srv`", "outside of all `roots`");
    refuses("[secrets]\ntimeout = \"0s\"\n", "2:11", "must not be zero", "");
    refuses(
        "[secrets]\ndir = \"/s\"\ncommand = [\"/bin/p\"]\n",
        "3:11",
        "a directory or from a command",
        "remove one",
    );
    refuses(
        format!("{agent}home = \"user\"\nwarm_keys = [\"/srv\"]\n"),
        "4:13",
        "who have not come yet",
        "`warm_keys`",
    );
    refuses("[git]\nname = \"{user}\"\nemail = \"<x>\"\n", "3:9", "cannot be who commits", "{user}");
    refuses("[git]\nname = \"{user}\"\n", "1:2", "email", "");
    refuses("[users.\" ann\"]\n", "1:8", "no blanks around it", "as the user's token has it");
    refuses("[users.ann]\nteam = \"web\"\n", "2:1", "`team`", "keys here: git");
}

#[test]
fn f06_secrets_that_everyone_may_read_are_refused() {
    let secrets = [
        ("[ledger]\nurl = \"postgres://me:hunter2@db/ledger\"\n", "2:7: `ledger.url`"),
        ("[ledger]\nurl = \"postgres://me@db/ledger?password=hunter2\"\n", "2:7: `ledger.url`"),
        ("[feed]\nto = \"https://siem.example/hunter2\"\n", "2:6: `feed.to`"),
        ("[ledger]\nowner_url = \"postgres://me:hunter2@db/ledger\"\n", "2:13: `ledger.owner_url`"),
        (
            "[agents.claude]\nenv = { ANTHROPIC_API_KEY = \"hunter2\" }\n",
            "2:29: `agents.claude.env.ANTHROPIC_API_KEY`",
        ),
        ("[mcp.x]\ncommand = \"x\"\nenv = { my_token = \"hunter2\" }\n", "3:20: `mcp.x.env.my_token`"),
        (
            "[mcp.x]\nurl = \"https://x.example\"\nheaders = { Authorization = \"Bearer hunter2\" }\n",
            "3:29: `mcp.x.headers.Authorization`",
        ),
    ];
    for (text, place) in secrets {
        let fixture = Fixture::new();
        let file = fixture.write("test.toml", text);
        let load = |mode: u32| {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            fixture.load(Some(&file)).map(|_| ()).map_err(|refused| refused.to_string())
        };
        let refused = load(0o644).unwrap_err();
        assert!(refused.contains(&format!("test.toml:{place} counts as a secret")), "{refused}");
        assert!(refused.contains("chmod o-r") && !refused.contains("hunter2"), "{refused}");
        assert_eq!(load(0o640), Ok(()), "{text}");
    }
    // What is no address is said to be none, whoever may read it.
    let fixture = Fixture::new();
    let file = fixture.write("test.toml", "[feed]\nto = \"siem.example\"\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = fixture.load(Some(&file)).unwrap_err().to_string();
    assert!(refused.contains("2:6: `feed.to` is nowhere that events could go"), "{refused}");
    // The environment is its user's alone, and a name is no secret.
    let fixture = Fixture::new().var("CONDUCTOR_LEDGER__URL", "postgres://me:hunter2@db/ledger");
    let text = "[ledger]\nurl = \"postgres://me@db/ledger\"\n[agents.claude]\nenv_from = [\"MY_KEY\"]\n";
    let file = fixture.write("test.toml", text);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    fixture.load(Some(&file)).unwrap();
}
