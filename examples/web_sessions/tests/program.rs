//! The example, as its user starts it.
#![allow(missing_docs, reason = "tests are named, not documented")]

use std::process::{Command, Output};

use serde_json::Value;

fn run(dir: &tempfile::TempDir, arguments: &str) -> Output {
    let exported = format!("sqlite:{}", dir.path().join("exported.db").display());
    Command::new(env!("CARGO_BIN_EXE_web_sessions"))
        .args(arguments.split_whitespace())
        .current_dir(dir.path())
        .env("ROWLOCK_URL", exported)
        .output()
        .unwrap()
}

/// The runs, from the program's JSON. The program must end with success.
fn runs(arguments: &str) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&dir, &format!("{arguments} --json"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["engine"], "sqlite");
    report["runs"].as_array().unwrap().clone()
}

/// Requests, acknowledged items, lost items, requests without an acknowledgement.
fn counts(run: &Value) -> [u64; 4] {
    ["requests", "added", "lost", "failed"].map(|name| run[name].as_u64().unwrap())
}

#[test]
fn without_a_lock_two_requests_that_have_loaded_the_same_session_lose_an_item() {
    let runs = runs("--modes none --meet --think-ms 0 --users 2 --items 5");
    // Of the two items of each round one is lost, for both users.
    assert_eq!(counts(&runs[0]), [20, 20, 10, 0]);
}

#[test]
fn with_a_lock_no_item_is_lost() {
    let runs = runs("--modes lease,pinned --meet --users 2 --tabs 3 --items 5");
    for run in &runs {
        assert_eq!(counts(run), [30, 30, 0, 0], "{run}");
    }
    assert_eq!(runs.len(), 2);
}

/// No request waits longer than the TTL and a second, so the session goes on within that time, or a request is
/// refused.
#[test]
fn a_killed_server_loses_no_acknowledged_item_and_the_session_goes_on_through_the_other() {
    let runs = runs("--modes lease,pinned --kill --users 1 --items 6 --ttl-ms 1500 --wait-ms 2500");
    for run in &runs {
        let [requests, added, lost, failed] = counts(run);
        assert_eq!((requests, lost), (12, 0), "{run}");
        // One request is killed in its handler. The next one of the same tab may reach the server before its port is
        // closed.
        assert!(failed == 1 || failed == 2, "{run}");
        assert_eq!(added, 12 - failed, "{run}");
    }
    assert_eq!(runs.len(), 2);
}

#[test]
fn it_prints_the_database_that_it_uses_and_leaves_others_alone() {
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("named.db");
    let url = format!("sqlite:{}", named.display());
    let output = run(
        &dir,
        &format!("--url {url} --users 1 --items 1 --modes lease"),
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.lines().next().unwrap().contains(&url), "{said}");
    assert!(named.exists());
    assert!(!dir.path().join("exported.db").exists());
}
