//! Checks that a name never has two holders, whatever the contender says.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::Failure;

/// Watches one process. In the process, a name that is held has a flag. Between processes, it has a lock of the
/// operating system on one byte of a file that all processes open; such a lock belongs to the process.
#[derive(Debug)]
pub(crate) struct Referee {
    held: Vec<AtomicBool>,
    file: Option<File>,
}

impl Referee {
    /// For names with the numbers below `names`. `file` is for several processes.
    pub(crate) fn new(names: u32, file: Option<&Path>) -> Result<Self, Failure> {
        let file = match file {
            Some(path) => Some(File::options().read(true).write(true).open(path)?),
            None => None,
        };
        let held = (0..names).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { held, file })
    }

    /// A task has been granted the name.
    pub(crate) fn enter(&self, name: u32) -> Result<(), Failure> {
        if self.flag(name).swap(true, Ordering::SeqCst) {
            return Err(format!(
                "VIOLATION: two tasks of a process hold name {name} at the same time"
            )
            .into());
        }
        match self.byte(name, libc::F_WRLCK) {
            Ok(()) => Ok(()),
            Err(Errno::EAGAIN | Errno::EACCES) => {
                Err(format!("VIOLATION: two processes hold name {name} at the same time").into())
            }
            Err(other) => Err(other.into()),
        }
    }

    /// The task is about to release the name.
    pub(crate) fn leave(&self, name: u32) -> Result<(), Failure> {
        self.byte(name, libc::F_UNLCK)?;
        if self.flag(name).swap(false, Ordering::SeqCst) {
            Ok(())
        } else {
            Err(format!("VIOLATION: another task has left name {name} in the meantime").into())
        }
    }

    fn flag(&self, name: u32) -> &AtomicBool {
        &self.held[name as usize]
    }

    fn byte(&self, name: u32, kind: i32) -> Result<(), Errno> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let lock = libc::flock {
            l_type: i16::try_from(kind).expect("the constants are 0 to 2"),
            l_whence: 0,
            l_start: name.into(),
            l_len: 1,
            l_pid: 0,
        };
        fcntl(file, FcntlArg::F_SETLK(&lock)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_a_violation() -> Result<(), Failure> {
        let referee = Referee::new(2, None)?;
        referee.enter(0)?;
        referee.enter(1)?;
        assert!(referee.enter(0).is_err());
        referee.leave(1)?;
        referee.enter(1)
    }
}
