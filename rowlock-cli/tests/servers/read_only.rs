//! Servers that take no writes, and schemas that are not there: what the command says, and when.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use rowlock::{Engine, Error, Rowlock};
use rowlock_test::{
    Db, Mode, Own, eventually, patience, take, takes_less_than, through_proxy, variable,
};
use sqlx::Connection;
use tokio::sync::mpsc;

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

/// A command whose standard error is read.
struct Told {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
}

fn told(url: &str, arguments: &[&str]) -> Told {
    let mut child = command(url, arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stderr.take().unwrap()).lines();
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in said.map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    Told { child, lines }
}

impl Told {
    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(patience(), self.lines.recv()).await;
        line.expect("it is told").expect("it goes on")
    }

    /// The exit code.
    async fn end(mut self) -> Option<i32> {
        while self.lines.recv().await.is_some() {}
        self.child.wait().unwrap().code()
    }
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
    // Who waits is told, and gets the lock when writes are taken again.
    let mut waiting = told(&db.url, &["run", "a", "--", "true"]);
    let said = waiting.line().await;
    assert!(
        said.contains("still waits for \"a\"") && said.contains("takes no writes"),
        "{said}"
    );
    db.execute(&format!(
        "BEGIN READ WRITE; ALTER DATABASE {name} RESET default_transaction_read_only; COMMIT"
    ))
    .await;
    assert_eq!(waiting.end().await, Some(0));
    db.remove().await;
}

#[tokio::test]
async fn a_database_that_goes_away_while_commands_wait_is_told() {
    for engine in [Engine::Postgres, Engine::MariaDb, Engine::MySql] {
        let db = Db::new(engine).await;
        let (proxy, url) = through_proxy(&db).await;
        let rowlock = db.rowlock().await;
        let mut held = Vec::new();
        for name in ["a", "b"] {
            held.push(take(&rowlock, name, TTL).await);
        }
        let lock = rowlock.rw_lock("c");
        let writer = lock.write().await.unwrap();
        let waits = [&["a"][..], &["b"], &["c", "--shared"]];
        let mut waits = waits.map(|wait| told(&url, &[&["run"], wait, &["--", "true"]].concat()));
        for name in ["a", "b", "c"] {
            eventually("it waits", async || {
                !rowlock.admin().queue(name).await.unwrap().is_empty()
            })
            .await;
        }
        proxy.set(Mode::Closed);
        for wait in &mut waits {
            let said = wait.line().await;
            assert!(said.contains("still waits for "), "{said}");
        }
        proxy.set(Mode::Pass);
        for held in held {
            held.release().await.unwrap();
        }
        writer.release().await.unwrap();
        for wait in waits {
            assert_eq!(wait.end().await, Some(0));
        }
        drop((rowlock, lock));
        db.remove().await;
    }
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
        held.release().await.unwrap();
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
