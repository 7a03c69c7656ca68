//! Sessions that the server ends because nothing was sent for a while (`wait_timeout` of MySQL and MariaDB,
//! `idle_session_timeout` of PostgreSQL): a client that was idle for longer sees no error, and nothing is lost.
//!
//! `ROWLOCK_IDLE_SECONDS` (default 1) is the server's limit; a client is idle for twice as long. `ROWLOCK_IDLE_ROUNDS`
//! (default 1) is how many rounds each kind of client does. They are idle ten times
//! a round: 5 and 13 are 130 times 10 s, per server.

use std::time::Duration;

use rowlock::{Begun, Engine, Fingerprint, Outcome, Rowlock, Scope};
use rowlock_test::{Db, Own, as_user, sessions_of, take, user_name};
use tokio::task::JoinSet;
use uuid::Uuid;

/// Longer than any test: renewals leave the connection alone.
const LONG: Duration = Duration::from_mins(30);

fn number(variable: &str, default: u32) -> u32 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn limit() -> u32 {
    number("ROWLOCK_IDLE_SECONDS", 1)
}

/// Idle for twice the limit. Time itself is tested: the server ends what was silent for so long. (That it does is
/// waited for beside the clients, in `an_idle_client_sees_no_error`.)
async fn idle() {
    tokio::time::sleep(Duration::from_secs(u64::from(limit()) * 2)).await;
}

/// A user whose idle sessions end.
async fn impatient(db: &Db) -> String {
    let name = db.url.rsplit('/').next().unwrap();
    let (user, seconds) = (user_name("idle"), limit());
    let statements = if db.engine == Engine::Postgres {
        vec![
            format!("CREATE ROLE {user} LOGIN"),
            format!("ALTER ROLE {user} SET idle_session_timeout = '{seconds}s'"),
            format!("GRANT ALL ON SCHEMA public TO {user}"),
        ]
    } else {
        vec![
            format!("CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'pw'"),
            format!("GRANT ALL ON {name}.* TO {user}@'127.0.0.1'"),
            // The test's own session is not to be cut off.
            format!(
                "SET GLOBAL init_connect = \
                 'SET wait_timeout = IF(USER() LIKE \"idle%\", {seconds}, 28800)'"
            ),
        ]
    };
    for statement in statements {
        db.execute(&statement).await;
    }
    user
}

async fn locks(rowlock: Rowlock, name: String) {
    for _ in 0..number("ROWLOCK_IDLE_ROUNDS", 1) {
        idle().await;
        let held = take(&rowlock, &name, LONG).await;
        held.release().await.unwrap();
    }
}

async fn batches(rowlock: Rowlock, name: String) {
    for _ in 0..number("ROWLOCK_IDLE_ROUNDS", 1) {
        idle().await;
        let mut tasks = JoinSet::new();
        for number in 0..20 {
            let (rowlock, name) = (rowlock.clone(), format!("{name}-{number}"));
            tasks.spawn(async move { take(&rowlock, &name, LONG).await });
        }
        let held = tasks.join_all().await;
        idle().await;
        for held in held {
            held.release().await.unwrap();
        }
    }
}

async fn drops(rowlock: Rowlock, name: String) {
    for _ in 0..number("ROWLOCK_IDLE_ROUNDS", 1) {
        let held = take(&rowlock, &name, LONG).await;
        idle().await;
        drop(held);
        rowlock.flush().await;
        assert!(rowlock.inspect(&name).await.unwrap().is_none(), "released");
    }
}

/// Between two renewals the session ends.
async fn renewals(rowlock: Rowlock, name: String) {
    let ttl = Duration::from_secs(u64::from(limit())) * 5;
    for _ in 0..number("ROWLOCK_IDLE_ROUNDS", 1) {
        let held = take(&rowlock, &name, ttl).await;
        let until = held.deadline();
        idle().await;
        assert!(held.is_held());
        assert!(held.deadline() > until, "it was renewed");
        held.release().await.unwrap();
    }
}

async fn looks(rowlock: Rowlock, name: String) {
    for _ in 0..number("ROWLOCK_IDLE_ROUNDS", 1) {
        let held = take(&rowlock, &name, LONG).await;
        idle().await;
        assert!(rowlock.inspect(&name).await.unwrap().is_some());
        assert!(!rowlock.admin().list().await.unwrap().is_empty());
        drop(held);
        rowlock.flush().await;
    }
}

async fn forced(rowlock: Rowlock, name: String) {
    for _ in 0..number("ROWLOCK_IDLE_ROUNDS", 1) {
        drop(take(&rowlock, &name, LONG).await);
        rowlock.flush().await;
        idle().await;
        assert!(
            rowlock
                .admin()
                .force_release(&name)
                .await
                .unwrap()
                .is_none()
        );
    }
}

/// What is sent only once. The client has several spare connections, so that lists keep theirs.
async fn orders(rowlock: Rowlock, name: String) {
    let admin = rowlock.admin();
    let lists = async || {
        let (locks, sessions) = tokio::join!(admin.list(), admin.sessions());
        locks.unwrap();
        sessions.unwrap();
    };
    for _ in 0..number("ROWLOCK_IDLE_ROUNDS", 1) {
        let held = take(&rowlock, &name, LONG).await;
        lists().await;
        idle().await;
        let freed = admin.force_release(&name).await.unwrap();
        assert_eq!(freed.map(|info| info.fence), Some(held.fence()));
        lists().await;
        idle().await;
        assert_eq!(admin.end_session(Uuid::new_v4()).await.unwrap(), 0);
    }
}

async fn records(rowlock: Rowlock, name: String) {
    let request = Fingerprint::of("request");
    let outcome = Outcome::new("text/plain", "done").unwrap();
    let idempotency = rowlock.idempotency();
    for round in 0..number("ROWLOCK_IDLE_ROUNDS", 1) {
        let key = format!("{name}-{round}");
        idle().await;
        let begun = idempotency
            .begin(Scope("idle").key(&key), &request)
            .await
            .unwrap();
        let Begun::New(guard) = begun else {
            panic!("{begun:?}");
        };
        idle().await;
        guard.complete(&outcome).await.unwrap();
        let replay = idempotency
            .begin(Scope("idle").key(&key), &request)
            .await
            .unwrap();
        assert!(matches!(replay, Begun::Replay(_)), "{replay:?}");
    }
}

async fn cleans(rowlock: Rowlock, _name: String) {
    for _ in 0..number("ROWLOCK_IDLE_ROUNDS", 1) {
        idle().await;
        rowlock.admin().clean(100).await.unwrap();
    }
}

async fn an_idle_client_sees_no_error(engine: Engine) {
    // `init_connect` is a setting of the whole server.
    let server = Own::start(engine.name(), &[]);
    let db = Db::on(engine, &server.url).await;
    drop(db.rowlock().await);
    let user = impatient(&db).await;
    let url = as_user(&db.url, &user, "pw");
    if engine == Engine::Postgres {
        db.execute(&format!(
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}"
        ))
        .await;
    }
    let mut tasks = JoinSet::new();
    macro_rules! spawn {
        ($($client:ident)*) => { $(
            let rowlock = Rowlock::connect(&url).await.unwrap();
            tasks.spawn($client(rowlock, stringify!($client).to_owned()));
        )* };
    }
    spawn!(locks batches drops renewals looks forced records cleans);
    let several = Rowlock::builder().max_connections(8);
    let several = several.connect(&url).await.unwrap();
    tasks.spawn(orders(several, "orders".to_owned()));
    // It is really so that the server ends them.
    let first = sessions_of(&db, &user).await;
    assert!(!first.is_empty());
    let ended = async {
        let is_there = |sessions: Vec<i64>| sessions.iter().any(|session| first.contains(session));
        while is_there(sessions_of(&db, &user).await) {
            tokio::task::yield_now().await;
        }
    };
    let timeout = Duration::from_secs(u64::from(limit()) * 3 + 10);
    tokio::time::timeout(timeout, ended)
        .await
        .expect("the server ends idle sessions");
    while let Some(client) = tasks.join_next().await {
        client.unwrap();
    }
    db.remove().await;
}

#[tokio::test]
async fn an_idle_client_of_postgres_sees_no_error() {
    an_idle_client_sees_no_error(Engine::Postgres).await;
}

#[tokio::test]
async fn an_idle_client_of_mariadb_sees_no_error() {
    an_idle_client_sees_no_error(Engine::MariaDb).await;
}

#[tokio::test]
async fn an_idle_client_of_mysql_sees_no_error() {
    an_idle_client_sees_no_error(Engine::MySql).await;
}
