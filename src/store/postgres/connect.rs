//! Reaching a PostgreSQL server, and the session that the verbs rely on.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};

use crate::store::fault::{Fault, FaultKind};
use crate::store::{Connector, Server};
use crate::{Cause, Engine, Error};

/// The oldest release that is still tested against, as `server_version_num`.
const OLDEST: i32 = 130_000;

#[derive(Debug, Clone)]
pub(crate) struct Postgres {
    options: PgConnectOptions,
}

impl Postgres {
    pub(crate) fn from_url(url: &str) -> Result<Self, Error> {
        let options = PgConnectOptions::from_str(url).map_err(|_| Error::InvalidUrl {
            reason: "it is not of the form postgres://USER:PASSWORD@HOST:PORT/DATABASE \
                     (percent-encode special characters in the password)"
                .into(),
        })?;
        Ok(Self::new(options))
    }

    pub(crate) fn new(options: PgConnectOptions) -> Self {
        let named = if options.get_application_name().is_some() {
            options
        } else {
            options.application_name("rowlock")
        };
        Self {
            options: named.disable_statement_logging(),
        }
    }
}

impl Connector for Postgres {
    type Connection = PgConnection;

    const LANES: usize = 2;

    const LOOKS_ASIDE: bool = false;

    fn target(&self) -> String {
        let o = &self.options;
        let host = o.get_socket().map_or_else(
            || format!("{}:{}", o.get_host(), o.get_port()),
            |socket| socket.display().to_string(),
        );
        // libpq's rule: without a name, the database is called like the user.
        let database = o.get_database().unwrap_or(o.get_username());
        format!("postgres://{}@{host}/{database}", o.get_username())
    }

    async fn connect(&self, _patience: Duration) -> Result<PgConnection, Fault> {
        let mut conn = self.options.connect().await?;
        let (isolation, standby): (String, bool) = sqlx::query_as(
            "SELECT current_setting('default_transaction_isolation'), pg_is_in_recovery()",
        )
        .fetch_one(&mut conn)
        .await?;
        if standby {
            let message = "this server is a standby, a lock needs the primary";
            return Err(Fault {
                kind: FaultKind::Disconnected,
                cause: Cause::new(sqlx::Error::Io(std::io::Error::other(message))),
            });
        }
        // Only where it is needed: behind a pooler in transaction mode, SET would stick to a
        // server connection that belongs to everybody.
        if isolation != "read committed" {
            sqlx::query(
                "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
            )
            .execute(&mut conn)
            .await?;
        }
        Ok(conn)
    }
}

pub(super) async fn server(conn: &mut PgConnection) -> Result<Server, sqlx::Error> {
    let (number, text): (i32, String) = sqlx::query_as(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version')",
    )
    .fetch_one(conn)
    .await?;
    Ok(Server {
        engine: Engine::Postgres,
        version: format!("PostgreSQL {text}"),
        too_old: (number < OLDEST).then_some("PostgreSQL 13 or later"),
        multi_writer: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_never_has_the_password_in_it() {
        let it = Postgres::from_url("postgres://me:s3cret@db.example:5433/shop").unwrap();
        assert_eq!(it.target(), "postgres://me@db.example:5433/shop");
        let broken = Postgres::from_url("postgres://me:s3cret@db.example:99999/shop").unwrap_err();
        assert!(!broken.to_string().contains("s3cret"));
    }
}
