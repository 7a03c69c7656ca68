//! A shell in a folder of its own, and a command that it has started.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rowlock_test::patience;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection};

/// A folder with a database of its own, and the command in it.
pub(crate) struct Shell {
    pub(crate) dir: tempfile::TempDir,
}

impl Shell {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        // The test itself may run in the background of a script.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", env!("CARGO_BIN_EXE_rowlock")])
            .args(arguments)
            .current_dir(self.dir.path())
            .env_remove("ROWLOCK_URL")
            .stdin(Stdio::null());
        command
    }

    /// Makes a named pipe in the folder.
    pub(crate) fn fifo(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        path
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts `rowlock run` with a shell script, and waits for the first line that it prints.
    pub(crate) fn start(&self, arguments: &[&str], script: &str) -> Running {
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
        assert!(!first.is_empty(), "it printed nothing: {script}");
        Running {
            child,
            output,
            first: first.trim().to_owned(),
        }
    }

    /// Changes the default database without the command.
    pub(crate) fn sql(&self, sql: &str) {
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

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Whether a command waits for the only name of the default database.
    pub(crate) fn has_waiter(&self) -> bool {
        let listed = self.json(&["ls", "--json"]);
        let waiters = listed[0]["waiters"].as_array();
        waiters.is_some_and(|waiters| !waiters.is_empty())
    }

    /// Checks the exit code, the JSON and the standard error of a `show` of a free name. Returns the text that it
    /// prints.
    pub(crate) fn free(&self, name: &str) -> String {
        let json = self.run(&["show", name, "--json"]);
        let mut shown: Value = serde_json::from_slice(&json.stdout).unwrap();
        // That of its row, if it has one.
        shown["kind"].take();
        let expected =
            json!({"name": name, "kind": null, "holders": [], "waiters": [], "pause": null});
        assert_eq!((code(&json), shown), (1, expected));
        self.not_found(&["show", name])
    }

    /// Checks the exit code, the JSON and the standard error of an `idempotency show` that finds nothing. Returns the
    /// text that it prints.
    pub(crate) fn absent(&self, arguments: &[&str]) -> String {
        let json = self.run(&[arguments, &["--json"]].concat());
        assert_eq!((code(&json), stdout(&json).trim()), (1, "null"));
        self.not_found(arguments)
    }

    fn not_found(&self, arguments: &[&str]) -> String {
        let text = self.run(arguments);
        assert_eq!(code(&text), 1);
        let told = stderr(&text);
        assert!(told.contains("looked in sqlite:/"), "{told}");
        stdout(&text)
    }
}

pub(crate) struct Running {
    pub(crate) child: std::process::Child,
    pub(crate) output: BufReader<std::process::ChildStdout>,
    pub(crate) first: String,
}

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()),
            signal,
        )
        .unwrap();
    }

    /// The exit code, the rest of the output, and what went to stderr.
    pub(crate) fn end(mut self) -> (i32, String, String) {
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut rest).unwrap();
        let output = self.child.wait_with_output().unwrap();
        (code(&output), rest, stderr(&output))
    }
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("not ended by a signal")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asks until the answer is yes.
pub(crate) fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + patience();
    while !is() {
        assert!(Instant::now() < until, "never: {what}");
    }
}
