//! A counter in stripes: the sum changes by exactly what was taken and given back.

use std::time::Duration;

use rowlock::{Error, InvalidError, Retryable};
use rowlock_recipes::stripes::{Quantities, Stripes, StripesError};
use rowlock_test::{Db, Stock, Striped, on_every_engine, on_tx, patience};
use tokio::time::timeout;

async fn sum(striped: &Striped, db: &Db) -> i64 {
    striped.quantities(db).await.iter().sum()
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
        assert_eq!(striped.buy(&db.app, 1).await, Err(0));
        assert_eq!(striped.quantities(db).await, [0, 0, 0]);
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
        assert_eq!(sum(&striped, db).await, 4);
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
            assert_eq!(striped.quantities(db).await, [5, 0, 7]);
        }
        assert_eq!(striped.buy(&db.app, 12).await, Ok(12));
    }

    async fn a_read_that_is_old_changes_nothing_even_if_the_caller_commits(db: &Db) {
        let rowlock = db.rowlock().await;
        let striped = Striped::make(db, &rowlock, &[3, 2, 1]).await;
        let mut tx = db.begin().await;
        let error = on_tx!(&mut tx, tx => {
            let stripes = Stripes::new(&rowlock, "stock", 3, Old(Stock::of(tx))).unwrap();
            stripes.take(tx, 7).await.unwrap_err()
        });
        assert!(matches!(error, StripesError::Failed(Error::Conflict { .. })), "{error}");
        assert!(error.is_retryable());
        tx.commit().await.unwrap();
        assert_eq!(striped.quantities(db).await, [3, 2, 1]);
    }

    async fn a_rebalance_makes_the_stripes_level(db: &Db) {
        let rowlock = db.rowlock().await;
        let striped = Striped::make(db, &rowlock, &[0, 10, 0, 1]).await;
        let mut tx = db.begin().await;
        assert_eq!(striped.rebalance(&mut tx).await.unwrap(), 7);
        assert_eq!(striped.rebalance(&mut tx).await.unwrap(), 0, "they are level");
        tx.commit().await.unwrap();
        assert_eq!(striped.quantities(db).await, [3, 3, 2, 3]);
        let mut tx = db.begin().await;
        striped.restock(&mut tx, 8).await.unwrap();
        tx.commit().await.unwrap();
        let mut all = striped.quantities(db).await;
        all.sort_unstable();
        assert_eq!(all, [4, 5, 5, 5]);
    }

    async fn what_is_given_back_can_be_taken(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let here = Striped::make(db, &one, &[0, 1, 0]).await;
        let there = Striped::of(&two, 3);
        assert_eq!(here.buy(&db.app, 1).await, Ok(1));
        assert_eq!(here.buy(&db.app, 1).await, Err(0));
        let mut tx = db.begin().await;
        there.give_back(&mut tx, 2).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(here.buy(&db.app, 3).await, Err(2));
        assert_eq!(here.buy(&db.app, 2).await, Ok(2));
        assert_eq!(sum(&here, db).await, 0);
        // In the transaction that took it.
        let mut tx = db.begin().await;
        there.restock(&mut tx, 5).await.unwrap();
        there.take(&mut tx, 4).await.unwrap();
        there.give_back(&mut tx, 1).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(sum(&here, db).await, 2);
    }

    async fn a_number_of_stripes_out_of_bounds_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        for stripes in [0, 257, u32::MAX] {
            let error = Stripes::new(&rowlock, "stock", stripes, ()).unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "stripes", .. })), "{error}");
        }
        for stripes in [1, 256] {
            let stripes_of_it = Stripes::new(&rowlock, "n".repeat(251), stripes, ()).unwrap();
            assert_eq!(stripes_of_it.names().count(), stripes as usize);
            assert!(stripes_of_it.names().is_sorted(), "in ascending order");
        }
        for name in ["", "n".repeat(252).as_str()] {
            let error = Stripes::new(&rowlock, name, 8, ()).unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Name { .. })), "{error}");
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
        assert!(error.to_string().contains("at most 1,000,"), "{error}");
        let most = i64::MAX.unsigned_abs();
        for error in [striped.give_back(&mut tx, most).await, striped.restock(&mut tx, most).await] {
            let error = error.unwrap_err();
            assert!(error.to_string().contains("at most 1,000,"), "{error}");
        }
        tx.release().await;
    }

    async fn in_a_quarantine_a_call_fails_at_once(db: &Db) {
        let rowlock = db.rowlock().await;
        let striped = Striped::make(db, &rowlock, &[3, 3]).await;
        rowlock.admin().quarantine(Duration::from_mins(10)).await.unwrap();
        for n in [1, 5] {
            let mut tx = db.begin().await;
            let error = timeout(patience(), striped.take(&mut tx, n)).await.expect("it does not wait");
            let error = error.unwrap_err();
            assert!(matches!(&error, StripesError::Failed(Error::WaitTimeout { busy, .. }) if busy.quarantine.is_some()), "{error}");
            tx.release().await;
            let mut tx = db.begin().await;
            let error = timeout(patience(), striped.give_back(&mut tx, n)).await.expect("it does not wait");
            let error = error.unwrap_err();
            assert!(matches!(&error, StripesError::Failed(Error::WaitTimeout { busy, .. }) if busy.quarantine.is_some()), "{error}");
            tx.release().await;
        }
        assert_eq!(sum(&striped, db).await, 6);
    }

    async fn a_wait_out_of_bounds_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        let striped = Striped::make(db, &rowlock, &[3, 3]).await.wait(Duration::MAX);
        let mut tx = db.begin().await;
        let error = striped.take(&mut tx, 1).await.unwrap_err();
        assert!(matches!(&error, StripesError::Failed(Error::Invalid(InvalidError::Duration { setting: "wait", .. }))), "{error}");
        let error = striped.restock(&mut tx, 1).await.unwrap_err();
        assert!(matches!(&error, StripesError::Failed(Error::Invalid(InvalidError::Duration { setting: "wait", .. }))), "{error}");
        tx.release().await;
    }
}
