//! Connections that are in a transaction: what a helper of the application gets that takes `&mut PgConnection`.

use sqlx::Connection;
use sqlx::pool::PoolConnection;

use super::{Transaction, sealed};
use crate::store::driver::engines::{Driver, SupportedDatabase};
use crate::store::verbs::TxStore;

macro_rules! connections {
    ($($feature:literal: $connection:ident of $database:ident;)+) => {$(
        #[cfg(feature = $feature)]
        impl sealed::Sealed for sqlx::$connection {
            #[allow(private_interfaces, reason = "sealed")]
            const DRIVER: Driver = sqlx::$database::DRIVER;

            #[allow(private_interfaces, reason = "sealed")]
            fn connection(&mut self) -> &mut dyn TxStore {
                self
            }

            fn is_open(&self) -> bool {
                self.is_in_transaction()
            }
        }

        #[cfg(feature = $feature)]
        impl Transaction for sqlx::$connection {}
    )+};
}

connections! {
    "sqlite": SqliteConnection of Sqlite;
    "postgres": PgConnection of Postgres;
    "mysql": MySqlConnection of MySql;
}

#[allow(private_bounds, private_interfaces, reason = "sealed")]
impl<B: SupportedDatabase> sealed::Sealed for PoolConnection<B> {
    const DRIVER: Driver = B::DRIVER;

    fn connection(&mut self) -> &mut dyn TxStore {
        &mut **self
    }

    fn is_open(&self) -> bool {
        self.is_in_transaction()
    }
}

#[allow(private_bounds, reason = "sealed")]
impl<B: SupportedDatabase> Transaction for PoolConnection<B> {}
