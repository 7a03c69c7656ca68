//! What goes on while a pause begins or ends: each call is granted before it, or waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Error, Rowlock};
use rowlock_test::{App, Db, TryLock, eventually, join, on_every_engine, queue_is, release, take};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

const WHY: &str = "a test";

fn is_refused<H>(asked: &Result<H, Error>) -> bool {
    matches!(asked, Err(Error::WaitTimeout { busy, .. }) if busy.pause.is_some())
}

/// Nobody has the name.
async fn is_free(rowlock: &Rowlock, name: &str) -> bool {
    rowlock.inspect(name).await.unwrap().is_none()
}

async fn pause(rowlock: &Rowlock, name: &str) {
    rowlock.admin().pause(name, None, WHY).await.unwrap();
}

async fn resume(rowlock: &Rowlock, name: &str) {
    assert!(rowlock.admin().resume(name).await.unwrap());
}

/// Asks for a lock, permits and locks in transactions, again and again. Fails when a question that was asked after
/// `begun` was granted something.
async fn ask_again_and_again(
    (rowlock, app): (Rowlock, App),
    task: usize,
    begun: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
) {
    while !stop.load(Ordering::SeqCst) {
        let before = begun.load(Ordering::SeqCst);
        let is_granted = match task % 5 {
            0 => rowlock.lock("l").try_acquire().await.unwrap().is_some(),
            1 => {
                let wait = Duration::from_millis(20);
                rowlock.lock("l").wait(wait).acquire().await.is_ok()
            }
            2 => {
                let asked = rowlock.semaphore("s", 100).try_acquire().await;
                asked.unwrap().is_some()
            }
            3 => rowlock.rw_lock("rw").try_read().await.unwrap().is_some(),
            _ => {
                let mut tx = app.begin().await;
                let locked = tx.try_lock(&rowlock, "l").await;
                let is_granted = matches!(locked, Ok(TryLock::Locked(_)));
                tx.release().await;
                is_granted
            }
        };
        // It has begun before the question, and had not ended by the answer.
        let is_paused = before % 2 == 1 && begun.load(Ordering::SeqCst) == before;
        assert!(
            !is_paused || !is_granted,
            "task {task} was granted it in the pause"
        );
    }
}

on_every_engine! {
    async fn nothing_is_granted_after_it_has_begun(db: &Db) {
        let (begun, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let patient = Rowlock::builder().operation_timeout(Duration::from_mins(1));
        let mut tasks = JoinSet::new();
        for _ in 0..2 {
            let client = patient.clone().connect(&db.url).await.unwrap();
            for _ in 0..5 {
                let (begun, stop) = (Arc::clone(&begun), Arc::clone(&stop));
                let of = (client.clone(), db.app.clone());
                tasks.spawn(ask_again_and_again(of, tasks.len(), begun, stop));
            }
        }
        let operator = patient.connect(&db.url).await.unwrap();
        release(&operator.semaphore("s", 100).acquire().await.unwrap()).await;
        release(&operator.rw_lock("rw").read().await.unwrap()).await;
        for _ in 0..3 {
            // Work, not an event: they ask for a while.
            tokio::time::sleep(Duration::from_millis(150)).await;
            for name in ["l", "s", "rw"] {
                pause(&operator, name).await;
            }
            // What was asked before may still be granted: a lease that a task had is handed on for 50 ms.
            eventually("nobody has it", async || is_free(&operator, "l").await).await;
            begun.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(150)).await;
            // Another pause opens no gap.
            for name in ["l", "s", "rw"] {
                pause(&operator, name).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            begun.fetch_add(1, Ordering::SeqCst);
            for name in ["l", "s", "rw"] {
                resume(&operator, name).await;
            }
        }
        stop.store(true, Ordering::SeqCst);
        tasks.join_all().await;
    }

    async fn a_pause_and_an_acquire_of_a_new_name_agree(db: &Db) {
        let (one, two, operator) = (db.rowlock().await, db.rowlock().await, db.rowlock().await);
        for round in 0..20 {
            let name = format!("a{round}");
            let lock = two.lock(name.clone());
            let (asked, ()) = tokio::join!(lock.try_acquire(), pause(&operator, &name));
            let held = asked.unwrap();
            assert_eq!(!is_free(&one, &name).await, held.is_some());
            if let Some(held) = held {
                release(&held).await;
            }
            assert!(is_refused(&one.lock(name).wait(Duration::ZERO).acquire().await));
        }
    }

    async fn a_waiter_whose_turn_comes_while_it_begins_is_not_lost(db: &Db) {
        let (one, two, operator) = (db.rowlock().await, db.rowlock().await, db.rowlock().await);
        for round in 0..10 {
            let name = format!("a{round}");
            let held = take(&one, &name, TTL).await;
            let waiting = join(&two, &name, "w").await;
            tokio::join!(release(&held), pause(&operator, &name));
            // It was passed on before, and is confirmed; or nobody has it.
            let confirmed = async || waiting.is_finished() || is_free(&one, &name).await;
            eventually("it has it, or nobody has", confirmed).await;
            resume(&operator, &name).await;
            let next = waiting.await.unwrap().unwrap();
            assert!(next.is_held() && next.fence() > held.fence());
            release(&next).await;
        }
    }

    async fn a_waiter_that_joins_while_it_ends_is_not_lost(db: &Db) {
        let (two, operator) = (db.rowlock().await, db.rowlock().await);
        for round in 0..10 {
            let name = format!("a{round}");
            pause(&operator, &name).await;
            let lock = two.lock(name.clone());
            let waiting = tokio::spawn(async move { lock.acquire().await });
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
            resume(&operator, &name).await;
            release(&waiting.await.unwrap().unwrap()).await;
        }
    }

    async fn it_waits_for_a_transaction_that_has_the_name(db: &Db) {
        let patient = Rowlock::builder().operation_timeout(Duration::from_mins(1));
        let (one, operator) = (db.rowlock().await, patient.connect(&db.url).await.unwrap());
        release(&take(&one, "a", TTL).await).await;
        let mut tx = db.begin().await;
        tx.lock(&one, "a").await;
        let pausing = tokio::spawn({
            let operator = operator.clone();
            async move { operator.admin().pause("a", None, WHY).await }
        });
        // Work, not an event: it waits for a while.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!pausing.is_finished());
        tx.commit().await.unwrap();
        pausing.await.unwrap().unwrap();
        assert!(is_refused(&one.lock("a").wait(Duration::ZERO).acquire().await));
    }

    async fn transactions_at_every_level_see_it(db: &Db) {
        let (one, operator) = (db.rowlock().await, db.rowlock().await);
        let levels = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
        for name in ["a", "b", "c"] {
            release(&take(&one, name, TTL).await).await;
        }
        // It has read before the pause. (Where one transaction at a time can write, it would keep the pause out. A
        // read at the level SERIALIZABLE would lock the rows on MySQL.)
        let mut older = Vec::new();
        for level in levels.into_iter().filter(|_| !db.one_writer()) {
            let mut tx = db.begin_at(level).await;
            if level != "SERIALIZABLE" {
                tx.number("SELECT COUNT(*) FROM rowlock_lock").await;
            }
            older.push((level, tx));
        }
        for name in ["a", "b"] {
            pause(&operator, name).await;
        }
        for level in levels {
            older.push((level, db.begin_at(level).await));
            for (level, mut tx) in std::mem::take(&mut older) {
                for names in [&["a"][..], &["b", "c"]] {
                    match tx.lock_all(&one, names).await {
                        Ok(TryLock::Locked(locked)) => panic!("{level}: {locked:?}"),
                        Ok(TryLock::Busy(busy)) => assert!(busy.pause.is_some(), "{level}: {busy}"),
                        // Its snapshot is older than the pause.
                        Err(error) => {
                            assert!(matches!(error, Error::Conflict { .. }), "{level}: {error}");
                            break;
                        }
                    }
                }
                tx.release().await;
            }
        }
    }

    async fn tasks_of_one_client_get_on_after_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let is_held = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for n in 0..30 {
            let (lock, is_held) = (one.lock("a"), Arc::clone(&is_held));
            tasks.spawn(async move {
                let held = lock.acquire().await.unwrap();
                assert!(!is_held.swap(true, Ordering::SeqCst), "two hold it");
                tokio::time::sleep(Duration::from_millis(n % 7)).await;
                is_held.store(false, Ordering::SeqCst);
                release(&held).await;
            });
        }
        eventually("they work", async || !is_free(&two, "a").await).await;
        pause(&two, "a").await;
        // The turn ends within a bounded time, and the next one does not begin.
        eventually("nobody has it", async || is_free(&two, "a").await).await;
        assert!(is_refused(&two.lock("a").wait(Duration::ZERO).acquire().await));
        resume(&two, "a").await;
        tasks.join_all().await;
    }

    async fn a_lingering_lease_is_called_back(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        for operator in [&one, &two] {
            let lingering = one.lock("a").linger(Duration::from_mins(1));
            // A look that began while the name was paused may call it back once more.
            eventually("it lingers", async || {
                release(&lingering.acquire().await.unwrap()).await;
                !is_free(&two, "a").await
            })
            .await;
            pause(operator, "a").await;
            eventually("it was called back", async || is_free(&two, "a").await).await;
            assert!(lingering.try_acquire().await.unwrap().is_none());
            resume(&two, "a").await;
        }
    }

    async fn a_lingering_lease_in_steady_use_is_called_back(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let lingering = one.lock("a").linger(Duration::from_mins(1));
        release(&lingering.acquire().await.unwrap()).await;
        let using = tokio::spawn({
            let lingering = lingering.clone();
            async move {
                while let Some(held) = lingering.try_acquire().await.unwrap() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    release(&held).await;
                }
            }
        });
        pause(&two, "a").await;
        using.await.unwrap();
        eventually("nobody has it", async || is_free(&two, "a").await).await;
    }

    async fn a_lease_does_not_begin_to_linger_in_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let lingering = two.lock("a").linger(Duration::from_mins(1)).holder("w");
        let waiting = tokio::spawn(async move { lingering.acquire().await });
        queue_is(&one, "a", &["w"]).await;
        release(&held).await;
        let granted = waiting.await.unwrap().unwrap();
        pause(&one, "a").await;
        release(&granted).await;
        eventually("nobody has it", async || is_free(&one, "a").await).await;
    }

    async fn a_full_queue_tells_of_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        release(&take(&one, "a", TTL).await).await;
        release(&one.semaphore("s", 1).acquire().await.unwrap()).await;
        for name in ["a", "s"] {
            pause(&two, name).await;
        }
        let _first = join(&one, "a", "w").await;
        let semaphore = one.semaphore("s", 1).holder("w");
        let _permit = tokio::spawn(async move { semaphore.acquire().await });
        queue_is(&two, "s", &["w"]).await;
        let lock = two.lock("a").queue_limit(1).acquire().await.unwrap_err();
        let permit = two.semaphore("s", 1).queue_limit(1).acquire().await.unwrap_err();
        for error in [lock, permit] {
            let Error::QueueFull { busy, .. } = error else { panic!("{error}") };
            assert!(busy.pause.is_some_and(|pause| pause.why == WHY) && busy.waiters == 1);
        }
    }
}
