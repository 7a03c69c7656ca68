//! Promise 7 (unknown is a state) and promise 4 (bounded trust) over connections that break.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rowlock::{
    Begun, Engine, Error, Fingerprint, Loss, Outcome, ReleaseOutcome, Retry, Rowlock, StepFailed,
};
use rowlock_test::{Db, eventually, on_app, take};

use crate::proxy::{Mode, Proxy};

/// The same database through a proxy.
pub(crate) async fn through_proxy(db: &Db) -> (Proxy, String) {
    let at = db.url.find("127.0.0.1:").expect("a server on loopback") + "127.0.0.1:".len();
    let end = at + db.url[at..].find('/').unwrap();
    let proxy = Proxy::start(db.url[at..end].parse().unwrap()).await;
    let url = format!("{}{}{}", &db.url[..at], proxy.port, &db.url[end..]);
    (proxy, url)
}

/// The same where the proxy reads what passes: nothing is encrypted. (The server has seen the password before.)
pub(crate) async fn through_readable_proxy(db: &Db) -> (Proxy, String) {
    let (proxy, url) = through_proxy(db).await;
    match db.engine {
        Engine::MySql | Engine::MariaDb => (proxy, format!("{url}?ssl-mode=disabled")),
        _ => (proxy, url),
    }
}

/// The answer to an acquire or a release is lost, after the server did it: what became of it is
/// found out, and nobody is told a wrong outcome.
pub(crate) async fn cut(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    for round in 0..20 {
        let lock = rowlock
            .lock(format!("n{}", round % 5))
            .ttl(Duration::from_mins(5));
        // On a new connection a statement is prepared first: the answer to be cut is that of its
        // execution.
        let _ = lock.acquire().await.unwrap().release().await.unwrap();
        proxy.set(Mode::CutNextAnswer);
        let held = lock
            .try_acquire()
            .await
            .unwrap()
            .held()
            .expect("nobody else wants it");
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
        let row = watcher
            .inspect(held.name().clone())
            .await
            .unwrap()
            .expect("it is in the table");
        assert_eq!(row.fence, held.fence(), "the grant is the one in the table");
        assert!(held.is_held() && held.remaining() <= row.remaining);
        let _ = held.release().await.unwrap();

        let held = lock.acquire().await.unwrap();
        proxy.set(Mode::CutNextAnswer);
        assert_eq!(held.release().await.unwrap(), ReleaseOutcome::Released);
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
        assert_eq!(watcher.inspect(held.name().clone()).await.unwrap(), None);
    }
    // Entering again, and leaving it, asks nobody: there is no answer to be cut.
    let me = rowlock.owner();
    let lock = rowlock.lock("nested").owner(&me);
    let outer = lock.acquire().await.unwrap();
    proxy.set(Mode::CutNextAnswer);
    for _ in 0..10 {
        let inner = lock.acquire().await.unwrap();
        assert_eq!(inner.release().await.unwrap(), ReleaseOutcome::Released);
    }
    assert_eq!(proxy.mode(), Mode::CutNextAnswer, "nothing was asked");
    proxy.set(Mode::Pass);
    assert!(outer.is_held());
    drop(outer);
    rowlock.flush().await;
    assert_eq!(watcher.list().await.unwrap(), []);
    db.remove().await;
}

/// Waits until the client has a connection for its renewals, so that what comes next is said on the lanes only.
async fn renewals_are_connected(rowlock: &Rowlock) {
    let lock = rowlock.lock("renewed").ttl(Duration::from_secs(3));
    let held = lock.acquire().await.unwrap();
    let first = held.deadline();
    eventually("a renewal is confirmed", async || held.deadline() > first).await;
    let _ = held.release().await.unwrap();
}

/// The connection breaks under a statement for more than 100 acquires: what became of them is found out with a few
/// statements for all of them.
pub(crate) async fn shared_after_a_cut(engine: Engine) {
    const COUNT: usize = 256;
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    renewals_are_connected(&rowlock).await;
    let lock = |n| rowlock.lock(format!("n{n}")).ttl(Duration::from_mins(5));
    let locks: Vec<_> = (0..COUNT).map(lock).collect();
    for armed in [false, true] {
        let mut takes: Vec<_> = locks.iter().map(|lock| Box::pin(lock.acquire())).collect();
        // One acquire is under way on each lane, and all others gather behind them.
        proxy.set(Mode::HoldAnswers);
        let hand_in = std::future::poll_fn(|cx| {
            for take in &mut takes {
                assert!(take.as_mut().poll(cx).is_pending());
            }
            std::task::Poll::Ready(())
        });
        tokio::task::unconstrained(hand_in).await;
        let before = proxy.requests();
        proxy.set(if armed {
            Mode::CutNextAnswer
        } else {
            Mode::Pass
        });
        let mut held = Vec::new();
        for take in takes {
            held.push(take.await.unwrap());
        }
        let said = proxy.requests() - before;
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
        assert!(
            said < 60,
            "{said} requests for {COUNT} acquires, cut: {armed}"
        );
        assert!(held.iter().all(rowlock::Held::is_held));
        assert_eq!(watcher.list().await.unwrap().len(), COUNT);
        drop(held);
        rowlock.flush().await;
        assert_eq!(watcher.list().await.unwrap(), []);
    }
    db.remove().await;
}

/// The first sending of an acquire is on its way for long. A second one was answered, and what it granted was
/// released, when the first one arrives: the name is free again within moments, not after the TTL.
pub(crate) async fn late_sending(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    renewals_are_connected(&rowlock).await;
    let ttl = Duration::from_mins(5);
    for granted in [true, false] {
        let lock = rowlock.lock("a").ttl(ttl);
        // Everything is prepared: what is kept is the statement that grants.
        let _ = lock.acquire().await.unwrap().release().await.unwrap();
        rowlock.flush().await;
        let other = if granted {
            None
        } else {
            Some(watcher.lock("a").ttl(ttl).acquire().await.unwrap())
        };
        proxy.set(Mode::KeepNextRequest);
        let held = lock.try_acquire().await.unwrap().held();
        assert_eq!(proxy.mode(), Mode::Pass, "a request was kept");
        assert_eq!(held.is_some(), granted, "what the second sending found");
        let holder = held.or(other).unwrap();
        let fence = holder.fence();
        let outcome = holder.release().await.unwrap();
        assert_eq!(outcome, ReleaseOutcome::Released);
        rowlock.flush().await;
        // What undoes the first sending comes several times before it.
        let said = proxy.requests();
        eventually("it is undone again and again", async || {
            proxy.requests() > said + 2
        })
        .await;
        // An undo has the row locked for a moment, on MySQL and MariaDB also when it is not its own: the first sending would
        // pass it over. So it comes between two of them.
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

/// The claim of a key reaches the server when its caller has given up: it runs for nobody, and is undone.
pub(crate) async fn late_claim(engine: Engine) {
    const HOLDER: &str = "the late one";
    let db = Db::new(engine).await;
    let (proxy, url) = through_readable_proxy(&db).await;
    let builder = Rowlock::builder().holder(HOLDER);
    let builder = builder.operation_timeout(Duration::from_secs(1));
    let (rowlock, watcher) = (builder.connect(&url).await.unwrap(), db.rowlock().await);
    let request = Fingerprint::of("request");
    let lease = Duration::from_mins(5);
    // MySQL and MariaDB look whether the key is locked before they claim it.
    let behind = u32::from(engine != Engine::Postgres);
    proxy.set(Mode::KeepRequestWith(HOLDER, behind));
    let idempotency = rowlock.idempotency().lease(lease);
    let begun = idempotency.begin("s", "k", &request).await;
    assert!(
        matches!(begun, Err(Error::OutcomeUnknown { .. })),
        "{begun:?}"
    );
    assert_eq!(proxy.mode(), Mode::Silent, "a request was kept");
    proxy.set(Mode::Pass);
    // What undoes it comes before it.
    rowlock.flush().await;
    let records = "SELECT COUNT(*) FROM rowlock_idempotency";
    assert_eq!(db.number(records).await, 0);
    proxy.deliver().await;
    assert_eq!(db.number(records).await, 1, "the key was claimed");
    let idempotency = watcher.idempotency().lease(lease);
    eventually("the key is free", async || {
        let begun = idempotency.begin("s", "k", &request).await.unwrap();
        matches!(begun, Begun::New(_))
    })
    .await;
    db.remove().await;
}

/// Answers come late: the deadline is counted from before the request was sent, not from its answer.
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
        // Looked at later, and so no more.
        let here = held.remaining();
        assert!(here <= row, "{here:?} here, {row:?} in the row");
        if round == 0 {
            let first = held.deadline();
            eventually("a renewal is confirmed", async || held.deadline() > first).await;
        }
    }
    proxy.set(Mode::Pass);
    let _ = held.release().await.unwrap();
    db.remove().await;
}

/// A lease that was lost is not asked for again, however long its guard stays.
pub(crate) async fn quiet(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    let held = rowlock
        .lock("a")
        .ttl(Duration::from_secs(3))
        .acquire()
        .await
        .unwrap();
    assert!(watcher.force_release("a").await.unwrap().is_some());
    assert_eq!(held.lost().await, Loss::TakenOver);
    let before = proxy.requests();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let said = proxy.requests() - before;
    assert!(
        said <= 2,
        "{said} requests in half a second, for a lease that is lost"
    );
    drop(held);
    rowlock.flush().await;
    db.remove().await;
}

/// The network swallows everything and closes nothing: every call ends in its time, the lease is lost by
/// its deadline, and when the network is back, so is the client.
pub(crate) async fn silence(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let builder = Rowlock::builder().operation_timeout(Duration::from_millis(500));
    let (rowlock, watcher) = (builder.connect(&url).await.unwrap(), db.rowlock().await);
    let ttl = Duration::from_millis(1_500);
    let held = rowlock.lock("a").ttl(ttl).acquire().await.unwrap();

    proxy.set(Mode::Silent);
    let started = Instant::now();
    let error = rowlock.lock("b").try_acquire().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::OutcomeUnknown { .. } | Error::Unreachable { .. }
        ),
        "{error}"
    );
    let took = started.elapsed();
    assert!(
        took < Duration::from_millis(1_500),
        "{took:?} for a timeout of 500 ms"
    );
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
    assert!(deadline.has_passed() && deadline.to_instant().elapsed() < Duration::from_millis(200));
    eventually("the name is free for others", async || {
        watcher
            .lock("a")
            .try_acquire()
            .await
            .unwrap()
            .held()
            .is_some()
    })
    .await;

    proxy.set(Mode::Pass);
    let again = rowlock
        .lock("a")
        .wait(Duration::from_secs(5))
        .acquire()
        .await
        .unwrap();
    assert!(again.fence() > held.fence());
    drop((held, again));
    rowlock.flush().await;
    // What was in doubt in the silence was undone.
    eventually("nothing is left", async || {
        watcher.list().await.unwrap().is_empty()
    })
    .await;
    db.remove().await;
}

/// The answer to whatever is asked of a record is lost, after the server did it: each step happens once, each outcome is kept
/// once, and nobody is told a wrong one.
pub(crate) async fn records(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, watcher) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    let (idempotency, watcher) = (rowlock.idempotency(), watcher.idempotency());
    let request = Fingerprint::of("request");
    let charges = AtomicU32::new(0);
    for round in 0..40_u32 {
        let key = format!("k{round}");
        let cut = |place: u32| {
            if round % 5 == place {
                proxy.set(Mode::CutNextAnswer);
            }
        };
        cut(0);
        let begun = idempotency.begin("scope", &key, request).await.unwrap();
        let Begun::New(guard) = begun else {
            panic!("{key}: {begun:?}")
        };
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
        cut(1);
        let charge = async {
            // Nobody else counts: what is done twice is seen.
            let number = charges.fetch_add(1, Ordering::SeqCst);
            cut(2);
            Ok::<u32, StepFailed<Error>>(number)
        };
        assert_eq!(guard.step_once("charge", charge).await.unwrap(), round);
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
        cut(3);
        if round % 2 == 0 {
            guard
                .complete(&Outcome::json(&round).unwrap())
                .await
                .unwrap();
        } else {
            guard.release().await.unwrap();
            let again = idempotency.begin("scope", &key, request).await.unwrap();
            let Begun::New(guard) = again else {
                panic!("{key}: {again:?}")
            };
            let charge =
                async { Ok::<u32, StepFailed<Error>>(charges.fetch_add(1, Ordering::SeqCst)) };
            assert_eq!(guard.step_once("charge", charge).await.unwrap(), round);
            guard
                .complete(&Outcome::json(&round).unwrap())
                .await
                .unwrap();
        }
        cut(4);
        for idempotency in [&idempotency, &watcher] {
            let begun = idempotency.begin("scope", &key, request).await.unwrap();
            let Begun::Replay(outcome) = begun else {
                panic!("{key}: {begun:?}")
            };
            assert_eq!(outcome.parse_json::<u32>().unwrap(), round);
        }
        assert_eq!(proxy.mode(), Mode::Pass, "an answer was cut");
    }
    assert_eq!(charges.into_inner(), 40);
    db.remove().await;
}

/// As behind a pooler: while the application's transactions have all connections to the server, rowlock's own ones get
/// no answer.
pub(crate) async fn starved(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let (rowlock, other) = (Rowlock::connect(&url).await.unwrap(), db.rowlock().await);
    drop(other.version("old").await.unwrap());
    // The client has seen a lease of a name that is free by now.
    let leased = take(&other, "leased", Duration::from_secs(30)).await;
    assert!(rowlock.version("leased").await.unwrap().holder().is_some());
    let _ = leased.release().await.unwrap();

    // Without a second attempt it ends in time, and says why.
    let mut tx = db.begin().await;
    proxy.set(Mode::Silent);
    let started = Instant::now();
    let error = tx.try_lock(&rowlock, "new").await.unwrap_err();
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "before the operation's time is over"
    );
    assert!(
        matches!(error, Error::Starved { .. }) && error.is_retryable(),
        "{error}"
    );
    assert!(error.to_string().contains("pooler"), "{error}");
    let error = tx.version(&rowlock, "newer").await.unwrap_err();
    assert!(matches!(error, Error::Starved { .. }), "{error}");
    // A row that is there already can be read, and locked where a look at it locks nothing.
    drop(tx.version(&rowlock, "old").await.unwrap());
    if engine == Engine::Postgres {
        tx.lock(&rowlock, "old").await;
    }
    // And where the row is known to be there.
    tx.lock(&rowlock, "leased").await;
    tx.release().await;

    // Many rows are made together, and none when nobody tries again.
    for (attempts, most) in [(1, 4), (2, 14)] {
        let started = Instant::now();
        let names: Vec<_> = (0..6).map(|n| format!("{attempts} {n}")).collect();
        let policy = Retry::new().attempts(attempts);
        let (rowlock, names) = (&rowlock, &names);
        let locked = on_app!(&db.app, pool => policy.run(pool, |mut tx| async move {
            rowlock.in_tx(&mut tx).lock_all(names.clone()).acquire().await
        }).await);
        let error = locked.unwrap_err();
        assert!(matches!(error, Error::Starved { .. }), "{error}");
        let took = started.elapsed();
        assert!(took < Duration::from_secs(most), "{attempts}: {took:?}");
    }

    // A server that cannot be reached at all is another matter, which no other attempt mends.
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

    // With one, the rows are made when the transactions have given their connections back.
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
    let done = tokio::time::timeout(Duration::from_secs(20), Box::pin(orders)).await;
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

/// The connections to the server, which is what the application's pool has.
const ALL: u32 = 4;

/// One of them. When all are taken, nobody else gets an answer.
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
