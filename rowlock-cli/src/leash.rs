//! A command that ends when the process that holds its lock is killed.
//!
//! After a SIGKILL, `rowlock run` cannot stop its command. So `rowlock run` starts a second `rowlock`, which asks the
//! kernel for a SIGTERM at the death of its parent, and then becomes the command. The request survives execve
//! (prctl(2), `PR_SET_PDEATHSIG`), unless the command is set-user-ID.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Parser;

/// The shell's codes: found but not runnable, not found.
const NOT_RUNNABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The first argument of the second `rowlock`. It is no command of the help or of a shell's completions.
pub(crate) const NAME: &str = "leash";

/// Become CMD, and end with the process that started it
#[derive(Debug, Parser)]
pub(crate) struct Leash {
    /// The process that holds the lock.
    holder: i32,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The program and the first arguments that start a command through a second `rowlock`.
pub(crate) fn program() -> std::io::Result<Command> {
    let mut command = Command::new(itself()?);
    command.args([NAME, &std::process::id().to_string(), "--"]);
    Ok(command)
}

/// The program that runs here, also after its file was replaced or removed, as an upgrade does: the link leads to the
/// file, not to its name (`proc_pid_exe(5)`).
#[cfg(target_os = "linux")]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it may fail")]
fn itself() -> std::io::Result<PathBuf> {
    Ok("/proc/self/exe".into())
}

#[cfg(not(target_os = "linux"))]
fn itself() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}

impl Leash {
    /// Returns only when the command cannot be started.
    pub(crate) fn become_command(&self) -> ExitCode {
        #[cfg(target_os = "linux")]
        {
            let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM);
            // The parent may have died before the call.
            if nix::unistd::getppid().as_raw() != self.holder {
                return ExitCode::from(crate::LOST);
            }
        }
        let Some((program, arguments)) = self.command.split_first() else {
            return ExitCode::from(crate::USAGE);
        };
        let error = Command::new(program).args(arguments).exec();
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        let is_line = missing && arguments.is_empty() && program.to_string_lossy().contains(' ');
        let hint = if is_line {
            "; for a line of the shell, write -- sh -c '…'"
        } else {
            ""
        };
        crate::out::tell(format_args!(
            "cannot run {}: {error}{hint}",
            program.display()
        ));
        ExitCode::from(if missing { NOT_FOUND } else { NOT_RUNNABLE })
    }
}
