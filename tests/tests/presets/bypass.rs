//! Attempts that must not pass: every technique that has broken a permission policy before, and variations. Each row says what
//! may come out at most; all are asked with somebody there to ask, so that a denial is the rules' own.

use super::{
    asked::{Place, Question, decision},
    bypass_paths, bypass_shell, bypass_tools, bypass_words,
};

/// What may come out at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtMost {
    Ask,
    Deny,
}

/// A technique: what it is, what may come out, lines for a shell.
pub type Technique = (&'static str, AtMost, &'static [&'static str]);

pub fn tables() -> impl Iterator<Item = &'static Technique> {
    bypass_paths::TABLE
        .iter()
        .chain(bypass_shell::TABLE)
        .chain(bypass_tools::TABLE)
        .chain(bypass_words::TABLE)
}

/// Those that are whole lines, so that others can stand beside them.
fn whole() -> Vec<&'static str> {
    let whole = tables().filter(|(technique, ..)| *technique != bypass_shell::NO_LINES);
    whole.flat_map(|(_, _, lines)| lines.iter().copied()).collect()
}

/// What came out too mild, in words.
fn too_mild(place: &Place, policy: Option<&std::path::Path>) -> Vec<String> {
    let rows: Vec<_> = tables()
        .flat_map(|(technique, at_most, lines)| lines.iter().map(move |line| (technique, at_most, line)))
        .collect();
    let questions: Vec<_> = rows.iter().map(|(_, _, line)| Question::shell(line)).collect();
    let answers = place.ask(policy, &questions);
    let bad = rows.iter().zip(&answers).filter(|((_, at_most, _), answer)| match at_most {
        AtMost::Ask => decision(answer) == "allow",
        AtMost::Deny => decision(answer) != "deny",
    });
    bad.map(|((technique, at_most, line), answer)| {
        format!("{technique}: {line:?} is {} (at most {at_most:?}): {}", decision(answer), answer["reason"])
    })
    .collect()
}

#[test]
fn m01_no_attempt_passes() {
    let place = Place::new();
    let count: usize = tables().map(|(_, _, lines)| lines.len()).sum();
    assert!(count >= 1200, "the table has shrunk to {count} rows");
    let bad = too_mild(&place, None);
    assert!(bad.is_empty(), "{} of {count} passed:\n{}", bad.len(), bad.join("\n"));
}

#[test]
fn m01_no_attempt_passes_where_edits_are_accepted_or_work_is_planned() {
    let place = Place::new();
    for preset in ["accept-edits", "plan"] {
        let policy = place.policy(&format!("use = [\"{preset}\"]\n"));
        let bad = too_mild(&place, Some(&policy));
        assert!(bad.is_empty(), "{preset}: {} passed:\n{}", bad.len(), bad.join("\n"));
    }
}

#[test]
fn with_nobody_to_ask_every_attempt_is_denied() {
    let place = Place::new();
    let lines = tables().flat_map(|(_, _, lines)| lines.iter());
    let questions: Vec<_> =
        lines.map(|line| Question { interactive: false, ..Question::shell(line) }).collect();
    let answers = place.ask(None, &questions);
    let passed = questions.iter().zip(&answers).filter(|(_, answer)| decision(answer) != "deny");
    let passed: Vec<_> = passed.map(|(question, _)| question.action.to_string()).collect();
    assert!(passed.is_empty(), "{}", passed.join("\n"));
}

/// The same line given in one piece to a shell as arguments is no better.
#[test]
fn m01_a_shell_as_a_program_hides_nothing() {
    let place = Place::new();
    let lines = whole();
    for shell in [&["bash", "-c"][..], &["sh", "-c"], &["/bin/bash", "-lc"], &["bash", "--norc", "-c"]] {
        let argv = |line: &&str| -> Vec<String> {
            shell.iter().copied().chain([*line]).map(str::to_owned).collect()
        };
        let questions: Vec<_> =
            lines.iter().map(|line| Question::new(serde_json::json!({ "argv": argv(line) }))).collect();
        let answers = place.ask(None, &questions);
        let passed = lines.iter().zip(&answers).filter(|(_, answer)| decision(answer) == "allow");
        let passed: Vec<_> = passed.map(|(line, _)| format!("{shell:?} {line:?}")).collect();
        assert!(passed.is_empty(), "{}", passed.join("\n"));
    }
}

/// What comes before or behind does not make an attempt better.
#[test]
fn m01_company_hides_nothing() {
    let place = Place::new();
    let lines = whole();
    for (before, behind) in
        [("ls && ", ""), ("true; ", "; true"), ("", " | cat"), ("echo a\n", "\necho b"), ("false || ", "")]
    {
        let questions: Vec<_> =
            lines.iter().map(|line| Question::shell(&format!("{before}{line}{behind}"))).collect();
        let answers = place.ask(None, &questions);
        let passed = questions.iter().zip(&answers).filter(|(_, answer)| decision(answer) == "allow");
        let passed: Vec<_> = passed.map(|(question, _)| question.action.to_string()).collect();
        assert!(passed.is_empty(), "{}", passed.join("\n"));
    }
}

/// A repository that says which version of a tool runs may name one of its own.
#[test]
fn a_tool_that_the_repository_chooses_is_asked_for() {
    let lines = [
        "cargo --version",
        "cargo -V",
        "rustc -V",
        "rustc -vV",
        "rustfmt --version",
        "rustdoc --version",
        "rustup --version",
        "cd docs && cargo --version",
        "cd src && cd util && rustc --version",
        "bash -lc 'cargo --version'",
        "timeout 5 cargo --version",
        "go version",
        "cd docs && go version",
    ];
    let decisions = |place: &Place| -> Vec<(String, String)> {
        let questions: Vec<_> = lines.iter().map(|line| Question::shell(line)).collect();
        let answers = place.ask(None, &questions);
        lines.iter().zip(&answers).map(|(line, answer)| ((*line).into(), decision(answer).into())).collect()
    };
    let place = Place::new();
    let asked = decisions(&place).into_iter().filter(|(_, decision)| decision != "allow");
    assert_eq!(asked.collect::<Vec<_>>(), [], "nothing is chosen yet");
    for (rust, go) in [
        ("app/rust-toolchain", "app/go.mod"),
        ("app/rust-toolchain.toml", "app/go.work"),
        ("rust-toolchain.toml", "go.mod"),
    ] {
        let place = Place::new();
        let above = place.workspace().parent().unwrap().to_path_buf();
        std::fs::write(above.join(rust), "x").unwrap();
        std::os::unix::fs::symlink(above.join("app/a.txt"), above.join(go)).unwrap();
        let passed = decisions(&place).into_iter().filter(|(_, decision)| decision == "allow");
        assert_eq!(passed.collect::<Vec<_>>(), [], "{rust} {go}");
    }
}

/// A directory can be a repository without a `.git`, and its settings came along with the files.
#[test]
fn m01_git_is_asked_for_where_the_directory_itself_is_a_repository() {
    let place = Place::new();
    let lines = ["git log", "git status", "git diff"].map(Question::shell);
    let path = std::env::var("PATH").unwrap();
    for (inside, expected) in [("evil.git", "ask"), ("evil.git/objects", "ask"), ("", "allow")] {
        let answers = place.ask_in(inside, None, &lines, &path);
        let decisions: Vec<_> = answers.iter().map(decision).collect();
        assert_eq!(decisions, [expected; 3], "in {inside:?}");
    }
}

/// What stands in for a program runs whatever such a file names.
#[test]
fn a_program_that_a_manager_of_versions_chooses_is_asked_for() {
    let place = Place::new();
    let shims = place.workspace().parent().unwrap().join("shims");
    std::fs::create_dir(&shims).unwrap();
    std::fs::copy("/bin/true", shims.join("node")).unwrap();
    let path = format!("{}:/usr/bin:/bin", shims.display());
    let version = [Question::shell("node --version")];
    assert_eq!(decision(&place.ask_with(None, &version, &path)[0]), "allow", "nothing is chosen yet");
    std::fs::write(place.workspace().join(".tool-versions"), "nodejs path:/tmp/x").unwrap();
    assert_eq!(decision(&place.ask_with(None, &version, &path)[0]), "ask");
}
