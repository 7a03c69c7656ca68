//! How records are listed and shown.

use rowlock::{Outcome, Scope};

use crate::idempotency::{fill, new, request};
use crate::shell::{Shell, code, stdout};

#[tokio::test]
async fn a_list_for_a_program_is_whole_and_one_for_people_says_that_it_is_cut() {
    let shell = Shell::new();
    let rowlock = fill(&shell).await;
    for number in 0..101 {
        let key = format!("many {number}");
        let guard = new(&rowlock.idempotency(), key.as_bytes()).await;
        guard.release().await.unwrap();
    }
    let free = ["idempotency", "ls", "--state", "free"];
    let all = shell.json(&[&free[..], &["--json"]].concat());
    assert_eq!(all.as_array().unwrap().len(), 102);
    let two = shell.json(&[&free[..], &["--json", "--limit", "2"]].concat());
    assert_eq!(two.as_array().unwrap().len(), 2);
    let table = stdout(&shell.run(&free));
    assert!(table.contains("these are the first 100"), "{table}");
}

/// Two keys must not look alike, and a scope that is listed can be asked for.
#[tokio::test]
async fn what_is_listed_can_be_typed() {
    let shell = Shell::new();
    let rowlock = fill(&shell).await;
    let idempotency = rowlock.idempotency();
    let odd: [(&[u8], &str); 4] = [
        (b"-dash", "in\u{200b}visible"),
        (b"\xff", "\u{61c}k"),
        (b"bob", "e\u{301}"),
        (b"bob", "\u{e9}"),
    ];
    for (scope, key) in odd {
        let begun = idempotency.begin(Scope(scope).key(key), &request()).await;
        drop(begun.unwrap());
    }
    let ls = ["idempotency", "ls"];
    let list = stdout(&shell.run(&ls));
    for shown in [
        "--hex 2d64617368",
        "--hex ff",
        "--hex 626f62",
        "bob",
        "\u{e9}",
    ] {
        assert!(list.contains(shown), "{shown} in {list}");
    }
    assert!(list.chars().all(|c| c == '\n' || is_told(c)), "{list:?}");
    for (scope, number) in [
        (&["--scope", "-dash"][..], 1),
        (&["--scope", "ff", "--hex"], 1),
        (&["--scope", "bob"], 2),
    ] {
        let found = shell.json(&[&ls[..], scope, &["--json"]].concat());
        assert_eq!(found.as_array().unwrap().len(), number, "{scope:?}");
    }
    let wrong = shell.run(&[&ls[..], &["--scope", "f", "--hex"]].concat());
    assert_eq!(code(&wrong), 64);
}

fn is_told(c: char) -> bool {
    !"\u{200b}\u{61c}\u{301}".contains(c)
}

#[tokio::test]
async fn a_long_outcome_is_cut_between_two_letters() {
    let shell = Shell::new();
    let rowlock = fill(&shell).await;
    let long = format!("a{}", "é".repeat(3_000));
    let guard = new(&rowlock.idempotency(), b"long").await;
    let outcome = Outcome::new("text/plain", long.into_bytes()).unwrap();
    guard.complete(&outcome).await.unwrap();
    let text = stdout(&shell.run(&["idempotency", "show", "alice", "long"]));
    let cut = format!("a{}… (1906 bytes more)", "é".repeat(2_047));
    assert!(text.contains(&cut), "{text}");
}

#[tokio::test]
async fn a_printed_command_goes_to_the_same_database() {
    let shell = Shell::new();
    drop(fill(&shell).await);
    let named = "sqlite:./rowlock.db";
    let show = ["idempotency", "show", "alice", "poisoned"];
    let given = stdout(&shell.run(&[&show[..], &["--url", named]].concat()));
    let command = format!("rowlock idempotency reset --url {named} alice poisoned");
    assert!(given.contains(&command), "{given}");
    let set = shell.command(&show).env("ROWLOCK_URL", named).output();
    let set = stdout(&set.unwrap());
    assert!(set.contains("reset alice poisoned"), "{set}");
    // Without `--url`, the command would go to the database of the environment.
    let mut usual = shell.command(&[&show[..], &["--url", "sqlite:rowlock.db"]].concat());
    let usual = usual.env("ROWLOCK_URL", "sqlite:other.db").output();
    let usual = stdout(&usual.unwrap());
    assert!(
        usual.contains("reset --url sqlite:rowlock.db alice"),
        "{usual}"
    );
}
