//! `conductor sessions ls`: sessions as a table or as JSON, newest first.

use std::{io::stdout, time::Duration};

use super::{COMMAND, Failure, print, source::Source};
use crate::{
    cli::{Global, ListSessionsArgs},
    clock,
    commands::{
        finish::say,
        table::Table,
        terminal::{Style, harmless, width},
    },
    frame::escape,
    ledger::history::{Filter, Session},
    record::now_us,
};

/// The first part of an id is the time; so much of it is hardly ever the same
/// for two.
const SHORTEST_ID: usize = 13;

/// What is shown of the last column, at least, and without a terminal.
const LEAST_TITLE: usize = 20;
const MOST_TITLE: usize = 200;

/// Sessions that are listed unless somebody says how many.
const USUAL_LIMIT: usize = 50;

pub(super) async fn run(global: &Global, args: &ListSessionsArgs) -> Result<(), Failure> {
    let source = Source::open(global, &args.history, COMMAND).await?;
    let filter = Filter {
        user: args.user.clone(),
        agent: args.agent.clone(),
        model: args.model.clone(),
        since_us: args.since.map(clock::micros),
        text: args.text.clone(),
        path: args.path.clone(),
        ..Filter::default()
    };
    let limit = args.limit.map_or(USUAL_LIMIT, |limit| limit as usize);
    let (sessions, left_out) = source.sessions(filter, limit).await?;
    if left_out.is_unseen {
        say(
            COMMAND,
            "there may be earlier ones: only the newest hits of the text were looked at; give more words, or narrow it \
             with --user, --agent or --path",
        );
    }
    if sessions.is_empty() && !args.json {
        say(COMMAND, "no sessions were found");
        return Ok(());
    }
    print(&if args.json {
        let text =
            serde_json::to_string_pretty(&sessions).map_err(|error| format!("cannot write JSON: {error}"))?;
        harmless(text) + "\n"
    } else {
        table(&sessions, now_us(), width(&stdout()), Style::of(&stdout()))
    })?;
    if left_out.is_more {
        say(COMMAND, &format!("there are more than {limit}; --limit shows more"));
    }
    Ok(())
}

fn table(sessions: &[Session], now_us: i64, width: Option<usize>, style: Style) -> String {
    // On a terminal, as much of the ids as is needed; in a pipe, all of it.
    let id_length = if width.is_some() { shortest(sessions) } else { usize::MAX };
    let mut rows =
        vec![["ID", "AGE", "STATE", "USER", "AGENT", "MODEL", "TURNS", "TOOLS"].map(str::to_owned)];
    let mut titles = vec!["TITLE".to_owned()];
    for session in sessions {
        let id = &session.session_id;
        let text = |value: &Option<String>| match value.as_deref() {
            None | Some("") => "-".to_owned(),
            Some(text) => escape(text.as_bytes(), 60),
        };
        let at = session.updated_us.or(session.opened_us).unwrap_or(now_us);
        let age = Duration::from_micros(u64::try_from(now_us.saturating_sub(at)).unwrap_or_default());
        rows.push([
            id.get(..id_length).unwrap_or(id).to_owned(),
            clock::age(age),
            if session.is_open { "open" } else { "ended" }.to_owned(),
            text(&session.user_name),
            text(&session.agent),
            text(&session.model),
            session.turns.to_string(),
            session.tool_calls.to_string(),
        ]);
        // A title, or what it began with.
        let title = session.title.as_deref().or(session.first_prompt.as_deref()).unwrap_or("-");
        titles.push(escape(title.trim().as_bytes(), 4 * MOST_TITLE));
    }
    let mut fixed = Table::new(0);
    rows.iter().for_each(|row| fixed.row(row.iter().cloned()));
    let widest = fixed.lines().iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let room = match width {
        Some(width) => width.saturating_sub(widest + 2).max(LEAST_TITLE),
        None => MOST_TITLE,
    };
    let mut all = Table::new(0);
    for (row, title) in rows.into_iter().zip(titles) {
        let title = match title.char_indices().nth(room) {
            Some(_) => title.chars().take(room - 1).chain(['…']).collect(),
            None => title,
        };
        all.row(row.into_iter().chain([title]));
    }
    let mut lines = all.lines().into_iter();
    let mut out = lines.next().map(|header| format!("{}\n", style.bold(&header))).unwrap_or_default();
    lines.for_each(|line| out.push_str(&(line + "\n")));
    out
}

/// How much of the ids tells them apart.
fn shortest(sessions: &[Session]) -> usize {
    let mut ids: Vec<_> = sessions.iter().map(|session| session.session_id.as_str()).collect();
    ids.sort_unstable();
    let same = |pair: &[&str]| pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
    ids.windows(2).map(|pair| same(pair) + 1).max().unwrap_or(0).max(SHORTEST_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(id: &str, title: Option<&str>) -> Session {
        Session {
            session_id: id.to_owned(),
            user_name: Some("ann".to_owned()),
            agent: Some("demo\u{1b}".to_owned()),
            title: title.map(str::to_owned),
            first_prompt: Some("what\nis this".to_owned()),
            is_open: title.is_some(),
            updated_us: Some(1_000_000),
            turns: 3,
            ..Session::default()
        }
    }

    #[test]
    fn the_table_fits_and_does_no_harm() {
        let sessions = [
            session("019a8c3e-1b2c-7000-8000-000000000001", Some(&"long ".repeat(30))),
            session("019a8c3e-1b2c-7000-8000-000000000021", None),
        ];
        let shown = table(&sessions, 62_000_000, None, Style::default());
        assert!(shown.contains("019a8c3e-1b2c-7000-8000-000000000021  1m"), "{shown}");
        assert!(
            shown.contains("  ended  ann   demo\\u{1b}  -      3      0      what\\nis this\n"),
            "{shown}"
        );
        // Ids of the same moment need more of themselves.
        let narrow = table(&sessions, 62_000_000, Some(120), Style::default());
        assert!(narrow.lines().all(|line| line.chars().count() <= 120), "{narrow}");
        assert!(narrow.contains("019a8c3e-1b2c-7000-8000-00000000002  1m"), "{narrow}");
        assert_eq!(shortest(&sessions[..1]), SHORTEST_ID);
    }
}
