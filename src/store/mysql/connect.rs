//! Reaching a MySQL or MariaDB server, and the session that the verbs rely on.

use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnectOptions, MySqlDatabaseError, MySqlRow, MySqlSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, MySqlConnection, Row};
use uuid::Uuid;

use super::listener::listen;
use super::statement::{
    found_cluster, found_encryption, in_one_transaction, is_encrypted, write_and_read,
};
use crate::model::{ConnectError, Error, FaultKind};
use crate::store::driver::capabilities::Capabilities;
use crate::store::driver::connector::{Connection, Connector, VerbCall};
use crate::store::driver::origin::{Current, Origin, Password};
use crate::store::driver::request::RequestLimit;
use crate::store::driver::{servers, url};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::Listener;
use crate::store::verbs::schema::{MigrateFault, MigrateUntil, SchemaStore};

const FORM: &str = "mysql://USER:PASSWORD@HOST:PORT/DATABASE (percent-encode special characters in the password; \
                    several servers are written as HOST1:PORT1,HOST2:PORT2)";

const SSL: &str = " (its values are DISABLED, PREFERRED, REQUIRED, VERIFY_CA and VERIFY_IDENTITY)";

/// What sqlx reads of a URL.
const PARAMETERS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslca",
    "ssl-ca",
    "charset",
    "collation",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "socket",
    "timezone",
    "time-zone",
];

/// The bytes of a statement besides its outcome: the text, and the longest key.
const BESIDE_OUTCOME: i64 = 8 << 10;

/// Of a connection that only listens: it waits for no lock of a row.
const LISTENER_TIMEOUT: Duration = Duration::from_secs(2);

/// The options of rowlock's own connections.
fn ours(options: MySqlConnectOptions) -> MySqlConnectOptions {
    // SYSDATE() follows the session's time zone; the columns are UTC.
    let options = options.timezone(String::from("+00:00"));
    options.disable_statement_logging()
}

/// The database that options name.
fn database(options: &MySqlConnectOptions) -> String {
    options.get_database().unwrap_or_default().to_owned()
}

#[derive(Debug, Clone)]
pub(crate) struct MySql {
    /// One of the servers takes writes.
    origin: Origin<MySqlConnectOptions>,
}

impl MySql {
    pub(crate) fn from_url(url: &str) -> Result<Self, Error> {
        let mut options = Vec::new();
        url::check_server(url, FORM)?;
        url::parameters(url, PARAMETERS, "")?;
        for url in servers::each(url)? {
            let one = MySqlConnectOptions::from_str(&url)
                .map_err(|error| url::unparsed(&error, FORM, SSL))?;
            servers::only_one(one.get_host())?;
            let host = url::host(one.get_host()).to_owned();
            options.push(one.host(&host));
        }
        Self::of(Origin::fixed(options, ours))
    }

    fn of(origin: Origin<MySqlConnectOptions>) -> Result<Self, Error> {
        if origin.servers().iter().any(|o| database(o).is_empty()) {
            return Err(Error::Connect(ConnectError::InvalidUrl {
                reason: "it names no database: write mysql://USER:PASSWORD@HOST:PORT/DATABASE"
                    .into(),
            }));
        }
        Ok(Self { origin })
    }
}

impl Connector for MySql {
    type Connection = MySqlConnection;
    type Options = MySqlConnectOptions;

    const CAPABILITIES: Capabilities = Capabilities {
        one_writer: false,
        leased_rows_stay_locked: true,
        // The look locks the gap in which the row would be.
        missing_rows_can_be_made: false,
        locks_only_its_snapshot: false,
        has_functions: false,
    };

    const LANES: usize = 2;

    const REQUEST: RequestLimit = RequestLimit::of(2_200, 66, 4);
    /// A renewal reads nothing back.
    const RENEWALS: RequestLimit = RequestLimit::of(1_024, 54, 2);

    fn from_options(options: Current<MySqlConnectOptions>) -> Result<Self, Error> {
        Self::of(Origin::pool(options, ours))
    }

    fn with_password(self, ask: Password) -> Result<Self, Error> {
        let set = MySqlConnectOptions::password;
        let origin = self.origin.with_password(ask, set);
        Ok(Self { origin })
    }

    fn target(&self) -> String {
        let servers = self.origin.servers();
        let Some(o) = servers.first() else {
            return String::new();
        };
        let address =
            |o: &MySqlConnectOptions| url::address(o.get_socket(), o.get_host(), o.get_port());
        let addresses = servers.iter().map(address);
        url::target("mysql", o.get_username(), addresses, &database(o))
    }

    fn servers(&self) -> usize {
        self.origin.servers().len()
    }

    async fn connect(
        &self,
        server: usize,
        operation_timeout: Duration,
    ) -> Result<MySqlConnection, Fault> {
        let options = self.origin.now(server, database).await?;
        let mut conn = options.connect().await?;
        let session = session(operation_timeout);
        if may_encrypt(&options) && !is_encrypted() {
            if has_cipher(&write_and_read(&mut conn, &session, CIPHER).await?) {
                found_encryption();
            }
        } else {
            sqlx::raw_sql(AssertSqlSafe(session))
                .execute(&mut conn)
                .await?;
        }
        if self.servers() > 1 {
            let read_only = "SELECT CAST(@@GLOBAL.read_only AS SIGNED)";
            let said = in_one_transaction(&mut conn, read_only).await?;
            let said = said.first().ok_or(sqlx::Error::RowNotFound)?;
            if said.try_get::<i64, _>(0)? != 0 {
                return Err(Fault::said(FaultKind::ReadOnly, "this server is read only"));
            }
        }
        if is_in_galera(&mut conn).await? {
            found_cluster();
            // A connection may reach another node than the previous connection or another lane's. There, a committed
            // grant may still be on its way, and would look lost. So each statement waits for earlier commits (1:
            // reads and the start of transactions, 2: updates and deletes, 4: inserts).
            let session = sqlx::raw_sql("SET SESSION wsrep_sync_wait = 7");
            session.execute(&mut conn).await?;
        }
        Ok(conn)
    }

    async fn listen(
        &self,
        server: usize,
        session: Uuid,
    ) -> Result<Option<Box<dyn Listener>>, Fault> {
        let conn = self.connect(server, LISTENER_TIMEOUT).await?;
        listen(conn, session).await
    }
}

/// Sets all that the statements depend on: a server, a user's account and `init_connect` may have set anything.
///
/// Where a statement waits for a lock (an insert of the same new name, a forced release), the server stops before the
/// client does. The lock wait is in whole seconds, at least 1.
///
/// If a client is frozen or gone between two requests of a transaction, its row locks stay until the server ends the
/// session. MariaDB does that after five seconds. (MySQL has no such limit, and that of Percona,
/// `kill_idle_transaction`, is global.)
fn session(operation_timeout: Duration) -> String {
    let wait = (operation_timeout / 2).as_secs().max(1);
    format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; \
         SET autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = {wait}, timestamp = DEFAULT, \
             sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, sql_auto_is_null = 0, \
             sql_select_limit = 18446744073709551615, sql_big_selects = 1, group_concat_max_len = 1073741824, \
             max_sort_length = 1024, sort_buffer_size = 2097152, tmp_table_size = 16777216, \
             max_heap_table_size = 16777216, unique_checks = 1, foreign_key_checks = 1 \
             /*!80000 , max_execution_time = 0, range_optimizer_max_mem_size = 0 */ /*M! , max_statement_time = 0, check_constraint_checks = 1, \
             idle_transaction_timeout = 5 */"
    )
}

#[async_trait(?Send)]
impl Connection for MySqlConnection {
    async fn run(&mut self, call: &mut dyn VerbCall, _bound: Duration) -> Result<(), Fault> {
        call.on(self).await
    }

    /// A statement carries its outcome in hexadecimal, and must not exceed the server's limit.
    async fn largest_outcome(&mut self) -> Result<usize, Fault> {
        let found = in_one_transaction(self, "SELECT CAST(@@max_allowed_packet AS SIGNED)").await?;
        let packet: i64 = found.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        Ok(usize::try_from((packet - BESIDE_OUTCOME) / 2).unwrap_or(0))
    }

    async fn migrate(&mut self, until: MigrateUntil) -> Result<Vec<String>, MigrateFault> {
        SchemaStore::migrate(self, until).await
    }

    async fn close(self: Box<Self>) {
        let _ = sqlx::Connection::close(*self).await;
    }
}

/// Whether a large request may be cut into TLS records.
fn may_encrypt(options: &MySqlConnectOptions) -> bool {
    options.get_socket().is_none() && !matches!(options.get_ssl_mode(), MySqlSslMode::Disabled)
}

/// Empty, if this connection is not encrypted. By itself a proxy might ask another server.
const CIPHER: &str = "SHOW SESSION STATUS LIKE 'Ssl_cipher'";

fn has_cipher(said: &[MySqlRow]) -> bool {
    let cipher = said.first().and_then(|row| row.try_get_unchecked(1).ok());
    cipher.is_none_or(|cipher: String| !cipher.is_empty())
}

pub(super) async fn is_in_galera(conn: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    Ok(switch(conn, "wsrep_on").await? == Some(true))
}

/// A variable that is on or off. `None`: this server lacks it. (`SHOW VARIABLES` reads all variables before it
/// chooses: it took up to 190 ms, and sessions that connect at the same time wait for each other there.)
pub(super) async fn switch(
    conn: &mut MySqlConnection,
    variable: &'static str,
) -> Result<Option<bool>, sqlx::Error> {
    /// `ER_UNKNOWN_SYSTEM_VARIABLE`.
    const UNKNOWN: u16 = 1193;
    let said = in_one_transaction(conn, &format!("SELECT CAST(@@{variable} AS SIGNED)")).await;
    let said = match said {
        Err(sqlx::Error::Database(error))
            if error
                .try_downcast_ref::<MySqlDatabaseError>()
                .is_some_and(|error| error.number() == UNKNOWN) =>
        {
            return Ok(None);
        }
        said => said?,
    };
    let said = said.first().ok_or(sqlx::Error::RowNotFound)?;
    Ok(Some(said.try_get::<i64, _>(0)? != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_never_has_the_password_in_it() {
        let it = MySql::from_url("mysql://me:s3cret@db.example/shop").unwrap();
        assert_eq!(it.target(), "mysql://me@db.example:3306/shop");
        for broken in [
            "mysql://me:s3cret@db.example",
            "mysql://me:s3cret@db:99999/x",
        ] {
            let error = MySql::from_url(broken).unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
