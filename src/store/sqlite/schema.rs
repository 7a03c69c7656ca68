//! The history table, and migrating under a lock in the database.

use sqlx::{Connection, SqliteConnection};
use uuid::Uuid;

use super::connect;
use crate::store::Applied;
use crate::store::migrate::{self, MigrateFault};

mod embedded {
    refinery::embed_migrations!("migrations/sqlite");
}
pub(crate) use embedded::migrations::runner;

pub(super) async fn history(
    conn: &mut SqliteConnection,
) -> Result<Option<Vec<Applied>>, sqlx::Error> {
    let there: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT * FROM sqlite_schema WHERE name = 'rowlock_schema_history')",
    )
    .fetch_one(&mut *conn)
    .await?;
    if !there {
        return Ok(None);
    }
    let rows: Vec<(i32, String, String)> = sqlx::query_as(
        "SELECT version, name, checksum FROM rowlock_schema_history ORDER BY version",
    )
    .fetch_all(conn)
    .await?;
    Ok(Some(rows.into_iter().map(Applied::from).collect()))
}

pub(super) async fn migrate(conn: &mut SqliteConnection) -> Result<Vec<String>, MigrateFault> {
    // IMMEDIATE is the lock: a deferred transaction that starts to write fails at once when
    // somebody else writes, whatever the busy timeout.
    // Nobody else asks again for it: it waits for others that migrate.
    sqlx::raw_sql("PRAGMA busy_timeout = 60000")
        .execute(&mut *conn)
        .await?;
    let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
    let applied = migrate::run(&mut *tx, runner()).await?;
    tx.commit().await?;
    sqlx::raw_sql(connect::ASK_AGAIN).execute(conn).await?;
    Ok(applied)
}

pub(super) async fn database_id(conn: &mut SqliteConnection) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar("SELECT id FROM rowlock_database")
        .fetch_one(conn)
        .await
}
