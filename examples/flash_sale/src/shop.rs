//! The shop's two tables, on the engine that the URL names, and the ways of buying there.

use std::time::Duration;

use rowlock::{Error, Held, Retry, Rowlock};
#[cfg(feature = "mysql")]
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Every buyer gets an answer, however often other buyers are faster.
pub(crate) const RETRY: Retry = Retry::new()
    .attempts(u32::MAX)
    .backoff(Duration::from_millis(2), Duration::from_millis(200));

/// The statements that differ from engine to engine.
pub(crate) struct Sql {
    write_stock: &'static str,
    pub(crate) order: &'static str,
    order_if_new: &'static str,
}

/// PostgreSQL and SQLite.
pub(crate) const NUMBERED: Sql = Sql {
    write_stock: "UPDATE flash_sale_stock SET items = $1",
    order: "INSERT INTO flash_sale_orders (number) VALUES ($1)",
    order_if_new: "INSERT INTO flash_sale_orders (number) VALUES ($1) ON CONFLICT (number) DO NOTHING",
};

/// MySQL and MariaDB.
#[cfg(feature = "mysql")]
pub(crate) const QUESTION: Sql = Sql {
    write_stock: "UPDATE flash_sale_stock SET items = ?",
    order: "INSERT INTO flash_sale_orders (number) VALUES (?)",
    order_if_new: "INSERT INTO flash_sale_orders (number) VALUES (?)",
};

/// Connections per process.
const CONNECTIONS: u32 = 8;

/// The shop's pool. rowlock has its own connections.
#[derive(Debug, Clone)]
pub(crate) enum Shop {
    #[cfg(feature = "postgres")]
    Postgres(PgPool),
    #[cfg(feature = "mysql")]
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Runs `$body` with the shop's pool and the statements of its engine.
macro_rules! on_shop {
    ($shop:expr, $pool:ident, $sql:ident => $body:expr) => {
        match $shop {
            #[cfg(feature = "postgres")]
            Shop::Postgres($pool) => {
                let $sql = &NUMBERED;
                $body
            }
            #[cfg(feature = "mysql")]
            Shop::MySql($pool) => {
                let $sql = &QUESTION;
                $body
            }
            Shop::Sqlite($pool) => {
                let $sql = &NUMBERED;
                $body
            }
        }
    };
}
/// Buys one item in a transaction: `true`, or `false` when none is left.
macro_rules! buy_in {
    ($tx:ident, $sql:ident) => {{
        let stock: i64 = sqlx::query_scalar("SELECT items FROM flash_sale_stock")
            .fetch_one(&mut *$tx)
            .await?;
        if stock > 0 {
            think().await;
            let update = sqlx::query($sql.write_stock).bind(stock - 1);
            update.execute(&mut *$tx).await?;
            let order = sqlx::query($sql.order).bind(stock);
            order.execute(&mut *$tx).await?;
        }
        Ok::<bool, Error>(stock > 0)
    }};
}

impl Shop {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        #[cfg(feature = "postgres")]
        if url.starts_with("postgres") {
            let pool = PgPoolOptions::new().max_connections(CONNECTIONS);
            return Ok(Self::Postgres(pool.connect(url).await?));
        }
        #[cfg(feature = "mysql")]
        if url.starts_with("mysql") || url.starts_with("mariadb") {
            let pool = MySqlPoolOptions::new().max_connections(CONNECTIONS);
            return Ok(Self::MySql(pool.connect(url).await?));
        }
        let options: SqliteConnectOptions = url.parse()?;
        let options = options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(30));
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS);
        Ok(Self::Sqlite(pool.connect_with(options).await?))
    }

    /// Opens all connections of the pool, as a process has them that has served for a while: the sale is measured, not
    /// the logins.
    pub(crate) async fn open_all(&self) -> Result<()> {
        on_shop!(self, pool, _sql => {
            let mut open = Vec::new();
            for _ in 0..CONNECTIONS {
                open.push(pool.acquire().await?);
            }
        });
        Ok(())
    }

    /// Runs a statement that is the same on every engine.
    pub(crate) async fn execute(&self, sql: &'static str) -> Result<()> {
        on_shop!(self, pool, _sql => sqlx::raw_sql(sql).execute(pool).await.map(drop))
    }

    /// Reads one number by a statement that is the same on every engine.
    async fn number(&self, sql: &'static str) -> Result<u32> {
        let number: i64 =
            on_shop!(self, pool, _sql => sqlx::query_scalar(sql).fetch_one(pool).await?);
        Ok(u32::try_from(number).unwrap_or(0))
    }

    /// Makes new tables with `stock` items. `unique` adds the unique index on the order number.
    pub(crate) async fn restock(&self, stock: u32, unique: bool) -> Result<()> {
        self.close().await?;
        self.execute("CREATE TABLE flash_sale_stock (items BIGINT NOT NULL)")
            .await?;
        self.execute("CREATE TABLE flash_sale_orders (number BIGINT NOT NULL)")
            .await?;
        if unique {
            self.execute("CREATE UNIQUE INDEX flash_sale_number ON flash_sale_orders (number)")
                .await?;
        }
        self.execute("INSERT INTO flash_sale_stock (items) VALUES (0)")
            .await?;
        self.write_stock(stock).await
    }

    /// Removes the tables.
    pub(crate) async fn close(&self) -> Result<()> {
        self.execute("DROP TABLE IF EXISTS flash_sale_stock")
            .await?;
        self.execute("DROP TABLE IF EXISTS flash_sale_orders").await
    }

    pub(crate) async fn orders(&self) -> Result<u32> {
        self.number("SELECT COUNT(*) FROM flash_sale_orders").await
    }

    async fn write_stock(&self, items: u32) -> Result<()> {
        on_shop!(self, pool, sql => {
            let update = sqlx::query(sql.write_stock).bind(i64::from(items));
            update.execute(pool).await.map(drop)
        })
    }

    /// Buys one item if one is left, by statements outside of a transaction. This is correct only if no other buyer
    /// does the same at the same time.
    pub(crate) async fn buy(&self) -> Result<bool> {
        let stock: u32 = self.number("SELECT items FROM flash_sale_stock").await?;
        if stock == 0 {
            return Ok(false);
        }
        think().await;
        self.write_stock(stock - 1).await?;
        on_shop!(self, pool, sql => {
            let order = sqlx::query(sql.order).bind(i64::from(stock));
            order.execute(pool).await.map(|_| true)
        })
    }

    /// Buys in one transaction, which commits only if the lease is still held.
    pub(crate) async fn buy_pinned(&self, held: &Held) -> std::result::Result<bool, Error> {
        on_shop!(self, pool, sql => RETRY.run(pool, async |mut tx| {
            let sold = buy_in!(tx, sql)?;
            held.pin(&mut tx).await?;
            Ok(sold)
        }).await)
    }

    /// Buys in one transaction that locks `name` first.
    pub(crate) async fn buy_pessimistic(
        &self,
        rowlock: &Rowlock,
        name: &str,
    ) -> std::result::Result<bool, Error> {
        on_shop!(self, pool, sql => RETRY.run(pool, async |mut tx| {
            rowlock.in_tx(&mut tx).lock(name).acquire().await?;
            buy_in!(tx, sql)
        }).await)
    }

    /// Buys without a lock, and begins again when another buyer was faster.
    pub(crate) async fn buy_optimistic(
        &self,
        rowlock: &Rowlock,
        name: &str,
    ) -> std::result::Result<bool, Error> {
        on_shop!(self, pool, sql => RETRY.run(pool, async |mut tx| {
            let seen = rowlock.in_tx(&mut tx).version(name).await?;
            let sold = buy_in!(tx, sql)?;
            rowlock.in_tx(&mut tx).advance(&seen).await?.or_conflict(&seen)?;
            Ok(sold)
        }).await)
    }

    /// Buys without rowlock: the number of an order is the number of its item, and a unique index refuses the second
    /// order. A buyer whose item is already sold tries the next item in the same transaction.
    pub(crate) async fn buy_unique(&self) -> std::result::Result<bool, Error> {
        on_shop!(self, pool, sql => RETRY.run(pool, async |mut tx| {
            let mut item: i64 = sqlx::query_scalar(
                "SELECT COALESCE((SELECT MIN(number) - 1 FROM flash_sale_orders), items) FROM flash_sale_stock",
            ).fetch_one(&mut *tx).await?;
            think().await;
            while item > 0 {
                match sqlx::query(sql.order_if_new).bind(item).execute(&mut *tx).await {
                    Ok(done) if done.rows_affected() == 1 => return Ok(true),
                    Ok(_) => {} // already sold
                    // MySQL and MariaDB roll back the statement only. The transaction goes on.
                    Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {}
                    Err(error) => return Err(error.into()),
                }
                item -= 1;
            }
            Ok(false)
        }).await)
    }
}

/// Stands for the work between reading and writing, such as checking an address.
pub(crate) async fn think() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
