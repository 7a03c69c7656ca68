//! The states of records: a list has those in one state, and no others; a record whose time is over while it is
//! locked.

use std::time::Duration;

use rowlock::{Begun, Error, Fingerprint, Outcome, RecordFilter, RecordState, Rowlock, Scope};
use rowlock_test::{Db, begin_new, on_every_engine, outcome, request};

const STATES: [RecordState; 7] = [
    RecordState::Running,
    RecordState::Lapsed,
    RecordState::Poisoned,
    RecordState::Free,
    RecordState::Unknown,
    RecordState::Done,
    RecordState::Expired,
];

/// Copies the record `k`, which is done, for every row that the state of a record can follow from.
async fn copies(db: &Db) {
    let times = [db.past(), db.future()];
    let mut number = 0;
    for state in ["running", "free", "done", "unknown", "expired"] {
        for (lease, retain) in [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(l, r)| (&times[l], &times[r]))
        {
            for (open_step, abandoned) in
                [("NULL", 2), ("'charge'", 2), ("NULL", 3), ("'charge'", 3)]
            {
                number += 1;
                let key = db.bytes(&format!("{number:03}"));
                db.execute(&format!(
                    "INSERT INTO rowlock_idempotency (scope, idempotency_key, state, attempt, abandoned, max_attempts, attempt_id, \
                         holder, fingerprint, bound, open_step, content_type, outcome, began_at, attempted_at, lease_until, \
                         done_at, retain_until, forget_at, clean_at) \
                     SELECT scope, {key}, '{state}', attempt, {abandoned}, 3, attempt_id, holder, fingerprint, bound, {open_step}, \
                         content_type, CASE WHEN '{state}' = 'done' THEN outcome END, began_at, attempted_at, {lease}, \
                         done_at, {retain}, forget_at, clean_at \
                     FROM rowlock_idempotency WHERE idempotency_key = {}",
                    db.bytes("k")
                ))
                .await;
            }
        }
    }
}

on_every_engine! {
    async fn the_records_of_a_state_are_those_that_are_shown_in_it(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        let begun = idempotency.begin(Scope("scope").key("k"), &Fingerprint::of("request")).await.unwrap();
        let Begun::New(guard) = begun else { panic!("{begun:?}") };
        guard.complete(&Outcome::empty()).await.unwrap();
        copies(db).await;
        let keys = async |listed: Option<RecordState>, shown: &dyn Fn(RecordState) -> bool| {
            let all = RecordFilter::new().limit(1_000);
            let filter = listed.map_or(all.clone(), |state| all.state(state));
            let found = idempotency.list(&filter).await.unwrap().items;
            let found = found.into_iter().filter(|info| shown(info.state));
            found.map(|info| info.record.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(keys(None, &|_| true).await.len(), 81);
        for state in STATES {
            let shown = keys(None, &|other| other == state).await;
            assert!(!shown.is_empty(), "{state}");
            assert_eq!(keys(Some(state), &|_| true).await, shown, "{state}");
        }
    }
    async fn a_record_whose_time_is_over_is_in_flight_while_a_transaction_has_it_locked(db: &Db) {
        let builder = || Rowlock::builder().clean_every(None);
        let idempotency = builder().connect(&db.url).await.unwrap().idempotency();
        let hasty = builder().operation_timeout(Duration::from_secs(2));
        let hasty = hasty.connect(&db.url).await.unwrap().idempotency();
        begin_new(&idempotency, "k").await.complete(&outcome("done")).await.unwrap();
        let past = db.past();
        let over = format!("UPDATE rowlock_idempotency SET retain_until = {past}, forget_at = {past}");
        db.execute(&over).await;
        let tx = db.lock_record("k").await;
        let begun = hasty.begin(Scope("scope").key("k"), request()).await;
        if db.one_writer() {
            // The transaction keeps all other writers out of the file.
            assert!(matches!(begun, Err(Error::Unreachable { .. })), "{begun:?}");
        } else {
            assert!(matches!(begun, Ok(Begun::InFlight(_))), "{begun:?}");
        }
        tx.release().await;
        drop(begin_new(&idempotency, "k").await);
    }
}
