//! Texts that another process has chosen: a terminal would obey some of them, and a log would show lines that nobody
//! wrote.

use std::pin::pin;
use std::process::Output;

use rowlock::{Begun, Error, Fingerprint, Outcome, Rowlock, Scope, StepFailed, TransactionError};
use rowlock_test::take;

use crate::shell::{Shell, code, stderr, stdout};

/// A new line, a red terminal, its title, and letters that run backwards.
const TEXT: &str = "x\nrowlock: all is well\x1b[31m\x1b]0;title\x07\u{202e}y\u{2028}z";

fn is_plain(output: &Output, arguments: &[&str]) {
    for said in [stdout(output), stderr(output)] {
        let odd = |c: &char| c.is_control() && *c != '\n' || "\u{202e}\u{2028}".contains(*c);
        assert_eq!(said.chars().find(odd), None, "{arguments:?}: {said:?}");
        assert!(
            !said.contains("\nrowlock: all is well"),
            "{arguments:?}: {said}"
        );
    }
}

#[tokio::test]
async fn what_another_process_has_written_is_printed_without_control_characters() {
    let shell = Shell::new();
    let url = format!("sqlite:{}", shell.dir.path().join("rowlock.db").display());
    let other = Rowlock::builder().holder(TEXT).connect(&url).await.unwrap();
    let ttl = std::time::Duration::from_mins(1);
    let named = take(&other, TEXT, ttl).await;
    let run = take(&other, "run", ttl).await;
    run.begin_run().await.unwrap();
    run.end_run(false, TEXT).await.unwrap();
    let read = other.rw_lock("read").read().await.unwrap();
    let idempotency = other.idempotency();
    let begun = idempotency
        .begin(Scope(TEXT).key(TEXT), &Fingerprint::of("a"))
        .await;
    let Begun::New(attempt) = begun.unwrap() else {
        panic!("it is new");
    };
    let name = "a".parse().unwrap();
    let failed = StepFailed::Unknown(Error::Transaction(TransactionError::DuplicateName { name }));
    let step = async { Err::<(), StepFailed<Error>>(failed) };
    attempt.step_once(TEXT, step).await.unwrap_err();
    let begun = idempotency
        .begin(Scope("done").key("k"), &Fingerprint::of("a"))
        .await;
    let Begun::New(done) = begun.unwrap() else {
        panic!("it is new");
    };
    // Its lines are shown as lines.
    let outcome = Outcome::new("text/plain", "\x1b[31m\u{202e}y").unwrap();
    done.complete(&outcome).await.unwrap();
    let lock = other.lock("run");
    let mut queue = pin!(lock.acquire());
    tokio::select! {
        _ = &mut queue => panic!("it is held"),
        () = async {
            while other.admin().queue("run").await.unwrap().is_empty() {}
        } => {}
    }
    for (arguments, expected) in [
        (&["ls"][..], 0),
        (&["show", TEXT], 0),
        (&["show", "read"], 0),
        (&["sessions"], 0),
        (&["jobs"], 0),
        (&["idempotency", "ls"], 0),
        (&["idempotency", "show", TEXT, TEXT], 0),
        (&["idempotency", "show", "no such", TEXT], 1),
        (&["idempotency", "show", "done", "k"], 0),
        (&["idempotency", "reset", TEXT, TEXT], 64),
        (&["run", TEXT, "--no-wait", "--", "true"], 75),
        (&["run", TEXT, "--wait", "100ms", "--", "true"], 75),
        (&["run", "run", "--no-wait", "--", "true"], 75),
        (&["run", "read", "--shared", "--no-wait", "--", "true"], 0),
        (&["run", "read", "--no-wait", "--", "true"], 64),
        (&["forget", TEXT], 75),
        (&["set-capacity", TEXT, "3"], 64),
        (&["release", TEXT, "--force"], 0),
        (&["release", "read", "--force"], 0),
    ] {
        let output = shell.run(arguments);
        assert_eq!(
            code(&output),
            expected,
            "{arguments:?}: {}",
            stderr(&output)
        );
        is_plain(&output, arguments);
    }
    drop((named, run, read, attempt));
}
