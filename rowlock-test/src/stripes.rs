//! A counter in stripes (`rowlock_recipes::stripes`), on any engine.

use std::marker::PhantomData;
use std::time::Duration;

use rowlock::{Retry, Rowlock};
use rowlock_recipes::stripes::{Quantities, Stripes, StripesError, Taken};
use sqlx::{MySqlConnection, PgConnection, SqliteConnection};

use crate::{App, Db, Tx};

/// The statements for the table `stock (stripe, items)`, which has no constraint of its own: the statements alone keep
/// it from going below zero.
#[derive(Debug)]
pub struct Stock<C>(PhantomData<fn(C)>);

impl<B: sqlx::Database> Stock<B> {
    /// The statements for the engine of a transaction.
    pub fn of(_tx: &sqlx::Transaction<'_, B>) -> Stock<B::Connection> {
        Stock(PhantomData)
    }
}

macro_rules! quantities {
    ($connection:ty, $add:literal, $newest:literal) => {
        impl Quantities for Stock<$connection> {
            type Connection = $connection;

            async fn add(
                &self,
                connection: &mut $connection,
                stripe: i32,
                by: i64,
            ) -> sqlx::Result<u64> {
                let add = sqlx::query($add).bind(by).bind(stripe).bind(by);
                Ok(add.execute(connection).await?.rows_affected())
            }

            async fn read(&self, connection: &mut $connection) -> sqlx::Result<Vec<(i32, i64)>> {
                let read = sqlx::query_as("SELECT stripe, items FROM stock");
                read.fetch_all(connection).await
            }

            async fn read_newest(
                &self,
                connection: &mut $connection,
            ) -> sqlx::Result<Vec<(i32, i64)>> {
                sqlx::query_as($newest).fetch_all(connection).await
            }
        }
    };
}
quantities!(
    PgConnection,
    "UPDATE stock SET items = items + $1 WHERE stripe = $2 AND items + $3 >= 0",
    "SELECT stripe, items FROM stock"
);
quantities!(
    MySqlConnection,
    "UPDATE stock SET items = items + ? WHERE stripe = ? AND items + ? >= 0",
    "SELECT stripe, items FROM stock ORDER BY stripe FOR UPDATE"
);
quantities!(
    SqliteConnection,
    "UPDATE stock SET items = items + ? WHERE stripe = ? AND items + ? >= 0",
    "SELECT stripe, items FROM stock"
);

/// The stripes of the table `stock`. Those of one engine are used.
#[derive(Debug, Clone)]
pub struct Striped {
    pub postgres: Stripes<Stock<PgConnection>>,
    pub mysql: Stripes<Stock<MySqlConnection>>,
    pub sqlite: Stripes<Stock<SqliteConnection>>,
}

/// Runs the same code with the stripes of any engine, and its pool ([`App`]) or its transaction ([`Tx`]).
macro_rules! on_stripes {
    ($of:ident, $on:expr, $striped:expr, $inner:ident, $stripes:ident => $body:expr) => {
        match $on {
            $of::Postgres($inner) => {
                let $stripes = &$striped.postgres;
                $body
            }
            $of::MySql($inner) => {
                let $stripes = &$striped.mysql;
                $body
            }
            $of::Sqlite($inner) => {
                let $stripes = &$striped.sqlite;
                $body
            }
        }
    };
}

impl Striped {
    /// Makes the table, with these quantities.
    pub async fn make(db: &Db, rowlock: &Rowlock, quantities: &[i64]) -> Self {
        db.execute("CREATE TABLE stock (stripe INT NOT NULL PRIMARY KEY, items BIGINT NOT NULL)")
            .await;
        for (stripe, items) in quantities.iter().enumerate() {
            db.execute(&format!("INSERT INTO stock VALUES ({stripe}, {items})"))
                .await;
        }
        Self::of(rowlock, u32::try_from(quantities.len()).unwrap())
    }

    /// The stripes of a table that was made before, as another client has them.
    pub fn of(rowlock: &Rowlock, stripes: u32) -> Self {
        fn new<C>(rowlock: &Rowlock, stripes: u32) -> Stripes<Stock<C>> {
            Stripes::new(rowlock, "stock", stripes, Stock(PhantomData)).unwrap()
        }
        Self {
            postgres: new(rowlock, stripes),
            mysql: new(rowlock, stripes),
            sqlite: new(rowlock, stripes),
        }
    }

    /// The quantities in the table.
    pub async fn quantities(&self, db: &Db) -> Vec<i64> {
        let mut all = Vec::new();
        for stripe in self.sqlite.numbers() {
            let sql = format!("SELECT items FROM stock WHERE stripe = {stripe}");
            all.push(db.number(&sql).await);
        }
        all
    }

    /// Takes in a transaction of its own, which is tried again. Returns what is left when there is too little.
    pub async fn buy(&self, app: &App, n: u64) -> Result<u64, u64> {
        const EAGER: Retry = Retry::new()
            .attempts(u32::MAX)
            .backoff(Duration::from_millis(1), Duration::from_millis(40));
        let taken = on_stripes!(App, app, self, pool, stripes => {
            EAGER.run(pool, |mut tx| async move { stripes.take(&mut tx, n).await }).await
        });
        match taken {
            Ok(taken) => Ok(taken.parts().map(|(_, n)| n).sum()),
            Err(error) => Err(error.left().unwrap_or_else(|| panic!("{error}"))),
        }
    }

    /// Limits how long a call waits.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self {
            postgres: self.postgres.wait(wait),
            mysql: self.mysql.wait(wait),
            sqlite: self.sqlite.wait(wait),
        }
    }

    /// The names of the locks.
    pub fn names(&self) -> Vec<String> {
        let names = self.sqlite.names();
        names.map(|name| name.as_str().to_owned()).collect()
    }

    pub async fn take(&self, tx: &mut Tx, n: u64) -> Result<Taken, StripesError> {
        on_stripes!(Tx, tx, self, tx, stripes => stripes.take(tx, n).await)
    }

    pub async fn give_back(&self, tx: &mut Tx, n: u64) -> Result<(), StripesError> {
        on_stripes!(Tx, tx, self, tx, stripes => stripes.give_back(tx, n).await)
    }

    pub async fn restock(&self, tx: &mut Tx, n: u64) -> Result<(), StripesError> {
        on_stripes!(Tx, tx, self, tx, stripes => stripes.restock(tx, n).await)
    }

    pub async fn rebalance(&self, tx: &mut Tx) -> Result<u64, StripesError> {
        on_stripes!(Tx, tx, self, tx, stripes => stripes.rebalance(tx).await)
    }

    pub async fn total(&self, tx: &mut Tx) -> Result<u64, StripesError> {
        on_stripes!(Tx, tx, self, tx, stripes => stripes.total(tx).await)
    }
}
