//! Requests that reach the server after their caller has stopped waiting: rowlock undoes their effect.

use std::time::Duration;

use rowlock::extend::raise_fence;
use rowlock::{Begun, Engine, Error, Fingerprint, Loss, Rowlock, Scope};
use rowlock_test::{
    Db, Mode, connected, eventually, loss, patience, queue_is, queue_of, release,
    renewals_are_connected, through_proxy, through_readable_proxy,
};
use tokio::time::timeout;

/// The client sends an acquire twice, and the first request is delayed. It arrives when the second has been answered
/// and its grant released, or was lost. The name is free again within moments, not after the TTL.
pub(crate) async fn late_sending(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    renewals_are_connected(&rowlock).await;
    let ttl = Duration::from_mins(5);
    for (granted, is_lost) in [(true, false), (false, false), (true, true)] {
        let lock = rowlock.lock("a").ttl(ttl);
        // This prepares all statements, so that the proxy keeps the statement that grants.
        let _ = loss(lock.acquire().await.unwrap().release().await);
        rowlock.flush().await;
        let other = if granted {
            None
        } else {
            Some(watcher.lock("a").ttl(ttl).acquire().await.unwrap())
        };
        proxy.set(Mode::KeepNextRequest);
        let held = lock.try_acquire().await.unwrap();
        assert_eq!(proxy.mode(), Mode::Pass, "a request was kept");
        assert_eq!(held.is_some(), granted, "the result of the second request");
        let holder = held.or(other).unwrap();
        let fence = holder.fence();
        if is_lost {
            watcher.admin().force_release("a").await.unwrap();
            let lost = raise_fence(&holder, 0).await.unwrap_err();
            assert!(matches!(lost, Error::Lost { .. }), "{lost}");
            let outcome = loss(holder.release_in(ttl).await);
            assert_eq!(outcome, Some(Loss::TakenOver));
        } else {
            holder.release().await.unwrap();
        }
        rowlock.flush().await;
        // The undo of the first request arrives several times before that request.
        let said = proxy.requests();
        eventually("it is undone again and again", async || {
            proxy.requests() > said + 2
        })
        .await;
        // An undo locks the row for a moment (on MySQL and MariaDB also a row of another grant), and the first request
        // would skip a locked row. So the proxy delivers that request between two undos.
        proxy.hold_an_answer().await;
        proxy.deliver().await;
        proxy.set(Mode::Pass);
        let row = format!(
            "SELECT fence FROM rowlock_lock WHERE name = {}",
            db.bytes("a")
        );
        assert!(
            db.number(&row).await > fence,
            "the first sending was granted"
        );
        eventually("the name is free", async || {
            watcher.inspect("a").await.unwrap().is_none()
        })
        .await;
    }
    db.remove().await;
}

/// The client sends twice that a name is to be free after a time, and the first request is delayed. It arrives while
/// the time of the second one runs, or when the next waiter has the name: it gives no time again, and takes nothing.
pub(crate) async fn late_reservation(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    renewals_are_connected(&rowlock).await;
    let ttl = Duration::from_mins(5);
    for time in [ttl * 2, Duration::from_secs(1)] {
        let lock = rowlock.lock("a").ttl(ttl);
        // This prepares all statements, so that the proxy keeps the statement that reserves.
        let held = lock.acquire().await.unwrap();
        let _ = loss(held.release_in(Duration::ZERO).await);
        let held = lock.wait(patience()).acquire().await.unwrap();
        rowlock.flush().await;
        let waits = watcher.lock("a").ttl(ttl).holder("the next");
        let waiting = tokio::spawn(async move { waits.acquire().await });
        queue_is(&watcher, "a", &["the next"]).await;
        proxy.set(Mode::KeepNextRequest);
        held.release_in(time).await.unwrap();
        assert_eq!(proxy.mode(), Mode::Pass, "a request was kept");
        let of_now = async || watcher.inspect("a").await.unwrap().unwrap();
        let is_long = time > ttl;
        if is_long {
            let before = of_now().await;
            proxy.deliver().await;
            let after = of_now().await;
            assert_eq!(before.grant_id, after.grant_id);
            assert!(after.remaining <= before.remaining, "{before:?} {after:?}");
            assert!(watcher.admin().force_release("a").await.unwrap().is_some());
        }
        let next = waiting.await.unwrap().unwrap();
        if !is_long {
            proxy.deliver().await;
        }
        let row = of_now().await;
        assert_eq!((row.fence, next.is_held()), (next.fence(), true), "{row:?}");
        release(&next).await;
    }
    db.remove().await;
}

/// The client sends a downgrade twice, and the first request is delayed. It arrives when the reader has become a
/// writer again: it must not let readers in.
pub(crate) async fn late_downgrade(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    renewals_are_connected(&rowlock).await;
    let lock = rowlock.rw_lock("a").ttl(Duration::from_mins(5));
    let mut held = lock.write().await.unwrap();
    // This prepares all statements, so that the proxy keeps the statement that changes the weight.
    held.downgrade().await.unwrap();
    assert!(held.try_upgrade().await.unwrap());
    proxy.set(Mode::KeepNextRequest);
    held.downgrade().await.unwrap();
    assert_eq!(proxy.mode(), Mode::Pass, "a request was kept");
    assert!(
        held.try_upgrade().await.unwrap(),
        "there is no other reader"
    );
    let reader = async || watcher.rw_lock("a").try_read().await.unwrap();
    assert!(reader().await.is_none(), "a writer holds it");
    proxy.deliver().await;
    assert!(held.is_held() && held.mode() == rowlock::Mode::Write);
    assert!(reader().await.is_none(), "a reader beside a writer");
    drop(held);
    db.remove().await;
}

/// The client asks for a permit twice, and the first request is delayed. It arrives when the second one has waited and
/// has left the queue. Its waiter must not keep back others for as long as the client lives.
pub(crate) async fn late_join(engine: Engine) {
    let db = Db::new(engine).await;
    // A server that stands still for a moment takes the row for locked, and the late request does nothing.
    while !joins_late(&db).await {}
    db.remove().await;
}

/// Whether the late request has made a row, which was left.
async fn joins_late(db: &Db) -> bool {
    let (proxy, url) = through_proxy(db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    renewals_are_connected(&rowlock).await;
    let of = |rowlock: &Rowlock| rowlock.semaphore("s", 1).ttl(Duration::from_mins(5));
    let held = of(&watcher).acquire().await.unwrap();
    let (asks, asked) = (of(&rowlock).holder("late"), of(&rowlock));
    // This opens the session, and prepares the statement that the proxy keeps.
    assert!(asked.try_acquire().await.unwrap().is_none());
    rowlock.flush().await;
    proxy.set(Mode::KeepNextRequest);
    let waiting = tokio::spawn(async move { asks.acquire().await });
    eventually("the second request waits", async || {
        queue_of(&watcher, "s").await == ["late"]
    })
    .await;
    assert_eq!(proxy.mode(), Mode::Pass, "a request was kept");
    waiting.abort();
    queue_is(&watcher, "s", &[]).await;
    let said = proxy.requests();
    eventually("it leaves again and again", async || {
        proxy.requests() > said + 2
    })
    .await;
    proxy.hold_an_answer().await;
    proxy.deliver().await;
    let joins = timeout(patience() / 24, queue_is(&watcher, "s", &["late"])).await;
    proxy.set(Mode::Pass);
    queue_is(&watcher, "s", &[]).await;
    release(&held).await;
    joins.is_ok()
}

/// The claim of a key reaches the server after its caller has given up. rowlock undoes the claim.
pub(crate) async fn late_claim(engine: Engine) {
    const HOLDER: &str = "the late one";
    let db = Db::new(engine).await;
    let (proxy, url) = through_readable_proxy(&db).await;
    let builder = Rowlock::builder().holder(HOLDER);
    let builder = builder.operation_timeout(Duration::from_secs(3));
    let (rowlock, watcher) = (connected(&builder, &url).await, db.rowlock().await);
    let request = Fingerprint::of("request");
    let lease = Duration::from_mins(5);
    proxy.set(Mode::KeepRequestWith(HOLDER, 0));
    let idempotency = rowlock.idempotency().lease(lease);
    let begun = idempotency.begin(Scope("s").key("k"), &request).await;
    assert!(
        matches!(begun, Err(Error::OutcomeUnknown { .. })),
        "{begun:?}"
    );
    assert_eq!(proxy.mode(), Mode::Silent, "a request was kept");
    proxy.set(Mode::Pass);
    // The undo arrives before the claim.
    rowlock.flush().await;
    let records = "SELECT COUNT(*) FROM rowlock_idempotency";
    assert_eq!(db.number(records).await, 0);
    // The undo is repeated: the claim arrives between two undos, so that it is seen.
    proxy.hold_an_answer().await;
    proxy.deliver().await;
    assert_eq!(db.number(records).await, 1, "the key was claimed");
    proxy.set(Mode::Pass);
    let idempotency = watcher.idempotency().lease(lease);
    eventually("the key is free", async || {
        let begun = idempotency
            .begin(Scope("s").key("k"), &request)
            .await
            .unwrap();
        matches!(begun, Begun::New(_))
    })
    .await;
    db.remove().await;
}
