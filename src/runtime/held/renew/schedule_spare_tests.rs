//! Which leases go over the spare connection, and when.

use super::*;

#[test]
fn a_full_chunk_does_not_wait_for_the_statement_in_flight() {
    let (now, mut it, urgent, slow) = three_classes();
    assert_eq!(it.spare_next(now), None);
    assert!(it.spare_chunk(now).is_none());
    assert_eq!(ids(&it.chunk(now).kept), [id(&urgent)]);
    for _ in 0..3 {
        assert_eq!(it.spare_next(now), Some(now));
        let Chunk { kept, bound } = it.spare_chunk(now).unwrap();
        assert_eq!((kept.len(), bound), (256, millis(60)));
    }
    // The rest is next on the first connection, and shares a statement.
    assert_ne!(it.spare_next(now), Some(now));
    assert!(it.spare_chunk(now).is_none());
    it.landed();
    let last = it.chunk(now).kept;
    assert_eq!(last.len(), 233);
    assert!(ids(&last).contains(&id(&slow)));
    // Leases that are only due soon make no full chunk.
    let start = Moment::now();
    let (mut it, _) = crowd(512, TTL, start);
    it.chunk(start + secs(10) + Duration::from_nanos(300));
    assert_eq!(
        it.spare_next(start + secs(10) + Duration::from_nanos(300)),
        Some(start + secs(10) + Duration::from_nanos(511))
    );
}

#[test]
fn what_is_urgent_goes_over_the_spare_connection_by_itself_and_before_a_full_chunk() {
    let (now, mut it, urgent, _) = three_classes();
    assert_eq!(ids(&it.chunk(now).kept), [id(&urgent)]);
    it.settle(now, &urgent, live(millis(240)), now);
    it.landed();
    assert_eq!(it.chunk(now).kept.len(), 256);
    let due = urgent.renew_at();
    assert_eq!(it.spare_chunk(now).unwrap().kept.len(), 256);
    assert_eq!(ids(&it.spare_chunk(due).unwrap().kept), [id(&urgent)]);
    assert_eq!(it.spare_chunk(due).unwrap().kept.len(), 256);
}

#[test]
fn what_overtakes_takes_nobodys_turn() {
    let (now, mut it, urgent, slow) = three_classes();
    it.last_class = class(urgent.ttl());
    let mut seen = false;
    for round in 0..3 {
        let chunk = it.chunk(now + millis(100) * round).kept;
        seen |= ids(&chunk).contains(&id(&slow));
        // The crowd never ends, and the urgent lease overtakes it each time.
        it.put_back(&chunk);
        let due = urgent.renew_at();
        let overtaking = it.spare_chunk(due).unwrap().kept;
        it.settle(due, &overtaking[0], live(millis(240)), due);
        it.landed();
    }
    assert!(seen, "the slow one had no turn");
}

#[test]
fn each_class_overtakes_a_statement_that_it_cannot_wait_for() {
    let now = Moment::now();
    let (mut it, _) = crowd(300, secs(60), now - secs(20));
    let urgent = lease(millis(200), now);
    let middle = lease(secs(1), now - millis(300));
    it.last_class = class(middle.ttl());
    it.keep(now, urgent);
    it.keep(now, middle.clone());
    assert_eq!(it.chunk(now).bound, MAX_BOUND);
    assert_eq!(it.spare_next(now), Some(now));
    assert_eq!(ids(&it.spare_chunk(now).unwrap().kept), [id(&middle)]);
}

#[test]
fn crowds_go_in_turn_over_both_connections() {
    let start = Moment::now();
    let (mut it, _) = crowd(1_000, secs(6), start);
    for _ in 0..1_000 {
        it.keep(start, lease(secs(60), start - secs(15)));
    }
    let now = start + millis(2_100);
    let mut ttls = Vec::new();
    for _ in 0..3 {
        ttls.push(it.chunk(now).kept[0].ttl().as_secs());
        ttls.push(it.spare_chunk(now).unwrap().kept[0].ttl().as_secs());
    }
    // Each connection has turns of its own; leases of a shorter TTL overtake a statement for those of a longer one.
    assert_eq!(ttls, [6, 6, 60, 6, 6, 60]);
}

#[test]
fn what_is_urgent_does_not_wait_for_a_statement_that_may_take_longer() {
    let (now, mut it, urgent, _) = three_classes();
    it.pace.took(millis(31), secs(1), 256);
    // Its own statement is in flight, and the crowd may not be on both.
    assert_eq!(ids(&it.chunk(now).kept), [id(&urgent)]);
    assert_eq!(it.spare_next(now), None);
    it.settle(now, &urgent, live(millis(240)), now);
    it.landed();
    let due = urgent.renew_at();
    assert_eq!(it.chunk(now).bound, millis(1_500));
    assert_eq!(it.spare_next(now), Some(due));
    assert!(it.spare_chunk(now).is_none());
    let chunk = it.spare_chunk(due).unwrap();
    assert_eq!(
        (ids(&chunk.kept), chunk.bound),
        (vec![id(&urgent)], millis(60))
    );
    // After a failure it is tried there again.
    it.fail(due, &chunk.kept);
    let again = it.spare_next(due).unwrap();
    assert!(again > due && again < due + millis(50));
    assert_eq!(ids(&it.spare_chunk(again).unwrap().kept), [id(&urgent)]);
    it.fail(again, &chunk.kept);
    it.landed();
    assert_eq!(it.spare_next(again), None);
}

#[test]
fn a_lease_that_is_taken_while_a_long_statement_is_in_flight_wakes_the_helper() {
    let start = Moment::now();
    let (mut it, _) = crowd(2, TTL, start);
    let now = start + secs(11);
    assert_eq!(it.chunk(now).bound, MAX_BOUND);
    assert_eq!(it.spare_next(now), None);
    let short = lease(secs(1), now);
    let wake = it.keep(now, short.clone());
    assert_eq!((wake.renewer, wake.helper), (false, true));
    assert_eq!(it.spare_next(now), Some(short.renew_at()));
    // It is awake in time for what comes later, and has nothing to do when nothing is in flight.
    assert!(!it.keep(now, lease(secs(1), now)).helper);
    it.landed();
    assert!(!it.keep(now, lease(millis(500), now)).helper);
    assert_eq!(it.spare_next(now), None);
}

#[test]
fn the_helper_wakes_when_a_chunk_becomes_full() {
    let start = Moment::now();
    let (mut it, all) = crowd(512, TTL, start);
    assert_eq!(it.chunk(all[0].renew_at()).kept.len(), 256);
    // The last lease of the next chunk.
    let full = all[511].renew_at();
    assert_eq!(it.spare_next(all[300].renew_at()), Some(full));
    assert_eq!(it.spare_next(full), Some(full));
    // A request may be full before.
    it.limit = RequestLimit::of(16_000, 10, 4);
    let full = all[256 + 384 / 14].renew_at();
    assert_eq!(it.spare_next(start), Some(full));
    assert_eq!(it.spare_chunk(full).unwrap().kept.len(), 384 / 14);
}
