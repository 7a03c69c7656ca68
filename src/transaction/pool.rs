//! Pools of the application: where the database is, and how a transaction in it begins.

/// An sqlx pool: it tells where the database is, and begins transactions. Sealed: `PgPool`, `MySqlPool`,
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
    reason = "nobody else sees what is sealed"
)]
mod sealed {
    use crate::model::{Engine, Error};
    use crate::store::{Connector, TxStore};

    pub trait Sealed: Sync + 'static {
        type Brand: sqlx::Database;

        /// The engine, or one of those that share its protocol.
        const ENGINE: Engine;

        /// How a transaction that may write is begun, where that is not plain BEGIN; on PostgreSQL it can be told again.
        const BEGIN: Option<&'static str>;

        fn pool(&self) -> &sqlx::Pool<Self::Brand>;

        fn connection<'t>(
            tx: &'t mut sqlx::Transaction<'static, Self::Brand>,
        ) -> &'t mut dyn TxStore;

        /// How connections of rowlock's own are opened to the pool's database.
        fn connector(&self) -> Result<impl Connector, Error>;
    }

    #[cfg(feature = "postgres")]
    impl Sealed for sqlx::PgPool {
        type Brand = sqlx::Postgres;

        const ENGINE: Engine = Engine::Postgres;

        const BEGIN: Option<&'static str> = Some(crate::store::postgres::BEGIN);

        fn pool(&self) -> &Self {
            self
        }

        fn connection<'t>(
            tx: &'t mut sqlx::Transaction<'static, sqlx::Postgres>,
        ) -> &'t mut dyn TxStore {
            &mut **tx
        }

        fn connector(&self) -> Result<impl Connector, Error> {
            let options = self.connect_options().as_ref().clone();
            Ok(crate::store::postgres::Postgres::new(options))
        }
    }

    #[cfg(feature = "mysql")]
    impl Sealed for sqlx::MySqlPool {
        type Brand = sqlx::MySql;

        const ENGINE: Engine = Engine::MySql;

        const BEGIN: Option<&'static str> = None;

        fn pool(&self) -> &Self {
            self
        }

        fn connection<'t>(
            tx: &'t mut sqlx::Transaction<'static, sqlx::MySql>,
        ) -> &'t mut dyn TxStore {
            &mut **tx
        }

        fn connector(&self) -> Result<impl Connector, Error> {
            let options = self.connect_options().as_ref().clone();
            crate::store::mysql::MySql::new(options)
        }
    }

    #[cfg(feature = "sqlite")]
    impl Sealed for sqlx::SqlitePool {
        type Brand = sqlx::Sqlite;

        const ENGINE: Engine = Engine::Sqlite;

        const BEGIN: Option<&'static str> = Some(crate::store::sqlite::BEGIN_TO_WRITE);

        fn pool(&self) -> &Self {
            self
        }

        fn connection<'t>(
            tx: &'t mut sqlx::Transaction<'static, sqlx::Sqlite>,
        ) -> &'t mut dyn TxStore {
            &mut **tx
        }

        fn connector(&self) -> Result<impl Connector, Error> {
            let options = self.connect_options().as_ref().clone();
            Ok(crate::store::sqlite::Sqlite::new(options))
        }
    }
}

#[cfg(feature = "postgres")]
impl Pool for sqlx::PgPool {}
#[cfg(feature = "mysql")]
impl Pool for sqlx::MySqlPool {}
#[cfg(feature = "sqlite")]
impl Pool for sqlx::SqlitePool {}
