//! The terminal of `rowlock run` and of its command.

use std::fs::File;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal, lent to the command's process group: the command may read from it, and gets Ctrl-C.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    fn open() -> Option<File> {
        File::options().read(true).write(true).open("/dev/tty").ok()
    }

    /// Whether this process has a terminal.
    pub(crate) fn is_there() -> bool {
        Self::open().is_some()
    }

    pub(crate) fn lend(group: Pid) -> Option<Self> {
        let terminal = Self::open()?;
        let ours = tcgetpgrp(&terminal).is_ok_and(|owner| owner == getpgrp());
        if !ours || !give(&terminal, group) {
            return None;
        }
        Some(Self(terminal))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give(&self.0, getpgrp());
    }
}

/// Makes `group` the foreground group. SIGTTOU stops a background group that does this, unless it blocks the signal
/// (tcsetpgrp(3)).
fn give(terminal: &File, group: Pid) -> bool {
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGTTOU);
    let blocks = blocked.thread_block().is_ok();
    let given = tcsetpgrp(terminal, group).is_ok();
    if blocks {
        let _ = blocked.thread_unblock();
    }
    given
}
