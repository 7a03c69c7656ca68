//! The verbs in the application's transactions.

use std::time::Duration;

use rowlock::{Advance, Begun, Error, Outcome, Retry, Scope, Submitted};
use rowlock_recipes::inbox::{Delivery, Inbox};
use rowlock_test::{Striped, begin, begin_new, on_app, on_tx, outcome, release, request, take};

use crate::exercise::{Shop, TTL};

pub(crate) async fn transactions(shop: &Shop) {
    let mut tx = shop.app.begin().await;
    let locked = tx.lock(&shop.one, "tx").await;
    tx.commit().await.unwrap();
    let mut tx = shop.app.begin().await;
    let again = tx
        .acquire(&shop.one, "tx", Duration::from_secs(2))
        .await
        .unwrap();
    assert!(again.fence() > locked.fence());
    tx.commit().await.unwrap();
    // It is free for a lease, and then it is not for a transaction.
    let held = take(&shop.two, "tx", TTL).await;
    assert!(held.fence() > again.fence());
    let mut tx = shop.app.begin().await;
    let busy = tx.try_lock(&shop.one, "tx").await.unwrap();
    assert!(busy.locked().is_none(), "a lease has it");
    tx.release().await;
    release(&held).await;
}

pub(crate) async fn many_names_in_a_transaction(shop: &Shop) {
    for name in ["t1", "t2", "t3"] {
        release(&take(&shop.one, name, TTL).await).await;
    }
    let mut tx = shop.app.begin().await;
    let locked = tx
        .lock_all(&shop.one, &["t3", "t1", "t2"])
        .await
        .unwrap()
        .locked();
    assert_eq!(locked.expect("all are free").fences().count(), 3);
    tx.commit().await.unwrap();
    let mut tx = shop.app.begin().await;
    let all = tx
        .acquire_all(&shop.one, &["t1", "t2", "t3"])
        .await
        .unwrap();
    assert_eq!(all.fences().count(), 3);
    tx.commit().await.unwrap();
}

pub(crate) async fn pins(shop: &Shop) {
    let held = take(&shop.one, "pin", TTL).await;
    let mut tx = shop.app.begin().await;
    tx.pin(&held).await.unwrap();
    tx.commit().await.unwrap();
    let all = shop.one.multi_lock(["p1", "p2"]).acquire().await.unwrap();
    let mut tx = shop.app.begin().await;
    tx.pin_all(&all).await.unwrap();
    tx.commit().await.unwrap();
    all.release().await.unwrap();
    let permit = shop.one.semaphore("pinned", 2).acquire().await.unwrap();
    let mut tx = shop.app.begin().await;
    tx.pin(&permit).await.unwrap();
    tx.commit().await.unwrap();
    release(&permit).await;
    // What is lost cannot be pinned.
    assert!(
        shop.two
            .admin()
            .force_release("pin")
            .await
            .unwrap()
            .is_some()
    );
    let mut tx = shop.app.begin().await;
    let lost = tx.pin(&held).await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    tx.release().await;
}

pub(crate) async fn versions(shop: &Shop) {
    let seen = shop.one.version("v").await.unwrap();
    let mut tx = shop.app.begin().await;
    let advance = tx.advance(&shop.one, &seen).await.unwrap();
    assert!(matches!(advance, Advance::Granted { .. }), "{advance:?}");
    tx.commit().await.unwrap();
    let mut tx = shop.app.begin().await;
    let advance = tx.advance(&shop.two, &seen).await.unwrap();
    assert_eq!(advance, Advance::Conflict);
    let seen = tx.version(&shop.two, "v").await.unwrap();
    tx.release().await;
    assert_eq!(seen.fence(), shop.one.version("v").await.unwrap().fence());
}

async fn table(shop: &Shop, name: &str) {
    let table = format!("CREATE TABLE {name} (id VARCHAR(40) NOT NULL)");
    shop.db.execute(&table).await;
}

pub(crate) async fn effects_once(shop: &Shop) {
    table(shop, "payment").await;
    for (n, rowlock) in [&shop.one, &shop.one, &shop.two].into_iter().enumerate() {
        let begun = on_app!(&shop.app, pool => {
            rowlock.idempotency().run_in_tx(pool, Scope("scope").key("effect"), &request(), |mut tx| async move {
                sqlx::raw_sql("INSERT INTO payment VALUES ('a')").execute(&mut *tx).await?;
                Outcome::json(&"paid")
            }).await.unwrap()
        });
        let is_new = matches!(begun, Begun::New(_));
        assert_eq!(
            (is_new, matches!(begun, Begun::Replay(_))),
            (n == 0, n > 0),
            "{n}: {begun:?}"
        );
    }
    assert_eq!(shop.db.number("SELECT COUNT(*) FROM payment").await, 1);
    let count = on_app!(&shop.app, pool => {
        Retry::new().run(pool, |mut tx| async move {
            let insert = sqlx::raw_sql("INSERT INTO payment VALUES ('b')").execute(&mut *tx);
            Ok::<_, Error>(insert.await?.rows_affected())
        }).await.unwrap()
    });
    assert_eq!(
        (count, shop.db.number("SELECT COUNT(*) FROM payment").await),
        (1, 2)
    );
}

pub(crate) async fn outcomes_in_a_transaction(shop: &Shop) {
    let (one, two) = (shop.one.idempotency(), shop.two.idempotency());
    let guard = begin_new(&one, "in tx").await;
    let mut tx = shop.app.begin().await;
    on_tx!(&mut tx, tx => guard.complete_in(tx, &outcome("paid")).await).unwrap();
    tx.commit().await.unwrap();
    for idempotency in [&one, &two] {
        let begun = begin(idempotency, "in tx").await;
        let Begun::Replay(replay) = begun else {
            panic!("{begun:?}")
        };
        assert_eq!(replay.bytes(), b"paid");
    }
    let record = one.inspect(Scope("scope").key("in tx")).await.unwrap();
    assert!(record.is_some());
}

pub(crate) async fn messages(shop: &Shop) {
    table(shop, "credit").await;
    for (rowlock, is_first) in [(&shop.one, true), (&shop.two, false)] {
        let delivery: Delivery<Error> = on_app!(&shop.app, pool => {
            Inbox::new(rowlock.idempotency(), pool, "billing").receive("id", "payload", |mut tx| async move {
                sqlx::raw_sql("INSERT INTO credit VALUES ('a')").execute(&mut *tx).await?;
                Ok(())
            }).await
        });
        assert_eq!(matches!(delivery, Delivery::Done), is_first, "{delivery:?}");
        assert_eq!(
            matches!(delivery, Delivery::Duplicate),
            !is_first,
            "{delivery:?}"
        );
    }
    assert_eq!(shop.db.number("SELECT COUNT(*) FROM credit").await, 1);
}

pub(crate) async fn form_tokens(shop: &Shop) {
    table(shop, "orders").await;
    let tokens = shop.one.form_tokens();
    let token = tokens.issue("me").await.unwrap();
    for is_first in [true, false] {
        let submitted = on_app!(&shop.app, pool => {
            let tokens = &tokens;
            tokens.submit(pool, Scope("me").key(token.as_str()), &request(), |mut tx| async move {
                sqlx::raw_sql("INSERT INTO orders VALUES ('chair')").execute(&mut *tx).await?;
                let next = tokens.issue_in(&mut tx, "me").await?;
                Outcome::json(&next.as_str())
            }).await.unwrap()
        });
        assert_eq!(
            matches!(submitted, Submitted::New(_)),
            is_first,
            "{submitted:?}"
        );
    }
    assert_eq!(shop.db.number("SELECT COUNT(*) FROM orders").await, 1);
}

pub(crate) async fn stripes(shop: &Shop) {
    let striped = Striped::make(&shop.db, &shop.one, &[3, 3, 3]).await;
    assert_eq!(striped.buy(&shop.app, 7).await, Ok(7));
    assert_eq!(striped.buy(&shop.app, 7).await, Err(2));
    let mut tx = shop.app.begin().await;
    striped.restock(&mut tx, 5).await.unwrap();
    assert_eq!(striped.total(&mut tx).await.unwrap(), 7);
    tx.commit().await.unwrap();
    assert_eq!(striped.quantities(&shop.db).await.iter().sum::<i64>(), 7);
}
