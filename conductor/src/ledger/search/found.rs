//! Where a query's terms stand in a text, how well the text fits, and the part
//! of it that shows why. The databases only propose; what is found is decided
//! here, so it is the same in both.

use std::ops::Range;

use super::{
    Source,
    query::{Query, Term},
    words::{Word, fold, words},
};

/// A snippet has about so many bytes, of which so many stand before the first
/// place that it shows.
const SNIPPET: usize = 240;
const BEFORE: usize = 60;

/// Most places that are marked or weighed.
const MOST_PLACES: usize = 256;

/// Most places at which a snippet may begin.
const MOST_BEGINS: usize = 64;

/// How fast more of the same counts less, and how much longer texts do; as in
/// BM25, with a text of usual length in the place of the mean.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;
const USUAL_WORDS: f64 = 100.0;

/// Where the terms stand.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    /// Bytes of the text and the number of the term, in order.
    places: Vec<(Range<usize>, usize)>,
    /// How well it fits, whenever it was said.
    pub(super) relevance: f64,
}

/// A part of a text, with what was searched for marked in it.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Snippet {
    /// The part; `…` stands where it was cut.
    pub text: String,
    /// What was searched for, as bytes of the part's UTF-8: begin and end.
    pub ranges: Vec<(usize, usize)>,
}

/// Looks for all terms in a text; `None` if it does not fit.
pub(super) fn find(query: &Query, source: Source, text: &str) -> Option<Found> {
    let all: Vec<_> = words(text).collect();
    let line = source.is_line().then(|| Line::new(text));
    let mut places = Vec::new();
    let mut relevance = 0.0;
    for (number, term) in query.terms.iter().enumerate() {
        let here = match &line {
            Some(line) if term.is_part() => line.places(&term.part),
            _ => phrase(&all, term),
        };
        match (term.is_unwanted, here.is_empty()) {
            (true, false) | (false, true) => return None,
            (true, true) => {}
            (false, false) => {
                let times = here.len() as f64;
                let length = 1.0 - LENGTH + LENGTH * all.len() as f64 / USUAL_WORDS;
                relevance += times * (SATURATION + 1.0) / (times + SATURATION * length);
                places.extend(here.into_iter().take(MOST_PLACES).map(|range| (range, number)));
            }
        }
    }
    places.sort_by_key(|(range, number)| (range.start, range.end, *number));
    Some(Found { places, relevance })
}

/// A line with its folded form, whose places can be told from the line's own.
struct Line {
    folded: String,
    /// For every byte of the folded form at which a character begins, where it
    /// begins in the line; and both ends.
    starts: Vec<(usize, usize)>,
}

impl Line {
    fn new(text: &str) -> Self {
        let (mut folded, mut starts) = (String::with_capacity(text.len()), Vec::new());
        for (at, c) in text.char_indices() {
            starts.push((folded.len(), at));
            folded.push(fold(c));
        }
        starts.push((folded.len(), text.len()));
        Self { folded, starts }
    }

    fn places(&self, part: &str) -> Vec<Range<usize>> {
        let own = |at: usize| {
            let index = self.starts.partition_point(|(folded, _)| *folded < at);
            self.starts.get(index).map_or(0, |(_, own)| *own)
        };
        self.folded.match_indices(part).map(|(at, found)| own(at)..own(at + found.len())).collect()
    }
}

fn phrase(all: &[Word], term: &Term) -> Vec<Range<usize>> {
    let last = term.words.len() - 1;
    let fits = |window: &[Word]| {
        term.words.iter().zip(window).enumerate().all(|(at, (wanted, word))| {
            if term.is_prefix && at == last { word.text.starts_with(wanted) } else { word.text == *wanted }
        })
    };
    let windows = all.windows(term.words.len()).filter(|window| fits(window));
    windows.map(|window| window[0].range.start..window[last].range.end).collect()
}

impl Found {
    /// The part of the text that shows most of the terms.
    pub(super) fn snippet(&self, text: &str) -> Snippet {
        let shown = |from: usize| {
            let near = self.places.iter().skip_while(move |(range, _)| range.start < from);
            near.take_while(move |(range, _)| range.end <= from + SNIPPET - BEFORE)
        };
        let terms = |from: usize| {
            let mut seen: Vec<_> = shown(from).map(|(_, number)| *number).collect();
            seen.sort_unstable();
            seen.dedup();
            seen.len()
        };
        let begins = self.places.iter().take(MOST_BEGINS).map(|(range, _)| range.start);
        // The first of those that show most.
        let best = begins.rev().max_by_key(|start| terms(*start)).unwrap_or(0);
        let from = if best <= BEFORE { 0 } else { word_start(text, best - BEFORE, best) };
        let to = text.floor_char_boundary((from + SNIPPET).min(text.len()));
        let mut snippet = Snippet::default();
        if from > 0 {
            snippet.text.push('…');
        }
        let shift = snippet.text.len();
        snippet.text.push_str(&text[from..to]);
        if to < text.len() {
            snippet.text.push('…');
        }
        for (range, _) in &self.places {
            let (start, end) = (range.start.max(from), range.end.min(to));
            if start >= end {
                continue;
            }
            let (start, end) = (start - from + shift, end - from + shift);
            match snippet.ranges.last_mut() {
                // Terms may stand in one another.
                Some((_, before)) if start < *before => *before = end.max(*before),
                _ => snippet.ranges.push((start, end)),
            }
        }
        snippet
    }
}

/// Where a word begins between two places, so that none is cut.
fn word_start(text: &str, from: usize, to: usize) -> usize {
    let from = text.ceil_char_boundary(from);
    let blank = text[from..to].char_indices().find(|(_, c)| c.is_whitespace());
    blank.map_or(from, |(at, c)| from + at + c.len_utf8())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn marked(query: &str, source: Source, text: &str) -> Option<String> {
        let found = find(&Query::parse(query).unwrap(), source, text)?;
        let snippet = found.snippet(text);
        let mut shown = snippet.text.clone();
        for (start, end) in snippet.ranges.iter().rev() {
            shown.insert(*end, ']');
            shown.insert(*start, '[');
        }
        Some(shown)
    }

    #[test]
    fn words_of_messages_and_parts_of_lines_are_marked() {
        let said = |query: &str, text: &str| marked(query, Source::Message, text);
        assert_eq!(
            said("limit RATE", "The rate_limit is a Limit.").unwrap(),
            "The [rate]_[limit] is a [Limit]."
        );
        assert_eq!(said("\"rate limit\"", "limit rate, Rate-Limit").unwrap(), "limit rate, [Rate-Limit]");
        assert_eq!(said("lim*", "Limits, unlimited").unwrap(), "[Limits], unlimited");
        assert_eq!(said("lim", "Limits"), None);
        assert_eq!(said("rate -limit", "rate limit"), None);
        let line = |query: &str, text: &str| marked(query, Source::Command, text);
        assert_eq!(line("mit", "git commit --amend").unwrap(), "git com[mit] --amend");
        assert_eq!(line("--AMEND commit", "git commit --amend").unwrap(), "git [commit] [--amend]");
        assert_eq!(line("gi", "git commit"), None, "two letters are a word");
        assert_eq!(line("ärß", "x ÄRß é").unwrap(), "x [ÄRß] é");
        assert_eq!(line("it com", "git commit"), None, "two terms");
        assert_eq!(line("\"it com\"", "git commit").unwrap(), "g[it com]mit");
    }

    #[test]
    fn a_snippet_shows_most_of_what_was_searched_for() {
        let far = format!(
            "needle {} needle {} hay needle {}",
            "é ".repeat(200),
            "ü ".repeat(200),
            "x ".repeat(200)
        );
        let shown = marked("needle hay", Source::Message, &far).unwrap();
        assert!(shown.starts_with('…') && shown.ends_with('…'), "{shown}");
        assert!(shown.contains("[hay] [needle]") && shown.len() < SNIPPET + 60, "{shown}");
    }

    #[test]
    fn more_of_it_and_shorter_texts_fit_better() {
        let relevance =
            |text: &str| find(&Query::parse("fox").unwrap(), Source::Message, text).unwrap().relevance;
        assert!(relevance("fox fox") > relevance("fox dog"));
        assert!(relevance("fox") > relevance(&format!("fox {}", "dog ".repeat(500))));
    }
}
