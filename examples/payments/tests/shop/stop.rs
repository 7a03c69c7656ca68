//! The shop stops in the middle of a payment.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rowlock_test::{Db, on_every_engine};
use tokio::select;
use tokio::time::timeout;

use crate::world::World;
use payments::limits::Limits;

/// Starts a payment whose client hangs up while the provider works.
async fn hung_up(db: &Db, limits: Limits) -> World {
    let world = World::with(db, limits).await;
    world.provider.is_slow.store(true, Ordering::Relaxed);
    select! {
        paid = world.pay("k", "4711", 500) => panic!("{paid:?}"),
        () = world.provider.asked.notified() => {}
    }
    world
}

on_every_engine! {
    async fn a_payment_whose_client_has_hung_up_is_finished_before_the_shop_stops(db: &Db) {
        let mut world = hung_up(db, Limits::default()).await;
        let mut stopped = world.stop();
        let early = timeout(Duration::from_millis(500), &mut stopped).await;
        assert!(early.is_err(), "it has stopped in the middle");
        world.provider.goes_on.notify_one();
        assert!(stopped.await.unwrap(), "everything is finished");
        assert_eq!(db.number("SELECT COUNT(*) FROM order_payment").await, 1);
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_idempotency WHERE state = 'done'").await, 1);
    }

    async fn a_provider_that_never_answers_keeps_the_shop_no_longer_than_the_limit(db: &Db) {
        let stop = Duration::from_millis(300);
        let mut world = hung_up(db, Limits { stop, ..Limits::default() }).await;
        let stopped = timeout(Duration::from_secs(30), world.stop()).await;
        assert!(!stopped.expect("it stops").unwrap(), "a payment is not finished");
    }
}
