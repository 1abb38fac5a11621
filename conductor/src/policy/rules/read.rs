//! A rule file with the presets that it uses, as rules; or everything that is
//! wrong with it.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::{
    Rule, compile, examples,
    file::{Problem, RuleFile, RuleShape, Source, escaped},
    presets::PRESETS,
};
use crate::policy::Effect;

/// The longest text that a repository or a user may add.
const LONGEST_NARROWING: usize = 256 << 10;

/// The most rules in one file.
const MOST_RULES: usize = 1000;

/// The most examples in one file of others: each is read as a request would be.
const MOST_EXAMPLES: usize = 1000;

/// Problems after which nobody reads on.
const MOST_PROBLEMS: usize = 100;

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The service's own.
    Service,
    /// One that ships in the program, by its place there; its examples are checked when that is
    /// tested. It can use those before it.
    Preset(usize),
    /// A repository's or a user's: it asks and denies.
    Narrowing,
}

/// A rule as it was read.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub rule: Rule,
    pub shape: RuleShape,
    /// The line of its id.
    pub line: usize,
    /// The preset that it is from.
    pub preset: Option<&'static str>,
}

/// All rules of a file, by id.
#[derive(Debug, Default)]
pub(super) struct Layer {
    pub entries: BTreeMap<String, Entry>,
    pub problems: Vec<Problem>,
    /// Of the file and of the presets that it uses.
    pub digests: Vec<u8>,
}

impl Layer {
    fn refuse(&mut self, line: usize, rule: Option<&str>, what: impl Into<String>, hint: impl Into<String>) {
        let rule = rule.map(|id| id.chars().take(64).flat_map(escaped).collect());
        self.problems.push(Problem { line, rule, what: what.into(), hint: hint.into() });
    }
}

/// Reads a rule file.
pub(super) fn read(text: &str, place: Place) -> Layer {
    let mut layer = Layer { digests: Sha256::digest(text.as_bytes()).to_vec(), ..Layer::default() };
    if place == Place::Narrowing && text.len() > LONGEST_NARROWING {
        layer.refuse(0, None, "longer than 256 KiB", "keep the rules that matter");
        return layer;
    }
    let source = Source(text);
    let file: RuleFile = match source.parse() {
        Ok(file) => file,
        Err(problem) => {
            layer.problems.push(problem);
            return layer;
        }
    };
    if file.rule.len() > MOST_RULES {
        let what = format!("{} rules, and {MOST_RULES} is the most", file.rule.len());
        layer.refuse(0, None, what, "make rules with several programs or patterns of those that are alike");
        return layer;
    }
    match place {
        Place::Narrowing => {
            if let Some(name) = file.presets.first().or(file.drop.first()) {
                let hint = "remove `use` and `drop`; only the service's policy has them";
                layer.refuse(source.line(&name.span()), None, "this file can only ask and deny", hint);
            }
            let examples = file.rule.iter().map(|rule| rule.get_ref());
            let count: usize = examples.map(|rule| rule.matching.len() + rule.not_match.len()).sum();
            // Expressions take memory and time to compile, far more than their own length.
            if let Some((line, id)) = first_expression(source, &file) {
                let hint = "list words or write globs in any_word; only the service's policy has expressions";
                layer.refuse(line, Some(&id), "this file has an expression", hint);
                return layer;
            }
            if count > MOST_EXAMPLES {
                layer.refuse(
                    0,
                    None,
                    format!("{count} examples, and {MOST_EXAMPLES} is the most"),
                    "remove some",
                );
                return layer;
            }
        }
        Place::Service if file.rule.is_empty() && file.presets.is_empty() => {
            layer.refuse(0, None, "it has no rules", "write use = [\"default\"], or rules of your own");
        }
        Place::Service => use_presets(&mut layer, source, &file, PRESETS.len()),
        Place::Preset(at) => use_presets(&mut layer, source, &file, at),
    }
    for shape in &file.rule {
        if layer.problems.len() >= MOST_PROBLEMS {
            break;
        }
        add(&mut layer, source, shape.get_ref(), place);
    }
    layer
}

/// Where the first expression stands, and in which rule.
fn first_expression(source: Source<'_>, file: &RuleFile) -> Option<(usize, String)> {
    file.rule.iter().find_map(|rule| {
        let rule = rule.get_ref();
        let run = rule.run.as_ref()?;
        let lists = [&run.options, &run.positionals, &run.globals];
        let mut texts = lists.into_iter().flatten().flatten();
        let is_expression = |text: &str| text.contains("match:") || text.contains("read:");
        let found = texts.find(|text| is_expression(text.get_ref()))?;
        Some((source.line(&found.span()), rule.id.get_ref().clone()))
    })
}

/// Adds the rules of presets, which are among the first `count`.
fn use_presets(layer: &mut Layer, source: Source<'_>, file: &RuleFile, count: usize) {
    for name in &file.presets {
        let line = source.line(&name.span());
        let mut known = PRESETS.iter().enumerate().take(count);
        let Some((at, (name, text))) = known.find(|(_, (known, _))| known == name.get_ref()) else {
            let names: Vec<_> = PRESETS.iter().take(count).map(|(name, _)| *name).collect();
            let hint = format!("the presets are {}", names.join(", "));
            let shown: String = name.get_ref().chars().take(64).flat_map(escaped).collect();
            layer.refuse(line, None, format!("there is no preset `{shown}`"), hint);
            continue;
        };
        let used = read(text, Place::Preset(at));
        layer.digests.extend(&used.digests);
        for problem in used.problems {
            let what = format!("preset `{name}`, line {}: {}", problem.line, problem.what);
            layer.refuse(line, problem.rule.as_deref(), what, problem.hint);
        }
        for (id, entry) in used.entries {
            let preset = entry.preset.or(Some(*name));
            let known = layer.entries.get(&id).map(|known| known.preset);
            match known {
                Some(known) if known != preset => {
                    let what = format!("presets `{}` and `{name}` both have it", known.unwrap_or("?"));
                    layer.refuse(line, Some(&id), what, "use one of the two presets");
                }
                _ => {
                    layer.entries.insert(id, Entry { preset, ..entry });
                }
            }
        }
    }
    for id in &file.drop {
        if layer.entries.remove(id.get_ref()).is_none() {
            let shown: String = id.get_ref().chars().take(64).flat_map(escaped).collect();
            let what = format!("`drop` names `{shown}`, which no preset in `use` has");
            let hint = "remove it; `conductor policy show NAME` prints the rules of a preset";
            layer.refuse(source.line(&id.span()), None, what, hint);
        }
    }
}

fn add(layer: &mut Layer, source: Source<'_>, shape: &RuleShape, place: Place) {
    let id = shape.id.get_ref();
    let line = source.line(&shape.id.span());
    let rule = match compile::compile(source, shape) {
        Ok(rule) => rule,
        Err(problem) => {
            layer.problems.push(problem);
            return;
        }
    };
    if place == Place::Narrowing && rule.effect == Effect::Allow {
        let hint = "remove the rule; only the service's policy allows";
        layer.refuse(line, Some(id), "this file can only ask and deny", hint);
        return;
    }
    if !matches!(place, Place::Preset(_))
        && let Err(problem) = examples::check(source, shape, &rule)
    {
        layer.problems.push(problem);
    }
    match layer.entries.get(id).map(|other| (other.preset, other.line)) {
        None => {
            let entry = Entry { rule, shape: shape.clone(), line, preset: None };
            layer.entries.insert(id.clone(), entry);
        }
        Some((Some(preset), _)) => {
            let what = format!("preset `{preset}` has a rule with this id");
            layer.refuse(line, Some(id), what, format!("choose another id, or write drop = [\"{id}\"]"));
        }
        Some((None, first)) => {
            let what = format!("line {first} has a rule with this id");
            layer.refuse(line, Some(id), what, "give each rule an id of its own");
        }
    }
}
