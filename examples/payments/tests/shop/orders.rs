//! One charge per order, whatever keys its requests have; and the shop's refusals.

use std::sync::atomic::Ordering;

use rowlock_test::{Db, on_every_engine};

use crate::world::World;

on_every_engine! {
    async fn another_key_is_told_who_has_paid(db: &Db) {
        let world = World::new(db).await;
        let first = world.pay("k1", "4711", 500).await;
        assert_eq!(first.status, 201, "{first:?}");
        for (key, cents) in [("k2", 500), ("k3", 700), ("k4", 513)] {
            let other = world.pay(key, "4711", cents).await;
            assert_eq!((other.status, &other.body), (409, &first.body), "{key}");
        }
        let again = world.pay("k1", "4711", 500).await;
        assert_eq!((again.status, &again.body), (201, &first.body));
        assert_eq!(world.charges().await.len(), 1);
        assert_eq!(world.payments().await, [first.body]);
    }

    async fn a_declined_order_is_paid_under_another_key(db: &Db) {
        let world = World::new(db).await;
        assert_eq!(world.pay("k1", "4711", 513).await.status, 402);
        assert_eq!(world.pay("k2", "4711", 600).await.status, 201);
        assert_eq!(world.pay("k1", "4711", 513).await.status, 402, "as before");
        assert_eq!(world.charges().await.len(), 2);
        assert_eq!(world.payments().await.len(), 1);
    }

    async fn a_request_that_broke_off_is_finished_by_another_key(db: &Db) {
        let world = World::new(db).await;
        world.provider.is_up.store(false, Ordering::Relaxed);
        let first = world.pay("k1", "4711", 500).await;
        assert_eq!(first.status, 503);
        assert_eq!(first.headers["retry-after"], "1");
        world.provider.is_up.store(true, Ordering::Relaxed);
        // The provider may have charged. The order keeps that one charge.
        let other = world.pay("k2", "4711", 600).await;
        assert_eq!((other.status, &other.body["amount_cents"]), (409, &500.into()));
        let first = world.pay("k1", "4711", 500).await;
        assert_eq!((first.status, &first.body), (201, &other.body));
        assert_eq!(world.charges().await.len(), 1);
        assert_eq!(world.payments().await, [first.body]);
    }

    async fn a_request_that_was_declined_in_the_dark_makes_way(db: &Db) {
        let world = World::new(db).await;
        world.provider.is_up.store(false, Ordering::Relaxed);
        assert_eq!(world.pay("k1", "4711", 513).await.status, 503);
        world.provider.is_up.store(true, Ordering::Relaxed);
        let paid = world.pay("k2", "4711", 600).await;
        assert_eq!((paid.status, &paid.body["amount_cents"]), (201, &600.into()));
        let first = world.pay("k1", "4711", 513).await;
        assert_eq!((first.status, first.body), (409, paid.body));
        let statuses: Vec<_> = world.charges().await.into_iter().map(|charge| charge.status).collect();
        assert_eq!(statuses, ["declined", "captured"]);
    }

    async fn orders_that_differ_in_case_are_two(db: &Db) {
        let world = World::new(db).await;
        for order in ["ord", "ORD", "örd", "Ord"] {
            let paid = world.pay(order.replace('ö', "oe").as_str(), order, 500).await;
            assert_eq!((paid.status, &paid.body["order_id"]), (201, &order.into()));
        }
        assert_eq!(world.payments().await.len(), 4);
        let refused = ["ord ", " ord", "", "a\0b", &"x".repeat(101)];
        for (number, order) in refused.into_iter().enumerate() {
            let refused = world.pay(&format!("refused {number}"), order, 500).await;
            assert_eq!(refused.status, 400, "{order:?}");
        }
    }

    async fn a_401_says_how_to_log_in(db: &Db) {
        let world = World::new(db).await;
        for (method, path) in [
            ("GET", "payments"),
            ("POST", "payments"),
            ("POST", "form-tokens"),
            ("GET", "orders"),
            ("POST", "orders"),
        ] {
            let url = format!("{}/{path}", world.shop);
            let request = world.client.request(method.parse().unwrap(), url);
            let refused = world.send(request).await;
            assert_eq!(refused.status, 401, "{method} {path}");
            assert_eq!(refused.headers["www-authenticate"], r#"Bearer realm="payments""#);
        }
    }
}
