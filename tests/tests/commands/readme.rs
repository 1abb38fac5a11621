//! What the README says can be typed and clicked.

use clap::Parser as _;
use conductor::cli::Cli;

const PAGES: [(&str, &str); 2] =
    [("", include_str!("../../../README.md")), ("deploy/", include_str!("../../../deploy/README.md"))];

const ID: &str = "0199c2a0-1b2c-7000-8000-000000000001";

/// The words of a line by a shell's rules, as far as the pages use them; what stands unquoted
/// between commands is a word of its own.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for char in line.chars() {
        match (quote, char) {
            (Some(open), _) if char == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(char),
            (None, '"' | '\'') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            (None, '|' | '>' | '<' | '&' | ';' | '(' | ')') => {
                words.extend(word.take());
                words.push("|".into());
            }
            (None, _) => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words
}

/// The commands of a page that are ours.
fn commands(page: &str) -> Vec<Vec<String>> {
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let lines: Vec<String> = blocks
        .flat_map(|block| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let segments = lines
        .iter()
        .flat_map(|line| words(line).split(|word| word == "|").map(<[String]>::to_vec).collect::<Vec<_>>());
    segments.filter(|words| words.first().is_some_and(|first| first == "conductor")).collect()
}

#[test]
fn every_command_in_the_readme_is_one() {
    let mut count = 0;
    for (_, page) in PAGES {
        for mut command in commands(page) {
            // What is left out is an id, or something that takes any text.
            command.iter_mut().filter(|word| word.contains('…')).for_each(|word| ID.clone_into(word));
            let parsed = Cli::try_parse_from(&command);
            assert!(parsed.is_ok(), "{command:?}: {}", parsed.unwrap_err());
            count += 1;
        }
    }
    assert!(count > 80, "only {count} commands were found");
}

/// The name by which a heading is linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
    kept.map(|char| if char == ' ' { '-' } else { char }).collect()
}

#[test]
fn every_link_in_the_readme_leads_somewhere() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (directory, page) in PAGES {
        let headings = |page: &str| -> Vec<String> {
            page.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
        };
        for link in page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let path = root.join(directory).join(file);
            assert!(file.is_empty() || path.exists(), "{link}");
            let text = if file.is_empty() {
                page.to_owned()
            } else {
                std::fs::read_to_string(path).unwrap_or_default()
            };
            assert!(place.is_empty() || headings(&text).iter().any(|heading| heading == place), "{link}");
        }
    }
}
