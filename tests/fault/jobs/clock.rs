//! The wall clock of a machine, which libfaketime moves.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::SystemTime;

/// libfaketime. `docker/servers.sh` fetches it. If it cannot, the test fails.
static LIBRARY: LazyLock<String> = LazyLock::new(|| {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("docker/servers.sh");
    let output = Command::new(script).arg("faketime").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "no libfaketime: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
});

/// Moves the wall clock of the process that `command` starts, by so many milliseconds. Its other clocks stay as they
/// are.
pub(crate) fn moved(command: &mut Command, by: i64) {
    let sign = if by < 0 { '-' } else { '+' };
    let (seconds, rest) = (by.abs() / 1_000, by.abs() % 1_000);
    command
        .env("LD_PRELOAD", &*LIBRARY)
        .env("FAKETIME", format!("{sign}{seconds}.{rest:03}s"))
        .env("DONT_FAKE_MONOTONIC", "1")
        .env("NO_FAKE_STAT", "1");
}

/// Removes the shared memory that libfaketime has made for this process, and that would stay when the process is
/// killed. It has no other use: no child is started.
pub(super) fn leave_nothing() {
    let id = std::process::id();
    for file in ["faketime_shm_", "sem.faketime_sem_"] {
        let _ = std::fs::remove_file(format!("/dev/shm/{file}{id}"));
    }
}

/// The wall clock, in milliseconds.
#[expect(
    clippy::disallowed_methods,
    reason = "a machine starts its jobs by its own wall clock: that is what is tested here"
)]
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap().as_millis()).unwrap()
}
