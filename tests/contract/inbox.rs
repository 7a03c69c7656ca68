//! An inbox: a message takes effect once, however often it is delivered, and to whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rowlock::{Error, Rowlock, TransactionError};
use rowlock_recipes::inbox::{Delivery, Inbox, Reply};
use rowlock_test::{App, Db, on_app, on_every_engine};
use tokio::sync::{Notify, oneshot};

async fn table(db: &Db) {
    db.execute("CREATE TABLE credit (id VARCHAR(40) NOT NULL)")
        .await;
}

async fn credits(db: &Db, id: &str) -> i64 {
    db.number(&format!("SELECT COUNT(*) FROM credit WHERE id = '{id}'"))
        .await
}

/// A message with the payload `bad` fails after its write. `wait`: `None` leaves the inbox's own.
async fn receive(
    rowlock: &Rowlock,
    app: &App,
    id: &str,
    payload: &str,
    wait: Option<Duration>,
) -> Delivery<Error> {
    on_app!(app, pool => {
        let mut inbox = Inbox::new(rowlock.idempotency(), pool, "billing");
        if let Some(wait) = wait {
            inbox = inbox.wait(wait);
        }
        inbox.receive(id, payload, |mut tx| async move {
            let insert = format!("INSERT INTO credit VALUES ('{id}')");
            sqlx::raw_sql(sqlx::AssertSqlSafe(insert)).execute(&mut *tx).await?;
            if payload == "bad" { Err(Error::Transaction(TransactionError::NotOneRow { rows: 2 })) } else { Ok(()) }
        }).await
    })
}

async fn receive_now(rowlock: &Rowlock, db: &Db, id: &str, payload: &str) -> Delivery<Error> {
    receive(rowlock, &db.app, id, payload, Some(Duration::ZERO)).await
}

on_every_engine! {
    async fn a_message_takes_effect_once_and_another_payload_is_put_aside(db: &Db) {
        table(db).await;
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let first = receive_now(&one, db, "a", "good").await;
        assert!(matches!(first, Delivery::Done), "{first:?}");
        for rowlock in [&one, &two, &one] {
            let again = receive_now(rowlock, db, "a", "good").await;
            assert!(matches!(again, Delivery::Duplicate), "{again:?}");
            assert_eq!(again.reply(), Reply::Ack);
        }
        let other = receive_now(&two, db, "a", "other").await;
        assert!(matches!(other, Delivery::OtherPayload), "{other:?}");
        assert_eq!(other.reply(), Reply::DeadLetter);
        assert_eq!(credits(db, "a").await, 1);
    }

    async fn another_payload_is_put_aside_for_as_long_as_the_id_is_remembered(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        assert_eq!(receive_now(&rowlock, db, "17", "a").await.reply(), Reply::Ack);
        let past = db.past();
        let past = format!("UPDATE rowlock_idempotency SET retain_until = {past}");
        db.execute(&past).await;
        // The retention is over, and the producer counts from the beginning again.
        let other = receive_now(&rowlock, db, "17", "b").await;
        assert!(matches!(other, Delivery::OtherPayload), "{other:?}");
        let same = receive_now(&rowlock, db, "17", "a").await;
        assert!(matches!(same, Delivery::Duplicate), "{same:?}");
        assert_eq!(credits(db, "17").await, 1);
    }

    async fn a_failure_writes_nothing_and_the_next_delivery_runs(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        for _ in 0..2 {
            let failed = receive_now(&rowlock, db, "a", "bad").await;
            assert!(matches!(failed, Delivery::Failed(Error::Transaction(TransactionError::NotOneRow { .. }))), "{failed:?}");
            assert_eq!(failed.reply(), Reply::Nack);
            let is_final = |error: &Error| matches!(error, Error::Transaction(TransactionError::NotOneRow { .. }));
            assert_eq!(failed.reply_unless(is_final), Reply::DeadLetter);
        }
        assert_eq!(credits(db, "a").await, 0);
        let good = receive_now(&rowlock, db, "a", "good").await;
        assert!(matches!(good, Delivery::Done), "{good:?}");
        assert_eq!(credits(db, "a").await, 1);
        for id in [String::new(), "x".repeat(256)] {
            let nameless = receive_now(&rowlock, db, &id, "good").await;
            assert!(matches!(nameless, Delivery::InvalidId), "{nameless:?}");
            assert_eq!(nameless.reply(), Reply::DeadLetter);
        }
    }

    async fn a_message_that_another_consumer_works_on_is_in_flight_or_waited_for(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        let (go_on, (inside, is_inside)) = (Arc::new(Notify::new()), oneshot::channel());
        let slow = {
            let (rowlock, app, go_on) = (rowlock.clone(), db.app.clone(), Arc::clone(&go_on));
            tokio::spawn(async move {
                let inside = std::sync::Mutex::new(Some(inside));
                let (inside, go_on) = (&inside, &go_on);
                on_app!(&app, pool => {
                    let inbox = Inbox::new(rowlock.idempotency(), pool, "billing");
                    let slow: Delivery<Error> = inbox.receive("a", "good", |mut tx| async move {
                        sqlx::raw_sql("INSERT INTO credit VALUES ('a')").execute(&mut *tx).await?;
                        inside.lock().unwrap().take().unwrap().send(()).unwrap();
                        go_on.notified().await;
                        Ok(())
                    }).await;
                    slow
                })
            })
        };
        is_inside.await.unwrap();
        let busy = receive_now(&rowlock, db, "a", "good").await;
        assert!(matches!(busy, Delivery::InFlight), "{busy:?}");
        assert_eq!(busy.reply(), Reply::Nack);
        let has_waited = AtomicBool::new(false);
        let waits = async {
            let waited = receive(&rowlock, &db.app, "a", "good", None).await;
            has_waited.store(true, Ordering::SeqCst);
            waited
        };
        let ends = async {
            let busy = receive_now(&rowlock, db, "a", "good").await;
            assert!(matches!(busy, Delivery::InFlight), "{busy:?}");
            assert!(!has_waited.load(Ordering::SeqCst));
            go_on.notify_one();
        };
        let (waited, ()) = tokio::join!(waits, ends);
        assert!(matches!(waited, Delivery::Duplicate), "{waited:?}");
        assert!(matches!(slow.await.unwrap(), Delivery::Done));
        assert_eq!(credits(db, "a").await, 1);
    }

    async fn a_batch_has_a_result_for_each_message_in_their_order(db: &Db) {
        table(db).await;
        let rowlock = db.rowlock().await;
        assert!(matches!(receive_now(&rowlock, db, "m1", "good").await, Delivery::Done));
        let batch: Vec<(String, &str)> = (0..20)
            .map(|n| (format!("m{n}"), if n % 5 == 3 { "bad" } else { "good" }))
            .chain([("m1".into(), "other"), ("m2".into(), "good")])
            .collect();
        let deliveries: Vec<Delivery<Error>> = on_app!(&db.app, pool => {
            let inbox = Inbox::new(rowlock.idempotency(), pool, "billing").at_once(3);
            inbox.receive_all(&batch, |mut tx, (id, payload)| async move {
                let insert = format!("INSERT INTO credit VALUES ('{id}')");
                sqlx::raw_sql(sqlx::AssertSqlSafe(insert)).execute(&mut *tx).await?;
                if *payload == "bad" { Err(Error::Transaction(TransactionError::NotOneRow { rows: 2 })) } else { Ok(()) }
            }).await
        });
        assert_eq!(deliveries.len(), batch.len());
        for (n, delivery) in deliveries.iter().enumerate() {
            let as_expected = match n {
                1 | 21 => matches!(delivery, Delivery::Duplicate),
                20 => matches!(delivery, Delivery::OtherPayload),
                _ if n % 5 == 3 => matches!(delivery, Delivery::Failed(_)),
                _ => matches!(delivery, Delivery::Done),
            };
            assert!(as_expected, "{n}: {delivery:?}");
        }
        for n in 0..20 {
            assert_eq!(credits(db, &format!("m{n}")).await, i64::from(n % 5 != 3), "{n}");
        }
    }
}
