//! What a look at the grants of a session shows.

use super::*;
use crate::model::ClockError;

const TTL: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(10);

fn session() -> Arc<Session> {
    let id = Uuid::new_v4();
    let (exact, deadline) = (ClockError::new(Duration::ZERO), Moment::now() + TTL);
    Arc::new(Session::new(Grant::new(
        id, id, 0, TTL, exact, None, deadline,
    )))
}

fn grant(session: &Session, name: &str) -> Arc<Grant> {
    let fence = i64::try_from(session.added()).unwrap() + 1;
    granted(session, name, fence)
}

fn granted(session: &Session, name: &str, fence: i64) -> Arc<Grant> {
    let (name, exact) = (Name::new(name).unwrap(), ClockError::new(Duration::ZERO));
    let deadline = Moment::now() + TTL;
    let grant = Grant::new(name, Uuid::new_v4(), fence, TTL, exact, None, deadline);
    let grant = Arc::new(grant.in_session(&session.grant));
    session.add(&grant);
    grant
}

fn row(grant: &Grant) -> (Vec<u8>, Uuid) {
    (grant.name.as_bytes().to_vec(), grant.id)
}

fn renewal(forced: i64, connection: u64) -> SessionRenewal {
    SessionRenewal { forced, connection }
}

/// A whole look in one page, at `now`. Returns the strays to free.
fn look(session: &Session, found: &[(Vec<u8>, Uuid)], now: Moment) -> Vec<Uuid> {
    let mut look = session.begin_look(now);
    let strays = session.compare(&mut look, found, false, session.added(), GRACE);
    session.end_look(&look, renewal(0, 1));
    strays.into_iter().map(|(_, id)| id).collect()
}

#[test]
fn a_grant_that_the_database_does_not_have_is_lost_alone() {
    let session = session();
    let [gone, kept, released] = ["gone", "kept", "released"].map(|name| grant(&session, name));
    session.forget(&released);
    let mut look = session.begin_look(Moment::now());
    let added = session.added();
    // It was granted after the page was asked for.
    let late = grant(&session, "late");
    let strays = session.compare(&mut look, &[row(&kept)], false, added, GRACE);
    assert!(strays.is_empty());
    assert_eq!(gone.loss(), Some(Loss::TakenOver));
    for held in [kept, released, late] {
        assert!(held.is_held(), "{}", held.name);
    }
}

#[test]
fn a_page_judges_only_the_names_in_it() {
    let session = session();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| grant(&session, name));
    let added = session.added();
    let mut look = session.begin_look(Moment::now());
    session.compare(&mut look, &[row(&a)], true, added, GRACE);
    assert_eq!(look.after, b"a");
    session.compare(&mut look, &[row(&c)], true, added, GRACE);
    assert!(a.is_held() && !b.is_held() && c.is_held() && d.is_held());
    session.compare(&mut look, &[], false, added, GRACE);
    assert!(a.is_held() && c.is_held() && !d.is_held());
}

#[test]
fn of_two_grants_of_a_name_the_earlier_one_is_lost() {
    let session = session();
    let [first, second] = [1, 2].map(|fence| granted(&session, "a", fence));
    assert!(!first.is_held() && second.is_held());
    let [third, late] = [4, 3].map(|fence| granted(&session, "a", fence));
    assert!(!second.is_held() && third.is_held() && !late.is_held());
    session.forget(&third);
    assert_eq!(session.locks(), 0);
}

#[test]
fn a_later_grant_of_the_same_name_is_another_one() {
    let session = session();
    let first = grant(&session, "a");
    let second = grant(&session, "a");
    session.forget(&first);
    assert_eq!(session.locks(), 1);
    look(&session, &[row(&first)], Moment::now());
    assert!(!second.is_held());
}

#[test]
fn a_grant_without_a_guard_is_freed_when_two_looks_have_found_it() {
    let session = session();
    let [held, released] = ["held", "released"].map(|name| grant(&session, name));
    session.forget(&released);
    let rows = [row(&held), row(&released)];
    let start = Moment::now();
    assert!(
        look(&session, &rows, start).is_empty(),
        "its release may be under way"
    );
    assert!(look(&session, &rows, start + GRACE / 2).is_empty());
    assert_eq!(look(&session, &rows, start + GRACE), [released.id]);
    // It was freed, and another grant is lost later.
    assert!(look(&session, &rows[..1], start + GRACE * 2).is_empty());
    assert!(look(&session, &rows, start + GRACE * 3).is_empty());
    assert!(held.is_held());
}

#[test]
fn a_grant_that_is_being_asked_for_is_no_stray_and_asks_for_another_look() {
    let session = session();
    let id = Uuid::new_v4();
    let asked = session.ask(id);
    let rows = [(b"a".to_vec(), id)];
    let start = Moment::now();
    for turn in 0..3 {
        assert!(look(&session, &rows, start + GRACE * turn).is_empty());
        // The lock may have been freed by force before its guard was made: only the next look can tell.
        assert!(session.is_look_due(renewal(0, 1), start + GRACE * turn));
    }
    drop(asked);
    assert!(look(&session, &rows, start).is_empty());
    assert!(!session.is_look_due(renewal(0, 1), start));
    assert_eq!(look(&session, &rows, start + GRACE), [id]);
}

#[test]
fn grants_are_looked_at_once_per_ttl_over_a_new_connection_and_after_a_forced_release() {
    let session = session();
    let now = Moment::now();
    let due = |forced, connection| session.is_look_due(renewal(forced, connection), now);
    let seen = |connection| session.end_look(&session.begin_look(now), renewal(0, connection));
    assert!(!due(0, 7), "it is a session of waiters only");
    drop(session.ask(Uuid::new_v4()));
    assert!(due(0, 7), "the first connection");
    seen(7);
    assert!(!due(0, 7));
    assert!(session.is_look_due(renewal(0, 7), now + TTL));
    assert!(due(1, 7) && due(0, 8));
    seen(8);
    assert!(!due(0, 8) && due(0, 7));
}

#[test]
fn without_a_look_the_locks_are_trusted_for_one_ttl() {
    let session = session();
    let held = grant(&session, "a");
    let began = Moment::now();
    session.await_look(began);
    session.await_look(began + TTL / 2);
    assert!(held.is_held());
    look(&session, &[row(&held)], began + TTL / 2);
    // Another one is due.
    let since = began + TTL / 2 + Duration::from_secs(1);
    session.await_look(since);
    session.await_look(since + TTL - Duration::from_millis(1));
    assert!(held.is_held());
    session.await_look(since + TTL);
    assert_eq!(held.loss(), Some(Loss::Expired));
    assert!(session.grant.is_held(), "it is renewed");
}
