//! Promises 6 and 7 together: connections are cut while tasks wait in a queue, after the request to join, to look or
//! to confirm.

use std::time::Duration;

use rand::Rng;
use rowlock::{Engine, Error, Rowlock};
use rowlock_test::{
    Db, Mode, Proxy, eventually, join, patience, queue_is, queue_of, release,
    renewals_are_connected, take, through_proxy, turns,
};

const TTL: Duration = Duration::from_secs(30);
const ROUNDS: u32 = 30;

/// When the answer is lost.
#[derive(Debug, Clone, Copy)]
enum Lost {
    /// While the task joins.
    Joining,
    /// While it waits.
    Waiting,
    /// When it has its turn.
    Granted,
}

/// The answer to a request of the waiting client is lost after the server has run it. The task keeps its place, and
/// has one turn.
pub(crate) async fn waiting(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, other) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    let (mut cuts, mut fence) = (0, 0);
    for round in 0..ROUNDS {
        let lost = [Lost::Joining, Lost::Waiting, Lost::Granted][round as usize % 3];
        let held = take(&other, "a", TTL).await;
        assert!(held.fence() > fence);
        let lock = rowlock.lock("a").holder("waiter");
        let mut waiter = tokio::spawn(async move { lock.acquire().await });
        if let Lost::Joining = lost {
            cut_soon(&proxy).await;
        }
        queue_is(&other, "a", &["waiter"]).await;
        let next = join(&other, "a", "next").await;
        if let Lost::Waiting = lost {
            proxy.set(Mode::CutNextAnswer);
            // The looks go on.
            eventually("an answer was cut", async || proxy.mode() == Mode::Pass).await;
        }
        tokio::select! {
            ended = &mut waiter => panic!("round {round}, {lost:?}: the waiter has ended: {ended:?}"),
            () = queue_is(&other, "a", &["waiter", "next"]) => {}
        }
        if let Lost::Granted = lost {
            let ((), ()) = tokio::join!(release(&held), cut_soon(&proxy));
        } else {
            release(&held).await;
        }
        let waiter = waiter.await.unwrap().unwrap();
        assert!(waiter.is_held() && waiter.fence() > held.fence());
        assert!(
            !next.is_finished(),
            "round {round}, {lost:?}: two have their turn"
        );
        fence = waiter.fence();
        cuts += u32::from(proxy.mode() == Mode::Pass);
        proxy.set(Mode::Pass);
        // Its release is cut, too, now and then.
        if round % 2 == 0 {
            proxy.set(Mode::CutNextAnswer);
        }
        release(&waiter).await;
        proxy.set(Mode::Pass);
        assert_eq!(turns([next]).await, [0]);
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_waiter").await, 0);
    }
    assert!(cuts > ROUNDS / 2, "{cuts} answers were cut");
    println!("queue {engine}: {cuts} of {ROUNDS} waiters lost an answer, and kept their places");
    db.remove().await;
}

/// The answer to the request to join is lost, and a transaction has the row locked when the request is sent again. The
/// task keeps its place.
pub(crate) async fn locked(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let builder = Rowlock::builder().operation_timeout(patience());
    let (rowlock, other) = (builder.connect(&url).await.unwrap(), db.rowlock().await);
    renewals_are_connected(&rowlock).await;
    let of = |rowlock: &Rowlock| rowlock.semaphore("s", 1).ttl(TTL);
    let held = of(&other).acquire().await.unwrap();
    // This opens the session: the next request joins.
    assert!(of(&rowlock).try_acquire().await.unwrap().is_none());
    rowlock.flush().await;

    proxy.set(Mode::CutAndSilent);
    let asks = of(&rowlock).holder("waiter");
    let waiter = tokio::spawn(async move { asks.acquire().await });
    eventually("an answer was cut", async || proxy.mode() == Mode::Silent).await;
    queue_is(&other, "s", &["waiter"]).await;
    let position = db.number("SELECT position FROM rowlock_waiter").await;

    let tx = db.lock_row("s").await;
    let before = proxy.requests();
    proxy.set(Mode::Pass);
    eventually("it was sent again, and refused", async || {
        proxy.requests() > before + 25
    })
    .await;
    tx.release().await;

    let asks = of(&other).holder("next");
    let next = tokio::spawn(async move { asks.acquire().await });
    queue_is(&other, "s", &["waiter", "next"]).await;
    release(&held).await;
    let waiter = waiter.await.unwrap().unwrap();
    let passed = "SELECT passed FROM rowlock_lock WHERE capacity > 0";
    assert_eq!(db.number(passed).await, position, "it has joined twice");
    assert!(!next.is_finished(), "two have their turn");
    release(&waiter).await;
    assert_eq!(turns([next]).await, [0]);
    db.remove().await;
}

/// The answer is lost, and the caller is gone. Nobody after it waits for ever, and nothing is left.
pub(crate) async fn gone(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, other) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    for _ in 0..ROUNDS {
        let held = take(&other, "a", TTL).await;
        let lock = rowlock.lock("a").holder("waiter");
        let waiter = tokio::spawn(async move { lock.acquire().await });
        cut_soon(&proxy).await;
        waiter.abort();
        assert!(waiter.await.is_err());
        proxy.set(Mode::Pass);
        let next = join(&other, "a", "next").await;
        release(&held).await;
        assert_eq!(turns([next]).await, [0]);
        rowlock.flush().await;
        // A row that is left has its turn, and is gone when the window is over.
        eventually("the name is free", async || {
            let asked = other.lock("a").try_acquire().await.unwrap();
            asked.is_some()
        })
        .await;
        other.flush().await;
        assert!(queue_of(&other, "a").await.is_empty());
    }
    db.remove().await;
}

/// A task that waits beside others of its client is told whether the database answers, for as long as it does not.
pub(crate) async fn trouble(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, other) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    let held = take(&other, "a", TTL).await;
    let lock = rowlock.lock("a").holder("first");
    let short = lock.clone().wait(Duration::from_millis(300));
    proxy.set(Mode::Closed);
    let first = tokio::spawn(async move { lock.acquire().await });
    eventually("the others are told", async || {
        matches!(short.acquire().await, Err(Error::Unreachable { .. }))
    })
    .await;
    proxy.set(Mode::Pass);
    queue_is(&other, "a", &["first"]).await;
    eventually("it is over", async || {
        matches!(short.acquire().await, Err(Error::WaitTimeout { .. }))
    })
    .await;
    release(&held).await;
    release(&first.await.unwrap().unwrap()).await;
    db.remove().await;
}

/// Cuts the next answer from some moment on, within the time that a few requests take.
async fn cut_soon(proxy: &Proxy) {
    let time = rand::rng().random_range(0..4_000);
    tokio::time::sleep(Duration::from_micros(time)).await;
    proxy.set(Mode::CutNextAnswer);
}
