//! What is wrong in a rule file, and what is likely a mistake though the file can
//! be used.

use serde_json::Value;

use super::{
    Policy, compile, examples,
    file::{Problem, RuleShape},
    read::{self, Entry, Place},
    rules_of,
};
use crate::policy::{Effect, SubAction};

/// All that is to be said about a rule file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Why it cannot be used.
    pub errors: Vec<Problem>,
    /// What is likely a mistake.
    pub warnings: Vec<Problem>,
    /// How many rules it has, those of presets included.
    pub rules: usize,
    /// The revision that it would be, if it can be used.
    pub revision: Option<String>,
}

/// Checks the text of a rule file.
pub fn check(text: &str) -> Report {
    let layer = read::read(text, Place::Service);
    let all: Vec<Known<'_>> = layer.entries.values().map(Known::new).collect();
    let own = all.iter().filter(|known| known.entry.preset.is_none());
    let mut warnings: Vec<Problem> = own.flat_map(|known| remarks(known, &all)).collect();
    drop(all);
    warnings.sort_by_key(|problem| problem.line);
    let mut errors = layer.problems.clone();
    errors.sort_by_key(|problem| problem.line);
    let rules = layer.entries.len();
    let revision = errors.is_empty().then(|| {
        let digests = layer.digests.clone();
        Policy::build(digests, rules_of(layer, ""), None).revision
    });
    Report { errors, warnings, rules, revision }
}

/// A rule with what it is compared by; each is compared with all.
struct Known<'a> {
    entry: &'a Entry,
    /// Whom and where.
    scope: Value,
    what: Value,
    /// What its examples would do.
    examples: Vec<Vec<SubAction>>,
}

impl<'a> Known<'a> {
    fn new(entry: &'a Entry) -> Self {
        let (scope, what) = compile::keys(&entry.shape);
        let examples = entry.shape.matching.iter();
        let examples = examples.map(|example| examples::sub_actions(example.get_ref()).unwrap_or_default());
        Self { entry, scope, what, examples: examples.collect() }
    }

    fn effect(&self) -> Effect {
        self.entry.rule.effect
    }
}

fn remarks(known: &Known<'_>, others: &[Known<'_>]) -> Vec<Problem> {
    let entry = known.entry;
    let mut all = Vec::new();
    let mut say = |what: String, hint: &str| {
        let rule = Some(entry.rule.id.clone());
        all.push(Problem { line: entry.line, rule, what, hint: hint.to_owned() });
    };
    let shape = &entry.shape;
    match (shape.matching.is_empty(), shape.not_match.is_empty()) {
        (true, _) => {
            say("it has no `match` example".into(), "add one: it is checked whenever the file is read");
        }
        (false, true) if shape.effect == Effect::Allow => {
            say("it allows and has no `not_match` example".into(), "add what it must not allow");
        }
        _ => {}
    }
    if let Some(other) = others.iter().find(|other| is_same(known, other)) {
        say(format!("it says the same as rule `{}`", other.entry.rule.id), "remove one of the two");
    }
    if let Some(other) = others.iter().find(|other| overrules(other, known)) {
        let what = format!(
            "it is never reached: rule `{}` {} wherever it matches",
            other.entry.rule.id,
            if other.entry.rule.effect == Effect::Deny { "denies" } else { "asks" },
        );
        say(what, "remove it, or narrow the other: the stricter rule counts, whatever their order");
    } else if let Some(other) = others.iter().find(|other| overrules_examples(other, known)) {
        let what = format!("rule `{}` is stricter for every example of it", other.entry.rule.id);
        say(what, "narrow one of the two, or give an example where they differ");
    }
    if let Some(what) = never(shape) {
        say(format!("it never matches: {what}"), "correct or remove it");
    }
    if let Some(run) = shape.run.as_ref().filter(|_| shape.effect != Effect::Allow)
        && (run.flags.is_some() || run.options.is_some() || run.positionals.is_some())
    {
        let what = "any other option or word beside those listed keeps it from matching";
        say(what.into(), "name options in `any_option`, words in `any_word`, paths in `any_path`");
    }
    if shape.effect == Effect::Allow {
        if let Some(run) = &shape.run
            && run.words.is_some()
            && run.program.iter().any(|name| name.get_ref() == "*")
        {
            let hint = "only for setups that trust their agents: list programs otherwise";
            say("it allows every program with all arguments".into(), hint);
        }
        if shape.fetch.as_ref().is_some_and(|fetch| fetch.host.as_ref().is_none_or(has_star)) {
            say("it allows every host".into(), "list hosts: what is sent there is not seen");
        }
    }
    all
}

fn has_star(list: &super::file::Texts) -> bool {
    list.iter().any(|host| host.get_ref() == "*")
}

/// Whether two rules differ in nothing but their names and reasons; said of the later one.
fn is_same(known: &Known<'_>, other: &Known<'_>) -> bool {
    let is_earlier = other.entry.preset.is_some() || other.entry.line < known.entry.line;
    is_earlier && known.effect() == other.effect() && known.what == other.what && known.scope == other.scope
}

/// Whether `other` is stricter and matches wherever the rule does.
fn overrules(other: &Known<'_>, known: &Known<'_>) -> bool {
    other.effect() > known.effect()
        && is_wider(&other.scope, &known.scope)
        && (other.what == known.what || is_wider_what(&other.what, &known.what))
}

/// Whether every key of `wide` that says something says the same in `narrow`.
fn is_wider(wide: &Value, narrow: &Value) -> bool {
    match (wide, narrow) {
        (Value::Null, _) => true,
        (Value::Object(wide), Value::Object(narrow)) => {
            wide.iter().all(|(key, value)| is_wider(value, narrow.get(key).unwrap_or(&Value::Null)))
        }
        (Value::Array(wide), Value::Array(narrow)) => narrow.iter().all(|value| wide.contains(value)),
        _ => wide == narrow,
    }
}

/// Whether a stricter rule is about all that another is about.
fn is_wider_what(wide: &Value, narrow: &Value) -> bool {
    if wide.get("anything").is_some() {
        return true;
    }
    // What `run` lists is matched by more than its keys: lists of positionals are no sets.
    let has_lists = |run: &Value| {
        ["flags", "options", "positionals", "any_option", "any_word", "any_path"]
            .iter()
            .any(|key| !run[key].is_null())
    };
    if wide.get("run").is_some_and(has_lists) {
        return false;
    }
    let is_wide_program =
        |run: &Value| run["program"].as_array().is_some_and(|list| list.iter().any(|name| name == "*"));
    if wide
        .get("run")
        .is_some_and(|run| is_wide_program(run) && run["subcommand"].is_null() && run["local"].is_null())
    {
        return narrow.get("run").is_some();
    }
    is_wider(wide, narrow)
}

/// Whether `other` is stricter about each example of the rule, for whomever that is.
fn overrules_examples(other: &Known<'_>, known: &Known<'_>) -> bool {
    let matches = |known: &Known<'_>, action: &SubAction| known.entry.rule.matches(action).is_some();
    other.effect() > known.effect()
        && !known.examples.is_empty()
        && is_wider(&other.scope, &known.scope)
        && known
            .examples
            .iter()
            .all(|actions| actions.iter().any(|action| matches(known, action) && matches(other, action)))
}

/// Why a rule cannot match anything, where that can be told.
fn never(shape: &RuleShape) -> Option<String> {
    let is_allow = shape.effect == Effect::Allow;
    for (key, table) in [("read", &shape.read), ("write", &shape.write)] {
        let Some(table) = table else { continue };
        let paths: Vec<&str> = table.path.iter().flatten().map(|path| path.get_ref().as_str()).collect();
        if is_allow
            && table.inside == Some(false)
            && !paths.is_empty()
            && !paths.iter().any(|path| path.starts_with('/'))
        {
            return Some(format!("`{key}` is about places outside, and its patterns do not begin with `/`"));
        }
    }
    let run = shape.run.as_ref()?;
    if is_allow
        && run.words.is_none()
        && run.subcommand.is_none()
        && run.program.iter().all(|name| name.get_ref() == "*")
        && run.local.is_none()
    {
        return (run.options.is_none() && run.flags.is_none() && run.positionals.is_none()).then(|| {
            "it is about programs without any words; write words = \"any\" if all are meant".to_owned()
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(id: &str, effect: &str, rest: &str) -> String {
        format!("[[rule]]\nid = \"{id}\"\neffect = \"{effect}\"\nreason = \"because\"\n{rest}\n")
    }

    /// Every warning about a rule, without those about examples.
    fn warnings(text: &str) -> Vec<String> {
        let report = check(text);
        assert_eq!(report.errors, [], "{text}");
        let all = report.warnings.into_iter().filter(|warning| !warning.what.contains("example"));
        all.map(|warning| format!("{}: {}", warning.rule.unwrap_or_default(), warning.what)).collect()
    }

    #[test]
    fn f05_rules_that_are_never_reached() {
        let read = "read = { path = [\"**/*.md\"] }";
        for (one, other, is_reached) in [
            (rule("a", "allow", read), rule("b", "deny", read), false),
            (rule("a", "allow", read), rule("b", "ask", read), false),
            (rule("a", "ask", read), rule("b", "deny", read), false),
            (rule("a", "allow", read), rule("b", "deny", "read = {}"), false),
            (rule("a", "allow", read), rule("b", "deny", "anything = true"), false),
            (rule("a", "allow", read), rule("b", "deny", "anything = true\nagent = [\"x\"]"), true),
            (
                rule("a", "allow", &format!("{read}\nagent = [\"x\"]")),
                rule("b", "deny", &format!("{read}\nagent = [\"x\", \"y\"]")),
                false,
            ),
            (rule("a", "allow", read), rule("b", "deny", "read = { path = [\"*.md\"] }"), true),
            (rule("a", "deny", read), rule("b", "allow", read), true),
            (
                rule("a", "allow", "run = { program = [\"git\"], subcommand = [\"log\"] }"),
                rule("b", "deny", "run = { program = [\"git\", \"hg\"] }"),
                false,
            ),
            (
                rule("a", "allow", "run = { program = [\"git\"], subcommand = [\"log\"] }"),
                rule("b", "deny", "run = { program = [\"*\"] }"),
                false,
            ),
            (
                rule("a", "allow", "run = { program = [\"git\"], subcommand = [\"log\"] }"),
                rule("b", "deny", "run = { program = [\"git\"], any_option = [\"--output\"] }"),
                true,
            ),
        ] {
            let found = warnings(&format!("{one}{other}"));
            let says = found.iter().any(|warning| warning.starts_with("a: it is never reached: rule `b`"));
            assert_eq!(!says, is_reached, "{one}{other}{found:?}");
        }
    }

    #[test]
    fn other_mistakes() {
        for (text, expected) in [
            (
                rule("a", "deny", "tool = [\"x\"]") + &rule("b", "deny", "tool = [\"x\"]"),
                "b: it says the same as rule `a`",
            ),
            (rule("a", "allow", "read = { inside = false, path = [\"x\"] }"), "a: it never matches"),
            (rule("a", "allow", "run = { program = [\"*\"] }"), "a: it never matches"),
            (rule("a", "deny", "run = { program = [\"x\"], options = [\"--y\"] }"), "a: any other option"),
            (
                rule("a", "allow", "run = { program = [\"*\"], words = \"any\" }"),
                "a: it allows every program",
            ),
            (rule("a", "allow", "fetch = {}"), "a: it allows every host"),
            (rule("a", "allow", "fetch = { host = [\"*\"] }"), "a: it allows every host"),
        ] {
            let found = warnings(&text);
            assert!(found.iter().any(|warning| warning.starts_with(expected)), "{text}{found:?}");
        }
        let fine = rule("a", "deny", "tool = [\"x\"]") + &rule("b", "deny", "tool = [\"y\"]");
        assert_eq!(warnings(&fine), [""; 0]);
    }

    #[test]
    fn f05_examples_that_are_missing_or_overruled() {
        let what = |text: &str| check(text).warnings.into_iter().map(|each| each.what).collect::<Vec<_>>();
        assert_eq!(what(&rule("a", "deny", "read = {}")), ["it has no `match` example"]);
        let allow = rule("a", "allow", "read = {}\nmatch = [{ read = \"x.md\" }]");
        assert_eq!(what(&allow), ["it allows and has no `not_match` example"]);
        let allow = allow + "not_match = [{ read = \"/x\" }]\n";
        assert_eq!(what(&allow), [""; 0]);
        let deny = rule("b", "deny", "read = { path = [\"*.md\"] }\nmatch = [{ read = \"x.md\" }]");
        assert_eq!(what(&(allow + &deny)), ["rule `b` is stricter for every example of it"]);
    }

    #[test]
    fn all_errors_are_told() {
        let report = check(&(rule("a", "deny", "tool = []") + &rule("b", "deny", "") + "use = 1"));
        assert_eq!((report.errors.len(), report.revision), (1, None));
        let report = check(&(rule("a", "deny", "tool = []") + &rule("b", "deny", "")));
        assert_eq!((report.errors.len(), report.revision), (2, None));
    }
}
