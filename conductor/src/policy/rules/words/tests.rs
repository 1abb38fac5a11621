//! Words as rules read them.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::*;

fn words(text: &[&str]) -> Vec<Word> {
    text.iter().map(|text| Word { text: (*text).to_owned(), path: None, value: None }).collect()
}

fn line(flags: &str, options: &[&str], positionals: &[&str]) -> Line {
    Line {
        options: Some(Options::new(flags, options.iter().copied()).unwrap()),
        positionals: Some(Positionals::new(positionals.iter().copied()).unwrap()),
        options_first: false,
        is_strict: false,
    }
}

/// What was found, as `0r 1=w`: which word, only its value, its kind.
fn found(line: &Line, text: &[&str]) -> Option<String> {
    let found = line.fits(&words(text), 0)?;
    let shown = |found: &Found| {
        let value = if found.is_value { "=" } else { "" };
        let kind = Kind::NAMES.iter().find(|(_, kind)| *kind == found.kind).unwrap().0;
        format!("{}{value}{}", found.word, &kind[..1])
    };
    Some(found.iter().map(shown).collect::<Vec<_>>().join(" "))
}

#[test]
fn options() {
    let options = [
        "--long",
        "--text=text",
        "--count=number",
        "--in=read",
        "--out=write",
        "--url=url",
        "--color?=text",
        "--from?=read",
        "-n=number",
        "-f=read",
        "-name=text",
        "-#",
    ];
    let line = line("al1", &options, &[]);
    for (text, expected) in [
        // What is listed.
        (&[][..], Some("")),
        (&["--long"], Some("")),
        (&["--long", "--long"], Some("")),
        (&["-a"], Some("")),
        (&["-la", "-1"], Some("")),
        (&["-5"], Some("")),
        (&["-123"], Some("")),
        (&["--text=x"], Some("")),
        (&["--text="], Some("")),
        (&["--text", "x"], Some("")),
        (&["--text", ""], Some("")),
        (&["--text=-x"], Some("")),
        (&["--count=5"], Some("")),
        (&["--count", "5"], Some("")),
        (&["--in=a"], Some("0=r")),
        (&["--in", "a"], Some("1r")),
        (&["--in", "-"], Some("1r")),
        (&["--in=a=b"], Some("0=r")),
        (&["--out=a", "--in", "b"], Some("0=w 2r")),
        (&["--url=https://x"], Some("0=u")),
        (&["--color"], Some("")),
        (&["--color=x"], Some("")),
        (&["--from"], Some("")),
        (&["--from=x"], Some("0=r")),
        (&["-n", "5"], Some("")),
        (&["-n5"], Some("")),
        (&["-f", "x"], Some("1r")),
        (&["-name", "x"], Some("")),
        (&["--"], Some("")),
        (&["-a", "--"], Some("")),
        // Abbreviations, unknown ones, other case.
        (&["--lon"], None),
        (&["--longer"], None),
        (&["--Long"], None),
        (&["--te=x"], None),
        (&["---long"], None),
        // Clusters with anything else in them.
        (&["-ax"], None),
        (&["-an"], None),
        (&["-an5"], None),
        (&["-na"], None),
        (&["-a5"], None),
        (&["-a-"], None),
        (&["-A"], None),
        // Values that are missing, of another kind, or where none belongs.
        (&["--long=x"], None),
        (&["--long="], None),
        (&["--text"], None),
        (&["--in"], None),
        (&["--count=x"], None),
        (&["--count="], None),
        (&["--count", "-5"], None),
        (&["--count", "5x"], None),
        (&["--in", "--long"], None),
        (&["--in", "--"], None),
        (&["--color", "x"], None),
        (&["-n"], None),
        (&["-n", "x"], None),
        (&["-n=5"], None),
        (&["-n-5"], None),
        (&["-n5x"], None),
        (&["-fx"], None),
        (&["-f=x"], None),
        (&["-name=x"], None),
        (&["-5x"], None),
        (&["-٣"], None),
        // Words that are no options, where none may be.
        (&["x"], None),
        (&["-"], None),
        (&[""], None),
        (&["--", "x"], None),
        (&["--", "--long"], None),
        (&["--", "--"], None),
    ] {
        assert_eq!(found(&line, text).as_deref(), expected, "{text:?}");
    }
}

/// What follows an option and begins with a dash may be the next option, whatever an expression says.
#[test]
fn values_with_dashes() {
    let line =
        line("", &["--format=match:/.*/", "-n=match:/-?[0-9]+/", "--in=read:/[a-z-]+/", "-f=read:/.+/"], &[]);
    for (text, expected) in [
        (&["--format", "x"][..], Some("")),
        (&["--format=--output=b"], Some("")),
        (&["-n", "-5"], Some("")),
        (&["-n-5"], Some("")),
        (&["--in", "a"], Some("1r")),
        (&["--in=a-b"], Some("0=r")),
        (&["-f", "x"], Some("1r")),
        (&["--format", "--output=b"], None),
        (&["--format", "-o"], None),
        (&["--format", "--"], None),
        (&["--in", "-a"], None),
        (&["--in=A"], None),
        (&["-fx"], None),
    ] {
        assert_eq!(found(&line, text).as_deref(), expected, "{text:?}");
    }
}

#[test]
fn positionals() {
    for (kinds, text, expected) in [
        (&["read*"][..], &[][..], Some("")),
        (&["read*"], &["a", "-a", "b"], Some("0r 2r")),
        (&["read*"], &["-"], Some("0r")),
        (&["read*"], &[""], Some("0r")),
        (&["read*"], &["--", "a", "-"], Some("1r 2r")),
        (&["read*"], &["--", "-a"], None),
        (&["read*"], &["a", "--", "b", "--c=d"], None),
        (&["read*"], &["--", "a", "--"], None),
        (&["read*"], &["a", "-b"], None),
        (&["read+"], &[], None),
        (&["read+"], &["-a"], None),
        (&["read+"], &["a", "b"], Some("0r 1r")),
        (&["text", "read*"], &["x"], Some("")),
        (&["text", "read*"], &["x", "y"], Some("1r")),
        (&["text", "read*"], &[], None),
        (&["text?", "read+"], &["y"], Some("0r")),
        (&["text?", "read+"], &["x", "y"], Some("1r")),
        (&["read?"], &["x", "y"], None),
        (&["read", "write"], &["x", "-a", "y"], Some("0r 2w")),
        (&["read", "write"], &["x"], None),
        (&["read", "write"], &["x", "y", "z"], None),
        (&["number"], &["5"], Some("")),
        (&["number"], &["0.5"], Some("")),
        (&["number"], &["5s"], None),
        (&["number"], &[""], None),
        (&["number"], &["."], None),
        (&["number"], &["1.2.3"], None),
        (&["number"], &["123456789012345678901"], None),
        (&["url"], &["https://x"], Some("0u")),
        (&["text*"], &["x", "y"], Some("")),
        (&["read:/[^:]+/*"], &["x", "y"], Some("0r 1r")),
        (&["read:/[^:]+/*"], &["x", "y:z"], None),
    ] {
        assert_eq!(found(&line("a", &[], kinds), text).as_deref(), expected, "{kinds:?} {text:?}");
    }
}

/// A rule that asks or denies takes them for what they may be.
#[test]
fn what_looks_like_an_option_behind_dashes_is_none_that_is_allowed() {
    let strict = Line { is_strict: true, ..line("a", &[], &["read*"]) };
    assert_eq!(found(&strict, &["--", "-b", "--"]).as_deref(), Some("1r 2r"));
    let any = Line::default();
    assert_eq!(found(&any, &["--", "-b"]).as_deref(), Some(""), "nothing is listed that could differ");
    for part in [
        Line { options: None, ..line("", &[], &["text*"]) },
        Line { positionals: None, ..line("", &[], &[]) },
    ] {
        assert_eq!(found(&part, &["--", "-b"]), None);
        assert_eq!(found(&part, &["--", "b"]).as_deref(), Some(""));
    }
}

#[test]
fn grammars_that_cannot_be_meant() {
    for option in ["", "-", "--", "name", "---x", "--a b", "--x=", "--x=file", "-n?=text", "--=text", "-#=x"]
    {
        assert!(Options::new("", [option].into_iter()).is_err(), "{option}");
    }
    assert!(Options::new("a-", [].into_iter()).is_err());
    assert!(Options::new("a", ["-a"].into_iter()).is_err());
    assert!(Options::new("", ["--a", "--a=text"].into_iter()).is_err());
    for kinds in [&["read*", "text"][..], &["read+", "text*"], &["file"], &["*"], &[""], &["read**"]] {
        assert!(Positionals::new(kinds.iter().copied()).is_err(), "{kinds:?}");
    }
}

#[test]
fn subcommands() {
    let globals = Options::new("", ["--no-pager", "-c=text"].into_iter()).unwrap();
    for (text, sequence, exact, possible) in [
        (&["log"][..], "log", Some(1), &[1][..]),
        (&["log", "log"], "log", Some(1), &[1]),
        (&["--no-pager", "log"], "log", Some(2), &[2]),
        (&["-c", "x", "log"], "log", Some(3), &[3]),
        (&["-c", "log"], "log", None, &[]),
        (&["-C", "x", "log"], "log", None, &[3]),
        (&["-C", "log"], "log", None, &[2]),
        (&["--git-dir=x", "log"], "log", None, &[2]),
        (&["--no-pager", "show", "log"], "log", None, &[]),
        (&["show", "log"], "log", None, &[]),
        (&["remote", "show"], "remote show", Some(2), &[2]),
        (&["remote", "-v", "show"], "remote show", None, &[3]),
        (&["remote"], "remote show", None, &[]),
        (&["--", "log"], "log", None, &[2]),
        (&[], "log", None, &[]),
        (&["Log"], "log", None, &[]),
        (&["lo"], "log", None, &[]),
        (&[""], "log", None, &[]),
    ] {
        let sequence: Vec<_> = sequence.split(' ').map(str::to_owned).collect();
        let words = words(text);
        assert_eq!(exact_subcommand(&globals, &sequence, &words), exact, "exact {text:?}");
        assert_eq!(possible_subcommand(&globals, &sequence, &words), possible, "possible {text:?}");
    }
}

#[test]
fn options_that_could_be_there() {
    for (text, option, expected) in [
        ("--output", "--output", true),
        ("--output=x", "--output", true),
        ("--outp", "--output", true),
        ("--o=x", "--output", true),
        ("--", "--output", false),
        ("--outputs", "--output", false),
        ("-o", "--output", false),
        ("output", "--output", false),
        ("-o", "-o", true),
        ("-xo", "-o", true),
        ("-ofile", "-o", true),
        ("-o=x", "-o", true),
        ("--o", "-o", false),
        ("-", "-o", false),
        ("-exec", "-exec", true),
        ("-exe", "-exec", false),
        ("-e", "-exec", false),
    ] {
        assert_eq!(could_be_option(text, option), expected, "{text} {option}");
    }
}

#[test]
fn where_options_come_first_what_looks_like_one_behind_a_word_is_no_option() {
    let mut first = line("b", &["-F=text"], &["read*"]);
    first.options_first = true;
    for (text, fits) in [
        (&["-b", "a"][..], true),
        (&["-F", ":", "a", "b"], true),
        (&["a", "-b"], false),
        (&["-", "-b"], false),
        (&["a", "-F", ".env"], false),
    ] {
        assert_eq!(first.fits(&words(text), 0).is_some(), fits, "{text:?}");
    }
}
