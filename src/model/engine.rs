//! The engines that rowlock works on. All that names each of them stands in this file.

use std::fmt;
use std::str::FromStr;

use super::InvalidError;

/// A database engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Engine {
    /// PostgreSQL 13 or later.
    Postgres,
    /// MySQL 8.0.16 or later.
    MySql,
    /// MariaDB 10.6 or later.
    MariaDb,
    /// SQLite, embedded.
    Sqlite,
}

impl Engine {
    /// `postgres`, `mysql`, `mariadb` or `sqlite`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
            Self::Sqlite => "sqlite",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = InvalidError;

    fn from_str(name: &str) -> Result<Self, InvalidError> {
        match name {
            "postgres" | "postgresql" | "pg" => Ok(Self::Postgres),
            "mysql" => Ok(Self::MySql),
            "mariadb" => Ok(Self::MariaDb),
            "sqlite" => Ok(Self::Sqlite),
            _ => Err(InvalidError::Setting {
                setting: "engine",
                reason: "postgres, mysql, mariadb and sqlite are allowed",
            }),
        }
    }
}
