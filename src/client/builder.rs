//! The builder of a client: its settings, and the connection to its database.

use std::fmt;
use std::time::Duration;

use super::Rowlock;
use super::holder::this_process;
use crate::model::bounds::{check_holder, check_quarantine, check_ttl, within};
use crate::model::{ClockError, ConnectError, Error, InvalidError};
use crate::runtime::Core;
use crate::runtime::base::password::AskPassword;
use crate::runtime::base::settings::{Preparing, Settings};
use crate::store::driver::connector::Connector;
use crate::store::driver::engines;
use crate::store::driver::engines::Connect;
use crate::transaction::{Pool, connector};

/// Settings of a client; made by [`Rowlock::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    holder: Option<String>,
    operation_timeout: Duration,
    max_connections: u32,
    migrate: bool,
    quarantine: Option<Duration>,
    clean_every: Option<Duration>,
    clock_error: Duration,
    session_ttl: Duration,
    password: Option<AskPassword>,
    schema: Option<String>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            holder: None,
            operation_timeout: Duration::from_secs(5),
            max_connections: 4,
            migrate: true,
            quarantine: None,
            clean_every: Some(Duration::from_mins(1)),
            clock_error: Duration::from_millis(10),
            session_ttl: Duration::from_secs(30),
            password: None,
            schema: None,
        }
    }
}

impl Builder {
    /// The holder of this client's locks, for people to read: 1 to 200 bytes without NUL. Program, process id and host
    /// when not set. No statement decides by it. A PostgreSQL database in another encoding than UTF-8 (or
    /// `SQL_ASCII`) stores characters outside of ASCII as escapes (`\u{fc}`), here and in every text for people.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// How long one operation may take before it fails with [`Error::Unreachable`] or
    /// [`Error::OutcomeUnknown`]: 100 ms to 10 minutes, 5 s when not set. The wait for a held lock
    /// does not count.
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = timeout;
        self
    }

    /// The most connections that this client opens at a time: 2 to 9; 4 when not set. Your pools' connections come
    /// on top. An idle client has 1. It is for servers: a SQLite file has no such limit. The page PRODUCTION
    /// («Connections») has a table of what each connection is for.
    ///
    /// Renewals share a connection with looks, and with 2 also with locks and keys. A renewal that is due goes first.
    /// If another statement has the connection, rowlock cuts it off when it has taken 250 ms (less where a TTL is
    /// below a second), connects again, and later gives that statement more time. So keep TTLs above a second. The
    /// server counts a connection that was cut off until it notices.
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = connections;
        self
    }

    /// Whether connecting applies missing migrations: `true` when not set. With `false`, connecting checks
    /// the tables, and fails if they are missing or do not fit.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Puts the database in quarantine when connecting, as [`Admin::quarantine`](crate::Admin::quarantine) does: 100
    /// ms to 366 days; none when not set.
    ///
    /// Use it for a database that was made anew after all its data was lost. The quarantine begins before it has a
    /// table of locks, so nothing is granted before. For that, all other clients must connect with
    /// [`migrate(false)`](Self::migrate).
    pub fn quarantine(mut self, time: Duration) -> Self {
        self.quarantine = Some(time);
        self
    }

    /// How often this process removes expired rows: 1 s to 24 h, every minute when not set; `None` leaves that to
    /// other processes, or to `rowlock clean`.
    ///
    /// Each time it looks at some 5,000 lock rows, and removes those that were not used for ten days. It removes
    /// expired idempotency records and form tokens after the first call of [`idempotency`](Rowlock::idempotency) or
    /// [`form_tokens`](Rowlock::form_tokens).
    pub fn clean_every(mut self, every: impl Into<Option<Duration>>) -> Self {
        self.clean_every = every.into();
        self
    }

    /// How far the database's clock may *jump* ahead of this host's while a lease lasts: 0 to 1 hour, 10 ms when not
    /// set.
    ///
    /// The database's clock decides when a lease is over. This host's clock decides when to stop trusting it: after
    /// five sixths of its time, less this error. So a lease of 30 s is held for 24.99 s after the last renewal was
    /// sent.
    ///
    /// - The *sixth* is for clocks that run at different rates. It covers chronyd's default on both hosts
    ///   (`maxslewrate` 83333 ppm, chrony.conf(5)), and cannot be set.
    /// - The *error* is for sudden changes: the clock of the database's host is set forward, or a failover moves
    ///   the database to a host whose clock is ahead. The default fits hosts that a time service keeps within a few
    ///   milliseconds. Set the error to the largest step that your time service makes in operation, or to the largest
    ///   difference between the database's hosts, if that is larger.
    ///
    /// An administrator, or a paused or restored virtual machine, may set a clock forward by more than the error. Then
    /// the name may be granted to another holder while the first holder still trusts its lease. A
    /// [pin](crate::Held::pin) and a fence protect even then.
    ///
    /// A lock's [`ttl`](crate::Lock::ttl) and an attempt's [`lease`](crate::Idempotency::lease) must be more than
    /// twice this error; shorter ones are [`InvalidError::Duration`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// use std::time::Duration;
    ///
    /// let half = Duration::from_millis(500);
    /// let rowlock = rowlock::Rowlock::builder().clock_error(half).connect(&url).await?;
    /// let held = rowlock.lock("report").ttl(Duration::from_secs(30)).acquire().await?;
    /// assert!(held.remaining() <= Duration::from_millis(24_500));
    /// # Ok(())
    /// # }
    /// ```
    pub fn clock_error(mut self, error: Duration) -> Self {
        self.clock_error = error;
        self
    }

    /// How long this client's session lasts without a renewal: 100 ms to 24 h; 30 s when not set. Locks in a session
    /// are refused when it is not more than twice the [`clock_error`](Self::clock_error). When the process crashes,
    /// the locks that it took [in its session](crate::Lock::in_session) are free after this time, and its waiters are
    /// passed over.
    pub fn session_ttl(mut self, ttl: Duration) -> Self {
        self.session_ttl = ttl;
        self
    }

    /// Asks `ask` for the password each time that the client makes a connection, for passwords that change while it
    /// runs: tokens that a cloud gives out for some minutes, or secrets that are rotated. The password of the URL is
    /// not used. Connections that are there stay.
    ///
    /// `ask` runs on a thread of its own, with a tokio runtime. Its answer and the login together may take the
    /// [`operation_timeout`](Self::operation_timeout). If it fails, panics or is too late, or if the server refuses
    /// the password, the connection is tried again, and asks again, until the operations that wait for it run out of
    /// time ([`Error::Unreachable`]). Only [`connect`](Self::connect) itself fails at once.
    ///
    /// For a URL of a server. A client of a pool follows the pool: see [`Rowlock::from_pool`]. There, and for SQLite,
    /// this setting is [`InvalidError::Setting`].
    ///
    /// ```no_run
    /// # async fn token() -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # async fn connect() -> Result<(), rowlock::Error> {
    /// let rowlock = rowlock::Rowlock::builder()
    ///     .password(|| async { token().await })
    ///     .connect("postgres://app@db.example/shop?sslmode=verify-full")
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn password<F, E>(mut self, ask: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<String, E>> + Send + 'static,
        E: fmt::Display,
    {
        self.password = Some(AskPassword::new(ask));
        self
    }

    /// The schema of rowlock's tables, on PostgreSQL: 1 to 63 lower-case letters, digits and underscores. It must be
    /// there. When not set, it is the first existing one of the user's `search_path`.
    ///
    /// In a transaction of yours, `pin`, `in_tx` and `run_in_tx` find the tables by that transaction's `search_path`:
    /// it has to name the schema, too (`ALTER ROLE app SET search_path = public, locks`).
    ///
    /// For a URL; in the URL itself it is `?options[search_path]=locks`. A client of a pool has the pool's
    /// `search_path`. There, and on other engines, this setting is [`InvalidError::Setting`].
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// See [`Rowlock::connect`].
    ///
    /// # Errors
    ///
    /// The errors of [`Rowlock::connect`], and invalid settings.
    pub async fn connect(self, url: &str) -> Result<Rowlock, Error> {
        if url.trim() != url {
            return Err(Error::Connect(ConnectError::InvalidUrl {
                reason: "it begins or ends with a space or a line break: remove that".into(),
            }));
        }
        engines::connect(url, self).await
    }

    /// See [`Rowlock::from_pool`].
    ///
    /// # Errors
    ///
    /// The errors of [`Rowlock::connect`], and invalid settings.
    #[allow(
        clippy::wrong_self_convention,
        reason = "it makes a client from a pool, like connect"
    )]
    pub async fn from_pool<P: Pool>(self, pool: &P) -> Result<Rowlock, Error> {
        if self.password.is_some() {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "password",
                reason: "the client follows its pool: give the pool the new password (sqlx's `Pool::set_connect_options`)",
            }));
        }
        if self.schema.is_some() {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "schema",
                reason: "the client follows its pool: set the search_path in the pool's connect options (PostgreSQL; other \
                         databases have no schemas)",
            }));
        }
        self.start(connector(pool.pool())?).await
    }

    async fn start<C: Connector>(self, connector: C) -> Result<Rowlock, Error> {
        let allowed = Duration::from_millis(100)..=Duration::from_mins(10);
        let bounds = "100 ms to 10 minutes are allowed";
        within("operation_timeout", self.operation_timeout, allowed, bounds)?;
        if !(2..=9).contains(&self.max_connections) {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "max_connections",
                reason: "2 to 9 are allowed",
            }));
        }
        if let Some(every) = self.clean_every {
            let allowed = Duration::from_secs(1)..=Duration::from_hours(24);
            within("clean_every", every, allowed, "1 s to 24 h are allowed")?;
        }
        let allowed = Duration::ZERO..=Duration::from_hours(1);
        let bounds = "at most 1 hour is allowed";
        within("clock_error", self.clock_error, allowed, bounds)?;
        check_ttl("session_ttl", self.session_ttl)?;
        self.quarantine.map_or(Ok(()), check_quarantine)?;
        let holder = self.holder.unwrap_or_else(this_process);
        check_holder(&holder)?;
        let settings = Settings {
            holder: holder.into(),
            operation_timeout: self.operation_timeout,
            max_connections: self.max_connections,
            preparing: Preparing {
                migrate: self.migrate,
                quarantine: self.quarantine,
            },
            clock_error: ClockError::new(self.clock_error),
            clean_every: self.clean_every,
            session_ttl: self.session_ttl,
        };
        let (core, applied) = Core::start(connector, settings).await?;
        Ok(Rowlock {
            core,
            applied: applied.into(),
        })
    }
}

impl Connect for Builder {
    type Connected = Rowlock;

    async fn connect<C: Connector>(mut self, connector: C) -> Result<Rowlock, Error> {
        let connector = match self.schema.take() {
            Some(schema) => connector.with_schema(&schema)?,
            None => connector,
        };
        let connector = match self.password.take() {
            Some(ask) => {
                let target = connector.target();
                connector.with_password(ask.on_own_thread(&target)?)?
            }
            None => connector,
        };
        self.start(connector).await
    }
}
