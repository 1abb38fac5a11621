//! The tables against themselves and against the migrations.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::BTreeMap;

use super::*;

const POSTGRES: &str = concat!(
    include_str!("../../../../migrations/postgres/0001_ledger.sql"),
    include_str!("../../../../migrations/postgres/0002_views.sql"),
    include_str!("../../../../migrations/postgres/0003_people.sql"),
    include_str!("../../../../migrations/postgres/0004_policy.sql"),
    include_str!("../../../../migrations/postgres/0005_routing.sql"),
    include_str!("../../../../migrations/postgres/0006_approvals.sql"),
    include_str!("../../../../migrations/postgres/0007_grants.sql"),
    include_str!("../../../../migrations/postgres/0008_replay.sql"),
    include_str!("../../../../migrations/postgres/0009_containment.sql"),
    include_str!("../../../../migrations/postgres/0010_sandbox.sql"),
    include_str!("../../../../migrations/postgres/0011_evidence.sql"),
    include_str!("../../../../migrations/postgres/0012_search.sql"),
    include_str!("../../../../migrations/postgres/0013_retention.sql"),
    include_str!("../../../../migrations/postgres/0014_search_spans.sql"),
    include_str!("../../../../migrations/postgres/0015_numbers.sql"),
);
const SQLITE: &str = concat!(
    include_str!("../../../../migrations/sqlite/0001_ledger.sql"),
    include_str!("../../../../migrations/sqlite/0002_views.sql"),
    include_str!("../../../../migrations/sqlite/0003_people.sql"),
    include_str!("../../../../migrations/sqlite/0004_policy.sql"),
    include_str!("../../../../migrations/sqlite/0005_routing.sql"),
    include_str!("../../../../migrations/sqlite/0006_approvals.sql"),
    include_str!("../../../../migrations/sqlite/0007_grants.sql"),
    include_str!("../../../../migrations/sqlite/0008_replay.sql"),
    include_str!("../../../../migrations/sqlite/0009_containment.sql"),
    include_str!("../../../../migrations/sqlite/0010_sandbox.sql"),
    include_str!("../../../../migrations/sqlite/0011_evidence.sql"),
    include_str!("../../../../migrations/sqlite/0012_search.sql"),
    include_str!("../../../../migrations/sqlite/0013_retention.sql"),
    include_str!("../../../../migrations/sqlite/0014_search_spans.sql"),
    include_str!("../../../../migrations/sqlite/0015_numbers.sql"),
);

/// The tables that are not derived from frames.
const OTHERS: &[&str] = &[
    "frames",
    "frame_conflicts",
    "journals",
    "stream_heads",
    "checkpoints",
    "checkpoint_heads",
    "search_docs",
    "search_pending",
];

/// What Postgres has in columns, and SQLite in tables of FTS5.
const POSTGRES_ONLY: &[&str] = &["search_docs.words", "search_docs.line", "search_docs.pairs"];

/// What a migration makes.
#[derive(Debug, Default, PartialEq)]
struct Made {
    /// Name and type, in lower case.
    columns: Vec<(String, String)>,
    generated: Vec<String>,
    key: String,
}

/// The tables of the migrations, read as they are written: a column a line.
fn tables(sql: &str) -> BTreeMap<String, Made> {
    let mut tables = BTreeMap::new();
    for block in sql.split("\nCREATE TABLE ").skip(1) {
        // Partitions have no columns of their own.
        let Some((name, rest)) = block.split_once(" (\n") else { continue };
        if name.contains('\n') {
            continue;
        }
        let (body, _) = rest.split_once("\n)").unwrap();
        let mut made = Made::default();
        for line in body.lines() {
            let line = line.split(" -- ").next().unwrap().trim().trim_end_matches(',');
            if let Some(key) = line.strip_prefix("PRIMARY KEY (").or(line.strip_prefix("UNIQUE (")) {
                made.key = key.trim_end_matches(')').to_string();
                continue;
            }
            let (column, rest) = line.split_once(' ').unwrap();
            if rest.contains(" GENERATED ") {
                made.generated.push(column.to_string());
                continue;
            }
            if rest.ends_with(" PRIMARY KEY") {
                made.key = column.to_string();
            }
            let kind = rest.trim_end_matches(" PRIMARY KEY").trim_end_matches(" NOT NULL").to_lowercase();
            made.columns.push((column.to_string(), kind));
        }
        tables.insert(name.to_string(), made);
    }
    // What was added later stands behind what was there.
    for line in sql.lines().filter_map(|line| line.strip_prefix("ALTER TABLE ")) {
        // What else is altered makes no column.
        let Some((name, column)) = line.split(';').next().unwrap().split_once(" ADD COLUMN ") else {
            continue;
        };
        let (column, kind) = column.split_once(' ').unwrap();
        let made: &mut Made = tables.get_mut(name).unwrap();
        made.columns.push((column.to_string(), kind.to_lowercase()));
    }
    tables
}

#[test]
fn the_migrations_make_these_tables_and_no_others() {
    let kinds: [fn(Type) -> &'static str; 2] = [
        |kind| match kind {
            Id => "uuid",
            Int => "bigint",
            Real => "double precision",
            Bool => "boolean",
            Text => "text",
            Json => "jsonb",
        },
        |kind| match kind {
            Id | Text | Json => "text",
            Int => "integer",
            Real => "real",
            Bool => "boolean",
        },
    ];
    for (sql, kind) in [POSTGRES, SQLITE].into_iter().zip(kinds) {
        let mut made = tables(sql);
        for name in OTHERS {
            assert!(made.remove(*name).is_some(), "{name} is not made");
        }
        for table in TABLES {
            let made = made.remove(table.name).unwrap_or_else(|| panic!("{} is not made", table.name));
            let columns: Vec<_> = table
                .columns
                .iter()
                .map(|column| (column.name.to_string(), kind(column.kind).into()))
                .collect();
            assert_eq!(made.columns, columns, "{}", table.name);
            let key: Vec<_> = table.columns[..table.key].iter().map(|column| column.name).collect();
            assert_eq!(made.key, key.join(", "), "{}", table.name);
        }
        assert!(made.is_empty(), "not in table.rs: {made:?}");
    }
}

#[test]
fn both_databases_have_the_same_names_and_show_every_time() {
    let (postgres, sqlite) = (tables(POSTGRES), tables(SQLITE));
    assert_eq!(postgres.keys().collect::<Vec<_>>(), sqlite.keys().collect::<Vec<_>>());
    for (name, made) in &postgres {
        let other = &sqlite[name];
        let shared = |column: &String| !POSTGRES_ONLY.contains(&format!("{name}.{column}").as_str());
        let names = |made: &Made| {
            made.columns.iter().map(|(column, _)| column.clone()).filter(shared).collect::<Vec<_>>()
        };
        assert_eq!(names(made), names(other), "{name}");
        assert_eq!((&made.generated, &made.key), (&other.generated, &other.key), "{name}");
        for column in names(made) {
            let Some(time) =
                column.strip_suffix("_us").filter(|time| !["duration", "judging"].contains(time))
            else {
                continue;
            };
            let shown = if time == "at" { "at".to_string() } else { format!("{time}_at") };
            assert!(made.generated.contains(&shown), "{name}.{column} is not shown as a time");
        }
    }
}

#[test]
fn whatever_people_query_is_explained() {
    for (name, made) in tables(POSTGRES) {
        assert!(POSTGRES.contains(&format!("COMMENT ON TABLE {name} IS '")), "{name}");
        for column in made.columns.iter().map(|(column, _)| column).chain(&made.generated) {
            assert!(POSTGRES.contains(&format!("COMMENT ON COLUMN {name}.{column} IS '")), "{name}.{column}");
        }
    }
}

#[test]
fn rows_of_one_key_are_merged_as_their_columns_say() {
    let id = Uuid::nil();
    let key = || [id.into(), 7i64.into()];
    let mut row = Fact::new(MESSAGES, key()).set("text", "a\0b").set("chunks", 1i64).set("role", "agent");
    row.merge(&Fact::new(MESSAGES, key()).set("text", "c").set("chunks", 2i64).set("role", "user"));
    let expected =
        Fact::new(MESSAGES, key()).set("text", "a\u{fffd}bc").set("chunks", 3i64).set("role", "agent");
    assert_eq!(row, expected);
    assert_eq!(row.key(), [Value::Id(id), Value::Int(7)]);
}

#[test]
fn the_numbers_are_those_of_the_tables() {
    let names: Vec<_> = [
        SESSIONS,
        BINDINGS,
        PROCESSES,
        CONNECTIONS,
        TURNS,
        MESSAGES,
        TOOL_CALLS,
        FILE_ACCESSES,
        COMMANDS,
        USAGE,
        DECISIONS,
        MODELS,
        ROUTES_TAKEN,
        APPROVALS,
        GRANTS,
        GRANT_USES,
    ]
    .iter()
    .map(|table| TABLES[*table].name)
    .collect();
    let all: Vec<_> = TABLES.iter().map(|table| table.name).collect();
    assert_eq!(names, all);
}

#[test]
fn both_databases_have_the_same_views() {
    // Names with what is selected for each, as it is in the end.
    let views = |sql: &'static str| {
        let sql = sql.replace("\nCREATE OR REPLACE VIEW ", "\nCREATE VIEW ");
        let views = sql.split("\nCREATE VIEW ").skip(1).map(|view| view.split_once(" AS\n").unwrap());
        let named = views.map(|(name, rest)| (name.to_owned(), rest.split_once(';').unwrap().0.to_owned()));
        named.collect::<BTreeMap<_, _>>()
    };
    let [postgres, sqlite] = [POSTGRES, SQLITE].map(views);
    assert_eq!(postgres.keys().collect::<Vec<_>>(), sqlite.keys().collect::<Vec<_>>());
    for same in [
        "decision_log",
        "route_log",
        "approval_log",
        "grants_used",
        "asked_by_rule",
        "denied_by_rule",
        "unmediated",
    ] {
        assert_eq!(postgres[same], sqlite[same]);
    }
    assert!(postgres.len() >= 8, "{postgres:?}");
    let readme = include_str!("../../../../README.md");
    for view in postgres.keys() {
        assert!(POSTGRES.contains(&format!("COMMENT ON VIEW {view} IS '")), "{view}");
        assert!(readme.contains(&format!("| `{view}` |")), "README.md does not name {view}");
    }
}
