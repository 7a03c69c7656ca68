//! The round trips that docs/BENCHMARKS.md promises: an operation that takes another one has changed.
#![allow(missing_docs, reason = "tests are named, not documented")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// What is sent on PostgreSQL, MariaDB and MySQL, by operation: the columns of a table of the benchmark.
fn sent(text: &str) -> BTreeMap<String, Vec<String>> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let rows = rows.map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect());
    let rows = rows.filter(|cells: &Vec<String>| cells.len() == 9);
    let sent = rows.map(|cells| {
        let sent = [2, 4, 6].map(|column| cells[column].clone());
        (cells[1].clone(), sent.to_vec())
    });
    sent.collect()
}

#[test]
fn each_operation_takes_as_many_round_trips_as_documented() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/BENCHMARKS.md");
    let page = std::fs::read_to_string(page).unwrap();
    let documented = page.split_once("**Round trips.**").unwrap().1;
    let documented = sent(documented.split_once("«Own transaction»").unwrap().0);

    let mut counts = Command::new(env!("CARGO_BIN_EXE_round_trips"));
    counts.args(["--short", "--rounds", "5", "--round-trip", "1"]);
    let output = counts.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    let counted = sent(&said);
    assert!(counted.len() > 20, "{said}");
    for (operation, counts) in &counted {
        let documented = documented.get(operation);
        assert_eq!(documented, Some(counts), "{operation}: {said}");
    }
}
