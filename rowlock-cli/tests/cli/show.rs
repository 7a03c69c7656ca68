//! `rowlock ls`, `show`, `release` and `migrate`: what they print.

use nix::sys::signal::Signal;

use serde_json::{Value, json};

use crate::shell::{Shell, code, stderr, stdout, wait};

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
        wait("it waits", || waiters().as_array().unwrap().len() >= place);
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
    let shown = shell.json(&["show", "a", "--json"]);
    assert_eq!(shown["waiters"].as_array().unwrap().len(), 2);
    let shown = stdout(&shell.run(&["show", "a"]));
    assert!(
        shown.contains("WAITING FOR") && shown.contains(holders[1]),
        "{shown}"
    );
    let table = stdout(&shell.run(&["ls"]));
    assert!(table.contains("WAITING FOR"), "{table}");
    assert!(!table.contains("0ns"), "{table}");
    let places: Vec<_> = holders.iter().map(|holder| table.find(holder)).collect();
    assert!(places.is_sorted(), "{table}");
    holder.signal(Signal::SIGTERM);
    let _ = holder.end();
    for mut child in waiting {
        assert!(child.wait().unwrap().code().is_some());
    }
    assert_eq!(shell.json(&["ls", "--json"]), json!([]));
}

#[test]
fn ls_shows_a_name_once_with_all_its_holders_and_waiters() {
    let shell = Shell::new();
    let script = "echo up; sleep 60 & wait";
    let mut running: Vec<_> = (0..3)
        .map(|_| shell.start(&["b", "--shared"], script))
        .collect();
    running.push(shell.start(&["c"], script));
    let arguments = ["run", "b", "--exclusive", "--", "true"];
    let mut writer = shell.command(&arguments).spawn().unwrap();
    let of = |name: &str| -> Value {
        let list = shell.json(&["ls", "--json"]);
        let mut found = list
            .as_array()
            .unwrap()
            .iter()
            .filter(|listed| listed["name"] == name);
        let one = found.next().cloned().unwrap_or_default();
        assert!(found.next().is_none(), "{list}");
        one
    };
    let count = |listed: &Value, what: &str| listed[what].as_array().unwrap().len();
    wait("the writer is in the queue", || {
        count(&of("b"), "waiters") == 1
    });
    let listed = of("b");
    assert_eq!(
        (&listed["kind"], count(&listed, "holders")),
        (&"rw_lock".into(), 3)
    );
    for holder in listed["holders"].as_array().unwrap() {
        assert_eq!(
            (&holder["mode"], &holder["name"]),
            (&"read".into(), &Value::Null)
        );
    }
    let other = of("c");
    assert_eq!(
        (&other["kind"], count(&other, "waiters")),
        (&"lock".into(), 0)
    );
    let table = stdout(&shell.run(&["ls"]));
    assert_eq!(table.matches("WAITING FOR").count(), 1, "{table}");
    assert_eq!(
        table.matches(&*format!("[{}]", writer.id())).count(),
        1,
        "{table}"
    );

    // A waiter whose name has no live holder: it has not yet noticed.
    shell.sql(
        "INSERT INTO rowlock_lock (name, fence, waiters, next_position) VALUES (x'61', 1, 1, 2); \
         INSERT INTO rowlock_waiter (name, position, grant_id, session_id, holder, joined_at) \
         SELECT x'61', 1, x'00112233445566778899aabbccddeeff', session_id, 'orphaned', joined_at FROM rowlock_waiter",
    );
    let orphaned = of("a");
    assert_eq!(
        (&orphaned["kind"], count(&orphaned, "holders")),
        (&"lock".into(), 0)
    );
    assert_eq!(
        (
            count(&orphaned, "waiters"),
            &orphaned["waiters"][0]["holder"]
        ),
        (1, &"orphaned".into())
    );
    let names = shell.json(&["ls", "--json"]);
    let names: Vec<_> = names
        .as_array()
        .unwrap()
        .iter()
        .map(|listed| &listed["name"])
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(stdout(&shell.run(&["ls"])).contains("orphaned"));
    for running in running {
        running.signal(Signal::SIGTERM);
        running.end();
    }
    assert!(writer.wait().unwrap().success());
    let session = "INSERT INTO rowlock_session (id, holder, opened_at, expires_at) VALUES (x'01010101010101010101010101010101', 'client', 0, 9000000000000000)";
    shell.sql(&format!(
        "{session}; UPDATE rowlock_waiter SET session_id = x'01010101010101010101010101010101'"
    ));
    let only = shell.run(&["ls"]);
    assert!(
        stdout(&only).starts_with("nobody holds a lock"),
        "{}",
        stdout(&only)
    );
    assert!(stdout(&only).contains("orphaned"));
    assert_eq!(stderr(&only), "", "it has found a waiter");
}

#[test]
fn show_and_release_are_about_all_holders_of_one_name() {
    let shell = Shell::new();
    let script = "echo up; sleep 60 & wait";
    let running: Vec<_> = [
        &["s", "--permits", "1/3"][..],
        &["s", "--permits", "2/3"],
        &["t"],
    ]
    .iter()
    .map(|arguments| shell.start(arguments, script))
    .collect();
    let shown = shell.json(&["show", "s", "--json"]);
    assert_eq!(
        keys(&shown),
        ["holders", "kind", "name", "pause", "waiters"]
    );
    let holders = shown["holders"].as_array().unwrap();
    let weights: Vec<_> = holders
        .iter()
        .map(|held| (&held["weight"], &held["capacity"]))
        .collect();
    let (one, two, three) = (&json!(1), &json!(2), &json!(3));
    assert_eq!(weights, [(one, three), (two, three)]);
    let shown = stdout(&shell.run(&["show", "s"]));
    assert!(
        shown.contains("1 of 3 permits") && shown.contains("2 of 3 permits"),
        "{shown}"
    );
    assert!(
        !shown.contains(&format!("[{}]", running[2].child.id())),
        "{shown}"
    );
    let freed = stdout(&shell.run(&["release", "s", "--force"]));
    assert_eq!(freed.lines().count(), 2, "{freed}");
    for running in &running[..2] {
        assert_eq!(
            freed.matches(&*format!("[{}]", running.child.id())).count(),
            1,
            "{freed}"
        );
    }
    assert_eq!(shell.free("s"), "nobody holds \"s\"\n");
    let lock = shell.json(&["show", "t", "--json"]);
    assert_eq!(
        (&lock["kind"], &lock["holders"][0]["mode"]),
        (&json!("lock"), &json!("lock"))
    );
    for running in running {
        running.signal(Signal::SIGTERM);
        running.end();
    }
}

fn keys(object: &Value) -> Vec<&str> {
    object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn ls_and_show_print_tables_and_json() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    assert_eq!(stdout(&shell.run(&["ls"])).trim(), "nobody holds a lock");
    assert_eq!(shell.free("a"), "nobody holds \"a\"\n");
    let holder = shell.start(
        &["a", "--ttl", "5s"],
        "echo $ROWLOCK_FENCE; sleep 60 & wait",
    );
    let list = shell.json(&["ls", "--json"]);
    assert_eq!(
        keys(&list[0]),
        ["holders", "kind", "name", "pause", "waiters"]
    );
    assert_eq!(
        (&list[0]["name"], &list[0]["kind"]),
        (&"a".into(), &"lock".into())
    );
    assert_eq!(list[0]["waiters"], json!([]));
    let lock = &list[0]["holders"][0];
    let of_holder = [
        "acquired_at",
        "capacity",
        "expires_at",
        "fence",
        "grant_id",
        "holder",
        "mode",
        "session",
        "weight",
    ];
    assert_eq!(keys(lock), of_holder);
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
    assert_eq!(shown["name"], "a");
    let held = &shown["holders"][0];
    assert_eq!(
        (&held["fence"], &held["grant_id"]),
        (&lock["fence"], &lock["grant_id"])
    );
    for table in [shell.run(&["ls"]), shell.run(&["show", "a"])] {
        assert!(stdout(&table).contains("HOLDER") && stdout(&table).contains(&holder.first));
    }
    assert_eq!(shell.free("b"), "nobody holds \"b\"\n");
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
    assert!(stdout(&shell.run(&["migrate"])).contains("applied V1__database"));
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
        let rest = stdout(&shell.run(&["migrate", "--print", engine, "--from", "1"]));
        assert!(!rest.contains("rowlock_database ("), "{engine}: {rest}");
        assert!(rest.contains("rowlock_lock ("), "{engine}: {rest}");
    }
    let sql = stdout(&shell.run(&["migrate", "--print", "sqlite"]));
    assert!(sql.starts_with("PRAGMA journal_mode = WAL;\n"), "{sql}");
    let in_schema = |engine, schema| shell.run(&["migrate", "--print", engine, "--schema", schema]);
    let sql = stdout(&in_schema("postgres", "locks"));
    assert!(sql.starts_with("SET search_path TO \"locks\";\n"), "{sql}");
    for (engine, schema) in [
        ("postgres", "a\"b"),
        ("mysql", "locks"),
        ("sqlite", "locks"),
    ] {
        let refused = in_schema(engine, schema);
        assert_eq!(code(&refused), 64, "{}", stdout(&refused));
        assert!(stderr(&refused).contains("--schema is refused"));
    }
    let alone = shell.run(&["migrate", "--from", "1"]);
    assert_eq!(code(&alone), 64, "{}", stderr(&alone));
}

#[test]
fn ls_lists_a_part_of_the_names() {
    let shell = Shell::new();
    let script = "echo up; sleep 60 & wait";
    let running: Vec<_> = ["stock:1", "stock:2", "stocks"]
        .iter()
        .map(|name| shell.start(&[name], script))
        .collect();
    let mut waiter = shell
        .command(&["run", "stock:2", "--", "true"])
        .spawn()
        .unwrap();
    let names = |arguments: &[&str]| -> Vec<String> {
        let list = shell.json(&[&["ls", "--json"], arguments].concat());
        let names = list.as_array().unwrap().iter();
        names
            .map(|listed| listed["name"].as_str().unwrap().to_owned())
            .collect()
    };
    wait("it waits", || names(&["--waiting"]) == ["stock:2"]);
    assert_eq!(names(&[]), ["stock:1", "stock:2", "stocks"]);
    assert_eq!(names(&["stock:*"]), ["stock:1", "stock:2"]);
    assert_eq!(names(&["stock:*", "--held"]), ["stock:1", "stock:2"]);
    assert_eq!(names(&["stock*", "--waiting"]), ["stock:2"]);
    assert_eq!(names(&["stock"]), Vec::<String>::new());
    assert_eq!(names(&["stocks"]), ["stocks"]);
    let refused = shell.run(&["ls", "s*k"]);
    assert_eq!(code(&refused), 64);
    assert!(
        stderr(&refused).contains("'stock:*'"),
        "{}",
        stderr(&refused)
    );
    for holder in running {
        holder.signal(Signal::SIGTERM);
        let _ = holder.end();
    }
    waiter.wait().unwrap();
}

#[test]
fn check_says_whether_a_program_could_use_the_database() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["check"])), 69, "there is no file");
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let checked = shell.run(&["check"]);
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
    let said = stdout(&checked);
    for line in [
        "server",
        "tables",
        "rights",
        "round trip",
        "clock",
        "durability",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(
        shell.json(&["ls", "--json"]),
        json!([]),
        "nothing is left behind"
    );
    assert_eq!(code(&shell.run(&["quarantine", "--for", "1h"])), 0);
    let checked = shell.run(&["check"]);
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
    let said = stdout(&checked);
    assert!(!said.contains("was taken"), "{said}");
    let not_tried = "not tried: the database is in quarantine";
    assert_eq!(said.matches(not_tried).count(), 2, "{said}");
    shell.sql("ALTER TABLE rowlock_run RENAME TO gone");
    assert_eq!(code(&shell.run(&["check"])), 78);
}
