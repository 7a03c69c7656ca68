//! Passwords that change while clients work, and every time all their connections end: a client of a pool follows the
//! pool, and a client of a URL asks for the new password.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowlock::{Engine, Error, InvalidError, Rowlock};
use rowlock_test::{
    App, Db, Own, as_user, eventually, on_app, renewed, sessions_of, take, user_name,
};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(9);

/// How often the password changes. (24 take two minutes.)
fn changes() -> u32 {
    std::env::var("ROWLOCK_PASSWORDS").map_or(2, |text| text.parse().expect("a number"))
}

/// A user with all rights on the tables of `db`, whose login needs the password.
async fn make_user(db: &Db, name: &str, password: &str) {
    drop(db.rowlock().await);
    let database = db.name();
    let statements = if db.engine == Engine::Postgres {
        // The server trusts everybody else.
        let lines = [
            format!("host all {name} 127.0.0.1/32 scram-sha-256"),
            "host all all 127.0.0.1/32 trust".into(),
        ];
        let lines = lines.map(|line| format!("('{line}')")).join(", ");
        vec![
            format!("CREATE ROLE {name} LOGIN PASSWORD '{password}'"),
            format!("GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}"),
            format!(
                "DO $$ BEGIN EXECUTE format('COPY (VALUES {}) TO %L', current_setting('hba_file')); END $$",
                lines.replace('\'', "''")
            ),
            "SELECT pg_reload_conf()".into(),
        ]
    } else {
        vec![
            format!("CREATE USER {name}@'127.0.0.1' IDENTIFIED BY '{password}'"),
            format!("GRANT ALL ON {database}.* TO {name}@'127.0.0.1'"),
        ]
    };
    for statement in statements {
        db.execute(&statement).await;
    }
}

async fn change_password(db: &Db, user: &str, password: &str) {
    let change = match db.engine {
        Engine::Postgres => format!("ALTER ROLE {user} PASSWORD '{password}'"),
        _ => format!("ALTER USER {user}@'127.0.0.1' IDENTIFIED BY '{password}'"),
    };
    db.execute(&change).await;
}

/// Ends all connections of a user.
async fn end_sessions(db: &Db, user: &str) {
    if db.engine == Engine::Postgres {
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename";
        db.number(&format!("{end} = '{user}'")).await;
        return;
    }
    for session in sessions_of(db, user).await {
        // It may have gone by itself.
        let _ = db.try_execute(&format!("KILL {session}")).await;
    }
}

fn give(app: &App, password: &str) {
    match app {
        App::Postgres(pool) => {
            pool.set_connect_options((*pool.connect_options()).clone().password(password));
        }
        App::MySql(pool) => {
            pool.set_connect_options((*pool.connect_options()).clone().password(password));
        }
        App::Sqlite(_) => unreachable!("it has no passwords"),
    }
}

/// Takes and releases a lock that all want, until it is told to stop. Counts in `grants`.
async fn work(
    rowlock: Rowlock,
    taken: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    grants: Arc<AtomicU64>,
) {
    while !stop.load(Ordering::Relaxed) {
        let held = rowlock.lock("hot").ttl(TTL).acquire().await.unwrap();
        assert!(!taken.swap(true, Ordering::SeqCst), "two holders");
        tokio::task::yield_now().await;
        taken.store(false, Ordering::SeqCst);
        held.release().await.unwrap();
        grants.fetch_add(1, Ordering::Relaxed);
    }
}

async fn passwords_change_under_load(db: &Db) {
    let user = user_name("rotated");
    let password = Arc::new(Mutex::new(String::from("first")));
    make_user(db, &user, "first").await;
    let app = App::connect(&as_user(&db.url, &user, "first"), 1).await;
    let of_pool = on_app!(&app, pool => Rowlock::from_pool(pool).await.unwrap());
    let current = Arc::clone(&password);
    let ask = move || {
        let password = current.lock().unwrap().clone();
        async move { Ok::<_, Error>(password) }
    };
    let url = as_user(&db.url, &user, "unused");
    let of_url = Rowlock::builder()
        .password(ask)
        .connect(&url)
        .await
        .unwrap();

    let (taken, stop) = (Arc::default(), Arc::<AtomicBool>::default());
    let mut workers = JoinSet::new();
    let mut clients = Vec::new();
    for rowlock in [&of_pool, &of_url] {
        let held = take(rowlock, if clients.is_empty() { "a" } else { "b" }, TTL).await;
        let grants = Arc::<AtomicU64>::default();
        for _ in 0..3 {
            let (taken, stop, grants) =
                (Arc::clone(&taken), Arc::clone(&stop), Arc::clone(&grants));
            workers.spawn(work(rowlock.clone(), taken, stop, grants));
        }
        clients.push((held, grants));
    }
    for change in 0..changes() {
        for (held, _) in &clients {
            renewed(held).await;
        }
        let new = format!("s3cret{change}");
        change_password(db, &user, &new).await;
        give(&app, &new);
        new.clone_into(&mut password.lock().unwrap());
        end_sessions(db, &user).await;
        for (held, grants) in &clients {
            let before = grants.load(Ordering::Relaxed);
            eventually("the client works on", async || {
                grants.load(Ordering::Relaxed) > before + 10
            })
            .await;
            renewed(held).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    for (held, _) in clients {
        held.release().await.unwrap();
    }
    on_app!(&app, pool => pool.close().await);
    drop((of_pool, of_url));
    eventually("its sessions are gone", async || {
        end_sessions(db, &user).await;
        let drop = match db.engine {
            Engine::Postgres => format!("DROP OWNED BY {user}; DROP ROLE {user}"),
            _ => format!("DROP USER {user}@'127.0.0.1'"),
        };
        db.try_execute(&drop).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_password_that_changes_costs_no_grant_on_postgres() {
    let server = Own::start("postgres", &[]);
    let db = Db::on(Engine::Postgres, &server.url).await;
    passwords_change_under_load(&db).await;
    db.remove().await;
}

#[tokio::test]
async fn a_password_that_changes_costs_no_grant_on_mariadb() {
    let db = Db::new(Engine::MariaDb).await;
    passwords_change_under_load(&db).await;
    db.remove().await;
}

#[tokio::test]
async fn a_password_that_changes_costs_no_grant_on_mysql() {
    let db = Db::new(Engine::MySql).await;
    passwords_change_under_load(&db).await;
    db.remove().await;
}

/// Another database has other locks.
#[tokio::test]
async fn a_client_does_not_follow_its_pool_to_another_database() {
    for engine in [Engine::Postgres, Engine::MariaDb, Engine::MySql] {
        let (db, other) = (Db::new(engine).await, Db::new(engine).await);
        let user_url = db.url.clone();
        let app = App::connect(&user_url, 1).await;
        let rowlock = on_app!(&app, pool => Rowlock::from_pool(pool).await.unwrap());
        let held = take(&rowlock, "a", TTL).await;
        held.release().await.unwrap();
        match &app {
            App::Postgres(pool) => {
                pool.set_connect_options((*pool.connect_options()).clone().database(other.name()));
            }
            App::MySql(pool) => {
                pool.set_connect_options((*pool.connect_options()).clone().database(other.name()));
            }
            App::Sqlite(_) => unreachable!("it is a file"),
        }
        // A look goes over a connection that is not there yet.
        let error = rowlock.admin().list().await.unwrap_err();
        assert!(error.to_string().contains("another database"), "{error}");
        on_app!(&app, pool => pool.close().await);
        drop(rowlock);
        db.remove().await;
        other.remove().await;
    }
}

/// The closure fails, panics, never answers: the operations that wait for it run out of time, and the next connection
/// asks again.
#[tokio::test]
async fn a_password_that_is_not_there_is_asked_for_again() {
    let db = Db::new(Engine::MySql).await;
    let user = user_name("asked");
    make_user(&db, &user, "first").await;
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let ask = move || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        async move {
            match number {
                1 => Err("the vault is shut"),
                2 => panic!("a bug of the closure"),
                3 => std::future::pending().await,
                4 => Ok(String::from("wrong")),
                _ => Ok(String::from("first")),
            }
        }
    };
    let url = as_user(&db.url, &user, "unused");
    let builder = Rowlock::builder().operation_timeout(Duration::from_secs(1));
    let rowlock = builder.clone().password(ask).connect(&url).await.unwrap();
    eventually("it has the password again", async || {
        rowlock.inspect("a").await.is_ok() && asked.load(Ordering::Relaxed) > 5
    })
    .await;
    let shut = || async { Err::<String, _>("the vault is shut") };
    let error = builder.password(shut).connect(&url).await.unwrap_err();
    let said = error.to_string();
    assert!(
        matches!(error, Error::Unreachable { .. }) && said.contains("the vault is shut"),
        "{said}"
    );
    // Who has no password to give is told so.
    let given = || async { Ok::<_, Error>(String::new()) };
    let refused =
        on_app!(&db.app, pool => Rowlock::builder().password(given).from_pool(pool).await);
    assert!(
        matches!(
            refused,
            Err(Error::Invalid(InvalidError::Setting {
                setting: "password",
                ..
            }))
        ),
        "{refused:?}"
    );
    let refused = Rowlock::builder()
        .password(given)
        .connect("sqlite:/nowhere/x.db")
        .await;
    assert!(
        matches!(
            refused,
            Err(Error::Invalid(InvalidError::Setting {
                setting: "password",
                ..
            }))
        ),
        "{refused:?}"
    );
    drop(rowlock);
    eventually("its sessions are gone", async || {
        let drop = format!("DROP USER {user}@'127.0.0.1'");
        db.try_execute(&drop).await.is_ok()
    })
    .await;
    db.remove().await;
}
