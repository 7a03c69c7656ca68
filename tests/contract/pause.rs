//! A paused name is granted to nobody until the pause ends. Who holds it keeps it, and who waits goes on waiting.

use std::time::Duration;

use rowlock::{Advance, Busy, Error, InvalidError, NameFilter, NameState, PauseInfo, Rowlock};
use rowlock_test::{
    Db, TryLock, busy, eventually, join, on_app, on_every_engine, queue_is, release, renewed, take,
    turns,
};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

/// Longer than a test.
const LONG: Duration = Duration::from_mins(10);

const WHY: &str = "the archive is being moved";

/// The client that pauses.
async fn operator(db: &Db) -> Rowlock {
    let operator = Rowlock::builder().holder("ops");
    operator.connect(&db.url).await.unwrap()
}

/// Pauses a name until it is resumed.
async fn pause(operator: &Rowlock, name: &str) {
    operator.admin().pause(name, None, WHY).await.unwrap();
}

async fn resume(operator: &Rowlock, name: &str) {
    assert!(operator.admin().resume(name).await.unwrap());
}

/// The pauses of all names.
async fn paused(rowlock: &Rowlock) -> Vec<PauseInfo> {
    let paused = NameFilter::new().state(NameState::Paused);
    let page = rowlock.admin().names(&paused).await.unwrap();
    page.items
        .into_iter()
        .filter_map(|info| info.pause)
        .collect()
}

/// What is in the way is a pause without an end.
fn is_paused(busy: &Busy) {
    let pause = busy.pause.as_ref().expect("it tells of the pause");
    assert_eq!((pause.by.as_str(), pause.why.as_str()), ("ops", WHY));
    assert_eq!(
        (&pause.name, pause.until, pause.remaining),
        (&busy.name, None, None)
    );
    let said = busy.to_string();
    let paused = "paused by ops until it is resumed (the archive is being moved)";
    assert!(said.contains(paused), "{said}");
}

/// The request is refused because of the pause.
fn refused<H: std::fmt::Debug>(asked: Result<H, Error>) {
    let busy = busy(asked);
    is_paused(&busy);
    assert!(busy.holder.is_none(), "{busy}");
}

/// No transaction was granted it: it has to begin again, or its time is over.
fn gave_way<T: std::fmt::Debug>(locked: Result<T, Error>) {
    match locked {
        Err(Error::Conflict { .. }) => {}
        locked => is_paused(&busy(locked)),
    }
}

on_every_engine! {
    async fn no_lease_of_it_is_granted(db: &Db) {
        let (one, two, ops) = (db.rowlock().await, db.rowlock().await, operator(db).await);
        for name in ["free", "expired", "other"] {
            release(&take(&one, name, TTL).await).await;
        }
        std::mem::forget(take(&one, "expired", TTL).await);
        let expired = db.bytes("expired");
        db.execute(&format!("UPDATE rowlock_lock SET expires_at = acquired_at WHERE name = {expired}")).await;
        for name in ["free", "expired", "never used"] {
            pause(&ops, name).await;
        }
        for rowlock in [&one, &two, &db.rowlock().await] {
            for name in ["free", "expired", "never used"] {
                assert!(rowlock.lock(name).try_acquire().await.unwrap().is_none());
                refused(rowlock.lock(name).wait(Duration::ZERO).acquire().await);
                refused(rowlock.lock(name).wait(Duration::from_millis(30)).acquire().await);
                refused(rowlock.lock(name).in_session().wait(Duration::ZERO).acquire().await);
                refused(rowlock.lock(name).max_hold(TTL).wait(Duration::from_millis(30)).acquire().await);
                refused(rowlock.lock(name).linger(Duration::from_secs(1)).wait(Duration::ZERO).acquire().await);
            }
            refused(rowlock.multi_lock(["free", "other"]).wait(Duration::ZERO).acquire().await);
        }
        // (What the last one has got of it comes back in the background.)
        eventually("nobody has it", async || ops.inspect("other").await.unwrap().is_none()).await;
        release(&take(&two, "other", TTL).await).await;
        for name in ["free", "expired", "never used"] {
            resume(&ops, name).await;
            assert!(!ops.admin().resume(name).await.unwrap());
            release(&take(&two, name, TTL).await).await;
        }
    }

    async fn a_batch_of_releases_and_acquires_grants_nothing_of_it(db: &Db) {
        let (one, ops) = (db.rowlock().await, operator(db).await);
        let mut held = Vec::new();
        for n in 0..30 {
            held.push(take(&one, &format!("h{n}"), TTL).await);
            release(&take(&one, &format!("f{n}"), TTL).await).await;
            for name in [format!("h{n}"), format!("f{n}"), format!("new{n}")] {
                pause(&ops, &name).await;
            }
        }
        let mut tasks = JoinSet::new();
        for (n, held) in held.into_iter().enumerate() {
            tasks.spawn(async move { release(&held).await });
            for name in [format!("f{n}"), format!("new{n}")] {
                let alike = one.lock(name.clone());
                let other = one.lock(name).ttl(TTL + Duration::from_secs(n as u64));
                for lock in [alike, other] {
                    tasks.spawn(async move { refused(lock.wait(Duration::ZERO).acquire().await) });
                }
            }
        }
        tasks.join_all().await;
        assert_eq!(one.admin().list().await.unwrap(), []);
        assert_eq!(paused(&one).await.len(), 90);
    }

    async fn no_transaction_locks_or_advances_it(db: &Db) {
        let (one, ops) = (db.rowlock().await, operator(db).await);
        for name in ["a", "b"] {
            release(&take(&one, name, TTL).await).await;
        }
        let seen = one.version("a").await.unwrap();
        for name in ["a", "never used"] {
            pause(&ops, name).await;
        }
        for rowlock in [&one, &db.rowlock().await] {
            for name in ["a", "never used"] {
                let mut tx = db.begin().await;
                match tx.try_lock(rowlock, name).await.unwrap() {
                    TryLock::Busy(busy) => is_paused(&busy),
                    TryLock::Locked(locked) => panic!("{locked:?}"),
                }
                tx.release().await;
                let mut tx = db.begin().await;
                gave_way(tx.acquire(rowlock, name, Duration::from_millis(50)).await);
                tx.release().await;
            }
            let mut tx = db.begin().await;
            match tx.lock_all(rowlock, &["a", "b"]).await.unwrap() {
                TryLock::Busy(busy) => is_paused(&busy),
                TryLock::Locked(locked) => panic!("{locked:?}"),
            }
            tx.release().await;
            for seen in [&seen, &rowlock.version("a").await.unwrap()] {
                let mut tx = db.begin().await;
                assert_eq!(tx.advance(rowlock, seen).await.unwrap(), Advance::Conflict);
                tx.release().await;
            }
        }
        resume(&ops, "a").await;
        let mut tx = db.begin().await;
        assert!(matches!(tx.advance(&one, &seen).await.unwrap(), Advance::Granted { .. }), "nobody was granted it");
        tx.release().await;
    }

    async fn a_transaction_is_granted_it_after_the_pause(db: &Db) {
        let (one, ops) = (db.rowlock().await, operator(db).await);
        release(&take(&one, "a", TTL).await).await;
        pause(&ops, "a").await;
        let app = db.app.clone();
        let waiting = tokio::spawn(async move {
            on_app!(&app, pool => one.retry().run(pool, |mut tx| {
                let rowlock = one.clone();
                async move { rowlock.in_tx(&mut tx).lock("a").acquire().await.map(|locked| locked.fence()) }
            }).await)
        });
        // Work, not an event: it asks for a while.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!waiting.is_finished());
        resume(&ops, "a").await;
        assert!(waiting.await.unwrap().unwrap() > 0);
    }

    async fn no_permit_of_it_is_granted(db: &Db) {
        let (one, two, ops) = (db.rowlock().await, db.rowlock().await, operator(db).await);
        let mut reader = one.rw_lock("rw").read().await.unwrap();
        let permit = one.semaphore("s", 3).acquire().await.unwrap();
        for name in ["rw", "s"] {
            pause(&ops, name).await;
        }
        for rowlock in [&one, &two] {
            assert!(rowlock.semaphore("s", 3).try_acquire().await.unwrap().is_none());
            refused(rowlock.semaphore("s", 3).wait(Duration::ZERO).acquire().await);
            refused(rowlock.semaphore("s", 3).wait(Duration::from_millis(30)).acquire().await);
            refused(rowlock.rw_lock("rw").wait(Duration::ZERO).read().await);
            refused(rowlock.rw_lock("rw").wait(Duration::ZERO).write().await);
        }
        assert!(!reader.try_upgrade().await.unwrap(), "a writer is granted the name");
        // A waiter is granted nothing by a release, or by more capacity.
        let waits = two.semaphore("s", 3).holder("w");
        let waiting = tokio::spawn(async move { waits.acquire().await });
        queue_is(&one, "s", &["w"]).await;
        release(&permit).await;
        one.semaphore("s", 5).set_capacity().await.unwrap();
        one.semaphore("s", 3).set_capacity().await.unwrap();
        queue_is(&one, "s", &["w"]).await;
        assert!(!waiting.is_finished());
        resume(&ops, "s").await;
        assert!(waiting.await.unwrap().unwrap().is_held());
        assert!(!reader.try_upgrade().await.unwrap());
        resume(&ops, "rw").await;
        assert!(reader.try_upgrade().await.unwrap());
    }

    async fn who_holds_it_keeps_it(db: &Db) {
        let (one, two, ops) = (db.rowlock().await, db.rowlock().await, operator(db).await);
        let ttl = Duration::from_secs(6);
        let held = take(&one, "lock", ttl).await;
        let session = one.lock("session").in_session().acquire().await.unwrap();
        let permit = one.semaphore("permit", 1).ttl(ttl).acquire().await.unwrap();
        let owner = one.owner();
        let entered = one.lock("owned").ttl(ttl).owner(&owner).acquire().await.unwrap();
        let all = ["lock", "session", "permit", "owned"];
        for name in all {
            pause(&ops, name).await;
        }
        for _ in 0..2 {
            for held in [&held, &permit, &entered] {
                renewed(held).await;
            }
        }
        let again = one.lock("owned").ttl(ttl).owner(&owner).try_acquire().await.unwrap();
        release(&again.expect("its owner has it")).await;
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        tx.commit().await.unwrap();
        // Both are told.
        let busy = busy(two.lock("lock").wait(Duration::ZERO).acquire().await);
        is_paused(&busy);
        assert_eq!(busy.holder.as_ref().map(|info| info.fence), Some(held.fence()), "{busy}");
        for held in [&held, &session, &permit, &entered] {
            assert!(held.is_held());
            release(held).await;
        }
        for name in ["lock", "session", "owned"] {
            refused(two.lock(name).wait(Duration::ZERO).acquire().await);
        }
        refused(two.semaphore("permit", 1).wait(Duration::ZERO).acquire().await);
    }

    async fn who_waits_is_granted_it_after_the_pause_in_the_same_order(db: &Db) {
        let (one, two, ops) = (db.rowlock().await, db.rowlock().await, operator(db).await);
        let held = take(&one, "a", TTL).await;
        let mut waiting = vec![join(&one, "a", "0").await, join(&two, "a", "1").await];
        pause(&ops, "a").await;
        release(&held).await;
        waiting.push(join(&one, "a", "2").await);
        assert!(two.inspect("a").await.unwrap().is_none());
        for _ in 0..5 {
            refused(two.lock("a").wait(Duration::ZERO).acquire().await);
        }
        queue_is(&two, "a", &["0", "1", "2"]).await;
        assert!(two.inspect("a").await.unwrap().is_none());
        // A waiter that leaves passes nothing on.
        waiting.remove(1).abort();
        queue_is(&two, "a", &["0", "2"]).await;
        assert!(two.inspect("a").await.unwrap().is_none());
        // Neither does the cleaner.
        ops.admin().clean_all(100).await.unwrap();
        queue_is(&two, "a", &["0", "2"]).await;
        resume(&ops, "a").await;
        let holder = two.inspect("a").await.unwrap().map(|info| info.holder);
        assert_eq!(holder.as_deref(), Some("0"), "it was passed on at once");
        assert_eq!(turns(waiting).await, [0, 1]);
    }

    async fn who_waits_is_granted_nothing_when_the_holder_dies(db: &Db) {
        let (one, two, ops) = (db.rowlock().await, db.rowlock().await, operator(db).await);
        std::mem::forget(take(&one, "lease", Duration::from_secs(30)).await);
        std::mem::forget(one.lock("session").in_session().acquire().await.unwrap());
        let waiting = [join(&two, "lease", "w").await, join(&two, "session", "w").await];
        for name in ["lease", "session"] {
            pause(&ops, name).await;
        }
        // Their times are over at once.
        let past = db.past();
        let ours = "id IN (SELECT session_id FROM rowlock_lock)";
        db.execute(&format!("UPDATE rowlock_session SET expires_at = {past} WHERE {ours}")).await;
        let lease = db.bytes("lease");
        db.execute(&format!("UPDATE rowlock_lock SET expires_at = {past} WHERE name = {lease}")).await;
        for name in ["lease", "session"] {
            eventually("nobody has it", async || ops.inspect(name).await.unwrap().is_none()).await;
            refused(ops.lock(name).wait(Duration::ZERO).acquire().await);
            ops.admin().force_release(name).await.unwrap();
            queue_is(&two, name, &["w"]).await;
            assert!(ops.inspect(name).await.unwrap().is_none());
            resume(&ops, name).await;
        }
        for waiting in waiting {
            release(&waiting.await.unwrap().unwrap()).await;
        }
    }

    async fn a_wait_ends_with_the_pause(db: &Db) {
        let (one, two, ops) = (db.rowlock().await, db.rowlock().await, operator(db).await);
        let before = take(&one, "a", TTL).await;
        release(&before).await;
        let time = Some(Duration::from_millis(1_500));
        for name in ["a", "s"] {
            if name == "s" {
                release(&one.semaphore(name, 1).acquire().await.unwrap()).await;
            }
            let pause = ops.admin().pause(name, time, WHY).await.unwrap();
            assert!(pause.remaining <= time && pause.until.is_some(), "{pause:?}");
        }
        let permit = two.semaphore("s", 1);
        let permit = tokio::spawn(async move { permit.acquire().await });
        let after = two.lock("a").wait(TTL).acquire().await.unwrap();
        let is_paused = paused(&one).await.iter().any(|pause| pause.name.to_string() == "a");
        assert!(!is_paused, "it was granted after the end");
        assert!(after.fence() > before.fence());
        assert!(permit.await.unwrap().unwrap().is_held());
        assert!(!ops.admin().resume("a").await.unwrap());
    }

    async fn another_pause_replaces_it(db: &Db) {
        let (one, ops) = (db.rowlock().await, operator(db).await);
        pause(&ops, "a").await;
        let pause = one.admin().pause("a", Some(LONG), "a test").await.unwrap();
        let remaining = pause.remaining.unwrap();
        assert!(remaining <= LONG && remaining > LONG / 2, "{remaining:?}");
        assert_eq!((pause.why.as_str(), pause.name.as_str()), ("a test", "a"));
        assert_ne!(pause.by, "ops");
        let all = paused(&ops).await;
        let [seen] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&seen.by, &seen.why, seen.until), (&pause.by, &pause.why, pause.until));
        let pause = one.admin().pause_by("a", None, "a test", "Ann").await.unwrap();
        assert_eq!((pause.by.as_str(), pause.until), ("Ann", None));
        for by in ["", "a\0b", &"x".repeat(201)] {
            let error = one.admin().pause_by("a", None, WHY, by).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "by", .. })), "{error}");
        }
        // A shorter one, too.
        ops.admin().pause("a", Some(Duration::from_millis(100)), WHY).await.unwrap();
        let held = one.lock("a").wait(TTL).acquire().await.unwrap();
        assert_eq!(paused(&ops).await, []);
        release(&held).await;
    }

    async fn its_row_stays(db: &Db) {
        let ops = Rowlock::builder().holder("ops").clean_every(None).connect(&db.url).await.unwrap();
        release(&ops.semaphore("s", 2).acquire().await.unwrap()).await;
        for name in ["s", "never used"] {
            pause(&ops, name).await;
        }
        // Ten days and one pass.
        let us = 11_i64 * 24 * 3_600 * 1_000_000;
        db.execute(&format!("UPDATE rowlock_lock SET fence = fence - {us}")).await;
        assert_eq!(ops.admin().clean(500).await.unwrap().locks, 0);
        for name in ["s", "never used"] {
            let refused = ops.admin().forget(name).await;
            is_paused(&busy(refused));
        }
        let said = ops.admin().forget("never used").await.unwrap_err().to_string();
        assert!(said.starts_with("\"never used\" is not free: paused by ops until it is resumed ("), "{said}");
        resume(&ops, "s").await;
        assert!(ops.admin().forget("s").await.unwrap());
        resume(&ops, "never used").await;
        assert_eq!(ops.admin().clean(500).await.unwrap().locks, 1);
    }

    async fn a_time_or_a_reason_out_of_bounds_is_refused(db: &Db) {
        let ops = operator(db).await;
        for time in [Duration::ZERO, Duration::from_millis(99), Duration::from_hours(367 * 24)] {
            let error = ops.admin().pause("a", Some(time), WHY).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "pause", .. })), "{error}");
        }
        for why in [String::new(), "a\0".into(), "w".repeat(256)] {
            let error = ops.admin().pause("a", None, &why).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "why", .. })), "{error}");
        }
        assert!(ops.admin().pause("", None, WHY).await.is_err());
        assert_eq!(paused(&ops).await, []);
        let why = format!("{}\n\u{e9}", "w".repeat(252));
        let pause = ops.admin().pause("a", None, &why).await.unwrap();
        assert_eq!(pause.why, why);
        assert!(!pause.to_string().contains('\n'));
        assert!(ops.admin().forget("b").await.is_ok_and(|had_row| !had_row));
    }
}
