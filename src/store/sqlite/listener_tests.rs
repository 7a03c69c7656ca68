//! Who listens is told.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rowlock_test::patience;
use uuid::Uuid;

use super::File;
use crate::model::{Kind, Share};
use crate::store::sqlite::listener::listen;
use crate::store::tests::{Client, TTL, named};
use crate::store::verbs::hold::{HoldOutcome, HoldStore, RunOutParams};
use crate::store::verbs::permit::{PermitStore, ResizeOutcome, WeighOutcome, WeighParams};
use crate::store::verbs::queue::{JoinOutcome, Listener, News, PassParams, PassWhy, QueueStore};
use crate::store::verbs::session::SessionStore;

fn listener_of(client: &Client<File>) -> Box<dyn Listener> {
    listen(client.session).unwrap().unwrap()
}

/// By this process.
fn passed(to: Uuid) -> News {
    let by_another = false;
    News::Passed { to, by_another }
}

async fn heard(listener: &mut dyn Listener) -> News {
    let heard = tokio::time::timeout(patience(), listener.next()).await;
    heard.expect("it is told").unwrap()
}

#[tokio::test]
async fn whoever_waits_is_told() {
    let place = &File::new().await;
    let (mut holder, mut client) = (Client::new(place).await, Client::new(place).await);
    let mut listener = listener_of(&client);
    let listener = &mut *listener;
    holder.conn.queue_test(client.session).await.unwrap();
    assert_eq!(heard(listener).await, News::Woken);

    // The name is passed on.
    let held = holder.hold("a").await;
    let waits = client.wait("a").await.params.grant_id;
    holder.release(held.params.grant_id, "a", held.fence).await;
    assert_eq!(heard(listener).await, passed(waits));
    assert!(client.row("a").await.is_of(waits));

    // The lease of the holder ends sooner.
    client.wait("a").await;
    let run_out = RunOutParams {
        name: named("a"),
        grant_id: waits,
        reservation: Uuid::new_v4(),
        time: TTL / 2,
    };
    let run_out = holder.conn.hold_run_out(&run_out).await.unwrap();
    assert_eq!(run_out, HoldOutcome::Done(()));
    assert_eq!(heard(listener).await, News::Woken);
}

#[tokio::test]
async fn whoever_waits_for_permits_is_told() {
    let place = &File::new().await;
    let (mut holder, mut client) = (Client::new(place).await, Client::new(place).await);
    let mut listener = listener_of(&client);
    let listener = &mut *listener;
    let of = |capacity, weight| Share {
        kind: Kind::Semaphore { capacity },
        weight,
    };
    // A permit ends.
    let first = holder.ask("s");
    holder.conn.permit_join(&first, of(1, 1)).await.unwrap();
    let waits = client.ask("s");
    client.conn.permit_join(&waits, of(1, 1)).await.unwrap();
    let why = PassWhy::Ended(first.grant_id);
    let params = PassParams {
        name: named("s"),
        why,
    };
    holder.conn.permit_pass(&params).await.unwrap();
    assert_eq!(heard(listener).await, passed(waits.grant_id));

    // There are more of them.
    let waits = client.ask("s");
    client.conn.permit_join(&waits, of(1, 1)).await.unwrap();
    let resized = holder.conn.permit_resize(&named("s"), 2).await.unwrap();
    let next = vec![waits.grant_id];
    let before = Some(1);
    assert_eq!(resized, Some(ResizeOutcome::Done { before, next }));
    assert_eq!(heard(listener).await, passed(waits.grant_id));

    // A writer goes on as a reader.
    let of = |weight| Share {
        kind: Kind::ReadWrite,
        weight,
    };
    let writes = holder.ask("rw");
    let joined = holder.conn.permit_join(&writes, of(Kind::ALL)).await;
    let Some(JoinOutcome::Granted { fence }) = joined.unwrap() else {
        panic!("it is free");
    };
    let waits = client.ask("rw");
    client.conn.permit_join(&waits, of(1)).await.unwrap();
    let params = WeighParams {
        name: named("rw"),
        grant_id: writes.grant_id,
        fence,
        weight: 1,
    };
    let weighed = holder.conn.permit_weigh(&params).await.unwrap();
    assert!(
        matches!(weighed, Some(WeighOutcome::Done { .. })),
        "{weighed:?}"
    );
    assert_eq!(heard(listener).await, passed(waits.grant_id));
}

#[tokio::test]
async fn whoever_waits_for_the_locks_of_a_session_is_told_of_its_end() {
    let place = &File::new().await;
    let (mut holder, mut client) = (Client::new(place).await, Client::new(place).await);
    let mut listener = listener_of(&client);
    let mut held = holder.ask("ü");
    held.in_session = true;
    holder.conn.queue_join(&held).await.unwrap();
    client.wait("ü").await;
    assert_eq!(holder.conn.session_end(holder.session).await.unwrap(), 1);
    assert_eq!(heard(&mut *listener).await, News::Woken);
}

/// Nobody listens, or who listened has gone, or hears nothing.
#[tokio::test]
async fn a_name_is_passed_on_to_who_does_not_listen() {
    let place = &File::new().await;
    let (mut holder, mut client) = (Client::new(place).await, Client::new(place).await);
    let mut listener = None;
    for listens in [false, true, false] {
        listener = listens.then(|| listener_of(&client));
        // More than a socket keeps.
        for _ in 0..if listens { 2_000 } else { 1 } {
            client.conn.queue_test(client.session).await.unwrap();
        }
        let held = holder.hold("a").await;
        let waits = client.wait("a").await;
        holder.release(held.params.grant_id, "a", held.fence).await;
        let row = client.row("a").await;
        assert!(row.is_of(waits.params.grant_id));
        client.release(waits.params.grant_id, "a", row.fence).await;
    }
    assert!(listener.is_none());
}

/// It knows the name of the socket, as everybody on the machine may, and not the rest of the session's id.
#[tokio::test]
async fn a_stranger_is_not_heard() {
    let place = &File::new().await;
    let mut client = Client::new(place).await;
    let mut listener = listener_of(&client);
    let name = format!("rowlock_{}", &client.session.simple().to_string()[..16]);
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let stranger = UnixDatagram::unbound().unwrap();
    for length in [0, 8, 24, 40] {
        stranger.send_to_addr(&vec![7; length], &address).unwrap();
    }
    client.conn.queue_test(client.session).await.unwrap();
    assert_eq!(heard(&mut *listener).await, News::Woken);
    let nothing = tokio::time::timeout(Duration::from_millis(50), listener.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
}

/// It was not closed.
#[tokio::test]
async fn one_listener_at_a_time_has_a_session() {
    let place = &File::new().await;
    let mut client = Client::new(place).await;
    let before = listener_of(&client);
    listen(client.session).unwrap_err();
    drop(before);
    let mut listener = listener_of(&client);
    client.conn.queue_test(client.session).await.unwrap();
    assert_eq!(heard(&mut *listener).await, News::Woken);
}

/// A transaction that is rolled back passes nothing on.
#[tokio::test]
async fn what_was_not_committed_is_not_told() {
    let place = &File::new().await;
    let (mut holder, mut client) = (Client::new(place).await, Client::new(place).await);
    let mut listener = listener_of(&client);
    let held = holder.hold("a").await;
    let waits = client.wait("a").await.params.grant_id;
    // The commit fails, and nothing before it.
    let fails = "CREATE TABLE one (id INTEGER PRIMARY KEY);
        CREATE TABLE other (id INTEGER REFERENCES one DEFERRABLE INITIALLY DEFERRED);
        CREATE TRIGGER fails AFTER UPDATE ON rowlock_lock BEGIN INSERT INTO other VALUES (1); END";
    holder.run(fails).await;
    let pass = PassParams {
        name: named("a"),
        why: PassWhy::Ended(held.params.grant_id),
    };
    holder.conn.queue_pass(&pass).await.unwrap_err();
    holder.run("DROP TRIGGER fails").await;
    holder.conn.queue_pass(&pass).await.unwrap();
    holder.conn.queue_test(client.session).await.unwrap();
    assert_eq!(heard(&mut *listener).await, passed(waits));
    assert_eq!(heard(&mut *listener).await, News::Woken);
    assert!(client.row("a").await.is_of(waits));
}
