//! The server's version, the history table, and migrating under a lock in the database.

use async_trait::async_trait;
use refinery_core::Runner;
use sqlx::{Connection, FromRow, PgConnection, Row};
use uuid::Uuid;

use super::{functions, query, row_security};
use crate::model::Engine;
use crate::store::driver::migrate;
use crate::store::driver::migrate::Migrations;
use crate::store::driver::rights::{EVERY_COLUMN, RIGHTS, TABLES, identifier};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::schema::{
    AppliedMigration, MigrateFault, MigrateUntil, SchemaStore, Server, relaxed,
};

fn runner() -> Runner {
    migrate::embedded!("postgres")
}

migrate::adapter!(PgConnection);

pub(crate) fn migrations() -> Migrations {
    Migrations {
        runner: runner(),
        now: "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')",
        functions: functions::texts(),
    }
}

/// The statements that give `user` all rights that rowlock needs at run time. (Where an administrator has not taken it
/// away, every user has the right to run functions.)
pub(crate) fn grants(user: &str, database: &str) -> String {
    let (user, database) = (identifier(user, '"'), identifier(database, '"'));
    let tables = TABLES.join(", ");
    let (functions, notes) = (functions::names().join(", "), functions::TABLE);
    format!(
        "GRANT CONNECT ON DATABASE {database} TO {user}; GRANT {RIGHTS} ON {tables}, {notes} TO {user}; \
         GRANT EXECUTE ON FUNCTION {functions} TO {user};"
    )
}

/// Any constant will do, if every rowlock client uses the same one ("rowlock" in ASCII).
const MIGRATION_LOCK: i64 = 0x0072_6f77_6c6f_636b;

/// The oldest release that is still tested against, as `server_version_num`.
const OLDEST: i32 = 130_000;

/// Texts without parameters take one round trip. A prepared statement that is used once takes two.
const SERVER: &str = "
SELECT current_setting('server_version_num')::int, current_setting('server_version'),
       current_setting('server_encoding') IN ('UTF8', 'SQL_ASCII')";

/// The settings of this session. (Manual, sections 20.5.1 and 30.4. Whether a standby has to confirm a commit is
/// another matter: nobody can tell which standby a failover will choose.)
const RELAXED: &str = "
SELECT name || ' = off' FROM unnest(ARRAY['fsync', 'full_page_writes', 'synchronous_commit']) AS s (name)
WHERE current_setting(name) = 'off'";

#[async_trait]
impl SchemaStore for PgConnection {
    async fn server(&mut self) -> Result<Server, Fault> {
        let row = sqlx::raw_sql(SERVER).fetch_one(self).await?;
        let (number, text, every_character) = FromRow::from_row(&row)?;
        let (number, text): (i32, String) = (number, text);
        Ok(Server {
            engine: Engine::Postgres,
            version: format!("PostgreSQL {text}"),
            too_old: (number < OLDEST).then_some("PostgreSQL 13 or later"),
            multi_writer: false,
            every_character,
        })
    }

    async fn schema_history(&mut self) -> Result<Option<Vec<AppliedMigration>>, Fault> {
        let there = "SELECT to_regclass('rowlock_schema_history') IS NOT NULL";
        let there = sqlx::raw_sql(there).fetch_one(&mut *self).await?;
        if !there.try_get::<bool, _>(0)? {
            return Ok(None);
        }
        row_security::check(self).await?;
        let rows = "SELECT version, name, checksum FROM rowlock_schema_history ORDER BY version";
        let rows = sqlx::raw_sql(rows).fetch_all(&mut *self).await?;
        if rows.is_empty() {
            row_security::check_empty(self, "rowlock_schema_history").await?;
        }
        let applied = rows.iter().map(FromRow::from_row);
        Ok(Some(applied.collect::<Result<_, _>>()?))
    }

    async fn find_lock_table(&mut self) -> Result<(), Fault> {
        query("SELECT 1 FROM rowlock_lock WHERE 1 = 0")
            .fetch_optional(self)
            .await?;
        Ok(())
    }

    async fn check_tables(&mut self) -> Result<bool, Fault> {
        sqlx::raw_sql(EVERY_COLUMN).execute(&mut *self).await?;
        functions::are_noted(self).await
    }

    async fn keep_functions(&mut self, makes: bool) -> Result<Vec<String>, Fault> {
        functions::keep(self, makes).await
    }

    async fn migrate(&mut self, until: MigrateUntil) -> Result<Vec<String>, MigrateFault> {
        // DDL is transactional here: all migrations apply or none, and the lock ends with the transaction.
        let mut tx = self.begin().await?;
        query("SELECT pg_advisory_xact_lock($1)")
            .bind(MIGRATION_LOCK)
            .execute(&mut *tx)
            .await?;
        let mut applied = migrate::run(&mut *tx, runner(), until).await?;
        if until == MigrateUntil::Now {
            applied.extend(functions::install(&mut tx, true).await?);
        }
        tx.commit().await?;
        Ok(applied)
    }

    async fn warnings(&mut self) -> Result<Vec<String>, Fault> {
        let settings = sqlx::raw_sql(RELAXED).fetch_all(self).await?;
        let settings = settings.iter().map(|row| row.try_get(0));
        Ok(relaxed(&settings.collect::<Result<Vec<_>, _>>()?))
    }

    async fn database_id(&mut self) -> Result<Uuid, Fault> {
        let id = sqlx::raw_sql("SELECT id FROM rowlock_database");
        let Some(id) = id.fetch_optional(&mut *self).await? else {
            row_security::check_empty(self, "rowlock_database").await?;
            return Err(sqlx::Error::RowNotFound.into());
        };
        Ok(id.try_get(0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::driver::rights::grants as of_target;

    #[test]
    fn grants_are_for_the_user_and_the_database_of_the_url() {
        let text = of_target("postgres://Shop App@a:1,b:2/shop");
        let tables = TABLES.join(", ");
        assert_eq!(
            text,
            format!(
                "GRANT CONNECT ON DATABASE shop TO \"Shop App\"; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON {tables}, rowlock_function TO \"Shop App\"; \
                 GRANT EXECUTE ON FUNCTION {} TO \"Shop App\";",
                functions::names().join(", ")
            )
        );
    }
}
