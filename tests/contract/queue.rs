//! Promise 6: waiters of all clients are granted a name in the order in which they joined its queue, and nobody
//! overtakes them.

use std::time::Duration;

use rowlock::{Busy, Engine, Error, Held, Rowlock};
use rowlock_test::{
    Db, eventually, join, join_with, on_every_engine, queue_is, release, take, turns, waiters,
};

use uuid::Uuid;

const TTL: Duration = Duration::from_secs(30);

/// Asks once, for a name that is not free.
async fn busy(rowlock: &Rowlock, name: &str) -> Busy {
    rowlock_test::busy(rowlock.lock(name).wait(Duration::ZERO).acquire().await)
}

/// A client `silent` that lives as long as the guard.
async fn silent_client(db: &Db) -> Held {
    let silent = Rowlock::builder().holder("silent");
    let silent = silent.connect(&db.url).await.unwrap();
    let session = silent.lock("the silent client's").in_session();
    session.try_acquire().await.unwrap().expect("free")
}

/// Makes a free name with a waiter whose task never asks again, although its client lives.
async fn free_with_a_waiter(db: &Db, rowlock: &Rowlock, name: &str) {
    drop(take(rowlock, name, TTL).await);
    rowlock.flush().await;
    add_silent_waiter(db, name).await;
}

/// Puts a waiter of the client `silent` at the end of a queue.
async fn add_silent_waiter(db: &Db, name: &str) {
    let name = db.bytes(name);
    let mut tx = db.begin().await;
    let joined = format!(
        "UPDATE rowlock_lock SET waiters = waiters + 1, next_position = next_position + 1 WHERE name = {name}"
    );
    assert_eq!(tx.execute(&joined).await.unwrap(), 1);
    let grant = Uuid::new_v4().simple();
    let grant = match db.engine {
        Engine::Postgres => format!("'{grant}'::uuid"),
        _ => format!("x'{grant}'"),
    };
    let waiter = format!(
        "INSERT INTO rowlock_waiter (name, position, grant_id, session_id, holder, joined_at) \
         SELECT l.name, l.next_position - 1, {grant}, s.id, s.holder, s.opened_at \
         FROM rowlock_lock l CROSS JOIN rowlock_session s WHERE l.name = {name} AND s.holder = 'silent'"
    );
    assert_eq!(tx.execute(&waiter).await.unwrap(), 1);
    tx.commit().await.unwrap();
}

on_every_engine! {
    async fn waiters_of_all_clients_are_granted_in_the_order_in_which_they_joined(db: &Db) {
        let clients = [db.rowlock().await, db.rowlock().await, db.rowlock().await];
        let held = take(&clients[0], "a", TTL).await;
        let mut waiting = Vec::new();
        for n in 0..12 {
            // Two of one client, then one of the next, and so on.
            waiting.push(join(&clients[n * 2 / 3 % 3], "a", &format!("{n:02}")).await);
        }
        release(&held).await;
        assert_eq!(turns(waiting).await, (0..12).collect::<Vec<_>>());
        assert_eq!(waiters(&clients[1], "a").await, []);
        // The name is free again.
        let after = take(&clients[2], "a", TTL).await;
        assert!(after.fence() > held.fence());
    }

    async fn everybody_sees_who_waits(db: &Db) {
        let (one, two, three) = (db.rowlock().await, db.rowlock().await, db.rowlock().await);
        assert_eq!(waiters(&three, "a").await, []);
        let held = (take(&one, "a", TTL).await, take(&one, "b", TTL).await);
        let first = [join(&one, "a", "first").await, join(&two, "a", "second").await];
        let other = join(&two, "b", "other").await;
        let third = join(&two, "a", "third").await;
        let of_a = waiters(&three, "a").await;
        let list = [&of_a[..], &waiters(&three, "b").await].concat();
        let seen: Vec<_> = list.iter().map(|info| (info.name.as_str(), info.holder.as_str())).collect();
        assert_eq!(seen, [("a", "first"), ("a", "second"), ("a", "third"), ("b", "other")]);
        assert!(of_a.is_sorted_by(|a, b| a.position < b.position), "{list:?}");
        assert!(of_a.is_sorted_by(|a, b| a.joined_at <= b.joined_at && a.waited >= b.waited), "{list:?}");
        // The waiters of a client belong to its session.
        assert_eq!(list[1].session, list[2].session);
        assert_eq!(list[1].session, list[3].session);
        assert_ne!(list[0].session, list[1].session);
        let sessions = three.admin().sessions().await.unwrap();
        assert!(list.iter().all(|info| sessions.iter().any(|session| session.id == info.session)), "{sessions:?}");
        // A waiter holds nothing.
        assert_eq!(three.admin().list().await.unwrap().len(), 2);
        drop(held);
        assert_eq!(turns(first.into_iter().chain([third])).await, [0, 1, 2]);
        assert_eq!(turns([other]).await, [0]);
    }

    async fn a_waiter_that_is_cancelled_leaves_and_the_others_keep_their_order(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let mut waiting = Vec::new();
        for n in 0..6 {
            waiting.push(join(if n % 2 == 0 { &one } else { &two }, "a", &n.to_string()).await);
        }
        let positions = waiters(&one, "a").await;
        // In the middle, and at both ends.
        for n in [5, 2, 0] {
            waiting.remove(n).abort();
        }
        queue_is(&two, "a", &["1", "3", "4"]).await;
        let left = waiters(&two, "a").await;
        assert!(left.iter().all(|waiter| positions.iter().any(|p| p.position == waiter.position)), "{left:?}");
        assert_eq!(busy(&two, "a").await.waiters, 3);
        release(&held).await;
        assert_eq!(turns(waiting).await, [0, 1, 2]);
    }

    async fn a_waiter_whose_time_is_over_leaves(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let first = join(&one, "a", "first").await;
        let joined = format!("SELECT next_position FROM rowlock_lock WHERE name = {}", db.bytes("a"));
        let before = db.number(&joined).await;
        let impatient = two.lock("a").holder("impatient").wait(Duration::from_secs(1));
        let impatient = tokio::spawn(async move { impatient.acquire().await });
        eventually("it has joined", async || db.number(&joined).await == before + 1).await;
        let last = join(&two, "a", "last").await;
        let error = impatient.await.unwrap().unwrap_err();
        let Error::WaitTimeout { busy, waited, .. } = error else { panic!("{error}") };
        assert!(waited >= Duration::from_secs(1), "{waited:?}");
        assert_eq!(busy.holder.map(|holder| holder.fence), Some(held.fence()));
        queue_is(&two, "a", &["first", "last"]).await;
        release(&held).await;
        assert_eq!(turns([first, last]).await, [0, 1]);
    }

    async fn asking_once_overtakes_no_waiter(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let _session = silent_client(db).await;
        free_with_a_waiter(db, &one, "a").await;
        assert_eq!(one.inspect("a").await.unwrap(), None);
        // The waiter has the turn, and does not confirm.
        for rowlock in [&one, &two] {
            busy(rowlock, "a").await;
        }
        let last = join(&one, "a", "last").await;
        let held = last.await.unwrap().unwrap();
        assert_eq!(busy(&two, "a").await.holder.map(|holder| holder.fence), Some(held.fence()));
    }

    async fn dead_waiters_keep_nobody_from_a_free_name(db: &Db) {
        let rowlock = db.rowlock().await;
        let _session = silent_client(db).await;
        free_with_a_waiter(db, &rowlock, "a").await;
        let past = db.past();
        db.execute(&format!("UPDATE rowlock_session SET expires_at = {past} WHERE holder = 'silent'")).await;
        assert_eq!(waiters(&rowlock, "a").await, []);
        let held = take(&rowlock, "a", TTL).await;
        assert!(held.is_held());
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_waiter").await, 0);
    }

    async fn waiters_whose_rows_were_deleted_by_hand_keep_nobody_out(db: &Db) {
        let rowlock = db.rowlock().await;
        let _session = silent_client(db).await;
        free_with_a_waiter(db, &rowlock, "lock").await;
        let permits = rowlock.semaphore("permits", 2);
        release(&permits.acquire().await.unwrap()).await;
        add_silent_waiter(db, "permits").await;
        db.execute("DELETE FROM rowlock_waiter").await;
        for _ in 0..2 {
            release(&take(&rowlock, "lock", TTL).await).await;
            let permit = permits.try_acquire().await.unwrap();
            release(&permit.expect("nobody has it, and nobody waits")).await;
        }
        assert!(rowlock.admin().forget("lock").await.unwrap());
        assert!(rowlock.admin().forget("permits").await.unwrap());
    }

    /// The window is 2 s, by the database's clock.
    async fn a_waiter_that_does_not_confirm_costs_the_window(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let _session = silent_client(db).await;
        let held = take(&one, "a", TTL).await;
        add_silent_waiter(db, "a").await;
        let next = [join(&one, "a", "next").await, join(&two, "a", "last").await];
        queue_is(&one, "a", &["silent", "next", "last"]).await;
        release(&held).await;
        let window = std::cell::Cell::new(None);
        eventually("the silent waiter has its turn", async || {
            let info = two.inspect("a").await.unwrap();
            let silent = info.filter(|info| info.holder == "silent");
            window.set(silent.map(|info| info.remaining));
            window.get().is_some()
        })
        .await;
        assert!(window.get() <= Some(Duration::from_secs(2)), "{window:?}");
        assert_eq!(turns(next).await, [0, 1]);
    }

    /// The waiter of a runtime that is blocked is passed over. When the runtime goes on, the waiter joins the queue
    /// again.
    async fn a_waiter_of_a_blocked_runtime_is_passed_over_and_goes_on_waiting(db: &Db) {
        let (one, url) = (db.rowlock().await, db.url.clone());
        let held = take(&one, "a", TTL).await;
        let (go_on, blocked) = std::sync::mpsc::channel::<()>();
        let (blocks, is_blocked) = tokio::sync::oneshot::channel();
        let frozen = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let (rowlock, waiting) = runtime.block_on(async {
                let rowlock = Rowlock::connect(&url).await.unwrap();
                let waiting = join(&rowlock, "a", "frozen").await;
                (rowlock, waiting)
            });
            // Nothing polls the task from now on. The client's own threads keep its session.
            blocks.send(()).unwrap();
            blocked.recv().unwrap();
            runtime.block_on(async {
                let held = waiting.await.unwrap().unwrap();
                let fence = held.fence();
                release(&held).await;
                drop(rowlock);
                fence
            })
        });
        is_blocked.await.unwrap();
        let next = join(&one, "a", "next").await;
        release(&held).await;
        let next = next.await.unwrap().unwrap();
        assert!(next.is_held());
        go_on.send(()).unwrap();
        queue_is(&one, "a", &["frozen"]).await;
        release(&next).await;
        let fence = tokio::task::spawn_blocking(|| frozen.join().unwrap()).await.unwrap();
        assert!(fence > next.fence());
    }

    async fn busy_tells_how_many_wait(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let mut waiting = Vec::new();
        for n in 0..4 {
            for rowlock in [&one, &two] {
                let busy = busy(rowlock, "a").await;
                assert_eq!(busy.waiters, n);
                assert_eq!(busy.holder.map(|holder| holder.fence), Some(held.fence()));
            }
            waiting.push(join(&two, "a", &n.to_string()).await);
        }
        waiting.pop().unwrap().abort();
        eventually("it has left", async || busy(&one, "a").await.waiters == 3).await;
        release(&held).await;
        assert_eq!(turns(waiting).await, [0, 1, 2]);
    }

    async fn a_queue_that_is_full_takes_no_waiter(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        // Nobody waits for a free name.
        let held = one.lock("a").queue_limit(0).acquire().await.unwrap();
        let mut waiting = Vec::new();
        for limit in 0..3 {
            for rowlock in [&one, &two] {
                let error = rowlock.lock("a").queue_limit(limit).acquire().await.unwrap_err();
                let Error::QueueFull { busy, .. } = error else { panic!("{error}") };
                assert_eq!((busy.name.as_str(), busy.waiters), ("a", limit));
                assert_eq!(busy.holder.map(|holder| holder.fence), Some(held.fence()));
            }
            // Each acquire has a limit of its own.
            let holder = limit.to_string();
            waiting.push(join_with(&two, "a", &holder, |lock| lock.queue_limit(limit + 1)).await);
        }
        waiting.push(join(&one, "a", "3").await);
        queue_is(&one, "a", &["0", "1", "2", "3"]).await;
        waiting.remove(0).abort();
        queue_is(&one, "a", &["1", "2", "3"]).await;
        waiting.push(join_with(&one, "a", "4", |lock| lock.queue_limit(4)).await);
        drop(held);
        assert_eq!(turns(waiting).await, [0, 1, 2, 3]);
    }

    async fn names_do_not_disturb_each_other(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        // One name is the beginning of the other one.
        let (a, aa) = (take(&one, "a", TTL).await, take(&one, "aa", TTL).await);
        let mut of_a = Vec::new();
        let mut of_aa = Vec::new();
        for n in ["0", "1", "2"] {
            of_a.push(join(&two, "a", n).await);
            of_aa.push(join(&two, "aa", n).await);
        }
        of_aa.remove(1).abort();
        queue_is(&one, "aa", &["0", "2"]).await;
        queue_is(&one, "a", &["0", "1", "2"]).await;
        release(&a).await;
        assert_eq!(turns(of_a).await, [0, 1, 2]);
        queue_is(&two, "aa", &["0", "2"]).await;
        assert!(aa.is_held() && of_aa.iter().all(|waiting| !waiting.is_finished()));
        release(&aa).await;
        assert_eq!(turns(of_aa).await, [0, 1]);
    }
}
