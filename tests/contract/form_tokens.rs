//! Form tokens: a form that is submitted twice does its work once.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use rowlock::{
    Error, Fingerprint, FormTokens, InvalidError, Outcome, Scope, Submitted, TransactionError,
};
use rowlock_test::{App, Db, on_app, on_every_engine, on_tx};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

fn form() -> Fingerprint {
    Fingerprint::of("sku=chair")
}

async fn table(db: &Db) {
    db.execute("CREATE TABLE orders (sku VARCHAR(40) NOT NULL)")
        .await;
}

async fn orders(db: &Db) -> i64 {
    db.number("SELECT COUNT(*) FROM orders").await
}

async fn submit(
    tokens: &FormTokens,
    app: &App,
    token: &str,
    form: &Fingerprint,
) -> Result<Submitted, Error> {
    on_app!(app, pool => {
        tokens.submit(pool, Scope("me").key(token), form, |mut tx| async move {
            sqlx::raw_sql("INSERT INTO orders VALUES ('chair')").execute(&mut *tx).await?;
            let next = tokens.issue_in(&mut tx, "me").await?;
            Outcome::json(&next.as_str())
        }).await
    })
}

/// How many connections of the application's pool are not idle.
fn in_use(app: &App) -> usize {
    on_app!(app, pool => usize::try_from(pool.size()).unwrap() - pool.num_idle())
}

on_every_engine! {
    async fn a_double_click_orders_once_and_gets_the_same_answer(db: &Db) {
        table(db).await;
        let tokens = db.rowlock().await.form_tokens();
        let token = tokens.issue("me").await.unwrap();
        let app = App::connect(&db.url, 8).await;
        let mut clicks = JoinSet::new();
        for _ in 0..8 {
            let (tokens, app, token) = (tokens.clone(), app.clone(), token.clone());
            clicks.spawn(async move { submit(&tokens, &app, token.as_str(), &form()).await });
        }
        let (mut new, mut answers) = (0, Vec::new());
        while let Some(click) = clicks.join_next().await {
            match click.unwrap().unwrap() {
                Submitted::New(outcome) => {
                    new += 1;
                    answers.push(outcome);
                }
                Submitted::Replay(outcome) => answers.push(outcome),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((new, orders(db).await), (1, 1));
        assert!(answers.windows(2).all(|two| two[0] == two[1]));
        // The answer hands out the next token.
        let next: String = answers[0].parse_json().unwrap();
        assert!(matches!(submit(&tokens, &app, &next, &form()).await.unwrap(), Submitted::New(_)));
        assert_eq!(orders(db).await, 2);
    }

    async fn a_slow_form_leaves_the_pool_to_others(db: &Db) {
        table(db).await;
        let app = App::connect(&db.url, 5).await;
        let (here, there) = (db.rowlock().await.form_tokens(), db.rowlock().await.form_tokens());
        let token = here.issue("me").await.unwrap();
        let mut others = Vec::new();
        for _ in 0..20 {
            others.push(here.issue("me").await.unwrap());
        }
        let (inside, is_inside) = oneshot::channel();
        let go_on = Arc::new(Notify::new());
        let slow = {
            let (tokens, app, token, go_on) = (here.clone(), app.clone(), token.clone(), Arc::clone(&go_on));
            tokio::spawn(async move {
                let inside = std::sync::Mutex::new(Some(inside));
                let (inside, go_on) = (&inside, &go_on);
                on_app!(&app, pool => {
                    tokens.submit(pool, Scope("me").key(token.as_str()), &form(), |tx| async move {
                        let _ = inside.lock().unwrap().take().unwrap().send(());
                        go_on.notified().await;
                        drop(tx);
                        Outcome::json(&"slow")
                    }).await
                })
            })
        };
        is_inside.await.unwrap();
        // One connection has the slow form; one more is for the first click that is another client's.
        assert_eq!(in_use(&app), 1);
        let mut clicks = JoinSet::new();
        for n in 0..20 {
            let (tokens, app, token) = (if n < 10 { here.clone() } else { there.clone() }, app.clone(), token.clone());
            let mut click = Box::pin(async move { submit(&tokens, &app, token.as_str(), &form()).await });
            // A click that takes a connection asks the pool for it as the first thing that it waits for.
            let begun = click.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(begun.is_pending(), "{begun:?}");
            clicks.spawn(click);
        }
        assert!(in_use(&app) <= 2, "{} connections: the clicks have some", in_use(&app));
        for other in &others {
            if db.one_writer() {
                // One writes at a time.
                assert_eq!(app.number("SELECT COUNT(*) FROM rowlock_form_token").await, 21);
            } else {
                let submitted = submit(&here, &app, other.as_str(), &form()).await.unwrap();
                assert!(matches!(submitted, Submitted::New(_)), "{submitted:?}");
            }
        }
        go_on.notify_one();
        let submitted: Result<Submitted, Error> = slow.await.unwrap();
        assert!(matches!(submitted, Ok(Submitted::New(_))), "{submitted:?}");
        while let Some(click) = clicks.join_next().await {
            let Submitted::Replay(replay) = click.unwrap().unwrap() else { panic!("replay") };
            assert_eq!(replay.parse_json::<String>().unwrap(), "slow");
        }
    }

    async fn without_a_wait_a_token_in_a_transaction_is_in_flight(db: &Db) {
        table(db).await;
        let (here, there) = (db.rowlock().await.form_tokens(), db.rowlock().await.form_tokens());
        let token = here.issue("me").await.unwrap();
        let seen = std::sync::Mutex::new(Vec::new());
        let first: Result<Submitted, Error> = on_app!(&db.app, pool => {
            here.submit(pool, Scope("me").key(token.as_str()), &form(), |tx| async {
                // Where there is one writer, another process waits for it.
                for tokens in [&here, if db.one_writer() { &here } else { &there }] {
                    let tokens = tokens.clone().wait(Duration::ZERO);
                    let second = submit(&tokens, &db.app, token.as_str(), &form()).await;
                    seen.lock().unwrap().push(second?);
                }
                drop(tx);
                Outcome::json(&"slow")
            }).await
        });
        assert!(matches!(first, Ok(Submitted::New(_))), "{first:?}");
        let seen = seen.into_inner().unwrap();
        assert!(matches!(seen[..], [Submitted::InFlight, Submitted::InFlight]), "{seen:?}");
    }

    async fn a_rollback_gives_the_token_back(db: &Db) {
        table(db).await;
        let tokens = db.rowlock().await.form_tokens();
        let token = tokens.issue("me").await.unwrap();
        let failed: Result<Submitted, Error> = on_app!(&db.app, pool => {
            tokens.submit(pool, Scope("me").key(token.as_str()), &form(), |mut tx| async move {
                sqlx::raw_sql("INSERT INTO orders VALUES ('chair')").execute(&mut *tx).await?;
                Err(Error::Transaction(TransactionError::NotOneRow { rows: 2 }))
            }).await
        });
        assert!(matches!(failed, Err(Error::Transaction(TransactionError::NotOneRow { .. }))), "{failed:?}");
        assert_eq!(orders(db).await, 0);

        let mut tx = db.begin().await;
        assert!(on_tx!(&mut tx, tx => tokens.consume_in(tx, Scope("me").key(token.as_str())).await).unwrap());
        assert!(!on_tx!(&mut tx, tx => tokens.consume_in(tx, Scope("me").key(token.as_str())).await).unwrap());
        tx.release().await;
        assert!(matches!(submit(&tokens, &db.app, token.as_str(), &form()).await.unwrap(), Submitted::New(_)));
    }

    async fn a_click_that_waits_for_one_that_is_rolled_back_does_the_work(db: &Db) {
        table(db).await;
        let tokens = db.rowlock().await.form_tokens();
        let token = tokens.issue("me").await.unwrap();
        let form = form();
        let second = Box::pin(submit(&tokens, &db.app, token.as_str(), &form));
        let second = std::sync::Mutex::new(second);
        let failed: Result<Submitted, Error> = on_app!(&db.app, pool => {
            tokens.submit(pool, Scope("me").key(token.as_str()), &form, |tx| {
                let begun = second.lock().unwrap().as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(begun.is_pending(), "{begun:?}");
                async move {
                    drop(tx);
                    Err(Error::Transaction(TransactionError::NotOneRow { rows: 2 }))
                }
            }).await
        });
        assert!(matches!(failed, Err(Error::Transaction(TransactionError::NotOneRow { .. }))), "{failed:?}");
        let submitted = second.into_inner().unwrap().await.unwrap();
        assert!(matches!(submitted, Submitted::New(_)), "{submitted:?}");
        assert_eq!(orders(db).await, 1);
    }

    async fn a_token_that_is_not_there_is_gone(db: &Db) {
        table(db).await;
        let tokens = db.rowlock().await.form_tokens();
        let issued = tokens.issue("me").await.unwrap();
        let upper = issued.as_str().to_uppercase();
        for token in ["", "nonsense", &"x".repeat(5_000), &upper, "\0"] {
            let gone = submit(&tokens, &db.app, token, &form()).await.unwrap();
            assert!(matches!(gone, Submitted::Gone) || *token == *issued.as_str(), "{token:?}: {gone:?}");
        }
        // Somebody else's.
        let theirs = tokens.issue("them").await.unwrap();
        let gone = submit(&tokens, &db.app, theirs.as_str(), &form()).await.unwrap();
        assert!(matches!(gone, Submitted::Gone), "{gone:?}");
        // One whose time is over.
        let past = db.past();
        db.execute(&format!("UPDATE rowlock_form_token SET expires_at = {past}")).await;
        let gone = submit(&tokens, &db.app, issued.as_str(), &form()).await.unwrap();
        assert!(matches!(gone, Submitted::Gone), "{gone:?}");
        assert_eq!(orders(db).await, 0);
    }

    async fn a_used_token_is_for_one_form(db: &Db) {
        table(db).await;
        let tokens = db.rowlock().await.form_tokens();
        let token = tokens.issue("me").await.unwrap();
        assert!(matches!(submit(&tokens, &db.app, token.as_str(), &form()).await.unwrap(), Submitted::New(_)));
        let other = Fingerprint::of("sku=table");
        let refused = submit(&tokens, &db.app, token.as_str(), &other).await.unwrap();
        assert!(matches!(refused, Submitted::Mismatch), "{refused:?}");
        assert_eq!(orders(db).await, 1);
    }

    async fn the_token_itself_is_not_in_the_table(db: &Db) {
        let tokens = db.rowlock().await.form_tokens();
        let token = tokens.issue("me").await.unwrap();
        assert_eq!(token.as_str().len(), 32);
        assert_eq!(format!("{token:?}"), "FormToken(…)");
        assert_eq!(token.to_string(), token.as_str());
        let text = db.bytes(token.as_str());
        assert_eq!(db.number(&format!("SELECT COUNT(*) FROM rowlock_form_token WHERE token = {text}")).await, 0);
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_form_token").await, 1);
    }

    async fn settings_that_make_no_sense_are_refused(db: &Db) {
        let tokens = db.rowlock().await.form_tokens();
        let refused = tokens.clone().ttl(Duration::from_millis(999)).issue("me").await;
        assert!(matches!(refused, Err(Error::Invalid(InvalidError::Duration { .. }))), "{refused:?}");
        let short = tokens.clone().retention(Duration::from_millis(999));
        let refused = submit(&short, &db.app, "no token", &form()).await;
        assert!(matches!(refused, Err(Error::Invalid(InvalidError::Duration { .. }))), "{refused:?}");
        assert!(matches!(tokens.issue("").await, Err(Error::Invalid(InvalidError::Key { .. }))));
        assert!(matches!(tokens.issue([7; 256]).await, Err(Error::Invalid(InvalidError::Key { .. }))));
    }
}
