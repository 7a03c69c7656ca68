//! The command, as a shell sees it: outputs, exit codes, signals.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod bad_input;
mod idempotency;
mod jobs;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection};

/// A folder with a database of its own, and the command in it.
struct Shell {
    dir: tempfile::TempDir,
}

impl Shell {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowlock"));
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .env_remove("ROWLOCK_URL")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts `rowlock run` with a shell script, and waits for the first line that it prints.
    fn start(&self, arguments: &[&str], script: &str) -> Running {
        let mut all = vec!["run"];
        all.extend(arguments);
        all.extend(["--", "bash", "-c", script]);
        let mut child = self
            .command(&all)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        Running {
            child,
            output,
            first: first.trim().to_owned(),
        }
    }

    /// Changes the default database behind the command's back.
    fn sql(&self, sql: &str) {
        let url = format!("sqlite:{}", self.dir.path().join("rowlock.db").display());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut conn = sqlx::SqliteConnection::connect(&url).await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
                .execute(&mut conn)
                .await
                .unwrap();
            conn.close().await.unwrap();
        });
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What `show` prints of something that is not there: for people, and with `--json`.
    fn absent(&self, arguments: &[&str]) -> String {
        let json = self.run(&[arguments, &["--json"]].concat());
        assert_eq!((code(&json), stdout(&json).trim()), (1, "null"));
        let text = self.run(arguments);
        assert_eq!(code(&text), 1);
        let told = stderr(&text);
        assert!(told.contains("looked in sqlite:/"), "{told}");
        stdout(&text)
    }
}

struct Running {
    child: std::process::Child,
    output: BufReader<std::process::ChildStdout>,
    first: String,
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()),
            signal,
        )
        .unwrap();
    }

    /// The exit code, the rest of the output, and what went to stderr.
    fn end(mut self) -> (i32, String, String) {
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut rest).unwrap();
        let output = self.child.wait_with_output().unwrap();
        (code(&output), rest, stderr(&output))
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("not ended by a signal")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

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
    let holder = shell.start(&["a", "--ttl", "5s"], "echo up; read line < fifo; exit 0");
    let fifo = shell.dir.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    drop(holder); // it ended already: there was no fifo
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
    let running = shell.start(
        &["a", "--ttl", "900ms", "--grace", "300ms"],
        "trap '' TERM; echo up; (trap '' TERM; sleep 60) & while :; do sleep 0.1; done",
    );
    assert_eq!(code(&shell.run(&["release", "a", "--force"])), 0);
    let lost = Instant::now();
    assert_eq!(running.end().0, 76);
    assert!(lost.elapsed() < Duration::from_secs(10));
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
    assert_eq!(rest.trim(), "stopped");
    let mut child = running.child;
    assert_eq!(child.wait().unwrap().code(), None, "killed");
}

#[test]
fn ls_and_show_print_tables_and_json() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    assert_eq!(stdout(&shell.run(&["ls"])).trim(), "nobody holds a lock");
    assert_eq!(shell.absent(&["show", "a"]), "nobody holds \"a\"\n");
    let holder = shell.start(
        &["a", "--ttl", "5s"],
        "echo $ROWLOCK_FENCE; sleep 60 & wait",
    );
    let list = shell.json(&["ls", "--json"]);
    let lock = &list[0];
    let keys: Vec<&str> = lock
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "acquired_at",
            "expires_at",
            "fence",
            "grant_id",
            "holder",
            "name"
        ]
    );
    assert_eq!(lock["name"], "a");
    assert_eq!(lock["fence"].to_string(), holder.first);
    assert!(lock["holder"].as_str().unwrap().starts_with("rowlock["));
    for time in ["acquired_at", "expires_at"] {
        let text = lock[time].as_str().unwrap();
        let parsed = chrono::DateTime::parse_from_rfc3339(text).unwrap();
        assert!(
            text.ends_with('Z') && parsed.timestamp() > 1_700_000_000,
            "{text}"
        );
    }
    // A renewal may have come in between; everything else is the same.
    let shown = shell.json(&["show", "a", "--json"]);
    assert_eq!(
        (&shown["fence"], &shown["grant_id"]),
        (&lock["fence"], &lock["grant_id"])
    );
    for table in [shell.run(&["ls"]), shell.run(&["show", "a"])] {
        assert!(stdout(&table).contains("HOLDER") && stdout(&table).contains(&holder.first));
    }
    assert_eq!(shell.absent(&["show", "b"]), "nobody holds \"b\"\n");
    assert_eq!(
        stdout(&shell.run(&["release", "b", "--force"])).trim(),
        "nobody held \"b\""
    );
    holder.signal(Signal::SIGTERM);
    holder.end();
}

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
            "100 ms to 24 h",
        ),
        (
            &["run", "a", "--ttl", "99999999999999999999h", "--", "true"],
            "like 500ms",
        ),
        (
            &["run", "a", "--wait", "1s", "--no-wait", "--", "true"],
            "cannot be used with",
        ),
        (&["release", "a"], "--force"),
        (
            &["migrate", "--print", "oracle"],
            "postgres, mysql, mariadb and sqlite",
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
    assert!(stdout(&help).contains("1  show: the lock is free"));
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
    assert_eq!(code(&shell.run(&["release", "a", "--force"])), 0);
    assert_eq!(code(&shell.run(&["run", "a", "--", "true"])), 0);
    shell.sql("UPDATE rowlock_schema_history SET checksum = '1'");
    let changed = shell.run(&["ls"]);
    assert_eq!(code(&changed), 78, "{}", stderr(&changed));
    assert!(stderr(&changed).contains("V1__lock"));
}

#[test]
fn migrate_says_what_it_did_and_prints_sql_for_every_engine() {
    let shell = Shell::new();
    assert!(stdout(&shell.run(&["migrate"])).contains("applied V1__lock"));
    assert!(stdout(&shell.run(&["migrate"])).contains("up to date"));
    for engine in ["postgres", "mysql", "mariadb", "sqlite"] {
        let sql = stdout(&shell.run(&["migrate", "--print", engine]));
        assert!(
            sql.contains("CREATE TABLE IF NOT EXISTS rowlock_lock"),
            "{engine}: {sql}"
        );
        assert!(
            sql.contains("INSERT INTO rowlock_schema_history"),
            "{engine}"
        );
    }
}
