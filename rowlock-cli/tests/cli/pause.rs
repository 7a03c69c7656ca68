//! `rowlock pause` and `rowlock resume`.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::shell::{Shell, code, stderr, stdout, wait};

/// `rowlock pause` ends at once, so its process says nothing to those who wait. They need the person.
fn paused_by() -> String {
    let user = Command::new("id").arg("-un").output().unwrap();
    format!("paused by {}@", stdout(&user).trim())
}

#[test]
fn a_paused_name_is_granted_to_nobody_and_says_why() {
    let shell = Shell::new();
    let holder = shell.start(&["a"], "echo up; sleep 60 & wait");
    let why = ["--why", "the bank is down"];
    let paused = shell.run(&[&["pause", "a"][..], &why].concat());
    let said = stdout(&paused);
    assert!(
        code(&paused) == 0 && said.contains("until it is resumed (the bank is down)"),
        "{said}"
    );
    assert!(said.contains("holds it, and keeps it"), "{said}");
    assert_eq!(
        code(&shell.run(&[&["pause", "never-used", "--for", "1h"][..], &why].concat())),
        0
    );
    holder.signal(Signal::SIGTERM);
    let _ = holder.end();
    let refused = shell.run(&["run", "a", "--no-wait", "--", "true"]);
    assert_eq!(code(&refused), 75);
    assert!(
        stderr(&refused).contains(&paused_by()),
        "{}",
        stderr(&refused)
    );
    // A job that is paused runs nowhere: that is no success.
    let job = shell.run(&["run", "never-used", "--at-least-for", "1s", "--", "true"]);
    assert_eq!(code(&job), 75, "{}", stderr(&job));
    assert!(stderr(&job).contains(&paused_by()), "{}", stderr(&job));
    let list = shell.json(&["ls", "--json"]);
    assert_eq!(list[0]["pause"]["why"], "the bank is down");
    assert!(
        list[0]["pause"]["until"].is_null() && list[1]["pause"]["until"].is_string(),
        "{list}"
    );
    assert_eq!(shell.json(&["ls", "--paused", "--json"]), list);
    assert_eq!(
        stdout(&shell.run(&["ls", "other", "--paused"])),
        "no name is paused (looked for \"other\")\n"
    );
    let said = stdout(&shell.run(&["ls"]));
    assert!(!said.contains("nobody holds a lock"), "{said}");
    let shown = stdout(&shell.run(&["show", "a", "--json"]));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown, list[0], "a name that nobody holds");
    for command in [&["ls"][..], &["show", "a"]] {
        let said = stdout(&shell.run(command));
        assert!(said.contains("\"a\" is paused by"), "{said}");
    }
    let mut waiter = shell.command(&["run", "a", "--", "true"]).spawn().unwrap();
    let waits = || shell.json(&["ls", "a", "--json"])[0]["waiters"][0].is_object();
    wait("it waits", waits);
    assert_eq!(code(&shell.run(&["resume", "a"])), 0);
    assert!(waiter.wait().unwrap().success());
    for (why, replaces) in [("one", false), ("two", true)] {
        let said = stdout(&shell.run(&["pause", "b", "--why", why]));
        assert_eq!(
            said.contains("until it is resumed (one)\n") && said.contains("replaces"),
            replaces,
            "{said}"
        );
    }
    let again = shell.run(&["resume", "a"]);
    assert_eq!(
        (code(&again), stdout(&again).contains("is not paused")),
        (1, true)
    );
    assert_eq!(code(&shell.run(&["pause", "a"])), 64, "it needs a reason");
}

#[test]
fn a_refusal_names_the_option() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    for (arguments, says) in [
        (
            &["pause", "a", "--for", "400d", "--why", "x"][..],
            "--for 400d is refused",
        ),
        (&["pause", "a", "--why", ""], "--why is refused"),
        (&["quarantine", "--for", "400d"], "--for 400d is refused"),
        (&["ls", "--schema", "shop"], "--schema is refused"),
    ] {
        let refused = shell.run(arguments);
        assert_eq!(code(&refused), 64, "{}", stderr(&refused));
        assert!(stderr(&refused).contains(says), "{}", stderr(&refused));
    }
}
