//! Promise 4 (bounded trust): a network that is slow, or silent.

use std::time::Duration;

use rowlock::{Engine, Error, Loss, Rowlock};
use rowlock_test::{
    Db, Mode, answered, connected, eventually, loss, patience, take, takes_less_than,
    through_proxy, through_readable_proxy,
};

/// Answers come late. The deadline counts from before the request was sent, not from its answer.
pub(crate) async fn late(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    let lock = rowlock.lock("a").ttl(Duration::from_secs(6));
    drop(lock.acquire().await.unwrap());
    rowlock.flush().await;
    proxy.set(Mode::Late(Duration::from_millis(150)));
    let held = lock.acquire().await.unwrap();
    for round in 0..2 {
        let row = watcher.inspect("a").await.unwrap().unwrap().remaining;
        // This is read later, so it must not be longer.
        let here = held.remaining();
        assert!(here <= row, "{here:?} here, {row:?} in the row");
        if round == 0 {
            let first = held.deadline();
            eventually("a renewal is confirmed", async || held.deadline() > first).await;
        }
    }
    proxy.set(Mode::Pass);
    let _ = loss(held.release().await);
    db.remove().await;
}

/// The network is slow before the renewals have a connection: a login takes longer than a renewal may. The lease is
/// kept.
pub(crate) async fn late_login(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let rowlock = Rowlock::connect(&url).await.unwrap();
    proxy.set(Mode::Late(Duration::from_millis(330)));
    let lock = rowlock.lock("a").ttl(Duration::from_secs(12));
    let held = lock.acquire().await.unwrap();
    let first = held.deadline();
    let settled = async || held.deadline() > first || held.loss().is_some();
    eventually("a renewal is confirmed, or the lease is lost", settled).await;
    assert_eq!(held.loss(), None);
    proxy.set(Mode::Pass);
    let _ = loss(held.release().await);
    db.remove().await;
}

/// The client sends no more renewals for a lost lease, however long its guard lives.
pub(crate) async fn quiet(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    // The first cleaning comes at any time in the first minute, and sends requests too.
    let quiet = Rowlock::builder().clean_every(None);
    let (rowlock, watcher) = (quiet.connect(&url).await.unwrap(), db.rowlock().await);
    // Six renewals of it would come in a second.
    let held = take(&rowlock, "a", Duration::from_millis(600)).await;
    watcher.admin().force_release("a").await.unwrap();
    held.lost().await;
    let before = proxy.requests();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let said = proxy.requests() - before;
    assert!(
        said <= 2,
        "{said} requests in a second, for a lease that is lost"
    );
    drop(held);
    rowlock.flush().await;
    db.remove().await;
}

/// The client's machine is gone in a transaction of rowlock's own, and the server does not hear of it: it ends the
/// transaction soon, so that others can lock the row.
pub(crate) async fn in_a_transaction(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_readable_proxy(&db).await;
    let (gone, other) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    let held = take(&other, "a", Duration::from_mins(30)).await;
    proxy.set(Mode::SilentFrom("COMMIT"));
    let freeing = tokio::spawn(async move { gone.admin().force_release("a").await });
    eventually("the commit does not arrive", async || {
        proxy.mode() == Mode::Silent
    })
    .await;
    let freed = answered(async || other.admin().force_release("a").await).await;
    assert_eq!(freed.expect("it is held").fence, held.fence());
    proxy.set(Mode::Pass);
    let _ = freeing.await.unwrap();
    db.remove().await;
}

/// The network drops all packets and closes no connection. Every call ends in time, the lease is lost by its deadline,
/// and the client works again when the network is back.
pub(crate) async fn silence(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let timeout = Duration::from_millis(500);
    let builder = Rowlock::builder().operation_timeout(timeout);
    let (rowlock, watcher) = (connected(&builder, &url).await, db.rowlock().await);
    let ttl = Duration::from_millis(1_500);
    let lock = rowlock.lock("a").ttl(ttl);
    let held = answered(async || lock.acquire().await).await;

    proxy.set(Mode::Silent);
    takes_less_than(3 * timeout, async || {
        let error = rowlock.lock("b").try_acquire().await.unwrap_err();
        let is_told = matches!(
            error,
            Error::OutcomeUnknown { .. } | Error::Unreachable { .. }
        );
        assert!(is_told, "{error}");
    })
    .await;
    let error = rowlock
        .lock("b")
        .wait(Duration::from_millis(300))
        .acquire()
        .await
        .unwrap_err();
    assert!(error.is_transient(), "{error}");

    held.at_risk().await;
    let deadline = held.deadline();
    assert_eq!(held.lost().await, Loss::Expired);
    assert!(deadline.has_passed());
    eventually("the name is free for others", async || {
        watcher.lock("a").try_acquire().await.unwrap().is_some()
    })
    .await;

    proxy.set(Mode::Pass);
    let lock = rowlock.lock("a").wait(patience());
    let again = answered(async || lock.acquire().await).await;
    assert!(again.fence() > held.fence());
    drop((held, again));
    rowlock.flush().await;
    // The client has undone the acquires whose answers were missing.
    eventually("nothing is left", async || {
        watcher.admin().list().await.unwrap().is_empty()
    })
    .await;
    db.remove().await;
}
