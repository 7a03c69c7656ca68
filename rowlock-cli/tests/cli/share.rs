//! `rowlock run --shared`, `--exclusive` and `--permits`.

use crate::shell::{Shell, code, stderr, stdout, wait};

#[test]
fn those_who_share_run_side_by_side_and_nobody_beside_the_exclusive_one() {
    let shell = Shell::new();
    let (one, two) = (
        shell.start(
            &["a", "--shared"],
            "echo in; read line <&0; sleep 60 & wait",
        ),
        shell.start(&["a", "--shared"], "echo in; sleep 60 & wait"),
    );
    assert_eq!((&*one.first, &*two.first), ("in", "in"));
    let shown = shell.json(&["show", "a", "--json"]);
    let modes = &shown["holders"];
    assert_eq!(modes.as_array().unwrap().len(), 2);
    assert_eq!(modes[0]["mode"], "read");
    assert!(stdout(&shell.run(&["ls"])).contains("read"));
    let busy = shell.run(&["run", "a", "--exclusive", "--no-wait", "--", "true"]);
    assert_eq!(code(&busy), 75);
    assert!(
        stderr(&busy).contains(
            "\"a\" is not free: readers or a writer have it (`rowlock show NAME` lists them)\n"
        ),
        "{}",
        stderr(&busy)
    );
    for running in [one, two] {
        running.signal(nix::sys::signal::Signal::SIGTERM);
        running.end();
    }
    let alone = shell.start(
        &["a", "--exclusive"],
        "echo $ROWLOCK_FENCE; sleep 60 & wait",
    );
    assert!(alone.first.parse::<i64>().unwrap() > 0);
    let busy = shell.run(&["run", "a", "--shared", "--no-wait", "--", "true"]);
    assert_eq!(code(&busy), 75);
    alone.signal(nix::sys::signal::Signal::SIGTERM);
    alone.end();
}

#[test]
fn so_many_commands_run_as_there_are_permits() {
    let shell = Shell::new();
    let (one, two) = (
        shell.start(&["s", "--permits", "1/2"], "echo in; sleep 60 & wait"),
        shell.start(&["s", "--permits", "1/2"], "echo in; sleep 60 & wait"),
    );
    let third = ["run", "s", "--permits", "1/2", "--no-wait", "--", "true"];
    assert_eq!(code(&shell.run(&third)), 75);
    let list = shell.json(&["ls", "--json"]);
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!(list[0]["kind"], "semaphore");
    let holders = &list[0]["holders"];
    assert_eq!(holders.as_array().unwrap().len(), 2);
    assert_eq!(
        (&holders[0]["mode"], &holders[0]["weight"]),
        (&"permit".into(), &1.into())
    );
    one.signal(nix::sys::signal::Signal::SIGTERM);
    one.end();
    assert_eq!(code(&shell.run(&third)), 0);
    two.signal(nix::sys::signal::Signal::SIGTERM);
    two.end();
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let shell = Shell::new();
    for permits in ["0/2", "3/2", "2", "x/y", "-1/2"] {
        let refused = shell.run(&["run", "s", "--permits", permits, "--", "true"]);
        assert_eq!(code(&refused), 64);
        assert!(
            stderr(&refused).contains("give N/M"),
            "{}",
            stderr(&refused)
        );
    }
    let both = ["run", "s", "--shared", "--exclusive", "--", "true"];
    assert_eq!(code(&shell.run(&both)), 64);
    assert_eq!(
        code(&shell.run(&["run", "s", "--permits", "1/2", "--", "true"])),
        0
    );
    let other = shell.run(&["run", "s", "--permits", "1/3", "--", "true"]);
    let said = stderr(&other);
    assert!(
        said.contains("is a semaphore of 2, and a semaphore of 3 was asked for"),
        "{said}"
    );
    let lock = shell.run(&["run", "s", "--", "true"]);
    assert!(stderr(&lock).contains("is a semaphore of 2, and a lock was asked for"));
    assert!(said.contains("`rowlock set-capacity \"s\" 3`"), "{said}");
    assert!(stderr(&lock).contains("`rowlock forget \"s\"`"));
    assert_eq!((code(&other), code(&lock)), (64, 64));
}

#[test]
fn the_capacity_of_a_semaphore_is_changed_in_use() {
    let shell = Shell::new();
    let script = "echo in; sleep 60 & wait";
    let holds = shell.start(&["s", "--permits", "1/1"], script);
    let waits = [
        "run",
        "s",
        "--permits",
        "1/1",
        "--",
        "bash",
        "-c",
        "echo in",
    ];
    let waiting = shell
        .command(&waits)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let in_queue = || shell.json(&["ls", "--json"])[0]["waiters"][0].is_object();
    wait("it is in the queue", in_queue);
    let raised = shell.run(&["set-capacity", "s", "2"]);
    assert_eq!((code(&raised), &*stderr(&raised)), (0, ""));
    assert_eq!(
        stdout(&raised),
        "\"s\" has a capacity of 2 now; before, it was 1\n"
    );
    let waited = waiting.wait_with_output().unwrap();
    assert_eq!((code(&waited), &*stdout(&waited)), (0, "in\n"));
    let old = shell.run(&["run", "s", "--permits", "1/1", "--no-wait", "--", "true"]);
    assert_eq!(code(&old), 64, "{}", stderr(&old));
    assert_eq!(
        code(&shell.run(&["run", "s", "--permits", "1/2", "--no-wait", "--", "true"])),
        0
    );
    holds.signal(nix::sys::signal::Signal::SIGTERM);
    holds.end();
}

#[test]
fn a_new_semaphore_and_one_that_is_none() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["run", "lock", "--", "true"])), 0);
    assert_eq!(
        code(&shell.run(&["run", "rw", "--shared", "--", "true"])),
        0
    );
    let new = shell.run(&["set-capacity", "s", "2147483646"]);
    assert_eq!(code(&new), 0);
    assert_eq!(
        stdout(&new),
        "\"s\" is new, and has a capacity of 2147483646\n"
    );
    assert!(
        stderr(&new).contains("looked in sqlite:/"),
        "{}",
        stderr(&new)
    );
    for (name, kind) in [("lock", "a lock"), ("rw", "a read/write lock")] {
        let refused = shell.run(&["set-capacity", name, "2"]);
        assert_eq!((code(&refused), &*stdout(&refused)), (64, ""));
        let said = format!("{name:?} is {kind}, and a semaphore of 2 was asked for");
        assert!(stderr(&refused).contains(&said), "{}", stderr(&refused));
    }
    for capacity in ["0", "-1", "2147483647", "4294967296", "1.5", "many", ""] {
        let refused = shell.run(&["set-capacity", "s", capacity]);
        assert_eq!(code(&refused), 64, "{capacity}: {}", stderr(&refused));
    }
    for arguments in [
        &["set-capacity", "s"][..],
        &["set-capacity", "", "2"],
        &["set-capacity"],
    ] {
        assert_eq!(code(&shell.run(arguments)), 64, "{arguments:?}");
    }
    let same = shell.run(&["set-capacity", "s", "2147483646"]);
    assert!(stdout(&same).contains("before, it was 2147483646"));
}
