//! What kills.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::seq::IndexedRandom;
use rowlock::Engine;
use rowlock_test::{App, Db};
use sqlx::{AssertSqlSafe, MySqlPool};

use super::Seen;
use super::work::pause;

/// The sessions of the database that do this now.
fn running(engine: Engine, command: &str) -> String {
    let schema = match engine {
        Engine::MariaDb => "information_schema",
        _ => "performance_schema",
    };
    format!(
        "SELECT CAST(id AS SIGNED) FROM {schema}.processlist
         WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command = '{command}'"
    )
}

/// What the server kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Statements,
    Sessions,
}

impl Victim {
    /// Kills some, and returns how many. `running`: see [`running`].
    async fn kill(self, app: &App, running: &str) -> i64 {
        let App::MySql(pool) = app else {
            let kill = match self {
                Self::Statements => "pg_cancel_backend",
                Self::Sessions => "pg_terminate_backend",
            };
            let kill = format!(
                "SELECT COUNT(*) FILTER (WHERE {kill}(pid)) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'
                   AND random() < 0.7"
            );
            return app.number(&kill).await;
        };
        let Some(id) = ids(pool, running).await.choose(&mut rand::rng()).copied() else {
            return 0;
        };
        let what = if self == Self::Statements {
            "QUERY"
        } else {
            ""
        };
        let kill = sqlx::raw_sql(AssertSqlSafe(format!("KILL {what} {id}")));
        i64::from(kill.execute(pool).await.is_ok())
    }

    /// Kills while the tasks are at work, and returns how many.
    pub(super) async fn all(self, db: &Db, seen: &Seen) -> i64 {
        let (app, running) = (App::connect(&db.url, 1).await, running(db.engine, "Query"));
        let mut killed = 0;
        while !seen.stop.load(Ordering::Relaxed) {
            killed += self.kill(&app, &running).await;
            pause().await;
            if self == Self::Sessions {
                // New ones have to get to work.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        killed
    }
}

/// MySQL and MariaDB say nothing more when KILL QUERY comes between two statements of a text: its client waits. As an
/// operator would, this ends sessions that have done nothing for a second or two.
pub(super) async fn end_the_silent(db: &Db) {
    let App::MySql(pool) = &db.app else {
        return std::future::pending().await;
    };
    let silent = running(db.engine, "Sleep") + " AND time >= 1";
    loop {
        for id in ids(pool, &silent).await {
            let kill = sqlx::raw_sql(AssertSqlSafe(format!("KILL {id}")));
            _ = kill.execute(pool).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The ids of these sessions; none, when this one was killed itself.
async fn ids(pool: &MySqlPool, sessions: &str) -> Vec<i64> {
    let ids = sqlx::query_scalar(AssertSqlSafe(sessions.to_owned()));
    ids.fetch_all(pool).await.unwrap_or_default()
}
