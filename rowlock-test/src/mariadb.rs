//! MariaDB, where it is not like MySQL.

use crate::kind::Kind;
use crate::mysql;

pub(crate) const KIND: Kind = Kind {
    unchecked: |table, constraint, sql| {
        format!("ALTER TABLE {table} DROP CONSTRAINT {constraint}; {sql}")
    },
    ..mysql::KIND
};
