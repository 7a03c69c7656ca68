//! What the command does not print, or not twice: to readers that have gone, after a loss, about times that are none.

use std::process::Stdio;

use nix::sys::signal::Signal;
use rowlock::Lock;
use rowlock_test::takes_less_than;
use sqlx::Connection;

use crate::shell::{Shell, code, stderr, wait};

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    for arguments in [
        &["ls"][..],
        &["ls", "--json"],
        &["sessions"],
        &["idempotency", "ls"],
        &["clean"],
        &["migrate", "--print", "postgres"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = shell.command(arguments);
        let output = command
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(code(&output), 0, "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
    // Nobody reads the errors.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = shell.command(&["show", "a"]);
    assert_eq!(command.stderr(writer).status().unwrap().code(), Some(1));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = shell.command(&["idempotency", "reset", "a", "b"]);
    assert_eq!(command.stderr(writer).status().unwrap().code(), Some(1));
}

#[test]
fn a_busy_name_and_a_duration_are_told_without_odd_times() {
    let shell = Shell::new();
    let holder = shell.start(&["cat"], "echo up; sleep 60 & wait");
    let busy = shell.run(&["run", "cat", "--no-wait", "--", "true"]);
    assert_eq!(code(&busy), 75);
    let said = stderr(&busy);
    assert!(
        said.starts_with("rowlock: \"cat\" is not free: held by "),
        "{said}"
    );
    holder.signal(Signal::SIGTERM);
    holder.end();
    let refused = shell.run(&["run", "cat", "--ttl", "0s", "--", "true"]);
    assert!(
        stderr(&refused).contains("--ttl 0s is refused"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn after_a_loss_nothing_is_told_about_the_release() {
    let shell = Shell::new();
    let running = shell.start(&["a", "--ttl", "1s"], "echo up; sleep 60 & wait");
    let url = format!("sqlite:{}", shell.dir.path().join("rowlock.db").display());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut conn = runtime
        .block_on(sqlx::SqliteConnection::connect(&url))
        .unwrap();
    runtime
        .block_on(sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut conn))
        .unwrap();
    let (code, _, said) = running.end();
    assert_eq!(code, 76, "{said}");
    assert_eq!(said.matches("was lost").count(), 1, "{said}");
    assert!(!said.contains("could not be released"), "{said}");
    runtime.block_on(conn.close()).unwrap();
}

#[tokio::test]
async fn the_place_of_a_command_that_was_killed_lasts_for_its_ttl() {
    // Not for the default.
    takes_less_than(Lock::DEFAULT_TTL, async || {
        let shell = Shell::new();
        let reader = shell.start(&["a", "--shared"], "echo up; sleep 60 & wait");
        let writer = ["run", "a", "--exclusive", "--ttl", "1s", "--", "true"];
        let mut writer = shell.command(&writer).spawn().unwrap();
        wait("the writer is in the queue", || shell.has_waiter());
        writer.kill().unwrap();
        writer.wait().unwrap();
        let other = ["run", "a", "--shared", "--wait", "1m", "--", "true"];
        assert_eq!(code(&shell.run(&other)), 0);
        reader.signal(Signal::SIGTERM);
        reader.end();
    })
    .await;
}
