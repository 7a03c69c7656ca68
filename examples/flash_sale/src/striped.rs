//! The stock in several rows, each under a lock of its own.

use rowlock::{Error, Rowlock};
use rowlock_recipes::stripes::{Quantities, Stripes, StripesError};

use crate::shop::{NUMBERED, RETRY, Shop, think};

/// The stripes, for the engine of each shop. Only those of the shop's engine are used.
#[derive(Debug, Clone)]
pub(crate) struct Striped {
    #[cfg(feature = "postgres")]
    postgres: Stripes<OnPostgres>,
    #[cfg(feature = "mysql")]
    mysql: Stripes<OnMySql>,
    sqlite: Stripes<OnSqlite>,
}

impl Striped {
    pub(crate) fn new(rowlock: &Rowlock, name: &str, stripes: u32) -> Result<Self, Error> {
        Ok(Self {
            #[cfg(feature = "postgres")]
            postgres: Stripes::new(rowlock, name, stripes, OnPostgres)?,
            #[cfg(feature = "mysql")]
            mysql: Stripes::new(rowlock, name, stripes, OnMySql)?,
            sqlite: Stripes::new(rowlock, name, stripes, OnSqlite)?,
        })
    }
}

/// The statements for the stripes on one engine.
macro_rules! quantities {
    ($on:ident, $connection:ty, $add:literal $(, $newest:literal)?) => {
        #[derive(Debug)]
        struct $on;

        impl Quantities for $on {
            type Connection = $connection;

            async fn add(&self, connection: &mut $connection, stripe: i32, by: i64) -> sqlx::Result<u64> {
                let add = sqlx::query($add).bind(by).bind(stripe).bind(by);
                Ok(add.execute(connection).await?.rows_affected())
            }

            async fn read(&self, connection: &mut $connection) -> sqlx::Result<Vec<(i32, i64)>> {
                let read = sqlx::query_as("SELECT stripe, items FROM flash_sale_stock");
                read.fetch_all(connection).await
            }

            $(async fn read_newest(&self, connection: &mut $connection) -> sqlx::Result<Vec<(i32, i64)>> {
                sqlx::query_as($newest).fetch_all(connection).await
            })?
        }
    };
}

#[cfg(feature = "postgres")]
quantities!(
    OnPostgres,
    sqlx::PgConnection,
    "UPDATE flash_sale_stock SET items = items + $1 WHERE stripe = $2 AND items + $3 >= 0"
);
#[cfg(feature = "mysql")]
quantities!(
    OnMySql,
    sqlx::MySqlConnection,
    "UPDATE flash_sale_stock SET items = items + ? WHERE stripe = ? AND items + ? >= 0",
    "SELECT stripe, items FROM flash_sale_stock ORDER BY stripe FOR UPDATE"
);
quantities!(
    OnSqlite,
    sqlx::SqliteConnection,
    "UPDATE flash_sale_stock SET items = items + $1 WHERE stripe = $2 AND items + $3 >= 0"
);

/// Runs `$body` with the shop's pool, its stripes, and the statement that inserts an order.
macro_rules! on_stripes {
    ($shop:expr, $striped:expr, $pool:ident, $stripes:ident, $order:ident => $body:expr) => {
        match $shop {
            #[cfg(feature = "postgres")]
            Shop::Postgres($pool) => {
                let ($stripes, $order) = (&$striped.postgres, NUMBERED.order);
                $body
            }
            #[cfg(feature = "mysql")]
            Shop::MySql($pool) => {
                let ($stripes, $order) = (&$striped.mysql, crate::shop::QUESTION.order);
                $body
            }
            Shop::Sqlite($pool) => {
                let ($stripes, $order) = (&$striped.sqlite, NUMBERED.order);
                $body
            }
        }
    };
}

impl Shop {
    /// Makes new tables, whose stripes have `stock` items together.
    pub(crate) async fn restock_striped(
        &self,
        striped: &Striped,
        stock: u32,
    ) -> Result<(), StripesError> {
        self.close().await?;
        self.execute("CREATE TABLE flash_sale_stock (stripe INTEGER NOT NULL PRIMARY KEY, items BIGINT NOT NULL CHECK (items >= 0))").await?;
        self.execute("CREATE TABLE flash_sale_orders (number BIGINT NOT NULL)")
            .await?;
        on_stripes!(self, striped, pool, stripes, _order => RETRY.run(pool, async |mut tx| {
            for stripe in stripes.numbers() {
                let row = format!("INSERT INTO flash_sale_stock (stripe, items) VALUES ({stripe}, 0)");
                sqlx::raw_sql(sqlx::AssertSqlSafe(row)).execute(&mut *tx).await?;
            }
            stripes.restock(&mut tx, u64::from(stock)).await
        }).await)
    }

    /// Buys from any stripe that has an item. The number of an order is that of its stripe.
    pub(crate) async fn buy_striped(&self, striped: &Striped) -> Result<bool, StripesError> {
        let sold = on_stripes!(self, striped, pool, stripes, order => RETRY.run(pool, async |mut tx| {
            let taken = stripes.take(&mut tx, 1).await?;
            think().await;
            for (stripe, _) in taken.parts() {
                sqlx::query(order).bind(i64::from(stripe)).execute(&mut *tx).await?;
            }
            Ok(())
        }).await);
        match sold {
            Ok(()) => Ok(true),
            Err(StripesError::Short { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
