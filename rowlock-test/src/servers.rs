//! Servers for one test or one benchmark, started by `docker/servers.sh`.

use std::path::Path;
use std::process::Command;

use crate::postgres;

/// A server in a temporary folder. Dropping this stops the server.
#[derive(Debug)]
pub struct Own {
    pub dir: tempfile::TempDir,
    pub url: String,
}

impl Own {
    /// Starts `kind`. `more` are the arguments that `docker/servers.sh` takes after the folder. (For several servers,
    /// each line of the URL is one server's.)
    pub fn start(kind: &str, more: &[&str]) -> Self {
        Self::with(kind, more, Commits::NotDurable)
    }

    /// Starts `kind`, whose commits wait for the disk.
    pub fn durable(kind: &str) -> Self {
        Self::with(kind, &[], Commits::Durable)
    }

    /// A standby that follows the PostgreSQL server `primary`.
    pub fn standby(primary: &Self) -> Self {
        Self::start("standby", &[primary.dir.path().to_str().unwrap()])
    }

    /// Makes a standby the primary.
    pub async fn promote(&self) {
        postgres::promote(&self.url).await;
    }

    fn with(kind: &str, more: &[&str], commits: Commits) -> Self {
        let dir = tempfile::Builder::new().prefix("rowlock-").tempdir();
        let dir = dir.unwrap();
        let url = servers(&["start", kind], dir.path(), more, commits);
        Self { dir, url }
    }

    /// The server's `host:port`.
    pub fn address(&self) -> &str {
        let rest = self.url.split_once('@').unwrap().1;
        rest.split_once('/').unwrap().0
    }

    /// `url`, with the host and port of this server.
    pub fn instead_of(&self, url: &str) -> String {
        let (before, rest) = url.split_once('@').unwrap();
        let (_, after) = rest.split_once('/').unwrap();
        format!("{before}@{}/{after}", self.address())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        servers(&["stop"], self.dir.path(), &[], Commits::NotDurable);
    }
}

/// Whether a commit survives a crash of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commits {
    Durable,
    NotDurable,
}

/// Runs `docker/servers.sh` for the server in `dir`, and returns its output.
pub fn servers(command: &[&str], dir: &Path, more: &[&str], commits: Commits) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docker/servers.sh");
    let mut run = Command::new(script);
    run.args(command).arg(dir).args(more);
    if commits == Commits::Durable {
        run.env("ROWLOCK_DURABLE", "1");
    }
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "servers.sh {command:?}: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
