//! `rowlock idempotency` and `rowlock clean`.

use std::process::{Command, Output};

use rowlock::{
    Begun, Error, Fingerprint, Idempotency, IdempotencyGuard, Outcome, Rowlock, Scope, StepFailed,
    TransactionError,
};
use serde_json::json;

use crate::shell::{Shell, code, stderr, stdout};

pub(crate) fn request() -> Fingerprint {
    Fingerprint::of("request")
}

pub(crate) async fn new(idempotency: &Idempotency, key: &[u8]) -> IdempotencyGuard {
    match idempotency
        .begin(Scope("alice").key(key), &request())
        .await
        .unwrap()
    {
        Begun::New(guard) => guard,
        other => panic!("{other:?}"),
    }
}

/// Records in all the states that there are.
pub(crate) async fn fill(shell: &Shell) -> Rowlock {
    let url = format!("sqlite:{}", shell.dir.path().join("rowlock.db").display());
    let builder = Rowlock::builder().clean_every(None).holder("shop 1");
    let rowlock = builder.connect(&url).await.unwrap();
    let idempotency = rowlock.idempotency().max_attempts(1);
    let done = new(&idempotency, b"done").await;
    done.step("charge", async { Ok::<_, Error>(String::from("ch_1")) })
        .await
        .unwrap();
    done.complete(&Outcome::json(&json!({ "paid": 500 })).unwrap())
        .await
        .unwrap();
    new(&idempotency, b"free").await.release().await.unwrap();
    drop(new(&idempotency, b"poisoned").await);
    let unknown = new(&idempotency, b"unknown").await;
    let failed = unknown.step_once("letter", async {
        Err::<u32, _>(StepFailed::Unknown(Error::Transaction(
            TransactionError::NotOneRow { rows: 0 },
        )))
    });
    failed.await.unwrap_err();
    unknown.release().await.unwrap();
    new(&idempotency, b"\xff\x1b[2J")
        .await
        .complete(&Outcome::new("b", [0xff, 0x1b]).unwrap())
        .await
        .unwrap();
    rowlock.flush().await;
    rowlock
}

#[tokio::test]
async fn records_are_listed_shown_and_decided() {
    let shell = Shell::new();
    let rowlock = fill(&shell).await;
    let running = new(&rowlock.idempotency(), b"running").await;

    let all = shell.json(&["idempotency", "ls", "--json"]);
    let states: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["state"].as_str().unwrap())
        .collect();
    assert_eq!(
        states,
        ["done", "free", "poisoned", "running", "unknown", "done"]
    );
    let text = stdout(&shell.run(&["idempotency", "ls"]));
    for word in [
        "SCOPE",
        "alice",
        "poisoned",
        "1/1",
        "shop 1",
        "--hex 616c696365  ff1b5b324a",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text:?}");
    assert_eq!(
        stdout(&shell.run(&["idempotency", "ls", "--limit", "2"]))
            .matches("alice")
            .count(),
        2
    );
    let unknown = shell.json(&["idempotency", "ls", "--state", "unknown", "--json"]);
    assert_eq!(unknown[0]["open_step"], "letter");
    assert_eq!(
        stdout(&shell.run(&["idempotency", "ls", "--scope", "bob"])),
        "there are no such records\n"
    );

    let one = shell.json(&["idempotency", "show", "alice", "done", "--json"]);
    assert_eq!(
        one["outcome"],
        json!({ "content_type": "application/json", "body": r#"{"paid":500}"# })
    );
    assert_eq!(one["steps"][0]["step"], "charge");
    let text = stdout(&shell.run(&["idempotency", "show", "alice", "done"]));
    assert!(
        text.contains(r#"{"paid":500}"#) && text.contains("charge"),
        "{text}"
    );
    let text = stdout(&shell.run(&["idempotency", "show", "--hex", "616c696365", "ff1b5b324a"]));
    assert!(
        text.contains("\\xff\\x1b") && !text.contains('\u{1b}'),
        "{text:?}"
    );
    assert_eq!(
        shell.absent(&["idempotency", "show", "alice", "none"]),
        "there is no record \"none\" of \"alice\": `rowlock idempotency ls` lists all records\n"
    );

    drop(running);
}

#[tokio::test]
async fn records_are_reset_and_resolved() {
    let shell = Shell::new();
    let rowlock = fill(&shell).await;
    let running = new(&rowlock.idempotency(), b"running").await;
    let refused = shell.run(&["idempotency", "reset", "alice", "running"]);
    assert_eq!(code(&refused), 64);
    assert!(
        stderr(&refused).contains("an attempt is running"),
        "{}",
        stderr(&refused)
    );
    for (key, why) in [("done", "will not be run again"), ("unknown", "resolve")] {
        let refused = shell.run(&["idempotency", "reset", "alice", key]);
        assert_eq!(code(&refused), 64);
        assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
    }
    let done = shell.run(&["idempotency", "reset", "alice", "poisoned"]);
    assert!(
        stdout(&done).contains("the next request runs it"),
        "{}",
        stderr(&done)
    );
    drop(new(&rowlock.idempotency(), b"poisoned").await);

    let resolve = ["idempotency", "resolve", "alice"];
    let no = ["--step", "letter", "--not-happened"];
    let refused = shell.run(&[&resolve[..], &["done"], &no].concat());
    assert!(
        stderr(&refused).contains("none of its steps is unknown"),
        "{}",
        stderr(&refused)
    );
    // By now, another step may be open than the one that a person has asked about.
    let other = shell.run(
        &[
            &resolve[..],
            &["unknown", "--step=charge", "--not-happened"],
        ]
        .concat(),
    );
    assert_eq!(code(&other), 64, "{}", stderr(&other));
    assert!(
        stderr(&other).contains(r#"has the open step "letter" by now, not "charge""#),
        "{}",
        stderr(&other)
    );
    let done = shell.run(&[
        "idempotency",
        "resolve",
        "alice",
        "unknown",
        "--step",
        "letter",
        "--happened",
        "--result",
        "7",
    ]);
    assert!(
        stdout(&done).contains("goes on after the step"),
        "{}",
        stderr(&done)
    );
    let guard = new(&rowlock.idempotency(), b"unknown").await;
    let letters = guard
        .step_once("letter", async { Ok::<u32, StepFailed<Error>>(8) })
        .await;
    assert_eq!(letters.unwrap(), 7);
    drop(running);
}

/// The commands that `show` prints, as a person would copy them.
fn printed_commands(shell: &Shell, scope: &str, key: &str) -> Vec<String> {
    let text = stdout(&shell.run(&["idempotency", "show", scope, key]));
    let commands = text.lines().map(str::trim);
    let commands = commands.filter(|line| line.starts_with("rowlock idempotency "));
    commands.map(str::to_owned).collect()
}

/// Runs it in a shell.
pub(crate) fn copied(shell: &Shell, command: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_rowlock");
    let script = format!("rowlock() {{ '{program}' \"$@\"; }}; {command}");
    Command::new("bash")
        .args(["-c", &script])
        .current_dir(shell.dir.path())
        .env_remove("ROWLOCK_URL")
        .output()
        .unwrap()
}

#[tokio::test]
async fn show_tells_the_key_at_the_other_side_and_the_command_that_decides() {
    let shell = Shell::new();
    let rowlock = fill(&shell).await;
    let idempotency = rowlock.idempotency();
    for (scope, key) in [
        ("alice", "letter-1"),
        ("it's $HOME", "a \"b\" \\ c"),
        ("-a", "k"),
        ("k", "\u{1b}[2J"),
    ] {
        let begun = idempotency
            .begin(Scope(scope).key(key), &request())
            .await
            .unwrap();
        let Begun::New(guard) = begun else {
            panic!("{begun:?}")
        };
        let asked = guard.downstream_key("stamp").unwrap();
        let stamp = guard.step("stamp", async { Ok::<_, Error>(1) });
        stamp.await.unwrap();
        let letter = guard.downstream_key("letter").unwrap();
        let failed = guard.step_once("letter", async {
            Err::<u32, _>(StepFailed::Unknown(Error::Transaction(
                TransactionError::NotOneRow { rows: 0 },
            )))
        });
        failed.await.unwrap_err();
        guard.release().await.unwrap();

        let record = [scope, key].map(|bytes| {
            let hex = bytes.bytes().map(|byte| format!("{byte:02x}"));
            hex.collect::<String>()
        });
        let shown = ["idempotency", "show", "--hex", &record[0], &record[1]];
        let text = stdout(&shell.run(&shown));
        assert!(text.contains(&letter) && text.contains(&asked), "{text}");
        assert!(text.contains("one of the downstream keys above"), "{text}");
        let json = shell.json(&[&shown[..], &["--json"]].concat());
        assert_eq!(json["downstream_key"], letter.as_str());
        assert_eq!(json["steps"][0]["downstream_key"], asked.as_str());

        let commands = text.lines().map(str::trim);
        let commands: Vec<_> = commands
            .filter(|line| line.starts_with("rowlock idempotency "))
            .collect();
        assert_eq!(commands.len(), 2, "{text}");
        // As it is, it says nothing that would be kept.
        assert_eq!(code(&copied(&shell, commands[0])), 64);
        let edited = commands[0].replace("RESULT AS JSON", "7");
        let happened = copied(&shell, if key == "k" { commands[1] } else { &edited });
        assert_eq!(code(&happened), 0, "{}", stderr(&happened));
        let resolved = shell.json(&[&shown[..], &["--json"]].concat());
        assert_eq!(resolved["state"], "free");
    }
    let poisoned = printed_commands(&shell, "alice", "poisoned");
    assert_eq!(poisoned, ["rowlock idempotency reset alice poisoned"]);
    assert_eq!(code(&copied(&shell, &poisoned[0])), 0);
}

/// The shell's own statements run on a runtime of theirs.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(work)
}

#[test]
fn what_is_over_is_cleaned() {
    let shell = Shell::new();
    let rowlock = block_on(fill(&shell));
    block_on(rowlock.form_tokens().issue("alice")).unwrap();
    assert_eq!(
        stdout(&shell.run(&["clean"])),
        "removed 0 outcomes, 0 records, 0 form tokens, 0 unused lock rows, 0 expired sessions and locks of theirs\n"
    );
    shell.sql(
        "UPDATE rowlock_idempotency SET forget_at = 1, clean_at = 1 WHERE clean_at IS NOT NULL",
    );
    shell.sql("UPDATE rowlock_form_token SET expires_at = 1");
    let text = stdout(&shell.run(&["clean", "--batch", "1"]));
    assert_eq!(
        text,
        "removed 0 outcomes, 4 records, 1 form tokens, 0 unused lock rows, 0 expired sessions and locks of theirs\n"
    );
    let left = shell.json(&["idempotency", "ls", "--json"]);
    assert_eq!(left.as_array().unwrap().len(), 1, "the unknown one stays");
}

#[test]
fn wrong_usage_says_what_is_right() {
    let shell = Shell::new();
    let cases: [(&[&str], &str); 11] = [
        (
            &["idempotency", "ls", "--state", "lost"],
            "running, lapsed, poisoned, free, unknown, done and expired",
        ),
        (&["idempotency", "show", "alice"], "<KEY>"),
        (&["idempotency", "show", "", "k"], "the scope is refused"),
        (
            &["idempotency", "show", "--hex", "xyz", "00"],
            "two digits for each byte",
        ),
        (
            &["idempotency", "resolve", "a", "k", "--not-happened"],
            "--step",
        ),
        (
            &["idempotency", "resolve", "a", "k", "--step=s"],
            "--happened",
        ),
        (
            &["idempotency", "resolve", "a", "k", "--step=s", "--happened"],
            "--result",
        ),
        (
            &[
                "idempotency",
                "resolve",
                "a",
                "k",
                "--step=s",
                "--happened",
                "--result",
                "ch_1",
            ],
            "write a string with its quotes",
        ),
        (&["clean", "--batch", "0"], "0 is not in 1..=10000"),
        (&["idempotency", "ls", "--limit", "0"], "0 is not in 1.."),
        (
            &[
                "idempotency",
                "resolve",
                "a",
                "k",
                "--step=s",
                "--not-happened",
                "--result",
                "1",
            ],
            "cannot be used with",
        ),
    ];
    for (arguments, says) in cases {
        let output = shell.run(arguments);
        assert_eq!(code(&output), 64, "{arguments:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(says),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn a_record_that_was_edited_by_hand_is_65() {
    let shell = Shell::new();
    block_on(fill(&shell));
    shell
        .sql("PRAGMA ignore_check_constraints = ON; UPDATE rowlock_idempotency SET state = 'gone'");
    let output = shell.run(&["idempotency", "ls"]);
    assert_eq!(code(&output), 65);
    assert!(
        stderr(&output).contains("is damaged"),
        "{}",
        stderr(&output)
    );
}
