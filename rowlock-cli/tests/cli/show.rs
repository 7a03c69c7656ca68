//! `rowlock ls`, `show`, `release` and `migrate`: what they print.

use nix::sys::signal::Signal;

use crate::shell::{Shell, code, stdout};

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
            "name",
            "session"
        ]
    );
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
