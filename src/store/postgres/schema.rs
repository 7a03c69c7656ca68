//! The history table, and migrating under a lock in the database.

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::{query, query_as, query_scalar};
use crate::store::Applied;
use crate::store::migrate::{self, MigrateFault};

mod embedded {
    refinery::embed_migrations!("migrations/postgres");
}
pub(crate) use embedded::migrations::runner;

/// Any constant will do, as long as everybody uses this one ("rowlock" in ASCII).
const MIGRATION_LOCK: i64 = 0x0072_6f77_6c6f_636b;

pub(super) async fn history(conn: &mut PgConnection) -> Result<Option<Vec<Applied>>, sqlx::Error> {
    let there: bool = query_scalar("SELECT to_regclass('rowlock_schema_history') IS NOT NULL")
        .fetch_one(&mut *conn)
        .await?;
    if !there {
        return Ok(None);
    }
    let rows: Vec<(i32, String, String)> =
        query_as("SELECT version, name, checksum FROM rowlock_schema_history ORDER BY version")
            .fetch_all(conn)
            .await?;
    Ok(Some(rows.into_iter().map(Applied::from).collect()))
}

pub(super) async fn migrate(conn: &mut PgConnection) -> Result<Vec<String>, MigrateFault> {
    // DDL is transactional here: everything or nothing, and the lock goes with the transaction.
    let mut tx = conn.begin().await?;
    query("SELECT pg_advisory_xact_lock($1)")
        .bind(MIGRATION_LOCK)
        .execute(&mut *tx)
        .await?;
    let applied = migrate::run(&mut *tx, runner()).await?;
    tx.commit().await?;
    Ok(applied)
}

pub(super) async fn database_id(conn: &mut PgConnection) -> Result<Uuid, sqlx::Error> {
    query_scalar("SELECT id FROM rowlock_database")
        .fetch_one(conn)
        .await
}
