//! The command `rowlock`.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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
