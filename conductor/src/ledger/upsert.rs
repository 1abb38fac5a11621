//! The statements that are made rather than written: inserts into `frames` and
//! upserts into the derived tables, from the tables as data, for both
//! databases. Names come from our own constants, never from a frame.

use super::{
    row,
    table::{Merge, Table, Type},
};

/// Upserts many rows of a derived table: a parameter per column, each a list.
pub fn postgres(table: &Table) -> String {
    let lists: Vec<_> = table.columns.iter().enumerate().map(|(at, column)| (at + 1, column)).collect();
    let parameters: Vec<_> =
        lists.iter().map(|(at, column)| format!("${at}::{}[]", list_of(column.kind))).collect();
    let values: Vec<_> = lists
        .iter()
        .map(|(at, column)| match column.kind {
            Type::Json => format!("v.c{at}::jsonb"),
            _ => format!("v.c{at}"),
        })
        .collect();
    let names: Vec<_> = lists.iter().map(|(at, _)| format!("c{at}")).collect();
    format!(
        "INSERT INTO {} AS t ({}) SELECT {} FROM UNNEST({}) AS v({}) {}",
        table.name,
        columns(table),
        values.join(", "),
        parameters.join(", "),
        names.join(", "),
        on_conflict(table)
    )
}

/// Upserts so many rows of a derived table: a parameter per value.
pub fn sqlite(table: &Table, rows: usize) -> String {
    let values = rows_of(table.columns.len(), rows);
    format!("INSERT INTO {} AS t ({}) VALUES {values} {}", table.name, columns(table), on_conflict(table))
}

/// Inserts so many frames in SQLite. A statement that fails leaves what it did
/// to the transaction, which its caller gives up: SQLite then need not keep a
/// copy of every page that the statement changes.
pub fn sqlite_frames(rows: usize) -> String {
    let values = rows_of(row::COLUMNS.len(), rows);
    format!("INSERT OR FAIL INTO frames ({}) VALUES {values}", row::COLUMNS.join(", "))
}

/// Inserts the frames that are not there, from a list per column; the answer
/// are the keys of those that were not.
pub fn postgres_missing_frames() -> String {
    let kinds = [
        "uuid", "bigint", "text", "bigint", "text", "text", "text", "text", "text", "bigint", "uuid",
        "bytea", "text", "bytea", "bytea",
    ];
    let names = row::COLUMNS;
    let parameters: Vec<_> =
        kinds.iter().enumerate().map(|(at, kind)| format!("${}::{kind}[]", at + 1)).collect();
    let values: Vec<_> = names
        .iter()
        .map(|name| if *name == "json" { "v.json::jsonb".to_owned() } else { format!("v.{name}") })
        .collect();
    format!(
        "INSERT INTO frames ({}) SELECT {} FROM UNNEST({}) AS v({}) \
         ON CONFLICT (stream_id, seq) DO NOTHING RETURNING stream_id, seq",
        names.join(", "),
        values.join(", "),
        parameters.join(", "),
        names.join(", ")
    )
}

fn rows_of(columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; rows].join(", ")
}

fn columns(table: &Table) -> String {
    table.columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

/// A list's elements. `jsonb` travels as text and is cast in the statement.
fn list_of(kind: Type) -> &'static str {
    match kind {
        Type::Id => "uuid",
        Type::Int => "bigint",
        Type::Real => "double precision",
        Type::Bool => "boolean",
        Type::Text | Type::Json => "text",
    }
}

/// The same rules as `Fact::merge`, in SQL that both databases read alike: an
/// operation with a null is null, and then the other value counts.
fn on_conflict(table: &Table) -> String {
    let (key, rest) = table.columns.split_at(table.key);
    let key: Vec<_> = key.iter().map(|column| column.name).collect();
    let changes: Vec<_> = rest
        .iter()
        .map(|column| {
            let name = column.name;
            let (old, new) = (format!("t.{name}"), format!("excluded.{name}"));
            match column.merge {
                Merge::First => format!("{name} = COALESCE({old}, {new})"),
                Merge::Last => format!("{name} = COALESCE({new}, {old})"),
                Merge::Append => format!("{name} = COALESCE({old} || {new}, {old}, {new})"),
                Merge::Sum => format!("{name} = COALESCE({old} + {new}, {old}, {new})"),
                Merge::Greatest => {
                    format!("{name} = CASE WHEN {old} >= {new} THEN {old} ELSE COALESCE({new}, {old}) END")
                }
            }
        })
        .collect();
    format!("ON CONFLICT ({}) DO UPDATE SET {}", key.join(", "), changes.join(", "))
}
