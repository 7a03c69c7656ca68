//! Proxies that split reads from writes (`ProxySQL`, `MaxScale`): they send a SELECT that stands outside of
//! transactions and locks nothing to a replica, which may not have what was just committed, and is read only. None of
//! rowlock's may be one: a grant would be nobody's, a lease that is held would look lost, and the primary would be
//! passed over.
//!
//! The server's general log tells what each session sent.

use std::collections::HashSet;
use std::time::Duration;

use rowlock::{Begun, Engine, Error, Fingerprint, Outcome, RecordFilter, Rowlock, Scope};
use rowlock_test::{App, Db, Own, as_user, renewed, take, user_name};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

async fn locks(rowlock: &Rowlock) {
    for _ in 0..2 {
        let held = take(rowlock, "a", TTL).await;
        assert!(rowlock.lock("a").try_acquire().await.unwrap().is_none());
        assert!(rowlock.inspect("a").await.unwrap().is_some());
        assert_eq!(rowlock.admin().list().await.unwrap().len(), 1);
        held.release().await.unwrap();
    }
    for _ in 0..2 {
        let mut tasks = JoinSet::new();
        for number in 0..40 {
            let rowlock = rowlock.clone();
            tasks.spawn(async move { take(&rowlock, &format!("b{number}"), TTL).await });
        }
        drop(tasks.join_all().await);
        rowlock.flush().await;
    }
    let me = rowlock.owner();
    let outer = rowlock.lock("c").owner(&me).acquire().await.unwrap();
    let inner = rowlock.lock("c").owner(&me).acquire().await.unwrap();
    drop((inner, outer));
    let held = take(rowlock, "d", Duration::from_secs(2)).await;
    renewed(&held).await;
    assert!(rowlock.admin().force_release("d").await.unwrap().is_some());
    let _ = rowlock.version("e").await.unwrap();
    drop(held);
    rowlock.flush().await;
}

async fn records(rowlock: &Rowlock) {
    let request = Fingerprint::of("request");
    let outcome = Outcome::new("text/plain", "done").unwrap();
    let idempotency = rowlock.idempotency();
    let begun = idempotency
        .begin(Scope("s").key("k"), &request)
        .await
        .unwrap();
    let Begun::New(guard) = begun else {
        panic!("{begun:?}");
    };
    let begun = idempotency
        .begin(Scope("s").key("k"), &request)
        .await
        .unwrap();
    assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");
    let step: Result<u32, Error> = guard.step("step", async { Ok(7) }).await;
    assert_eq!(step.unwrap(), 7);
    assert_eq!(
        idempotency.steps(Scope("s").key("k")).await.unwrap().len(),
        1
    );
    guard.complete(&outcome).await.unwrap();
    let begun = idempotency
        .begin(Scope("s").key("k"), &request)
        .await
        .unwrap();
    assert!(matches!(begun, Begun::Replay(_)), "{begun:?}");
    assert!(
        idempotency
            .inspect(Scope("s").key("k"))
            .await
            .unwrap()
            .is_some()
    );
    let of_scope = RecordFilter::new().scope("s", "");
    let list = idempotency.list(&of_scope).await.unwrap();
    assert_eq!(list.items.len(), 1);
    let mut tasks = JoinSet::new();
    for number in 0..20 {
        let (idempotency, request) = (idempotency.clone(), request);
        tasks.spawn(async move {
            let key = format!("k{number}");
            idempotency
                .begin(Scope("s").key(&key), &request)
                .await
                .unwrap()
        });
    }
    for begun in tasks.join_all().await {
        let Begun::New(guard) = begun else {
            panic!("{begun:?}");
        };
        guard.release().await.unwrap();
    }
    let tokens = rowlock.form_tokens();
    let _ = tokens.issue("s").await.unwrap();
    let _ = rowlock.admin().clean(100).await.unwrap();
}

/// What the sessions of `user` have read outside of transactions without a lock; and how many reads there were.
async fn loose_reads(db: &Db, user: &str) -> (Vec<String>, usize) {
    let App::MySql(pool) = &db.app else {
        unreachable!("MySQL and MariaDB only")
    };
    let log: Vec<(i64, String)> = sqlx::query_as(
        "SELECT CAST(thread_id AS SIGNED), CONVERT(argument USING latin1) FROM mysql.general_log \
         WHERE user_host LIKE CONCAT('%', ?, '%') AND command_type IN ('Query', 'Execute')",
    )
    .bind(user)
    .fetch_all(pool)
    .await
    .unwrap();
    let (mut open, mut loose, mut count) = (HashSet::new(), Vec::new(), 0);
    // A text that begins with a write goes to the primary as a whole. (Values are in hexadecimal, or have no
    // semicolon.)
    for (session, text) in log {
        let mut with_a_write = false;
        for statement in text.split(';') {
            let statement = statement.trim().to_uppercase();
            if statement.starts_with("BEGIN") || statement.starts_with("START TRANSACTION") {
                open.insert(session);
            } else if statement.starts_with("COMMIT") || statement.starts_with("ROLLBACK") {
                open.remove(&session);
            } else if statement.starts_with("SELECT") || statement.starts_with("SHOW") {
                count += 1;
                let locks = statement.contains("FOR UPDATE");
                if !locks && !with_a_write && !open.contains(&session) {
                    loose.push(statement);
                }
            } else {
                with_a_write = true;
            }
        }
    }
    (loose, count)
}

/// MariaDB logs what is sent, MySQL each statement of it by itself; the statements are the same.
#[tokio::test]
async fn nothing_is_read_where_a_proxy_would_ask_a_replica() {
    // The log is of the whole server.
    let server = Own::start(Engine::MariaDb.name(), &[]);
    let db = Db::on(Engine::MariaDb, &server.url).await;
    let name = db.url.rsplit('/').next().unwrap();
    let user = user_name("split");
    for statement in [
        format!("CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'pw'"),
        format!("GRANT ALL ON {name}.* TO {user}@'127.0.0.1'"),
        "SET GLOBAL log_output = 'TABLE', GLOBAL general_log = 1".into(),
    ] {
        db.execute(&statement).await;
    }
    // Of several servers, each is asked whether it takes writes.
    let several = format!("@{0},{0}/", server.address());
    let url = as_user(&db.url, &user, "pw").replace(&format!("@{}/", server.address()), &several);
    let rowlock = Rowlock::connect(&url).await.unwrap();
    locks(&rowlock).await;
    records(&rowlock).await;
    db.execute("SET GLOBAL general_log = 0").await;
    let (loose, count) = loose_reads(&db, &user).await;
    assert!(loose.is_empty(), "{loose:#?}");
    assert!(count > 20, "{count} reads were seen");
    drop(rowlock);
    db.remove().await;
}
