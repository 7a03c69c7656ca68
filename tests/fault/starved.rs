//! A pooler that has no connection left for rowlock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Engine, Error, Retry, Rowlock};
use rowlock_test::{
    Db, Mode, Proxy, eventually, loss, on_app, patience, take, takes_less_than, through_proxy,
};

/// The number of connections to the server; the application's pool has as many.
const ALL: u32 = 4;

/// One connection, until this is dropped. When all are taken, other requests get no answer.
struct Taken<'a>(&'a AtomicU32, &'a Proxy);

impl<'a> Taken<'a> {
    fn one(open: &'a AtomicU32, proxy: &'a Proxy) -> Self {
        if open.fetch_add(1, Ordering::Relaxed) + 1 == ALL {
            proxy.set(Mode::Silent);
        }
        Self(open, proxy)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        self.1.set(Mode::Pass);
    }
}

/// As with a pooler: while the application's transactions hold all connections to the server, rowlock's requests get
/// no answer.
pub(crate) async fn starved(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, other) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    drop(other.version("old").await.unwrap());
    // The client has seen a lease of a name that is now free.
    let leased = take(&other, "leased", Duration::from_secs(30)).await;
    assert!(rowlock.version("leased").await.unwrap().holder().is_some());
    let _ = loss(leased.release().await);

    // Without a second attempt, the call ends in time, and says why.
    let mut tx = db.begin().await;
    proxy.set(Mode::Silent);
    let error = tx.try_lock(&rowlock, "new").await.unwrap_err();
    assert!(
        matches!(error, Error::Starved { .. }) && error.is_retryable(),
        "{error}"
    );
    assert!(error.to_string().contains("pooler"), "{error}");
    let error = tx.version(&rowlock, "newer").await.unwrap_err();
    assert!(matches!(error, Error::Starved { .. }), "{error}");
    // An existing row can be read. It can be locked if a look at it locks nothing.
    drop(tx.version(&rowlock, "old").await.unwrap());
    if engine == Engine::Postgres {
        tx.lock(&rowlock, "old").await;
    }
    // A row that the client knows can be locked, too.
    tx.lock(&rowlock, "leased").await;
    tx.release().await;

    // With a second attempt, the rows are made together. With one attempt, none is made.
    for (attempts, most) in [(1, 4), (2, 14)] {
        // One after the other, the six would take several times as long.
        takes_less_than(Duration::from_secs(most), async || {
            let names: Vec<_> = (0..6).map(|n| format!("{attempts} {n}")).collect();
            let policy = Retry::new().attempts(attempts);
            let (rowlock, names) = (&rowlock, &names);
            let locked = on_app!(&db.app, pool => policy.run(pool, |mut tx| async move {
                rowlock.in_tx(&mut tx).lock_all(names.clone()).acquire().await
            }).await);
            let error = locked.unwrap_err();
            assert!(matches!(error, Error::Starved { .. }), "{error}");
        })
        .await;
    }

    // An unreachable server is another error, and no reason to try again.
    proxy.set(Mode::Closed);
    let mut tx = db.begin().await;
    let error = tx.try_lock(&rowlock, "unreachable").await.unwrap_err();
    assert!(
        matches!(error, Error::Unreachable { .. }) && !error.is_retryable(),
        "{error}"
    );
    tx.release().await;
    proxy.set(Mode::Pass);
    eventually("the connections are alive", async || {
        rowlock.inspect("old").await.is_ok()
    })
    .await;

    // With more attempts, the rows are made after the transactions have given their connections back.
    let (open, tries) = (AtomicU32::new(0), AtomicU32::new(0));
    let all_begun = tokio::sync::Barrier::new(ALL as usize);
    let order = |number: u32| {
        let (rowlock, proxy, open, tries, all_begun) =
            (&rowlock, &proxy, &open, &tries, &all_begun);
        let db = &db;
        async move {
            let first = AtomicU32::new(0);
            let first = &first;
            on_app!(&db.app, pool => Retry::new().run(pool, |mut tx| async move {
                let _connection = Taken::one(open, proxy);
                tries.fetch_add(1, Ordering::Relaxed);
                if first.fetch_add(1, Ordering::Relaxed) == 0 {
                    all_begun.wait().await;
                }
                let names = [format!("order-{number}-a"), format!("order-{number}-b")];
                rowlock.in_tx(&mut tx).lock_all(names).acquire().await
            }).await)
        }
    };
    let orders = async { tokio::join!(order(0), order(1), order(2), order(3)) };
    let done = tokio::time::timeout(patience(), Box::pin(orders)).await;
    let (a, b, c, d) = done.expect("they do not wait for each other for ever");
    for locked in [a, b, c, d] {
        assert_eq!(locked.unwrap().fences().count(), 2);
    }
    let tries = tries.into_inner();
    assert!(tries > ALL, "they did wait for each other");
    assert!(
        tries <= 2 * ALL,
        "{tries}: the rows are there when they begin again"
    );
    drop((rowlock, other));
    db.remove().await;
}

/// A lease lingers in the client of a transaction that needs its name, and the release of that lease gets no answer.
/// Nobody else can free the name. So the call ends, and its transaction gives its connection back.
pub(crate) async fn lingering(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, other) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    for waits in [false, true] {
        let name = format!("waits: {waits}");
        let lock = rowlock.lock(name.as_str()).linger(Duration::from_mins(1));
        let lock = lock.ttl(Duration::from_mins(10));
        let held = lock.acquire().await.unwrap();
        let _ = loss(held.release().await);
        assert!(
            other.inspect(name.as_str()).await.unwrap().is_some(),
            "it lingers"
        );
        let mut tx = db.begin().await;
        proxy.set(Mode::Silent);
        let error = if waits {
            tx.acquire(&rowlock, &name, patience()).await.unwrap_err()
        } else {
            tx.try_lock(&rowlock, &name).await.unwrap_err()
        };
        assert!(
            matches!(error, Error::Starved { .. }) && error.is_retryable(),
            "{name}: {error}"
        );
        tx.release().await;
        proxy.set(Mode::Pass);
        eventually("it is released", async || {
            other.inspect(name.as_str()).await.unwrap().is_none()
        })
        .await;
        // The next attempt of `Retry` has the name.
        let mut tx = db.begin().await;
        tx.acquire(&rowlock, &name, patience()).await.unwrap();
        tx.commit().await.unwrap();
    }
    drop((rowlock, other));
    db.remove().await;
}
