//! `rowlock forget`.

use nix::sys::signal::Signal;

use crate::shell::{Shell, code, stderr, stdout};

#[test]
fn a_name_that_is_not_in_use_may_become_something_else() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["run", "n", "--", "true"])), 0);
    let permits = ["run", "n", "--permits", "1/3", "--", "true"];
    assert_eq!(code(&shell.run(&permits)), 64);
    let forgot = shell.run(&["forget", "n"]);
    assert_eq!((code(&forgot), &*stderr(&forgot)), (0, ""));
    assert_eq!(
        stdout(&forgot),
        "forgot \"n\": it may be used for anything now\n"
    );
    let again = shell.run(&["forget", "n"]);
    assert_eq!(code(&again), 0);
    assert!(stdout(&again).starts_with("there is nothing to forget: \"n\""));
    assert!(stderr(&again).contains("looked in sqlite:/"));
    assert_eq!(code(&shell.run(&permits)), 0);
    assert_eq!(code(&shell.run(&["forget", "n"])), 0);
    assert_eq!(code(&shell.run(&["run", "n", "--shared", "--", "true"])), 0);
    assert_eq!(code(&shell.run(&["forget", ""])), 64);
}

#[test]
fn a_name_in_use_is_not_forgotten() {
    let shell = Shell::new();
    let script = "echo up; sleep 60 & wait";
    for arguments in [&["n"][..], &["s", "--permits", "1/3"], &["r", "--shared"]] {
        let running = shell.start(arguments, script);
        let refused = shell.run(&["forget", arguments[0]]);
        assert_eq!((code(&refused), &*stdout(&refused)), (75, ""));
        let said = format!("rowlock: {:?} is not free: ", arguments[0]);
        assert!(stderr(&refused).starts_with(&said), "{}", stderr(&refused));
        assert_eq!(code(&shell.run(&["show", arguments[0]])), 0);
        running.signal(Signal::SIGTERM);
        running.end();
        assert_eq!(code(&shell.run(&["forget", arguments[0]])), 0);
    }
}
