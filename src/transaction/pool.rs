//! The application's pools. They give rowlock the database's address, and connections for transactions.

use crate::store::brands::Supported;

/// An sqlx pool. It gives the database's address, and begins transactions. Sealed: `PgPool`, `MySqlPool`,
/// `SqlitePool`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an sqlx pool that this build of rowlock knows",
    note = "pass a `&PgPool`, `&MySqlPool` or `&SqlitePool`",
    note = "rowlock has the engine of a pool only with its feature: `postgres`, `mysql` or `sqlite`"
)]
pub trait Pool: sealed::Sealed {}

#[allow(
    private_bounds,
    private_interfaces,
    reason = "sealed: only this crate uses it"
)]
pub(super) mod sealed {
    use crate::store::brands::Supported;

    pub trait Sealed: Sync + 'static {
        type Brand: Supported;

        fn pool(&self) -> &sqlx::Pool<Self::Brand>;
    }

    impl<B: Supported> Sealed for sqlx::Pool<B> {
        type Brand = B;

        fn pool(&self) -> &Self {
            self
        }
    }
}

#[allow(private_bounds, reason = "sealed")]
impl<B: Supported> Pool for sqlx::Pool<B> {}
