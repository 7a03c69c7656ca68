//! What people type first.

use crate::shell::{Shell, code, stderr};

#[test]
fn a_duration_may_be_seconds_or_several_units() {
    let shell = Shell::new();
    for duration in ["10", "10s", "1m30s", "1h30m"] {
        let output = shell.run(&[
            "run", "a", "--ttl", duration, "--wait", duration, "--", "true",
        ]);
        assert_eq!(code(&output), 0, "{duration}: {}", stderr(&output));
    }
    let refused = shell.run(&["run", "a", "--wait", "soon", "--", "true"]);
    assert_eq!(code(&refused), 64);
    assert!(
        stderr(&refused).contains("`soon` is not a duration"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_line_of_the_shell_in_one_word_gets_a_hint() {
    let shell = Shell::new();
    let output = shell.run(&["run", "a", "--", "echo one two"]);
    assert_eq!(code(&output), 127);
    assert!(stderr(&output).contains("-- sh -c"), "{}", stderr(&output));
    let output = shell.run(&["run", "a", "--", "no-such-program"]);
    assert_eq!(code(&output), 127);
    assert!(!stderr(&output).contains("sh -c"), "{}", stderr(&output));
}

#[test]
fn the_version_is_printed_however_it_is_asked_for() {
    let shell = Shell::new();
    for asked in [
        &["-V"][..],
        &["-v"],
        &["--version"],
        &["run", "--version"],
        &["ls", "-v"],
    ] {
        let output = shell.run(asked);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(code(&output), 0, "{asked:?}: {}", stderr(&output));
        assert!(
            said.starts_with("rowlock") && said.contains(env!("CARGO_PKG_VERSION")),
            "{asked:?}: {said}"
        );
    }
}

#[test]
fn an_engine_may_have_its_short_name() {
    let shell = Shell::new();
    let short = shell.run(&["migrate", "--print", "pg"]);
    assert_eq!(code(&short), 0, "{}", stderr(&short));
    assert_eq!(
        short.stdout,
        shell.run(&["migrate", "--print", "postgres"]).stdout
    );
}
