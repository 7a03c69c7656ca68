//! Promises 5 and 6 where many waiters, or two events at once, meet in a queue: no turn is lost, and none is had
//! twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::Rng;
use rowlock::{Error, Held, NameFilter, NameState, Rowlock};
use rowlock_test::{Db, eventually, join, on_every_engine, release, take, waiters};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

/// How many waiters leave just when they are granted the name, per engine.
fn leavers() -> u32 {
    std::env::var("ROWLOCK_LEAVERS").map_or(150, |count| count.parse().expect("a number"))
}

/// How many waiters there are, and how many names are said to have some.
async fn left(db: &Db) -> (i64, i64) {
    let names = "SELECT COUNT(*) FROM rowlock_lock WHERE waiters <> 0";
    let rows = db.number("SELECT COUNT(*) FROM rowlock_waiter").await;
    (rows, db.number(names).await)
}

/// What an acquire came to whose time may have been over.
fn in_time(acquired: Result<Held, Error>) -> Option<Held> {
    match acquired {
        Ok(held) => Some(held),
        Err(Error::WaitTimeout { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The leaver has given its turn back. (One whose window is over stays in its row, if nobody is next.)
async fn has_left(db: &Db) {
    let held = "SELECT COUNT(*) FROM rowlock_lock WHERE grant_id IS NOT NULL";
    eventually("it has left", async || db.number(held).await == 0).await;
}

/// The name is free at once, and nobody waits.
async fn check_free(db: &Db, rowlock: &Rowlock) {
    eventually("the name is free", async || {
        let asked = rowlock.lock("a").try_acquire().await.unwrap();
        asked.is_some()
    })
    .await;
    rowlock.flush().await;
    assert_eq!(left(db).await, (0, 0));
}

on_every_engine! {
    /// The release and the end of the waiter come at the same time. Whether the waiter was granted the name or not, it
    /// is free again without the end of the window.
    async fn a_waiter_that_leaves_as_it_is_granted_gives_the_name_back(db: &Db) {
        let (one, two, three) = (db.rowlock().await, db.rowlock().await, db.rowlock().await);
        let (mut granted, mut gone) = (0, 0);
        let mut delay = Duration::from_millis(2);
        for round in 0..leavers() {
            let held = take(&one, "a", TTL).await;
            let leaver = join(&two, "a", "leaver").await;
            // Every other round another waiter is next.
            let next = if round % 2 == 0 { Some(join(&three, "a", "next").await) } else { None };
            let leave = async {
                tokio::time::sleep(delay).await;
                leaver.abort();
                leaver.await
            };
            let (released, leaver) = tokio::join!(held.release(), leave);
            released.unwrap();
            // The delay comes close to the instant of the grant, from both sides.
            match leaver {
                Ok(held) => {
                    drop(held.unwrap());
                    granted += 1;
                    delay = delay.mul_f64(0.9);
                }
                Err(cancelled) => {
                    assert!(cancelled.is_cancelled(), "{cancelled}");
                    gone += 1;
                    delay = delay.mul_f64(1.1) + Duration::from_micros(10);
                }
            }
            if let Some(next) = next {
                release(&next.await.unwrap().unwrap()).await;
            } else {
                has_left(db).await;
            }
            check_free(db, &three).await;
        }
        assert!(granted > 0 && gone > 0, "{granted} were granted, {gone} gone");
    }

    /// The same for a waiter whose time is over just when it is granted the name.
    async fn a_waiter_whose_time_is_over_as_it_is_granted_gives_the_name_back(db: &Db) {
        const WAIT: Duration = Duration::from_millis(60);
        let (one, two, three) = (db.rowlock().await, db.rowlock().await, db.rowlock().await);
        let (mut granted, mut gone) = (0, 0);
        let mut early = Duration::from_millis(2);
        for _ in 0..leavers() {
            let held = take(&one, "a", TTL).await;
            let lock = two.lock("a").wait(WAIT);
            let leave = tokio::spawn(async move { lock.acquire().await });
            let released = async {
                tokio::time::sleep(WAIT.saturating_sub(early)).await;
                release(&held).await;
            };
            let (leaver, ()) = tokio::join!(leave, released);
            // The release comes earlier and earlier, until it is in time, and then later again.
            if let Some(held) = in_time(leaver.unwrap()) {
                drop(held);
                granted += 1;
                early = early.mul_f64(0.8);
            } else {
                gone += 1;
                early = early.mul_f64(1.25) + Duration::from_micros(10);
            }
            has_left(db).await;
            check_free(db, &three).await;
        }
        assert!(granted > 0 && gone > 0, "{granted} were granted, {gone} gone");
    }

    async fn a_waiter_that_is_cancelled_at_any_poll_leaves(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let mut rng = rand::rng();
        let held = take(&one, "a", TTL).await;
        for round in 0..leavers() {
            let lock = two.lock("a");
            let acquire = async move { lock.acquire().await.map(drop) };
            // The time has no meaning but to be another one each time: from before the first request to after the last
            // answer.
            let time = Duration::from_micros(rng.random_range(0..10_000));
            let cancelled = tokio::time::timeout(time, acquire).await;
            assert!(cancelled.is_err(), "round {round}: {cancelled:?}");
        }
        eventually("all have left", async || left(db).await == (0, 0)).await;
        two.flush().await;
        assert_eq!(left(db).await, (0, 0));
        release(&held).await;
        let after = take(&one, "a", TTL).await;
        assert!(after.fence() > held.fence());
    }

    /// 200 tasks over 4 clients add up in a row that only the lock protects.
    async fn every_one_of_many_waiters_has_one_turn_in_its_order(db: &Db) {
        const TASKS: usize = 200;
        db.execute("CREATE TABLE counter (n BIGINT NOT NULL)").await;
        db.execute("INSERT INTO counter VALUES (0)").await;
        let clients = [db.rowlock().await, db.rowlock().await, db.rowlock().await, db.rowlock().await];
        let held = take(&clients[0], "a", TTL).await;
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (holder, app) = (format!("task {task}"), db.app.clone());
            let lock = clients[task % clients.len()].lock("a").holder(holder.as_str());
            tasks.spawn(async move {
                let held = lock.acquire().await.unwrap();
                let n = app.number("SELECT n FROM counter").await;
                let mut tx = app.begin().await;
                tx.execute(&format!("UPDATE counter SET n = {}", n + 1)).await.unwrap();
                tx.commit().await.unwrap();
                release(&held).await;
                (n, held.fence(), holder)
            });
        }
        eventually("all of them wait", async || waiters(&clients[1], "a").await.len() == TASKS).await;
        let list = waiters(&clients[1], "a").await;
        let positions: HashMap<_, _> = list.into_iter().map(|info| (info.holder, info.position)).collect();
        assert_eq!(positions.len(), TASKS);
        release(&held).await;
        let mut turns = tasks.join_all().await;
        assert_eq!(db.number("SELECT n FROM counter").await, i64::try_from(TASKS).unwrap());
        turns.sort_unstable();
        let (mut out_of_order, mut windows) = (0, 0);
        for (pair, n) in turns.windows(2).zip(0..) {
            let [(counted, fence, holder), (next_counted, next_fence, next)] = pair else { unreachable!() };
            assert_eq!((*counted, *next_counted), (n, n + 1), "{pair:?}");
            assert!(fence < next_fence, "{pair:?}");
            out_of_order += i64::from(positions[holder] > positions[next]);
            // A fence is a time. A waiter that the machine keeps from confirming for its window goes to the end of
            // the queue.
            windows += (next_fence - fence) / 2_000_000;
        }
        assert!(out_of_order <= windows, "{out_of_order} and {windows}: {turns:?}");
        assert!(turns[0].1 > held.fence());
        assert_eq!(left(db).await, (0, 0));
    }

    /// One client waits for many names, whose holders release them in any order.
    async fn a_client_may_wait_for_many_names_at_once(db: &Db) {
        const NAMES: usize = 300;
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let (mut held, mut tasks) = (Vec::new(), JoinSet::new());
        for n in 0..NAMES {
            held.push(take(&one, &format!("n{n:03}"), TTL).await);
        }
        for n in 0..NAMES {
            // Each has two waiters.
            for rowlock in [&one, &two] {
                let lock = rowlock.lock(format!("n{n:03}"));
                tasks.spawn(async move {
                    let held = lock.acquire().await.unwrap();
                    release(&held).await;
                    n
                });
            }
        }
        eventually("all of them wait", async || left(db).await == (600, 300)).await;
        let awaited = NameFilter::new().state(NameState::Awaited).limit(1_000);
        let awaited = two.admin().names(&awaited).await.unwrap().items;
        assert!(awaited.len() == NAMES && awaited.iter().all(|info| info.waiters == 2), "{awaited:?}");
        for (n, held) in held.into_iter().enumerate().rev() {
            if n % 2 == 0 {
                release(&held).await;
            }
        }
        let mut turns = tasks.join_all().await;
        turns.sort_unstable();
        assert!(turns.chunks(2).zip(0..NAMES).all(|(pair, n)| pair == [n, n]), "{turns:?}");
        assert_eq!(left(db).await, (0, 0));
    }

    /// Tasks of several clients that wait, leave and ask once, on two names. Each name has one holder at a
    /// time, and is free in the end.
    async fn a_crowd_leaves_nothing_behind(db: &Db) {
        const NAMES: [&str; 2] = ["a", "aa"];
        let clients = [db.rowlock().await, db.rowlock().await, db.rowlock().await];
        let mut tasks = JoinSet::new();
        let holders = Arc::new([const { AtomicBool::new(false) }; 2]);
        for task in 0..24 {
            let (rowlock, holders) = (clients[task % clients.len()].clone(), Arc::clone(&holders));
            tasks.spawn(async move {
                let mut had = 0;
                for round in 0..20 {
                    let number = (task + round) % NAMES.len();
                    let lock = rowlock.lock(NAMES[number]);
                    let time = Duration::from_millis(rand::rng().random_range(1..40));
                    let held = match (task + 3 * round) % 5 {
                        0 => lock.try_acquire().await.unwrap(),
                        1 | 2 => in_time(lock.wait(time).acquire().await),
                        3 => tokio::time::timeout(time, lock.acquire()).await.ok().map(Result::unwrap),
                        _ => Some(lock.acquire().await.unwrap()),
                    };
                    let Some(held) = held else { continue };
                    assert!(!holders[number].swap(true, Ordering::SeqCst), "two holders");
                    tokio::task::yield_now().await;
                    assert!(holders[number].swap(false, Ordering::SeqCst));
                    had += 1;
                    if round % 2 == 0 {
                        release(&held).await;
                    }
                }
                had
            });
        }
        let had = tasks.join_all().await;
        assert!(had.iter().all(|had| *had >= 4), "the plain waiters had their turns: {had:?}");
        for rowlock in &clients {
            rowlock.flush().await;
        }
        eventually("all have left", async || left(db).await == (0, 0)).await;
        for name in NAMES {
            eventually("it is free", async || {
                clients[0].lock(name).try_acquire().await.unwrap().is_some()
            })
            .await;
        }
    }
}
