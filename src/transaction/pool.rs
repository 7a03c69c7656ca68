//! The application's pools. They give rowlock the database's address, and connections for transactions.

use std::sync::Arc;

use crate::model::Error;
use crate::store::driver::connector::Connector;
use crate::store::driver::engines::SupportedDatabase;

/// Opens connections of rowlock's own to the database of a pool.
pub(crate) fn connector<B: SupportedDatabase>(pool: &sqlx::Pool<B>) -> Result<B::Connector, Error> {
    let pool = pool.clone();
    B::Connector::from_options(Arc::new(move || pool.connect_options()))
}

/// An sqlx pool. It gives the database's address, and begins transactions. Sealed: `PgPool`, `MySqlPool`,
/// `SqlitePool`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an sqlx pool that this build of rowlock knows",
    note = "pass a `&PgPool`, `&MySqlPool` or `&SqlitePool`",
    note = "rowlock has the engine of a pool only with its feature: `postgres`, `mysql` or `sqlite`",
    note = "it takes the pools of sqlx 0.9: in another release of sqlx they are other types of the same name (`cargo tree -i sqlx` tells)"
)]
pub trait Pool: sealed::Sealed {}

#[allow(
    private_bounds,
    private_interfaces,
    reason = "sealed: only this crate uses it"
)]
pub(super) mod sealed {
    use crate::store::driver::engines::SupportedDatabase;

    pub trait Sealed: Sync + 'static {
        type Database: SupportedDatabase;

        fn pool(&self) -> &sqlx::Pool<Self::Database>;
    }

    impl<B: SupportedDatabase> Sealed for sqlx::Pool<B> {
        type Database = B;

        fn pool(&self) -> &Self {
            self
        }
    }
}

#[allow(private_bounds, reason = "sealed")]
impl<B: SupportedDatabase> Pool for sqlx::Pool<B> {}
