//! Opening a SQLite file, and the session that the verbs rely on.

use std::borrow::Cow;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection as _, SqliteConnection};
use uuid::Uuid;

use super::file::{self, FileId};
use super::file_connection::FileConnection;
use super::journal::{check_locking, use_wal};
use super::listener::listen;
use super::writing::{BEGIN_TO_WRITE, is_relaxed};
use crate::model::{ConnectError, Error, FaultKind};
use crate::store::driver::capabilities::Capabilities;
use crate::store::driver::connector::Connector;
use crate::store::driver::origin::Current;
use crate::store::driver::request::RequestLimit;
use crate::store::driver::url;
use crate::store::driver::write_turn::Writers;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::Listener;

/// A lane retries by itself, more often than SQLite, whose pauses grow to a tenth of a second. When many write, the
/// connection that retries often gets the file.
pub(super) const ASK_AGAIN: &str = "PRAGMA busy_timeout = 50";

/// As many rows as a large batch has.
const ROWS: usize = 1024;

/// What sqlx reads of a URL.
const PARAMETERS: &[&str] = &["mode", "cache", "immutable", "vfs"];

const FORM: &str = "sqlite:PATH or sqlite://PATH?mode=rw";

#[derive(Debug, Clone)]
pub(crate) struct Sqlite {
    options: SqliteConnectOptions,
}

impl Sqlite {
    /// A connector for a file that is there, or that the URL allows to make.
    pub(crate) fn from_url(url: &str) -> Result<Self, Error> {
        let sqlite = Self::parse(url)?;
        let refused = |reason: &str| {
            Error::Connect(ConnectError::InvalidUrl {
                reason: reason.into(),
            })
        };
        if mode(url).as_deref() == Some("ro")
            || parameter(url, "immutable").is_some_and(|is| is != "false" && is != "0")
        {
            return Err(refused(
                "rowlock writes its locks to the file: leave out `mode=ro` and `immutable`",
            ));
        }
        let makes_none = mode(url).as_deref() == Some("rw");
        if makes_none
            && sqlite
                .path()
                .is_some_and(|path| matches!(path.try_exists(), Ok(false)))
        {
            return Err(refused(
                "its file is not there, and its `mode` does not make it: write `mode=rwc`, or leave the mode out",
            ));
        }
        Ok(sqlite)
    }

    /// Whether the URL says how to open its file.
    pub(crate) fn has_mode(url: &str) -> bool {
        mode(url).is_some()
    }

    /// A connector for a file that need not be there.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        url::check_escapes(url)?;
        url::parameters(url, PARAMETERS, "")?;
        let options =
            SqliteConnectOptions::from_str(url).map_err(|error| url::unparsed(&error, FORM, ""))?;
        if options.get_filename().as_os_str().is_empty() {
            // Each connection would have a database of its own.
            return Err(Error::Connect(ConnectError::InvalidUrl {
                reason: "it names no file: write sqlite:PATH".into(),
            }));
        }
        if options.get_filename().is_dir() {
            return Err(Error::Connect(ConnectError::InvalidUrl {
                reason: "it names a folder, not a file in it: write sqlite:PATH".into(),
            }));
        }
        // A missing file is made, unless the URL says how to open it.
        let options = if Self::has_mode(url) {
            options
        } else {
            options.create_if_missing(true)
        };
        Ok(Self::of(options))
    }

    fn of(options: SqliteConnectOptions) -> Self {
        Self {
            options: options.disable_statement_logging(),
        }
    }

    /// The full path of the file; `None` for a database in memory, whose name is no path.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let name = self.options.get_filename();
        if name.to_string_lossy().starts_with("file:") || name.as_os_str() == ":memory:" {
            return None;
        }
        std::path::absolute(name).ok()
    }
}

fn mode(url: &str) -> Option<Cow<'_, str>> {
    parameter(url, "mode")
}

/// A parameter of a URL.
fn parameter<'a>(url: &'a str, wanted: &str) -> Option<Cow<'a, str>> {
    let (_, parameters) = url.split_once('?')?;
    let mut parameters = form_urlencoded::parse(parameters.as_bytes());
    parameters.find_map(|(name, value)| (name == wanted).then_some(value))
}

impl Connector for Sqlite {
    type Connection = FileConnection;
    type Options = SqliteConnectOptions;

    const CAPABILITIES: Capabilities = Capabilities {
        one_writer: true,
        // No other transaction makes or leases rows while one that may write is open.
        leased_rows_stay_locked: false,
        missing_rows_can_be_made: false,
        locks_only_its_snapshot: false,
        has_functions: false,
    };

    const BEGIN: Option<&'static str> = Some(BEGIN_TO_WRITE);

    /// One lane: a second one would wait for the first.
    const LANES: usize = 1;

    // There is no round trip to save.
    const EXCHANGE_FROM: usize = usize::MAX;

    const REQUEST: RequestLimit = RequestLimit::NONE;

    /// The pool's file at the start: another file has other locks, and there are no passwords.
    fn from_options(options: Current<SqliteConnectOptions>) -> Result<Self, Error> {
        Ok(Self::of((*options()).clone()))
    }

    /// The full path, because a log does not show the working directory.
    fn target(&self) -> String {
        let path = self.path();
        let path = path.as_deref().unwrap_or(self.options.get_filename());
        format!("sqlite:{}", path.display())
    }

    fn writers(&self) -> Option<Arc<Writers>> {
        self.path().map(|path| Writers::of_file(&path))
    }

    async fn connect(
        &self,
        _server: usize,
        operation_timeout: Duration,
    ) -> Result<FileConnection, Fault> {
        let (mut conn, file) = match self.path() {
            Some(path) => self.open_named(path, operation_timeout).await?,
            None => (self.open(operation_timeout).await?, None),
        };
        let is_relaxed = is_relaxed(&mut conn).await?;
        // The file is there now.
        let writers = self.writers();
        Ok(FileConnection {
            conn,
            writers,
            file,
            is_relaxed,
            is_orphaned: false,
        })
    }

    async fn listen(
        &self,
        _server: usize,
        session: Uuid,
    ) -> Result<Option<Box<dyn Listener>>, Fault> {
        listen(session)
    }
}

impl Sqlite {
    /// Opens the file, and tells which one it is: the one that had the name before and after.
    async fn open_named(
        &self,
        path: PathBuf,
        operation_timeout: Duration,
    ) -> Result<(SqliteConnection, Option<(PathBuf, FileId)>), Fault> {
        file::check_names(&path)?;
        let mut before = file::id(&path);
        let mut conn = self.open(operation_timeout).await?;
        if !is_file(&mut conn).await? {
            return Ok((conn, None));
        }
        if before.is_none() && file::CAN_TELL {
            // SQLite has made it. By now another file may have its name.
            before = file::id(&path);
            conn.close().await?;
            conn = self.open(operation_timeout).await?;
        }
        if before != file::id(&path) || before.is_none() && file::CAN_TELL {
            return Err(Fault::said(FaultKind::Disconnected, file::REPLACED));
        }
        Ok((conn, before.map(|id| (path, id))))
    }

    pub(crate) async fn open(
        &self,
        operation_timeout: Duration,
    ) -> Result<SqliteConnection, Fault> {
        // A little less than the bound on the statement, so that SQLite itself reports "busy" first.
        let options = self.options.clone().busy_timeout(operation_timeout * 4 / 5);
        // SQLite's thread need not wait for us between the rows of a batch.
        let options = options.row_buffer_size(ROWS);
        // The pool may be one for readers.
        let options = options
            .pragma("query_only", "0")
            .read_only(false)
            .immutable(false);
        let mut conn = options.connect().await?;
        if self.path().is_some() {
            check_locking(&mut conn).await?;
        }
        if use_wal(&mut conn, &self.options).await? {
            // No fsync per commit. All users of the file are on this machine and die with it. In WAL mode a power cut
            // loses the last commits, but never the file.
            sqlx::raw_sql("PRAGMA synchronous = NORMAL")
                .execute(&mut conn)
                .await?;
        }
        sqlx::raw_sql(ASK_AGAIN).execute(&mut conn).await?;
        Ok(conn)
    }
}

/// Whether the database is in a file. (One in memory may have a name.)
async fn is_file(conn: &mut SqliteConnection) -> Result<bool, Fault> {
    let file = "SELECT coalesce(file, '') <> '' FROM pragma_database_list WHERE name = 'main'";
    Ok(sqlx::query_scalar(file).fetch_one(conn).await?)
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};

    use super::*;
    use crate::store::driver::connector::Connection;

    const PATIENCE: Duration = Duration::from_millis(100);

    #[test]
    fn a_file_that_is_not_there_is_made_unless_the_mode_says_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("mode=ro");
        std::fs::create_dir(&folder).unwrap();
        for (parameters, is_made) in [
            ("", true),
            ("?mode=rwc", true),
            ("?mode=rw", false),
            ("?cache=private&mode=ro", false),
            ("?m%6Fde=ro", false),
        ] {
            let url = format!("sqlite:{}/a.db{parameters}", folder.display());
            assert_eq!(Sqlite::from_url(&url).is_ok(), is_made, "{url}");
        }
    }

    #[tokio::test]
    async fn a_connection_knows_whether_its_commits_wait_for_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let options = |file: &str| -> SqliteConnectOptions {
            let url = format!("sqlite:{}/{file}?mode=rwc", dir.path().display());
            url.parse().unwrap()
        };
        let connect = async |options: SqliteConnectOptions| {
            let connected = Sqlite::of(options)
                .connect(0, PATIENCE * 600)
                .await
                .unwrap();
            let is_relaxed = connected.is_relaxed;
            Connection::close(Box::new(connected)).await;
            is_relaxed
        };
        // It puts the new file into WAL mode.
        assert!(connect(options("wal.db")).await);
        let rollback = options("rollback.db").journal_mode(SqliteJournalMode::Delete);
        for (level, is_relaxed) in [
            (SqliteSynchronous::Off, false),
            (SqliteSynchronous::Normal, true),
            (SqliteSynchronous::Full, false),
            (SqliteSynchronous::Extra, false),
        ] {
            assert_eq!(
                connect(rollback.clone().synchronous(level)).await,
                is_relaxed,
                "{level:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_new_file_that_somebody_else_writes_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/new.db?mode=rwc", dir.path().display());
        let mut other = SqliteConnection::connect(&url).await.unwrap();
        let begin = sqlx::raw_sql("BEGIN IMMEDIATE");
        begin.execute(&mut other).await.unwrap();
        let sqlite = Sqlite::from_url(&url).unwrap();
        let mut conn = sqlite.open(PATIENCE).await.unwrap();
        assert!(!use_wal(&mut conn, &sqlite.options).await.unwrap());
        // When no other connection uses the file, it is switched to a mode that readers and a writer can share.
        sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
        assert!(use_wal(&mut conn, &sqlite.options).await.unwrap());
        assert!(use_wal(&mut other, &sqlite.options).await.unwrap());
    }
}
