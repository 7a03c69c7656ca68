//! How many statements a server runs.

use rowlock::Engine;
use sqlx::{Connection, MySqlConnection, PgConnection};

use super::servers::Server;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How many statements the server has run: its own count.
#[derive(Debug)]
pub(crate) enum Statements {
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

impl Statements {
    pub(crate) async fn connect(server: &Server) -> Result<Self, Failure> {
        Ok(match server.engine {
            Engine::Postgres => {
                let mut conn = PgConnection::connect(&server.url).await?;
                // Its own work would count.
                for sql in [
                    "ALTER SYSTEM SET autovacuum = off",
                    "SELECT pg_reload_conf()",
                ] {
                    sqlx::query(sql).execute(&mut conn).await?;
                }
                Self::Postgres(conn)
            }
            Engine::MySql | Engine::MariaDb => {
                Self::MySql(MySqlConnection::connect(&server.url).await?)
            }
            engine => return Err(format!("{} counts no statements", engine.name()).into()),
        })
    }

    pub(crate) async fn read(&mut self) -> Result<f64, Failure> {
        Ok(match self {
            // Each statement outside of a transaction is a transaction of its own.
            Self::Postgres(conn) => {
                let sql = "SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = current_database()";
                sqlx::query_scalar(sql).fetch_one(conn).await?
            }
            Self::MySql(conn) => {
                let sql = "SHOW GLOBAL STATUS LIKE 'Questions'";
                let row: (String, String) = sqlx::query_as(sql).fetch_one(conn).await?;
                row.1.parse()?
            }
        })
    }
}
