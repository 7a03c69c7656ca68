//! The signals of `rowlock run`. A signal that was ignored when this process started stays ignored, as under nohup(1)
//! or in the background of a script: it is not caught, and the command inherits that (signal(7), "Execution of …
//! signal dispositions").

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::mpsc;

use crate::{FAILED, Failure};

/// The signals that are passed on to the command.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Catches what is passed on. The channel is closed when all of that is ignored.
pub(crate) fn catch_all() -> Result<mpsc::UnboundedReceiver<Signal>, Failure> {
    let (sender, receiver) = mpsc::unbounded_channel();
    for passed in PASSED_ON {
        let mut caught = Caught::new(passed)?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while caught.recv().await.is_some() {
                let _ = sender.send(passed);
            }
        });
    }
    Ok(receiver)
}

/// A signal that is caught, unless it was ignored before.
pub(crate) struct Caught(Option<unix::Signal>);

impl Caught {
    pub(crate) fn new(caught: Signal) -> Result<Self, Failure> {
        if is_ignored(caught) {
            return Ok(Self(None));
        }
        let stream = signal(SignalKind::from_raw(caught as i32));
        let stream = stream
            .map_err(|error| Failure::Other(format!("cannot catch {caught}: {error}"), FAILED))?;
        Ok(Self(Some(stream)))
    }

    /// `None`: it is ignored.
    pub(crate) async fn recv(&mut self) -> Option<()> {
        self.0.as_mut()?.recv().await
    }
}

/// Whether this process ignores it, as Linux tells in `proc_pid_status(5)`. Elsewhere only unsafe code could ask.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    ignored.is_some_and(|bits| bits >> (signal as i32 - 1) & 1 == 1)
}

/// The number of a signal.
pub(crate) fn number(signal: Signal) -> u8 {
    u8::try_from(signal as i32).unwrap_or(0)
}
