//! What goes on while a quarantine begins: each call is granted before it, or is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Begun, Engine, Error, Rowlock};
use rowlock_test::{
    Db, TryLock, begin, begin_new, eventually, join, lapse, on_every_engine, queue_is, release,
    take,
};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

/// Longer than a test.
const LONG: Duration = Duration::from_mins(10);

fn is_refused<H>(asked: &Result<H, Error>) -> bool {
    matches!(asked, Err(Error::WaitTimeout { busy, .. }) if busy.quarantine.is_some())
}

/// Nobody has the name.
async fn is_free(rowlock: &Rowlock, name: &str) -> bool {
    rowlock.inspect(name).await.unwrap().is_none()
}

/// Asks for locks, permits and attempts, again and again. Fails when a question that was asked after `begun` was
/// granted something.
async fn ask_again_and_again(
    rowlock: Rowlock,
    task: usize,
    begun: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
) {
    for round in 0_u32.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let before = begun.load(Ordering::SeqCst);
        let kind = (task + round as usize) % 5;
        let is_granted = match kind {
            0 => {
                let asked = rowlock
                    .lock(format!("l{task}"))
                    .try_acquire()
                    .await
                    .unwrap();
                asked.is_some()
            }
            1 => {
                let name = format!("n{task} {round}");
                rowlock.lock(name).try_acquire().await.unwrap().is_some()
            }
            2 => rowlock
                .semaphore("s", 100)
                .try_acquire()
                .await
                .unwrap()
                .is_some(),
            3 => rowlock.rw_lock("rw").try_read().await.unwrap().is_some(),
            _ => {
                let key = format!("k{task} {round}");
                matches!(begin(&rowlock.idempotency(), &key).await, Begun::New(_))
            }
        };
        // It has begun before the question, and had not ended by the answer.
        let is_in_quarantine = before % 2 == 1 && begun.load(Ordering::SeqCst) == before;
        assert!(
            !is_in_quarantine || !is_granted,
            "task {task} was granted {kind} in the quarantine"
        );
    }
}

on_every_engine! {
    async fn nothing_is_granted_after_it_has_begun(db: &Db) {
        let (begun, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for client in [db.rowlock().await, db.rowlock().await] {
            for _ in 0..8 {
                let (begun, stop) = (Arc::clone(&begun), Arc::clone(&stop));
                tasks.spawn(ask_again_and_again(client.clone(), tasks.len(), begun, stop));
            }
        }
        let operator = db.rowlock().await;
        for _ in 0..3 {
            // Work, not an event: they ask for a while.
            tokio::time::sleep(Duration::from_millis(150)).await;
            operator.admin().quarantine(LONG).await.unwrap();
            begun.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(150)).await;
            // A second beginning opens no gap.
            operator.admin().quarantine(LONG).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            begun.fetch_add(1, Ordering::SeqCst);
            assert!(operator.admin().end_quarantine().await.unwrap());
        }
        stop.store(true, Ordering::SeqCst);
        tasks.join_all().await;
    }

    async fn a_batch_of_releases_and_acquires_grants_nothing(db: &Db) {
        let one = db.rowlock().await;
        let mut held = Vec::new();
        for n in 0..60 {
            held.push(take(&one, &format!("h{n}"), TTL).await);
            release(&take(&one, &format!("f{n}"), TTL).await).await;
        }
        one.admin().quarantine(LONG).await.unwrap();
        let mut tasks = JoinSet::new();
        for (n, held) in held.into_iter().enumerate() {
            tasks.spawn(async move {
                release(&held).await;
                true
            });
            for lock in [one.lock(format!("f{n}")), one.lock(format!("new{n}"))] {
                tasks.spawn(async move { is_refused(&lock.wait(Duration::ZERO).acquire().await) });
            }
        }
        assert!(tasks.join_all().await.into_iter().all(|as_it_should_be| as_it_should_be));
        assert_eq!(one.admin().list().await.unwrap(), []);
        // Acquires with different settings, of names with a row and without.
        let mut tasks = JoinSet::new();
        for n in 0..60 {
            for name in [format!("f{n}"), format!("other{n}")] {
                let lock = one.lock(name).ttl(TTL + Duration::from_secs(n));
                tasks.spawn(async move { is_refused(&lock.wait(Duration::ZERO).acquire().await) });
            }
        }
        assert!(tasks.join_all().await.into_iter().all(|is_refused| is_refused));
    }

    async fn transactions_at_every_level_see_it(db: &Db) {
        let one = db.rowlock().await;
        let levels = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
        for name in ["a", "b", "c"] {
            release(&take(&one, name, TTL).await).await;
        }
        // It has read before the quarantine begins. (Where one transaction at a time can write, it would keep the
        // quarantine out.)
        let read = "SELECT COUNT(*) FROM rowlock_lock";
        let mut older = Vec::new();
        for level in levels.into_iter().filter(|_| !db.one_writer()) {
            let mut tx = db.begin_at(level).await;
            // (A read at the level SERIALIZABLE would lock the rows on MySQL.)
            if level != "SERIALIZABLE" {
                tx.number(read).await;
            }
            older.push((level, tx));
        }
        one.admin().quarantine(LONG).await.unwrap();
        for (level, mut tx) in older {
            for names in [&["a"][..], &["b", "c"]] {
                let locked = tx.lock_all(&one, names).await.unwrap();
                // On PostgreSQL its snapshot is older than the quarantine.
                let may = db.engine == Engine::Postgres && level == "REPEATABLE READ";
                match locked {
                    TryLock::Busy(busy) => assert!(busy.quarantine.is_some(), "{level}: {busy}"),
                    TryLock::Locked(locked) => assert!(may, "{level}: {locked:?}"),
                }
            }
            tx.release().await;
        }
        for level in levels {
            let mut tx = db.begin_at(level).await;
            if !db.one_writer() && level != "SERIALIZABLE" {
                tx.number(read).await;
            }
            for names in [&["a"][..], &["b", "c"]] {
                match tx.lock_all(&one, names).await.unwrap() {
                    TryLock::Busy(busy) => assert!(busy.quarantine.is_some(), "{level}: {busy}"),
                    TryLock::Locked(locked) => panic!("{level}: {locked:?}"),
                }
            }
            tx.release().await;
        }
    }

    async fn one_that_is_over_does_not_end(db: &Db) {
        let one = db.rowlock().await;
        one.admin().quarantine(Duration::from_millis(100)).await.unwrap();
        let is_over = async || one.admin().quarantine_left().await.unwrap().is_none();
        eventually("it is over", is_over).await;
        assert!(!one.admin().end_quarantine().await.unwrap());
        assert!(!one.admin().end_quarantine().await.unwrap());
        let left = one.admin().quarantine(LONG).await.unwrap();
        assert!(left <= LONG && left > LONG / 2, "{left:?}");
    }

    async fn a_transaction_that_has_locked_a_name_delays_the_quarantine_only(db: &Db) {
        let patient = Rowlock::builder().operation_timeout(Duration::from_secs(20));
        let (operator, one, two) = (patient.clone(), db.rowlock().await, db.rowlock().await);
        let operator = operator.connect(&db.url).await.unwrap();
        for name in ["t", "a", "b"] {
            release(&take(&one, name, TTL).await).await;
        }
        let held = take(&one, "h", Duration::from_secs(12)).await;
        let mut tx = db.begin().await;
        tx.lock(&two, "t").await;
        let deadline = held.deadline();
        let begun = Arc::new(AtomicBool::new(false));
        let beginning = tokio::spawn({
            let begun = Arc::clone(&begun);
            async move {
                let left = operator.admin().quarantine(LONG).await;
                begun.store(true, Ordering::SeqCst);
                left
            }
        });
        // Where one transaction at a time can write, it delays everything.
        if !db.one_writer() {
            while held.deadline() == deadline && !begun.load(Ordering::SeqCst) {
                let a = one.lock("a").wait(Duration::ZERO).acquire().await;
                let (is_held, is_refused) = (a.is_ok(), is_refused(&a));
                assert!(is_held || is_refused, "{a:?}");
                assert!(held.is_held(), "{:?}", held.loss());
            }
        }
        tx.commit().await.unwrap();
        let left = beginning.await.unwrap().unwrap();
        assert!(left > LONG / 2, "{left:?}");
        assert!(is_refused(&two.lock("b").wait(Duration::ZERO).acquire().await));
    }

    async fn a_waiter_whose_turn_comes_while_it_begins_is_not_lost(db: &Db) {
        let (one, two, operator) = (db.rowlock().await, db.rowlock().await, db.rowlock().await);
        for round in 0..10 {
            let name = format!("a{round}");
            let held = take(&one, &name, TTL).await;
            let waiting = join(&two, &name, "w").await;
            let (released, begun) = tokio::join!(held.release(), operator.admin().quarantine(LONG));
            released.unwrap();
            begun.unwrap();
            // It was passed on before, and is confirmed; or nobody has it.
            let confirmed = async || waiting.is_finished() || is_free(&one, &name).await;
            eventually("it has it, or nobody has", confirmed).await;
            assert!(operator.admin().end_quarantine().await.unwrap());
            let next = waiting.await.unwrap().unwrap();
            assert!(next.is_held() && next.fence() > held.fence());
            release(&next).await;
        }
    }

    async fn tasks_of_one_client_get_on_after_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let count = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for n in 0..30 {
            let (lock, count) = (one.lock("a"), Arc::clone(&count));
            tasks.spawn(async move {
                let held = lock.acquire().await.unwrap();
                assert!(!count.swap(true, Ordering::SeqCst), "two hold it");
                tokio::time::sleep(Duration::from_millis(n % 7)).await;
                count.store(false, Ordering::SeqCst);
                release(&held).await;
                held.fence()
            });
        }
        eventually("they work", async || !is_free(&two, "a").await).await;
        let lock = two.lock("a");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        two.admin().quarantine(LONG).await.unwrap();
        // The turn ends within a bounded time, and the next one does not begin.
        let is_over = async || waiting.is_finished() || is_free(&two, "a").await;
        eventually("nobody has it, or it went to the waiter", is_over).await;
        two.admin().end_quarantine().await.unwrap();
        let held = waiting.await.unwrap().unwrap();
        let mut fences = vec![held.fence()];
        drop(held);
        fences.extend(tasks.join_all().await);
        let len = fences.len();
        fences.sort_unstable();
        fences.dedup();
        assert_eq!(fences.len(), len);
    }

    async fn a_lingering_lease_is_called_back_and_passed_on_after_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let lingering = one.lock("a").linger(Duration::from_mins(1));
        eventually("it lingers", async || {
            release(&lingering.acquire().await.unwrap()).await;
            !is_free(&two, "a").await
        })
        .await;
        one.admin().quarantine(LONG).await.unwrap();
        // The database remembers its lease.
        let again = lingering.try_acquire().await.unwrap().expect("it lingers");
        release(&again).await;
        let waiting = join(&two, "a", "w").await;
        eventually("it was called back", async || is_free(&two, "a").await).await;
        assert!(is_refused(&lingering.clone().wait(Duration::ZERO).acquire().await));
        queue_is(&two, "a", &["w"]).await;
        assert!(!waiting.is_finished());
        two.admin().end_quarantine().await.unwrap();
        assert!(waiting.await.unwrap().unwrap().fence() > again.fence());
    }

    async fn a_session_that_ends_in_it_frees_its_locks_for_nobody(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = one.lock("a").in_session().acquire().await.unwrap();
        let waiting = join(&two, "a", "w").await;
        std::mem::forget(two.lock("b").in_session().acquire().await.unwrap());
        two.admin().quarantine(LONG).await.unwrap();
        one.end_session().await.unwrap();
        for _ in 0..5 {
            assert!(is_refused(&two.lock("a").wait(Duration::ZERO).acquire().await));
        }
        queue_is(&two, "a", &["w"]).await;
        let cleaned = two.admin().clean_all(100).await.unwrap();
        queue_is(&two, "a", &["w"]).await;
        assert!(is_free(&two, "a").await && !held.is_held(), "{cleaned:?}");
        two.admin().end_quarantine().await.unwrap();
        assert!(waiting.await.unwrap().unwrap().fence() > held.fence());
    }

    async fn a_full_queue_tells_of_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        release(&take(&one, "a", TTL).await).await;
        drop(one.semaphore("s", 1).acquire().await.unwrap());
        one.flush().await;
        one.admin().quarantine(LONG).await.unwrap();
        let (mut first, semaphore) = (join(&one, "a", "w").await, one.semaphore("s", 1).holder("w"));
        let mut permit = tokio::spawn(async move { semaphore.acquire().await });
        queue_is(&two, "s", &["w"]).await;
        let refused = async {
            let lock = two.lock("a").queue_limit(1).acquire().await.unwrap_err();
            [lock, two.semaphore("s", 1).queue_limit(1).acquire().await.unwrap_err()]
        };
        let refused = tokio::select! {
            refused = refused => refused,
            ended = &mut first => panic!("the lock's waiter has gone: {ended:?}"),
            ended = &mut permit => panic!("the permit's waiter has gone: {ended:?}"),
        };
        for error in refused {
            let Error::QueueFull { busy, .. } = error else { panic!("{error}") };
            assert!(busy.quarantine.is_some_and(|left| left > LONG / 2), "{busy:?}");
        }
    }

    async fn an_abandoned_attempt_is_taken_over_after_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let guard = begin_new(&one.idempotency(), "k").await;
        std::mem::forget(guard);
        one.shutdown(Duration::ZERO).await;
        lapse(db).await;
        two.admin().quarantine(LONG).await.unwrap();
        let begun = begin(&two.idempotency(), "k").await;
        assert!(matches!(begun, Begun::InFlight(_)), "{begun:?}");
        two.admin().end_quarantine().await.unwrap();
        let _ = begin_new(&two.idempotency(), "k").await;
    }
}
