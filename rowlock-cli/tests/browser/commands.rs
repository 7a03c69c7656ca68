//! The commands beside the browser: `rowlock console`, and others in the same folder.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rowlock::Rowlock;

/// A folder with a database.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

/// A command that runs until it is ended.
pub(crate) struct Running {
    pub(crate) child: Child,
    /// The first line that it has printed.
    pub(crate) first: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("shop-").tempdir();
        let place = Self { dir: dir.unwrap() };
        let made = place.command(&["migrate"]).stdout(Stdio::null()).status();
        assert!(made.unwrap().success());
        place
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowlock"));
        command.args(arguments).current_dir(self.dir.path());
        command.env_remove("ROWLOCK_URL");
        command
    }

    /// Starts a command, and waits for its first line.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut first = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut first).unwrap();
        Running { child, first }
    }

    /// The console, and its address without a slash at the end.
    pub(crate) fn console(&self, listen: &str) -> (Running, String) {
        self.console_with(&["console", "--listen", listen, "--show-outcomes"])
    }

    /// A console that asks for a token.
    pub(crate) fn console_with_token(&self, token: &str) -> (Running, String) {
        std::fs::write(self.dir.path().join("token"), token).unwrap();
        self.console_with(&[
            "console",
            "--listen",
            "127.0.0.1:0",
            "--token-file",
            "token",
        ])
    }

    fn console_with(&self, arguments: &[&str]) -> (Running, String) {
        let console = self.start(arguments);
        let (_, address) = console.first.split_once(" is at ").expect("it listens");
        let address = address.trim().trim_end_matches('/').to_owned();
        (console, address)
    }

    /// A command that holds a lock until its standard input ends.
    pub(crate) fn holder(&self, name: &str) -> Running {
        let script = "echo has it; cat";
        self.start(&["run", name, "--ttl", "3s", "--", "sh", "-c", script])
    }

    /// A client of the same database.
    pub(crate) async fn client(&self, holder: &str) -> Rowlock {
        let url = format!("sqlite:{}", self.dir.path().join("rowlock.db").display());
        let builder = Rowlock::builder().holder(holder);
        builder.connect(&url).await.unwrap()
    }
}

impl Running {
    /// Ends the standard input, and waits for the exit code.
    pub(crate) fn end(&mut self) -> i32 {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().code().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _ = kill(pid, signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGTERM);
        let _ = self.child.wait();
    }
}
