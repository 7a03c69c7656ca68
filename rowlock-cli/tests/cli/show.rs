//! `rowlock ls`, `show`, `release` and `migrate`: what they print.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::shell::{Shell, code, stdout};

#[test]
fn ls_shows_who_waits_in_their_order() {
    let shell = Shell::new();
    let script = "echo $ROWLOCK_FENCE; read";
    let holder = shell.start(&["a"], "echo $ROWLOCK_FENCE; sleep 60 & wait");
    let mut waiting = Vec::new();
    for place in 1..=2 {
        let arguments = ["run", "a", "--", "bash", "-c", script];
        waiting.push(shell.command(&arguments).spawn().unwrap());
        let waiters = || shell.json(&["ls", "--json"])[0]["waiters"].clone();
        let until = Instant::now() + Duration::from_mins(1);
        while waiters().as_array().unwrap().len() < place {
            assert!(Instant::now() < until, "it does not wait");
        }
    }
    let list = shell.json(&["ls", "--json"]);
    let holders: Vec<&str> = list[0]["waiters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|waiter| waiter["holder"].as_str().unwrap())
        .collect();
    for (child, holder) in waiting.iter().zip(&holders) {
        assert!(holder.contains(&format!("[{}]", child.id())), "{holders:?}");
    }
    let table = stdout(&shell.run(&["ls"]));
    assert!(table.contains("WAITING FOR"), "{table}");
    let places: Vec<_> = holders.iter().map(|holder| table.find(holder)).collect();
    assert!(places.is_sorted(), "{table}");
    holder.signal(Signal::SIGTERM);
    let _ = holder.end();
    for mut child in waiting {
        assert!(child.wait().unwrap().code().is_some());
    }
    assert_eq!(shell.json(&["ls", "--json"]), serde_json::json!([]));
}

#[test]
fn ls_and_show_print_tables_and_json() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    assert_eq!(stdout(&shell.run(&["ls"])).trim(), "nobody holds a lock");
    assert_eq!(shell.absent(&["show", "a"]), "nobody holds \"a\"\n");
    let holder = shell.start(
        &["a", "--ttl", "5s"],
        "echo $ROWLOCK_FENCE; sleep 60 & wait",
    );
    let list = shell.json(&["ls", "--json"]);
    let lock = &list[0];
    let keys: Vec<&str> = lock
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "acquired_at",
            "expires_at",
            "fence",
            "grant_id",
            "holder",
            "mode",
            "name",
            "session",
            "waiters",
            "weight"
        ]
    );
    assert_eq!(lock["waiters"], serde_json::json!([]));
    assert_eq!(lock["name"], "a");
    assert_eq!(lock["fence"].to_string(), holder.first);
    assert!(lock["holder"].as_str().unwrap().starts_with("rowlock["));
    for time in ["acquired_at", "expires_at"] {
        let text = lock[time].as_str().unwrap();
        let parsed = chrono::DateTime::parse_from_rfc3339(text).unwrap();
        assert!(
            text.ends_with('Z') && parsed.timestamp() > 1_700_000_000,
            "{text}"
        );
    }
    // A renewal may have come in between; everything else is the same.
    let shown = shell.json(&["show", "a", "--json"]);
    assert_eq!(
        (&shown["fence"], &shown["grant_id"]),
        (&lock["fence"], &lock["grant_id"])
    );
    for table in [shell.run(&["ls"]), shell.run(&["show", "a"])] {
        assert!(stdout(&table).contains("HOLDER") && stdout(&table).contains(&holder.first));
    }
    assert_eq!(shell.absent(&["show", "b"]), "nobody holds \"b\"\n");
    assert_eq!(
        stdout(&shell.run(&["release", "b", "--force"])).trim(),
        "nobody held \"b\""
    );
    holder.signal(Signal::SIGTERM);
    holder.end();
}

#[test]
fn migrate_says_what_it_did_and_prints_sql_for_every_engine() {
    let shell = Shell::new();
    assert!(stdout(&shell.run(&["migrate"])).contains("applied V1__lock"));
    assert!(stdout(&shell.run(&["migrate"])).contains("up to date"));
    for engine in ["postgres", "mysql", "mariadb", "sqlite"] {
        let sql = stdout(&shell.run(&["migrate", "--print", engine]));
        assert!(
            sql.contains("CREATE TABLE IF NOT EXISTS rowlock_lock"),
            "{engine}: {sql}"
        );
        assert!(
            sql.contains("INSERT INTO rowlock_schema_history"),
            "{engine}"
        );
    }
}
