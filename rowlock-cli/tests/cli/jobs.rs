//! `rowlock run` and job control: a command that is stopped, and goes on.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use nix::pty::openpty;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rowlock_test::patience;

use crate::shell::{Running, Shell};

/// Asks again and again: nothing tells when another process was stopped.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience();
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// The state of a process, as of proc(5): `T` is stopped.
fn state(process: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

impl Running {
    /// Whether the process has ended in time. If not, this kills it.
    fn ends(&mut self) -> bool {
        let deadline = Instant::now() + patience();
        while Instant::now() < deadline {
            if self.child.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::yield_now();
        }
        self.child.kill().unwrap();
        if let Ok(group) = self.first.parse() {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        false
    }
}

/// A command that prints its process id, is stopped, and then does the rest. There is no terminal.
fn stopped(shell: &Shell, rest: &str) -> Running {
    let script = format!("{rest}; echo $$; kill -STOP $$; echo on; exit 5");
    let running = shell.start(&["a", "--ttl", "3s"], &script);
    eventually("the command is stopped", || {
        state(&running.first) == Some('T')
    });
    running
}

fn expiry(shell: &Shell) -> String {
    shell.json(&["show", "a", "--json"])["holders"][0]["expires_at"].to_string()
}

#[test]
fn a_stopped_command_keeps_its_lock_and_goes_on_when_rowlock_is_continued() {
    let shell = Shell::new();
    let mut running = stopped(&shell, "true");
    let until = expiry(&shell);
    eventually("it is renewed", || expiry(&shell) > until);
    running.signal(Signal::SIGCONT);
    assert!(running.ends(), "the command goes on");
    let (code, rest, _) = running.end();
    assert_eq!((code, rest.trim()), (5, "on"));
}

#[test]
fn a_stopped_command_hears_the_signal_that_ends_it() {
    let shell = Shell::new();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        let name = &signal.as_str()[3..];
        let mut running = stopped(&shell, &format!("trap 'echo heard; exit 3' {name}"));
        running.signal(signal);
        assert!(running.ends(), "the command hears {signal}");
        let (code, rest, _) = running.end();
        assert_eq!((code, rest.trim()), (3, "heard"), "{signal}");
    }
}

#[test]
fn a_stopped_command_is_ended_when_its_lock_is_lost() {
    let shell = Shell::new();
    let mut running = stopped(&shell, "trap 'echo heard; exit 3' TERM");
    assert!(shell.run(&["release", "a", "--force"]).status.success());
    assert!(running.ends(), "the command is stopped for good");
    let (code, rest, _) = running.end();
    assert_eq!((code, rest.trim()), (76, "heard"));
}

/// A terminal, and what runs in it.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    /// Runs `command` in a session of its own, on a new terminal.
    pub(crate) fn new(shell: &Shell, command: &[&str]) -> Self {
        let pty = openpty(None, None).unwrap();
        let slave = File::from(pty.slave);
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .args(command)
            .current_dir(shell.dir.path())
            .env_remove("ROWLOCK_URL")
            .env("PATH", path())
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::from(slave.try_clone().unwrap()))
            .stderr(Stdio::from(slave))
            .spawn()
            .unwrap();
        let keyboard = File::from(pty.master);
        let mut master = keyboard.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 1_024];
            // The terminal's end is an error.
            while let Ok(read @ 1..) = master.read(&mut bytes) {
                let _ = sender.send(bytes[..read].to_vec());
            }
        });
        Self {
            child,
            keyboard,
            screen,
            seen: String::new(),
        }
    }

    /// Waits until `text` is printed, and returns the output since the last wait.
    pub(crate) fn shows(&mut self, text: &str) -> String {
        let deadline = Instant::now() + patience();
        loop {
            if let Some(at) = self.seen.find(text) {
                let mut before = self.seen.drain(..at + text.len()).collect::<String>();
                before.truncate(at);
                return before;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(bytes) = self.screen.recv_timeout(left) else {
                panic!("{text:?} is not printed after {:?}", self.seen);
            };
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }
}

impl Drop for Terminal {
    /// The end of a session's leader hangs its terminal up: nothing is left when a test fails.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command under test is found first.
fn path() -> String {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_rowlock"));
    let folder = program.parent().unwrap().display();
    format!("{folder}:{}", std::env::var("PATH").unwrap_or_default())
}

/// A shell that runs the pipeline, and then reads `fg` at its prompt.
fn job(pipeline: &str) -> String {
    format!("set -m -o pipefail; {pipeline}; echo back $?; fg >/dev/null; echo end $?")
}

#[test]
fn ctrl_z_stops_the_whole_job_and_fg_continues_it() {
    let shell = Shell::new();
    let script = "echo up; read line < /dev/tty; echo got $line; exit 5";
    for rest in ["", "| cat"] {
        let job = job(&format!("rowlock run a -- bash -c '{script}' {rest}"));
        let mut terminal = Terminal::new(&shell, &["bash", "-c", &job]);
        terminal.shows("up");
        terminal.types("\u{1a}");
        terminal.shows("back");
        terminal.shows("\n");
        terminal.types("word\n");
        terminal.shows("got word");
        terminal.shows("end 5");
    }
}

#[test]
fn a_command_that_stops_itself_gives_the_shell_back() {
    let shell = Shell::new();
    let script = "echo up; kill -TSTP $$; echo on; exit 5";
    let job = job(&format!("rowlock run a -- bash -c '{script}' | cat"));
    let mut terminal = Terminal::new(&shell, &["bash", "-c", &job]);
    terminal.shows("up");
    terminal.shows("back");
    terminal.shows("on");
    terminal.shows("end 5");
}

/// SIGSTOP may come from a process that will continue the command, but not rowlock. So rowlock stays awake, and
/// renews.
#[test]
fn a_command_that_got_sigstop_leaves_the_keyboard_to_rowlock() {
    let shell = Shell::new();
    let script = "echo up; kill -STOP $$; echo on; exit 5";
    let job = job(&format!("rowlock run a -- bash -c '{script}' | cat"));
    let mut terminal = Terminal::new(&shell, &["bash", "-c", &job]);
    // It may be told before the pipe brings what the command prints.
    terminal.shows("stopped");
    terminal.types("\u{1a}");
    terminal.shows("back");
    terminal.shows("on");
    terminal.shows("end 5");
}

/// A group in the background that nobody would continue: the kernel stops none of it, and the command is not asked
/// again and again whether it has the terminal by now.
#[test]
fn a_command_that_needs_another_ones_terminal_is_stopped_once() {
    let shell = Shell::new();
    // The shell in between ends, so that its group is orphaned.
    let script = "echo up; read line < /dev/tty; echo got $line";
    let job = format!(
        "set -m; (rowlock run a --ttl 3s -- bash -c '{script}' & echo $! > pid); read line; kill -TERM $(cat pid); \
         while rowlock show a > shown; do :; done; echo end; read line"
    );
    let mut terminal = Terminal::new(&shell, &["bash", "-c", &job]);
    terminal.shows("up");
    terminal.shows("is stopped (SIGTTIN)");
    let until = expiry(&shell);
    eventually("the lock is renewed", || expiry(&shell) > until);
    terminal.types("\n");
    let meanwhile = terminal.shows("end");
    assert!(!meanwhile.contains("SIGTTIN"), "{meanwhile:?}");
}

/// The keyboard is free when its owner has stopped: the command gets it, and nobody else is stopped.
#[test]
fn a_command_that_is_continued_alone_gets_the_terminal_back() {
    let shell = Shell::new();
    let script = "echo $$ > pid; kill -STOP $$; read line < /dev/tty; echo got $line; exit 5";
    let job = job(&format!("rowlock run a -- bash -c '{script}' | cat"));
    let mut terminal = Terminal::new(&shell, &["bash", "-c", &job]);
    terminal.shows("stopped");
    let pid = std::fs::read_to_string(shell.dir.path().join("pid")).unwrap();
    killpg(Pid::from_raw(pid.trim().parse().unwrap()), Signal::SIGCONT).unwrap();
    terminal.types("word\n");
    let meanwhile = terminal.shows("got word");
    assert!(!meanwhile.contains("back"), "{meanwhile:?}");
    terminal.shows("back 5");
}

/// A command in the background that stops itself, where nobody would continue it, goes on.
#[test]
fn a_command_that_stops_itself_in_an_orphaned_background_goes_on() {
    let shell = Shell::new();
    let script = "echo up; kill -TSTP $$; echo on";
    let job = format!("set -m; (rowlock run a -- bash -c '{script}' &); read line");
    let mut terminal = Terminal::new(&shell, &["bash", "-c", &job]);
    terminal.shows("up");
    terminal.shows("on");
}

/// As under `ssh -t`: no shell would continue a stopped process, so the kernel does not stop it.
#[test]
fn a_command_is_not_stopped_by_the_terminal_where_no_shell_would_continue_it() {
    let shell = Shell::new();
    let script = "echo up; kill -TSTP $$; echo on; exit 5";
    let mut terminal = Terminal::new(&shell, &["rowlock", "run", "a", "--", "bash", "-c", script]);
    terminal.shows("up");
    terminal.shows("on");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(5));
}
