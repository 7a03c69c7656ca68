//! The list of engines, and what the tests have to know about each: its file fills in a [`Kind`].

use std::fmt::Debug;
use std::pin::Pin;

use rowlock::Engine;

use crate::{App, Db};

/// The list of engines, in the order in which the tests run: the file, and its variant of `Engine`. Hands the list to
/// a macro.
#[macro_export]
macro_rules! engines {
    ($then:ident $($with:tt)*) => {
        $crate::$then! { $($with)*
            (sqlite Sqlite)
            (postgres Postgres)
            (mariadb MariaDb)
            (mysql MySql)
        }
    };
}

#[macro_export]
macro_rules! kinds {
    ($(($module:ident $engine:ident))+) => {
        /// All engines, in the order in which the tests run.
        pub const ENGINES: &[Engine] = &[$(Engine::$engine),+];

        impl Kind {
            pub fn of(engine: Engine) -> &'static Self {
                match engine {
                    $(Engine::$engine => &$crate::$module::KIND,)+
                    other => panic!("{other} is missing in the list of rowlock-test/src/kind.rs"),
                }
            }
        }
    };
}
engines!(kinds);

/// The engine that comes `n` places after `engine` in the list, round and round. In the list are all engines, or those
/// that `ROWLOCK_TEST_ENGINES` names, with commas between them: where this run has no other servers.
pub(crate) fn engine_after(engine: Engine, n: usize) -> Engine {
    let here = match std::env::var("ROWLOCK_TEST_ENGINES") {
        Ok(names) => names.split(',').map(|name| name.parse().unwrap()).collect(),
        Err(_) => ENGINES.to_vec(),
    };
    let at = here.iter().position(|here| *here == engine).unwrap();
    here[(at + n) % here.len()]
}

/// An asynchronous answer.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A new database.
pub(crate) struct New {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) app: App,
    /// The folder that it is in.
    pub(crate) dir: Option<tempfile::TempDir>,
}

/// What an engine does in its own way.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each answers a question")]
pub struct Kind {
    /// Only one transaction at a time can write. It locks the whole database, so no transaction waits after it has
    /// begun.
    pub one_writer: bool,
    /// There is a server process, which sessions reach by a network.
    pub has_server: bool,
    /// A transaction with a snapshot fails when it locks a row that is newer.
    pub refuses_newer_rows: bool,
    /// Under READ COMMITTED, a transaction can wait until a lease ends that was granted while it waited for the row.
    pub waits_for_leases: bool,
    /// If a transaction cannot lock all names that it asks for, it keeps none of them locked.
    pub gives_names_back: bool,
    /// A statement says which rows it changed, and not only how many.
    pub tells_changed_rows: bool,
    /// The URL of a database that is not there. Where there is a server, the user is `me` and the password `s3cret`.
    pub nowhere: &'static str,
    /// Added to a URL: the connection is not encrypted.
    pub readable: &'static str,
    /// Statements that end a transaction, so that sqlx does not notice.
    pub ends: &'static [&'static str],
    /// Locks the table of the locks, in a transaction, until its session ends.
    pub lock_table: &'static str,
    /// Makes a transaction serializable after its begin, where a transaction can do that.
    pub serializable: Option<&'static str>,
    /// Added to a SELECT in a transaction: reads the newest row, and keeps writers from it. Empty where a plain SELECT
    /// will do.
    pub share: &'static str,
    /// A query for 1 while the session has its own settings, where rowlock changes settings for a moment.
    pub settings: Option<&'static str>,
    /// Added to an INSERT: changes nothing if a row with this key exists. Empty where the INSERT fails, and nothing
    /// else does.
    pub unless_exists: fn(key: &str) -> String,
    /// Has the server refuse every later update of a row of `table` where `column` is `bytes`.
    pub refuse: fn(table: &str, column: &str, bytes: &str) -> String,
    /// Has the server end a transaction that sends nothing for a second, if the server has such a limit. Sent in the
    /// transaction.
    pub end_idle: Option<&'static str>,
    /// The time now, in microseconds.
    pub micros: &'static str,
    /// The time now.
    pub(crate) now: &'static str,
    /// A time, moved by so many seconds.
    pub(crate) moved: fn(time: &str, seconds: i64) -> String,
    /// Bytes as a literal.
    pub(crate) bytes: fn(hex: &str) -> String,
    /// Runs `sql` without checking a constraint of `table`.
    pub(crate) unchecked: fn(table: &str, constraint: &str, sql: &str) -> String,
    /// Makes the database `name` on `server`, without tables.
    pub(crate) create: fn(server: &str, name: String) -> Answer<'_, New>,
    /// Drops it.
    pub(crate) drop: for<'a> fn(server: &'a str, name: &'a str) -> Answer<'a, ()>,
    /// Makes a database with the tables of rowlock, as fast as the engine can. It may have another name.
    pub(crate) create_migrated: fn(Engine, server: &str, name: String) -> Answer<'_, New>,
    /// Drops such a database, or keeps it for another test.
    pub(crate) drop_migrated: for<'a> fn(server: &'a str, name: &'a str) -> Answer<'a, ()>,
    /// How many transactions of the database's users are open.
    pub(crate) open_transactions: fn(&Db) -> Answer<'_, i64>,
    /// How many transactions of the database's users wait for a lock.
    pub(crate) waiting: fn(&Db) -> Answer<'_, i64>,
    /// How many connections to the database others have than the application's pool.
    pub(crate) clients: fn(&Db) -> Answer<'_, i64>,
}
