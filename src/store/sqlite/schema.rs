//! The server's version, the history table, and migrating under a lock in the database.

use async_trait::async_trait;
use refinery_core::Runner;
use sqlx::{Connection, SqliteConnection};
use uuid::Uuid;

use super::connect;
use crate::model::Engine;
use crate::store::driver::migrate;
use crate::store::driver::migrate::Migrations;
use crate::store::driver::rights::{EVERY_COLUMN, RIGHTS};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::schema::{
    AppliedMigration, MigrateFault, MigrateUntil, SchemaStore, Server, relaxed,
};

fn runner() -> Runner {
    migrate::embedded!("sqlite")
}

migrate::adapter!(SqliteConnection);

pub(crate) fn migrations() -> Migrations {
    Migrations {
        runner: runner(),
        now: "strftime('%Y-%m-%dT%H:%M:%SZ', 'now')",
        functions: String::new(),
    }
}

/// A file has no users: these are the rights that the application's authorizer has to allow.
pub(crate) fn grants(_user: &str, _database: &str) -> String {
    RIGHTS.to_owned()
}

/// Earlier ones can corrupt a database when the WAL is reset (sqlite.org/wal.html, section 11).
const OLDEST: (u32, u32, u32) = (3, 51, 3);

#[async_trait]
impl SchemaStore for SqliteConnection {
    async fn server(&mut self) -> Result<Server, Fault> {
        let text: String = sqlx::query_scalar("SELECT sqlite_version()")
            .fetch_one(self)
            .await?;
        let mut numbers = text.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
        let mut number = || numbers.next().unwrap_or(0);
        let version = (number(), number(), number());
        Ok(Server {
            engine: Engine::Sqlite,
            version: format!("SQLite {text}"),
            too_old: (version < OLDEST).then_some("SQLite 3.51.3 or later, as the bundled one is"),
            multi_writer: false,
            every_character: true,
        })
    }

    async fn schema_history(&mut self) -> Result<Option<Vec<AppliedMigration>>, Fault> {
        let there: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT * FROM sqlite_schema WHERE name = 'rowlock_schema_history')",
        )
        .fetch_one(&mut *self)
        .await?;
        if !there {
            return Ok(None);
        }
        let rows = sqlx::query_as(
            "SELECT version, name, checksum FROM rowlock_schema_history ORDER BY version",
        )
        .fetch_all(self)
        .await?;
        Ok(Some(rows))
    }

    async fn find_lock_table(&mut self) -> Result<(), Fault> {
        sqlx::query("SELECT 1 FROM rowlock_lock WHERE 1 = 0")
            .fetch_optional(self)
            .await?;
        Ok(())
    }

    async fn check_tables(&mut self) -> Result<bool, Fault> {
        sqlx::raw_sql(EVERY_COLUMN).execute(self).await?;
        Ok(true)
    }

    async fn migrate(&mut self, until: MigrateUntil) -> Result<Vec<String>, MigrateFault> {
        // IMMEDIATE is the lock: a deferred transaction that starts to write fails at once while another one writes,
        // whatever the busy timeout. A migration is not retried by a lane, so it waits here for other processes that
        // migrate.
        sqlx::raw_sql("PRAGMA busy_timeout = 60000")
            .execute(&mut *self)
            .await?;
        let mut tx = self.begin_with("BEGIN IMMEDIATE").await?;
        let applied = migrate::run(&mut *tx, runner(), until).await?;
        tx.commit().await?;
        sqlx::raw_sql(connect::ASK_AGAIN).execute(self).await?;
        Ok(applied)
    }

    /// Locks need no fsync here: their holders are on this machine, and die with it. `OFF` may also corrupt the file
    /// (sqlite.org/pragma.html, `synchronous`).
    async fn warnings(&mut self) -> Result<Vec<String>, Fault> {
        let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous")
            .fetch_one(&mut *self)
            .await?;
        let settings = (synchronous == 0).then(|| "synchronous = OFF".to_owned());
        let mut warnings = relaxed(settings.as_slice());
        let journal: String = sqlx::query_scalar("PRAGMA journal_mode")
            .fetch_one(self)
            .await?;
        if !matches!(&*journal, "wal" | "memory") {
            warnings.push(format!(
                "journal_mode = {journal}: while a transaction reads the file, nobody can write it, and a lease is lost that cannot be renewed in its time: \
                 set the file to WAL once (`PRAGMA journal_mode = WAL`), or connect rowlock before the file has tables"
            ));
        }
        Ok(warnings)
    }

    async fn database_id(&mut self) -> Result<Uuid, Fault> {
        Ok(sqlx::query_scalar("SELECT id FROM rowlock_database")
            .fetch_one(self)
            .await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::driver::rights::grants as of_target;

    #[test]
    fn a_file_has_rights_and_no_users() {
        assert_eq!(of_target("sqlite:/home/me/shop.db"), RIGHTS);
    }

    #[tokio::test]
    async fn the_check_of_the_tables_reads_every_column() {
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let migrated = SchemaStore::migrate(&mut conn, MigrateUntil::Now).await;
        migrated.unwrap();
        let columns = "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_info(t.name) c
                       WHERE t.type = 'table' AND t.name LIKE 'rowlock%' AND t.name <> 'rowlock_schema_history'";
        let columns = sqlx::query_as(columns).fetch_all(&mut conn).await.unwrap();
        assert!(columns.len() > 60, "{columns:?}");
        for (table, column) in columns {
            let (table, column): (String, String) = (table, column);
            let mut words = EVERY_COLUMN.split(';').filter(|read| {
                let mut words = read.split(|c: char| !c.is_alphanumeric() && c != '_');
                read.contains(&format!("FROM {table} ")) && words.any(|word| word == column)
            });
            assert!(words.next().is_some(), "{table}.{column}");
        }
    }
}
