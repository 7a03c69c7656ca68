//! The engines that rowlock works on: one list.

use std::fmt;
use std::str::FromStr;

macro_rules! engines {
    (
        { $($(#[$doc:meta])* $engine:ident: $name:literal $(or $alias:literal)?;)+ }
        and { $(#[$last_doc:meta])* $last:ident: $last_name:literal; }
    ) => {
        /// A database brand.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Engine {
            $($(#[$doc])* $engine,)+
            $(#[$last_doc])*
            $last,
        }

        impl Engine {
            /// Its name: as in a URL's scheme, in small letters.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$engine => $name,)+
                    Self::$last => $last_name,
                }
            }
        }

        impl FromStr for Engine {
            type Err = UnknownEngine;

            fn from_str(name: &str) -> Result<Self, UnknownEngine> {
                match name {
                    $($name $(| $alias)? => Ok(Self::$engine),)+
                    $last_name => Ok(Self::$last),
                    _ => Err(UnknownEngine),
                }
            }
        }

        impl UnknownEngine {
            pub(super) const ALLOWED: &str = concat!($($name, ", ",)+ "and ", $last_name, " are allowed");
        }
    };
}

engines! {
    {
        /// PostgreSQL 13 or later.
        Postgres: "postgres" or "postgresql";
        /// MySQL 8.0.16 or later.
        MySql: "mysql";
        /// MariaDB 10.6 or later.
        MariaDb: "mariadb";
    }
    and {
        /// SQLite, embedded.
        Sqlite: "sqlite";
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of an [`Engine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`engine` is refused: {}", Self::ALLOWED)]
#[non_exhaustive]
pub struct UnknownEngine;
