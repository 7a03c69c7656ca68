//! `rowlock quarantine`, and what other commands do meanwhile.

use std::process::Stdio;

use serde_json::json;

use crate::shell::{Shell, code, stderr, stdout, wait};

/// The output of `rowlock quarantine` with these options, without the name of the database.
fn quarantine(shell: &Shell, options: &[&str]) -> String {
    let output = shell.run(&[&["quarantine"][..], options].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let file = shell.dir.path().canonicalize().unwrap().join("rowlock.db");
    let target = format!("sqlite:{}", file.display());
    let said = stdout(&output);
    let rest = said.trim_end().strip_prefix(&target);
    rest.unwrap_or_else(|| panic!("{said}")).to_owned()
}

#[test]
fn a_quarantine_that_is_too_short_for_the_defaults_is_told() {
    for (times, is_told) in [
        (&["1m"][..], true),
        (&["90s"], false),
        (&["2m", "1m"], false),
    ] {
        let shell = Shell::new();
        let mut said = String::new();
        for time in times {
            said = stderr(&shell.run(&["quarantine", "--for", time]));
        }
        let tells = said.contains("that is shorter than 90 s");
        assert_eq!(tells, is_told, "{times:?}: {said}");
    }
}

#[test]
fn a_quarantine_is_begun_told_and_ended() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    assert_eq!(quarantine(&shell, &[]), " is not in quarantine");
    assert_eq!(quarantine(&shell, &["--end"]), " was not in quarantine");
    // The first digit of 3600 s, or of a little less.
    let nothing = " grants nothing for another 3";
    for options in [&["--for", "1h"][..], &[]] {
        let left = quarantine(&shell, options);
        assert!(left.starts_with(nothing) && left.ends_with('s'), "{left}");
    }
    let shorter = quarantine(&shell, &["--for", "1m"]);
    assert!(
        shorter.starts_with(nothing)
            && shorter.ends_with(": it was in quarantine before, and the longer time counts"),
        "{shorter}"
    );
    let longer = quarantine(&shell, &["--for", "2h"]);
    let nothing = " grants nothing for another 7";
    assert!(
        longer.starts_with(nothing) && longer.ends_with('s'),
        "{longer}"
    );
    assert_eq!(quarantine(&shell, &["--end"]), ": the quarantine has ended");
    assert_eq!(quarantine(&shell, &[]), " is not in quarantine");
}

#[test]
fn programs_learn_how_long_a_quarantine_lasts() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let none = json!({ "left_ms": null });
    assert_eq!(shell.json(&["quarantine", "--json"]), none);
    for options in [&["--for", "1h", "--json"][..], &["--json"]] {
        let told = shell.json(&[&["quarantine"][..], options].concat());
        let left = told["left_ms"].as_u64().unwrap_or_default();
        assert!((3_000_000..=3_600_000).contains(&left), "{told}");
    }
    assert_eq!(shell.json(&["quarantine", "--end", "--json"]), none);
    assert_eq!(quarantine(&shell, &[]), " is not in quarantine");
}

#[test]
fn who_looks_at_locks_or_jobs_is_told_of_the_quarantine() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let told = " is in quarantine: it grants nothing for another 3";
    for (arguments, has_one) in [
        (&["ls"][..], true),
        (&["jobs"], true),
        (&["show", "a"], true),
        (&["ls", "--json"], false),
        (&["jobs", "--json"], false),
        (&["show", "a", "--json"], false),
    ] {
        quarantine(&shell, &["--end"]);
        assert!(!stderr(&shell.run(arguments)).contains("quarantine"));
        quarantine(&shell, &["--for", "1h"]);
        let said = stderr(&shell.run(arguments));
        assert_eq!(said.contains(told), has_one, "{arguments:?}: {said}");
    }
}

#[test]
fn an_empty_database_gets_its_tables_in_quarantine() {
    let shell = Shell::new();
    let output = shell.run(&["quarantine", "--for", "1h"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    // It may be the wrong folder.
    let made = stderr(&output);
    assert!(made.contains("rowlock: made "), "{made}");
    let refused = shell.run(&["run", "a", "--no-wait", "--", "touch", "marker"]);
    assert_eq!(code(&refused), 75, "{}", stderr(&refused));
    // It is not made again.
    assert_eq!(stderr(&shell.run(&["quarantine", "--for", "1h"])), "");
}

#[test]
fn without_a_database_there_is_nothing_to_tell_or_to_end() {
    let shell = Shell::new();
    for arguments in [&["quarantine"][..], &["quarantine", "--end"]] {
        let output = shell.run(arguments);
        assert_eq!((code(&output), &*stdout(&output)), (69, ""));
        let said = stderr(&output);
        assert!(said.contains("there is no database at"), "{said}");
    }
    assert!(!shell.dir.path().join("rowlock.db").exists());
}

#[test]
fn times_that_are_none_are_refused_before_the_database_is_asked() {
    let shell = Shell::new();
    for (options, says) in [
        (&["--for", "0s"][..], "100 ms to 366 days are allowed"),
        (&["--for", "99ms"], "100 ms to 366 days are allowed"),
        (&["--for", "8785h"], "100 ms to 366 days are allowed"),
        (&["--for", "1x"], "like 500ms"),
        (&["--for", "-1m"], "like 500ms"),
        (&["--for", "a while"], "like 500ms"),
        (&["--for"], "a value is required"),
        (&["--for", "1m", "--end"], "cannot be used with '--end'"),
    ] {
        let output = shell.run(&[&["quarantine"][..], options].concat());
        assert_eq!(code(&output), 64, "{options:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    assert!(!shell.dir.path().join("rowlock.db").exists());
}

#[test]
fn run_waits_for_the_end_of_the_quarantine() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["quarantine", "--for", "1h"])), 0);
    let waiting = shell
        .command(&["run", "a", "--", "echo", "ran"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait("it waits", || {
        let all = shell.json(&["ls", "--json"]);
        all[0]["waiters"]
            .as_array()
            .is_some_and(|all| all.len() == 1)
    });
    assert_eq!(quarantine(&shell, &["--end"]), ": the quarantine has ended");
    let output = waiting.wait_with_output().unwrap();
    assert_eq!((code(&output), &*stdout(&output)), (0, "ran\n"));
}

#[test]
fn run_that_does_not_wait_tells_of_the_quarantine() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["quarantine", "--for", "1h"])), 0);
    let why = "the database is in quarantine for another 3";
    for (name, options, says) in [
        ("a", &["--no-wait"][..], "\"a\" is not free: "),
        ("a", &["--wait", "2s"], "\"a\" was not free within "),
        ("r", &["--shared", "--no-wait"], "\"r\" is not free: "),
        (
            "s",
            &["--permits", "1/2", "--no-wait"],
            "\"s\" is not free: ",
        ),
        // It has not run elsewhere.
        ("j", &["--at-least-for", "1s"], "\"j\" is not free: "),
    ] {
        let command = ["--", "touch", "marker"];
        let output = shell.run(&[&["run", name][..], options, &command].concat());
        let said = stderr(&output);
        assert_eq!(code(&output), 75, "{options:?}: {said}");
        assert!(said.starts_with(&format!("rowlock: {says}")), "{said}");
        assert!(said.contains(why), "{said}");
    }
    assert!(!shell.dir.path().join("marker").exists());
    assert_eq!(shell.json(&["jobs", "--json"]), json!([]));
}

#[test]
fn a_command_that_runs_keeps_its_lock_in_quarantine() {
    let shell = Shell::new();
    let script = "trap 'exit 3' TERM; echo up; sleep 60 & wait";
    let running = shell.start(&["a", "--ttl", "5s"], script);
    let expiry = || shell.json(&["show", "a", "--json"])["holders"][0]["expires_at"].clone();
    let before = expiry();
    quarantine(&shell, &["--for", "1h"]);
    wait("it is renewed", || expiry() != before);
    let refused = shell.run(&["run", "a", "--no-wait", "--", "true"]);
    assert!(stderr(&refused).contains("held by"), "{}", stderr(&refused));
    running.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(running.end().0, 3);
}
