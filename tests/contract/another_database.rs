//! What a client knows of a key is no answer for a pool that leads to another database: one database for each tenant,
//! and one client by mistake.

use std::time::Duration;

use rowlock::{
    Begun, Error, Fingerprint, Idempotency, Outcome, Scope, Submitted, TransactionError,
};
use rowlock_recipes::inbox::{Delivery, Inbox};
use rowlock_test::{App, Db, on_app, on_every_engine};
use tokio::sync::Notify;

async fn run(idempotency: &Idempotency, app: &App, request: &str) -> Result<Begun<Outcome>, Error> {
    let request = Fingerprint::of(request);
    on_app!(app, pool => idempotency.run_in_tx(pool, Scope("scope").key("k"), request, |_| async { Outcome::json(&"paid") }).await)
}

fn is_refused<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let error = answer.expect_err("it was done in another database");
    assert!(
        matches!(
            error,
            Error::Transaction(TransactionError::WrongDatabase { .. })
        ),
        "{error}"
    );
}

on_every_engine! {
    async fn a_key_of_one_tenant_is_not_done_for_another(db: &Db) {
        let tenant = Db::new(db.engine).await;
        drop(tenant.rowlock().await);
        for client in [db.rowlock().await, db.rowlock().await] {
            // The first one does the work, the second one finds the record.
            let idempotency = client.idempotency();
            let begun = run(&idempotency, &db.app, "a").await.unwrap();
            assert!(matches!(begun, Begun::New(_) | Begun::Replay(_)), "{begun:?}");
            for request in ["a", "another"] {
                is_refused(run(&idempotency, &tenant.app, request).await);
            }
            let begun = run(&idempotency, &db.app, "a").await.unwrap();
            assert!(matches!(begun, Begun::Replay(_)), "{begun:?}");
        }
        let begun = run(&tenant.rowlock().await.idempotency(), &tenant.app, "a").await.unwrap();
        assert!(matches!(begun, Begun::New(_)), "{begun:?}");
        tenant.remove().await;
    }

    async fn callers_that_wait_for_each_other_do_not_share_an_outcome_over_databases(db: &Db) {
        let tenant = Db::new(db.engine).await;
        drop(tenant.rowlock().await);
        let idempotency = db.rowlock().await.idempotency().wait(Duration::from_mins(1));
        let (begun, theirs) = tokio::join!(run(&idempotency, &db.app, "a"), run(&idempotency, &tenant.app, "a"));
        assert!(matches!(begun, Ok(Begun::New(_))), "{begun:?}");
        is_refused(theirs);
        tenant.remove().await;
    }

    async fn a_message_of_one_tenant_is_not_acknowledged_for_another(db: &Db) {
        let tenant = Db::new(db.engine).await;
        drop(tenant.rowlock().await);
        let idempotency = db.rowlock().await.idempotency();
        for (app, is_ours) in [(&db.app, true), (&tenant.app, false), (&db.app, true)] {
            let delivery: Delivery<Error> = on_app!(app, pool => {
                Inbox::new(idempotency.clone(), pool, "billing").receive("m", "payload", |_| async { Ok(()) }).await
            });
            match delivery {
                Delivery::Failed(error) => assert!(matches!(error, Error::Transaction(TransactionError::WrongDatabase { .. })) && !is_ours, "{error}"),
                delivery => assert!(is_ours, "{delivery:?}"),
            }
        }
        tenant.remove().await;
    }

    async fn a_form_of_one_tenant_is_not_submitted_for_another(db: &Db) {
        let tenant = Db::new(db.engine).await;
        drop(tenant.rowlock().await);
        let tokens = db.rowlock().await.form_tokens();
        let token = tokens.issue("scope").await.unwrap();
        let submit = async |app: &App, token: &str| -> Result<Submitted, Error> {
            let form = Fingerprint::of("form");
            on_app!(app, pool => tokens.submit(pool, Scope("scope").key(token), form, |_| async { Outcome::json(&"done") }).await)
        };
        let submitted = submit(&db.app, token.as_str()).await.unwrap();
        assert!(matches!(submitted, Submitted::New(_)), "{submitted:?}");
        is_refused(submit(&tenant.app, token.as_str()).await);
        is_refused(submit(&tenant.app, "a token that was never issued").await);
        let submitted = submit(&db.app, token.as_str()).await.unwrap();
        assert!(matches!(submitted, Submitted::Replay(_)), "{submitted:?}");
        tenant.remove().await;
    }

    async fn a_click_that_waits_is_not_answered_for_another_tenant(db: &Db) {
        let tenant = Db::new(db.engine).await;
        drop(tenant.rowlock().await);
        let tokens = db.rowlock().await.form_tokens();
        let token = tokens.issue("scope").await.unwrap();
        let (began, waits) = (Notify::new(), Notify::new());
        let submit = async |app: &App| -> Result<Submitted, Error> {
            let key = Scope("scope").key(token.as_str());
            let form = Fingerprint::of("form");
            on_app!(app, pool => {
                tokens.submit(pool, key, form, |_| async {
                    began.notify_one();
                    waits.notified().await;
                    Outcome::json(&"done")
                }).await
            })
        };
        let second = async {
            began.notified().await;
            waits.notify_one();
            submit(&tenant.app).await
        };
        let (first, second) = tokio::join!(submit(&db.app), second);
        assert!(matches!(first.unwrap(), Submitted::New(_)));
        is_refused(second);
        tenant.remove().await;
    }
}
