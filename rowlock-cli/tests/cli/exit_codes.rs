//! The exit codes of failures, and the messages.

use crate::shell::{Shell, code, stderr, stdout};

#[test]
fn wrong_usage_is_64_and_says_what_is_right() {
    let shell = Shell::new();
    let long = "x".repeat(256);
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["frobnicate"], "unrecognized subcommand"),
        (&["run", "a"], "required"),
        (&["run", "", "--", "true"], "1 to 255 bytes"),
        (&["run", &long, "--", "true"], "longer than 255 bytes"),
        (&["run", "a", "--ttl", "0s", "--", "true"], "100 ms to 24 h"),
        (&["run", "a", "--ttl", "-5s", "--", "true"], "like 500ms"),
        (
            &["run", "a", "--ttl", "25h", "--", "true"],
            "--ttl 1d 1h is refused: 100 ms to 24 h",
        ),
        (
            &["run", "a", "--ttl", "99999999999999999999h", "--", "true"],
            "like 500ms",
        ),
        (
            &["run", "a", "--wait", "1s", "--no-wait", "--", "true"],
            "cannot be used with",
        ),
        (
            &["migrate", "--print", "oracle"],
            "postgres, mysql, mariadb and sqlite",
        ),
        (
            &["migrate", "--print", "sqlite", "--from", "99"],
            "--from is refused: this release has no such version",
        ),
        (&["ls", "--url", "redis://localhost"], "postgres://"),
        (&["ls", "--url", "sqlite:"], "names no file"),
        (
            &["run", "a", "--url", "sqlite::memory:", "--", "true"],
            "this process's alone",
        ),
        (
            &["ls", "--url", "mysql://root@localhost"],
            "names no database",
        ),
    ];
    for (arguments, says) in cases {
        let output = shell.run(arguments);
        assert_eq!(code(&output), 64, "{arguments:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(says),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    assert!(
        !shell.dir.path().join("rowlock.db").exists(),
        "the database was not asked"
    );
    let help = shell.run(&["--help"]);
    assert_eq!(code(&help), 0);
    assert!(stdout(&help).contains("Examples:"));
    assert!(stdout(&help).contains("1  show, release without --force: nobody holds"));
}

#[test]
fn an_unreachable_database_is_69_and_the_password_is_never_printed() {
    let shell = Shell::new();
    let urls = [
        "postgres://me:s3cret@127.0.0.1:1/shop",
        "mysql://me:s3cret@127.0.0.1:1/shop",
        "sqlite:/no/such/folder/locks.db",
    ];
    for url in urls {
        for arguments in [&["ls"][..], &["run", "a", "--", "touch", "marker"]] {
            let output = shell
                .command(arguments)
                .env("ROWLOCK_URL", url)
                .output()
                .unwrap();
            assert_eq!(code(&output), 69, "{}", stderr(&output));
            assert!(!format!("{}{}", stderr(&output), stdout(&output)).contains("s3cret"));
        }
    }
    assert!(!shell.dir.path().join("marker").exists());
    let help = shell
        .command(&["--help"])
        .env("ROWLOCK_URL", urls[0])
        .output()
        .unwrap();
    assert!(!stdout(&help).contains("s3cret"));
}

#[test]
fn tables_that_do_not_fit_are_78_and_a_damaged_row_is_65() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    shell.sql(
        "PRAGMA ignore_check_constraints = ON; \
         INSERT INTO rowlock_lock (name, fence, expires_at) VALUES (x'61', 1, 9000000000000000)",
    );
    for arguments in [
        &["ls"][..],
        &["show", "a"],
        &["run", "a", "--no-wait", "--", "true"],
    ] {
        let damaged = shell.run(arguments);
        assert_eq!(code(&damaged), 65, "{}", stderr(&damaged));
        assert!(
            stderr(&damaged).contains("rowlock release NAME --force"),
            "{}",
            stderr(&damaged)
        );
    }
    let freed = shell.run(&["release", "a", "--force"]);
    assert_eq!((code(&freed), stderr(&freed)), (0, String::new()));
    assert_eq!(
        stdout(&freed),
        "released \"a\": its row was damaged, so its holder is not known\n"
    );
    assert_eq!(
        stdout(&shell.run(&["release", "a", "--force"])),
        "nobody held \"a\"\n"
    );
    assert_eq!(code(&shell.run(&["run", "a", "--", "true"])), 0);
    shell.sql("UPDATE rowlock_schema_history SET checksum = '1'");
    let changed = shell.run(&["ls"]);
    assert_eq!(code(&changed), 78, "{}", stderr(&changed));
    assert!(stderr(&changed).contains("V1__database"));
}
