//! The webhook and the consumer, with real servers.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod queue;
mod webhooks;

use std::time::SystemTime;

use rowlock::{Engine, Rowlock};
use rowlock_recipes::inbox::Inbox;
use rowlock_test::{App, Db};
use sqlx::PgPool;

/// An empty database with the table of the example.
async fn place() -> (Db, Inbox<PgPool>) {
    let db = Db::new(Engine::Postgres).await;
    let App::Postgres(pool) = db.app.clone() else {
        unreachable!("it is PostgreSQL")
    };
    inbox::prepare(&pool).await.unwrap();
    let rowlock = Rowlock::from_pool(&pool).await.unwrap();
    let inbox = Inbox::new(rowlock.idempotency(), &pool, inbox::CONSUMER);
    (db, inbox)
}

/// The body of an event, in its nth delivery: providers count them.
fn event(id: &str, cents: i64, delivery: u32) -> String {
    format!(r#"{{"id":"{id}","delivery":{delivery},"data":{{"account":"ann","cents":{cents}}}}}"#)
}

#[allow(clippy::disallowed_methods, reason = "the provider's clock")]
fn now() -> SystemTime {
    SystemTime::now()
}
