//! The application's transactions: the pools that begin them, the calls in them, and retrying them.

mod commit_failure;
mod commit_hint;
mod connection;
mod context;
mod open;
mod pool;
mod retry;
mod retryable;
mod sole_writer;

use crate::store::driver::engines::{Driver, SupportedDatabase};
use crate::store::verbs::TxStore;

pub(crate) use commit_failure::CommitFailure;
pub(crate) use context::Context;
pub use open::RetryTx;
pub(crate) use open::{Open, Run};
pub use pool::Pool;
pub(crate) use pool::connector;
pub use retry::Retry;
pub use retryable::{Retryable, is_retryable};
pub(crate) use sole_writer::is_alone_in;

/// An open transaction of sqlx: `Transaction<'_, Postgres>`, `Transaction<'_, MySql>` (MariaDB too),
/// `Transaction<'_, Sqlite>`, a [`RetryTx`] of one of these databases, or a connection that is in a transaction
/// (`PgConnection`, `MySqlConnection`, `SqliteConnection`, `PoolConnection`). A connection that is in none is refused
/// at run time ([`TransactionError::Over`](crate::TransactionError::Over)). Sealed.
///
/// Pass `&mut tx` of a [`RetryTx`], not `&mut *tx`. The connection alone does not tell rowlock that [`Retry`] runs the
/// transaction: then `Retry` makes no missing rows between two attempts ([`Error::Starved`](crate::Error::Starved)).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction of sqlx's that this build of rowlock knows",
    note = "pass `&mut tx`, where `tx` is what `pool.begin().await?` returns, or the connection in that transaction",
    note = "rowlock has the engine of `tx` only with its feature: `postgres`, `mysql` or `sqlite`",
    note = "it takes the transactions of sqlx 0.9: in another release of sqlx they are other types of the same name (`cargo tree -i sqlx` tells)"
)]
pub trait Transaction: sealed::Sealed {}

mod sealed {
    use std::sync::Arc;

    use crate::model::Name;
    use crate::runtime::Core;
    use crate::store::driver::engines::Driver;
    use crate::store::verbs::TxStore;

    /// An action to run after a transaction has ended.
    pub(crate) type AtEnd = Box<dyn FnOnce() + Send + Sync>;

    pub trait Sealed: Send {
        #[allow(private_interfaces, reason = "sealed")]
        const DRIVER: Driver;

        #[allow(private_interfaces, reason = "sealed")]
        fn connection(&mut self) -> &mut dyn TxStore;

        /// Whether a transaction is open, as far as sqlx knows.
        fn is_open(&self) -> bool {
            true
        }

        /// Whether rowlock has begun it, as one that may write.
        fn is_begun(&self) -> bool {
            false
        }

        /// Runs `then` after the transaction has ended. sqlx's transactions do not report their end, and drop it.
        fn at_end(&mut self, then: AtEnd) {
            drop(then);
        }

        /// Asks for the row of `name` before the next attempt begins. Does nothing where there is no next attempt.
        #[allow(private_interfaces, reason = "sealed")]
        fn make_row_first(&mut self, core: &Arc<Core>, name: &Name) {
            let _ = (core, name);
        }
    }
}

#[allow(private_bounds, private_interfaces, reason = "sealed")]
impl<B: SupportedDatabase> sealed::Sealed for sqlx::Transaction<'_, B> {
    const DRIVER: Driver = B::DRIVER;

    fn connection(&mut self) -> &mut dyn TxStore {
        &mut **self
    }
}

#[allow(private_bounds, reason = "sealed")]
impl<B: SupportedDatabase> Transaction for sqlx::Transaction<'_, B> {}
