//! What ends a wait, or prevents it.

use super::*;

pub(super) async fn a_full_queue_is_not_joined(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let mut none = join(&name, conn.session().await);
    none.most = 0;
    let joined = conn.queue_join(&none).await.unwrap();
    assert!(matches!(joined, Joined::Granted { .. }), "it is free");
    let mut one = join(&name, none.session);
    one.most = 1;
    let joined = conn.queue_join(&one).await.unwrap();
    assert!(matches!(joined, Joined::Queued { .. }));
    let again = conn.queue_join(&one).await.unwrap();
    assert!(matches!(again, Joined::Queued { position: 1, .. }));
    let mut two = join(&name, none.session);
    two.most = 1;
    let joined = conn.queue_join(&two).await.unwrap();
    let Joined::Full(row) = joined else {
        panic!("{joined:?}");
    };
    assert!(row.is_of(none.grant_id) && row.waiters == 1);
    assert_eq!(conn.numbers(&name).await, [1, 1, 2, 0]);
}

pub(super) async fn dead_waiters_are_passed_over(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let holder = conn.held(&name).await;
    let mut asks = Vec::new();
    for _ in 0..4 {
        asks.push(conn.queued(&name).await.0);
    }
    for dead in [0, 1, 3] {
        conn.end_of(asks[dead].session).await;
    }
    assert_eq!(conn.queue_list().await.unwrap().len(), 1);
    // The next name's waiters stay.
    let beside = super::name("b");
    conn.held(&beside).await;
    conn.queued(&beside).await;
    let end = pass(&name, Some((holder.grant_id, None)));
    let passed = conn.queue_pass(&end).await.unwrap();
    assert_eq!(passed, passed_on(true, &asks[2]));
    assert_eq!(conn.numbers(&name).await, [1, 1, 5, 3]);
    let gone = conn.queue_look(&[look(&asks[0], 1)]).await.unwrap();
    assert_eq!(gone, [Looked::Gone]);
    let end = pass(&name, Some((asks[2].grant_id, None)));
    assert_eq!(conn.queue_pass(&end).await.unwrap(), freed(true));
    assert_eq!(conn.numbers(&name).await, [0, 0, 5, 4]);
    assert_eq!(conn.numbers(&beside).await, [1, 1, 2, 0]);
    conn.held(&name).await;
    assert_eq!(conn.queued(&name).await.1, 5);
}

pub(super) async fn a_waiter_leaves(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let holder = conn.held(&name).await;
    let (one, first) = conn.queued(&name).await;
    let (two, second) = conn.queued(&name).await;
    let (three, third) = conn.queued(&name).await;
    let leave = pass(&name, Some((two.grant_id, Some(second))));
    for _ in 0..2 {
        assert_eq!(conn.queue_pass(&leave).await.unwrap(), Passed::No);
        assert_eq!(conn.numbers(&name).await, [2, 2, 4, 0]);
    }
    // It is granted at that instant.
    conn.queue_pass(&pass(&name, Some((holder.grant_id, None))))
        .await
        .unwrap();
    let leave = pass(&name, Some((one.grant_id, Some(first))));
    let passed = conn.queue_pass(&leave).await.unwrap();
    assert_eq!(passed, passed_on(true, &three));
    assert_eq!(conn.numbers(&name).await, [0, 0, 4, third]);
    // The last waiter of a free name leaves.
    let (last, position) = conn.queued(&name).await;
    conn.lease_force_release(&name, TTL).await.unwrap();
    let leave = pass(&name, Some((last.grant_id, Some(position))));
    assert_eq!(conn.queue_pass(&leave).await.unwrap(), Passed::No);
    assert_eq!(conn.numbers(&name).await, [0, 0, 5, 3]);
    let missing = pass(&super::name("missing"), Some((last.grant_id, Some(1))));
    assert_eq!(conn.queue_pass(&missing).await.unwrap(), Passed::No);
}

pub(super) async fn a_confirm_is_in_time_or_too_late(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let holder = conn.held(&name).await;
    let (mut next, _) = conn.queued(&name).await;
    let early = conn.queue_confirm(&confirm(&next)).await.unwrap();
    assert_eq!(early, Confirmed::Gone);
    conn.queue_pass(&pass(&name, Some((holder.grant_id, None))))
        .await
        .unwrap();
    // The TTL counts, though it is shorter than the window.
    next.ttl = Duration::from_secs(1);
    let held = conn.queue_confirm(&confirm(&next)).await.unwrap();
    let fence = conn.row(&name).await.fence;
    assert_eq!(held, Confirmed::Held { fence });
    assert!(micros(conn.row(&name).await.remaining.unwrap()) <= next.ttl);
    next.in_session = true;
    next.ttl = TTL;
    let held = conn.queue_confirm(&confirm(&next)).await.unwrap();
    assert_eq!(held, Confirmed::Held { fence });
    assert_eq!(conn.row(&name).await.session, Some(next.session));
    // A late second sending does not shorten it.
    next.ttl = Duration::from_secs(3);
    conn.queue_confirm(&confirm(&next)).await.unwrap();
    assert!(micros(conn.row(&name).await.remaining.unwrap()) > TTL / 2);
    conn.lapse(&name).await;
    let late = conn.queue_confirm(&confirm(&next)).await.unwrap();
    assert_eq!(late, Confirmed::Gone);
}

pub(super) async fn a_window_that_is_over_is_passed_on(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let holder = conn.held(&name).await;
    let (one, first) = conn.queued(&name).await;
    let (two, second) = conn.queued(&name).await;
    conn.queue_pass(&pass(&name, Some((holder.grant_id, None))))
        .await
        .unwrap();
    let looks = [look(&one, first), look(&two, second)];
    let granted = conn.queue_look(&looks).await.unwrap();
    let [Looked::Granted, Looked::Waiting { pass: false, .. }] = granted[..] else {
        panic!("{granted:?}");
    };
    conn.lapse(&name).await;
    let looked = conn.queue_look(&looks).await.unwrap();
    let [Looked::Gone, Looked::Waiting { pass: true, .. }] = looked[..] else {
        panic!("{looked:?}");
    };
    let joined = conn.queue_join(&join(&name, one.session)).await.unwrap();
    assert!(matches!(joined, Joined::Queued { pass: true, .. }));
    let passed = conn.queue_pass(&pass(&name, None)).await.unwrap();
    assert_eq!(passed, passed_on(false, &two));
    let late = conn.queue_confirm(&confirm(&one)).await.unwrap();
    assert_eq!(late, Confirmed::Gone);
}

pub(super) async fn a_release_with_waiters_passes_on(bench: &Bench) {
    let mut conn = bench.conn().await;
    let names = ["a", "b", "c"].map(super::name);
    for count in [1, 3] {
        let takes: Vec<TakeAsk> = names[..count].iter().map(|n| take(n, false)).collect();
        let taken = conn.lease_take(&takes).await.unwrap();
        let mut releases = Vec::new();
        for (ask, taken) in takes.iter().zip(taken) {
            let Taken::Granted { fence } = taken else {
                panic!("{taken:?}");
            };
            let (name, grant_id) = (ask.name.clone(), ask.grant_id);
            releases.push(ReleaseAsk {
                name,
                grant_id,
                fence,
            });
        }
        let (next, _) = conn.queued(&names[0]).await;
        let freed = conn.lease_release(&releases).await.unwrap();
        assert_eq!(freed, vec![Freed::Released; count]);
        assert!(conn.row(&names[0]).await.is_of(next.grant_id));
        let again = conn.lease_release(&releases[..1]).await.unwrap();
        assert_eq!(again, [Freed::Superseded]);
        for name in &names[1..count] {
            assert!(conn.row(name).await.grant_id.is_none());
        }
        let end = pass(&names[0], Some((next.grant_id, None)));
        assert_eq!(conn.queue_pass(&end).await.unwrap(), super::freed(true));
    }
}

pub(super) async fn only_barging_overtakes(bench: &Bench) {
    let mut conn = bench.conn().await;
    let names = [super::name("a"), super::name("b")];
    for name in &names {
        conn.held(name).await;
        conn.queued(name).await;
        conn.lease_force_release(name, TTL).await.unwrap();
        let row = conn.row(name).await;
        assert!(row.is_stuck() && row.grant_id.is_none());
    }
    for count in [1, 2] {
        let takes: Vec<TakeAsk> = names[..count].iter().map(|n| take(n, false)).collect();
        for taken in conn.lease_take(&takes).await.unwrap() {
            assert!(matches!(&taken, Taken::Busy(Some(row)) if row.is_stuck()));
        }
        let takes: Vec<TakeAsk> = names[..count].iter().map(|n| take(n, true)).collect();
        for taken in conn.lease_take(&takes).await.unwrap() {
            assert!(matches!(taken, Taken::Granted { .. }), "{taken:?}");
        }
        assert_eq!(conn.numbers(&names[0]).await, [1, 1, 2, 0]);
        // The holder has gone: no other takes the name before the waiter.
        for name in &names[..count] {
            conn.lapse(name).await;
        }
        let takes: Vec<TakeAsk> = names[..count].iter().map(|n| take(n, false)).collect();
        for taken in conn.lease_take(&takes).await.unwrap() {
            assert!(matches!(&taken, Taken::Busy(Some(row)) if row.is_stuck()));
        }
    }
}

pub(super) async fn a_locked_row_is_not_waited_for(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let holder = conn.held(&name).await;
    let (next, position) = conn.queued(&name).await;
    let mut pin = bench.conn().await;
    let row = hex(name.as_bytes());
    let ask = join(&name, next.session);
    for lock in ["FOR UPDATE", "LOCK IN SHARE MODE"] {
        pin.sql("START TRANSACTION").await;
        pin.sql(&format!(
            "SELECT fence FROM rowlock_lock WHERE name = {row} {lock}"
        ))
        .await;
        let from = Instant::now();
        let joined = conn.queue_join(&ask).await.unwrap();
        assert!(matches!(joined, Joined::Locked), "{joined:?}");
        let confirmed = conn.queue_confirm(&confirm(&holder)).await.unwrap();
        assert_eq!(confirmed, Confirmed::Locked);
        let end = pass(&name, Some((holder.grant_id, None)));
        assert_eq!(conn.queue_pass(&end).await.unwrap(), Passed::Locked);
        let leave = pass(&name, Some((next.grant_id, Some(position))));
        assert_eq!(conn.queue_pass(&leave).await.unwrap(), Passed::Locked);
        assert!(from.elapsed() < 4 * Duration::from_millis(100));
        // No transaction is open: what this connection writes is seen at once.
        let session = conn.session().await;
        let seen: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM rowlock_session WHERE id = ?")
            .bind(session)
            .fetch_one(&mut bench.conn().await)
            .await
            .unwrap();
        assert_eq!(seen, 1);
        let looked = conn.queue_look(&[look(&next, position)]).await.unwrap();
        assert!(matches!(looked[..], [Looked::Waiting { pass: false, .. }]));
        pin.sql("ROLLBACK").await;
        assert_eq!(conn.numbers(&name).await, [1, 1, 2, 0]);
    }
    let release = ReleaseAsk {
        fence: conn.row(&name).await.fence,
        name: name.clone(),
        grant_id: holder.grant_id,
    };
    pin.sql("START TRANSACTION").await;
    pin.sql(&format!(
        "SELECT fence FROM rowlock_lock WHERE name = {row} FOR UPDATE"
    ))
    .await;
    let freed = conn.lease_release(std::slice::from_ref(&release)).await;
    assert_eq!(freed.unwrap(), [Freed::Locked]);
    pin.sql("COMMIT").await;
    let freed = conn.lease_release(&[release]).await.unwrap();
    assert_eq!(freed, [Freed::Released]);
}

pub(super) async fn the_lock_of_an_expired_session_is_passed_on(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let mut holder = join(&name, conn.session().await);
    holder.in_session = true;
    conn.queue_join(&holder).await.unwrap();
    let (next, position) = conn.queued(&name).await;
    assert_eq!(
        conn.queue_pass(&pass(&name, None)).await.unwrap(),
        Passed::No
    );
    conn.end_of(holder.session).await;
    let joined = conn.queue_join(&join(&name, next.session)).await.unwrap();
    assert!(matches!(joined, Joined::Queued { pass: true, .. }));
    let looked = conn.queue_look(&[look(&next, position)]).await.unwrap();
    assert!(matches!(looked[..], [Looked::Waiting { pass: true, .. }]));
    // A transaction has the lock pinned: it stays with its holder.
    let mut pin = bench.conn().await;
    let row = hex(name.as_bytes());
    pin.sql("START TRANSACTION").await;
    pin.sql(&format!(
        "SELECT 1 FROM rowlock_lock WHERE name = {row} LOCK IN SHARE MODE"
    ))
    .await;
    let passed = conn.queue_pass(&pass(&name, None)).await.unwrap();
    assert_eq!(passed, Passed::Locked);
    assert!(conn.row(&name).await.is_of(holder.grant_id));
    pin.sql("COMMIT").await;
    let passed = conn.queue_pass(&pass(&name, None)).await.unwrap();
    assert_eq!(passed, passed_on(false, &next));
    let renewed = conn.session_renew(holder.session, TTL).await.unwrap();
    assert_eq!(renewed, None, "it has ended");
}

pub(super) async fn positions_that_were_forgotten_are_given_again(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    conn.held(&name).await;
    let (lost, position) = conn.queued(&name).await;
    conn.sql("DELETE FROM rowlock_lock").await;
    conn.held(&name).await;
    conn.queued(&name).await;
    assert_eq!(conn.numbers(&name).await, [1, 1, 2, 0]);
    let gone = conn.queue_look(&[look(&lost, position)]).await.unwrap();
    assert_eq!(gone, [Looked::Gone]);
}

pub(super) async fn a_row_with_waiters_is_never_idle(bench: &Bench) {
    let mut conn = bench.conn().await;
    let names = [super::name("a"), super::name("b")];
    for name in &names {
        conn.held(name).await;
    }
    conn.queued(&names[0]).await;
    let lapse =
        "UPDATE rowlock_lock SET fence = 1, acquired_at = '2001-01-01', expires_at = '2001-01-02'";
    conn.sql(lapse).await;
    let cleaned = conn.lock_clean(b"", 10).await.unwrap();
    assert_eq!(cleaned.removed, 1);
    assert_eq!(conn.row(&names[0]).await.waiters, 1);
}
