//! A server that a test kills.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rowlock::Engine;

use crate::{Commits, servers};

/// A server that a test may kill.
#[derive(Debug)]
pub struct Killable {
    engine: Engine,
    dir: tempfile::TempDir,
}

impl Killable {
    pub fn new(engine: Engine) -> Self {
        let dir = tempfile::Builder::new().prefix("rowlock-kill-").tempdir();
        Self {
            engine,
            dir: dir.unwrap(),
        }
    }

    fn servers(&self, command: &[&str]) -> String {
        servers(command, self.dir.path(), &[], Commits::Durable)
    }

    pub fn start(&self) -> String {
        self.servers(&["start", self.engine.name()])
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn stop(&self) {
        self.servers(&["stop"]);
    }

    pub fn pid(&self) -> Pid {
        let pid = std::fs::read_to_string(self.dir.path().join("pid")).unwrap();
        Pid::from_raw(pid.trim().parse().unwrap())
    }

    /// Kills it with the processes of its connections, as a crash of the machine does, and waits until all are gone.
    pub fn kill(&self) {
        let first = self.pid();
        // It makes no more processes.
        kill(first, Signal::SIGSTOP).unwrap();
        let mut all = children(first);
        all.insert(0, first);
        for pid in &all {
            // A process of a connection may have ended meanwhile.
            let _ = kill(*pid, Signal::SIGKILL);
        }
        let is_there = |pid: &Pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|text| !text.contains("State:\tZ"))
        };
        while all.iter().any(is_there) {
            std::thread::yield_now();
        }
    }
}

/// The processes that a server has made.
pub fn children(parent: Pid) -> Vec<Pid> {
    let of_parent = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name, which stands before it, may have spaces.
        let of: i32 = stat.rsplit_once(')')?.1.split(' ').nth(2)?.parse().ok()?;
        (of == parent.as_raw()).then(|| Pid::from_raw(pid))
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| of_parent(entry.ok()?)).collect()
}

impl Drop for Killable {
    fn drop(&mut self) {
        self.stop();
    }
}
