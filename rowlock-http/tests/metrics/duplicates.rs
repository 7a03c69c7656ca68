//! Many duplicates of one key cost few statements.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rowlock::{Begun, Fingerprint, Outcome, Scope};
use rowlock_test::eventually;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::client;
use crate::recorder::recorded;

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
