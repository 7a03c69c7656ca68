//! Reaching a PostgreSQL server, and the session that the verbs rely on.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};
use uuid::Uuid;

use super::in_tx::BEGIN;
use super::listener::listen;
use super::look::{ServerLook, open};
use super::own_connection::OwnConnection;
use super::pooler::{KnownPooler, POOLER, Sharing, is_shared, is_tracked, take_pooler};
use crate::model::{Error, FaultKind, InvalidError};
use crate::store::driver::capabilities::Capabilities;
use crate::store::driver::connector::Connector;
use crate::store::driver::origin::{Current, Origin, Password};
use crate::store::driver::request::RequestLimit;
use crate::store::driver::{servers, url};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::Listener;

const FORM: &str = "postgres://USER:PASSWORD@HOST:PORT/DATABASE (percent-encode special characters in the password; \
                    several servers are written as HOST1:PORT1,HOST2:PORT2)";

const SSL: &str = " (its values are disable, allow, prefer, require, verify-ca and verify-full)";

/// What sqlx reads of a URL, and what rowlock does.
const PARAMETERS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "options[NAME]",
    POOLER,
];

const SCHEMA: &str = " (for the tables in a schema of their own: options[search_path]=SCHEMA)";

/// sqlx's default number of prepared statements to keep. With 0, it would leave every statement on the server.
const STATEMENTS: usize = 100;

/// Every verb finds its rows by key, whatever the statistics say of the table: they may be from when it had a few
/// rows. (A plan that cannot do without a scan of a table gets a cost for which the server would compile it.) The plan
/// is made once. Otherwise the server plans anew for each small batch: it takes ten rows for the usual number. No verb
/// looks a row up twice, so a plan that remembers rows (PostgreSQL 14) only costs time. With `exit_on_error`, a
/// database without tables would end the session.
///
/// A transaction of rowlock's own sends its next statement at once. If its machine is gone, the server ends it.
pub(super) const SESSION: &str = "SET idle_in_transaction_session_timeout = '5s'; \
                      SET exit_on_error = off; SET enable_seqscan = off; SET jit = off; SET plan_cache_mode = force_generic_plan; \
                      SELECT set_config('enable_memoize', 'off', false) WHERE current_setting('enable_memoize', true) IS NOT NULL";

/// The options of rowlock's own connections.
fn ours(options: PgConnectOptions) -> PgConnectOptions {
    let named = if options.get_application_name().is_some() {
        options
    } else {
        options.application_name("rowlock")
    };
    named
        // No verb reads floating-point numbers, and PgBouncer refuses a login that sends this parameter.
        .extra_float_digits(None)
        .statement_cache_capacity(STATEMENTS)
        .disable_statement_logging()
}

/// The database that options name, and the schema, if they do.
fn database(options: &PgConnectOptions) -> String {
    // libpq's rule: the default database has the user's name.
    let database = options
        .get_database()
        .unwrap_or_else(|| options.get_username());
    match options.get_options().and_then(search_path) {
        Some(path) => format!("{database}?options[search_path]={path}"),
        None => database.to_owned(),
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Postgres {
    /// One of the servers is the primary.
    origin: Origin<PgConnectOptions>,
    sharing: KnownPooler,
    /// The URL says how connections are shared.
    told: bool,
}

impl Postgres {
    pub(crate) fn from_url(url: &str) -> Result<Self, Error> {
        url::check_server(url, FORM)?;
        let parameters = url::parameters(url, PARAMETERS, SCHEMA)?;
        let (url, told) = take_pooler(url, &parameters)?;
        let mut options = Vec::new();
        for url in servers::each(&url)? {
            let one = PgConnectOptions::from_str(&url)
                .map_err(|error| url::unparsed(&error, FORM, SSL))?;
            servers::only_one(one.get_host())?;
            let host = url::host(one.get_host()).to_owned();
            options.push(one.host(&host));
        }
        let it = Self::of(Origin::fixed(options, ours));
        if let Some(sharing) = told {
            it.sharing.set(sharing);
        }
        Ok(Self {
            told: told.is_some(),
            ..it
        })
    }

    fn of(origin: Origin<PgConnectOptions>) -> Self {
        Self {
            origin,
            sharing: KnownPooler::default(),
            told: false,
        }
    }

    /// Finds out how the new connection `conn` is shared.
    async fn sharing(
        &self,
        conn: &mut PgConnection,
        seen: &ServerLook,
        options: &PgConnectOptions,
    ) -> Result<Sharing, Fault> {
        let known = self.sharing.get();
        let pooled = match known {
            Some(sharing) if sharing.is_shared() => return Ok(sharing),
            Some(sharing) if self.told => return Ok(sharing),
            Some(_) => seen.reused,
            None => seen.reused || is_shared(conn, seen, options).await?,
        };
        let sharing = if !pooled {
            Sharing::Not
        } else if is_tracked(conn).await? {
            Sharing::Tracked
        } else {
            Sharing::Mixed
        };
        if known != Some(sharing) {
            tracing::debug!(target = %self.target(), ?sharing, "found how connections to the server are shared");
            self.sharing.set(sharing);
        }
        Ok(sharing)
    }
}

impl Connector for Postgres {
    type Connection = OwnConnection;
    type Options = PgConnectOptions;

    const CAPABILITIES: Capabilities = Capabilities {
        one_writer: false,
        // A rollback to a savepoint unlocks the rows that a wait has locked.
        leased_rows_stay_locked: false,
        missing_rows_can_be_made: true,
        locks_only_its_snapshot: true,
        has_functions: true,
    };

    const BEGIN: Option<&'static str> = Some(BEGIN);

    const LANES: usize = 2;

    /// A release alone does not wait for the disk. So a few releases are answered sooner than the acquires that
    /// arrived with them, and their callers come back sooner. For many the work of another statement costs more.
    const EXCHANGE_FROM: usize = 48;

    const REQUEST: RequestLimit = RequestLimit::of(4_096, 49, 1);

    const RENEWALS: RequestLimit = RequestLimit::of(4_096, 40, 1);

    fn from_options(options: Current<PgConnectOptions>) -> Result<Self, Error> {
        Ok(Self::of(Origin::pool(options, ours)))
    }

    fn with_password(self, ask: Password) -> Result<Self, Error> {
        let origin = self.origin.with_password(ask, PgConnectOptions::password);
        Ok(Self { origin, ..self })
    }

    fn with_schema(self, schema: &str) -> Result<Self, Error> {
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if !(1..=63).contains(&schema.len()) || !schema.bytes().all(is_part) {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "schema",
                reason: "1 to 63 lower-case letters, digits and underscores are allowed",
            }));
        }
        let path = [("search_path", schema)];
        let origin = self.origin.with(|options| options.options(path));
        Ok(Self { origin, ..self })
    }

    fn target(&self) -> String {
        let servers = self.origin.servers();
        let Some(o) = servers.first() else {
            return String::new();
        };
        let address =
            |o: &PgConnectOptions| url::address(o.get_socket(), o.get_host(), o.get_port());
        let addresses = servers.iter().map(address);
        url::target("postgres", o.get_username(), addresses, &database(o))
    }

    fn servers(&self) -> usize {
        self.origin.servers().len()
    }

    async fn connect(
        &self,
        server: usize,
        _operation_timeout: Duration,
    ) -> Result<OwnConnection, Fault> {
        let options = self.origin.now(server, database).await?;
        let (mut conn, seen) = open(&options).await?;
        if seen.standby {
            return Err(Fault::said(FaultKind::ReadOnly, "this server is a standby"));
        }
        if seen.read_only && self.servers() > 1 {
            return Err(Fault::said(FaultKind::ReadOnly, "this server is read only"));
        }
        if let Some(path) = seen.lost_path {
            return Err(Fault::said(FaultKind::NoSchema, path));
        }
        let sharing = self.sharing(&mut conn, &seen, &options).await?;
        if sharing == Sharing::Not {
            sqlx::raw_sql(SESSION).execute(&mut conn).await?;
        }
        let strict = seen.isolation != "read committed";
        Ok(OwnConnection::new(conn, sharing, strict, &self.sharing))
    }

    async fn listen(
        &self,
        server: usize,
        session: Uuid,
    ) -> Result<Option<Box<dyn Listener>>, Fault> {
        // What a server's session hears reaches whichever client has the session at that time, also the application,
        // whose statement fails with it (sqlx 0.9).
        if self.sharing.get().is_some_and(Sharing::is_shared) {
            return Ok(None);
        }
        let options = self.origin.now(server, database).await?;
        Ok(Some(listen(&options, session).await?))
    }
}

/// The search path among the startup options: two schemas of one database have different locks. (A backslash comes
/// before a space in a value.)
fn search_path(options: &str) -> Option<String> {
    let plain = options.replace("\\ ", "\0");
    plain.split_whitespace().rev().find_map(|option| {
        let option = option.trim_start_matches("-c").trim_start_matches("--");
        let (name, value) = option.split_once('=')?;
        (name.replace('-', "_") == "search_path").then(|| value.replace('\0', " "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_never_has_the_password_in_it() {
        let it = Postgres::from_url("postgres://me:s3cret@db.example:5433/shop").unwrap();
        assert_eq!(it.target(), "postgres://me@db.example:5433/shop");
        let it = Postgres::from_url("postgres://me:s3cret@a:1,b/shop").unwrap();
        assert_eq!(it.target(), "postgres://me@a:1,b:5432/shop");
        for broken in [
            "postgres://me@a/shop?sslmode=s3cret",
            "postgres://me:s3cret@db.example:99999/shop",
            "postgres://me:s3cret@a,,b/shop",
            "postgres://me:s3cret@a/shop?host=b,c",
            "postgres://me:s3cret@a/shop?rowlock_pooler=statement",
        ] {
            let error = Postgres::from_url(broken).unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn the_schema_is_told() {
        for (parameters, told) in [
            ("?options[search_path]=one", "?options[search_path]=one"),
            ("?options=-csearch_path%3Done", "?options[search_path]=one"),
            (
                "?options=-c%20geqo%3Doff%20--search-path%3Done,%5C%20two",
                "?options[search_path]=one, two",
            ),
            ("?options[app.key]=s3cret", ""),
            ("", ""),
        ] {
            let it = Postgres::from_url(&format!("postgres://me@h/shop{parameters}")).unwrap();
            assert_eq!(it.target(), format!("postgres://me@h:5432/shop{told}"));
        }
    }

    #[test]
    fn a_url_says_what_is_not_to_be_found_out() {
        let sharing = |url| Postgres::from_url(url).unwrap().sharing.get();
        assert_eq!(sharing("postgres://h/d?sslmode=disable"), None);
        assert_eq!(
            sharing("postgres://h/d?rowlock_pooler=session&sslmode=disable"),
            Some(Sharing::Not)
        );
        assert_eq!(
            sharing("postgres://h1,h2/d?rowlock_pooler=transaction"),
            Some(Sharing::Mixed)
        );
    }
}
