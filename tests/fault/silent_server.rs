//! A server that accepts connections, and says nothing.

use std::time::{Duration, Instant};

use rowlock::{Engine, Error, Lock, Rowlock};
use rowlock_test::{Db, Mode, Proxy, connected, loss, patience, through_readable_proxy};

/// The server that a lane comes to after a failover lets it log in, and is silent when it is asked what it takes: an
/// operation that waits ends in its own time.
pub(crate) async fn after_login(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_readable_proxy(&db).await;
    let timeout = Duration::from_secs(4);
    let rowlock = Rowlock::builder().operation_timeout(timeout);
    let rowlock = connected(&rowlock, &url).await;
    let lock = rowlock.lock("a").ttl(Duration::from_mins(5));
    let _ = loss(lock.acquire().await.unwrap().release().await);

    // One that has a time of its own for the second server takes half as long again, however idle the machine is.
    let began = Instant::now();
    while failover(&proxy, &lock, timeout).await >= timeout * 3 / 2 {
        assert!(began.elapsed() < patience(), "it always takes longer");
    }
    drop(rowlock);
    db.remove().await;
}

/// How long an acquire takes whose first server goes away, and whose second one is silent after the login.
async fn failover(proxy: &Proxy, lock: &Lock, timeout: Duration) -> Duration {
    proxy.set(Mode::Closed);
    let began = Instant::now();
    let second = async {
        tokio::time::sleep(timeout / 2).await;
        proxy.set(Mode::SilentFrom("max_allowed_packet"));
    };
    let (acquired, ()) = tokio::join!(lock.try_acquire(), second);
    let took = began.elapsed();
    let error = acquired.unwrap_err();
    let is_told = matches!(
        error,
        Error::OutcomeUnknown { .. } | Error::Unreachable { .. }
    );
    assert!(is_told, "{error}");
    assert_eq!(proxy.mode(), Mode::Silent, "the server was asked");
    // When it speaks again, so does the client.
    proxy.set(Mode::Pass);
    let again = lock.clone().wait(patience()).acquire().await.unwrap();
    let _ = loss(again.release().await);
    took
}
