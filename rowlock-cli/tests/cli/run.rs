//! `rowlock run`: the command, its exit code, its signals, and the loss of its lock.

use std::process::{Output, Stdio};
use std::time::Instant;

use nix::sys::signal::Signal;
use rowlock_test::patience;
use serde_json::Value;

use crate::shell::{Shell, code, stderr, stdout};

#[test]
fn run_gives_the_command_its_name_and_fence_and_passes_its_exit_code_back() {
    let shell = Shell::new();
    let script = "echo $ROWLOCK_NAME $ROWLOCK_FENCE; exit 7";
    let first = shell.run(&["run", "nightly", "--", "bash", "-c", script]);
    assert_eq!(code(&first), 7, "{}", stderr(&first));
    let second = shell.run(&["run", "nightly", "--no-wait", "--", "bash", "-c", script]);
    let fence = |output: &Output| -> i64 {
        stdout(output)
            .trim()
            .strip_prefix("nightly ")
            .unwrap()
            .parse()
            .unwrap()
    };
    assert!(fence(&second) > fence(&first));
    assert!(
        shell.dir.path().join("rowlock.db").exists(),
        "the default database"
    );
    let killed = shell.run(&["run", "nightly", "--", "bash", "-c", "kill -9 $$"]);
    assert_eq!(code(&killed), 128 + 9);
    let missing = shell.run(&["run", "nightly", "--", "/no/such/command"]);
    assert_eq!(code(&missing), 127);
    assert!(stderr(&missing).contains("/no/such/command"));
    assert_eq!(
        shell.json(&["ls", "--json"]),
        Value::Array(vec![]),
        "nothing stays held"
    );
}

#[test]
fn run_does_not_run_when_the_lock_is_held() {
    let shell = Shell::new();
    let holder = shell.start(&["a", "--ttl", "5s"], "echo up; sleep 60 & wait");
    assert_eq!(holder.first, "up");
    for waiting in [&["--no-wait"][..], &["--wait", "200ms"]] {
        let marker = shell.dir.path().join("marker");
        let mut arguments = vec!["run", "a"];
        arguments.extend(waiting);
        arguments.extend(["--", "touch", marker.to_str().unwrap()]);
        let refused = shell.run(&arguments);
        assert_eq!(code(&refused), 75);
        assert!(stderr(&refused).contains("held by"), "{}", stderr(&refused));
        assert!(!marker.exists());
    }
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.end().0, 128 + 15);
    assert_eq!(shell.json(&["ls", "--json"]), Value::Array(vec![]));
}

#[test]
fn run_waits_for_the_lock() {
    let shell = Shell::new();
    let fifo = shell.fifo("fifo");
    let holder = shell.start(&["a", "--ttl", "5s"], "echo up; read line < fifo");
    let waiter = shell
        .command(&["run", "a", "--wait", "20s", "--", "echo", "after"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::fs::write(&fifo, "go\n").unwrap();
    assert_eq!(holder.end().0, 0);
    let output = waiter.wait_with_output().unwrap();
    assert_eq!((code(&output), stdout(&output).trim()), (0, "after"));
}

#[test]
fn signals_are_passed_on() {
    let shell = Shell::new();
    for (signal, name) in [
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGINT, "INT"),
    ] {
        let script =
            format!("trap 'echo got {name}; exit 9' {name}; echo up; while :; do sleep 0.05; done");
        let running = shell.start(&["a"], &script);
        running.signal(signal);
        let (code, rest, _) = running.end();
        assert_eq!((code, rest.trim()), (9, format!("got {name}").as_str()));
    }
}

#[test]
fn a_lost_lock_stops_the_command_and_its_whole_group() {
    let shell = Shell::new();
    let running = shell.start(
        &["a", "--ttl", "900ms"],
        "trap 'echo stopped; exit 3' TERM; echo up; sleep 60 & wait",
    );
    let released = shell.run(&["release", "a", "--force"]);
    assert_eq!(code(&released), 0);
    assert!(
        stdout(&released).contains("released \"a\""),
        "{}",
        stdout(&released)
    );
    let (code, rest, error) = running.end();
    assert_eq!((code, rest.trim()), (76, "stopped"));
    assert!(error.contains("was lost"), "{error}");
}

#[test]
fn a_command_that_does_not_stop_is_killed_after_the_grace_with_its_children() {
    let shell = Shell::new();
    // The child of the command inherits the output: reading to its end waits for it as well.
    let long = 2 * patience();
    let script = format!(
        "trap '' TERM; echo up; (trap '' TERM; sleep {}) & while :; do sleep 0.1; done",
        long.as_secs()
    );
    let began = Instant::now();
    let running = shell.start(&["a", "--ttl", "900ms", "--grace", "300ms"], &script);
    assert_eq!(code(&shell.run(&["release", "a", "--force"])), 0);
    assert_eq!(running.end().0, 76);
    assert!(began.elapsed() < patience(), "the child went on");
}

#[test]
fn the_command_ends_when_its_rowlock_is_killed() {
    let shell = Shell::new();
    let running = shell.start(
        &["a", "--ttl", "2s"],
        "trap 'echo stopped; exit 3' TERM; echo up; for i in {1..200}; do sleep 0.05; done",
    );
    running.signal(Signal::SIGKILL);
    // The output ends when the command does.
    let (mut output, mut rest) = (running.output, String::new());
    std::io::Read::read_to_string(&mut output, &mut rest).unwrap();
    // The kernel may send SIGTERM once for each thread of rowlock that dies (prctl(2), `PR_SET_PDEATHSIG`).
    let lines: Vec<_> = rest.lines().collect();
    let stopped = !lines.is_empty() && lines.iter().all(|line| *line == "stopped");
    assert!(stopped, "{rest:?}");
    let mut child = running.child;
    assert_eq!(child.wait().unwrap().code(), None, "killed");
}
