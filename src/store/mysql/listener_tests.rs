//! Who listens is woken.

use super::*;
use crate::model::{Kind, Share};
use crate::store::mysql::listener::{kill, listen, listener_of};
use crate::store::verbs::hold::{HoldOutcome, HoldStore, RunOutParams};
use crate::store::verbs::permit::PermitStore;
use crate::store::verbs::queue::{Listener, News};

async fn listener_of(place: &Database, session: Uuid) -> Box<dyn Listener> {
    let conn = place.connect().await;
    listen(conn, session).await.unwrap().unwrap()
}

/// Until the connection that listens for the client's session sleeps: on `MariaDB` not in a SLEEP, which two wakes at
/// once would keep, with all sleeps of the server, for two seconds.
async fn sleeps(place: &Database, session: Uuid) {
    let mut conn = place.connect().await;
    let [schema, state] = if Database::is_mariadb(&mut conn).await {
        ["information_schema", "Waiting in MASTER_GTID_WAIT%"]
    } else {
        ["performance_schema", "User sleep"]
    };
    let asleep = format!(
        "SELECT COUNT(*) FROM {schema}.processlist
         WHERE id = IS_USED_LOCK('rowlock_{}') AND state LIKE '{state}'",
        session.simple()
    );
    while Database::numbers(&mut conn, &asleep).await[0] == 0 {
        Database::numbers(&mut conn, "SELECT SLEEP(0.001)").await;
    }
}

/// What the listener hears of something that is done while it sleeps.
async fn heard(
    place: &Database,
    listener: &mut dyn Listener,
    session: Uuid,
    done: impl Future<Output = ()>,
) -> News {
    let done = async {
        sleeps(place, session).await;
        done.await;
    };
    tokio::join!(listener.next(), done).0.unwrap()
}

pub(super) async fn whoever_waits_is_woken(place: &Database) {
    let (mut holder, mut client) = (Client::new(place).await, Client::new(place).await);
    let session = client.session;
    let mut listener = listener_of(place, session).await;
    let listener = &mut *listener;
    let test = async { holder.conn.queue_test(session).await.unwrap() };
    assert_eq!(heard(place, listener, session, test).await, News::Woken);

    // The name is passed on.
    let held = holder.hold("a").await;
    let waits = client.wait("a").await;
    let release = async {
        holder.release(held.params.grant_id, "a", held.fence).await;
    };
    assert_eq!(heard(place, listener, session, release).await, News::Woken);
    assert!(client.row("a").await.is_of(waits.params.grant_id));

    // The lease of the holder ends sooner; also when the answer was lost.
    client.wait("a").await;
    let params = RunOutParams {
        name: named("a"),
        grant_id: waits.params.grant_id,
        reservation: Uuid::new_v4(),
        time: TTL / 2,
    };
    for _ in 0..2 {
        let run_out = async {
            let run_out = holder.conn.hold_run_out(&params).await.unwrap();
            assert_eq!(run_out, HoldOutcome::Done(()));
        };
        assert_eq!(heard(place, listener, session, run_out).await, News::Woken);
    }

    // Permits are free.
    let kind = Kind::Semaphore { capacity: 1 };
    let share = Share { kind, weight: 1 };
    let joined = holder.ask("s");
    holder.conn.permit_join(&joined, share).await.unwrap();
    let waits = client.ask("s");
    client.conn.permit_join(&waits, share).await.unwrap();
    let pass = async {
        let why = PassWhy::Ended(joined.grant_id);
        let name = named("s");
        let passed = holder.conn.permit_pass(&PassParams { name, why }).await;
        assert_eq!(passed.unwrap().unwrap().next, [waits.grant_id]);
    };
    assert_eq!(heard(place, listener, session, pass).await, News::Woken);
}

/// It was dropped in its sleep, so that the server has not seen yet that it is gone.
pub(super) async fn a_listener_takes_the_place_of_the_one_before(place: &Database) {
    let mut client = Client::new(place).await;
    let session = client.session;
    let mut before = listener_of(place, session).await;
    tokio::select! {
        news = before.next() => panic!("{news:?}"),
        () = sleeps(place, session) => {}
    }
    let mut listener = listener_of(place, session).await;
    drop(before);
    let test = async { client.conn.queue_test(session).await.unwrap() };
    assert_eq!(
        heard(place, &mut *listener, session, test).await,
        News::Woken
    );
}

/// Nobody listens, or who listened has gone.
pub(super) async fn a_name_is_passed_on_to_who_does_not_listen(place: &Database) {
    let (mut holder, mut client) = (Client::new(place).await, Client::new(place).await);
    for listens in [false, true] {
        if listens {
            let listener = listener_of(place, client.session).await;
            listener.close().await;
        }
        let held = holder.hold("a").await;
        let waits = client.wait("a").await;
        holder.release(held.params.grant_id, "a", held.fence).await;
        let row = client.row("a").await;
        assert!(row.is_of(waits.params.grant_id));
        client.conn.queue_test(client.session).await.unwrap();
        client.release(waits.params.grant_id, "a", row.fence).await;
    }
}

/// Also one that comes when the next sleep has begun and does not sleep yet.
pub(super) async fn every_wake_of_many_is_heard(place: &Database) {
    let client = Client::new(place).await;
    let mut listener = listener_of(place, client.session).await;
    let mut other = place.connect().await;
    let id = format!(
        "SELECT CAST(IS_USED_LOCK('rowlock_{}') AS SIGNED)",
        client.session.simple()
    );
    let id = Database::numbers(&mut other, &id).await[0];
    let wakes = vec![kill(&format!("QUERY {id}")); 100].join("; ");
    let wakes = async {
        loop {
            Database::run(&mut other, &wakes).await;
        }
    };
    let hears = async {
        for _ in 0..1_000 {
            assert_eq!(listener.next().await.unwrap(), News::Woken);
        }
    };
    tokio::select! {
        () = wakes => {}
        () = hears => {}
    }
}

/// A user may have a lock of the name that a session without an id would have.
pub(super) async fn nobody_is_woken_without_a_session(place: &Database) {
    let mut stranger = place.connect().await;
    Database::run(&mut stranger, "SELECT GET_LOCK('rowlock_', 0)").await;
    let mut conn = place.connect().await;
    let found = concat!("SELECT COALESCE(", listener_of!("HEX(@rl_nobody)"), ", 0)");
    assert_eq!(Database::numbers(&mut conn, found).await, [0]);
}

pub(super) async fn a_wake_that_fails_takes_nothing_back(place: &Database) {
    let mut holder = Client::new(place).await;
    let held = holder.hold("a").await;
    holder.run("RENAME TABLE rowlock_waiter TO away").await;
    let params = RunOutParams {
        name: named("a"),
        grant_id: held.params.grant_id,
        reservation: Uuid::new_v4(),
        time: TTL / 2,
    };
    let run_out = holder.conn.hold_run_out(&params).await.unwrap();
    assert_eq!(run_out, HoldOutcome::Done(()));
    holder.run("RENAME TABLE away TO rowlock_waiter").await;
}

pub(super) async fn a_sleep_is_no_slow_statement(place: &Database) {
    let client = Client::new(place).await;
    let listener = listener_of(place, client.session).await;
    let mut conn = place.connect().await;
    let longest = format!(
        "SELECT CAST(v.variable_value AS SIGNED) FROM performance_schema.threads t
         JOIN performance_schema.variables_by_thread v USING (thread_id)
         WHERE t.processlist_id = IS_USED_LOCK('rowlock_{}') AND v.variable_name = 'long_query_time'",
        client.session.simple()
    );
    assert!(Database::numbers(&mut conn, &longest).await[0] > 3_600);
    listener.close().await;
}
