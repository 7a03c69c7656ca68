//! The server's version, the history table, and migrating under a lock in the database.

use async_trait::async_trait;
use refinery_core::Runner;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::connect::{is_in_galera, switch};
use super::statement::{in_one_transaction, read_as};
use crate::model::{Engine, FaultKind};
use crate::store::driver::migrate;
use crate::store::driver::migrate::Migrations;
use crate::store::driver::rights::{EVERY_COLUMN, RIGHTS, TABLES, identifier};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::schema::{
    AppliedMigration, MigrateFault, MigrateUntil, SchemaStore, Server, relaxed,
};

fn runner() -> Runner {
    migrate::embedded!("mysql")
}

migrate::adapter!(MySqlConnection);

pub(crate) fn migrations() -> Migrations {
    Migrations {
        runner: runner(),
        now: "DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%dT%H:%i:%sZ')",
        functions: String::new(),
    }
}

/// The statements that give `user` all rights that rowlock needs at run time.
///
/// An account also has a host, which the server shows only to accounts that it admits. `%` stands for it, as in CREATE
/// USER without a host.
pub(crate) fn grants(user: &str, database: &str) -> String {
    let (user, database) = (user.replace('\'', "''"), identifier(database, '`'));
    let grants =
        TABLES.map(|table| format!("GRANT {RIGHTS} ON {database}.{table} TO '{user}'@'%';"));
    grants.join(" ")
}

const RELAXED: &str = "
SELECT CAST(@@innodb_flush_log_at_trx_commit AS SIGNED), CAST(IF(@@log_bin, @@sync_binlog, 1) AS SIGNED)";

#[async_trait]
impl SchemaStore for MySqlConnection {
    async fn server(&mut self) -> Result<Server, Fault> {
        let said = in_one_transaction(self, "SELECT VERSION()").await?;
        let said = said.first().ok_or(sqlx::Error::RowNotFound)?;
        let mut server = parse(said.try_get(0)?);
        server.multi_writer = is_in_galera(self).await?
            || switch(self, "group_replication_single_primary_mode").await? == Some(false);
        Ok(server)
    }

    async fn schema_history(&mut self) -> Result<Option<Vec<AppliedMigration>>, Fault> {
        let rows = "SELECT version, name, checksum FROM rowlock_schema_history ORDER BY version";
        // information_schema hides a table from a user without a right on it, so such a user would find no history.
        let rows = match read_as(self, rows).await.map_err(Fault::from) {
            Err(fault) if fault.kind == FaultKind::NoSuchTable => return Ok(None),
            rows => rows?,
        };
        Ok(Some(rows))
    }

    async fn find_lock_table(&mut self) -> Result<(), Fault> {
        in_one_transaction(self, "SELECT 1 FROM rowlock_lock WHERE 1 = 0").await?;
        Ok(())
    }

    async fn check_tables(&mut self) -> Result<bool, Fault> {
        in_one_transaction(self, EVERY_COLUMN).await?;
        Ok(true)
    }

    /// DDL commits by itself here, and GET_LOCK survives that. The name of the lock is server-wide and at most 64
    /// characters long, so it carries a hash of the database's name.
    async fn migrate(&mut self, until: MigrateUntil) -> Result<Vec<String>, MigrateFault> {
        let lock =
            "SELECT GET_LOCK(CONCAT('rowlock.migrate.', LEFT(SHA2(DATABASE(), 256), 32)), 60)";
        let got = in_one_transaction(self, lock).await?;
        let got = got.first().ok_or(sqlx::Error::RowNotFound)?;
        if got.try_get::<Option<i64>, _>(0)? != Some(1) {
            return Err(MigrateFault::LockNotObtained);
        }
        let applied = migrate::run(&mut *self, runner(), until).await;
        let unlock = "DO RELEASE_LOCK(CONCAT('rowlock.migrate.', LEFT(SHA2(DATABASE(), 256), 32)))";
        let unlocked = sqlx::query(unlock).execute(self).await;
        let applied = applied?;
        unlocked?;
        Ok(applied)
    }

    async fn warnings(&mut self) -> Result<Vec<String>, Fault> {
        let rows = in_one_transaction(self, RELAXED).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let (log, binary_log): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let mut settings = Vec::new();
        if log != 1 {
            settings.push(format!("innodb_flush_log_at_trx_commit = {log}"));
        }
        // With a binary log, a prepared transaction that is not in it is rolled back at the restart.
        if binary_log != 1 {
            settings.push(format!("sync_binlog = {binary_log}"));
        }
        Ok(relaxed(&settings))
    }

    async fn database_id(&mut self) -> Result<Uuid, Fault> {
        // Also on a connection of the application's.
        let rows = in_one_transaction(self, "SELECT id FROM rowlock_database LIMIT 1").await?;
        Ok(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?)
    }
}

/// SKIP LOCKED and JSON_TABLE set the oldest versions: MariaDB 10.6, MySQL 8.0 (8.0.16 for CHECK).
fn parse(text: &str) -> Server {
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.parse::<u32>().unwrap_or(0));
    let mut number = || numbers.next().unwrap_or(0);
    let version = (number(), number(), number());
    let (engine, product, oldest, needed) = if text.contains("MariaDB") {
        (
            Engine::MariaDb,
            "MariaDB",
            (10, 6, 0),
            "MariaDB 10.6 or later",
        )
    } else {
        (Engine::MySql, "MySQL", (8, 0, 16), "MySQL 8.0.16 or later")
    };
    Server {
        engine,
        version: format!("{product} {}.{}.{}", version.0, version.1, version.2),
        too_old: (version < oldest).then_some(needed),
        multi_writer: false,
        every_character: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::driver::rights::grants as of_target;

    #[test]
    fn the_engine_and_the_age_are_read_from_the_version() {
        let age = |text: &str| {
            let server = parse(text);
            (server.engine, server.too_old.is_some())
        };
        assert_eq!(age("8.0.15"), (Engine::MySql, true));
        assert_eq!(age("8.0.36-0ubuntu0.22.04.1"), (Engine::MySql, false));
        assert_eq!(age("9.7.4-2"), (Engine::MySql, false));
        assert_eq!(age("10.5.23-MariaDB-0+deb11u1"), (Engine::MariaDb, true));
        assert_eq!(age("10.11.19-MariaDB-0+deb12u1"), (Engine::MariaDb, false));
    }

    #[test]
    fn grants_are_for_the_user_and_the_database_of_the_url() {
        let text = of_target("mysql://o'neil@db:3306/my-shop");
        let first = "GRANT SELECT, INSERT, UPDATE, DELETE ON `my-shop`.rowlock_lock TO 'o''neil'@'%'; GRANT";
        assert!(text.starts_with(first), "{text}");
        assert_eq!(text.matches("GRANT").count(), TABLES.len());
    }
}
