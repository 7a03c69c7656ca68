//! The list of engines, one line for each. (The engines, which callers see, are in `src/model/engine.rs`.)
//!
//! The folder of an engine provides:
//!
//! - the [`Connector`] (`connect.rs`), with the name in the line: how to reach the database, and its
//!   [`Capabilities`](super::capabilities::Capabilities);
//! - `fault_kind` (`fault.rs`): maps the vendor's codes to kinds of failure;
//! - `migrations` and `grants` (`schema.rs`): the tables, and the rights that a user of them needs;
//! - the traits of the [`Store`](crate::store::verbs::Store), on the connection of a database type of sqlx's or of
//!   another driver's.
//!
//! Two engines cannot share a database type: a pool of the caller's tells its engine by that type. An engine that
//! speaks another one's protocol is a branch within its engine, as MariaDB is within MySQL.

use sqlx::error::DatabaseError;

use super::connector::Connector;
use super::migrate::Migrations;
use crate::model::{ConnectError, Engine, Error, FaultKind};
use crate::store::verbs::TxStore;

/// A database type of sqlx's that this build supports.
#[diagnostic::on_unimplemented(
    message = "this build of rowlock does not support the databases of `{Self}`",
    note = "rowlock takes `PgPool`, `MySqlPool` and `SqlitePool`, and the transactions that such a pool begins",
    note = "each database needs its feature of rowlock: `postgres`, `mysql` or `sqlite`"
)]
pub(crate) trait SupportedDatabase: sqlx::Database<Connection: TxStore> {
    const DRIVER: Driver;

    /// Opens rowlock's own connections to such a database.
    type Connector: Connector<Options = <Self::Connection as sqlx::Connection>::Options>;
}

/// What [`connect`] runs with the connector of a URL.
pub(crate) trait Connect: Sized {
    type Connected;

    fn connect<C: Connector>(
        self,
        connector: C,
    ) -> impl Future<Output = Result<Self::Connected, Error>> + Send;
}

macro_rules! engines {
    ($($driver:ident, $database:ty: $feature:literal, $folder:ident, $url:literal, [$($scheme:literal),+], [$($engine:ident),+];)+) => {
        #[cfg(not(any($(feature = $feature),+)))]
        compile_error!(concat!("rowlock needs an engine: enable one of the features", $(" ", $feature),+));

        /// A line of the list. It exists in builds without its feature too.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Driver {
            $($driver,)+
        }

        impl Driver {
            /// The crate's feature that enables it.
            pub(crate) const fn feature(self) -> &'static str {
                match self {
                    $(Self::$driver => $feature,)+
                }
            }

            fn of_scheme(scheme: &str) -> Option<Self> {
                match scheme {
                    $($($scheme)|+ => Some(Self::$driver),)+
                    _ => None,
                }
            }

            pub(crate) fn of_engine(engine: Engine) -> Self {
                match engine {
                    $($(Engine::$engine)|+ => Self::$driver,)+
                }
            }
        }

        $(
            #[cfg(feature = $feature)]
            impl SupportedDatabase for $database {
                const DRIVER: Driver = Driver::$driver;

                type Connector = crate::store::$folder::$driver;
            }
        )+

        /// Connects to the database that `url` names.
        pub(crate) async fn connect<C: Connect>(url: &str, then: C) -> Result<C::Connected, Error> {
            let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
            match Driver::of_scheme(scheme) {
                $(
                    #[cfg(feature = $feature)]
                    Some(Driver::$driver) => {
                        then.connect(crate::store::$folder::$driver::from_url(url)?).await
                    }
                )+
                #[allow(unreachable_patterns, reason = "reachable in a build without some engine")]
                Some(driver) => Err(not_built(driver.feature(), driver)),
                None => Err(Error::Connect(ConnectError::InvalidUrl {
                    reason: format!(
                        "its scheme is missing or unknown; rowlock takes {}",
                        [$($url),+].join(", "),
                    ),
                })),
            }
        }

        /// The migrations of an engine.
        pub(crate) fn migrations(engine: Engine) -> Result<Migrations, Error> {
            match Driver::of_engine(engine) {
                $(
                    #[cfg(feature = $feature)]
                    Driver::$driver => Ok(crate::store::$folder::migrations()),
                )+
                #[allow(unreachable_patterns, reason = "reachable in a build without some engine")]
                driver => Err(not_built(engine.name(), driver)),
            }
        }

        /// The kind of a database error; `None` when its engine is not in this build.
        pub(crate) fn fault_kind(error: &dyn DatabaseError) -> Option<FaultKind> {
            let engines: &[fn(&dyn DatabaseError) -> Option<FaultKind>] = &[
                $(
                    #[cfg(feature = $feature)]
                    crate::store::$folder::fault_kind,
                )+
            ];
            engines.iter().find_map(|kind| kind(error))
        }

        /// The statements that give `user` all rights that rowlock needs at run time in `database`; `scheme` selects
        /// the engine.
        pub(crate) fn grants(scheme: &str, user: &str, database: &str) -> Option<String> {
            match Driver::of_scheme(scheme)? {
                $(
                    #[cfg(feature = $feature)]
                    Driver::$driver => Some(crate::store::$folder::grants(user, database)),
                )+
                #[allow(unreachable_patterns, reason = "reachable in a build without some engine")]
                _ => None,
            }
        }
    };
}

// Name (of the connector too), the driver's database type: feature, folder, how a URL begins, its schemes, engines.
engines! {
    Sqlite, sqlx::Sqlite: "sqlite", sqlite, "sqlite:PATH (a file)", ["sqlite"], [Sqlite];
    Postgres, sqlx::Postgres: "postgres", postgres, "postgres://", ["postgres", "postgresql"], [Postgres];
    MySql, sqlx::MySql: "mysql", mysql, "mysql:// or mariadb://", ["mysql", "mariadb"], [MySql, MariaDb];
}

fn not_built(engine: &'static str, driver: Driver) -> Error {
    Error::Connect(ConnectError::EngineNotBuilt {
        engine,
        feature: driver.feature(),
    })
}
