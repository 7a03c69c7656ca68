//! What a new user types first compiles as written here, and does what it says, on SQLite and PostgreSQL.
#![allow(missing_docs, reason = "tests are named, not documented")]

/// The same code for an application on each of the two databases.
macro_rules! on_both {
    ($($code:tt)*) => {
        mod sqlite {
            #[allow(unused_imports, reason = "each file takes what it needs")]
            use sqlx::{Sqlite as Database, SqliteConnection as Connection, SqlitePool as Pool};

            async fn shop() -> (rowlock_test::Db, rowlock::Rowlock, Pool) {
                let db = crate::db(rowlock::Engine::Sqlite).await;
                let rowlock_test::App::Sqlite(pool) = db.app.clone() else { unreachable!("it is SQLite") };
                (db, crate::client(&pool).await, pool)
            }

            $($code)*
        }

        mod postgres {
            #[allow(unused_imports, reason = "each file takes what it needs")]
            use sqlx::{Postgres as Database, PgConnection as Connection, PgPool as Pool};

            async fn shop() -> (rowlock_test::Db, rowlock::Rowlock, Pool) {
                let db = crate::db(rowlock::Engine::Postgres).await;
                let rowlock_test::App::Postgres(pool) = db.app.clone() else { unreachable!("it is PostgreSQL") };
                (db, crate::client(&pool).await, pool)
            }

            $($code)*
        }
    };
}

mod closures;
mod handlers;
mod helpers;
mod locks;
mod schedulers;
mod testing;

/// A database with the tables of a shop.
async fn db(engine: rowlock::Engine) -> rowlock_test::Db {
    let db = rowlock_test::Db::new(engine).await;
    db.execute("CREATE TABLE stock (id TEXT PRIMARY KEY, items BIGINT NOT NULL)")
        .await;
    db.execute("INSERT INTO stock VALUES ('chair', 2)").await;
    db.execute("CREATE TABLE payment (what TEXT NOT NULL)")
        .await;
    db
}

async fn client(pool: &impl rowlock::Pool) -> rowlock::Rowlock {
    rowlock::Rowlock::from_pool(pool).await.unwrap()
}
