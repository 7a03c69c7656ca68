//! The shop's two tables, on whichever engine the URL names.

use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{MySqlPool, PgPool, SqlitePool};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Connections per process.
const CONNECTIONS: u32 = 8;

/// The shop's own pool: the lock has connections of its own.
#[derive(Debug, Clone)]
pub(crate) enum Shop {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Statements that read the same on every engine need not be written three times.
macro_rules! execute {
    ($shop:expr, $sql:literal) => {
        match $shop {
            Shop::Postgres(pool) => sqlx::raw_sql($sql).execute(pool).await.map(drop),
            Shop::MySql(pool) => sqlx::raw_sql($sql).execute(pool).await.map(drop),
            Shop::Sqlite(pool) => sqlx::raw_sql($sql).execute(pool).await.map(drop),
        }
    };
}

macro_rules! number {
    ($shop:expr, $sql:literal) => {{
        let number: i64 = match $shop {
            Shop::Postgres(pool) => sqlx::query_scalar($sql).fetch_one(pool).await?,
            Shop::MySql(pool) => sqlx::query_scalar($sql).fetch_one(pool).await?,
            Shop::Sqlite(pool) => sqlx::query_scalar($sql).fetch_one(pool).await?,
        };
        Ok(u32::try_from(number).unwrap_or(0))
    }};
}

impl Shop {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let shop = if url.starts_with("postgres") {
            Self::Postgres(
                PgPoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .connect(url)
                    .await?,
            )
        } else if url.starts_with("sqlite") {
            let options: SqliteConnectOptions = url.parse()?;
            let options = options
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .busy_timeout(std::time::Duration::from_secs(30));
            let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS);
            Self::Sqlite(pool.connect_with(options).await?)
        } else {
            Self::MySql(
                MySqlPoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .connect(url)
                    .await?,
            )
        };
        Ok(shop)
    }

    /// Fresh tables with `stock` items.
    pub(crate) async fn restock(&self, stock: u32) -> Result<()> {
        self.close().await?;
        execute!(
            self,
            "CREATE TABLE flash_sale_stock (items BIGINT NOT NULL)"
        )?;
        execute!(
            self,
            "CREATE TABLE flash_sale_orders (items_left BIGINT NOT NULL)"
        )?;
        execute!(self, "INSERT INTO flash_sale_stock (items) VALUES (0)")?;
        self.write_stock(stock).await
    }

    /// Removes the tables.
    pub(crate) async fn close(&self) -> Result<()> {
        execute!(self, "DROP TABLE IF EXISTS flash_sale_stock")?;
        execute!(self, "DROP TABLE IF EXISTS flash_sale_orders")
    }

    pub(crate) async fn stock(&self) -> Result<u32> {
        number!(self, "SELECT items FROM flash_sale_stock")
    }

    pub(crate) async fn orders(&self) -> Result<u32> {
        number!(self, "SELECT COUNT(*) FROM flash_sale_orders")
    }

    /// Writes the new stock and the order.
    pub(crate) async fn sell(&self, left: u32) -> Result<()> {
        self.write_stock(left).await?;
        match self {
            Self::Postgres(pool) => {
                let insert = sqlx::query("INSERT INTO flash_sale_orders (items_left) VALUES ($1)");
                insert.bind(i64::from(left)).execute(pool).await.map(drop)
            }
            Self::MySql(pool) => {
                let insert = sqlx::query("INSERT INTO flash_sale_orders (items_left) VALUES (?)");
                insert.bind(i64::from(left)).execute(pool).await.map(drop)
            }
            Self::Sqlite(pool) => {
                let insert = sqlx::query("INSERT INTO flash_sale_orders (items_left) VALUES (?)");
                insert.bind(i64::from(left)).execute(pool).await.map(drop)
            }
        }
    }

    async fn write_stock(&self, items: u32) -> Result<()> {
        match self {
            Self::Postgres(pool) => {
                let update = sqlx::query("UPDATE flash_sale_stock SET items = $1");
                update.bind(i64::from(items)).execute(pool).await.map(drop)
            }
            Self::MySql(pool) => {
                let update = sqlx::query("UPDATE flash_sale_stock SET items = ?");
                update.bind(i64::from(items)).execute(pool).await.map(drop)
            }
            Self::Sqlite(pool) => {
                let update = sqlx::query("UPDATE flash_sale_stock SET items = ?");
                update.bind(i64::from(items)).execute(pool).await.map(drop)
            }
        }
    }
}
