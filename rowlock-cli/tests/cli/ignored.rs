//! Signals that the process which started `rowlock` ignores, as nohup(1), `trap '' …` and the background jobs of
//! scripts do.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shell::{Shell, code, stderr, stdout, wait};

/// The signals that a process ignores, as the line of proc(5) has them.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
}

fn bit(signal: Signal) -> u64 {
    1 << (signal as u32 - 1)
}

#[test]
fn a_command_ignores_what_it_would_ignore_without_rowlock() {
    let shell = Shell::new();
    let status = ["cat", "/proc/self/status"];
    for ignore in [
        "--ignore-signal",
        "--ignore-signal=HUP",
        "--ignore-signal=INT,QUIT",
        "--ignore-signal=TERM,TSTP,USR1",
        "--default-signal",
    ] {
        let alone = Command::new("env").arg(ignore).args(status).output();
        let mut under = Command::new("env");
        under.args([ignore, env!("CARGO_BIN_EXE_rowlock"), "run", "a", "--"]);
        let under = under.args(status).current_dir(shell.dir.path()).output();
        let (alone, under) = (alone.unwrap(), under.unwrap());
        assert_eq!(code(&under), 0, "{}", stderr(&under));
        // rowlock needs the first one, and every program in Rust sets the second one.
        let always = bit(Signal::SIGCHLD) | bit(Signal::SIGPIPE);
        let expected = ignored(&stdout(&alone)) & !always;
        let found = ignored(&stdout(&under));
        assert_eq!(format!("{found:x}"), format!("{expected:x}"), "{ignore}");
    }
}

#[test]
fn nohup_and_a_background_job_of_a_script_wait_and_work_on() {
    let background = "\"$@\" & echo $!; wait $!";
    for (start, signal) in [
        ("echo $$; exec nohup \"$@\"", Signal::SIGHUP),
        (background, Signal::SIGINT),
        (background, Signal::SIGQUIT),
        ("trap '' TERM; echo $$; exec \"$@\"", Signal::SIGTERM),
    ] {
        let shell = Shell::new();
        let (go, on) = (shell.fifo("go"), shell.fifo("on"));
        let holder = shell.start(&["a"], "echo up; read line < go");
        let mut child = Command::new("bash")
            .args(["-c", start, "start", env!("CARGO_BIN_EXE_rowlock")])
            .args(["run", "a", "--", "bash", "-c"])
            .arg("echo up; read line < on; echo $line; exit 5")
            .current_dir(shell.dir.path())
            .env_remove("ROWLOCK_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut line = || output.next().unwrap().unwrap();
        let pid = Pid::from_raw(line().parse().unwrap());
        wait("it is in the queue", || shell.has_waiter());
        kill(pid, signal).unwrap();
        std::fs::write(&go, "go\n").unwrap();
        assert_eq!(holder.end().0, 0);
        assert_eq!(line(), "up", "{signal}");
        kill(pid, signal).unwrap();
        std::fs::write(&on, "on\n").unwrap();
        assert_eq!(line(), "on", "{signal}");
        assert_eq!(child.wait().unwrap().code(), Some(5), "{signal}");
    }
}
