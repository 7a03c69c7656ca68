//! `rowlock run` waits, and the database is in the way.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::channel;

use rowlock_test::patience;
use sqlx::Connection;

use crate::shell::{Shell, code};

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
