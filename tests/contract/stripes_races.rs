//! A counter in stripes, and transactions that change it at the same time.

use std::time::Duration;

use rowlock::{Error, Retryable};
use rowlock_recipes::stripes::StripesError;
use rowlock_test::{App, Db, LEVELS, Striped, Tx, eventually, on_every_engine};
use tokio::task::JoinSet;

async fn sum(striped: &Striped, db: &Db) -> i64 {
    striped.quantities(db).await.iter().sum()
}

/// Whether the transaction may begin again. No call may end in a deadlock.
fn may_begin_again(error: &(impl Retryable + std::fmt::Display)) {
    let said = error.to_string().to_lowercase();
    assert!(
        error.is_retryable() && !said.contains("deadlock"),
        "{error}"
    );
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
            takers.spawn(async move { striped.buy(&app, 1).await });
        }
        let takers = takers.join_all().await;
        let sold = takers.iter().filter(|taken| **taken == Ok(1)).count();
        let sold_out = takers.iter().filter(|taken| **taken == Err(0)).count();
        assert_eq!((sold, sold_out), (60, 30));
        assert_eq!(here.quantities(db).await, [0, 0, 0, 0]);
        app.close().await;
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
        assert_eq!(limited.quantities(db).await, [9, 9, 9, 9]);
    }

    async fn the_error_names_the_stripe_that_is_locked(db: &Db) {
        if db.one_writer() {
            return; // a transaction has the whole file
        }
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let striped = Striped::make(db, &one, &[9, 9, 9, 9]).await.wait(Duration::from_millis(300));
        let locked = striped.names()[2].clone();
        let mut paused = db.begin().await;
        paused.lock(&two, &locked).await;
        let is_named = |error: StripesError| match error {
            StripesError::Failed(Error::WaitTimeout { name, .. }) => assert_eq!(name.as_str(), locked),
            error => panic!("{error}"),
        };
        let mut tx = db.begin().await;
        is_named(striped.rebalance(&mut tx).await.unwrap_err());
        tx.release().await;
        let mut tx = db.begin().await;
        is_named(striped.take(&mut tx, 36).await.unwrap_err());
        tx.release().await;
        paused.release().await;
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
                eventually("it waits", async || db.waiting().await > 0).await;
                if is_sold {
                    tx.commit().await.unwrap();
                } else {
                    tx.release().await;
                }
            };
            let (taken, ()) = tokio::join!(here.buy(&db.app, 1), ends);
            if is_sold {
                assert_eq!(taken, Err(0));
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
        assert_eq!(sum(&here, db).await + i64::try_from(out).unwrap(), 80);
        assert!(here.quantities(db).await.iter().all(|items| *items >= 0));
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
            assert_eq!(here.quantities(db).await, [0, 0, 0], "{level}");
        }
    }
}
