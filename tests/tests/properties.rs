//! What holds for any bytes, held against a corpus and against seeded mutations of it.
//!
//! `FUZZ_RUNS` says how many mutations each property is tried with, `FUZZ_SEED` which
//! they are. `make fuzz` tries the same functions with libFuzzer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::BTreeSet,
    env, fs,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
};

use conductor_tests::properties::{
    ALL, Property,
    mutate::{Random, mutated},
};

/// A corpus is read by people, too.
const MOST_BYTES: u64 = 300 << 10;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The names in a directory, without what stands behind the last dot.
fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

/// The corpus of a property, by the name of the file.
fn corpus(property: &Property) -> Vec<(String, Vec<u8>)> {
    let directory = fuzz().join("corpus").join(property.name);
    let mut files: Vec<PathBuf> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", directory.display());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number")))
}

/// Tries one input; what it is, if the property does not hold for it.
fn try_one(property: &Property, input: &[u8], told: &dyn Fn() -> String) {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (property.holds)(input)));
    if outcome.is_err() {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.failed", property.name));
        fs::write(&kept, input).unwrap();
        panic!(
            "`{}` does not hold for {}; the input is in {}: {}",
            property.name,
            told(),
            kept.display(),
            input.escape_ascii()
        );
    }
}

fn hold(name: &str) {
    let property = ALL.iter().find(|property| property.name == name).unwrap();
    let corpus = corpus(property);
    for (file, input) in &corpus {
        try_one(property, input, &|| format!("fuzz/corpus/{name}/{file}"));
    }
    let seed = number("FUZZ_SEED").unwrap_or(1);
    let runs = number("FUZZ_RUNS").unwrap_or(property.runs as u64);
    let inputs: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
    let mut random = Random::new(seed);
    for run in 0..runs {
        let input = mutated(&inputs[random.below(inputs.len())], &inputs, &mut random);
        try_one(property, &input, &|| format!("mutation {run} of FUZZ_SEED={seed}"));
    }
}

#[test]
fn g05_config() {
    hold("config");
}

#[test]
fn g05_frame() {
    hold("frame");
}

#[test]
fn g05_journal() {
    hold("journal");
}

#[test]
fn g05_lines() {
    hold("lines");
}

#[test]
fn g05_matcher() {
    hold("matcher");
}

#[test]
fn g05_normalise() {
    hold("normalise");
}

#[test]
fn g05_path() {
    hold("path");
}

#[test]
fn g05_rules() {
    hold("rules");
}

#[test]
fn g05_shell() {
    hold("shell");
}

/// Each has a fuzz target, a corpus and a test here, and nothing else has.
#[test]
fn every_property_has_a_target_and_a_corpus() {
    let all: BTreeSet<String> = ALL.iter().map(|property| property.name.to_owned()).collect();
    assert_eq!(names(&fuzz().join("targets")), all, "fuzz/targets");
    assert_eq!(names(&fuzz().join("corpus")), all, "fuzz/corpus");
    let manifest: toml::Table = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap().parse().unwrap();
    let programs = manifest["bin"].as_array().unwrap().iter();
    let programs: BTreeSet<String> = programs.map(|bin| bin["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(programs, all, "fuzz/Cargo.toml");
    let tests = include_str!("properties.rs");
    for property in ALL {
        assert!(
            tests.contains(&format!("    hold(\"{}\");", property.name)),
            "{} has no test",
            property.name
        );
        let target = fs::read_to_string(fuzz().join(format!("targets/{}.rs", property.name))).unwrap();
        assert!(target.contains(&format!("properties::{}(data)", property.name)), "{}", property.name);
    }
}

#[test]
fn the_corpus_stays_small() {
    let files = ALL.iter().flat_map(corpus);
    let bytes: u64 = files.map(|(_, input)| input.len() as u64).sum();
    assert!(bytes <= MOST_BYTES, "the corpus has {bytes} bytes, and {MOST_BYTES} is the most");
}
