//! Edge cases: events at the very moment of a change.

use super::*;
use crate::model::RecordKey;

/// A request has room for this many names of one byte.
const ROOM: usize = 384 / 14;

fn small() -> RequestLimit {
    RequestLimit::of(16_000, 10, 4)
}

#[test]
fn the_limit_on_requests_holds_from_the_start() {
    let start = Moment::now();
    let mut it = Schedule::within(small());
    for _ in 0..60 {
        it.keep(start, lease(TTL, start));
    }
    assert_eq!(it.chunk(start + secs(10)).kept.len(), ROOM);
}

#[test]
fn a_longer_name_takes_more_of_a_request() {
    let start = Moment::now();
    let grant = |scope: &str, key: &str| {
        let key = RecordKey::new(scope, key).unwrap();
        let (id, exact) = (Uuid::new_v4(), ClockError::new(Duration::ZERO));
        let deadline = start + exact.trusted(TTL);
        Renewable::Attempt(Arc::new(Grant::new(key, id, 1, TTL, exact, None, deadline)))
    };
    assert_eq!(grant("customer:7", "order").name_len(), 15);
    let lease = Grant::new(
        Name::new("stock:42").unwrap(),
        Uuid::new_v4(),
        1,
        TTL,
        ClockError::new(Duration::ZERO),
        None,
        start + TTL,
    );
    assert_eq!(Renewable::Lease(Arc::new(lease)).name_len(), 8);
}

#[test]
fn the_helper_wakes_for_what_is_earlier_and_sleeps_on_for_what_is_later() {
    let start = Moment::now();
    let (mut it, _) = crowd(2, TTL, start);
    let now = start + secs(11);
    it.chunk(now);
    it.keep(now, lease(secs(2), now));
    let planned = it.spare_next(now).unwrap();
    assert!(!it.keep(now, lease(secs(3), now)).helper);
    assert_eq!(it.spare_next(now), Some(planned));
    assert!(it.keep(now, lease(secs(1), now)).helper);
    assert!(it.spare_next(now).unwrap() < planned);
}

#[test]
fn while_statements_are_slow_only_the_most_urgent_class_wakes_the_helper() {
    let start = Moment::now();
    // The class of the longest TTL has a full chunk at this moment.
    let full = start + secs(10) + Duration::from_nanos(255);
    for calm in [true, false] {
        let (mut it, _) = crowd(256, TTL, start);
        it.keep(start, lease(secs(6), start));
        if !calm {
            it.pace.took(secs(1), secs(2), 1);
        }
        // Its statement is in flight until then.
        let now = start + secs(2);
        assert_eq!(it.chunk(now).kept.len(), 1);
        assert_eq!(it.spare_next(now), calm.then_some(full));
    }
}

#[test]
fn a_request_that_is_full_goes_over_the_spare_connection() {
    let start = Moment::now();
    let (mut it, _) = crowd(1, TTL, start - secs(1));
    it.limit = small();
    let now = start + secs(10);
    assert_eq!(it.chunk(now - secs(1)).kept.len(), 1);
    for count in [ROOM, 1] {
        for _ in 0..count {
            it.keep(start, lease(TTL, start));
        }
        let expected = (count == 1).then_some(ROOM);
        assert_eq!(it.spare_chunk(now).map(|chunk| chunk.kept.len()), expected);
    }
}

#[test]
fn a_chunk_that_is_full_of_what_is_only_due_soon_wakes_nobody() {
    let start = Moment::now();
    let (mut it, _) = crowd(1, secs(60), start - secs(20));
    let now = start + secs(10);
    assert_eq!(it.chunk(now).kept.len(), 1);
    // Half of a full chunk is due now, and the other half soon.
    for _ in 0..128 {
        it.keep(start, lease(TTL, start));
        it.keep(start, lease(TTL, start + secs(1)));
    }
    assert!(it.spare_chunk(now).is_none());
    assert!(it.spare_next(now).is_none_or(|at| at > now));
}

#[test]
fn a_renewal_that_is_due_again_at_once_is_put_off() {
    let start = Moment::now();
    let (mut it, all) = crowd(1, TTL, start);
    let now = start + secs(11);
    it.chunk(now);
    // From now on it is trusted for 20 s: two thirds of the trusted time after a full renewal.
    it.settle(now, &all[0], live(secs(24)), now);
    assert_eq!(all[0].renew_at(), now);
    assert!(it.next().unwrap() > now);
}
