//! An example: events that a payment provider reports, through a signed webhook and through a queue of RabbitMQ. Both
//! deliver an event several times, and each event is credited once. [`consumer`] and [`webhook`] share [`credit`].

pub mod consumer;
pub mod event;
pub mod signature;
pub mod webhook;

use rowlock::Error;
use rowlock_recipes::inbox::{Delivery, Inbox};
use sqlx::PgPool;

pub use event::{BadEvent, Event};

/// The table of the example. It has no unique id: only the inbox keeps an event from being credited twice.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS credit (event TEXT NOT NULL, account TEXT NOT NULL, cents BIGINT NOT NULL)";

/// The name of the consumer, whichever way an event comes: so an event that comes both ways is credited once.
pub const CONSUMER: &str = "credits";

/// Makes the table, if it is not there.
///
/// # Errors
///
/// Those of the database.
pub async fn prepare(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::raw_sql(TABLE).execute(pool).await.map(drop)
}

/// Credits an event once.
pub async fn credit(inbox: &Inbox<PgPool>, event: &Event<'_>) -> Delivery<Error> {
    let work = async |mut tx: rowlock::RetryTx<sqlx::Postgres>| {
        let insert = sqlx::query("INSERT INTO credit VALUES ($1, $2, $3)");
        let insert = insert
            .bind(&*event.id)
            .bind(&*event.account)
            .bind(event.cents);
        insert.execute(&mut *tx).await?;
        Ok(())
    };
    inbox.receive(&*event.id, event.says(), work).await
}
