//! Rule files.

use conductor::policy::{Action, Policy, SubAction, rules::lint, text};

use super::{built_in, somebody, taken_apart};

/// The most bytes of a file: longer ones only take longer.
const LONGEST: usize = 16 << 10;

/// A file can be used, or it is said in which line it cannot, and what to do. The linter
/// says the same. As a file of a repository it makes nothing milder, whatever it says.
pub fn rules(data: &[u8]) {
    let file = String::from_utf8_lossy(&data[..data.len().min(LONGEST)]);
    let report = lint::check(&file);
    match Policy::parse("rules.toml", &file) {
        Ok(policy) => {
            assert!(report.errors.is_empty(), "{:?}", report.errors);
            assert_eq!(Some(policy.revision()), report.revision.as_deref());
            assert_eq!(policy.rule_count(), report.rules);
        }
        Err(error) => {
            assert!(!report.errors.is_empty(), "{error}");
            is_helpful(&error.to_string(), &file);
        }
    }
    for problem in report.errors.iter().chain(&report.warnings) {
        is_helpful(&problem.shown("rules.toml"), &file);
    }
    let narrowed = built_in().narrowed("repository", &file);
    for actions in samples() {
        let before = built_in().evaluate(&somebody(), &actions).decision;
        let after = narrowed.evaluate(&somebody(), &actions).decision;
        assert!(after >= before, "{actions:?}: {before:?} became {after:?}");
    }
}

/// A message names the line, if it is about one, and what to do; a terminal shows it.
fn is_helpful(message: &str, file: &str) {
    let (what, hint) = message.split_once("\nhint: ").unwrap_or_else(|| panic!("{message:?} has no hint"));
    assert!(!hint.is_empty() && text::hidden_in_lines(message).is_none(), "{message:?}");
    let rest = what.strip_prefix("rules.toml:").unwrap_or_else(|| panic!("{message:?} is about no file"));
    match rest.split_once(':').map(|(line, _)| line.parse::<usize>()) {
        Some(Ok(line)) => assert!((1..=file.lines().count() + 1).contains(&line), "{message:?}"),
        // About the file as a whole.
        _ => assert!(is_whole(rest), "{message:?} names no line"),
    }
}

/// What is said about a file as a whole.
fn is_whole(what: &str) -> bool {
    [" it has no rules", " longer than ", " rules, and ", " examples, and "]
        .iter()
        .any(|text| what.contains(text))
}

/// Some of what is allowed, asked about and denied.
fn samples() -> Vec<Vec<SubAction>> {
    let actions = [
        Action::Shell("git status && ls src".into()),
        Action::Shell("rm -rf /".into()),
        Action::Read("src/main.rs".into()),
        Action::Write(".git/hooks/pre-commit".into()),
        Action::Fetch("http://169.254.169.254/".into()),
        Action::Mode("plan".into()),
    ];
    actions.iter().map(taken_apart).collect()
}
