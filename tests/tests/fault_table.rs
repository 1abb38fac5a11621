//! The table of faults: which must not break the conductor, and which test shows that.
//!
//! `faults/rows.toml` has the rows. A test that covers one begins with its id: `s03_…`, or
//! `f02_f07_…` for two. `faults/README.md` is made of both; after a change of either,
//!
//! ```sh
//! UPDATE_FAULTS=1 cargo test --package conductor-tests --test fault_table
//! ```
//!
//! Tests that begin with `p` and a number are those of conformance to ACP, which are numbered
//! by themselves (`conformance_agent.rs`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// Where tests are.
const PLACES: &[&str] = &["conductor/src", "tests/tests"];
/// What the table begins with.
const HEAD: &str = "# What must not break it, and which test shows that\n\n\
    Made from [`rows.toml`](rows.toml) and from the names of the tests; \
    `UPDATE_FAULTS=1 cargo test --package conductor-tests --test fault_table` makes it anew.\n";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    section: Vec<Section>,
}

/// The rows of one letter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    id: char,
    title: String,
    row: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    /// The fault, and what is expected.
    what: String,
    /// How far the tests go.
    note: Option<String>,
    /// Why there is no test.
    left_out: Option<String>,
    /// The rows that a goal rests on.
    #[serde(default)]
    rows: Vec<String>,
}

/// Tests by the rows that they name, each with its file.
type Marks = BTreeMap<String, BTreeSet<(String, String)>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn catalogue() -> Catalogue {
    toml::from_str(&fs::read_to_string(root().join("tests/faults/rows.toml")).unwrap()).unwrap()
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The names of the tests in a file: functions with an attribute that ends in `test`.
fn tests(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            let attribute = line.trim_start_matches("#[").split(['(', ']']).next().unwrap_or_default();
            is_test |= attribute == "test" || attribute.ends_with("::test");
        } else if let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn ")) {
            if is_test {
                names.extend(rest.split('(').next());
            }
            is_test = false;
        }
    }
    names
}

/// The rows that a test's name begins with: `f02_f07_…` is F2 and F7.
fn rows_of<'a>(name: &'a str, letters: &'a str) -> impl Iterator<Item = String> + 'a {
    let id = |part: &str| {
        let (letter, digits) = part.split_at_checked(1)?;
        let number: u32 = digits.parse().ok().filter(|_| digits.len() <= 2)?;
        letters.contains(&letter.to_uppercase()).then(|| format!("{}{number}", letter.to_uppercase()))
    };
    name.split('_').map_while(id)
}

fn marks(letters: &str) -> Marks {
    let mut marks = Marks::new();
    for place in PLACES {
        let mut files = Vec::new();
        sources(&root().join(place), &mut files);
        for path in files {
            let file = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            for name in tests(&fs::read_to_string(&path).unwrap()) {
                for row in rows_of(name, letters) {
                    marks.entry(row).or_default().insert((file.clone(), name.to_owned()));
                }
            }
        }
    }
    marks
}

fn letters(catalogue: &Catalogue) -> String {
    catalogue.section.iter().map(|section| section.id).collect()
}

/// The table as it should be.
fn table(catalogue: &Catalogue, marks: &Marks) -> String {
    let mut text = HEAD.to_owned();
    for section in &catalogue.section {
        let _ =
            write!(text, "\n## {}: {}\n\n| row | what | tests |\n|---|---|---|\n", section.id, section.title);
        for row in &section.row {
            let tests = marks.get(&row.id).into_iter().flatten();
            let mut shown: Vec<String> =
                tests.map(|(file, name)| format!("[`{name}`](../../{file})")).collect();
            if !row.rows.is_empty() {
                shown.push(format!("those of {}", row.rows.join(", ")));
            }
            shown.extend(row.note.as_ref().map(|note| format!("({note})")));
            shown.extend(row.left_out.as_ref().map(|why| format!("**left out**: {why}")));
            let _ = writeln!(text, "| {} | {} | {} |", row.id, row.what, shown.join("<br>"));
        }
    }
    text
}

#[test]
fn every_row_has_a_test_or_a_reason_and_every_mark_a_row() {
    let catalogue = catalogue();
    let marks = marks(&letters(&catalogue));
    let mut wrong = Vec::new();
    let rows: Vec<&Row> = catalogue.section.iter().flat_map(|section| &section.row).collect();
    for row in &rows {
        let is_tested = marks.contains_key(&row.id) || !row.rows.is_empty();
        match (is_tested, &row.left_out) {
            (false, None) => wrong.push(format!("{} has neither a test nor a reason", row.id)),
            (true, Some(_)) => wrong.push(format!("{} is left out and has a test", row.id)),
            _ => {}
        }
        for other in &row.rows {
            if !marks.contains_key(other) {
                wrong.push(format!("{} rests on {other}, which has no test", row.id));
            }
        }
    }
    for (id, tests) in &marks {
        if !rows.iter().any(|row| row.id == *id) {
            wrong.push(format!("{tests:?} name {id}, and there is no such row"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A row that goes leaves a hole.
#[test]
fn rows_are_numbered_without_a_hole() {
    for section in catalogue().section {
        let ids = section.row.iter().map(|row| row.id.clone());
        assert!(
            ids.eq((1..=section.row.len()).map(|number| format!("{}{number}", section.id))),
            "{}",
            section.id
        );
    }
}

#[test]
fn the_table_is_up_to_date() {
    let catalogue = catalogue();
    let wanted = table(&catalogue, &marks(&letters(&catalogue)));
    let file = root().join("tests/faults/README.md");
    if env::var_os("UPDATE_FAULTS").is_some() {
        fs::write(&file, wanted).unwrap();
        return;
    }
    let is = fs::read_to_string(&file).unwrap_or_default();
    assert!(is == wanted, "{} is not up to date: run this test with UPDATE_FAULTS=1", file.display());
}

#[test]
fn marks_are_read_from_names() {
    let of = |name| rows_of(name, "AF").collect::<Vec<_>>();
    assert_eq!(of("f02_f07_a_file"), ["F2", "F7"]);
    assert_eq!(of("a1_x"), ["A1"]);
    assert_eq!(of("a30_f"), ["A30"]);
    assert_eq!(of("p01_x"), [""; 0]);
    assert_eq!(of("a_file_of_a02"), [""; 0]);
    assert_eq!(
        tests("#[test]\nfn one() {}\n#[tokio::test(x)]\n#[cfg(x)]\nasync fn two() {}\nfn no() {}\n"),
        ["one", "two"]
    );
}
