//! The application's part: its statements, and the connection on which they run.

use rowlock::{RetryTx, Transaction};

/// The application's statements for one striped counter: made by the application, called by
/// [`Stripes`](super::Stripes) in the caller's transaction.
///
/// The counter is a row per stripe of a table of the application, with the stripes `0`, `1`, … Give the table a
/// primary key that ends with the stripe: without an index, MySQL and MariaDB lock all rows that an UPDATE reads. A
/// `CHECK (items >= 0)` is a second guard.
///
/// ```sql
/// CREATE TABLE stock (item BIGINT, stripe INT, items BIGINT NOT NULL CHECK (items >= 0), PRIMARY KEY (item, stripe))
/// ```
///
/// Change the rows by [`Stripes`](super::Stripes) only, or in a transaction that has locked the stripe's name
/// (`Stripes::names`).
///
/// The example of [`Stripes`](super::Stripes) has an implementation for SQLite. For `MySQL` and `MariaDB` write a
/// [`read_newest`](Self::read_newest), too.
pub trait Quantities: Send + Sync {
    /// sqlx's connection: `sqlx::PgConnection`, `sqlx::MySqlConnection` or `sqlx::SqliteConnection`.
    type Connection: Send;

    /// Adds `by` (which may be negative) to the quantity of a stripe, unless the result is below zero. Returns how
    /// many rows it changed: 1, or 0 when the result would be below zero.
    ///
    /// Do this in one statement that reads and writes, so that it is right at every level of isolation:
    /// `UPDATE stock SET items = items + $3 WHERE item = $1 AND stripe = $2 AND items + $3 >= 0`.
    fn add(
        &self,
        connection: &mut Self::Connection,
        stripe: i32,
        by: i64,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Reads all stripes and their quantities in one statement, without a lock: `SELECT stripe, items FROM stock WHERE
    /// item = $1`.
    fn read(
        &self,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<(i32, i64)>, sqlx::Error>> + Send;

    /// As [`read`](Self::read), but the newest quantities, even in a transaction that reads from an older snapshot. It
    /// is called while the stripes' names are locked, so it waits for nobody.
    ///
    /// `MySQL` and `MariaDB`: add `ORDER BY stripe FOR UPDATE`. Without it, a transaction under REPEATABLE READ (the
    /// default) that has read before sees old quantities, and gets [`Error::Conflict`](rowlock::Error::Conflict) where
    /// they matter. On the other engines `read` does.
    fn read_newest(
        &self,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<(i32, i64)>, sqlx::Error>> + Send {
        self.read(connection)
    }
}

/// A transaction on whose connection the application's statements run: each transaction that
/// [`Rowlock::in_tx`](rowlock::Rowlock::in_tx) takes is one.
pub trait OnConnection: Transaction {
    /// sqlx's connection.
    type Connection: Send;

    /// The connection, in the transaction.
    fn on_connection(&mut self) -> &mut Self::Connection;

    /// Keeps a guard until the transaction has ended, as [`RetryTx::keep`] does. sqlx's transactions do not report
    /// their end, and drop it.
    fn keep_until_end(&mut self, guard: impl Send + Sync + 'static);
}

impl<B: sqlx::Database> OnConnection for sqlx::Transaction<'_, B>
where
    Self: Transaction,
{
    type Connection = B::Connection;

    fn on_connection(&mut self) -> &mut B::Connection {
        self
    }

    fn keep_until_end(&mut self, guard: impl Send + Sync + 'static) {
        drop(guard);
    }
}

impl<B: sqlx::Database> OnConnection for RetryTx<B>
where
    Self: Transaction,
{
    type Connection = B::Connection;

    fn on_connection(&mut self) -> &mut B::Connection {
        self
    }

    fn keep_until_end(&mut self, guard: impl Send + Sync + 'static) {
        self.keep(guard);
    }
}
