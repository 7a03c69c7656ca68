//! PostgreSQL.

use std::hash::{DefaultHasher, Hash, Hasher};

use rowlock::Engine;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::OnceCell;

use crate::kind::{Kind, New};
use crate::{App, Db, eventually, with_database};

pub(crate) const KIND: Kind = Kind {
    one_writer: false,
    has_server: true,
    refuses_newer_rows: true,
    waits_for_leases: true,
    gives_names_back: true,
    tells_changed_rows: true,
    nowhere: "postgres://me:s3cret@127.0.0.1:1/shop",
    readable: "",
    // A statement that fails takes the transaction with it.
    ends: &["SELECT 1 / 0"],
    lock_table: "LOCK TABLE rowlock_lock IN ACCESS EXCLUSIVE MODE",
    serializable: Some("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"),
    share: "",
    settings: Some("SELECT (current_setting('lock_timeout') = '0')::int::bigint"),
    // Waits for another transaction that is just inserting the same, and changes nothing then.
    unless_exists: |key| format!(" ON CONFLICT ({key}) DO NOTHING"),
    refuse: |table, column, bytes| {
        format!(
            "CREATE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'refused'; END $$; \
             CREATE TRIGGER refused BEFORE UPDATE ON {table} FOR EACH ROW \
             WHEN (NEW.{column} = {bytes}) EXECUTE FUNCTION refused()"
        )
    },
    end_idle: Some("SET idle_in_transaction_session_timeout = '1s'"),
    micros: "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
    now: "clock_timestamp()",
    moved: |time, seconds| format!("{time} + interval '{seconds} seconds'"),
    bytes: |hex| format!("'\\x{hex}'::bytea"),
    unchecked: |table, constraint, sql| {
        format!("ALTER TABLE {table} DROP CONSTRAINT {constraint}; {sql}")
    },
    create: |server, name| Box::pin(create(server, name, "template1")),
    drop: |server, name| {
        let drop = format!("DROP DATABASE {name} WITH (FORCE)");
        Box::pin(administer(server, drop))
    },
    create_migrated: |_, server, name| {
        Box::pin(async move {
            static TEMPLATE: OnceCell<String> = OnceCell::const_new();
            let template = TEMPLATE.get_or_init(|| migrated(server)).await;
            let new = create(server, name, template).await;
            let App::Postgres(pool) = &new.app else {
                unreachable!("`create` makes it")
            };
            let own_id = sqlx::raw_sql("UPDATE rowlock_database SET id = gen_random_uuid()");
            own_id.execute(pool).await.unwrap();
            new
        })
    },
    drop_migrated: |server, name| (KIND.drop)(server, name),
    open_transactions: |db| {
        let is_open = "pid <> pg_backend_pid() AND xact_start IS NOT NULL";
        Box::pin(sessions(db, is_open))
    },
    waiting: |db| Box::pin(sessions(db, "wait_event_type = 'Lock'")),
    clients: |db| Box::pin(sessions(db, "application_name = 'rowlock'")),
};

/// How many sessions of the database there are for which `condition` holds.
async fn sessions(db: &Db, condition: &str) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()";
    db.number(&format!("{sql} AND {condition}")).await
}

async fn create(server: &str, name: String, template: &str) -> New {
    let create = format!("CREATE DATABASE {name} TEMPLATE {template}");
    let is_made = async || {
        let mut admin = PgConnection::connect(server).await.unwrap();
        let create = sqlx::raw_sql(AssertSqlSafe(create.as_str()));
        let made = create.execute(&mut admin).await;
        admin.close().await.unwrap();
        match made {
            // object_in_use: a cleaner of the server's own is in the template.
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("55006") => false,
            made => made.map(|_| true).unwrap(),
        }
    };
    eventually("the template is not in use", is_made).await;
    let url = with_database(server, &name);
    let pool = PgPoolOptions::new().max_connections(4);
    let pool = pool.connect(&url).await.unwrap();
    New {
        name,
        url,
        app: App::Postgres(pool),
        dir: None,
    }
}

/// The name of a database with the tables of rowlock, which is made once for each version of the migrations. It stays
/// on the server.
async fn migrated(server: &str) -> String {
    let tables = rowlock::migration_sql(Engine::Postgres, 0).unwrap();
    let mut digest = DefaultHasher::new();
    tables.hash(&mut digest);
    let name = format!("rl_migrated_{:016x}", digest.finish());
    let mut admin = PgConnection::connect(server).await.unwrap();
    // Another process may be making it.
    let alone = sqlx::raw_sql("SELECT pg_advisory_lock(hashtext('rowlock-test'))");
    alone.execute(&mut admin).await.unwrap();
    let found = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
    let found: i64 = sqlx::query_scalar(AssertSqlSafe(found))
        .fetch_one(&mut admin)
        .await
        .unwrap();
    if found == 0 {
        let part = format!("{name}_part");
        for sql in ["DROP DATABASE IF EXISTS", "CREATE DATABASE"] {
            let sql = sqlx::raw_sql(AssertSqlSafe(format!("{sql} {part}")));
            sql.execute(&mut admin).await.unwrap();
        }
        administer(&with_database(server, &part), tables).await;
        let ready = format!("ALTER DATABASE {part} RENAME TO {name}");
        let ready = sqlx::raw_sql(AssertSqlSafe(ready));
        ready.execute(&mut admin).await.unwrap();
    }
    admin.close().await.unwrap();
    name
}

async fn administer(server: &str, sql: String) {
    let mut admin = PgConnection::connect(server).await.unwrap();
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    sql.execute(&mut admin).await.unwrap();
    admin.close().await.unwrap();
}

pub(crate) async fn promote(standby: &str) {
    let mut conn = PgConnection::connect(standby).await.unwrap();
    let promote = sqlx::raw_sql("SELECT pg_promote()");
    promote.execute(&mut conn).await.unwrap();
}
