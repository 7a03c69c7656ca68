//! Promise 6 when something ends while tasks wait: a client, a session, a transaction. Every task learns it, or goes
//! on waiting.

use std::mem::discriminant;
use std::time::Duration;

use rowlock::{Error, Held, Rowlock};
use rowlock_test::{
    Db, TryLock, Waiting, eventually, join, loss, on_every_engine, queue_is, queue_of, release,
    take, turns, waiters,
};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(30);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_mins(1);

/// A client whose session expires only when the test says so.
async fn client(db: &Db, holder: &str) -> Rowlock {
    let builder = Rowlock::builder().session_ttl(10 * LONG).holder(holder);
    builder.connect(&db.url).await.unwrap()
}

/// The session of a client has expired, by the database's clock. The client does not know it.
async fn expire_session(db: &Db, holder: &str) {
    let past = db.past();
    let expire =
        format!("UPDATE rowlock_session SET expires_at = {past} WHERE holder = '{holder}'");
    assert_eq!(db.execute(&expire).await, 1);
}

/// Tasks that ask for a name while a transaction has its row locked: no row shows them.
fn ask(rowlock: &Rowlock, name: &str, count: usize) -> Vec<Waiting> {
    let locks = (0..count).map(|n| rowlock.lock(name).holder(n.to_string()));
    locks
        .map(|lock| tokio::spawn(async move { lock.acquire().await }))
        .collect()
}

/// Another task has asked for the name, and its time was over. Other tasks that asked before have had that time, too.
async fn a_short_wait(rowlock: &Rowlock, name: &str) {
    let short = rowlock.lock(name).wait(Duration::from_millis(300));
    let error = short.acquire().await.unwrap_err();
    // Where there is one writer, no session gets an answer.
    let is_expected = matches!(error, Error::WaitTimeout { .. }) || error.is_transient();
    assert!(is_expected, "{error}");
}

/// Tasks that wait for a lock and for a permit, and hear an error.
fn waits_for_both(rowlock: &Rowlock, wait: Option<Duration>) -> [JoinHandle<Error>; 2] {
    let (mut lock, mut permit) = (rowlock.lock("a"), rowlock.rw_lock("b"));
    if let Some(wait) = wait {
        (lock, permit) = (lock.wait(wait), permit.wait(wait));
    }
    [
        tokio::spawn(async move { lock.acquire().await.unwrap_err() }),
        tokio::spawn(async move { permit.read().await.unwrap_err() }),
    ]
}

on_every_engine! {
    async fn a_client_that_shuts_down_waits_no_longer(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let mine = [join(&two, "a", "mine").await, join(&two, "a", "mine, too").await];
        let other = join(&one, "a", "other").await;
        let unfinished = two.shutdown(LONG).await;
        assert!(unfinished.is_empty(), "{unfinished:?}");
        for waiting in mine {
            let error = waiting.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::ShutDown { .. }), "{error}");
        }
        queue_is(&one, "a", &["other"]).await;
        release(&held).await;
        assert_eq!(turns([other]).await, [0]);
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_waiter").await, 0);
    }

    /// What the work of a client needs to end well is there during a shutdown, also a lock that others hold.
    async fn work_that_waits_has_its_turn_during_a_shutdown(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let locks = two.clone();
        let work = two.spawn("a letter", async move {
            let lock = locks.lock("a").holder("work").acquire().await.unwrap();
            release(&lock).await;
            lock.fence()
        });
        queue_is(&one, "a", &["work"]).await;
        let all = two.clone();
        let shutdown = tokio::spawn(async move { all.shutdown(LONG).await });
        eventually("it shuts down", async || two.lock("b").try_acquire().await.is_err()).await;
        assert!(!work.is_finished());
        queue_is(&one, "a", &["work"]).await;
        release(&held).await;
        assert!(work.await.unwrap() > held.fence());
        assert!(shutdown.await.unwrap().is_empty());
    }

    async fn a_client_that_is_gone_waits_no_longer(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let mine = join(&two, "a", "mine").await;
        let other = join(&one, "a", "other").await;
        mine.abort();
        drop(two);
        queue_is(&one, "a", &["other"]).await;
        release(&held).await;
        assert_eq!(turns([other]).await, [0]);
    }

    async fn tasks_go_on_waiting_when_their_session_is_ended(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let mine = [join(&two, "a", "0").await, join(&two, "a", "1").await];
        let session = waiters(&one, "a").await[0].session;
        two.end_session().await.unwrap();
        eventually("they wait in another session", async || {
            let list = waiters(&one, "a").await;
            list.len() == 2 && list.iter().all(|waiter| waiter.session != session)
        })
        .await;
        assert!(mine.iter().all(|waiting| !waiting.is_finished()));
        release(&held).await;
        let mut numbers = turns(mine).await;
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1]);
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_waiter").await, 0);
    }

    /// Sessions end just when one of their waiters is granted the name, or has a lock in the session.
    async fn no_task_hangs_when_its_session_is_ended_again_and_again(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..12 {
            let lock = two.lock("a").holder(n.to_string());
            let lock = if n % 2 == 0 { lock } else { lock.in_session() };
            tasks.spawn(async move {
                let held = lock.acquire().await.unwrap();
                let outcome = loss(held.release().await);
                // A lock in the session may end with it, also while it is released.
                assert!(outcome.is_none() || n % 2 == 1, "{n}: {outcome:?}");
            });
        }
        eventually("all of them wait", async || queue_of(&one, "a").await.len() == 12).await;
        release(&held).await;
        let turns = tokio::spawn(tasks.join_all());
        while !turns.is_finished() {
            two.end_session().await.unwrap();
            // They open another session and join again.
            let any = async || turns.is_finished() || !queue_of(&one, "a").await.is_empty();
            eventually("they wait again, or are done", any).await;
        }
        assert_eq!(turns.await.unwrap().len(), 12);
        eventually("the name is free", async || {
            one.lock("a").try_acquire().await.unwrap().is_some()
        })
        .await;
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_waiter").await, 0);
    }

    async fn the_waiters_of_an_expired_session_are_passed_over_and_go_on_waiting(db: &Db) {
        let (one, dead, three) = (client(db, "one").await, client(db, "dead").await, client(db, "three").await);
        let held = take(&one, "a", TTL).await;
        let first = join(&dead, "a", "first").await;
        let second = join(&three, "a", "second").await;
        let third = join(&dead, "a", "third").await;
        let last = join(&three, "a", "last").await;
        let before = three.admin().queue("a").await.unwrap();
        expire_session(db, "dead").await;
        queue_is(&one, "a", &["second", "last"]).await;
        release(&held).await;
        let second = second.await.unwrap().unwrap();
        assert!(second.fence() > held.fence());
        release(&second).await;
        assert_eq!(turns([last]).await, [0]);
        // Their client lives: it notices, and they join again.
        let again = turns([first, third]).await;
        assert_eq!(again.len(), 2, "{before:?}");
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_waiter").await, 0);
    }

    async fn a_pinned_lease_keeps_nobody_from_waiting_after_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", LONG).await;
        let first = join(&two, "a", "first").await;
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        let mut waiting = ask(&two, "a", 5);
        a_short_wait(&one, "a").await;
        // One of them leaves while its row cannot be made or removed, and so does one that was there before.
        waiting.remove(2).abort();
        first.abort();
        tx.commit().await.unwrap();
        eventually("the others wait", async || {
            let mut queue = queue_of(&one, "a").await;
            queue.sort();
            queue == ["0", "1", "3", "4"]
        })
        .await;
        release(&held).await;
        assert_eq!(turns(waiting).await.len(), 4);
        eventually("all have left", async || {
            db.number("SELECT COUNT(*) FROM rowlock_waiter").await == 0
        })
        .await;
    }

    async fn a_release_that_a_pin_holds_up_passes_the_name_on_after_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", LONG).await;
        let waiting = [join(&two, "a", "0").await, join(&one, "a", "1").await];
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        drop(held);
        a_short_wait(&one, "a").await;
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        tx.commit().await.unwrap();
        assert_eq!(turns(waiting).await, [0, 1]);
    }

    async fn waiters_get_the_name_after_a_transaction_that_has_locked_it(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        drop(take(&one, "a", TTL).await);
        one.flush().await;
        for ends_well in [true, false] {
            let mut tx = db.begin().await;
            let locked = tx.lock(&one, "a").await;
            let waiting = ask(&two, "a", 6);
            a_short_wait(&one, "a").await;
            assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
            if ends_well {
                tx.commit().await.unwrap();
            } else {
                tx.release().await;
            }
            drop(locked);
            assert_eq!(turns(waiting).await.len(), 6);
        }
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_waiter").await, 0);
    }

    async fn transactions_and_waiters_exclude_each_other(db: &Db) {
        const ROUNDS: i64 = 20;
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        db.execute("CREATE TABLE counter (n BIGINT NOT NULL)").await;
        db.execute("INSERT INTO counter VALUES (0)").await;
        let count = async |tx: &mut rowlock_test::Tx| {
            let read = format!("SELECT n FROM counter{}", db.kind.share);
            let n = tx.number(&read).await;
            tx.execute(&format!("UPDATE counter SET n = {}", n + 1)).await.unwrap();
        };
        let by_lease = async || {
            for _ in 0..ROUNDS {
                let held: Held = two.lock("a").acquire().await.unwrap();
                let mut tx = db.begin().await;
                tx.pin(&held).await.unwrap();
                count(&mut tx).await;
                tx.commit().await.unwrap();
                release(&held).await;
            }
        };
        let by_transaction = async || {
            let mut done = 0;
            while done < ROUNDS {
                let mut tx = db.begin().await;
                match tx.try_lock(&one, "a").await {
                    Ok(TryLock::Locked(_)) => {
                        count(&mut tx).await;
                        tx.commit().await.unwrap();
                        done += 1;
                    }
                    Ok(TryLock::Busy(_)) | Err(Error::Conflict { .. }) => tx.release().await,
                    Err(error) => panic!("{error}"),
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(by_lease(), by_lease(), by_transaction());
        assert_eq!(db.number("SELECT n FROM counter").await, 3 * ROUNDS);
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_waiter").await, 0);
    }

    /// What a waiter waits for cannot come: it hears what one hears who asks now. (A table that is missing, or the
    /// right to read it.)
    async fn waiters_hear_that_a_table_is_gone(db: &Db) {
        let (holds, waits) = (client(db, "holds").await, client(db, "waits").await);
        let limited = client(db, "limited").await;
        let held = take(&holds, "a", 10 * LONG).await;
        let writes = holds.rw_lock("b").write().await.unwrap();
        for table in ["rowlock_lock", "rowlock_waiter"] {
            let waiting = waits_for_both(&waits, None).into_iter();
            let waiting = waiting.chain(waits_for_both(&limited, Some(10 * LONG)));
            let rows = "SELECT COUNT(*) FROM rowlock_waiter";
            eventually("all wait", async || db.number(rows).await == 4).await;
            db.execute(&format!("ALTER TABLE {table} RENAME TO gone")).await;
            let asks_now = waits.lock("a").wait(LONG).acquire().await.unwrap_err();
            for waits in waiting {
                let error = waits.await.unwrap();
                assert!(!error.is_transient(), "{table}: {error}");
                assert_eq!(discriminant(&error), discriminant(&asks_now), "{table}: {error}");
            }
            db.execute(&format!("ALTER TABLE gone RENAME TO {table}")).await;
            db.execute("DELETE FROM rowlock_waiter").await;
            db.execute("UPDATE rowlock_lock SET waiters = 0").await;
        }
        release(&held).await;
        writes.release().await.unwrap();
    }
}
