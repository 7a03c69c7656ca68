//! `rowlock run`: a command that runs only while a lock is held.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use clap::Args;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgrp};
use rowlock::extend::{check_ttl, check_wait};
use rowlock::{Error, Held, Loss, Name, Rowlock};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::duration::{about, span};
use crate::out::tell;
use crate::scheduled::{self, Scheduled};
use crate::share::{Holding, Share};
use crate::signals::{Caught, catch_all, number};
use crate::terminal::Terminal;
use crate::until::Until;
use crate::{FAILED, Failure, LOST, USAGE, database, duration, leash, waiting};

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The lock: 1 to 255 bytes of UTF-8.
    #[arg(required_unless_present = "dashed")]
    name: Option<Name>,
    /// The lock, if its name begins with a dash: --name=-x.
    #[arg(
        long = "name",
        value_name = "NAME",
        allow_hyphen_values = true,
        conflicts_with = "name"
    )]
    dashed: Option<Name>,
    /// How long the lock stays held if this process crashes, or its place in the queue stays taken: 100ms to 24h.
    /// rowlock renews both before they expire.
    #[arg(long, value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
    ttl: Duration,
    /// How long to wait for the lock, and for a database that is not reachable yet. Without it, rowlock waits for the
    /// lock for ever, but tries the first connection only once.
    #[arg(long, value_parser = duration::parse, value_name = "DURATION", allow_hyphen_values = true)]
    wait: Option<Duration>,
    /// Do not wait for the lock: exit with 75 if it is held.
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    #[command(flatten)]
    share: Share,
    #[command(flatten)]
    scheduled: Scheduled,
    /// The time between SIGTERM and SIGKILL when the lock is lost.
    #[arg(long, value_parser = duration::parse, default_value = "5s", allow_hyphen_values = true)]
    grace: Duration,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// `made`: the SQLite file, if connecting makes it.
    pub(crate) async fn execute(mut self, url: &str, made: Option<PathBuf>) -> Result<u8, Failure> {
        let Some(name) = self.name.take().or(self.dashed.take()) else {
            return Ok(USAGE);
        };
        // Wrong arguments are refused without asking the database.
        check_ttl("ttl", self.ttl)?;
        check_wait(self.wait.unwrap_or_default())?;
        self.scheduled.check(self.ttl)?;
        // From here on a signal ends the wait, or goes to the command.
        let mut signals = catch_all()?;
        let until = self.wait.map(Until::after);
        let rowlock = tokio::select! {
            rowlock = insist(url, until, self.ttl) => rowlock?,
            Some(signal) = signals.recv() => return Ok(128 + number(signal)),
        };
        if let Some(made) = made {
            database::tell_made(&made);
        }
        let wait = match (self.no_wait, until) {
            (true, _) => Some(Duration::ZERO),
            (false, until) => until.map(Until::remaining),
        };
        let held = tokio::select! {
            held = self.acquire(&rowlock, &name, wait) => held,
            () = waiting::tell_of_it(&rowlock, &name, self.share.permits()), if !self.no_wait => return Ok(FAILED),
            Some(signal) = signals.recv() => {
                settle(&rowlock, &mut signals).await;
                return Ok(128 + number(signal));
            }
        };
        let held = match held {
            Ok(Some(held)) => held,
            Ok(None) => return Ok(0),
            Err(mut error) => {
                settle(&rowlock, &mut signals).await;
                // The time to connect counts.
                if let (Error::WaitTimeout { waited, .. }, Some(wait)) = (&mut error, self.wait) {
                    *waited = wait;
                }
                return Err(error.into());
            }
        };
        let code = self.supervise(&held, &mut signals).await;
        let was_lost = held.loss().is_some();
        let released = match held {
            Holding::Job(run) => scheduled::end(run, &code).await,
            held => held.release().await,
        };
        let code = code?;
        match released {
            Err(Error::Lost { loss, .. }) if code != LOST => {
                tell(format_args!(
                    "the lock {name:?} was lost while the command ran ({loss})"
                ));
                Ok(LOST)
            }
            // There is nothing to release after a loss, which was told.
            Err(_) if code == LOST && was_lost => Ok(code),
            Ok(()) => Ok(code),
            Err(error) => {
                tell(format_args!(
                    "the lock {name:?} could not be released, and stays held until its TTL ends: {error}"
                ));
                Ok(code)
            }
        }
    }

    /// Waits for the lock, for ever if `wait` is `None`. `Ok(None)`: this is a job, and its name is taken.
    async fn acquire(
        &self,
        rowlock: &Rowlock,
        name: &Name,
        wait: Option<Duration>,
    ) -> Result<Option<Holding>, Error> {
        if self.scheduled.is_wanted() {
            let begun = self.scheduled.begin(rowlock, name, self.ttl).await?;
            return Ok(begun.map(Holding::Job));
        }
        let held = self.share.acquire(rowlock, name, self.ttl, wait);
        Ok(Some(held.await?))
    }

    /// Runs the command until it ends, or until the lock is lost.
    async fn supervise(
        &self,
        held: &Held,
        signals: &mut mpsc::UnboundedReceiver<Signal>,
    ) -> Result<u8, Failure> {
        let mut children = signal(SignalKind::child()).map_err(|error| cannot_wait(&error))?;
        let mut suspensions = Caught::new(Signal::SIGTSTP)?;
        let mut continuations = Caught::new(Signal::SIGCONT)?;
        let (mut child, group) = self.start(held)?;
        let mut terminal = Terminal::lend(group);
        loop {
            tokio::select! {
                Some(()) = children.recv() => match change(group) {
                    // Ctrl-Z. We stop with the command, and with our whole group, so that the shell comes back.
                    // Nothing renews the lock while we are stopped. If that lasts longer than the TTL, the lock is
                    // lost.
                    Some(Change::Stopped(Signal::SIGTSTP)) if Terminal::is_there() => {
                        suspend(group, &mut terminal, held, stop_with_group);
                        resume(group, held);
                    }
                    // The command used the terminal when it was not lent to it: before we lent it, or after we took it
                    // back. If we have the terminal now, we lend it. Otherwise we stop, too. If no shell would
                    // continue us, the kernel does not stop us. Then the command stays stopped, because it would use
                    // the terminal again and again.
                    Some(Change::Stopped(by @ (Signal::SIGTTIN | Signal::SIGTTOU)))
                        if Terminal::is_there() =>
                    {
                        terminal = terminal.or_else(|| Terminal::lend(group));
                        if terminal.is_some() {
                            resume(group, held);
                        } else {
                            tell(format_args!(
                                "the command is stopped ({by}): it needs the terminal, which another process group has; SIGCONT \
                                 or `fg` continues it"
                            ));
                            suspend(group, &mut terminal, held, stop_with_group);
                            if terminal.is_some() {
                                resume(group, held);
                            }
                        }
                    }
                    // Another process stopped the command, and may continue it without us. So we stay awake, renew the
                    // lock, and take the terminal back.
                    Some(Change::Stopped(by)) => {
                        drop(terminal.take());
                        tell(format_args!(
                            "the command is stopped ({by}), and still holds the lock {:?}: SIGCONT continues it",
                            held.name()
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
                status = child.wait() => return status.map(code).map_err(|error| cannot_wait(&error)),
                loss = held.lost() => {
                    self.stop(&mut child, group, (held.name(), loss)).await;
                    return Ok(LOST);
                }
                // The command may already be gone; then its status arrives soon.
                Some(signal) = signals.recv() => {
                    let _ = killpg(group, signal);
                    // A stopped command does not get the signal. We may not know yet that it is stopped; SIGCONT to a
                    // running command does nothing.
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
                .env(waiting::NAME, held.name().as_str())
                .env(waiting::FENCE, held.fence().to_string())
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

    /// Sends SIGTERM to the group, and SIGKILL after the grace. Both also reach processes that outlive the command.
    async fn stop(&self, child: &mut Child, group: Pid, (name, loss): (&Name, Loss)) {
        let why = match loss {
            Loss::MaxHold => format!("{name:?} has run for as long as --at-most-for says"),
            loss => format!("the lock {name:?} was lost ({loss})"),
        };
        tell(format_args!(
            "{why}: rowlock stops the command, and kills it in {}",
            span(self.grace)
        ));
        let _ = killpg(group, Signal::SIGTERM);
        let _ = killpg(group, Signal::SIGCONT); // a stopped process does not get SIGTERM
        let gone = async {
            let _ = child.wait().await;
            // The group exists as long as one of its processes.
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

/// Makes the first connection, and tries again until `until`. Without `until` it tries once: the address may be wrong.
async fn insist(url: &str, until: Option<Until>, ttl: Duration) -> Result<Rowlock, Error> {
    let mut pauses = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(20))
        .with_max_delay(Duration::from_millis(500))
        .without_max_times()
        .with_jitter()
        .build();
    let mut is_told = false;
    loop {
        match (database::make_for(url, ttl).await, until) {
            (Err(error), Some(until)) if error.is_transient() && !until.remaining().is_zero() => {
                tracing::debug!(%error, "trying again");
                if !std::mem::replace(&mut is_told, true) {
                    let left = about(until.remaining());
                    tell(format_args!("{error}; rowlock tries again for {left}"));
                }
                let pause = pauses.next().unwrap_or_default();
                tokio::time::sleep(pause.min(until.remaining())).await;
            }
            (connected, _) => return connected,
        }
    }
}

fn cannot_wait(error: &std::io::Error) -> Failure {
    Failure::Other(format!("cannot wait for the command: {error}"), FAILED)
}

/// The command's exit code, or 128 + the signal, as shells do.
fn code(status: ExitStatus) -> u8 {
    let signal = status.signal().and_then(|signal| u8::try_from(signal).ok());
    match (status.code(), signal) {
        (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(FAILED),
        (None, Some(signal)) => 128 + signal,
        (None, None) => FAILED,
    }
}

/// Waits for the end of an acquire that was cut off, so that its lock is free: 5 seconds at most, or until a second
/// signal.
async fn settle(rowlock: &Rowlock, signals: &mut mpsc::UnboundedReceiver<Signal>) {
    tokio::select! {
        () = rowlock.flush() => {}
        Some(_) = signals.recv() => {}
        () = tokio::time::sleep(Duration::from_secs(5)) => {}
    }
}

/// Stops the command, and then this process by `stop`. When this process continues, the command gets the terminal
/// back, unless the terminal or the lock was lost.
fn suspend(group: Pid, terminal: &mut Option<Terminal>, held: &Held, stop: fn()) {
    let _ = killpg(group, Signal::SIGSTOP);
    drop(terminal.take());
    stop();
    if held.is_held() {
        *terminal = Terminal::lend(group);
    }
}

/// Continues the command if its lock is held.
fn resume(group: Pid, held: &Held) {
    if held.is_held() {
        let _ = killpg(group, Signal::SIGCONT);
    }
}

/// Stops this process only, as the sender of SIGTSTP wants it.
fn stop_alone() {
    let _ = kill(Pid::this(), Signal::SIGSTOP);
}

/// Stops our whole group, as Ctrl-Z does: also the script that runs us, and the rest of the pipeline. A shell waits
/// for all of them. If no shell waits (`ssh -t`), our group is orphaned. Then the kernel drops SIGTTIN, but not
/// SIGSTOP (`setpgid(2)`). SIGTSTP would also work, but we catch it.
fn stop_with_group() {
    let _ = killpg(getpgrp(), Signal::SIGTTIN);
}

/// A change of the command's state. Its end is not one: `Child::wait` reports it.
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
