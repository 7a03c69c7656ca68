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
fn a_renewal_that_is_due_again_at_once_is_put_off() {
    let start = Moment::now();
    let (mut it, all) = crowd(1, TTL, start);
    let now = start + secs(11);
    it.chunk(now);
    // From now on it is trusted for 20 s: two thirds of the trusted time after a full renewal.
    it.settle(now, &all[0], live(secs(24)), now);
    assert_eq!(all[0].renew_at(), now);
    assert!(it.next(now).unwrap() > now);
}
