//! The messages when a database, a file or a row is missing.

use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::shell::{Shell, code, stderr, stdout, wait};

/// The commands that create nothing.
const ON_WHAT_IS_THERE: [&[&str]; 10] = [
    &["ls"],
    &["ls", "--json"],
    &["show", "a"],
    &["release", "a", "--force"],
    &["set-capacity", "a", "2"],
    &["idempotency", "ls"],
    &["idempotency", "show", "a", "k"],
    &["idempotency", "reset", "a", "k"],
    &[
        "idempotency",
        "resolve",
        "a",
        "k",
        "--step=s",
        "--not-happened",
    ],
    &["clean"],
];

#[test]
fn a_command_that_works_on_what_is_there_makes_no_file() {
    let shell = Shell::new();
    let dir = shell.dir.path().canonicalize().unwrap();
    let urls = [
        (None, "rowlock.db"),
        (Some("sqlite:sub/x.db"), "sub/x.db"),
        (Some("sqlite://x.db?mode=rwc"), "x.db"),
        (Some("sqlite:x.db?mode=rw"), "x.db"),
    ];
    for (url, file) in urls {
        for arguments in ON_WHAT_IS_THERE {
            let mut command = shell.command(arguments);
            if let Some(url) = url {
                command.env("ROWLOCK_URL", url);
            }
            let output = command.output().unwrap();
            let error = stderr(&output);
            assert_eq!(code(&output), 69, "{url:?} {arguments:?}: {error}");
            assert_eq!(stdout(&output), "");
            let path = dir.join(file).display().to_string();
            assert!(error.contains(&path), "{path} in {error}");
            assert!(error.contains("rowlock migrate"), "{error}");
        }
    }
    assert_eq!(
        std::fs::read_dir(&dir).unwrap().count(),
        0,
        "no file was made"
    );
    for url in [
        "sqlite:rowlock.db",
        "sqlite:a%20b.db",
        "sqlite://./c.db?mode=rwc",
    ] {
        assert_eq!(code(&shell.run(&["migrate", "--url", url])), 0);
        assert_eq!(code(&shell.run(&["ls", "--url", url])), 0);
    }
    assert!(dir.join("a b.db").exists());
}

#[test]
fn a_command_that_works_on_what_is_there_makes_no_tables() {
    let shell = Shell::new();
    std::fs::write(shell.dir.path().join("rowlock.db"), "").unwrap();
    for arguments in ON_WHAT_IS_THERE {
        let output = shell.run(arguments);
        assert_eq!(code(&output), 78, "{arguments:?}: {}", stderr(&output));
        let error = stderr(&output);
        assert!(error.contains("run `rowlock migrate`"), "{error}");
    }
    assert_eq!(code(&shell.run(&["run", "a", "--", "true"])), 0);
    assert_eq!(code(&shell.run(&["ls"])), 0);
}

#[test]
fn a_command_that_finds_nothing_says_where_it_has_looked() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let file = shell.dir.path().canonicalize().unwrap().join("rowlock.db");
    let where_to = format!(
        "rowlock: looked in sqlite:{} (--url or ROWLOCK_URL names another database)\n",
        file.display()
    );
    for (arguments, result) in [
        (&["ls"][..], 0),
        (&["show", "a"], 1),
        (&["release", "a", "--force"], 0),
        (&["idempotency", "ls"], 0),
        (&["idempotency", "show", "a", "k"], 1),
    ] {
        let output = shell.run(arguments);
        assert_eq!((code(&output), stderr(&output)), (result, where_to.clone()));
        assert!(stdout(&output).ends_with('\n'), "{arguments:?}");
    }
    // With `--json` the command prints no hint.
    assert_eq!(stderr(&shell.run(&["ls", "--json"])), "");
    let holder = shell.start(&["a"], "echo up; sleep 60 & wait");
    assert_eq!(stderr(&shell.run(&["ls"])), "");
    holder.signal(Signal::SIGTERM);
    holder.end();
}

#[test]
fn run_says_so_when_it_makes_the_file_and_only_then() {
    let shell = Shell::new();
    let file = shell.dir.path().canonicalize().unwrap().join("rowlock.db");
    let run = |url: Option<&str>, arguments: &[&str]| {
        let all = [&["run", "a"], arguments, &["--", "true"]].concat();
        let mut command = shell.command(&all);
        if let Some(url) = url {
            command.env("ROWLOCK_URL", url);
        }
        let output = command.output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stderr(&output)
    };
    let said = format!(
        "rowlock: made {}: only processes that use this file see its locks (--url or ROWLOCK_URL names another database)\n",
        file.display()
    );
    assert_eq!(run(None, &[]), said);
    assert_eq!(run(None, &[]), "", "the file is there");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(run(Some("sqlite:rowlock.db"), &[]), said);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(run(None, &["--url", "sqlite:rowlock.db"]), said);
    assert_eq!(run(None, &["--url", "sqlite:rowlock.db"]), "");
    let help = stdout(&shell.run(&["run", "--help"]));
    assert!(help.contains("sqlite:rowlock.db"), "{help}");
}

#[test]
fn a_command_without_dashes_is_told_where_they_belong() {
    let shell = Shell::new();
    let tip = "put `--` before the command: rowlock run NAME -- CMD";
    for arguments in [&["run", "a", "true"][..], &["run", "a", "ls", "-l"]] {
        let output = shell.run(arguments);
        assert_eq!(code(&output), 64, "{arguments:?}");
        assert!(stderr(&output).contains(tip), "{}", stderr(&output));
    }
    for arguments in [
        &["run", "a", "--bogus"][..],
        &["ls", "a", "b"],
        &["run", "a"],
    ] {
        let output = shell.run(arguments);
        assert_eq!(code(&output), 64, "{arguments:?}");
        assert!(!stderr(&output).contains(tip), "{}", stderr(&output));
    }
}

#[test]
fn a_missing_record_is_the_same_to_all() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let shown = shell.absent(&["idempotency", "show", "alice", "none"]);
    for arguments in [
        &["reset", "alice", "none"][..],
        &["resolve", "alice", "none", "--step=s", "--not-happened"],
    ] {
        let output = shell.run(&[&["idempotency"], arguments].concat());
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        assert_eq!(stderr(&output), format!("rowlock: {shown}"));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn a_file_that_cannot_be_looked_at_is_not_missing() {
    let shell = Shell::new();
    std::fs::write(shell.dir.path().join("file"), "").unwrap();
    for command in [&["ls"][..], &["run", "a", "--", "true"]] {
        let output = shell.run(&[&["--url", "sqlite:file/x.db"], command].concat());
        let said = stderr(&output);
        assert_eq!(code(&output), 69, "{said}");
        assert!(!said.contains("there is no database"), "{said}");
    }
}

#[test]
fn an_empty_schema_is_none() {
    let shell = Shell::new();
    let mut migrate = shell.command(&["migrate"]);
    let output = migrate.env("ROWLOCK_SCHEMA", "").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn an_empty_url_and_a_bare_path_are_told_what_is_right() {
    let shell = Shell::new();
    for (url, says) in [
        ("", "it is empty"),
        ("rowlock.db", "sqlite:PATH"),
        ("/var/lib/rowlock.db", "sqlite:PATH"),
    ] {
        let output = shell
            .command(&["ls"])
            .env("ROWLOCK_URL", url)
            .output()
            .unwrap();
        assert_eq!(code(&output), 64, "{url}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
}

#[test]
fn errors_are_text_on_standard_error_also_with_json() {
    let shell = Shell::new();
    for (arguments, result) in [
        (&["ls", "--json"][..], 69),
        (&["show", "a", "--json"], 69),
        (&["show", "", "--json"], 64),
        (&["idempotency", "show", "a", "", "--json"], 64),
        (&["ls", "--json", "--url", "redis://x"], 64),
        (&["ls", "--json", "--url", "postgres://127.0.0.1:1/x"], 69),
    ] {
        let output = shell.run(arguments);
        assert_eq!(code(&output), result, "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{arguments:?}");
        assert!(!stderr(&output).is_empty());
    }
}

#[test]
fn a_file_that_is_no_database_is_told_as_such() {
    let shell = Shell::new();
    let file = shell.dir.path().join("rowlock.db");
    std::fs::write(
        &file,
        "not a database, and longer than the head of one would have to be: ".repeat(20),
    )
    .unwrap();
    for arguments in [&["ls"][..], &["run", "a", "--", "true"]] {
        let output = shell.run(arguments);
        assert_eq!(code(&output), 69, "{}", stderr(&output));
        assert!(
            stderr(&output).contains("file is not a database"),
            "{}",
            stderr(&output)
        );
        assert!(stderr(&output).contains(&file.display().to_string()));
    }
}

#[test]
fn a_table_that_goes_while_a_command_waits_is_told_as_such() {
    let shell = Shell::new();
    let holder = shell.start(&["a"], "echo up; sleep 60 & wait");
    let mut waiter = shell.command(&["run", "a", "--", "true"]);
    let waiter = waiter.stderr(Stdio::piped()).spawn().unwrap();
    wait("it waits", || shell.has_waiter());
    shell.sql("ALTER TABLE rowlock_waiter RENAME TO gone");
    let ended = waiter.wait_with_output().unwrap();
    assert_eq!(code(&ended), 78, "{}", stderr(&ended));
    let said = stderr(&ended);
    assert!(said.contains("not as rowlock made them"), "{said}");
    shell.sql("ALTER TABLE gone RENAME TO rowlock_waiter");
    holder.signal(Signal::SIGTERM);
    let _ = holder.end();
}
