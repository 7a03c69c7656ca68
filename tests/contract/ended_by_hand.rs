//! A transaction that the application has ended with SQL of its own, which sqlx does not see: each statement after it
//! would commit by itself. It is found out.

use std::time::Duration;

use rowlock::{Begun, Error, Fingerprint, Outcome, Scope, TransactionError};
use rowlock_test::{App, Db, on_app, on_every_engine, on_tx, take};

const TTL: Duration = Duration::from_secs(30);
const ENDS: [&str; 2] = ["COMMIT", "ROLLBACK"];

fn request() -> Fingerprint {
    Fingerprint::of("request")
}

fn is_over(error: &Error) {
    assert!(
        matches!(error, Error::Transaction(TransactionError::Over { .. })),
        "{error:?}"
    );
    assert!(error.to_string().contains("roll back"), "{error}");
}

on_every_engine! {
    async fn locks_are_refused_in_a_transaction_that_was_ended_by_hand(db: &Db) {
        let rowlock = db.rowlock().await;
        let tokens = rowlock.form_tokens();
        db.execute("CREATE TABLE app (n BIGINT)").await;
        let held = take(&rowlock, "a", TTL).await;
        let token = tokens.issue("me").await.unwrap();
        for end in ENDS {
            for before in ["", "INSERT INTO app VALUES (1)", "lock"] {
                // A pool of its own: sqlx takes the connection for one with an open transaction.
                let app = App::connect(&db.url, 1).await;
                let mut tx = app.begin().await;
                match before {
                    "" => {}
                    "lock" => drop(tx.lock(&rowlock, "before").await),
                    insert => drop(tx.execute(insert).await.unwrap()),
                }
                tx.execute(end).await.unwrap();
                let version = rowlock.version("free").await.unwrap();
                is_over(&tx.pin(&held).await.unwrap_err());
                is_over(&tx.try_lock(&rowlock, "free").await.unwrap_err());
                is_over(&tx.acquire(&rowlock, "free", TTL).await.unwrap_err());
                is_over(&tx.lock_all(&rowlock, &["free", "other"]).await.unwrap_err());
                is_over(&tx.advance(&rowlock, &version).await.unwrap_err());
                is_over(&on_tx!(&mut tx, tx => tokens.issue_in(tx, "me").await).unwrap_err());
                is_over(&on_tx!(&mut tx, tx => tokens.consume_in(tx, Scope("me").key(token.as_str())).await).unwrap_err());
                drop(tx);
            }
        }
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        tx.lock(&rowlock, "free").await;
        tx.commit().await.unwrap();
        // The token is good, also in a transaction that has written nothing before.
        for (roll_back, used) in [(true, true), (false, true), (false, false)] {
            let mut tx = db.begin().await;
            let found = on_tx!(&mut tx, tx => tokens.consume_in(tx, Scope("me").key(token.as_str())).await);
            assert_eq!(found.unwrap(), used);
            if roll_back { drop(tx) } else { tx.commit().await.unwrap() }
        }
    }

    async fn an_outcome_is_not_kept_in_a_transaction_that_was_ended_by_hand(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        db.execute("CREATE TABLE app (n BIGINT)").await;
        for end in ENDS {
            let begun = idempotency.begin(Scope("scope").key(end), &request()).await.unwrap();
            let Begun::New(guard) = begun else { panic!("{begun:?}") };
            let app = App::connect(&db.url, 1).await;
            let mut tx = app.begin().await;
            tx.execute("INSERT INTO app VALUES (1)").await.unwrap();
            tx.execute(end).await.unwrap();
            let outcome = Outcome::json(&"alone").unwrap();
            is_over(&on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome).await).unwrap_err());
            drop(tx);
            let begun = idempotency.begin(Scope("scope").key(end), &request()).await.unwrap();
            assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");

            // The attempt goes on: in a transaction that has written nothing before, too.
            let mut tx = db.begin().await;
            let outcome = Outcome::json(&"together").unwrap();
            on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome).await).unwrap();
            tx.commit().await.unwrap();
            let begun = idempotency.begin(Scope("scope").key(end), &request()).await.unwrap();
            let Begun::Replay(replay) = begun else { panic!("{begun:?}") };
            assert_eq!(replay, outcome);
        }
    }

    async fn run_in_tx_and_submit_keep_nothing_where_their_transaction_was_ended_by_hand(db: &Db) {
        let rowlock = db.rowlock().await;
        let idempotency = rowlock.idempotency();
        db.execute("CREATE TABLE app (n BIGINT)").await;
        for end in ENDS {
            for then in ["", "; BEGIN", "; BEGIN; INSERT INTO app VALUES (2)"] {
                // A pool of its own: SQLite's connection is spoiled for sqlx.
                let app = App::connect(&db.url, 1).await;
                let end = format!("{end}{then}");
                let ran = on_app!(&app, pool => {
                    idempotency.run_in_tx(pool, Scope("scope").key(&end), &request(), |mut tx| {
                        let end = sqlx::AssertSqlSafe(end.clone());
                        async move {
                            sqlx::raw_sql("INSERT INTO app VALUES (1)").execute(&mut *tx).await?;
                            sqlx::raw_sql(end).execute(&mut *tx).await?;
                            Outcome::json(&"alone")
                        }
                    }).await
                });
                let Err(error) = ran else { panic!("{end}: {ran:?}") };
                is_over(&error);
            }
        }
        let tokens = rowlock.form_tokens();
        for end in ENDS {
            let token = tokens.issue("me").await.unwrap();
            let app = App::connect(&db.url, 1).await;
            let submitted = on_app!(&app, pool => {
                tokens.submit(pool, Scope("me").key(token.as_str()), &request(), |mut tx| async move {
                    sqlx::raw_sql("INSERT INTO app VALUES (3)").execute(&mut *tx).await?;
                    sqlx::raw_sql(end).execute(&mut *tx).await?;
                    Outcome::json(&"alone")
                }).await
            });
            let Err(error) = submitted else { panic!("{end}: {submitted:?}") };
            is_over(&error);
        }
        // What the application has committed is committed. Nothing says that it was done.
        assert_eq!(db.number("SELECT COUNT(*) FROM app").await, 4);
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_idempotency WHERE state = 'done'").await, 0);
    }
}
