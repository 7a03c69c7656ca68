//! Order dedupe without a lock: a unique index on the order number. The duplicate is answered with the row that is
//! there, inside a transaction that goes on afterwards. (docs/DEDUPE.md has these statements.)

use rowlock_test::{Db, LEVELS, Tx, on_every_engine};
use tokio::sync::Barrier;

/// What became of an order.
#[derive(Debug, PartialEq, Eq)]
enum Placed {
    New,
    /// It is there already, for this amount.
    Duplicate {
        cents: i64,
    },
}

/// Places an order, or finds the one that is there.
async fn place(db: &Db, tx: &mut Tx, number: i64, cents: i64) -> Result<Placed, sqlx::Error> {
    let unless_exists = (db.kind.unless_exists)("number");
    let insert =
        format!("INSERT INTO orders (number, cents) VALUES ({number}, {cents}){unless_exists}");
    match tx.execute(&insert).await {
        Ok(1) => return Ok(Placed::New),
        Ok(_) => {}
        // Such an engine rolls back the statement only.
        Err(error) if unless_exists.is_empty() && is_duplicate(&error) => {}
        Err(error) => return Err(error),
    }
    // FOR SHARE: under REPEATABLE READ a plain SELECT may not see what the index sees.
    let share = db.kind.share;
    let cents = tx
        .number(&format!(
            "SELECT cents FROM orders WHERE number = {number}{share}"
        ))
        .await;
    Ok(Placed::Duplicate { cents })
}

fn is_duplicate(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

async fn tables(db: &Db) {
    db.execute("CREATE TABLE orders (number BIGINT NOT NULL PRIMARY KEY, cents BIGINT NOT NULL)")
        .await;
    db.execute("CREATE TABLE seen (number BIGINT NOT NULL)")
        .await;
}

on_every_engine! {
    async fn a_duplicate_is_answered_with_the_row_and_the_transaction_goes_on(db: &Db) {
        tables(db).await;
        for level in LEVELS {
            db.execute("DELETE FROM orders").await;
            db.execute("DELETE FROM seen").await;
            let mut tx = db.begin_at(level).await;
            assert_eq!(place(db, &mut tx, 7, 500).await.unwrap(), Placed::New);
            // In the same transaction, too.
            assert_eq!(place(db, &mut tx, 7, 999).await.unwrap(), Placed::Duplicate { cents: 500 });
            tx.commit().await.unwrap();

            let mut tx = db.begin_at(level).await;
            tx.execute("INSERT INTO seen VALUES (1)").await.unwrap();
            assert_eq!(place(db, &mut tx, 7, 600).await.unwrap(), Placed::Duplicate { cents: 500 });
            tx.execute("INSERT INTO seen VALUES (2)").await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(db.number("SELECT COUNT(*) FROM seen").await, 2, "{level}");
            assert_eq!(db.number("SELECT COUNT(*) FROM orders").await, 1);
        }
    }

    async fn a_duplicate_that_is_newer_than_the_snapshot_is_found_or_told(db: &Db) {
        if db.one_writer() {
            return; // while one writes, nobody else does
        }
        tables(db).await;
        for (number, level) in (1..).zip(LEVELS) {
            let mut tx = db.begin_at(level).await;
            tx.number("SELECT COUNT(*) FROM seen").await; // takes the snapshot
            let mut other = db.begin().await;
            assert_eq!(place(db, &mut other, number, 500).await.unwrap(), Placed::New);
            other.commit().await.unwrap();
            match place(db, &mut tx, number, 600).await {
                Ok(placed) => {
                    assert_eq!(placed, Placed::Duplicate { cents: 500 }, "{level}");
                    tx.commit().await.unwrap();
                }
                Err(error) => {
                    let error = rowlock::Error::from(error);
                    assert!(db.kind.refuses_newer_rows && level != "READ COMMITTED", "{error}");
                    assert!(error.is_retryable(), "{error}");
                    tx.release().await;
                }
            }
        }
    }

    async fn of_many_at_once_one_is_new_and_all_get_its_row(db: &Db) {
        tables(db).await;
        let start = Barrier::new(4);
        let one = |cents: i64| {
            let start = &start;
            async move {
                let mut new = 0;
                for number in 0..25 {
                    start.wait().await;
                    let mut tx = db.begin_at("READ COMMITTED").await;
                    match place(db, &mut tx, number, cents).await.unwrap() {
                        Placed::New => new += 1,
                        Placed::Duplicate { cents: theirs } => assert_ne!(theirs, cents),
                    }
                    tx.execute(&format!("INSERT INTO seen VALUES ({number})")).await.unwrap();
                    tx.commit().await.unwrap();
                }
                new
            }
        };
        let (a, b, c, d) = tokio::join!(one(1), one(2), one(3), one(4));
        assert_eq!(a + b + c + d, 25, "each order once");
        assert_eq!(db.number("SELECT COUNT(*) FROM orders").await, 25);
        assert_eq!(db.number("SELECT COUNT(*) FROM seen").await, 100, "every transaction went on");
    }

    async fn an_order_that_was_rolled_back_can_be_placed(db: &Db) {
        tables(db).await;
        let mut tx = db.begin().await;
        assert_eq!(place(db, &mut tx, 7, 500).await.unwrap(), Placed::New);
        tx.release().await;
        let mut tx = db.begin().await;
        assert_eq!(place(db, &mut tx, 7, 600).await.unwrap(), Placed::New);
        tx.commit().await.unwrap();
        assert_eq!(db.number("SELECT cents FROM orders WHERE number = 7").await, 600);
    }
}
