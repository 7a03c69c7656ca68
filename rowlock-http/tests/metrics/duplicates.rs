//! Many duplicates of one key cost few statements.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rowlock::{Begun, Engine, Fingerprint, Outcome, Scope};
use rowlock_test::eventually;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::recorder::recorded;
use crate::{client, client_of};

const DUPLICATES: usize = 10_000;
const LONG: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_duplicates_share_one_effect_and_a_few_reads() {
    let (_alone, _db, rowlock) = client().await;
    let reads = || recorded("rowlock_statement_seconds", &[("verb", "read")]).len();
    let request = Fingerprint::of("request");
    let before = reads();
    let idempotency = rowlock.idempotency().wait(LONG);
    let gate = Arc::new(Semaphore::new(0));
    let asked = Arc::new(AtomicUsize::new(0));
    let mut duplicates = JoinSet::new();
    for _ in 0..DUPLICATES {
        let (idempotency, gate) = (idempotency.clone(), Arc::clone(&gate));
        let asked = Arc::clone(&asked);
        duplicates.spawn(async move {
            asked.fetch_add(1, Ordering::SeqCst);
            match idempotency
                .begin(Scope("scope").key("hot"), request)
                .await
                .unwrap()
            {
                Begun::New(guard) => {
                    gate.acquire().await.unwrap().forget();
                    guard
                        .complete(&Outcome::json(&"paid").unwrap())
                        .await
                        .unwrap();
                    1
                }
                Begun::Replay(outcome) => {
                    assert_eq!(outcome.parse_json::<String>().unwrap(), "paid");
                    0
                }
                other => panic!("{other:?}"),
            }
        });
    }
    eventually("all have asked", async || {
        asked.load(Ordering::SeqCst) == DUPLICATES
    })
    .await;
    let looked = reads();
    gate.add_permits(1);
    let effects: i32 = duplicates.join_all().await.into_iter().sum();
    assert_eq!(effects, 1);
    let (at_the_end, all) = (reads() - looked, reads() - before);
    assert!(all <= 20, "{all} reads");
    // One of them may have looked just then: it does so once a second.
    assert!(at_the_end <= 1, "the outcome is told: {at_the_end} reads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_for_another_client_look_as_one() {
    let (_alone, db, rowlock) = client().await;
    let reads = || recorded("rowlock_statement_seconds", &[("verb", "read")]).len();
    let (key, request) = (|| Scope("scope").key("far"), Fingerprint::of("request"));
    let other = db.rowlock().await.idempotency();
    let Begun::New(far) = other.begin(key(), request).await.unwrap() else {
        panic!("it is new");
    };
    let before = reads();
    let idempotency = rowlock.idempotency().wait(LONG);
    let mut duplicates = JoinSet::new();
    for _ in 0..1_000 {
        let idempotency = idempotency.clone();
        duplicates.spawn(async move { idempotency.begin(key(), request).await.unwrap() });
    }
    // One looks more and more seldom, at last five times a second. All the others look as one, once a second.
    let some = async || reads() - before >= 20;
    eventually("some looks were made", some).await;
    far.complete(&Outcome::json(&"paid").unwrap())
        .await
        .unwrap();
    for begun in duplicates.join_all().await {
        assert!(matches!(begun, Begun::Replay(_)), "{begun:?}");
    }
    let all = reads() - before;
    assert!(all <= 100, "{all} reads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_a_client_has_not_seen_is_claimed_at_once_and_another_one_is_read() {
    let (_alone, db, rowlock) = client_of(Engine::Postgres).await;
    let sent = || {
        ["claim", "read"].map(|verb| recorded("rowlock_statement_seconds", &[("verb", verb)]).len())
    };
    let before = sent();
    let since = || {
        let now = sent();
        [now[0] - before[0], now[1] - before[1]]
    };
    let request = Fingerprint::of("request");
    let key = || Scope("scope").key("new");
    let idempotency = rowlock.idempotency();
    let Begun::New(guard) = idempotency.begin(key(), request).await.unwrap() else {
        panic!("it is new");
    };
    assert_eq!(since(), [1, 0]);
    let paid = Outcome::json(&"paid").unwrap();
    guard.complete(&paid).await.unwrap();
    for claims_and_reads in [[1, 1], [1, 2]] {
        let again = idempotency.begin(key(), request).await.unwrap();
        assert!(matches!(again, Begun::Replay(outcome) if outcome == paid));
        assert_eq!(since(), claims_and_reads);
    }
    let other = db.rowlock().await.idempotency();
    let elsewhere = other.begin(key(), request).await.unwrap();
    assert!(matches!(elsewhere, Begun::Replay(outcome) if outcome == paid));
    assert_eq!(since(), [2, 3]);
}
