//! The verbs on rowlock's own connections.

use std::time::Duration;

use rowlock::extend::raise_fence;
use rowlock::{
    Begun, Error, Fingerprint, LockInfo, NameFilter, NameState, Rowlock, Scope, StepFailed,
};
use rowlock_recipes::job::Job;
use rowlock_test::{
    begin, begin_new, eventually, join, outcome, patience, queue_is, queue_of, release, take, turns,
};
use tokio::task::JoinSet;

use crate::exercise::{Shop, TTL};

/// Nobody has the name, as another client sees it.
async fn is_free(shop: &Shop, name: &str) -> bool {
    shop.one.flush().await;
    shop.two.inspect(name).await.unwrap().is_none()
}

pub(crate) async fn locks(shop: &Shop) {
    let held = take(&shop.one, "a", TTL).await;
    assert!(shop.two.lock("a").try_acquire().await.unwrap().is_none());
    let seen = shop.two.inspect("a").await.unwrap().unwrap();
    assert_eq!(seen.fence, held.fence());
    release(&held).await;
    let next = take(&shop.two, "a", TTL).await;
    assert!(next.fence() > held.fence() && held.loss().is_none());
    assert!(shop.one.admin().force_release("a").await.unwrap().is_some());
    assert!(is_free(shop, "a").await);
    drop(next);
}

/// Another client sees each renewal: it was committed.
pub(crate) async fn renewals(shop: &Shop) {
    let held = take(&shop.one, "renewed", Duration::from_secs(3)).await;
    let first = shop
        .two
        .inspect("renewed")
        .await
        .unwrap()
        .unwrap()
        .expires_at;
    eventually("a renewal is seen", async || {
        let seen = shop.two.inspect("renewed").await.unwrap().unwrap();
        seen.expires_at > first
    })
    .await;
    release(&held).await;
}

pub(crate) async fn batches(shop: &Shop) {
    let mut tasks = JoinSet::new();
    for n in 0..40 {
        let lock = shop.one.lock(format!("batch {n}"));
        tasks.spawn(async move { lock.try_acquire().await.unwrap().expect("it is free") });
    }
    let held = tasks.join_all().await;
    let seen = shop.two.admin().list().await.unwrap();
    let is_one = |lock: &&LockInfo| lock.name.as_str().starts_with("batch ");
    assert_eq!(seen.iter().filter(is_one).count(), held.len());
    let mut tasks = JoinSet::new();
    for held in held {
        tasks.spawn(async move { release(&held).await });
    }
    tasks.join_all().await;
    assert!(is_free(shop, "batch 39").await);
}

pub(crate) async fn queue(shop: &Shop) {
    let held = take(&shop.one, "queue", TTL).await;
    let waiting = [
        join(&shop.two, "queue", "x").await,
        join(&shop.one, "queue", "y").await,
    ];
    queue_is(&shop.two, "queue", &["x", "y"]).await;
    release(&held).await;
    assert_eq!(turns(waiting).await, [0, 1]);
    let held = take(&shop.one, "queue", TTL).await;
    let short = shop
        .two
        .lock("queue")
        .wait(Duration::from_millis(50))
        .acquire()
        .await;
    assert!(matches!(short, Err(Error::WaitTimeout { .. })), "{short:?}");
    release(&held).await;
}

pub(crate) async fn many_names(shop: &Shop) {
    let names = ["m1", "m2", "m3", "m4", "m5"];
    let held = shop.one.multi_lock(names).acquire().await.unwrap();
    assert_eq!(held.fences().count(), names.len());
    let busy = shop
        .two
        .multi_lock(["m5", "m6"])
        .try_acquire()
        .await
        .unwrap();
    assert!(busy.is_none());
    held.release().await.unwrap();
    assert!(is_free(shop, "m5").await);
}

/// So many wait that a list of them is long.
pub(crate) async fn readers_and_writers(shop: &Shop) {
    let lock = |rowlock: &Rowlock| rowlock.rw_lock("catalog").ttl(Duration::from_mins(5));
    let writer = lock(&shop.one).write().await.unwrap();
    let mut readers = JoinSet::new();
    for _ in 0..25 {
        let lock = lock(&shop.two);
        readers.spawn(async move { lock.read().await });
    }
    eventually("they wait", async || {
        queue_of(&shop.one, "catalog").await.len() == 25
    })
    .await;
    release(&writer).await;
    for reader in readers.join_all().await {
        release(&reader.unwrap()).await;
    }
    let writer = lock(&shop.two).try_write().await.unwrap();
    release(&writer.expect("nobody reads")).await;
}

pub(crate) async fn semaphores(shop: &Shop) {
    let of = |rowlock: &Rowlock| rowlock.semaphore("s", 2).ttl(TTL);
    let permits = [
        of(&shop.one).acquire().await.unwrap(),
        of(&shop.two).acquire().await.unwrap(),
    ];
    assert!(of(&shop.one).try_acquire().await.unwrap().is_none());
    assert_eq!(
        shop.one.semaphore("s", 3).set_capacity().await.unwrap(),
        Some(2)
    );
    let third = shop.two.semaphore("s", 3).try_acquire().await.unwrap();
    assert_eq!(shop.one.admin().holders("s").await.unwrap().len(), 3);
    for permit in permits.iter().chain(&third) {
        release(permit).await;
    }
    assert!(third.is_some());
    assert_eq!(shop.one.admin().holders("s").await.unwrap().len(), 0);
}

pub(crate) async fn lists(shop: &Shop) {
    let mut held = Vec::new();
    for n in 0..5 {
        held.push(take(&shop.one, &format!("list {n}"), TTL).await);
    }
    let _waiting = join(&shop.two, "list 0", "w").await;
    let listed = shop.two.admin().list().await.unwrap();
    assert_eq!(
        listed
            .iter()
            .filter(|lock| lock.name.as_str().starts_with("list "))
            .count(),
        5
    );
    assert_eq!(shop.one.admin().queue("list 0").await.unwrap().len(), 1);
    assert!(!shop.one.admin().sessions().await.unwrap().is_empty());
    for held in &held {
        release(held).await;
    }
}

pub(crate) async fn sessions(shop: &Shop) {
    let db = &shop.db;
    let client = db.rowlock().await;
    let held = client.lock("session").in_session().acquire().await.unwrap();
    assert!(
        shop.two
            .lock("session")
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    client.end_session().await.unwrap();
    assert!(!held.is_held());
    release(&take(&shop.two, "session", TTL).await).await;
    client.shutdown(patience()).await;
}

pub(crate) async fn holds(shop: &Shop) {
    let held = take(&shop.one, "hold", TTL).await;
    let raised = raise_fence(&held, held.fence() + 1_000).await.unwrap();
    held.release_in(Duration::from_millis(100)).await.unwrap();
    let next = shop.two.lock("hold").acquire().await.unwrap();
    assert!(next.fence() > raised);
    release(&next).await;
    assert!(shop.one.admin().forget("hold").await.unwrap());
    assert!(!shop.one.admin().forget("hold").await.unwrap());
}

pub(crate) async fn deadlocks(shop: &Shop) {
    let (one, two) = (shop.one.owner().named("one"), shop.two.owner().named("two"));
    let lock = |name| shop.one.lock(name).owner(&one);
    let other = |name| shop.two.lock(name).owner(&two).holder("two");
    let (x, y) = (
        lock("x").acquire().await.unwrap(),
        other("y").acquire().await.unwrap(),
    );
    let waiting = tokio::spawn({
        let lock = lock("y").holder("one");
        async move { lock.acquire().await }
    });
    queue_is(&shop.two, "y", &["one"]).await;
    let circle = other("x").acquire().await;
    assert!(matches!(circle, Err(Error::Deadlock { .. })), "{circle:?}");
    release(&y).await;
    release(&waiting.await.unwrap().unwrap()).await;
    release(&x).await;
}

pub(crate) async fn jobs(shop: &Shop) {
    let job = Job::new(&shop.one, "job").at_least_for(TTL);
    let ran = job.run(async |_| Ok::<_, Error>(7)).await.unwrap();
    assert_eq!(ran.here(), Some(7));
    let again = Job::new(&shop.two, "job").at_least_for(TTL);
    let again = again.run(async |_| Ok::<_, Error>(8)).await.unwrap();
    assert_eq!(again.here(), None);
    let runs = shop.two.admin().runs().await.unwrap();
    assert_eq!(
        runs.iter().filter(|run| run.name.as_str() == "job").count(),
        1
    );
}

pub(crate) async fn keys(shop: &Shop) {
    let (one, two) = (shop.one.idempotency(), shop.two.idempotency());
    let guard = begin_new(&one, "key").await;
    let other = begin(&two, "key").await;
    assert!(matches!(other, Begun::InFlight(_)), "{other:?}");
    guard.complete(&outcome("done")).await.unwrap();
    let Begun::Replay(replay) = begin(&two, "key").await else {
        panic!("replay")
    };
    assert_eq!(replay.bytes(), b"done");
    let other = two
        .begin(Scope("scope").key("key"), &Fingerprint::of("other"))
        .await
        .unwrap();
    assert!(matches!(other, Begun::Mismatch), "{other:?}");
    begin_new(&one, "given back").await.release().await.unwrap();
    begin_new(&two, "given back")
        .await
        .complete(&outcome("done"))
        .await
        .unwrap();
}

pub(crate) async fn steps(shop: &Shop) {
    let guard = begin_new(&shop.one.idempotency(), "steps").await;
    let step = guard
        .step("ship", async { Ok::<_, Error>(7) })
        .await
        .unwrap();
    let again = guard
        .step("ship", async { Ok::<_, Error>(8) })
        .await
        .unwrap();
    assert_eq!((step, again), (7, 7));
    let once = guard
        .step_once("charge", async { Ok::<_, StepFailed<Error>>(9) })
        .await
        .unwrap();
    assert_eq!(once, 9);
    guard.complete(&outcome("done")).await.unwrap();
}

pub(crate) async fn quarantine(shop: &Shop) {
    let left = shop
        .one
        .admin()
        .quarantine(Duration::from_mins(10))
        .await
        .unwrap();
    assert!(left > Duration::from_mins(5));
    let refused = shop.two.lock("q").try_acquire().await.unwrap();
    assert!(refused.is_none());
    let mut tx = shop.app.begin().await;
    let refused = tx.try_lock(&shop.one, "q").await.unwrap();
    assert!(refused.locked().is_none());
    tx.release().await;
    assert!(shop.two.admin().end_quarantine().await.unwrap());
    release(&take(&shop.two, "q", TTL).await).await;
}

pub(crate) async fn pauses(shop: &Shop) {
    let (ops, time) = (shop.one.admin(), Duration::from_mins(10));
    for time in [None, Some(time)] {
        let pause = ops.pause("p", time, "ein Umzug \u{fc}ber Nacht").await;
        let pause = pause.unwrap();
        let is_left = |left: Duration| left <= time.unwrap() && left > time.unwrap() / 2;
        assert!(pause.remaining.is_none_or(is_left), "{pause:?}");
        assert_eq!(pause.until.is_some(), time.is_some());
        assert!(shop.two.lock("p").try_acquire().await.unwrap().is_none());
        let mut tx = shop.app.begin().await;
        let refused = tx.try_lock(&shop.two, "p").await.unwrap();
        assert!(refused.locked().is_none());
        tx.release().await;
    }
    let paused = NameFilter::new().state(NameState::Paused);
    assert_eq!(ops.names(&paused).await.unwrap().items.len(), 1);
    assert!(shop.two.admin().resume("p").await.unwrap());
    release(&take(&shop.two, "p", TTL).await).await;
}

/// Everything that the steps before have left.
pub(crate) async fn cleaning(shop: &Shop) {
    let ago = shop.db.moved(shop.db.past().as_str(), -500 * 24 * 3_600);
    for sql in [
        "UPDATE rowlock_idempotency SET clean_at = {ago}, retain_until = {ago}, forget_at = {ago} WHERE state = 'done'",
        "UPDATE rowlock_form_token SET expires_at = {ago}",
    ] {
        shop.db.execute(&sql.replace("{ago}", &ago)).await;
    }
    shop.one.admin().clean_all(7).await.unwrap();
    let done = "SELECT COUNT(*) FROM rowlock_idempotency WHERE state = 'done'";
    assert_eq!(shop.db.number(done).await, 0);
    let tokens = "SELECT COUNT(*) FROM rowlock_form_token";
    assert_eq!(shop.db.number(tokens).await, 0);
}
