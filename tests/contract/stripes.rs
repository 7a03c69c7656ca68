//! A counter in stripes: the sum changes by exactly what was taken and given back.

use std::time::Duration;

use rowlock::compose::stripes::{Quantities, Stripes, StripesError};
use rowlock::{Error, Retry, Retryable};
use rowlock_test::{
    App, Db, LEVELS, Stock, Striped, Tx, eventually, on_every_engine, on_stripes, on_tx,
};
use tokio::task::JoinSet;

const MS: Duration = Duration::from_millis(1);

/// Without end, and without long pauses.
const EAGER: Retry = Retry::new()
    .attempts(u32::MAX)
    .backoff(MS, Duration::from_millis(40));

/// The quantities of the stripes.
async fn quantities(db: &Db, stripes: usize) -> Vec<i64> {
    let mut all = Vec::new();
    for stripe in 0..stripes {
        let sql = format!("SELECT items FROM stock WHERE stripe = {stripe}");
        all.push(db.number(&sql).await);
    }
    all
}

/// MySQL and MariaDB return a SUM as a DECIMAL.
async fn sum(db: &Db, stripes: usize) -> i64 {
    quantities(db, stripes).await.iter().sum()
}

async fn lowest(db: &Db) -> i64 {
    db.number("SELECT MIN(items) FROM stock").await
}

/// Takes in a transaction of its own. Returns what is left when there is too little.
async fn take(app: &App, striped: &Striped, n: u64) -> Result<u64, Option<u64>> {
    let taken = on_stripes!(app, striped, pool, stripes => {
        EAGER.run(pool, |mut tx| async move { stripes.take(&mut tx, n).await }).await
    });
    match taken {
        Ok(taken) => Ok(taken.parts().map(|(_, n)| n).sum()),
        Err(error) => Err(Some(error.left().unwrap_or_else(|| panic!("{error}")))),
    }
}

/// Whether the transaction may begin again. No call may end in a deadlock.
fn may_begin_again(error: &(impl Retryable + std::fmt::Display)) {
    let said = error.to_string().to_lowercase();
    assert!(
        error.is_retryable() && !said.contains("deadlock"),
        "{error}"
    );
}

/// Waits until this many transactions wait for a lock.
async fn waiting(db: &Db, transactions: i64) {
    eventually("they wait", async || db.waiting().await >= transactions).await;
}

/// Its reads find one item more than there is, as a snapshot does that is older than a sale.
struct Old<S>(S);

impl<S: Quantities> Quantities for Old<S> {
    type Connection = S::Connection;

    async fn add(&self, connection: &mut S::Connection, stripe: i32, by: i64) -> sqlx::Result<u64> {
        self.0.add(connection, stripe, by).await
    }

    async fn read(&self, connection: &mut S::Connection) -> sqlx::Result<Vec<(i32, i64)>> {
        let mut rows = self.0.read(connection).await?;
        rows.iter_mut()
            .filter(|row| row.0 == 2)
            .for_each(|row| row.1 += 1);
        Ok(rows)
    }
}

on_every_engine! {
    async fn many_takers_sell_exactly_what_there_is(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let here = Striped::make(db, &one, &[15, 15, 15, 15]).await;
        let there = Striped::of(&two, 4);
        let app = App::connect(&db.url, 12).await;
        let mut takers = JoinSet::new();
        for n in 0..90 {
            let striped = [&here, &there][n % 2].clone();
            let app = app.clone();
            takers.spawn(async move { take(&app, &striped, 1).await });
        }
        let takers = takers.join_all().await;
        let sold = takers.iter().filter(|taken| **taken == Ok(1)).count();
        let sold_out = takers.iter().filter(|taken| **taken == Err(Some(0))).count();
        assert_eq!((sold, sold_out), (60, 30));
        assert_eq!(quantities(db, 4).await, [0, 0, 0, 0]);
        app.close().await;
    }

    async fn more_than_there_is_is_refused_and_changes_nothing(db: &Db) {
        let rowlock = db.rowlock().await;
        let striped = Striped::make(db, &rowlock, &[2, 2, 1]).await;
        let mut tx = db.begin().await;
        let error = striped.take(&mut tx, 6).await.unwrap_err();
        assert!(matches!(error, StripesError::Short { asked: 6, left: 5, .. }), "{error}");
        assert!(!error.is_retryable());
        assert_eq!(error.to_string(), "6 of \"stock\" were asked for, and 5 are left: nothing was taken");
        assert_eq!(tx.number("SELECT items FROM stock WHERE stripe = 0").await, 2);
        // The transaction goes on.
        let taken = striped.take(&mut tx, 5).await.unwrap();
        assert_eq!(taken.parts().collect::<Vec<_>>(), [(0, 2), (1, 2), (2, 1)]);
        tx.commit().await.unwrap();
        assert_eq!(take(&db.app, &striped, 1).await, Err(Some(0)));
        assert_eq!(quantities(db, 3).await, [0, 0, 0]);
    }

    async fn a_take_over_several_stripes_is_exact(db: &Db) {
        let rowlock = db.rowlock().await;
        let striped = Striped::make(db, &rowlock, &[3, 4, 3, 3]).await;
        let mut tx = db.begin().await;
        let taken = striped.take(&mut tx, 9).await.unwrap();
        let parts: Vec<_> = taken.parts().collect();
        assert_eq!(parts.iter().map(|part| part.1).sum::<u64>(), 9);
        assert!(parts.contains(&(1, 4)) && parts.len() == 3, "the largest first: {parts:?}");
        assert_eq!(striped.total(&mut tx).await.unwrap(), 4, "it sees its own changes");
        tx.commit().await.unwrap();
        assert_eq!(sum(db, 4).await, 4);
        assert_eq!(lowest(db).await, 0);
        // From one stripe, if one has enough.
        let mut tx = db.begin().await;
        assert_eq!(striped.take(&mut tx, 3).await.unwrap().parts().count(), 1);
        tx.commit().await.unwrap();
    }

    async fn what_a_rolled_back_or_dropped_transaction_took_is_there_again(db: &Db) {
        let rowlock = db.rowlock().await;
        let striped = Striped::make(db, &rowlock, &[5, 0, 7]).await;
        for (round, n) in [1, 6, 12].into_iter().enumerate() {
            let mut tx = db.begin().await;
            striped.take(&mut tx, n).await.unwrap();
            if round % 2 == 0 {
                tx.release().await;
            } else {
                drop(tx);
            }
            let mut tx = db.begin().await;
            assert_eq!(striped.rebalance(&mut tx).await.unwrap(), 4);
            tx.release().await;
            assert_eq!(quantities(db, 3).await, [5, 0, 7]);
        }
        assert_eq!(take(&db.app, &striped, 12).await, Ok(12));
    }

    async fn a_read_that_is_old_changes_nothing_even_if_the_caller_commits(db: &Db) {
        let rowlock = db.rowlock().await;
        Striped::make(db, &rowlock, &[3, 2, 1]).await;
        let mut tx = db.begin().await;
        let error = on_tx!(&mut tx, tx => {
            let stripes = Stripes::new(&rowlock, "stock", 3, Old(Stock::of(tx))).unwrap();
            stripes.take(tx, 7).await.unwrap_err()
        });
        assert!(matches!(error, StripesError::Failed(Error::Conflict { .. })), "{error}");
        assert!(error.is_retryable());
        tx.commit().await.unwrap();
        assert_eq!(quantities(db, 3).await, [3, 2, 1]);
    }

    async fn a_rebalance_makes_the_stripes_level(db: &Db) {
        let rowlock = db.rowlock().await;
        let striped = Striped::make(db, &rowlock, &[0, 10, 0, 1]).await;
        let mut tx = db.begin().await;
        assert_eq!(striped.rebalance(&mut tx).await.unwrap(), 7);
        assert_eq!(striped.rebalance(&mut tx).await.unwrap(), 0, "they are level");
        tx.commit().await.unwrap();
        assert_eq!(quantities(db, 4).await, [3, 3, 2, 3]);
        let mut tx = db.begin().await;
        striped.restock(&mut tx, 8).await.unwrap();
        tx.commit().await.unwrap();
        let mut all = quantities(db, 4).await;
        all.sort_unstable();
        assert_eq!(all, [4, 5, 5, 5]);
    }

    async fn what_is_given_back_can_be_taken(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let here = Striped::make(db, &one, &[0, 1, 0]).await;
        let there = Striped::of(&two, 3);
        assert_eq!(take(&db.app, &here, 1).await, Ok(1));
        assert_eq!(take(&db.app, &here, 1).await, Err(Some(0)));
        let mut tx = db.begin().await;
        there.give_back(&mut tx, 2).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(take(&db.app, &here, 3).await, Err(Some(2)));
        assert_eq!(take(&db.app, &here, 2).await, Ok(2));
        assert_eq!(sum(db, 3).await, 0);
        // In the transaction that took it.
        let mut tx = db.begin().await;
        there.restock(&mut tx, 5).await.unwrap();
        there.take(&mut tx, 4).await.unwrap();
        there.give_back(&mut tx, 1).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(sum(db, 3).await, 2);
    }

    async fn a_number_of_stripes_out_of_bounds_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        for stripes in [0, 257, u32::MAX] {
            let error = Stripes::new(&rowlock, "stock", stripes, ()).unwrap_err();
            assert!(matches!(error, Error::InvalidSetting { setting: "stripes", .. }), "{error}");
        }
        for stripes in [1, 256] {
            let stripes_of_it = Stripes::new(&rowlock, "n".repeat(251), stripes, ()).unwrap();
            assert_eq!(stripes_of_it.names().count(), stripes as usize);
            assert!(stripes_of_it.names().is_sorted(), "in ascending order");
        }
        for name in ["", "n".repeat(252).as_str()] {
            let error = Stripes::new(&rowlock, name, 8, ()).unwrap_err();
            assert!(matches!(error, Error::InvalidName(_)), "{error}");
        }
    }

    async fn rows_that_do_not_fit_are_named(db: &Db) {
        let rowlock = db.rowlock().await;
        let striped = Striped::make(db, &rowlock, &[1, 1, 1]).await;
        let fewer = Striped::of(&rowlock, 2);
        let more = Striped::of(&rowlock, 4);
        for striped in [&fewer, &more] {
            let mut tx = db.begin().await;
            for error in [
                striped.take(&mut tx, 1).await.unwrap_err(),
                striped.total(&mut tx).await.unwrap_err(),
                striped.rebalance(&mut tx).await.unwrap_err(),
            ] {
                assert!(matches!(error, StripesError::Rows { .. }) && !error.is_retryable(), "{error}");
            }
            tx.release().await;
        }
        db.execute("UPDATE stock SET items = -1 WHERE stripe = 2").await;
        let mut tx = db.begin().await;
        let error = striped.take(&mut tx, 1).await.unwrap_err();
        assert!(error.to_string().contains("stripe 2 has -1"), "{error}");
        tx.release().await;
        let mut tx = db.begin().await;
        striped.take(&mut tx, 0).await.unwrap(); // takes nothing, and asks for nothing
        let error = striped.take(&mut tx, u64::MAX).await.unwrap_err();
        assert!(error.to_string().contains("63 bits"), "{error}");
        tx.release().await;
    }

    async fn a_stripe_that_is_locked_stops_nobody(db: &Db) {
        if db.one_writer() {
            return; // a transaction has the whole file
        }
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let striped = Striped::make(db, &one, &[9, 9, 9, 9]).await;
        let names = striped.names();
        let mut paused = db.begin().await;
        for stripe in [0, 1, 3] {
            paused.lock(&two, &names[stripe]).await;
        }
        for _ in 0..6 {
            let mut tx = db.begin().await;
            let taken = striped.take(&mut tx, 1).await.unwrap();
            assert_eq!(taken.parts().collect::<Vec<_>>(), [(2, 1)]);
            striped.give_back(&mut tx, 1).await.unwrap();
            tx.commit().await.unwrap();
        }
        // All together are not there, and a limit ends the wait for them.
        let limited = striped.wait(Duration::from_millis(300));
        for n in [30, 36] {
            let mut tx = db.begin().await;
            let error = limited.take(&mut tx, n).await.unwrap_err();
            assert!(matches!(error, StripesError::Failed(Error::WaitTimeout { .. })), "{error}");
            tx.release().await;
        }
        let is_late = |error: StripesError| {
            assert!(matches!(error, StripesError::Failed(Error::WaitTimeout { .. })), "{error}");
        };
        let mut tx = db.begin().await;
        is_late(limited.rebalance(&mut tx).await.unwrap_err());
        tx.release().await;
        let mut tx = db.begin().await;
        is_late(limited.restock(&mut tx, 1).await.unwrap_err());
        tx.release().await;
        let mut tx = db.begin().await;
        tx.lock(&two, &names[2]).await;
        let mut other = db.begin().await;
        is_late(limited.take(&mut other, 1).await.unwrap_err());
        other.release().await;
        let mut other = db.begin().await;
        is_late(limited.give_back(&mut other, 1).await.unwrap_err());
        other.release().await;
        tx.release().await;
        paused.release().await;
        assert_eq!(quantities(db, 4).await, [9, 9, 9, 9]);
    }

    async fn a_taker_waits_for_the_last_item_until_it_is_sold_or_back(db: &Db) {
        if db.one_writer() {
            return; // a transaction has the whole file
        }
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let here = Striped::make(db, &one, &[0, 1]).await;
        let there = Striped::of(&two, 2);
        for is_sold in [false, true] {
            let mut tx = db.begin().await;
            there.take(&mut tx, 1).await.unwrap();
            let ends = async {
                waiting(db, 1).await;
                if is_sold {
                    tx.commit().await.unwrap();
                } else {
                    tx.release().await;
                }
            };
            let (taken, ()) = tokio::join!(take(&db.app, &here, 1), ends);
            if is_sold {
                assert_eq!(taken, Err(Some(0)));
            } else {
                assert_eq!(taken, Ok(1));
                let mut tx = db.begin().await;
                here.give_back(&mut tx, 1).await.unwrap();
                here.rebalance(&mut tx).await.unwrap();
                tx.commit().await.unwrap();
            }
        }
    }

    async fn takers_of_several_stripes_and_rebalances_never_deadlock(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let here = Striped::make(db, &one, &[40, 0, 40, 0]).await;
        let there = Striped::of(&two, 4);
        let app = App::connect(&db.url, 8).await;
        let mut tasks = JoinSet::new();
        for task in 0..6_u64 {
            let striped = [&here, &there][usize::from(task % 2 == 1)].clone();
            let app = app.clone();
            tasks.spawn(async move {
                let mut out = 0;
                for round in 0..12 {
                    loop {
                        let mut tx = app.begin().await;
                        let n = 1 + (task * 7 + round * 5) % 29;
                        let done = match (task + round) % 3 {
                            0 => striped.rebalance(&mut tx).await.map(|_| 0),
                            1 if out > 0 => {
                                let n = n.min(out);
                                striped.give_back(&mut tx, n).await.map(|()| -i64::try_from(n).unwrap())
                            }
                            _ => match striped.take(&mut tx, n).await {
                                Ok(_) => Ok(i64::try_from(n).unwrap()),
                                Err(StripesError::Short { .. }) => Ok(0),
                                Err(error) => Err(error),
                            },
                        };
                        match done {
                            Ok(by) => match tx.commit().await {
                                Ok(()) => {
                                    out = out.checked_add_signed(by).unwrap();
                                    break;
                                }
                                Err(error) => may_begin_again(&Error::from(error)),
                            },
                            Err(error) => {
                                may_begin_again(&error);
                                tx.release().await;
                            }
                        }
                    }
                }
                out
            });
        }
        let out: u64 = tasks.join_all().await.into_iter().sum();
        assert_eq!(sum(db, 4).await + i64::try_from(out).unwrap(), 80);
        assert!(lowest(db).await >= 0);
        app.close().await;
    }

    async fn the_sum_is_exact_at_every_level_of_isolation(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let here = Striped::make(db, &one, &[0, 0, 0]).await;
        let there = Striped::of(&two, 3);
        db.execute("CREATE TABLE app (n BIGINT NOT NULL)").await;
        db.execute("INSERT INTO app VALUES (1)").await;
        for level in LEVELS {
            let mut tx = db.begin().await;
            here.restock(&mut tx, 30).await.unwrap();
            tx.commit().await.unwrap();
            let buy = |striped: Striped, n: u64| async move {
                let mut bought = 0;
                loop {
                    let mut tx = db.begin_at(level).await;
                    // A snapshot that is older than the locks.
                    let read = async |tx: &mut Tx| tx.number("SELECT n FROM app").await;
                    read(&mut tx).await;
                    let taken = match striped.take(&mut tx, n).await {
                        Ok(_) => tx.commit().await.map_err(StripesError::from),
                        Err(error) => {
                            tx.release().await;
                            Err(error)
                        }
                    };
                    match taken {
                        Ok(()) => bought += n,
                        Err(StripesError::Short { left, .. }) => {
                            assert!(left < n, "{left} of {n}");
                            return bought;
                        }
                        Err(error) => assert!(error.is_retryable(), "{level}: {error}"),
                    }
                }
            };
            let bought = tokio::join!(
                buy(here.clone(), 1),
                buy(there.clone(), 4),
                buy(here.clone(), 2),
                buy(there.clone(), 1)
            );
            assert_eq!(bought.0 + bought.1 + bought.2 + bought.3, 30, "{level}: {bought:?}");
            assert_eq!(quantities(db, 3).await, [0, 0, 0], "{level}");
        }
    }
}
