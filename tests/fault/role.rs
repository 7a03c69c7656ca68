//! Processes of the tests' own: this binary, started again with a part to play, talked to line by line.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rowlock::Rowlock;

use crate::{
    dead_holder, histories, jobs, late_record, leader, modes, payments, philosophers, queue,
    quorum, worker, zombie,
};

/// What the parent wants of this process.
#[derive(Debug, Clone)]
pub(crate) struct Role {
    pub(crate) part: Part,
    pub(crate) url: String,
    pub(crate) ttl: Duration,
}

/// Whose process this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Part {
    Campaign,
    Histories {
        number: u64,
        means: histories::Means,
    },
    Zombie {
        pinned: bool,
    },
    DeadHolder(Holding),
    Modes {
        seconds: u64,
    },
    LateRecord,
    Queue {
        process: usize,
        waiters: usize,
        some_leave: bool,
    },
    Philosopher {
        seat: usize,
        is_multi: bool,
    },
    Shop {
        gateway: u16,
    },
    Claim,
    Gateway,
    Quorum,
    Leader {
        candidate: i64,
        means: leader::Means,
    },
    Machine(jobs::Machine),
}

/// How a process holds the name that it dies with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Holding {
    Pessimistic,
    Optimistic,
    Pinned,
    /// In the session of its client.
    InSession,
}

impl Role {
    const PART: &str = "ROWLOCK_FAULT_PART";
    const URL: &str = "ROWLOCK_FAULT_URL";
    const TTL: &str = "ROWLOCK_FAULT_TTL_MS";

    pub(crate) fn of_this_process() -> Option<Self> {
        let part = serde_json::from_str(&std::env::var(Self::PART).ok()?).ok()?;
        let url = std::env::var(Self::URL).ok()?;
        let ttl = std::env::var(Self::TTL).ok()?.parse().ok()?;
        Some(Self {
            part,
            url,
            ttl: Duration::from_millis(ttl),
        })
    }

    /// The command that starts this binary in this role.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        // A group of its own: when a group with a stopped process in it is orphaned, the kernel sends all
        // of it SIGHUP (setpgid(2)).
        command
            .process_group(0)
            .env(Self::PART, serde_json::to_string(&self.part).unwrap())
            .env(Self::URL, &self.url)
            .env(Self::TTL, self.ttl.as_millis().to_string());
        if let Part::Machine(machine) = self.part {
            jobs::moved(&mut command, machine.skew);
        }
        command
    }

    /// Plays the part.
    pub(crate) fn play(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            match self.part {
                Part::Campaign => worker::work(self).await,
                Part::Histories { number, means } => histories::work(self, number, means).await,
                Part::Zombie { pinned } => zombie::hold(self, pinned).await,
                Part::DeadHolder(holding) => dead_holder::hold(self, holding).await,
                Part::Modes { seconds } => modes::work(self, seconds).await,
                Part::LateRecord => late_record::attempt(self).await,
                Part::Queue {
                    process,
                    waiters,
                    some_leave,
                } => queue::wait(self, process, waiters, some_leave).await,
                Part::Philosopher { seat, is_multi } => {
                    philosophers::dine(self, seat, is_multi).await;
                }
                Part::Shop { gateway } => payments::shop(self, gateway).await,
                Part::Claim => payments::claim(self).await,
                Part::Gateway => payments::gateway(self).await,
                Part::Quorum => quorum::work(self).await,
                Part::Leader { candidate, means } => leader::stand(self, candidate, means).await,
                Part::Machine(machine) => jobs::work(self, machine).await,
            }
        });
    }

    /// A client. While other processes are killed and paused, the database may be slow: nobody gives up.
    pub(crate) async fn connect(&self) -> Rowlock {
        // On SQLite whoever writes waits for all others who do, and in no order.
        let timeout = Duration::from_secs(if self.url.starts_with("sqlite") {
            60
        } else {
            5
        });
        loop {
            let builder = Rowlock::builder()
                .operation_timeout(timeout)
                .session_ttl(self.ttl);
            match builder.connect(&self.url).await {
                Ok(rowlock) => return rowlock,
                Err(error) if error.is_transient() => eprintln!("worker: {error}"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A line to the parent: one write call, so that a killed process leaves whole lines.
pub(crate) fn tell(line: impl std::fmt::Display) {
    let line = format!("{line}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

/// The next line of the parent's; `None` when it is gone.
pub(crate) fn listen() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).unwrap_or(0);
    (read > 0).then(|| line.trim().to_owned())
}

/// A process that plays a role. Dropping it kills it, stopped or not.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start(role: &Role) -> Self {
        let mut command = role.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            input,
            output,
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Its next line. Blocks.
    pub(crate) fn listen(&mut self) -> String {
        self.output.next().expect("it goes on").unwrap()
    }

    /// All that it still says, until it ends.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        self.output.by_ref().map(Result::unwrap).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Stops it, and waits until all its threads have stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    }

    /// Stops it, and lets it go on after `time`, also when the parent is busy.
    pub(crate) fn pause(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        self.signal(Signal::SIGSTOP);
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        async move {
            tokio::time::sleep(time).await;
            kill(pid, Signal::SIGCONT).unwrap();
        }
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
