//! The race's short mode, on all servers: every contender finishes every workload that it runs.
#![allow(missing_docs, reason = "tests are named, not documented")]

use std::path::Path;
use std::process::{Command, Output};

fn race(arguments: &[&str], out: &Path) -> Output {
    let mut race = Command::new(env!("CARGO_BIN_EXE_race"));
    race.arg("--short").args(arguments).arg("--out").arg(out);
    race.output().unwrap()
}

#[test]
fn every_contender_finishes_the_short_race() {
    let dir = tempfile::tempdir().unwrap();
    let output = race(&[], dir.path());
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{said}\n{errors}");

    let lines = std::fs::read_to_string(dir.path().join("race.csv")).unwrap();
    let has = |workload: &str, contender: &str| {
        let is_it = |line: &&str| {
            line.starts_with(&format!("{workload},")) && line.contains(&format!(",{contender},"))
        };
        lines.lines().any(|line| is_it(&line))
    };
    let with_rows = [
        "rowlock-postgres",
        "rowlock-mariadb",
        "rowlock-mysql",
        "rowlock-sqlite",
        "bare-postgres",
    ];
    let others = [
        "advisory",
        "redis",
        "redis-always",
        "rslock",
        "rslock-always",
        "etcd",
        "zookeeper",
    ];
    for contender in with_rows.iter().chain(&others) {
        for workload in ["spread", "hot", "mixed"] {
            assert!(has(workload, contender), "{workload} {contender}: {lines}");
        }
    }
    for contender in with_rows {
        assert!(has("growth", contender), "{contender}: {lines}");
    }
    for contender in ["rowlock-postgres", "rowlock-linger", "redis"] {
        assert!(has("own", contender), "{contender}: {lines}");
    }
    assert!(has("snapshot", "rowlock-postgres"), "{lines}");
    // One round, and no failure: every task has had its names.
    for line in lines.lines().skip(1) {
        assert!(line.contains(",1,0,"), "{line}");
    }
    for plot in [
        "throughput-spread-1p",
        "throughput-growth-1p",
        "latency-hot-1n-8t-2p",
        "snapshot-8t-1p",
    ] {
        let svg = std::fs::read_to_string(dir.path().join(plot).with_extension("svg")).unwrap();
        assert!(svg.contains("rowlock-postgres"), "{plot}");
    }
}

/// The contender `broken` grants every name to everyone.
#[test]
fn the_race_finds_a_contender_that_does_not_exclude() {
    let dir = tempfile::tempdir().unwrap();
    for (processes, tasks) in [("1", "8"), ("2", "2")] {
        let mut race = Command::new(env!("CARGO_BIN_EXE_race"));
        race.args([
            "--contenders",
            "broken",
            "--workloads",
            "hot",
            "--rounds",
            "1",
        ]);
        race.args([
            "--seconds",
            "0.5",
            "--processes",
            processes,
            "--tasks",
            tasks,
        ]);
        let output = race.arg("--out").arg(dir.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{errors}");
        assert!(errors.contains("VIOLATION"), "{errors}");
    }
}
