//! What people type, and where they read.

use crate::jobs::Terminal;
use crate::shell::{Shell, code, stderr, stdout, wait};

#[test]
fn a_name_that_begins_with_a_dash_is_a_name() {
    let shell = Shell::new();
    let script = "echo $ROWLOCK_NAME; $0 show -- $ROWLOCK_NAME";
    let rowlock = env!("CARGO_BIN_EXE_rowlock");
    for name in ["--name=-x", "--name=--no-wait", "--name=plain"] {
        let ran = shell.run(&["run", name, "--", "bash", "-c", script, rowlock]);
        assert_eq!(code(&ran), 0, "{}", stderr(&ran));
        assert!(
            stdout(&ran).starts_with(&format!("{}\n", &name[7..])),
            "{}",
            stdout(&ran)
        );
    }
    for wrong in [
        &["run", "-x", "--", "true"][..],
        &["run", "-x", "--no-wait", "--", "true"],
        &["run", "--no-wait", "-x", "--", "true"],
    ] {
        let refused = shell.run(wrong);
        assert_eq!(code(&refused), 64);
        assert!(
            stderr(&refused).contains("--name=-x"),
            "{}",
            stderr(&refused)
        );
        assert!(
            !stderr(&refused).contains("'-- -x'"),
            "{}",
            stderr(&refused)
        );
    }
    for wrong in [
        &["run", "--", "true"][..],
        &["run", "a", "--name=b", "--", "true"],
        &["run", "--name=", "--", "true"],
    ] {
        assert_eq!(code(&shell.run(wrong)), 64, "{wrong:?}");
    }
    // Elsewhere `--` does it, and the hint says so.
    let refused = shell.run(&["show", "-x"]);
    assert!(stderr(&refused).contains("'-- -x'"), "{}", stderr(&refused));
    assert_eq!(code(&shell.run(&["show", "--", "-x"])), 1);
}

#[test]
fn a_log_has_colours_on_a_terminal_only() {
    let shell = Shell::new();
    let mut run = shell.command(&["run", "a", "--", "true"]);
    let output = run.env("ROWLOCK_LOG", "rowlock=debug").output().unwrap();
    let said = stderr(&output);
    assert!(said.contains("made or changed rowlock's tables"), "{said}");
    assert!(!said.contains('\x1b'), "{said:?}");
    for (plain, has_colours) in [("", true), ("1", false)] {
        let log = "ROWLOCK_LOG=rowlock=debug";
        let no_colour = format!("NO_COLOR={plain}");
        let url = format!("--url=sqlite:{plain}.db");
        let run = [
            "env", log, &no_colour, "rowlock", "run", "a", &url, "--", "true",
        ];
        let mut terminal = Terminal::new(&shell, &run);
        let said = terminal.shows("made or changed");
        assert_eq!(said.contains('\x1b'), has_colours, "{said:?}");
        wait("its end", || terminal.child.try_wait().unwrap().is_some());
    }
}

#[tokio::test]
async fn a_file_that_had_tables_before_is_told_of() {
    let shell = Shell::new();
    let url = format!(
        "sqlite:{}?mode=rwc",
        shell.dir.path().join("app.db").display()
    );
    let app = rowlock_test::App::connect(&url, 1).await;
    app.execute("CREATE TABLE app (n INTEGER)").await;
    for (sql, is_told) in [("SELECT 1", true), ("PRAGMA journal_mode = WAL", false)] {
        app.execute(sql).await;
        let mut run = shell.command(&["run", "a", "--url", "sqlite:app.db", "--", "true"]);
        let output = run.env("ROWLOCK_LOG", "warn").output().unwrap();
        let said = stderr(&output);
        assert_eq!(said.contains("journal_mode = delete"), is_told, "{said}");
    }
}

#[test]
fn who_releases_without_force_hears_who_would_lose_the_lock() {
    let shell = Shell::new();
    let running = shell.start(&["a"], "echo up; sleep 60");
    let asked = shell.run(&["release", "a"]);
    assert_eq!(code(&asked), 64);
    let said = stderr(&asked);
    assert!(said.contains("\"a\" is held by rowlock["), "{said}");
    assert!(said.contains("add --force"), "{said}");
    assert_eq!(code(&shell.run(&["status", "a"])), 0, "it is held still");
    assert_eq!(code(&shell.run(&["release", "a", "--force"])), 0);
    assert_eq!(running.end().0, 76);
    let asked = shell.run(&["unlock", "a"]);
    assert_eq!(
        (code(&asked), stderr(&asked).contains("nobody holds")),
        (1, true)
    );
}

#[test]
fn a_wait_that_is_over_was_as_long_as_was_asked_for() {
    let shell = Shell::new();
    let running = shell.start(&["a"], "echo up; sleep 60");
    let waited = shell.run(&["run", "--wait=1s", "a", "--", "true"]);
    assert_eq!(code(&waited), 75);
    let said = stderr(&waited);
    assert!(said.contains("was not free within 1s: "), "{said}");
    assert_eq!(code(&shell.run(&["release", "a", "--force"])), 0);
    running.end();
}

#[test]
fn shells_and_man_get_what_they_read() {
    let shell = Shell::new();
    for (name, word) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef rowlock"),
        ("fish", "complete -c"),
    ] {
        let script = shell.run(&["completions", name]);
        assert_eq!(code(&script), 0);
        assert!(stdout(&script).contains(word), "{name}");
        assert!(!stdout(&script).contains("leash"), "{name}");
    }
    let refused = shell.run(&["completions", "tcsh"]);
    assert_eq!(code(&refused), 64);
    assert!(stderr(&refused).contains("bash"), "{}", stderr(&refused));
    let page = shell.run(&["man"]);
    assert!(stdout(&page).contains(".TH rowlock 1"), "{}", stdout(&page));
    let pages = tempfile::tempdir().unwrap();
    let dir = pages.path().to_str().unwrap();
    assert_eq!(code(&shell.run(&["man", "--dir", dir])), 0);
    for name in [
        "rowlock.1",
        "rowlock-run.1",
        "rowlock-idempotency-resolve.1",
    ] {
        assert!(pages.path().join(name).exists(), "{name}");
    }
    assert_eq!(code(&shell.run(&["man", "--dir", "/nowhere"])), 70);
}
