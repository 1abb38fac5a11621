//! The same text must look the same, however it is cut into pieces.

use super::*;

/// Renders whole, and in pieces of one character each, which must agree.
/// Styles are shown as `<n …>`.
fn shown(text: &str) -> String {
    let render = |pieces: &mut dyn Iterator<Item = &str>| {
        let mut markdown = Markdown::default();
        let mut out: String = pieces.map(|piece| markdown.add(piece)).collect();
        out += &markdown.end();
        out
    };
    let whole = render(&mut std::iter::once(text));
    let pieces = render(&mut text.split_inclusive(|_| true));
    // Code may be painted piece by piece; without its styles it is the same.
    let bare = |text: &str| -> String {
        let mut out = String::new();
        for (i, part) in text.split("\x1b[").enumerate() {
            out += if i == 0 { part } else { part.split_once('m').map_or("", |(_, rest)| rest) };
        }
        out
    };
    assert_eq!(bare(&whole), bare(&pieces), "in pieces");
    whole.replace("\x1b[0m", ">").replace("\x1b[", "<")
}

#[test]
fn headings_and_emphasis() {
    assert_eq!(shown("# One\n## Two #\n"), "<1;4mOne>\n<1mTwo>\n");
    assert_eq!(shown("#hash and ####### seven"), "#hash and ####### seven");
    assert_eq!(shown("a **b *c* d** e"), "a <1mb <3mc><1m d> e");
    assert_eq!(shown("***both***"), "<1m<3mboth><1m>");
    assert_eq!(shown("__init__ and snake_case_name"), "<1minit> and snake_case_name");
    assert_eq!(shown("# A **b**"), "<1;4mA <1mb><1;4m>");
}

#[test]
fn markers_without_counterparts_stay() {
    for text in [
        "2 ** 3",
        "**kwargs",
        "a * b * c",
        "a `b",
        "`` a `b",
        "[x",
        "[x]",
        "[x] y",
        "\\",
        "_a",
        "*",
        "a ****",
    ] {
        assert_eq!(shown(text), text);
        assert_eq!(shown(&format!("{text}\n")), format!("{text}\n"));
    }
}

#[test]
fn code_is_not_looked_into() {
    assert_eq!(shown("use `**a**` or ``a`b``"), "use <36m**a**> or <36ma`b>");
    assert_eq!(
        shown("```rust\nlet a = \"**b**\"; // `c`\n\n# d\n```\n**e**\n"),
        "<2m```rust>\n<36mlet a = \"**b**\"; // `c`>\n\n<36m# d>\n<2m```>\n<1me>\n"
    );
    assert_eq!(shown("~~~\n```\n~~~\nx"), "<2m~~~>\n<36m```>\n<2m~~~>\nx");
    assert_eq!(shown("```x``` y"), "<36mx> y");
}

#[test]
fn lists_quotes_rules_and_links() {
    assert_eq!(shown("- a\n  * **b**\n1. c\n10) d\n"), "• a\n  • <1mb>\n1. c\n10) d\n");
    assert_eq!(shown("- [ ] open\n"), "• [ ] open\n");
    assert_eq!(shown("> q *r*\n>s\n"), "<2m│ >q <3mr>\n<2m│ >s\n");
    assert_eq!(shown("---\n* * *\n-- \n"), "<2m────────>\n<2m────────>\n-- \n");
    assert_eq!(shown("see [the **docs**](http://x/y)."), "see <4mthe <1mdocs><4m><2m (http://x/y)>.");
    assert_eq!(shown("a \\*b\\* \\u{1b}"), "a *b* \\u{1b}");
}

#[test]
fn text_streams_as_far_as_it_is_certain() {
    let mut markdown = Markdown::default();
    assert_eq!(markdown.add("Some words "), "Some words ");
    assert_eq!(markdown.add("and **bo"), "and ");
    assert_eq!(markdown.add("ld**"), "");
    assert_eq!(markdown.add(" more"), "\x1b[1mbold\x1b[0m more");
    assert_eq!(markdown.add(" `co"), " ");
    assert_eq!(markdown.settle(), "`co");
    assert_eq!(markdown.add("de` x"), "de");
}

#[test]
fn what_waits_is_bounded() {
    let mut markdown = Markdown::default();
    let long = "x".repeat(LONGEST_WAIT);
    assert_eq!(markdown.add("a **"), "a ");
    assert_eq!(markdown.add(&long), format!("**{long}"));
    assert!(markdown.pending.is_empty());
}

#[test]
fn hostile_lines_cost_no_more_than_their_length() {
    // Each of these markers looks for a counterpart that never comes.
    let begun = std::time::Instant::now();
    for marker in ["*a ", "**a ", "_a ", "`a", "``a ", "[a ", "[a](", "***a ", "\\"] {
        let text = marker.repeat(300_000);
        let mut markdown = Markdown::default();
        let mut shown = markdown.add(&text);
        shown += &markdown.end();
        assert!(shown.len() >= text.len() / 2, "{marker}");
    }
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn a_new_text_is_not_within_the_code_of_the_last() {
    let mut markdown = Markdown::default();
    markdown.add("```\ncode");
    assert_eq!(markdown.end(), "");
    assert_eq!(markdown.add("**b**\n"), "\x1b[1mb\x1b[0m\n");
}
