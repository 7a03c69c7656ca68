//! `rowlock run` waits, and the database is in the way.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rowlock_test::patience;
use sqlx::Connection;

use crate::shell::{Shell, code, stderr, wait};

#[test]
fn a_wait_for_a_file_that_another_program_keeps_is_told_once() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let url = format!("sqlite:{}", shell.dir.path().join("rowlock.db").display());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut other = runtime
        .block_on(sqlx::SqliteConnection::connect(&url))
        .unwrap();
    let mut execute = |sql| {
        runtime
            .block_on(sqlx::raw_sql(sql).execute(&mut other))
            .unwrap();
    };
    execute("BEGIN IMMEDIATE");
    let waits = [
        &["a"][..],
        &["b"],
        &["c", "--shared"],
        &["d", "--permits", "1/2"],
        &["e", "--wait", "1h"],
    ];
    let (told, lines) = channel();
    let waits = waits.map(|wait| {
        let mut run = shell.command(&[&["run"], wait, &["--", "true"]].concat());
        // Whatever else is asked for: a job that waits must not be mute.
        match wait[0] {
            "a" => run.env("ROWLOCK_LOG", ""),
            "b" => run.env("ROWLOCK_LOG", "warn"),
            "c" => run.env("ROWLOCK_LOG", "verbose"),
            _ => &mut run,
        };
        let mut child = run.stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        let told = told.clone();
        let reader = std::thread::spawn(move || {
            let tell = |line: &String| {
                let _ = told.send((wait[0], line.clone()));
            };
            said.map(Result::unwrap).inspect(tell).count()
        });
        (child, reader)
    });
    let mut first: Vec<_> = (0..waits.len())
        .map(|_| lines.recv_timeout(patience()).expect("it is told"))
        .collect();
    first.sort();
    for ((name, line), expected) in first.iter().zip(["a", "b", "c", "d", "e"]) {
        assert_eq!(*name, expected, "each once: {first:?}");
        assert!(
            line.contains(&format!("still waits for \"{name}\"")),
            "{line}"
        );
        assert!(line.contains("rowlock.db"), "{line}");
    }
    execute("COMMIT");
    for (mut child, reader) in waits {
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(reader.join().unwrap() <= 2, "once, and its end");
    }
}

/// Runs the command on a terminal of its own, as script(1) makes one.
fn on_a_terminal(shell: &Shell, arguments: &str) -> std::process::Child {
    let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_rowlock"));
    Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .current_dir(shell.dir.path())
        .env_remove("ROWLOCK_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_wait_on_a_terminal_tells_who_has_the_lock_and_which_place_is_ours() {
    let shell = Shell::new();
    let holder = shell.start(&["a"], "echo up; sleep 60 & wait");
    let mut first = shell.command(&["run", "a", "--", "true"]);
    let mut first = first.stderr(Stdio::piped()).spawn().unwrap();
    let waits = || shell.json(&["ls", "--json"])[0]["waiters"][0].is_object();
    wait("the first one is in the queue", waits);
    let mut second = on_a_terminal(&shell, "run a -- true");
    let mut lines = BufReader::new(second.stdout.take().unwrap()).lines();
    let told = lines.next().expect("a line").unwrap();
    assert!(told.contains("waits for \"a\": held by rowlock["), "{told}");
    assert!(told.contains("; 1 before this process"), "{told}");
    kill(
        Pid::from_raw(i32::try_from(first.id()).unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    let said = lines.next().expect("a line").unwrap();
    assert!(said.contains("this process is next"), "{said}");
    holder.signal(Signal::SIGTERM);
    let _ = holder.end();
    assert!(second.wait().unwrap().success());
    let mut piped = String::new();
    first
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut piped)
        .unwrap();
    assert_eq!(piped, "", "nothing in a pipe");
    first.wait().unwrap();
}

#[test]
fn a_run_inside_a_run_of_the_same_name_is_told() {
    let shell = Shell::new();
    // It has no terminal, as under cron.
    let inner = format!(
        "{} run a --wait 20s -- true 2>&1",
        env!("CARGO_BIN_EXE_rowlock")
    );
    let mut outer = shell.start(&["a"], &inner);
    let said = "waits for \"a\", which the `rowlock run` that started this one holds";
    assert!(outer.first.contains(said), "{}", outer.first);
    outer.signal(Signal::SIGTERM);
    outer.child.wait().unwrap();
    // Another holder has it: nothing is told.
    let held = shell.start(&["b"], "echo up; sleep 60 & wait");
    for fence in ["0", "x"] {
        let mut other = shell.command(&["run", "b", "--wait", "2s", "--", "true"]);
        let other = other.env("ROWLOCK_NAME", "b").env("ROWLOCK_FENCE", fence);
        let waited = other.output().unwrap();
        assert_eq!(code(&waited), 75);
        assert!(
            !stderr(&waited).contains("that started"),
            "{}",
            stderr(&waited)
        );
    }
    held.signal(Signal::SIGTERM);
    let _ = held.end();
    // Of a semaphore, the other holder's permit may become free.
    let other = shell.start(&["c", "--permits", "1/2"], "echo up; sleep 60 & wait");
    let inner = format!(
        "{} run c --permits 1/2 --wait 2s -- true 2>&1",
        env!("CARGO_BIN_EXE_rowlock")
    );
    let mut outer = shell.start(&["c", "--permits", "1/2"], &inner);
    assert!(
        outer.first.contains("was not free within 2s"),
        "{}",
        outer.first
    );
    outer.child.wait().unwrap();
    other.signal(Signal::SIGTERM);
    let _ = other.end();
    // If the outer one leaves too few, the others' do not help.
    for permits in ["1/1", "2/3"] {
        let name = format!("d{permits}");
        let inner = format!(
            "{} run {name} --permits {permits} --wait 20s -- true 2>&1",
            env!("CARGO_BIN_EXE_rowlock")
        );
        let mut outer = shell.start(&[&name, "--permits", permits], &inner);
        let said = format!("waits for {name:?}, which the `rowlock run` that");
        assert!(outer.first.contains(&said), "{}", outer.first);
        outer.signal(Signal::SIGTERM);
        outer.child.wait().unwrap();
    }
}

#[test]
fn a_watched_list_is_drawn_again() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let refused = shell.run(&["ls", "--watch"]);
    assert_eq!(code(&refused), 64, "{}", stderr(&refused));
    let mut watch = on_a_terminal(&shell, "ls --watch");
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let first = lines.next().expect("a line").unwrap();
    assert!(first.contains("nobody holds a lock"), "{first}");
    let holder = shell.start(&["seen"], "echo up; sleep 60 & wait");
    assert!(lines.any(|line| line.unwrap().contains("seen")));
    let pid = Pid::from_raw(i32::try_from(watch.id()).unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    watch.wait().unwrap();
    holder.signal(Signal::SIGTERM);
    let _ = holder.end();
}
