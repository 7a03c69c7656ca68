//! The history table, and migrating under a lock in the database.

use sqlx::MySqlConnection;
use uuid::Uuid;

use crate::migrate::{self, MigrateFault};
use crate::store::Applied;

mod embedded {
    refinery::embed_migrations!("migrations/mysql");
}
pub(crate) use embedded::migrations::runner;

pub(super) async fn history(
    conn: &mut MySqlConnection,
) -> Result<Option<Vec<Applied>>, sqlx::Error> {
    let there: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = 'rowlock_schema_history'",
    )
    .fetch_one(&mut *conn)
    .await?;
    if there == 0 {
        return Ok(None);
    }
    let rows: Vec<(i32, String, String)> = sqlx::query_as(
        "SELECT version, name, checksum FROM rowlock_schema_history ORDER BY version",
    )
    .fetch_all(conn)
    .await?;
    Ok(Some(rows.into_iter().map(Applied::from).collect()))
}

/// DDL commits by itself here, and GET_LOCK survives that. Its name is server-wide and takes 64
/// characters: it carries a hash of the database's name.
pub(super) async fn migrate(conn: &mut MySqlConnection) -> Result<Vec<String>, MigrateFault> {
    let got: Option<i64> = sqlx::query_scalar(
        "SELECT GET_LOCK(CONCAT('rowlock.migrate.', LEFT(SHA2(DATABASE(), 256), 32)), 60)",
    )
    .fetch_one(&mut *conn)
    .await?;
    if got != Some(1) {
        return Err(MigrateFault::LockNotObtained);
    }
    let applied = migrate::run(&mut *conn, runner()).await;
    let unlock = "DO RELEASE_LOCK(CONCAT('rowlock.migrate.', LEFT(SHA2(DATABASE(), 256), 32)))";
    let unlocked = sqlx::query(unlock).execute(conn).await;
    let applied = applied?;
    unlocked?;
    Ok(applied)
}

pub(super) async fn database_id(conn: &mut MySqlConnection) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar("SELECT id FROM rowlock_database")
        .fetch_one(conn)
        .await
}
