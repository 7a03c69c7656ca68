//! What a command leaves of a SQLite file: all of it is in the file itself, not in the log beside it.

use nix::sys::signal::Signal;

use crate::shell::{Shell, code, stderr};

/// No log is left, and a copy of the file alone has the tables.
fn is_whole(shell: &Shell, what: &str) {
    let file = |name| shell.dir.path().join(name);
    for beside in ["rowlock.db-wal", "rowlock.db-shm"] {
        assert!(!file(beside).exists(), "{what} leaves {beside}");
    }
    std::fs::copy(file("rowlock.db"), file("copy.db")).unwrap();
    let copy = shell.run(&["sessions", "--url", "sqlite:copy.db"]);
    assert_eq!(code(&copy), 0, "{what}: {}", stderr(&copy));
}

#[test]
fn a_command_closes_its_file() {
    let shell = Shell::new();
    for (arguments, expected) in [
        (&["run", "a", "--", "true"][..], 0),
        (&["run", "a", "--at-least-for", "0s", "--", "false"], 1),
        (&["run", "s", "--permits", "1/2", "--", "true"], 0),
        (&["run", "r", "--shared", "--", "true"], 0),
        (&["run", "r", "--", "true"], 64),
        (&["ls"], 0),
        (&["sessions"], 0),
        (&["show", "a"], 1),
        (&["jobs"], 0),
        (&["release", "a", "--force"], 0),
        (&["set-capacity", "s", "3"], 0),
        (&["forget", "s"], 0),
        (&["idempotency", "ls"], 0),
        (&["idempotency", "show", "s", "k"], 1),
        (&["idempotency", "reset", "s", "k"], 1),
        (&["clean"], 0),
        (&["migrate"], 0),
        (&["quarantine", "--for", "1s"], 0),
        (&["quarantine", "--end"], 0),
    ] {
        let output = shell.run(arguments);
        assert_eq!(
            code(&output),
            expected,
            "{arguments:?}: {}",
            stderr(&output)
        );
        is_whole(&shell, &format!("{arguments:?}"));
    }
}

#[test]
fn a_command_that_a_signal_or_a_loss_ends_closes_its_file() {
    let shell = Shell::new();
    let running = shell.start(&["a"], "echo up; sleep 60 & wait");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().0, 128 + 15);
    is_whole(&shell, "SIGTERM");
    let running = shell.start(&["a", "--ttl", "900ms"], "echo up; sleep 60 & wait");
    assert_eq!(code(&shell.run(&["release", "a", "--force"])), 0);
    assert_eq!(running.end().0, 76);
    is_whole(&shell, "a loss");
    let quarantine = shell.run(&["quarantine", "--for", "1h"]);
    assert_eq!(code(&quarantine), 0);
    let refused = shell.run(&["run", "a", "--no-wait", "--", "true"]);
    assert_eq!(code(&refused), 75);
    is_whole(&shell, "a quarantine");
}
