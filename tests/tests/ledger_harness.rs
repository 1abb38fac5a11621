//! The tools themselves: a server that is shared, private, stopped and started.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::str::FromStr as _;

use conductor_tests::postgres::{Database, Postgres};
use sqlx::{ConnectOptions as _, postgres::PgConnectOptions};

async fn reaches(url: &str) -> bool {
    let options = PgConnectOptions::from_str(url).unwrap();
    let Ok(mut connection) = options.connect().await else { return false };
    let one: Result<i32, _> = sqlx::query_scalar("SELECT 1").fetch_one(&mut connection).await;
    matches!(one, Ok(1))
}

#[tokio::test]
async fn a_database_is_reached_by_tcp_and_by_socket_until_it_is_dropped() {
    let database = Database::new().await;
    let url = database.url();
    assert!(reaches(&url).await);
    assert!(reaches(&database.socket_url()).await);
    assert!(!reaches(&database.url_of("postgres")).await, "TCP asks for a password");
    let still_up = Postgres::shared();
    drop(database);
    assert!(!reaches(&url).await);
    drop(still_up);
}

#[tokio::test]
async fn a_private_server_stops_dies_and_starts_again() {
    let database = Postgres::start_private().database().await;
    assert_ne!(database.server().port(), Postgres::shared().port());
    database.server().stop();
    assert!(!reaches(&database.url()).await);
    database.server().start();
    assert!(reaches(&database.url()).await);
    database.server().kill();
    database.server().start();
    assert!(reaches(&database.url()).await);
}
