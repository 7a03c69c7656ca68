//! Several servers, of which one is the primary; and servers that take no writes.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rowlock::{Engine, Error, Rowlock};
use rowlock_test::{Db, Own, eventually, take, variable};
use sqlx::{Connection, PgConnection, Row};

use crate::command::{command, rowlock};

const TTL: Duration = Duration::from_secs(30);
/// An operation may take so long, and a wait for a lock is not to be longer by that.
const OPERATION: Duration = Duration::from_secs(5);

fn standby(primary: &Own) -> Own {
    Own::start("standby", &[primary.dir.path().to_str().unwrap()])
}

async fn is_standby(url: &str) -> bool {
    let mut conn = PgConnection::connect(url).await.unwrap();
    let row = sqlx::raw_sql("SELECT pg_is_in_recovery()").fetch_one(&mut conn);
    row.await.unwrap().get(0)
}

async fn promote(standby: &Own) {
    let mut conn = PgConnection::connect(&standby.url).await.unwrap();
    let promote = sqlx::raw_sql("SELECT pg_promote()");
    promote.execute(&mut conn).await.unwrap();
}

#[tokio::test]
async fn the_primary_is_found_among_several_servers_and_again_after_a_failover() {
    let primary = Own::start("postgres", &[]);
    let standby = standby(&primary);
    // Nobody listens at the first; the second is not the primary.
    let url = format!(
        "postgres://postgres@127.0.0.1:1,{},{}/postgres",
        standby.address(),
        primary.address()
    );
    let rowlock = Rowlock::connect(&url).await.unwrap();
    let held = take(&rowlock, "a", TTL).await;
    let (fence, address) = (held.fence(), standby.url.clone());
    // The standby may be a little behind: what it has not seen, nobody was promised (it is asynchronous).
    eventually("the standby has the grant", async || {
        let mut conn = PgConnection::connect(&address).await.unwrap();
        let grant = sqlx::raw_sql("SELECT 1 FROM rowlock_lock WHERE owner IS NOT NULL");
        grant
            .fetch_optional(&mut conn)
            .await
            .is_ok_and(|row| row.is_some())
    })
    .await;
    assert!(is_standby(&standby.url).await);
    drop(primary); // stopped
    promote(&standby).await;
    assert!(rowlock.inspect("a").await.unwrap().is_some());
    let outcome = held.release().await.unwrap();
    assert_eq!(outcome, rowlock::ReleaseOutcome::Released);
    let next = take(&rowlock, "a", TTL).await;
    assert!(next.fence() > fence);
    let _ = next.release().await.unwrap();
    drop(rowlock);

    drop(standby);
    let error = Rowlock::connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(
        error.to_string().contains("server 1:") && error.to_string().contains("server 3:"),
        "{error}"
    );
}

#[tokio::test]
async fn a_standby_says_what_it_is_and_the_first_connection_waits_for_its_promotion() {
    let primary = Own::start("postgres", &[]);
    let standby = standby(&primary);
    let error = Rowlock::connect(&standby.url).await.unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    assert!(error.to_string().contains("standby"), "{error}");
    let (output, took) = rowlock(&standby.url, &["run", "a", "--no-wait", "--", "true"]);
    assert_eq!(output.status.code(), Some(69));
    assert!(took < OPERATION, "{took:?}");

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
    promote(&standby).await;
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"ran\n");
    assert!(log.join().is_ok());
}

/// Read only, and yet not a standby: what a refused write does to a wait.
fn refused_writes_count_against_a_wait(engine: Engine, url: &str) {
    for wait in [&["--no-wait"][..], &["--wait", "1s"][..]] {
        let mut run = vec!["run", "a"];
        run.extend(wait);
        run.extend(["--", "true"]);
        let (output, took) = rowlock(url, &run);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{engine} {said}");
        assert!(said.contains("takes no writes"), "{engine} {said}");
        assert!(!said.contains("cannot be reached"), "{engine} {said}");
        // It was 10.1 s and 15.5 s.
        assert!(took < OPERATION, "{engine} {wait:?} {took:?}");
    }
}

#[tokio::test]
async fn a_refused_write_counts_against_the_wait() {
    let db = Db::new(Engine::Postgres).await;
    drop(db.rowlock().await);
    let name = db.url.rsplit('/').next().unwrap();
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    db.execute(&read_only).await;
    refused_writes_count_against_a_wait(Engine::Postgres, &db.url);
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
    assert_eq!(waiting.await.unwrap().0.status.code(), Some(0));
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
        refused_writes_count_against_a_wait(engine, &plain);
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
async fn a_search_path_without_a_schema_says_so() {
    let db = Db::new(Engine::Postgres).await;
    let url = format!("{}?options=-csearch_path%3Dnosuch", db.url);
    let error = Rowlock::connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::NoSchema { .. }), "{error}");
    assert!(error.to_string().contains("(nosuch)"), "{error}");
    let (output, _) = rowlock(&url, &["run", "a", "--", "true"]);
    assert_eq!(output.status.code(), Some(78));
    db.remove().await;
}

/// Flushing waits for what can be done, and for no lease of a server that is gone to run out.
#[tokio::test]
async fn flushing_ends_when_the_server_is_gone() {
    for kind in ["postgres", "mariadb", "mysql"] {
        let server = Own::start(kind, &[]);
        let second = Duration::from_secs(1);
        let builder = Rowlock::builder().operation_timeout(second);
        let rowlock = builder.connect(&server.url).await.unwrap();
        let held = take(&rowlock, "a", TTL).await;
        drop(server); // stopped
        drop(held);
        let flushed = tokio::time::timeout(TTL / 2, rowlock.flush()).await;
        flushed.expect("it does not wait for the lease to run out");
    }
}

/// It takes connections, and says nothing.
#[tokio::test]
async fn a_silent_server_leaves_the_next_ones_their_share_of_the_time() {
    for engine in [Engine::Postgres, Engine::MariaDb, Engine::MySql] {
        let db = Db::new(engine).await;
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = (silent.local_addr().unwrap(), silent);
        let (before, after) = db.url.split_once('@').unwrap();
        let url = format!("{before}@{},{after}", silent.0);
        let patience = Duration::from_secs(4);
        let began = Instant::now();
        let rowlock = Rowlock::builder().operation_timeout(patience);
        let rowlock = rowlock.connect(&url).await.unwrap();
        assert!(
            began.elapsed() >= patience / 2,
            "{engine} has no such share"
        );
        let held = take(&rowlock, "a", TTL).await;
        let _ = held.release().await.unwrap();
        drop(rowlock);
        db.remove().await;
    }
}
