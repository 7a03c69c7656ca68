//! `rowlock run`: a command that runs only while a lock is held.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use clap::Args;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use rowlock::{Error, Held, Lock, Loss, Name, ReleaseOutcome, Rowlock};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::until::Until;
use crate::{FAILED, Failure, LOST, database, duration, leash};

/// Passed on to the command.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The lock: 1 to 255 bytes of UTF-8.
    name: Name,
    /// How long the lock outlives this process, should it crash: 100ms to 24h. It is renewed.
    #[arg(long, value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
    ttl: Duration,
    /// How long to wait for the lock, and for a database that cannot be reached yet; for ever when not given, but then
    /// the first connection is tried only once.
    #[arg(long, value_parser = duration::parse, value_name = "DURATION", allow_hyphen_values = true)]
    wait: Option<Duration>,
    /// Do not wait.
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// Between SIGTERM and SIGKILL, when the lock is lost.
    #[arg(long, value_parser = duration::parse, default_value = "5s", allow_hyphen_values = true)]
    grace: Duration,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    pub(crate) async fn execute(self, url: &str) -> Result<u8, Failure> {
        // Refused before the database is asked.
        Lock::check_ttl(self.ttl)?;
        Lock::check_wait(self.wait.unwrap_or_default())?;
        // From here on a signal ends the waiting, or goes to the command.
        let mut signals = catch()?;
        let until = self.wait.map(Until::after);
        let rowlock = tokio::select! {
            rowlock = insist(url, until) => rowlock?,
            Some(signal) = signals.recv() => return Ok(128 + number(signal)),
        };
        let lock = rowlock.lock(self.name.clone()).ttl(self.ttl);
        let lock = match (self.no_wait, until) {
            (true, _) => lock.wait(Duration::ZERO),
            (false, Some(until)) => lock.wait(until.remaining()),
            (false, None) => lock,
        };
        let held = tokio::select! {
            held = lock.acquire() => held,
            Some(signal) = signals.recv() => {
                settle(&rowlock, &mut signals).await;
                return Ok(128 + number(signal));
            }
        };
        let held = match held {
            Ok(held) => held,
            Err(error) => {
                settle(&rowlock, &mut signals).await;
                return Err(error.into());
            }
        };
        let code = self.supervise(&held, &mut signals).await;
        let released = held.release().await;
        let code = code?;
        match released {
            Ok(ReleaseOutcome::Lost(loss)) if code != LOST => {
                eprintln!(
                    "rowlock: the lock {:?} was lost while the command ran ({loss})",
                    self.name
                );
                Ok(LOST)
            }
            Ok(_) => Ok(code),
            Err(error) => {
                eprintln!(
                    "rowlock: {:?} is free only when its TTL ends: {error}",
                    self.name
                );
                Ok(code)
            }
        }
    }

    /// Runs the command until it ends, or until the lock is lost.
    async fn supervise(
        &self,
        held: &Held,
        signals: &mut mpsc::UnboundedReceiver<Signal>,
    ) -> Result<u8, Failure> {
        let mut children = signal(SignalKind::child()).map_err(|error| lost_sight(&error))?;
        let stream = |caught: Signal| {
            signal(SignalKind::from_raw(caught as i32)).map_err(|error| lost_sight(&error))
        };
        let mut suspensions = stream(Signal::SIGTSTP)?;
        let mut continuations = stream(Signal::SIGCONT)?;
        let (mut child, group) = self.start(held)?;
        let mut terminal = Terminal::lend(group);
        loop {
            tokio::select! {
                Some(()) = children.recv() => match change(group) {
                    // Ctrl-Z. We stop with the command, and with all of our own group, so that the shell comes back.
                    // The lock is not renewed meanwhile: who comes back after its TTL has lost it.
                    Some(Change::Stopped(Signal::SIGTSTP)) if Terminal::is_there() => {
                        suspend(group, &mut terminal, held, stop_with_group);
                        resume(group, held);
                    }
                    // It asked for the terminal when that was not lent to it: perhaps before we did, perhaps when we had it back. If
                    // it is ours by now, the command gets it. Otherwise we stop, too. Where nobody would continue us, the kernel
                    // does not stop us; then the command stays stopped, because it would ask again and again.
                    Some(Change::Stopped(by @ (Signal::SIGTTIN | Signal::SIGTTOU)))
                        if Terminal::is_there() =>
                    {
                        terminal = terminal.or_else(|| Terminal::lend(group));
                        if terminal.is_some() {
                            resume(group, held);
                        } else {
                            tell(format_args!(
                                "the command needs the terminal, which is another's, and is stopped ({by}): SIGCONT or `fg` \
                                 continues it"
                            ));
                            suspend(group, &mut terminal, held, stop_with_group);
                            if terminal.is_some() {
                                resume(group, held);
                            }
                        }
                    }
                    // Whoever stopped it may continue it without us: we stay awake, and renew. The keyboard is ours.
                    Some(Change::Stopped(by)) => {
                        drop(terminal.take());
                        tell(format_args!(
                            "the command was stopped ({by}) and keeps the lock {:?}: SIGCONT continues it",
                            self.name
                        ));
                    }
                    Some(Change::Continued) => {
                        terminal = terminal.or_else(|| Terminal::lend(group));
                    }
                    None => {}
                },
                Some(()) = suspensions.recv() => {
                    suspend(group, &mut terminal, held, stop_alone);
                    resume(group, held);
                }
                Some(()) = continuations.recv() => {
                    if held.is_held() {
                        terminal = terminal.or_else(|| Terminal::lend(group));
                    }
                    resume(group, held);
                }
                status = child.wait() => return status.map(code).map_err(|error| lost_sight(&error)),
                loss = held.lost() => {
                    self.stop(&mut child, group, loss).await;
                    return Ok(LOST);
                }
                // The command may be gone already; then its status is on its way.
                Some(signal) = signals.recv() => {
                    let _ = killpg(group, signal);
                    // One that is stopped hears nothing. Whether it is may not have come to us yet; one that runs does not mind.
                    if !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
                        let _ = killpg(group, Signal::SIGCONT);
                    }
                }
            }
        }
    }

    fn start(&self, held: &Held) -> Result<(Child, Pid), Failure> {
        let started = leash::program().and_then(|program| {
            Command::from(program)
                .args(&self.command)
                .env("ROWLOCK_NAME", held.name().as_str())
                .env("ROWLOCK_FENCE", held.fence().to_string())
                .process_group(0)
                .spawn()
        });
        let child = started
            .map_err(|error| Failure::Other(format!("cannot start a process: {error}"), FAILED))?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group =
            id.ok_or_else(|| Failure::Other("the command has no process id".into(), FAILED))?;
        Ok((child, Pid::from_raw(group)))
    }

    /// SIGTERM to the group, and SIGKILL after the grace. Also to what the command has left behind.
    async fn stop(&self, child: &mut Child, group: Pid, loss: Loss) {
        eprintln!(
            "rowlock: the lock {:?} was lost ({loss}): stopping the command, SIGKILL in {:?}",
            self.name, self.grace
        );
        let _ = killpg(group, Signal::SIGTERM);
        let _ = killpg(group, Signal::SIGCONT); // one that is stopped hears nothing
        let gone = async {
            let _ = child.wait().await;
            // The group lives as long as one of its processes does.
            while killpg(group, None).is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(self.grace, gone).await.is_err() {
            let _ = killpg(group, Signal::SIGKILL);
            let _ = child.wait().await;
        }
    }
}

/// The first connection, tried again until then. Without a time it is not: where nothing was ever reached, the address
/// may be wrong.
async fn insist(url: &str, until: Option<Until>) -> Result<Rowlock, Error> {
    let mut pauses = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(20))
        .with_max_delay(Duration::from_millis(500))
        .without_max_times()
        .with_jitter()
        .build();
    loop {
        match (database::make(url).await, until) {
            (Err(error), Some(until)) if error.is_transient() && !until.remaining().is_zero() => {
                tracing::debug!(%error, "trying again");
                let pause = pauses.next().unwrap_or_default();
                tokio::time::sleep(pause.min(until.remaining())).await;
            }
            (connected, _) => return connected,
        }
    }
}

fn catch() -> Result<mpsc::UnboundedReceiver<Signal>, Failure> {
    let (sender, receiver) = mpsc::unbounded_channel();
    for passed in PASSED_ON {
        let mut stream = signal(SignalKind::from_raw(passed as i32))
            .map_err(|error| Failure::Other(format!("cannot catch {passed}: {error}"), FAILED))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                let _ = sender.send(passed);
            }
        });
    }
    Ok(receiver)
}

fn lost_sight(error: &std::io::Error) -> Failure {
    Failure::Other(format!("cannot wait for the command: {error}"), FAILED)
}

/// The command's own code, or the shell's convention for a signal.
fn code(status: ExitStatus) -> u8 {
    let signal = status.signal().and_then(|signal| u8::try_from(signal).ok());
    match (status.code(), signal) {
        (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(FAILED),
        (None, Some(signal)) => 128 + signal,
        (None, None) => FAILED,
    }
}

fn number(signal: Signal) -> u8 {
    u8::try_from(signal as i32).unwrap_or(0)
}

/// Undoes what is on its way, for a few seconds at most, and not against a second signal.
async fn settle(rowlock: &Rowlock, signals: &mut mpsc::UnboundedReceiver<Signal>) {
    tokio::select! {
        () = rowlock.flush() => {}
        _ = signals.recv() => {}
        () = tokio::time::sleep(Duration::from_secs(5)) => {}
    }
}

/// Stops the command and this process, by `stop`. Whoever continues this one finds the command with the terminal again, unless
/// that or the lock was lost meanwhile.
fn suspend(group: Pid, terminal: &mut Option<Terminal>, held: &Held, stop: fn()) {
    let _ = killpg(group, Signal::SIGSTOP);
    drop(terminal.take());
    stop();
    if held.is_held() {
        *terminal = Terminal::lend(group);
    }
}

/// Continues the command, while its lock is held.
fn resume(group: Pid, held: &Held) {
    if held.is_held() {
        let _ = killpg(group, Signal::SIGCONT);
    }
}

/// Says it on standard error. That may fail, on a terminal that is another group's: the command goes on all the same.
fn tell(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "rowlock: {text}");
}

/// As who sent us SIGTSTP wants it.
fn stop_alone() {
    let _ = kill(Pid::this(), Signal::SIGSTOP);
}

/// As the terminal would, had it stopped our group: also the script that runs us, and the rest of the pipeline. A shell
/// waits for all of them. Where no shell waits (`ssh -t`), the kernel stops nobody: our group is orphaned, and this
/// signal, unlike SIGSTOP, is dropped then (`setpgid(2)`). SIGTSTP would do, too, but we catch that.
fn stop_with_group() {
    let _ = killpg(getpgrp(), Signal::SIGTTIN);
}

/// The terminal, lent to the command's process group: it may read from it, and Ctrl-C goes to it.
#[derive(Debug)]
struct Terminal(File);

impl Terminal {
    fn open() -> Option<File> {
        File::options().read(true).write(true).open("/dev/tty").ok()
    }

    /// Whether this process has one at all.
    fn is_there() -> bool {
        Self::open().is_some()
    }

    fn lend(group: Pid) -> Option<Self> {
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

/// A group in the background that does this is stopped by SIGTTOU, unless it blocks it (tcsetpgrp(3)).
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

/// What has become of the command. Its end is left to whoever waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Stopped(Signal),
    Continued,
}

fn change(child: Pid) -> Option<Change> {
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WCONTINUED | WaitPidFlag::WNOHANG;
    match waitid(Id::Pid(child), flags) {
        Ok(WaitStatus::Stopped(_, signal)) => Some(Change::Stopped(signal)),
        Ok(WaitStatus::Continued(_)) => Some(Change::Continued),
        _ => None,
    }
}
