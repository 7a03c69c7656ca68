//! What an operator does after a crash loop: looks at the records, and lets the poisoned ones run again.

use rowlock::{Begun, Fingerprint, Rowlock, Scope};

use crate::idempotency::copied;
use crate::shell::{Shell, code, stderr, stdout};

/// Poisons these keys of two scopes, as a process does that crashes while it works on them.
async fn poison(shell: &Shell, records: &[(&[u8], &[u8])]) {
    let url = format!("sqlite:{}", shell.dir.path().join("rowlock.db").display());
    let rowlock = Rowlock::connect(&url).await.unwrap();
    let idempotency = rowlock.idempotency().max_attempts(1);
    let request = Fingerprint::of("request");
    for (scope, key) in records {
        let begun = idempotency
            .begin(Scope(scope).key(key), &request)
            .await
            .unwrap();
        assert!(matches!(begun, Begun::New(_)), "{begun:?}");
    }
    rowlock.flush().await;
}

fn poisoned(shell: &Shell) -> usize {
    let all = shell.json(&["idempotency", "ls", "--state", "poisoned", "--json"]);
    all.as_array().unwrap().len()
}

#[tokio::test]
async fn poisoned_records_are_reset_all_at_once_of_one_scope_or_since_a_time() {
    let shell = Shell::new();
    let keys: [&[u8]; 3] = [b"a", b"b", b"\xff"];
    let all: Vec<_> = [&b"alice"[..], b"bob"]
        .into_iter()
        .flat_map(|scope| keys.map(|key| (scope, key)))
        .collect();
    poison(&shell, &all).await;
    assert_eq!(poisoned(&shell), 6);
    let reset = ["idempotency", "reset", "--state", "poisoned"];
    let some = |more: &[&str]| shell.run(&[&reset[..], more].concat());
    for (more, left, says) in [
        (
            &["--since", "2999-01-01T00:00:00Z"][..],
            6,
            "no such records",
        ),
        (&["--scope", "carol"], 6, "no such records"),
        (
            &["--scope", "alice", "--since", "2000-01-01 00:00:00 UTC"],
            3,
            "reset 3 records",
        ),
        (&["--hex", "--scope", "616c696365"], 3, "no such records"),
        (
            &["--since", "2000-01-01T00:00:00+02:00"],
            0,
            "reset 3 records",
        ),
        (&[], 0, "no such records"),
    ] {
        let output = some(more);
        assert_eq!(code(&output), 0, "{more:?}: {}", stderr(&output));
        assert!(
            stdout(&output).contains(says),
            "{more:?}: {}",
            stdout(&output)
        );
        assert_eq!(poisoned(&shell), left, "{more:?}");
    }
    for wrong in [
        &["idempotency", "reset"][..],
        &["idempotency", "reset", "alice"],
        &["idempotency", "reset", "alice", "a", "--state", "poisoned"],
        &[
            "idempotency",
            "reset",
            "alice",
            "a",
            "--since",
            "2000-01-01T00:00:00Z",
        ],
        &["idempotency", "reset", "--scope", "alice"],
        &["idempotency", "reset", "--state", "done"],
        &[
            "idempotency",
            "reset",
            "--state",
            "poisoned",
            "--since",
            "yesterday",
        ],
    ] {
        let output = shell.run(wrong);
        assert_eq!(code(&output), 64, "{wrong:?}: {}", stderr(&output));
    }
}

#[tokio::test]
async fn what_is_listed_can_be_pasted_into_show() {
    let shell = Shell::new();
    let keys: [&[u8]; 9] = [
        b"plain",
        b"two words ",
        b"it's \"$HOME\"",
        b"`id`; rm *",
        b"-x",
        b"--hex",
        "\u{e9}\u{202e}".as_bytes(),
        b"line\nline",
        b"\xff\x00",
    ];
    poison(&shell, &keys.map(|key| (&b"al ice"[..], key))).await;
    let listed = stdout(&shell.run(&["idempotency", "ls"]));
    let mut lines = listed.lines();
    let before = lines.next().unwrap().find("STATE").unwrap();
    let mut seen = 0;
    for line in lines {
        let pasted: String = line.chars().take(before).collect();
        let shown = copied(&shell, &format!("rowlock idempotency show {pasted} --json"));
        assert_eq!(code(&shown), 0, "{pasted}: {}", stderr(&shown));
        seen += 1;
    }
    assert_eq!(seen, keys.len(), "{listed}");
}

#[test]
fn ls_and_show_leave_out_no_holder_and_no_waiter() {
    let shell = Shell::new();
    assert_eq!(
        code(&shell.run(&["run", "s", "--permits", "1/200", "--", "true"])),
        0
    );
    shell.sql(
        "INSERT INTO rowlock_session (id, holder, opened_at, expires_at)
         VALUES (x'01010101010101010101010101010101', 'client', 0, 9000000000000000);
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 150)
         INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, capacity, weight)
         SELECT CAST(x'7300' || printf('%032x', n) AS BLOB), randomblob(16), n, 'holder', 0, 9000000000000000, capacity, 1
         FROM n, rowlock_lock WHERE name = x'73';
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1001)
         INSERT INTO rowlock_waiter (name, position, grant_id, session_id, holder, joined_at)
         SELECT x'73', n, randomblob(16), id, 'waiter', 0 FROM n, rowlock_session;
         UPDATE rowlock_lock SET waiters = 1001, next_position = 1002 WHERE name = x'73'",
    );
    let all = shell.json(&["ls", "--json"]);
    let count = |what: &str| all[0][what].as_array().unwrap().len();
    assert_eq!((count("holders"), count("waiters")), (150, 1_001));
    let same = |other: &serde_json::Value| {
        other["holders"] == all[0]["holders"] && other["waiters"].as_array().unwrap().len() == 1_001
    };
    assert!(same(&shell.json(&["show", "s", "--json"])));
    assert!(same(&shell.json(&["ls", "s", "--json"])[0]));
}
