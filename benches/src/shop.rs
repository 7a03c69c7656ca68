//! The pool of an application, on any engine.

use rowlock::Engine;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};

use crate::servers::Server;

#[derive(Debug, Clone)]
pub(crate) enum Shop {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Runs the same code on the pool of any engine.
macro_rules! on_shop {
    ($shop:expr, $pool:ident => $body:expr) => {
        match $shop {
            $crate::shop::Shop::Postgres($pool) => $body,
            $crate::shop::Shop::MySql($pool) => $body,
            $crate::shop::Shop::Sqlite($pool) => $body,
        }
    };
}
pub(crate) use on_shop;

impl Shop {
    /// Makes the tables and fills them.
    pub(crate) async fn open(
        server: &Server,
        connections: u32,
        statements: &[&'static str],
    ) -> Result<Self, sqlx::Error> {
        let url = &server.url;
        let shop = match server.engine {
            Engine::Postgres => {
                let pool = PgPoolOptions::new().max_connections(connections);
                Self::Postgres(pool.connect(url).await?)
            }
            Engine::Sqlite => {
                // WAL mode, which rowlock has set, and an fsync per commit.
                let options: SqliteConnectOptions = url.parse()?;
                let options = options.busy_timeout(std::time::Duration::from_mins(1));
                let pool = SqlitePoolOptions::new().max_connections(connections);
                Self::Sqlite(pool.connect_with(options).await?)
            }
            _ => {
                let pool = MySqlPoolOptions::new().max_connections(connections);
                Self::MySql(pool.connect(url).await?)
            }
        };
        for statement in statements {
            on_shop!(&shop, pool => {
                sqlx::raw_sql(*statement).execute(pool).await?;
            });
        }
        Ok(shop)
    }
}
