//! A client of the application's own pool: it takes no connection from it.

use rowlock::Rowlock;
use rowlock_test::{Db, on_app, on_every_engine};

on_every_engine! {
    async fn a_client_of_a_pool_leaves_the_pool_alone(db: &Db) {
        let pool_is_used_up = on_app!(&db.app, pool => {
            let mut taken = Vec::new();
            for _ in 0..pool.options().get_max_connections() {
                taken.push(pool.acquire().await.unwrap());
            }
            let rowlock = Rowlock::from_pool(pool).await.unwrap();
            let held = rowlock.lock("a").acquire().await.unwrap();
            held.release().await.unwrap();
            assert_eq!(rowlock.engine(), db.engine);
            taken.len()
        });
        assert_eq!(pool_is_used_up, 4);
        let there = db.number("SELECT COUNT(*) FROM rowlock_lock").await;
        assert_eq!(there, 1, "it is the pool's own database");
    }
}
