//! A server of a test's own.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Stopped with the value.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) url: String,
}

impl Own {
    /// Starts `kind`; `more` is what `docker/servers.sh` takes behind the folder.
    pub(crate) fn start(kind: &str, more: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("rowlock-").tempdir();
        let dir = dir.unwrap();
        let url = script(&["start", kind], dir.path(), more);
        Self { dir, url }
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        let rest = self.url.split_once('@').unwrap().1;
        rest.split_once('/').unwrap().0
    }

    /// `url` on this server.
    pub(crate) fn instead_of(&self, url: &str) -> String {
        let (before, rest) = url.split_once('@').unwrap();
        let (_, after) = rest.split_once('/').unwrap();
        format!("{before}@{}/{after}", self.address())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        script(&["stop"], self.dir.path(), &[]);
    }
}

fn script(command: &[&str], dir: &Path, more: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("docker/servers.sh");
    let output = Command::new(script)
        .args(command)
        .arg(dir)
        .args(more)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "servers.sh {command:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Runs the command `rowlock`, and tells how long it took.
pub(crate) fn rowlock(url: &str, arguments: &[&str]) -> (Output, Duration) {
    let began = Instant::now();
    let output = command(url, arguments).output().unwrap();
    (output, began.elapsed())
}

pub(crate) fn command(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowlock"));
    command
        .args(["--url", url])
        .args(arguments)
        .stdin(Stdio::null());
    command
}
