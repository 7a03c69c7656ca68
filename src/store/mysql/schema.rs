//! The history table, and migrating under a lock in the database.

use sqlx::{FromRow, MySqlConnection, Row};
use uuid::Uuid;

use super::connect::read_alone;
use crate::model::FaultKind;
use crate::store::Applied;
use crate::store::fault::classify;
use crate::store::migrate::{self, MigrateFault};

mod embedded {
    refinery::embed_migrations!("migrations/mysql");
}
pub(crate) use embedded::migrations::runner;

pub(super) async fn history(
    conn: &mut MySqlConnection,
) -> Result<Option<Vec<Applied>>, sqlx::Error> {
    let rows = "SELECT version, name, checksum FROM rowlock_schema_history ORDER BY version";
    // information_schema does not show a table to a user without a right on it: to such a user none would be there.
    let rows = match read_alone(conn, rows).await {
        Err(error) if classify(&error) == FaultKind::NoSuchTable => return Ok(None),
        rows => rows?,
    };
    let rows = rows.iter().map(<(i32, String, String)>::from_row);
    let rows: Result<Vec<Applied>, _> = rows.map(|row| row.map(Applied::from)).collect();
    Ok(Some(rows?))
}

/// DDL commits by itself here, and GET_LOCK survives that. Its name is server-wide and takes 64
/// characters: it carries a hash of the database's name.
pub(super) async fn migrate(conn: &mut MySqlConnection) -> Result<Vec<String>, MigrateFault> {
    let lock = "SELECT GET_LOCK(CONCAT('rowlock.migrate.', LEFT(SHA2(DATABASE(), 256), 32)), 60)";
    let got = read_alone(conn, lock).await?;
    let got = got.first().ok_or(sqlx::Error::RowNotFound)?;
    if got.try_get::<Option<i64>, _>(0)? != Some(1) {
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
    let rows = read_alone(conn, "SELECT id FROM rowlock_database").await?;
    rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
}
