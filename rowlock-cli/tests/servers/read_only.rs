//! Servers that take no writes, and schemas that are not there: what the command says, and when.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use rowlock::{Engine, Error, Rowlock};
use rowlock_test::{Db, Own, eventually, take, takes_less_than, variable};
use sqlx::Connection;

use crate::command::{command, rowlock};

const TTL: Duration = Duration::from_secs(30);
/// An operation may take so long, and a wait for a lock is not to be longer by that.
const OPERATION: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_standby_says_what_it_is_and_the_first_connection_waits_for_its_promotion() {
    let primary = Own::start("postgres", &[]);
    let standby = Own::standby(&primary);
    let error = Rowlock::connect(&standby.url).await.unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    assert!(error.to_string().contains("standby"), "{error}");
    takes_less_than(OPERATION, async || {
        let output = rowlock(&standby.url, &["run", "a", "--no-wait", "--", "true"]);
        assert_eq!(output.status.code(), Some(69));
    })
    .await;

    let run = ["run", "a", "--wait", "1m", "--", "echo", "ran"];
    let mut waiting = command(&standby.url, &run);
    let waiting = waiting.env("ROWLOCK_LOG", "rowlock=debug");
    let waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = waiting.spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let refused = log.find(|line| {
        line.as_ref()
            .is_ok_and(|line| line.contains("trying again"))
    });
    assert!(refused.is_some(), "it has been refused");
    let log = std::thread::spawn(move || log.count()); // so that nothing waits for a reader
    drop(primary);
    standby.promote().await;
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"ran\n");
    assert!(log.join().is_ok());
}

/// Read only, and yet not a standby: what a refused write does to a wait.
async fn refused_writes_count_against_a_wait(engine: Engine, url: &str) {
    for wait in [&["--no-wait"][..], &["--wait", "1s"][..]] {
        let mut run = vec!["run", "a"];
        run.extend(wait);
        run.extend(["--", "true"]);
        // It was 10.1 s and 15.5 s.
        takes_less_than(OPERATION, async || {
            let output = rowlock(url, &run);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(69), "{engine} {said}");
            assert!(said.contains("takes no writes"), "{engine} {said}");
            assert!(!said.contains("cannot be reached"), "{engine} {said}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_refused_write_counts_against_the_wait() {
    let db = Db::new(Engine::Postgres).await;
    drop(db.rowlock().await);
    let name = db.url.rsplit('/').next().unwrap();
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    db.execute(&read_only).await;
    refused_writes_count_against_a_wait(Engine::Postgres, &db.url).await;
    // Who waits gets the lock when writes are taken again.
    let url = db.url.clone();
    let waiting = tokio::task::spawn_blocking(move || {
        rowlock(&url, &["run", "a", "--wait", "1m", "--", "true"])
    });
    let clients = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND application_name = 'rowlock'";
    eventually("a client that waits", async || db.number(clients).await > 0).await;
    db.execute(&format!(
        "BEGIN READ WRITE; ALTER DATABASE {name} RESET default_transaction_read_only; COMMIT"
    ))
    .await;
    assert_eq!(waiting.await.unwrap().status.code(), Some(0));
    db.remove().await;
}

#[tokio::test]
async fn a_refused_write_counts_against_the_wait_on_mysql_and_mariadb() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        // The whole server becomes read only: one of the test's own, and a user who may not write all the same.
        let server = Own::start(engine.name(), &[]);
        let mut admin = sqlx::MySqlConnection::connect(&server.url).await.unwrap();
        drop(Rowlock::connect(&server.url).await.unwrap());
        sqlx::raw_sql(
            "CREATE USER plain@'127.0.0.1' IDENTIFIED BY 'pw'; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON app.* TO plain@'127.0.0.1'; \
             SET GLOBAL read_only = 1",
        )
        .execute(&mut admin)
        .await
        .unwrap();
        let plain = server.url.replace("app:pw@", "plain:pw@");
        admin.close().await.unwrap();
        refused_writes_count_against_a_wait(engine, &plain).await;
        // Of several servers, one that is read only is not taken.
        let other = std::env::var(variable(engine)).unwrap();
        let other = other.split_once('@').unwrap().1.split_once('/').unwrap().0;
        let url = format!("mysql://app:pw@{},{other}/app", server.address());
        let rowlock = Rowlock::connect(&url).await.unwrap();
        let held = take(&rowlock, "of several servers", TTL).await;
        let _ = held.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_search_path_without_a_schema_does_not_fit() {
    let db = Db::new(Engine::Postgres).await;
    let url = format!("{}?options=-csearch_path%3Dnosuch", db.url);
    let output = rowlock(&url, &["run", "a", "--", "true"]);
    assert_eq!(output.status.code(), Some(78));
    db.remove().await;
}
