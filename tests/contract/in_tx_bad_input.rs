//! Transactions that a lock cannot be taken in: clear errors, and no connection left in a bad state.

use std::time::Duration;

use rowlock::{Error, Held, InvalidError, Rowlock, SchemaError, TransactionError};
use rowlock_test::{App, Db, ENGINES, Tx, on_every_engine, on_tx, take};

const TTL: Duration = Duration::from_secs(30);

/// What each of the verbs says about `tx`.
async fn verdicts(tx: &mut Tx, rowlock: &Rowlock, held: &Held) -> [Error; 3] {
    let version = rowlock.version("free").await.unwrap();
    [
        tx.pin(held).await.unwrap_err(),
        tx.try_lock(rowlock, "free").await.unwrap_err(),
        tx.advance(rowlock, &version).await.unwrap_err(),
    ]
}

on_every_engine! {
    async fn a_transaction_of_another_database_is_refused(db: &Db) {
        let other = Db::empty(db.engine).await;
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;

        let mut tx = other.begin().await; // there are no tables at all
        let error = tx.pin(&held).await.unwrap_err();
        assert!(matches!(error, Error::Transaction(TransactionError::WrongDatabase { .. })), "{error}");
        assert!(error.to_string().contains("no rowlock tables"), "{error}");
        tx.release().await;

        let theirs = other.rowlock().await;
        let same_name = take(&theirs, "a", TTL).await;
        let mut tx = other.begin().await;
        for error in verdicts(&mut tx, &rowlock, &held).await {
            assert!(matches!(error, Error::Transaction(TransactionError::WrongDatabase { .. })), "{error}");
        }
        tx.release().await;
        let version = theirs.version("free").await.unwrap();
        let mut tx = db.begin().await;
        let error = tx.advance(&rowlock, &version).await.unwrap_err();
        assert!(matches!(error, Error::Transaction(TransactionError::WrongDatabase { .. })), "{error}");
        tx.release().await;

        assert!(held.is_held() && same_name.is_held());
        drop((theirs, same_name));
        other.remove().await;
    }

    async fn a_transaction_of_another_engine_is_refused(db: &Db) {
        let stranger = *ENGINES.iter().find(|&&engine| engine != db.engine).unwrap();
        let other = Db::new(stranger).await;
        drop(other.rowlock().await);
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        let mut tx = other.begin().await;
        for error in verdicts(&mut tx, &rowlock, &held).await {
            assert!(matches!(error, Error::Transaction(TransactionError::WrongDatabase { .. })), "{error}");
            assert!(error.to_string().contains(stranger.name()), "{error}");
        }
        tx.release().await;
        assert!(held.is_held());
        other.remove().await;
    }

    async fn a_transaction_that_is_over_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        db.execute("CREATE TABLE app (n BIGINT)").await;
        for end in db.kind.ends {
            // A pool of its own: sqlx takes the connection for one with an open transaction, also when it is back in
            // its pool.
            let app = App::connect(&db.url, 1).await;
            let mut tx = app.begin().await;
            let _ = tx.execute(end).await;
            for error in verdicts(&mut tx, &rowlock, &held).await {
                assert!(matches!(error, Error::Transaction(TransactionError::Over { .. })), "{error}");
                assert!(error.to_string().contains("roll back"), "{error}");
            }
            drop(tx);
        }
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        tx.lock(&rowlock, "free").await;
        tx.commit().await.unwrap();
    }

    async fn a_read_only_transaction_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        drop(take(&rowlock, "free", TTL).await);
        rowlock.flush().await;
        let app = App::connect(&db.url, 1).await;
        let mut tx = app.begin_read_only().await;
        let error = tx.try_lock(&rowlock, "free").await.unwrap_err();
        assert!(matches!(error, Error::Transaction(TransactionError::ReadOnly { .. })), "{error}");
        tx.release().await;
    }

    async fn names_are_checked(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut tx = db.begin().await;
        let shown = on_tx!(&mut tx, tx => format!("{:?}", rowlock.in_tx(tx)));
        assert_eq!(shown, "InTx { .. }");
        let error = tx.try_lock(&rowlock, "").await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Name { .. })), "{error}");
        let error = tx.lock_all(&rowlock, &[]).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "names", .. })), "{error}");
        let error = tx.lock_all(&rowlock, &["a", "b", "a"]).await.unwrap_err();
        assert!(matches!(&error, Error::Transaction(TransactionError::DuplicateName { name }) if name.as_str() == "a"), "{error}");
        assert_eq!(error.to_string(), r#""a" is given twice in one call: give each name once"#);
        let error = tx.acquire(&rowlock, "a", Duration::MAX).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Duration { .. })), "{error}");
        tx.lock(&rowlock, "a").await;
        tx.commit().await.unwrap();
    }

    async fn a_name_is_locked_once_in_a_transaction(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut fence = 0;
        for _ in 0..5 {
            let mut tx = db.begin().await;
            let first = tx.lock(&rowlock, "a").await.fence();
            assert!(first > fence, "on the same connection, after the last one has ended");
            fence = first;
            tx.lock(&rowlock, "b").await;
            let error = tx.try_lock(&rowlock, "a").await.unwrap_err();
            assert!(matches!(error, Error::Transaction(TransactionError::AlreadyLocked { .. })), "{error}");
            let error = tx.acquire(&rowlock, "b", Duration::ZERO).await.unwrap_err();
            assert!(matches!(error, Error::Transaction(TransactionError::AlreadyLocked { .. })), "{error}");
            tx.commit().await.unwrap();
        }
        assert!(rowlock.version("a").await.unwrap().fence() >= fence);
    }

    async fn what_a_savepoint_gave_back_may_be_locked_again(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut tx = db.begin().await;
        tx.lock(&rowlock, "before").await;
        tx.execute("SAVEPOINT mine").await.unwrap();
        let first = tx.lock(&rowlock, "a").await;
        tx.execute("ROLLBACK TO SAVEPOINT mine").await.unwrap();
        let second = tx.lock(&rowlock, "a").await;
        assert!(second.fence() > first.fence());
        let error = tx.try_lock(&rowlock, "before").await.unwrap_err();
        assert!(matches!(error, Error::Transaction(TransactionError::AlreadyLocked { .. })), "{error}");
        tx.commit().await.unwrap();
    }

    async fn a_damaged_row_is_an_error(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        db.damage("UPDATE rowlock_lock SET grant_id = NULL").await;
        let mut tx = db.begin().await;
        let error = tx.try_lock(&rowlock, "a").await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Corrupt { .. })), "{error}");
        tx.pin(&held).await.unwrap_err();
        tx.release().await;
    }

    async fn a_copy_of_the_tables_without_an_id_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        db.execute("DELETE FROM rowlock_database").await;
        let mut tx = db.begin().await;
        let error = tx.try_lock(&rowlock, "a").await.unwrap_err();
        assert!(matches!(error, Error::Transaction(TransactionError::WrongDatabase { .. })), "{error}");
        tx.release().await;
        let error = Rowlock::connect(&db.url).await.unwrap_err();
        assert!(error.to_string().contains("rowlock_database"), "{error}");
    }
}
