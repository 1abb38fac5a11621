//! Lines, and what must be found in them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::*;
use crate::policy::Resolver;

/// A disk with one link, `/ws/link`, which leads to `/else/where`, and one local program, `/ws/bin/tool`.
struct Small;

impl Resolver for Small {
    fn path(&self, cwd: &Path, given: &str) -> PathFact {
        let mut resolved = PathBuf::new();
        for component in cwd.join(given).components() {
            match component {
                Component::ParentDir => drop(resolved.pop()),
                Component::CurDir => {}
                other => resolved.push(other),
            }
            if resolved == Path::new("/ws/link") {
                resolved = "/else/where".into();
            }
        }
        let root = resolved.starts_with("/ws").then(|| "/ws".into());
        PathFact { given: given.into(), resolved: Some(resolved), root, ..PathFact::default() }
    }

    fn program(&self, cwd: &Path, name: &str) -> (Option<PathBuf>, bool) {
        if name.contains('/') {
            let file = cwd.join(name);
            let is_local = file.starts_with("/ws");
            (Some(file), is_local)
        } else {
            (Some(Path::new("/usr/bin").join(name)), false)
        }
    }
}

fn ground() -> Ground<'static> {
    Ground { cwd: Path::new("/ws"), resolver: &Small }
}

/// A sub-action in short: `run git log @/ws`, `read /ws/x`, `unknown …`.
fn short(sub: &SubAction) -> String {
    match sub {
        SubAction::Run(command) => {
            let mut parts = vec![if command.is_local { "run-local" } else { "run" }.to_owned()];
            parts.push(command.program.clone());
            parts.extend(command.words.iter().map(|word| word.text.clone()));
            if command.cwd != Path::new("/ws") {
                parts.push(format!("@{}", command.cwd.display()));
            }
            if command.is_piped {
                parts.push("<piped".into());
            }
            parts.join(" ")
        }
        SubAction::Read(fact) => format!("read {}", fact.resolved.as_ref().unwrap().display()),
        SubAction::Write(fact) => format!("write {}", fact.resolved.as_ref().unwrap().display()),
        SubAction::Unknown { what } => format!("unknown {what}"),
        other => panic!("{other:?} does not come from a shell"),
    }
}

fn found(text: &str) -> Vec<String> {
    line(text, &ground()).iter().map(short).collect()
}

fn is_unknown(subs: &[SubAction]) -> bool {
    subs.iter().any(|sub| matches!(sub, SubAction::Unknown { .. }))
}

#[test]
fn literal_lines_are_read_exactly() {
    for (text, expected) in [
        ("ls", &["run ls"][..]),
        ("  ls   -la  ", &["run ls -la"]),
        ("git log --oneline -n 5", &["run git log --oneline -n 5"]),
        (
            "git show HEAD~2 HEAD^ stash@{0} v1^{commit} main@{u}",
            &["run git show HEAD~2 HEAD^ stash@{0} v1^{commit} main@{u}"],
        ),
        ("echo 'a b' \"c d\" e\\ f g'h'\"i\"", &["run echo a b c d e f ghi"]),
        ("grep -E '^\\w+$' \"a\\.b\"", &["run grep -E ^\\w+$ a\\.b"]),
        ("grep \"\\\"x\\\" \\\\ \\$y\"", &["run grep \"x\" \\ $y"]),
        ("grep \\$x \\*", &["run grep $x *"]),
        ("rg '$(rm x)' '`y`' '!z'", &["run rg $(rm x) `y` !z"]),
        ("a && b || c ; d | e\nf", &["run a", "run b", "run c", "run d", "run e <piped", "run f"]),
        ("a &&\n\n b |\n c", &["run a", "run b", "run c <piped"]),
        ("a;\nb;", &["run a", "run b"]),
        ("\n\na\n\t b\n", &["run a", "run b"]),
        // To some shells it is no comment.
        ("# look around\nls # all of it\n#", &["run ls", "run ls # all of it"]),
        ("cargo test 2>&1 | tail -5", &["run cargo test", "run tail -5 <piped"]),
        ("ls >/dev/null 2>/dev/null </dev/null", &["run ls"]),
        ("wc -l <x", &["read /ws/x", "run wc -l <piped"]),
        (">&2 echo hi 1>&2", &["run echo hi"]),
        ("echo 2 >&1", &["run echo 2"]),
        ("find . ! -name x", &["run find . ! -name x"]),
        ("cat --file=a=b =", &["run cat --file=a=b ="]),
        ("ls päron/日本", &["run ls päron/日本"]),
        (
            "test -f x && test a = b && test ! -d y && test 1 -lt 2",
            &["run test -f x", "run test a = b", "run test ! -d y", "run test 1 -lt 2"],
        ),
        (
            "printf '%s: %d%%\\n' a",
            &[
                "run printf %s: %d%%\\n a",
                "unknown `printf` may set variables, or evaluate its arguments, in some shells",
            ],
        ),
        ("printf '%s %5.2f\\n' 1 2.5", &["run printf %s %5.2f\\n 1 2.5"]),
        ("printf '%s\\n' a b", &["run printf %s\\n a b"]),
        ("command -v git", &["run command -v git"]),
        ("./bin/tool x", &["run-local ./bin/tool x"]),
        ("", &["unknown a command line that does nothing"]),
        ("# nothing", &["unknown a command line that does nothing"]),
    ] {
        assert_eq!(found(text), expected, "{text:?}");
    }
}

#[test]
fn whatever_is_not_literal_is_unknown() {
    let special = [
        "ls << E\nE",
        "ls <<- E\nE",
        "ls >/dev/nul\\\nl",
        "ls \\\n-la",
        "l\\\ns",
        "ls\n&& ls",
        "ls\r\nls",
        "ls\u{a0}-la",
        "ls \u{202e}x",
        "ls a\0b",
        "ls\u{200b}",
        "ls '\u{e0041}'",
        "ls 'a\nb'",
        "ls \"a\nb\"",
        "ls 'a\tb'",
        "ls\ta",
        "ls a\t",
        "cd a\nls",
    ];
    let lines = include_str!("tests/unknown.txt").lines().chain(special);
    let understood: Vec<_> = lines.filter(|text| !is_unknown(&line(text, &ground()))).collect();
    assert!(understood.is_empty(), "these were understood: {understood:#?}");
}

#[test]
fn what_can_be_told_is_told() {
    for (text, expected) in [
        ("echo $(rm -rf /)", "run rm -rf /"),
        ("echo \"`rm x`\"", "run rm x"),
        ("if true; then rm x; fi", "run rm x"),
        ("(rm x)", "run rm x"),
        ("A=1 rm x", "run rm x"),
        ("! rm x", "run rm x"),
        ("rm x &", "run rm x"),
        ("rm $x", "run rm $x"),
        ("ls > a", "write /ws/a"),
        ("ls < a", "read /ws/a"),
        ("ls < a", "run ls <piped"),
        ("ls <> a", "write /ws/a"),
        ("ls >& a", "write /ws/a"),
        ("ls &> a", "write /ws/a"),
        ("cat <<E > x\n$(y)\nE\nrm z", "run rm z"),
        ("cat <<E > x\nfoo\nE\nrm z", "write /ws/x"),
        ("sudo rm x", "run rm x"),
        ("sudo rm x", "run sudo rm x"),
        ("sudo -u root rm x", "run rm x"),
        ("ls | xargs -n 1 rm -f", "run rm -f <piped"),
        ("find . -name x -exec rm -f {} +", "run rm -f {}"),
        ("find a b -delete", "write /ws/b"),
        ("find -delete", "write /ws"),
        ("find -- a -delete", "write /ws/a"),
        ("find a -- -delete", "write /ws/a"),
        ("find -- . -fprintf out x", "write /ws/out"),
        ("find . -fprint out", "write /ws/out"),
        ("bash -lc 'rm x'", "run rm x"),
        ("env A=1 rm x", "run rm x"),
        ("exec rm x", "run rm x"),
        ("cd a; rm x", "run rm x @/ws/a"),
        ("\u{200b}rm; rm x", "run rm x"),
    ] {
        let found = found(text);
        assert!(found.iter().any(|sub| sub == expected), "{text:?}: {found:#?}");
    }
}

/// All that is protected beneath a root goes with it.
#[test]
fn find_removes_what_is_protected_with_the_rest() {
    for (text, is_protected, is_doubtful) in [
        ("find . -delete", true, false),
        ("find -type f -delete", true, false),
        ("find a . -delete", true, false),
        ("find . -name x -o -delete", true, false),
        ("find . -name x -delete", false, true),
        ("find . -type d -empty -delete", false, true),
        ("find . ! -empty -delete", true, false),
        ("find node_modules -delete", false, true),
        ("find . -fprint node_modules", false, false),
        ("find a -delete", false, false),
    ] {
        let subs = line(text, &ground());
        let is_all = |sub: &SubAction| matches!(sub, SubAction::Write(fact) if fact.protected.is_some());
        assert_eq!((subs.iter().any(is_all), is_unknown(&subs)), (is_protected, is_doubtful), "{text}");
    }
}

#[test]
fn the_text_of_a_here_document_is_no_command() {
    let found = found("cat <<'E'\nrm x\nE\nls");
    assert!(!found.iter().any(|sub| sub.starts_with("run rm")), "{found:?}");
    assert!(found.contains(&"run ls".to_owned()), "{found:?}");
}

#[test]
fn directories_are_followed() {
    for (text, expected) in [
        ("cd a && ls", &["read /ws/a", "run ls @/ws/a"][..]),
        ("cd /x/y && ls && cd .. && ls", &["read /x/y", "run ls @/x/y", "read /x", "run ls @/x"]),
        ("cd a && ls b && cd .. && ls c", &["read /ws/a", "run ls b @/ws/a", "read /ws", "run ls c"]),
        ("cd link && ls", &["read /else/where", "run ls @/else/where"]),
        ("ls && cd a && ls | cat", &["run ls", "read /ws/a", "run ls @/ws/a", "run cat @/ws/a <piped"]),
        ("ls; cd a", &["run ls", "read /ws/a"]),
        ("cd a && ./tool", &["read /ws/a", "run-local ./tool @/ws/a"]),
        ("sh -c 'cd a && ls' && ls", &["read /ws/a", "run ls @/ws/a", "run ls"]),
    ] {
        assert_eq!(found(text), expected, "{text:?}");
    }
}

#[test]
fn wrappers_are_opened() {
    for (text, expected) in [
        ("env ls -l", &["run ls -l"][..]),
        ("env", &["run env"]),
        ("timeout 5 ls", &["run ls"]),
        ("timeout -k 1s -s KILL 0.5m ls", &["run ls"]),
        ("timeout --signal=TERM 5 ls", &["run ls"]),
        ("nice ls", &["run ls"]),
        ("nice -n -5 ls", &["run ls"]),
        ("stdbuf -oL -e0 ls", &["run ls"]),
        ("time ls | cat", &["run ls", "run cat <piped"]),
        ("ls | time cat", &["run ls", "run cat <piped"]),
        ("nohup ls", &["write /ws/nohup.out", "run ls"]),
        ("command ls", &["run ls"]),
        ("builtin echo x", &["run echo x"]),
        ("bash -c 'ls -l && cat x'", &["run ls -l", "run cat x"]),
        ("/bin/sh -c ls", &["run ls"]),
        ("x | sh -c 'cat; cat'", &["run x", "run cat <piped", "run cat <piped"]),
        ("env timeout 5 nice bash -c 'timeout 1 ls'", &["run ls"]),
        ("./env ls", &["run-local ./env ls", "run ls"]),
        ("./sh -c ls", &["run-local ./sh -c ls", "run ls"]),
    ] {
        assert_eq!(found(text), expected, "{text:?}");
    }
}

#[test]
fn arguments_without_a_shell_are_literal() {
    let run = |words: &[&str]| {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        argv(&words, &ground()).iter().map(short).collect::<Vec<_>>()
    };
    assert_eq!(run(&["ls", "*", "$x", "a;b", "> c"]), ["run ls * $x a;b > c"]);
    assert_eq!(run(&["env", "bash", "-c", "ls && cat x"]), ["run ls", "run cat x"]);
    assert_eq!(run(&["bash", "-lc", "ls && cat x"]), ["run ls", "run cat x"]);
    assert_eq!(run(&["/bin/zsh", "-lc", "ls"]), ["run ls"]);
    assert_eq!(run(&["docker", "--version"]), ["run docker --version"]);
    for words in [
        &[][..],
        &[""],
        &["", "x"],
        &["ls", "a\0"],
        &["ls", "\u{202e}"],
        &["ls", "a\nb"],
        &["l\u{200b}s"],
        &["bash", "-c", "ls $x"],
        &["bash", "-lc", "ls $x"],
        &["bash", "-lic", "ls"],
        &["dash", "-lc", "ls"],
        &["./bash", "-lc", "ls"],
        &["/opt/bash", "-lc", "ls"],
        &["docker", "--version", "x"],
        &["ls; rm x"],
        &["ls -l"],
        &["A=1", "ls"],
        &["eval", "x"],
        &["sudo", "ls"],
        &["env", "A=1", "ls"],
    ] {
        let found = run(words);
        assert!(found.iter().any(|sub| sub.starts_with("unknown")), "{words:?}: {found:?}");
    }
    assert!(is_unknown(&argv(&["ls".into(), "x".repeat(MOST_BYTES)], &ground())));
}

#[test]
fn facts_are_of_the_whole_word_and_of_its_value() {
    let subs = line("cd a && tool --out=x/y=z b", &ground());
    let SubAction::Run(command) = &subs[1] else { panic!("{subs:?}") };
    let resolved = |fact: &Option<PathFact>| fact.as_ref().unwrap().resolved.clone().unwrap();
    assert_eq!(resolved(&command.words[0].path), Path::new("/ws/a/--out=x/y=z"));
    assert_eq!(resolved(&command.words[0].value), Path::new("/ws/a/x/y=z"));
    assert_eq!(resolved(&command.words[1].path), Path::new("/ws/a/b"));
    assert_eq!(command.words[1].value, None);
    assert_eq!(command.file.as_deref(), Some(Path::new("/usr/bin/tool")));
    let SubAction::Run(echo) = &line("echo x", &ground())[0] else { panic!() };
    assert_eq!(echo.file, None, "the shell has it built in");
    let SubAction::Run(echo) = &argv(&["echo".into()], &ground())[0] else { panic!() };
    assert!(echo.file.is_some(), "there is no shell");
}

#[test]
fn limits_hold() {
    let most = vec!["ls"; MOST_COMMANDS].join(";");
    assert!(!is_unknown(&line(&most, &ground())));
    assert!(is_unknown(&line(&format!("{most};ls"), &ground())));
    assert!(is_unknown(&line(&vec!["ls"; 5000].join("\n"), &ground())));
    assert!(is_unknown(&line(&format!("echo {}", "x".repeat(MOST_BYTES)), &ground())));
    assert!(!is_unknown(&line(&format!("echo {}", "x".repeat(MOST_BYTES - 5)), &ground())));
    assert!(!is_unknown(&line(&format!("echo{}", " x".repeat(MOST_WORDS)), &ground())));
    assert!(is_unknown(&line(&format!("echo{}", " x".repeat(MOST_WORDS + 1)), &ground())));
    assert!(is_unknown(&line(&format!("{}ls", "env ".repeat(20)), &ground())));
}

/// What makes parsers slow, or deep, takes no longer than its length warrants.
#[test]
fn hostile_lines_are_read_quickly() {
    let parts = [
        "(",
        ")",
        "((",
        "{ ",
        "$(",
        "${",
        "$((",
        "`",
        "\"$(",
        "'",
        "\"",
        "\\",
        "if ",
        "case x in ",
        "<<a ",
        "<<a\n",
        "<(",
        "[[ ",
        "!(",
        "@{",
        "a@{b",
        "a ",
        "a;",
        "a|",
        "a&&",
        "sh -c '",
        "env ",
        "xargs ",
        "sudo ",
        "find -exec ",
        ">a ",
        "a=",
        "~",
        "a~",
        "'a' ",
        "\"a\" ",
        "\\a ",
        "# ",
        "\t",
        "a\t",
        "\n",
        "é",
        "\u{202e}",
        "1>",
        "-",
        "find -delete ",
        "! ",
        "time ",
        "cd a && ",
        "$(a) ",
        "`a` ",
    ];
    for part in parts {
        let text: String = part
            .chars()
            .cycle()
            .take(MOST_BYTES / part.chars().map(char::len_utf8).max().unwrap_or(1))
            .collect();
        let start = Instant::now();
        let _ = line(&text, &ground());
        // Debug builds on busy machines are slow; what is exponential or square is slower.
        assert!(start.elapsed() < Duration::from_secs(2), "{part:?} took {:?}", start.elapsed());
    }
}

/// Pieces of lines, harmless and not.
fn piece() -> impl Strategy<Value = String> {
    let fixed = [
        "ls",
        "git",
        "cd",
        "a",
        "b/c",
        "-l",
        "--x=y",
        " ",
        " ",
        " ",
        "\n",
        "\t",
        ";",
        "&&",
        "||",
        "|",
        "&",
        "'",
        "\"",
        "\\",
        "$",
        "`",
        "(",
        ")",
        "{",
        "}",
        "<",
        ">",
        ">&",
        "2>&1",
        ">/dev/null",
        "#",
        "~",
        "*",
        "?",
        "[",
        "]",
        "!",
        "=",
        "^",
        "@{",
        "$(",
        "${",
        "<<",
        "env ",
        "sh -c ",
        "time ",
        "'a b'",
        "\"a b\"",
        "é",
        "\u{202e}",
        "\r",
        "1",
        "2",
        "%",
    ];
    prop_oneof![8 => proptest::sample::select(fixed.to_vec()).prop_map(str::to_owned), 1 => any::<String>()]
}

fn lines() -> impl Strategy<Value = String> {
    proptest::collection::vec(piece(), 0..25).prop_map(|pieces| pieces.concat())
}

fn hiding() -> impl Strategy<Value = char> {
    let known =
        ['\0', '\r', '\u{1b}', '\u{7f}', '\u{85}', '\u{a0}', '\u{ad}', '\u{200b}', '\u{feff}', '\u{fe0f}'];
    prop_oneof![
        proptest::sample::select(known.to_vec()),
        proptest::char::range('\u{2000}', '\u{200f}'),
        proptest::char::range('\u{2028}', '\u{202f}'),
        proptest::char::range('\u{2060}', '\u{206f}'),
        proptest::char::range('\u{e0000}', '\u{e0fff}'),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_line_comes_to_something(text in lines()) {
        let subs = line(&text, &ground());
        prop_assert!(!subs.is_empty());
        for sub in &subs {
            if let SubAction::Unknown { what } = sub {
                prop_assert_eq!(text::hidden(what), None);
            }
        }
    }

    #[test]
    fn every_argv_comes_to_something(words in proptest::collection::vec(piece(), 0..8)) {
        prop_assert!(!argv(&words, &ground()).is_empty());
    }

    /// Outside of single quotes and without a backslash, these are never literal.
    #[test]
    fn what_expands_is_never_understood(before in "[a-z \"./-]{0,12}", sign in "[$`]", after in "[a-zA-Z(){}\" ./-]{0,12}") {
        let text = format!("ls {before}{sign}{after}");
        prop_assert!(is_unknown(&line(&text, &ground())), "{text:?}");
    }

    #[test]
    fn what_hides_is_never_understood(before in "[a-z '\"./-]{0,12}", c in hiding(), after in "[a-z '\" ./-]{0,12}") {
        let text = format!("ls {before}{c}{after}");
        prop_assert!(is_unknown(&line(&text, &ground())), "{text:?}");
        let word = text.strip_prefix("ls ").unwrap_or(&text).to_owned();
        prop_assert!(is_unknown(&argv(&["ls".into(), word], &ground())));
    }

    /// Single quotes make anything literal that does not hide.
    #[test]
    fn single_quotes_hold(words in proptest::collection::vec("[ -&(-\\[\\]-~é]{1,8}", 1..5)) {
        let text = format!("tool '{}'", words.join("' '"));
        let subs = line(&text, &ground());
        let SubAction::Run(command) = &subs[0] else { panic!("{subs:?}") };
        let read: Vec<_> = command.words.iter().map(|word| word.text.clone()).collect();
        prop_assert_eq!(read, words);
        prop_assert_eq!(subs.len(), 1);
    }
}
