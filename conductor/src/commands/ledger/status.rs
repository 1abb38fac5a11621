//! `conductor ledger status`: where the ledger is, how much it holds, and when
//! each journal was last carried over.

use std::{io::stdout, time::Duration};

use serde_json::json;

use super::{exists, unreadable};
use crate::{
    clock,
    commands::{
        table::{Table, size},
        terminal::{Style, print, print_json},
    },
    frame::escape,
    ledger::{Settings, overview},
    record::now_us,
};

pub(super) async fn show(settings: &Settings, as_json: bool) -> Result<(), String> {
    exists(settings)?;
    let found = overview::of(settings).await.map_err(|error| unreadable(settings, &error))?;
    if as_json {
        let journals = found.journals.iter().map(|journal| {
            json!({
                "journal_id": journal.journal_id,
                "host": journal.host,
                "segment": journal.segment,
                "byte_offset": journal.byte_offset,
                "updated_us": journal.updated_us,
            })
        });
        let status = json!({
            "ledger": settings.shown(),
            "schema_version": found.schema_version,
            "bytes": found.bytes,
            "rows": found.rows.iter().map(|(table, rows)| ((*table).to_owned(), json!(rows))).collect::<serde_json::Map<_, _>>(),
            "last_frame_us": found.last_frame_us,
            "journals": journals.collect::<serde_json::Value>(),
        });
        return print_json(&status);
    }
    let mut table = Table::new(0);
    table.row(["ledger", &settings.shown()]);
    table.row(["schema", &format!("version {}", found.schema_version)]);
    table.row(["size", &size(u64::try_from(found.bytes).unwrap_or_default())]);
    for (name, rows) in &found.rows {
        table.row([*name, &rows.to_string()]);
    }
    table.row(["last frame".to_owned(), found.last_frame_us.map_or_else(|| "none".to_owned(), ago)]);
    for journal in &found.journals {
        let host = escape(journal.host.as_deref().unwrap_or("an unknown host").as_bytes(), 100);
        table.row(["journal".to_owned(), format!("of {host}, carried over {}", ago(journal.updated_us))]);
    }
    let style = Style::of(&stdout());
    let mut out = table.lines().join("\n") + "\n";
    if found.conflicts() > 0 {
        out.push_str(&format!(
            "{}\n",
            style.bold(
                "frame_conflicts is not empty: a state directory was copied, or somebody tampered with it"
            )
        ));
    }
    print(&out)
}

fn ago(at_us: i64) -> String {
    let age = u64::try_from(now_us().saturating_sub(at_us)).unwrap_or_default();
    format!("{} ago ({})", clock::age(Duration::from_micros(age)), clock::rfc3339_us(at_us))
}
