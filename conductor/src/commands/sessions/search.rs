//! `conductor search`: hits with the part that shows why, the best first.

use std::{io::stdout, time::Duration};

use super::{Failure, print, source::Source};
use crate::{
    cli::{Global, SearchArgs},
    clock,
    commands::{
        finish::say,
        terminal::{Style, clean, harmless},
    },
    frame::escape,
    ledger::search::{Filter, Hit, Snippet},
    record::now_us,
};

/// What messages are said under.
pub(super) const COMMAND: &str = "search";

/// How marked text is shown on a terminal: bold and yellow.
const MARKED: &str = "1;33";

/// What is shown of a title.
const MOST_TITLE: usize = 60;

pub(super) async fn run(global: &Global, args: &SearchArgs) -> Result<(), Failure> {
    let source = Source::open(global, &args.history, COMMAND).await?;
    let session = match &args.session {
        Some(given) => Some(source.resolve(given).await?),
        None => None,
    };
    let filter = Filter {
        user: args.user.clone(),
        agent: args.agent.clone(),
        repository: args.repository.clone(),
        session,
        since_us: args.since.map(clock::micros),
        until_us: args.until.map(clock::micros),
        kinds: args.kind.iter().map(|kind| (*kind).into()).collect(),
        ..Filter::default()
    };
    let (hits, more, hint) = source.search(&args.text.join(" "), filter, args.limit as usize).await?;
    if !hint.is_empty() {
        say(COMMAND, &hint);
    }
    if args.json {
        let text =
            serde_json::to_string_pretty(&hits).map_err(|error| format!("cannot write JSON: {error}"))?;
        return print(&(harmless(text) + "\n"));
    }
    print(&listed(&hits, now_us(), Style::of(&stdout())))?;
    if hits.is_empty() {
        say(COMMAND, "nothing was found");
    } else if more {
        say(COMMAND, &format!("there are more; --limit {} shows as many again", 2 * u64::from(args.limit)));
    }
    Ok(())
}

fn listed(hits: &[Hit], now_us: i64, style: Style) -> String {
    let mut out = String::new();
    for hit in hits {
        let age = Duration::from_micros(u64::try_from(now_us.saturating_sub(hit.at_us)).unwrap_or_default());
        let name = |value: &Option<String>| match value.as_deref() {
            None | Some("") => "-".to_owned(),
            Some(text) => escape(text.as_bytes(), MOST_TITLE),
        };
        let title =
            hit.title.as_deref().map(|title| format!("  {}", escape(title.trim().as_bytes(), MOST_TITLE)));
        let head = format!(
            "{}  seq {}  {}  {}  {}  {} ({}){}",
            hit.session_id,
            hit.seq,
            clock::age(age),
            name(&hit.user_name),
            name(&hit.agent),
            hit.kind.name(),
            name(&hit.label),
            title.unwrap_or_default()
        );
        out.push_str(&style.dim(&head));
        out.push_str("\n    ");
        out.push_str(&shown(&hit.snippet, style));
        out.push('\n');
    }
    out
}

/// A snippet on one line, its marks in colour. What comes from others does not
/// act: only these colours do.
fn shown(snippet: &Snippet, style: Style) -> String {
    let text = &snippet.text;
    let plain = |part: Option<&str>| {
        let part = part.unwrap_or_default();
        let mut line = String::with_capacity(part.len());
        for c in part.chars() {
            match c {
                c if c.is_whitespace() && line.ends_with(' ') => {}
                c if c.is_whitespace() => line.push(' '),
                c => line.push(c),
            }
        }
        clean(&line).into_owned()
    };
    let (mut out, mut at) = (String::new(), 0);
    for (start, end) in &snippet.ranges {
        out.push_str(&plain(text.get(at..*start)));
        out.push_str(&style.paint(MARKED, &plain(text.get(*start..*end))));
        at = *end;
    }
    out.push_str(&plain(text.get(at..)));
    out.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snippet_is_one_line_and_does_no_harm() {
        let snippet =
            Snippet { text: "a\n\n  b\u{1b}[2J \u{202e}x é".into(), ranges: vec![(5, 6), (15, 16)] };
        assert_eq!(shown(&snippet, Style::default()), "a b\\u{1b}[2J \\u{202e}x é");
        // A service that is not ours may say anything.
        let wrong = Snippet { text: "é".into(), ranges: vec![(1, 9), (7, 3)] };
        assert_eq!(shown(&wrong, Style::default()), "");
    }
}
