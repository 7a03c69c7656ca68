//! Processes of a test's own: its program, started again with a part to play, talked to line by line.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rowlock::Rowlock;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a process of a test program does. Each program has its own list.
pub trait Part: Debug + Clone + Serialize + DeserializeOwned {
    /// Plays the part, in the process that was started for it.
    fn play(role: &Role<Self>) -> impl Future<Output = ()>;

    /// Prepares the start of its process.
    fn prepare(&self, command: &mut Command) {
        let _ = command;
    }
}

/// What the parent wants of this process.
#[derive(Debug, Clone)]
pub struct Role<P> {
    pub part: P,
    pub url: String,
    pub ttl: Duration,
}

const PART: &str = "ROWLOCK_FAULT_PART";
const URL: &str = "ROWLOCK_FAULT_URL";
const TTL: &str = "ROWLOCK_FAULT_TTL_MS";

impl<P: Part> Role<P> {
    /// The role for which this process was started, if it was started for one.
    pub fn of_this_process() -> Option<Self> {
        let part = serde_json::from_str(&std::env::var(PART).ok()?).ok()?;
        let url = std::env::var(URL).ok()?;
        let ttl = std::env::var(TTL).ok()?.parse().ok()?;
        Some(Self {
            part,
            url,
            ttl: Duration::from_millis(ttl),
        })
    }

    /// The command that starts this program in this role.
    pub fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        // A group of its own: when a group with a stopped process in it is orphaned, the kernel sends all
        // of it SIGHUP (setpgid(2)).
        command
            .process_group(0)
            .env(PART, serde_json::to_string(&self.part).unwrap())
            .env(URL, &self.url)
            .env(TTL, self.ttl.as_millis().to_string());
        self.part.prepare(&mut command);
        command
    }

    /// Plays the part.
    pub fn play(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(P::play(self));
    }

    /// A client. While other processes are killed and paused, the database may be slow: nobody gives up.
    pub async fn connect(&self) -> Rowlock {
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
pub fn tell(line: impl std::fmt::Display) {
    let line = format!("{line}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

/// The next line of the parent's; `None` when it is gone.
pub fn listen() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).unwrap_or(0);
    (read > 0).then(|| line.trim().to_owned())
}

/// A process that plays a role. Dropping it kills it, stopped or not.
#[derive(Debug)]
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub fn start<P: Part>(role: &Role<P>) -> Self {
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

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Its next line. Blocks.
    pub fn listen(&mut self) -> String {
        self.output.next().expect("it goes on").unwrap()
    }

    /// All that it still says, until it ends.
    pub fn rest(&mut self) -> Vec<String> {
        self.output.by_ref().map(Result::unwrap).collect()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Stops it, and waits until all its threads have stopped.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    }

    /// Stops it, and lets it go on after `time`, also when the parent is busy.
    pub fn pause(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        self.signal(Signal::SIGSTOP);
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        async move {
            tokio::time::sleep(time).await;
            kill(pid, Signal::SIGCONT).unwrap();
        }
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
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
