//! The late one: an attempt is stopped with SIGSTOP, for longer than its lease or not, behind its begin or before its
//! commit; somebody else takes over, and commits; the first one wakes and goes on.
//!
//! Neither its row nor its outcome may commit then. `ROWLOCK_ZOMBIE_ROUNDS` is how often.

use std::time::Duration;

use nix::sys::signal::Signal;
use rand::Rng;
use rowlock::{Begun, Engine, Error, Fingerprint, Idempotency, IdempotencyGuard, Outcome, Scope};
use rowlock_test::{App, Db, Process, listen, on_tx, patience, tell};
use tokio::task::JoinSet;

use crate::role::{Part, Role};
use crate::zombie::{next, rounds, some_time};

const LEASE: Duration = Duration::from_millis(100);
/// At a time, each with keys of its own. (SQLite: a stopped one may have the whole file.)
const AT_A_TIME: u64 = 6;

fn request() -> Fingerprint {
    Fingerprint::of("request")
}

/// The process that is stopped.
pub(crate) async fn attempt(role: &Role) {
    let rowlock = role.connect().await;
    let app = App::connect(&role.url, 1).await;
    let idempotency = rowlock.idempotency().lease(role.ttl);
    // The parent says which key; it is stopped at "begun" or at "written", and goes on at the next line.
    while let Some(key) = listen() {
        let begun = idempotency
            .begin(Scope("late").key(&key), &request())
            .await
            .unwrap();
        let Begun::New(guard) = begun else {
            panic!("{begun:?}")
        };
        tell("begun");
        listen();
        match write(&app, &guard, &key, "late", true).await {
            Ok(()) => tell("committed"),
            Err(Error::Superseded { .. } | Error::Conflict { .. }) => tell("refused"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The business row and the outcome, in one transaction.
async fn write(
    app: &App,
    guard: &IdempotencyGuard,
    key: &str,
    who: &str,
    stops: bool,
) -> Result<(), Error> {
    let mut tx = app.begin().await;
    tx.execute(&format!("INSERT INTO late VALUES ('{key}', '{who}')"))
        .await?;
    let outcome = Outcome::new("text/plain", who)?;
    if let Err(error) = on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome).await) {
        // Not left to the drop: this process listens for its next line, and runs nothing meanwhile.
        tx.release().await;
        return Err(error);
    }
    if stops {
        tell("written");
        listen();
    }
    Ok(tx.commit().await?)
}

#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    committed: u64,
    refused: u64,
    taken_over: u64,
}

pub(crate) async fn run(engine: Engine) {
    let db = Db::new(engine).await;
    let rowlock = db.rowlock().await;
    db.execute("CREATE TABLE late (id VARCHAR(40) NOT NULL, who VARCHAR(40) NOT NULL)")
        .await;
    let role = Role {
        part: Part::LateRecord,
        url: db.url.clone(),
        ttl: LEASE,
    };
    let at_a_time = if db.one_writer() { 1 } else { AT_A_TIME };
    let mut tallies = JoinSet::new();
    for id in 0..at_a_time {
        let (app, idempotency) = (db.app.clone(), rowlock.idempotency().lease(LEASE * 50));
        let (role, rounds) = (role.clone(), rounds().div_ceil(at_a_time).max(2));
        tallies.spawn(haunt(app, idempotency, role, id, rounds));
    }
    let mut all = Tally::default();
    while let Some(tally) = tallies.join_next().await {
        let tally = tally.unwrap();
        all.rounds += tally.rounds;
        all.committed += tally.committed;
        all.refused += tally.refused;
        all.taken_over += tally.taken_over;
    }
    println!(
        "late record {engine}: {} rounds, {} committed, {} refused; taken over {} times meanwhile",
        all.rounds, all.committed, all.refused, all.taken_over
    );
    assert!(
        all.refused > 0 && all.taken_over > 0 && all.committed > 0,
        "the first one is taken over, the second one commits: {all:?}"
    );
    db.remove().await;
}

async fn haunt(app: App, idempotency: Idempotency, role: Role, id: u64, rounds: u64) -> Tally {
    let mut late = Process::start(&role);
    let mut tally = Tally::default();
    for round in 0..rounds {
        tally.rounds += 1;
        let key = format!("{id}-{round}");
        let (first, second) = (rand::rng().random_bool(0.7), rand::rng().random_bool(0.5));
        let first = first && round != 1;
        let mut successors = Vec::new();
        late.tell(&key);
        let (again, said) = next(late).await;
        late = again;
        assert_eq!(said, "begun");
        let mut pause = some_time(LEASE);
        if first {
            successors.extend(stopped(&idempotency, &late, &key, pause).await);
        }
        // The first one is stopped until it is taken over: a pause may be too short on a busy machine.
        while round == 0 && successors.is_empty() {
            pause *= 2;
            assert!(pause < patience(), "nobody takes over");
            successors.extend(stopped(&idempotency, &late, &key, pause).await);
        }
        late.tell("go");
        // Whoever has taken over commits while the late one goes on.
        let taken_over = !successors.is_empty();
        let committed = {
            let (app, key) = (app.clone(), key.clone());
            tokio::spawn(async move {
                for guard in successors {
                    write(&app, &guard, &key, "successor", false).await.unwrap();
                }
            })
        };
        let (again, mut said) = next(late).await;
        late = again;
        if said == "written" {
            assert!(!taken_over, "{key}: written behind a takeover");
            if second {
                let taken = stopped_in_transaction(&idempotency, &late, &key).await;
                assert!(!taken, "{key}: taken over with its record locked");
            }
            late.tell("go");
            (late, said) = next(late).await;
        }
        committed.await.unwrap();
        let writer = match (said.as_str(), taken_over) {
            ("committed", false) => "late",
            ("refused", true) => "successor",
            (said, taken_over) => panic!("{key}: {said}, taken over: {taken_over}"),
        };
        tally.committed += u64::from(!taken_over);
        tally.refused += u64::from(taken_over);
        tally.taken_over += u64::from(taken_over);
        let rows =
            |who| format!("SELECT COUNT(*) FROM late WHERE id = '{key}' AND who LIKE '{who}'");
        assert_eq!(app.number(&rows("%")).await, 1, "{key}");
        assert_eq!(app.number(&rows(writer)).await, 1, "{key}");
        let begun = idempotency
            .begin(Scope("late").key(&key), &request())
            .await
            .unwrap();
        let Begun::Replay(outcome) = begun else {
            panic!("{key}: {begun:?}")
        };
        assert_eq!(outcome.bytes(), writer.as_bytes(), "{key}");
    }
    tally
}

/// Stops the process for this time, in which the key is asked for.
async fn stopped(
    idempotency: &Idempotency,
    late: &Process,
    key: &str,
    pause: Duration,
) -> Option<IdempotencyGuard> {
    let over = tokio::time::Instant::now() + pause;
    late.signal(Signal::SIGSTOP);
    let asking = idempotency.clone().wait(pause);
    let request = request();
    // If it was stopped while it had SQLite's file, the answer comes when it goes on.
    let (begun, ()) = tokio::join!(asking.begin(Scope("late").key(key), &request), async {
        tokio::time::sleep_until(over).await;
        late.signal(Signal::SIGCONT);
    });
    match begun.unwrap() {
        Begun::New(guard) => Some(guard),
        Begun::InFlight(_) => None,
        other => panic!("{other:?}"),
    }
}

/// The same while it has its record locked (on SQLite the whole file: whoever asks waits for it). Whether it was taken
/// over.
async fn stopped_in_transaction(idempotency: &Idempotency, late: &Process, key: &str) -> bool {
    let pause = some_time(LEASE);
    late.signal(Signal::SIGSTOP);
    let request = request();
    let asking = idempotency.clone().wait(pause);
    let begun = tokio::time::timeout(pause, asking.begin(Scope("late").key(key), &request)).await;
    late.signal(Signal::SIGCONT);
    matches!(begun, Ok(Ok(Begun::New(_))))
}
