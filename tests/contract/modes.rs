//! Promise 1 across modes: lease, pinned lease, pessimistic and optimistic lock of one name exclude each other,
//! pair by pair, in both orders, whether the holder ends well or dies. (Deaths of whole processes: tests/fault.)

use std::time::Duration;

use rowlock::{Advance, Held, Rowlock, Version};
use rowlock_test::{Db, TryLock, Tx, eventually, on_every_engine, take};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Lease,
    /// A lease that has run out while a transaction has it pinned.
    Pinned,
    Pessimistic,
    Optimistic,
}

const MODES: [Mode; 4] = [
    Mode::Lease,
    Mode::Pinned,
    Mode::Pessimistic,
    Mode::Optimistic,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Released, or committed.
    Well,
    /// Its transaction is dropped, its lease has run out.
    Dead,
}

/// A grant in some mode.
#[derive(Default)]
struct Grant {
    lease: Option<Held>,
    tx: Option<Tx>,
    fence: i64,
}

impl Grant {
    async fn first(db: &Db, rowlock: &Rowlock, mode: Mode, end: End) -> Self {
        let short = Duration::from_secs(2);
        let long = Duration::from_secs(30);
        match mode {
            Mode::Lease => {
                let held = take(
                    rowlock,
                    "a",
                    if end == End::Dead { short * 2 } else { long },
                )
                .await;
                let fence = held.fence();
                Self {
                    lease: Some(held),
                    tx: None,
                    fence,
                }
            }
            Mode::Pinned => {
                let held = take(rowlock, "a", short).await;
                let mut tx = db.begin().await;
                tx.pin(&held).await.unwrap();
                eventually("the pinned lease runs out", async || held.loss().is_some()).await;
                let fence = held.fence();
                Self {
                    lease: Some(held),
                    tx: Some(tx),
                    fence,
                }
            }
            Mode::Pessimistic => {
                let mut tx = db.begin().await;
                let fence = tx.lock(rowlock, "a").await.fence();
                Self {
                    lease: None,
                    tx: Some(tx),
                    fence,
                }
            }
            Mode::Optimistic => {
                let seen = rowlock.version("a").await.unwrap();
                let mut tx = db.begin().await;
                let fence = tx
                    .advance(rowlock, &seen)
                    .await
                    .unwrap()
                    .or_conflict(&seen)
                    .unwrap();
                Self {
                    lease: None,
                    tx: Some(tx),
                    fence,
                }
            }
        }
    }

    async fn end(self, db: &Db, end: End) {
        match end {
            End::Well => {
                if let Some(tx) = self.tx {
                    tx.commit().await.unwrap();
                }
                if let Some(held) = self.lease {
                    // A pinned lease may have run out.
                    let _ = held.release().await;
                }
            }
            End::Dead => {
                drop(self.tx);
                if let Some(held) = self.lease {
                    // As if nobody had renewed it, or released it.
                    db.execute(
                        "UPDATE rowlock_lock SET expires_at = acquired_at WHERE grant_id IS NOT NULL",
                    )
                    .await;
                    eventually("its holder learns it", async || held.loss().is_some()).await;
                }
            }
        }
    }
}

/// One try of somebody else's in `mode`: the fence, if it was granted. `seen` is from before the first grant.
async fn attempt(db: &Db, rowlock: &Rowlock, mode: Mode, seen: &Version) -> Option<i64> {
    match mode {
        Mode::Lease | Mode::Pinned => match rowlock.lock("a").try_acquire().await {
            Ok(Some(held)) => {
                if mode == Mode::Pinned {
                    let mut tx = db.begin().await;
                    tx.pin(&held).await.unwrap();
                    tx.commit().await.unwrap();
                }
                let fence = held.fence();
                held.release().await.unwrap();
                Some(fence)
            }
            Ok(None) => None,
            Err(error) => {
                // The one writer is the first one.
                assert!(error.is_transient() && db.one_writer(), "{error}");
                None
            }
        },
        Mode::Pessimistic => {
            let mut tx = db.begin().await;
            let lock = tx.try_lock(rowlock, "a").await.unwrap();
            let fence = match lock {
                TryLock::Locked(locked) => Some(locked.fence()),
                TryLock::Busy(_) => None,
            };
            tx.commit().await.unwrap();
            fence
        }
        Mode::Optimistic => {
            let mut tx = db.begin().await;
            let fence = match tx.advance(rowlock, seen).await.unwrap() {
                Advance::Granted { fence } => Some(fence),
                Advance::Conflict => None,
            };
            tx.commit().await.unwrap();
            fence
        }
    }
}

async fn pair(db: &Db, first: Mode, second: Mode, end: End) {
    let (one, two) = (db.rowlock().await, db.rowlock().await);
    let what = format!("{first:?} then {second:?}, {end:?}");
    let seen = two.version("a").await.unwrap();
    let grant = Grant::first(db, &one, first, end).await;
    let held_by = grant.fence;
    // Where there is one writer, a second one cannot even begin while the first one's transaction is open.
    let may_not_begin = db.one_writer() && grant.tx.is_some();
    if !may_not_begin {
        assert_eq!(attempt(db, &two, second, &seen).await, None, "{what}");
    }
    grant.end(db, end).await;
    let granted = std::cell::Cell::new(None);
    eventually(&format!("it is free: {what}"), async || {
        let seen = two.version("a").await.unwrap();
        granted.set(attempt(db, &two, second, &seen).await);
        granted.get().is_some()
    })
    .await;
    assert!(granted.get().unwrap() > held_by, "{what}");
    // The first one's view of the version is out of date in any case.
    let mut tx = db.begin().await;
    assert_eq!(
        tx.advance(&two, &seen).await.unwrap(),
        Advance::Conflict,
        "{what}"
    );
    tx.release().await;
}

on_every_engine! {
    async fn a_holder_that_ends_well_excludes_every_other_mode(db: &Db) {
        for first in MODES {
            for second in MODES {
                pair(db, first, second, End::Well).await;
            }
        }
    }

    async fn a_holder_that_dies_excludes_every_other_mode_until_then(db: &Db) {
        for first in MODES {
            for second in MODES {
                pair(db, first, second, End::Dead).await;
            }
        }
    }
}
