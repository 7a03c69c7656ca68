//! Servers that refuse a login because there is no room for another connection, of this user or of anybody. They are
//! there, and have answered: a transaction that keeps one of the connections is told to make room, and nobody is told
//! that the server cannot be reached.

use std::time::Duration;

use rowlock::{Engine, Error, Rowlock};
use rowlock_test::{App, Commits, Db, Own, User, eventually, patience, servers};
use sqlx::{Connection, MySqlConnection, PgConnection};

/// A connection of somebody else's.
#[derive(Debug)]
enum Other {
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

impl Other {
    async fn open(url: &str) -> Result<Self, sqlx::Error> {
        if url.starts_with("postgres") {
            return PgConnection::connect(url).await.map(Self::Postgres);
        }
        MySqlConnection::connect(url).await.map(Self::MySql)
    }

    async fn close(self) {
        match self {
            Self::Postgres(conn) => conn.close().await.unwrap(),
            Self::MySql(conn) => conn.close().await.unwrap(),
        }
    }
}

/// Opens connections until the server refuses one, for the reason that `says` so.
async fn fill(others: &mut Vec<Other>, url: &str, says: &str) {
    loop {
        match Other::open(url).await {
            Ok(other) => others.push(other),
            Err(error) => {
                let said = error.to_string();
                return assert!(said.contains(says), "{says}: {said}");
            }
        }
    }
}

/// A client whose connections were cut finds no room for new ones, and the user's other connections have it all.
async fn a_transaction_is_told_to_make_room(db: &Db, user: &User, says: &str) {
    let url = &user.url;
    let rowlock = Rowlock::connect(url).await.unwrap();
    let clients = user.sessions(db).await;
    let app = App::connect(url, 1).await;
    let mut tx = app.begin().await;
    let mut others = Vec::new();
    fill(&mut others, url, says).await;
    for session in clients {
        let end = match db.engine {
            Engine::Postgres => format!("SELECT pg_terminate_backend({session})"),
            _ => format!("KILL {session}"),
        };
        // It may have gone by itself.
        let _ = db.try_execute(&end).await;
        let before = others.len();
        let taken = async {
            while others.len() == before {
                fill(&mut others, url, says).await;
            }
        };
        tokio::time::timeout(patience(), taken)
            .await
            .expect("its place is taken");
    }

    let error = tx.try_lock(&rowlock, "a").await.unwrap_err();
    assert!(matches!(error, Error::Starved { .. }), "{says}: {error}");
    assert!(error.is_transient() && error.is_retryable());
    let error = tx.version(&rowlock, "b").await.unwrap_err();
    assert!(matches!(error, Error::Starved { .. }), "{says}: {error}");
    tx.release().await;
    // A process that starts now, and a lease, which no transaction waits for.
    let error = Rowlock::connect(url).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().contains(says), "{error}");
    let error = rowlock.lock("a").wait(Duration::ZERO).acquire().await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(says), "{error}");

    // There is room again.
    for other in others {
        other.close().await;
    }
    eventually("the client is connected", async || {
        rowlock.inspect("a").await.is_ok()
    })
    .await;
    let mut tx = app.begin().await;
    tx.lock(&rowlock, "a").await;
    tx.commit().await.unwrap();
}

/// The limit of a user's own.
async fn of_a_user(engine: Engine, limit: &str, says: &str) {
    let db = Db::new(engine).await;
    let user = User::new(&db, limit).await;
    a_transaction_is_told_to_make_room(&db, &user, says).await;
    user.remove(&db).await;
    db.remove().await;
}

#[tokio::test]
async fn a_role_of_postgres_at_its_connection_limit_is_told_to_make_room() {
    let says = "too many connections for role";
    of_a_user(Engine::Postgres, "CONNECTION LIMIT 4", says).await;
}

#[tokio::test]
async fn a_user_of_mariadb_and_mysql_at_its_limit_is_told_to_make_room() {
    for engine in [Engine::MariaDb, Engine::MySql] {
        // Error 1226.
        of_a_user(
            engine,
            "WITH MAX_USER_CONNECTIONS 4",
            "max_user_connections",
        )
        .await;
    }
}

#[tokio::test]
async fn servers_of_mariadb_and_mysql_that_are_full() {
    for engine in [Engine::MariaDb, Engine::MySql] {
        let server = Own::start(engine.name(), &[]);
        let db = Db::on(engine, &server.url).await;
        let user = User::new(&db, "").await;
        // Error 1203: the limit of every user. (MariaDB takes it at start only.)
        if engine == Engine::MySql {
            db.execute("SET GLOBAL max_user_connections = 8").await;
            a_transaction_is_told_to_make_room(&db, &user, "max_user_connections").await;
            db.execute("SET GLOBAL max_user_connections = 0").await;
        }
        // Error 1040. (An administrator has one connection more.)
        db.execute("SET GLOBAL max_connections = 10").await;
        a_transaction_is_told_to_make_room(&db, &user, "Too many connections").await;
        db.remove().await;
    }
}

#[tokio::test]
async fn who_comes_to_a_full_postgres_is_told_to_make_room() {
    let server = Own::start("postgres", &[]);
    let mut admin = PgConnection::connect(&server.url).await.unwrap();
    let few = sqlx::raw_sql("ALTER SYSTEM SET max_connections = 12");
    few.execute(&mut admin).await.unwrap();
    admin.close().await.unwrap();
    for command in [&["stop"][..], &["start", "postgres"]] {
        servers(command, server.dir.path(), &[], Commits::NotDurable);
    }
    let db = Db::on(Engine::Postgres, &server.url).await;
    let user = User::new(&db, "").await;
    a_transaction_is_told_to_make_room(&db, &user, "connection slots").await;
    db.remove().await;
}
