//! `rowlock sessions`, and the session of a lock in `rowlock ls`.

use rowlock::Rowlock;

use crate::shell::{Shell, code, stdout};

#[test]
fn sessions_and_their_locks_are_listed() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let none = shell.run(&["sessions"]);
    assert_eq!(
        (code(&none), &*stdout(&none)),
        (0, "no client has a session\n")
    );
    assert_eq!(
        shell
            .json(&["sessions", "--json"])
            .as_array()
            .unwrap()
            .len(),
        0
    );

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = format!("sqlite:{}", shell.dir.path().join("rowlock.db").display());
    let rowlock = Rowlock::builder().holder("shard owner").connect(&url);
    let rowlock = runtime.block_on(rowlock).unwrap();
    let held: Vec<_> = ["a", "b"]
        .map(|name| {
            runtime
                .block_on(rowlock.lock(name).in_session().acquire())
                .unwrap()
        })
        .into();
    let lease = runtime.block_on(rowlock.lock("c").acquire()).unwrap();

    let sessions = shell.json(&["sessions", "--json"]);
    let session = &sessions[0];
    assert_eq!(sessions.as_array().unwrap().len(), 1);
    assert_eq!(
        (&session["holder"], &session["locks"]),
        (&"shard owner".into(), &2.into())
    );
    for time in ["opened_at", "expires_at"] {
        let text = session[time].as_str().unwrap();
        assert!(chrono::DateTime::parse_from_rfc3339(text).is_ok(), "{text}");
    }
    let id = session["id"].as_str().unwrap();
    let table = stdout(&shell.run(&["sessions"]));
    assert!(table.contains("LOCKS") && table.contains(id), "{table}");

    let locks = shell.json(&["ls", "--json"]);
    let of = |lock: usize| &locks[lock]["holders"][0]["session"];
    assert_eq!([of(0), of(1)], [id, id]);
    assert!(of(2).is_null());
    let table = stdout(&shell.run(&["ls"]));
    assert_eq!(table.matches(id).count(), 2, "{table}");
    assert!(
        !table.contains("3026-"),
        "a lock ends with its session: {table}"
    );

    let of_nobody = stdout(&shell.run(&["sessions", "--holder", "nobody"]));
    assert!(
        of_nobody.starts_with("no session has a holder with \"nobody\" in it"),
        "{of_nobody}"
    );

    assert_eq!(runtime.block_on(rowlock.end_session()).unwrap(), 2);
    assert_eq!(
        stdout(&shell.run(&["sessions"])),
        "no client has a session\n"
    );
    drop((held, lease));
}
