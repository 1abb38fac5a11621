//! The roles of deploy/postgres/roles.sql in a real Postgres: the service works
//! with its role, and can neither change nor remove what is recorded.

use std::{env, path::PathBuf, process::Command};

use conductor::ledger::{
    self, Settings,
    history::History,
    search::{Filter, Kind},
};
use conductor_tests::{
    harness::{program, service},
    postgres::{Database, PASSWORD},
    shipping::{Bench, session},
};
use serde_json::json;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection, postgres::PgConnectOptions};

use crate::fixture::{checked, command, decision, shipped, slowly};

/// The roles of one test: roles belong to the whole server.
struct Roles {
    owner: String,
    service: String,
    auditor: String,
}

const WORD: &str = "a-test's word";
/// The same in an address.
const IN_URL: &str = "a-test%27s%20word";

fn psql() -> PathBuf {
    let packaged = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
    let mut all: Vec<_> = packaged.map(|version| version.path().join("bin/psql")).collect();
    all.sort();
    all.extend(env::split_paths(&env::var_os("PATH").unwrap()).map(|path| path.join("psql")));
    all.into_iter().rev().find(|path| path.exists()).expect("psql comes with the server")
}

impl Roles {
    fn new() -> Self {
        let name = |what: &str| format!("{what} {}", uuid::Uuid::now_v7().simple());
        Self { owner: name("Owner"), service: name("service"), auditor: name("auditor") }
    }

    /// Runs the file, as its first lines say.
    fn make(&self, database: &Database) {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/postgres/roles.sql");
        let set = |name: &str, value: &str| format!("{name}={value}");
        let mut command = Command::new(psql());
        command.args(["-X", "-q", "-d", &database.url(), "-f", file]);
        for (name, value) in [
            ("owner", self.owner.as_str()),
            ("service", &self.service),
            ("auditor", &self.auditor),
            ("owner_password", WORD),
            ("service_password", WORD),
            ("auditor_password", WORD),
        ] {
            command.args(["-v", &set(name, value)]);
        }
        let done = command.env("PGPASSWORD", PASSWORD).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    fn url(&self, database: &Database, role: &str) -> String {
        database.url_of(&format!("{}:{IN_URL}", role.replace(' ', "%20")))
    }

    async fn connect(&self, database: &Database, role: &str) -> PgConnection {
        self.url(database, role).parse::<PgConnectOptions>().unwrap().connect().await.unwrap()
    }

    fn settings(&self, bench: &Bench) -> Settings {
        let database = bench.database();
        Settings {
            url: self.url(database, &self.service).parse().unwrap(),
            owner_url: self.url(database, &self.owner).parse().unwrap(),
            ..slowly(bench)
        }
    }

    async fn drop(&self, database: &Database) {
        let mut admin = database.connect().await;
        let Self { owner, service, auditor } = self;
        // What the owner has granted goes with the owner's own.
        let statement = format!(
            "DROP OWNED BY \"{owner}\" CASCADE; DROP OWNED BY \"{service}\", \"{auditor}\" CASCADE; \
             DROP ROLE \"{owner}\", \"{service}\", \"{auditor}\""
        );
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut admin).await.unwrap();
    }
}

async fn refused(connection: &mut PgConnection, statement: &str) {
    let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut *connection).await;
    let error = done.expect_err(statement).to_string();
    let is_refused = ["permission denied", "must be owner", "never changed", "read-only"];
    assert!(is_refused.iter().any(|words| error.contains(words)), "{statement}: {error}");
}

/// What is recorded, and every way to change it.
async fn cannot_change_the_record(connection: &mut PgConnection) {
    for table in ["frames", "frame_conflicts", "decisions", "checkpoints", "checkpoint_heads"] {
        let column = match table {
            "decisions" => "decision = 'reject'",
            "frames" | "frame_conflicts" => "origin = 'x'",
            _ => "number = number + 1",
        };
        refused(connection, &format!("UPDATE {table} SET {column}")).await;
        refused(connection, &format!("DELETE FROM {table}")).await;
        refused(connection, &format!("TRUNCATE {table} CASCADE")).await;
        refused(connection, &format!("ALTER TABLE {table} DISABLE TRIGGER ALL")).await;
        refused(connection, &format!("DROP TABLE {table}")).await;
    }
    refused(connection, "CREATE TABLE mine (a int)").await;
    refused(connection, "SET session_replication_role = replica").await;
    refused(connection, "DELETE FROM stream_heads").await;
    refused(connection, "UPDATE _sqlx_migrations SET success = false").await;
}

#[tokio::test]
async fn the_service_cannot_change_what_it_has_recorded() {
    // Before the first start, and in a ledger that one role has made so far.
    for is_there in [false, true] {
        let bench = Bench::postgres(Database::new().await);
        let roles = Roles::new();
        let journal = bench.journal();
        if is_there {
            session(&journal, 1);
            shipped(slowly(&bench), &journal).await;
        }
        roles.make(bench.database());
        roles.make(bench.database());
        let settings = roles.settings(&bench);
        let (stream, _) = session(&journal, 2);
        decision(&journal, stream, 1);
        command(&journal, stream, "git push --force origin");
        shipped(settings.clone(), &journal).await;
        let report = checked(&settings).await;
        assert_eq!((report.findings, report.seen.unsigned, report.seen.decisions), (Vec::new(), 0, 1));

        // Parts of commands are found, which takes an extension that none of the roles can make.
        let history = History::new(settings.clone(), None);
        let commands = Filter { kinds: vec![Kind::Command], ..Filter::default() };
        let found = history.search("forc", &commands).await.unwrap();
        assert_eq!((found.items.len(), found.hint), (1, None));

        let mut connection = roles.connect(bench.database(), &roles.service).await;
        cannot_change_the_record(&mut connection).await;
        let mut auditor = roles.connect(bench.database(), &roles.auditor).await;
        cannot_change_the_record(&mut auditor).await;
        for table in ["frames", "decisions", "sessions", "checkpoints", "stream_heads", "journals"] {
            refused(&mut auditor, &format!("INSERT INTO {table} DEFAULT VALUES")).await;
            let read = format!("SELECT count(*) FROM {table}");
            let count: i64 = sqlx::query_scalar(AssertSqlSafe(read)).fetch_one(&mut auditor).await.unwrap();
            assert!(count > 0, "{table}");
        }
        // The owner makes derived tables anew; the auditor checks, with what is told it.
        let before = bench.derived().await;
        ledger::rebuild(&settings, |_| {}).await.unwrap();
        assert_eq!(bench.derived().await, before);
        let url = roles.url(bench.database(), &roles.auditor).parse().unwrap();
        let audit = Settings { url, owner_url: Default::default(), ..settings.clone() };
        assert_eq!(checked(&audit).await.findings, []);
        roles.drop(bench.database()).await;
    }
}

#[tokio::test]
async fn a_whole_service_works_with_the_role() {
    let (database, roles) = (Database::new().await, Roles::new());
    roles.make(&database);
    // The owner's password is for whoever makes the tables, and the service's for the service.
    let name = |role: &str| database.url_of(&role.replace(' ', "%20"));
    let word = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(word.path(), format!("{WORD}\n")).unwrap();
    let migrate = || {
        let mut command = Command::new(program("conductor"));
        command.args(["ledger", "migrate"]).env("CONDUCTOR_STATE_DIR", word.path().with_extension("none"));
        command.env("CONDUCTOR_LEDGER__URL", name(&roles.service));
        command.env("CONDUCTOR_LEDGER__OWNER_URL", name(&roles.owner));
        command
    };
    let without = migrate().env("CONDUCTOR_LEDGER__OWNER_PASSWORD_FILE", "/nowhere").output().unwrap();
    let why = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(!without.status.success() && why.contains("ledger.owner_password_file /nowhere"), "{why}");
    for _ in 0..2 {
        let done = migrate().env("CONDUCTOR_LEDGER__OWNER_PASSWORD_FILE", word.path()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success() && said.contains("is up to date"), "{done:?}");
    }
    let builder = service(&json!({})).demo().set("ledger.checkpoint_every", "200ms");
    let mut running = builder
        .set("ledger.url", name(&roles.service))
        .set("ledger.password_file", word.path().to_str().unwrap())
        .start();
    let done = crate::service::prompt(&running);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let config = running.state().with_file_name("agents.toml");
    let config = ["--config", config.to_str().unwrap()];
    crate::service::wait_signed(&running, &config);
    assert!(running.term().success());
    let checked = running.run(&[&["ledger", "verify"][..], &config].concat());
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(0), "{text}");
    assert!(text.contains("nothing was changed") && !text.contains("not yet signed"), "{text}");
    drop(running);
    roles.drop(&database).await;
}
