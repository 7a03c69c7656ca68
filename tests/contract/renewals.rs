//! Promise 4, in a crowd: what cannot be renewed is lost alone. Neither a refused row nor a refused table costs
//! another lease anything.

use std::time::{Duration, Instant};

use rowlock::{Begun, Fingerprint, Held, Loss, Scope};
use rowlock_test::{Db, eventually, on_every_engine, take};

/// The server refuses every later update of a row of `table` where `column` has the bytes of `value`.
async fn refuse(db: &Db, table: &str, column: &str, value: &str) {
    let bytes = db.bytes(value);
    let refuse = (db.kind.refuse)(table, column, &bytes);
    db.execute(&refuse).await;
}

/// Waits until renewals have moved all deadlines by more than a TTL.
async fn all_outlive(held: &[Held], ttl: Duration) {
    let first: Vec<Instant> = held
        .iter()
        .map(|held| held.deadline().to_instant())
        .collect();
    for (held, first) in held.iter().zip(first) {
        eventually("the deadline has moved by more than a TTL", async || {
            assert_eq!(held.loss(), None, "{} is lost", held.name());
            held.deadline().to_instant() > first + ttl * 3 / 2
        })
        .await;
    }
}

on_every_engine! {
    async fn a_refused_attempt_costs_no_lock_its_lease(db: &Db) {
        let rowlock = db.rowlock().await;
        let ttl = Duration::from_secs(10);
        let idempotency = rowlock.idempotency().lease(ttl);
        let begun = idempotency.begin(Scope("shop").key("bad"), &Fingerprint::of("x")).await.unwrap();
        let Begun::New(attempt) = begun else { panic!("{begun:?}") };
        let held = take(&rowlock, "a", ttl).await;
        refuse(db, "rowlock_idempotency", "idempotency_key", "bad").await;
        all_outlive(&[held], ttl).await;
        assert!(!attempt.is_held());
    }

    async fn a_refused_row_costs_no_other_lease(db: &Db) {
        let rowlock = db.rowlock().await;
        let ttl = Duration::from_secs(10);
        let mut others = Vec::new();
        for number in 0..20 {
            others.push(take(&rowlock, &format!("n{number}"), ttl).await);
        }
        let bad = take(&rowlock, "bad", ttl).await;
        refuse(db, "rowlock_lock", "name", "bad").await;
        all_outlive(&others, ttl).await;
        assert_eq!(bad.loss(), Some(Loss::Expired));
    }
}
