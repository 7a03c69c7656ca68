//! A process dies (SIGKILL) while it holds a name. In a transaction, the name is free at once, whatever the TTL; a
//! pinned lease is free within its TTL, and the locks of a session within the session's.

use std::time::{Duration, Instant};

use rowlock::Engine;
use rowlock_test::{App, Db, Process, listen, loss, tell};

use crate::role::{Holding, Part, Role};

const ROUNDS: usize = 3;
const TTL: Duration = Duration::from_secs(1);

pub(crate) async fn hold(role: &Role, holding: Holding) {
    let rowlock = role.connect().await;
    let app = App::connect(&role.url, 1).await;
    let mut tx;
    let mut held = None;
    match holding {
        Holding::Pessimistic => {
            tx = app.begin().await;
            tx.lock(&rowlock, "a").await;
        }
        Holding::Optimistic => {
            let seen = rowlock.version("a").await.unwrap();
            tx = app.begin().await;
            tx.advance(&rowlock, &seen)
                .await
                .unwrap()
                .or_conflict(&seen)
                .unwrap();
        }
        Holding::Pinned => {
            let lease = rowlock.lock("a").ttl(role.ttl).acquire().await.unwrap();
            tx = app.begin().await;
            tx.pin(&lease).await.unwrap();
            held = Some(lease);
        }
        Holding::InSession => {
            let lock = rowlock.lock("a").in_session();
            held = Some(lock.acquire().await.unwrap());
            tx = app.begin().await;
        }
    }
    tx.execute("UPDATE app SET n = n + 1").await.unwrap();
    tell("held");
    listen(); // for ever
    drop((tx, held));
}

pub(crate) async fn run(engine: Engine) {
    let db = Db::new(engine).await;
    let rowlock = db.rowlock().await;
    db.execute("CREATE TABLE app (n BIGINT NOT NULL)").await;
    db.execute("INSERT INTO app VALUES (0)").await;
    for holding in [
        Holding::Pessimistic,
        Holding::Optimistic,
        Holding::Pinned,
        Holding::InSession,
    ] {
        let role = Role {
            part: Part::DeadHolder(holding),
            url: db.url.clone(),
            ttl: TTL,
        };
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let mut process = Process::start(&role);
            assert_eq!(process.listen(), "held");
            if !db.one_writer() {
                let busy = rowlock.lock("a").try_acquire().await.unwrap();
                assert!(busy.is_none(), "{holding:?}");
            }
            process.kill();
            let died = Instant::now();
            let held = rowlock.lock("a").acquire().await.unwrap();
            times.push(died.elapsed());
            let _ = loss(held.release().await);
        }
        println!(
            "dead_holder {engine} {holding:?}: the slowest name was free after {} ms",
            times.iter().max().unwrap().as_millis()
        );
        // The database ends the transaction of the dead: nobody waits for a lease of theirs.
        let quickest = *times.iter().min().unwrap();
        let is_bound = matches!(holding, Holding::Pinned | Holding::InSession);
        assert!(is_bound || quickest < TTL, "{holding:?}: {times:?}");
    }
    assert_eq!(
        db.number("SELECT n FROM app").await,
        0,
        "nothing of the dead was committed"
    );
    db.remove().await;
}
