//! The command `rowlock`.

use std::process::{Command, Output, Stdio};

/// Runs the command `rowlock`.
pub(crate) fn rowlock(url: &str, arguments: &[&str]) -> Output {
    command(url, arguments).output().unwrap()
}

pub(crate) fn command(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowlock"));
    command
        .args(["--url", url])
        .args(arguments)
        .stdin(Stdio::null());
    command
}
