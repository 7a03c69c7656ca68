//! `rowlock run --at-least-for`: a job of many machines; and `rowlock jobs`.

use std::process::Output;
use std::time::{Duration, Instant};

use chrono::DateTime;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::jobs::Terminal;
use crate::shell::{Shell, code, stderr, stdout, wait};

/// Runs a script as a job of this name.
fn job(shell: &Shell, name: &str, options: &[&str], script: &str) -> Output {
    let command = ["--", "bash", "-c", script];
    shell.run(&[&["run", name][..], options, &command].concat())
}

/// The last run of a job.
fn last(shell: &Shell, name: &str) -> Value {
    let all = shell.json(&["jobs", "--json"]);
    let mut all = all.as_array().unwrap().iter();
    let run = all.find(|run| run["name"] == name);
    run.unwrap_or_else(|| panic!("no run of {name}")).clone()
}

/// Its state and its message.
fn result(shell: &Shell, name: &str) -> (String, String) {
    let run = last(shell, name);
    let text = |field: &str| run[field].as_str().unwrap().to_owned();
    (text("state"), text("message"))
}

fn was(state: &str, message: &str) -> (String, String) {
    (state.to_owned(), message.to_owned())
}

const LONG: [&str; 2] = ["--at-least-for", "1h"];
const SHORT: [&str; 2] = ["--at-least-for", "0s"];

#[test]
fn a_job_runs_on_one_machine_and_the_others_end_without_a_word() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let first = job(&shell, "j", &LONG, "echo $ROWLOCK_NAME ran; exit 7");
    assert_eq!((code(&first), &*stdout(&first)), (7, "j ran\n"));
    assert_eq!(stderr(&first), "");
    for _ in 0..2 {
        let other = job(&shell, "j", &LONG, "echo ran");
        let all = (code(&other), stdout(&other), stderr(&other));
        assert_eq!(all, (0, String::new(), String::new()));
    }
    // A command without the option waits for the name as for any lock.
    let refused = job(&shell, "j", &["--no-wait"], "echo ran");
    assert_eq!((code(&refused), &*stdout(&refused)), (75, ""));
}

#[test]
fn who_frees_the_name_of_a_run_that_has_ended_hears_that_nobody_works() {
    let shell = Shell::new();
    assert_eq!(code(&job(&shell, "j", &LONG, "exit 1")), 1);
    let refused = shell.run(&["release", "j"]);
    let said = stderr(&refused);
    assert_eq!(code(&refused), 64, "{said}");
    assert!(said.contains("Its run has ended"), "{said}");
    assert!(!said.contains("may go on working"), "{said}");
    assert_eq!(code(&shell.run(&["release", "j", "--force"])), 0);
    assert_eq!(stdout(&job(&shell, "j", &LONG, "echo again")), "again\n");
}

#[test]
fn on_a_terminal_the_others_say_why_they_do_nothing() {
    let shell = Shell::new();
    assert_eq!(code(&job(&shell, "j", &LONG, "true")), 0);
    let command = ["rowlock", "run", "j", "--at-least-for", "1h", "--", "false"];
    let mut terminal = Terminal::new(&shell, &command);
    terminal.shows("rowlock: \"j\" does not run here, because the name is taken: held by rowlock[");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_name_of_a_job_is_free_after_at_least_for() {
    let shell = Shell::new();
    let (time, began) = (Duration::from_millis(1_500), Instant::now());
    let options = ["--at-least-for", "1500ms"];
    assert_eq!(stdout(&job(&shell, "j", &options, "echo ran")), "ran\n");
    wait("the next round runs", || {
        stdout(&job(&shell, "j", &options, "echo ran")) == "ran\n"
    });
    assert!(began.elapsed() >= time, "after {:?}", began.elapsed());
    // The name of a job that took longer than that is free at once.
    for _ in 0..2 {
        assert_eq!(stdout(&job(&shell, "k", &SHORT, "echo ran")), "ran\n");
    }
}

#[test]
fn the_last_run_of_each_job_is_listed_with_its_result() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let none = shell.run(&["jobs"]);
    assert_eq!(code(&none), 0);
    assert!(
        stdout(&none).starts_with("no job has run"),
        "{}",
        stdout(&none)
    );
    assert!(stderr(&none).contains("looked in"), "{}", stderr(&none));
    assert_eq!(shell.json(&["jobs", "--json"]), json!([]));
    let of_one = shell.run(&["jobs", "nope"]);
    assert_eq!(code(&of_one), 1);
    let of_one = stdout(&of_one);
    assert!(
        of_one.starts_with("no run of a job \"nope\" is known"),
        "{of_one}"
    );

    let script = "echo $ROWLOCK_FENCE; sleep 0.3";
    let fence: i64 = stdout(&job(&shell, "good", &SHORT, script))
        .trim()
        .parse()
        .unwrap();
    assert_eq!(code(&job(&shell, "bad", &SHORT, "exit 3")), 3);
    assert_eq!(code(&job(&shell, "shot", &SHORT, "kill -9 $$")), 128 + 9);
    let missing = ["run", "missing", "--at-least-for", "0s", "--", "/no/such"];
    assert_eq!(code(&shell.run(&missing)), 127);
    // A lock without the option is no job.
    assert_eq!(code(&job(&shell, "plain", &[], "true")), 0);

    let good = last(&shell, "good");
    assert_eq!(good["fence"], fence);
    assert_eq!(result(&shell, "good"), was("succeeded", ""));
    let began = good["began_at"].as_str().unwrap();
    assert!(DateTime::parse_from_rfc3339(began).is_ok(), "{began}");
    assert!(good["took_ms"].as_u64().unwrap() >= 299, "{good}");
    let holder = good["holder"].as_str().unwrap();
    assert!(holder.starts_with("rowlock["), "{holder}");
    assert_eq!(result(&shell, "bad"), was("failed", "exit code 3"));
    assert_eq!(result(&shell, "shot"), was("failed", "exit code 137"));
    assert_eq!(result(&shell, "missing"), was("failed", "exit code 127"));
    let all = shell.json(&["jobs", "--json"]);
    let names = all.as_array().unwrap().iter().map(|run| &run["name"]);
    let names: Vec<_> = names.collect();
    assert_eq!(names, ["bad", "good", "missing", "shot"]);

    // A run that has not ended.
    let running = shell.start(&["now", "--at-least-for", "0s"], "echo up; sleep 60 & wait");
    assert_eq!(result(&shell, "now"), was("running", ""));
    let table = stdout(&shell.run(&["jobs"]));
    for line in [
        &["JOB", "LAST RUN", "TOOK", "RESULT", "BY", "MESSAGE"][..],
        &["bad", "failed", "exit code 3"],
        &["good", "succeeded", holder],
        &["now", "running"],
    ] {
        let has = |text: &str| line.iter().all(|word| text.contains(word));
        assert!(table.lines().any(has), "{line:?} in {table}");
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().0, 128 + 15);
    assert_eq!(result(&shell, "now"), was("failed", "exit code 143"));
    // Each run replaces the one before.
    assert_eq!(code(&job(&shell, "bad", &SHORT, "true")), 0);
    assert_eq!(result(&shell, "bad"), was("succeeded", ""));
}

#[test]
fn a_job_whose_rowlock_is_killed_was_abandoned_and_its_name_stays_taken_for_at_least_for() {
    let shell = Shell::new();
    let (time, began) = (Duration::from_secs(3), Instant::now());
    let options = ["j", "--at-least-for", "3s", "--ttl", "200ms"];
    let mut running = shell.start(&options, "echo up; exec sleep 60");
    running.signal(Signal::SIGKILL);
    running.child.wait().unwrap();
    wait("it was abandoned", || {
        last(&shell, "j")["state"] == "abandoned"
    });
    assert!(began.elapsed() >= time, "after {:?}", began.elapsed());
    assert_eq!(last(&shell, "j")["took_ms"], Value::Null);
    let table = stdout(&shell.run(&["jobs"]));
    let is_listed = |line: &str| line.contains(" - ") && line.contains("abandoned");
    assert!(table.lines().any(is_listed), "{table}");
    let next = job(&shell, "j", &options[1..], "echo ran");
    assert_eq!(stdout(&next), "ran\n");
    assert_eq!(result(&shell, "j"), was("succeeded", ""));
}

#[test]
fn a_job_that_runs_for_longer_than_at_most_for_is_ended() {
    let shell = Shell::new();
    // A busy machine takes long to start a command.
    let began = Instant::now();
    assert_eq!(code(&job(&shell, "first", &SHORT, "true")), 0);
    let at_most = Duration::from_millis(500) + began.elapsed() * 20;
    let at_most = format!("{}ms", at_most.as_millis());
    let limits = ["--at-least-for", "100ms", "--at-most-for", &at_most];
    let script = "trap 'echo stopped; exit 3' TERM; echo up; sleep 600 & wait";
    let running = shell.start(&[&["j"][..], &limits].concat(), script);
    let (code, rest, told) = running.end();
    assert_eq!((code, rest.trim()), (76, "stopped"));
    let said = "rowlock: \"j\" has run for as long as --at-most-for says: rowlock stops the command, and kills it in 5s";
    assert_eq!(told.lines().last(), Some(said));
    let message = "it ran for longer than --at-most-for";
    assert_eq!(result(&shell, "j"), was("failed", message));
    wait("the name is free", || {
        stdout(&job(&shell, "j", &limits, "echo ran")) == "ran\n"
    });
}

#[test]
fn a_job_that_loses_its_lock_has_failed() {
    let shell = Shell::new();
    let script = "trap 'exit 0' TERM; echo up; sleep 60 & wait";
    let options = ["j", "--at-least-for", "1s", "--ttl", "900ms"];
    let running = shell.start(&options, script);
    assert_eq!(code(&shell.run(&["release", "j", "--force"])), 0);
    assert_eq!(running.end().0, 76);
    let message = "its lock was lost: it was taken over, or released by force";
    assert_eq!(result(&shell, "j"), was("failed", message));
}

#[test]
fn options_that_do_not_fit_a_job_are_refused_before_the_database_is_asked() {
    let shell = Shell::new();
    let longer = "--at-least-for 2s is longer than --at-most-for 1s: give the job more time, or its name less";
    let cases: &[(&[&str], &str)] = &[
        (&["--at-least-for", "2s", "--at-most-for", "1s"], longer),
        (&["--at-least-for", "25h"], "at most 24 h are allowed"),
        (&["--at-least-for", "1x"], "like 500ms"),
        (&["--at-least-for", "-1s"], "like 500ms"),
        (
            &["--at-least-for", "0s", "--at-most-for", "10ms"],
            "--at-most-for 10ms is refused: 100 ms to 366 days are allowed",
        ),
        (
            &["--at-least-for", "0s", "--at-most-for", "8785h"],
            "100 ms to 366 days are allowed",
        ),
        (
            &["--at-most-for", "1s"],
            "required arguments were not provided:\n  --at-least-for <DURATION>",
        ),
        (
            &["--at-least-for", "1s", "--ttl", "0s"],
            "100 ms to 24 h are allowed",
        ),
    ];
    let others: [&[&str]; 5] = [
        &["--wait", "1s"],
        &["--no-wait"],
        &["--shared"],
        &["--exclusive"],
        &["--permits", "1/2"],
    ];
    let refused = |options: &[&str], says: &str| {
        let refused = job(&shell, "j", options, "touch marker");
        assert_eq!(code(&refused), 64, "{options:?}: {}", stderr(&refused));
        assert!(
            stderr(&refused).contains(says),
            "{options:?}: {}",
            stderr(&refused)
        );
    };
    for (options, says) in cases {
        refused(options, says);
    }
    for other in others {
        let says = format!("cannot be used with '{}", other[0]);
        refused(&[&["--at-least-for", "1s"][..], other].concat(), &says);
    }
    for file in ["marker", "rowlock.db"] {
        assert!(!shell.dir.path().join(file).exists(), "{file}");
    }
}

#[test]
fn the_last_runs_of_a_job_are_listed() {
    let shell = Shell::new();
    for number in 0..3 {
        job(
            &shell,
            "j",
            &["--at-least-for", "0s"],
            &format!("exit {number}"),
        );
    }
    let runs = shell.json(&["jobs", "j", "--json"]);
    let states: Vec<_> = runs
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["state"])
        .collect();
    assert_eq!(states, ["failed", "failed", "succeeded"]);
    let other = shell.run(&["jobs", "other", "--json"]);
    assert_eq!((code(&other), stdout(&other).trim()), (1, "[]"));
}
