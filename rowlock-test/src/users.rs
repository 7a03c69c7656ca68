//! Users of a server, and their sessions.

use rowlock::Engine;

use crate::{Db, as_user, eventually, on_app, user_name};

/// A user of a server with all rights on the tables of one database.
#[derive(Debug)]
pub struct User {
    pub name: String,
    pub url: String,
}

impl User {
    /// `limit`: how many sessions it may have, in the server's words.
    pub async fn new(db: &Db, limit: &str) -> Self {
        let database = db.url.rsplit('/').next().unwrap();
        let name = user_name("few");
        let statements = if db.engine == Engine::Postgres {
            vec![
                format!("CREATE ROLE {name} LOGIN {limit}"),
                format!("GRANT ALL ON SCHEMA public TO {name}"),
                format!("GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}"),
            ]
        } else {
            vec![
                format!("CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'pw' {limit}"),
                format!("GRANT ALL ON {database}.* TO {name}@'127.0.0.1'"),
            ]
        };
        drop(db.rowlock().await);
        for statement in statements {
            db.execute(&statement).await;
        }
        let url = as_user(&db.url, &name, "pw");
        Self { name, url }
    }

    /// The sessions that it has now.
    pub async fn sessions(&self, db: &Db) -> Vec<i64> {
        sessions_of(db, &self.name).await
    }

    /// When its sessions are gone.
    pub async fn remove(self, db: &Db) {
        eventually("its sessions are gone", async || {
            self.sessions(db).await.is_empty()
        })
        .await;
        let name = &self.name;
        let drop = match db.engine {
            Engine::Postgres => format!("DROP OWNED BY {name}; DROP ROLE {name}"),
            _ => format!("DROP USER {name}@'127.0.0.1'"),
        };
        db.execute(&drop).await;
    }
}

/// The sessions of a user.
pub async fn sessions_of(db: &Db, user: &str) -> Vec<i64> {
    let sql = match db.engine {
        Engine::Postgres => {
            format!("SELECT pid::bigint FROM pg_stat_activity WHERE usename = '{user}'")
        }
        // `information_schema.processlist` fails while a statement has bytes that are no text.
        Engine::MySql => format!(
            "SELECT CAST(processlist_id AS SIGNED) FROM performance_schema.threads \
             WHERE processlist_user = '{user}'"
        ),
        _ => format!(
            "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE user = '{user}'"
        ),
    };
    let sql = sqlx::AssertSqlSafe(sql);
    on_app!(&db.app, pool => sqlx::query_scalar(sql).fetch_all(pool).await.unwrap())
}
