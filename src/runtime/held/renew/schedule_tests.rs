use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::model::{ClockError, Name};
use crate::runtime::held::grant::Grant;

#[path = "schedule_edge_tests.rs"]
mod edge;
#[path = "schedule_failure_tests.rs"]
mod failure;

/// The trusted time is five sixths of a TTL: renewals of a TTL of 36 s are due after 10 s, warnings after 20 s, and it
/// is lost after 30 s.
const TTL: Duration = Duration::from_secs(36);

/// Ids that are short in the output of a failed test.
static COUNT: AtomicU64 = AtomicU64::new(0);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A grant with its full TTL, asked for at `sent`.
fn grant(ttl: Duration, sent: Moment, cap: Option<Moment>) -> Arc<Grant> {
    let exact = ClockError::new(Duration::ZERO);
    let deadline = sent + exact.trusted(ttl);
    let name = Name::new("n").unwrap();
    let id = Uuid::from_u128(COUNT.fetch_add(1, Ordering::Relaxed).into());
    let grant = Grant::new(name, id, 1, ttl, exact, cap, deadline);
    assert!(grant.add_guard());
    Arc::new(grant)
}

fn lease(ttl: Duration, sent: Moment) -> Renewable {
    Renewable::Lease(grant(ttl, sent, None))
}

fn ids(kept: &[Renewable]) -> Vec<u128> {
    kept.iter().map(id).collect()
}

fn id(kept: &Renewable) -> u128 {
    kept.id().as_u128()
}

fn live(remaining: Duration) -> RenewOutcome {
    RenewOutcome::Live { remaining }
}

/// A schedule of `count` leases asked for at `sent`, one nanosecond apart.
fn crowd(count: u64, ttl: Duration, sent: Moment) -> (Schedule, Vec<Renewable>) {
    let mut schedule = Schedule::default();
    let nanos = |n| Duration::from_nanos(n);
    let all: Vec<Renewable> = (0..count).map(|n| lease(ttl, sent + nanos(n))).collect();
    for kept in &all {
        schedule.keep(sent, kept.clone());
    }
    (schedule, all)
}

#[test]
fn a_task_is_woken_only_for_what_is_earlier() {
    let start = Moment::now();
    let mut it = Schedule::default();
    let both = Wake {
        announcer: true,
        renewer: true,
    };
    let neither = Wake {
        announcer: false,
        renewer: false,
    };
    assert_eq!(it.keep(start, lease(TTL, start)), both);
    assert_eq!(it.keep(start, lease(TTL, start)), neither);
    assert_eq!(it.keep(start, lease(TTL, start + secs(1))), neither);
    assert_eq!(it.keep(start, lease(TTL / 2, start)), both);
    // The tasks have looked, and sleep until then.
    assert_eq!(it.announce(start, 10), Some(start + secs(10)));
    assert_eq!(it.next(start), Some(start + secs(5)));
    assert_eq!(it.keep(start, lease(TTL / 2, start)), neither);
    assert_eq!(it.keep(start, lease(TTL / 4, start)), both);
    // A lease that is not renewed is only watched.
    let cap = start + millis(2_500);
    let short = Renewable::Lease(grant(secs(3), start, Some(cap)));
    let wake = it.keep(start, short);
    assert_eq!((wake.announcer, wake.renewer), (true, false));
}

#[test]
fn a_grant_is_renewed_in_time_again_and_again_and_warned_of_nothing() {
    let start = Moment::now();
    let mut it = Schedule::default();
    let kept = lease(TTL, start);
    it.keep(start, kept.clone());
    for round in 1..=5 {
        let due = start + secs(10) * round;
        assert_eq!(it.next(start), Some(due));
        let chunk = it.chunk(due);
        assert_eq!(ids(&chunk.kept), [id(&kept)]);
        assert_eq!(it.next(due), None);
        it.settle(due + secs(1), &kept, live(TTL), due);
        assert!(it.announce(due, 10) > Some(due));
        assert!(!kept.status().at_risk);
    }
    assert_eq!(kept.status().deadline, start + secs(80));
    assert_eq!(it.report(start + secs(80), true), None);
}

#[test]
fn what_was_removed_is_forgotten() {
    let start = Moment::now();
    let (mut it, all) = crowd(3, TTL, start);
    it.remove(all[0].id());
    assert_eq!(ids(&it.chunk(start + secs(11)).kept), ids(&all[1..]));
    it.remove(all[1].id());
    it.settle(start + secs(11), &all[1], live(TTL), start + secs(11));
    it.remove(all[2].id());
    it.fail(start + secs(11), &all[2..]);
    assert_eq!(
        (it.len(), it.next(start), it.announce(start, 9)),
        (0, None, None)
    );
    assert_eq!(it.bound(), MAX_BOUND);
    it.remove(all[2].id());
}

#[test]
fn warnings_and_losses_are_announced_when_they_are_due_and_counted() {
    let start = Moment::now();
    let (mut it, all) = crowd(3, TTL, start);
    let soon = start + secs(20) + millis(1);
    assert_eq!(it.announce(start + secs(19), 10), Some(start + secs(20)));
    assert!(!all[0].status().at_risk);
    // No more at once than the limit.
    assert!(it.announce(soon, 2).is_some_and(|next| next <= soon));
    let at_risk = |all: &[Renewable]| all.iter().filter(|kept| kept.status().at_risk).count();
    assert_eq!(at_risk(&all), 2);
    it.announce(soon, 2);
    assert_eq!(at_risk(&all), 3);
    // One lease is renewed after all.
    it.chunk(soon);
    it.settle(soon, &all[2], live(TTL), soon);
    assert!(!all[2].status().at_risk);
    // The announcer wakes to report its counts.
    assert_eq!(it.announce(soon, 10), Some(soon + secs(1)));
    let told = |late, lost, held| Some(LossReport { late, lost, held });
    assert_eq!(it.report(soon + secs(1), false), told(3, 0, 3));
    assert_eq!(it.announce(soon + secs(1), 10), Some(start + secs(30)));

    it.announce(start + secs(31), 10);
    assert_eq!(all[0].status().end, Some(GrantEnd::Lost(Loss::Expired)));
    assert_eq!(it.len(), 1);
    assert_eq!(it.report(start + secs(31), true), told(0, 2, 1));
    // It was late, then in time, and is late again.
    it.announce(start + secs(41), 10);
    assert_eq!(it.report(start + secs(41), true), told(1, 0, 1));
}

#[test]
fn the_end_of_a_cap_is_announced_and_not_counted() {
    let start = Moment::now();
    let mut it = Schedule::default();
    let kept = Renewable::Lease(grant(TTL, start, Some(start + secs(30))));
    it.keep(start, kept.clone());
    assert_eq!(it.next(start), None);
    it.announce(start + secs(20), 10);
    assert!(kept.status().at_risk);
    it.announce(start + secs(30), 10);
    assert_eq!(kept.status().end, Some(GrantEnd::Lost(Loss::MaxHold)));
    assert_eq!(it.report(start + secs(60), true), None);
}

#[test]
fn what_a_cap_allows_no_more_is_not_sent() {
    let start = Moment::now();
    let mut it = Schedule::default();
    let grant = grant(TTL, start, Some(start + secs(40)));
    let kept = Renewable::Lease(Arc::clone(&grant));
    it.keep(start, kept.clone());
    assert_eq!(it.next(start), Some(start + secs(10)));
    // It has been confirmed up to the cap by something else meanwhile.
    grant.confirm(start + secs(9), start + secs(9), secs(60));
    assert!(it.chunk(start + secs(10)).kept.is_empty());
    assert_eq!(it.next(start + secs(10)), None);
}

#[test]
fn what_has_ended_is_not_sent() {
    let start = Moment::now();
    let (mut it, all) = crowd(3, TTL, start);
    let Renewable::Lease(grant) = &all[0] else {
        unreachable!("a lease")
    };
    grant.lose(Loss::TakenOver);
    assert_eq!(ids(&it.chunk(start + secs(11)).kept), ids(&all[1..]));
    assert_eq!(it.len(), 2);
    // An answer may report the end.
    it.settle(
        start + secs(12),
        &all[1],
        RenewOutcome::Gone,
        start + secs(11),
    );
    assert_eq!(it.len(), 1);
    assert_eq!(all[1].status().end, Some(GrantEnd::Lost(Loss::TakenOver)));
    // Or come too late.
    it.settle(start + secs(31), &all[2], live(TTL), start + secs(11));
    assert_eq!(it.len(), 0);
    let lost = Some(GrantEnd::Lost(Loss::Expired));
    assert_eq!(all[2].status().end, lost);
    // At the deadline it is lost, also when the renewal comes before the announcement.
    let (mut it, all) = crowd(1, TTL, start);
    assert!(it.chunk(start + secs(30)).kept.is_empty());
    assert_eq!((all[0].status().end, it.len()), (lost, 0));
}

#[test]
fn the_earliest_deadlines_come_first_and_what_is_soon_due_rides_along() {
    let start = Moment::now();
    let (mut it, all) = crowd(300, TTL, start);
    let late = lease(TTL, start + secs(2));
    it.keep(start, late.clone());
    let later = lease(TTL, start + secs(4));
    it.keep(start, later);
    let now = start + secs(10) + millis(1);
    let first = it.chunk(now).kept;
    assert_eq!(ids(&first), ids(&all[..256]));
    assert_eq!(it.next(now), Some(now));
    // A tenth of the shortest TTL is soon.
    let second = it.chunk(now).kept;
    assert_eq!(ids(&second[..44]), ids(&all[256..]));
    assert_eq!(ids(&second[44..]), [id(&late)]);
    assert_eq!(it.next(now), Some(start + secs(14)));
}

#[test]
fn a_short_lease_overtakes_a_crowd_and_bounds_its_statements() {
    let start = Moment::now();
    let (mut it, all) = crowd(1_000, secs(6), start);
    let urgent = lease(millis(240), start + millis(2_000));
    it.keep(start, urgent.clone());
    let now = start + millis(2_100);
    let Chunk { kept, bound } = it.chunk(now);
    assert_eq!((kept.len(), bound), (256, millis(60)));
    assert_eq!(ids(&kept[..1]), [id(&urgent)]);
    assert_eq!(ids(&kept[1..]), ids(&all[..255]));
    let sent = now + millis(20);
    it.settle(sent, &urgent, live(millis(240)), sent);
    // It is due again long before the last of the crowd.
    assert_eq!(ids(&it.chunk(urgent.renew_at()).kept[..1]), [id(&urgent)]);
}

/// A crowd that the database cannot renew in time loses the excess, but not the shorter and the longer lease beside.
#[test]
fn a_crowd_that_cannot_be_held_costs_the_others_nothing() {
    let start = Moment::now();
    let (mut it, all) = crowd(9_000, secs(6), start);
    let others = [lease(secs(1), start), lease(secs(60), start)];
    for kept in &others {
        it.keep(start, kept.clone());
    }
    // A statement renews 27 leases in 20 ms: 6,750 in the trusted time of 5 s.
    it.limit = RequestLimit::of(16_000, 10, 4);
    let step = millis(20);
    let mut now = start;
    while now < start + secs(60) {
        it.announce(now, 10_000);
        if it.next(now).is_some_and(|next| next <= now) {
            let chunk = it.chunk(now).kept;
            let sent = now;
            now = now + step;
            it.announce(now, 10_000);
            it.took(step, chunk.len());
            for kept in &chunk {
                it.settle(now, kept, live(kept.ttl()), sent);
            }
        } else {
            now = now + millis(10);
        }
    }
    for kept in &others {
        assert_eq!(kept.status().end, None, "{:?}", kept.ttl());
    }
    let held = all
        .iter()
        .filter(|kept| kept.status().end.is_none())
        .count();
    assert!(held > 4_000, "{held}");
}

#[test]
fn a_statement_gets_more_time_where_the_server_is_too_slow_for_the_shortest_lease() {
    let now = Moment::now();
    let (mut it, _) = crowd(1, millis(200), now);
    it.keep(now, lease(TTL, now));
    assert_eq!(it.chunk(now).bound, millis(50));
    it.took(millis(50), 2);
    assert_eq!(it.chunk(now).bound, millis(75));
    it.took(secs(10), 2);
    assert_eq!(it.chunk(now).bound, MAX_BOUND);
}

#[test]
fn a_chunk_goes_into_one_request() {
    let start = Moment::now();
    let (mut it, _) = crowd(1_000, secs(6), start);
    it.limit = RequestLimit::of(16_000, 10, 4);
    // The names have one byte.
    assert_eq!(it.chunk(start + millis(2_100)).kept.len(), 384 / 14);
}

#[test]
fn what_would_be_lost_before_its_answer_comes_last() {
    let start = Moment::now();
    let (mut it, all) = crowd(300, TTL, start);
    let fresh: Vec<Renewable> = (0..250).map(|_| lease(TTL, start + secs(15))).collect();
    for kept in &fresh {
        it.keep(start, kept.clone());
    }
    // A statement takes 500 ms, so a renewal needs 1 s.
    it.took(millis(500), 256);
    let now = start + secs(29) + millis(1);
    let chunk = ids(&it.chunk(now).kept);
    assert_eq!(chunk.len(), 256);
    assert!(fresh.iter().all(|kept| chunk.contains(&id(kept))));
    assert_eq!(chunk[250..], ids(&all[..6]));
    // These leases have a nanosecond more than that.
    let (mut it, all) = crowd(300, TTL, start + Duration::from_nanos(1));
    it.keep(start, lease(TTL, start + secs(15)));
    it.took(millis(500), 256);
    let now = start + secs(29);
    assert_eq!(ids(&it.chunk(now).kept), ids(&all[..256]));
    // However slow the statements are, a quarter of the shortest TTL is enough.
    let (mut it, all) = crowd(300, millis(2_400), start);
    it.keep(start, lease(millis(2_400), start + secs(1)));
    it.took(secs(2), 32);
    assert_eq!(ids(&it.chunk(start + millis(1_300)).kept), ids(&all[..16]));
}

#[test]
fn a_statement_is_bounded_by_the_shortest_lease_in_or_beside_it() {
    let start = Moment::now();
    let (mut it, _) = crowd(1, TTL, start);
    assert_eq!(it.chunk(start + secs(11)).bound, MAX_BOUND);
    let (mut it, _) = crowd(1, TTL, start);
    let short = lease(millis(120), start + secs(11));
    it.keep(start, short.clone());
    let same = lease(millis(120), start + secs(11));
    it.keep(start, same.clone());
    it.remove(same.id());
    assert_eq!(it.bound(), MIN_BOUND);
    let chunk = it.chunk(start + secs(11));
    assert_eq!((chunk.kept.len(), chunk.bound), (1, MIN_BOUND));
    it.put_back(&chunk.kept);
    it.remove(short.id());
    assert_eq!(it.bound(), MAX_BOUND);
    assert_eq!(it.chunk(start + secs(11)).bound, MAX_BOUND);
    let (mut it, _) = crowd(1, secs(4), start);
    assert_eq!(it.chunk(start + secs(2)).bound, secs(1));
}

#[test]
fn the_announcer_looks_again_when_a_renewal_brings_the_next_warning_forward() {
    let start = Moment::now();
    let cap = start + secs(48);
    let mut it = Schedule::default();
    let kept = Renewable::Lease(grant(TTL, start, Some(cap)));
    it.keep(start, kept.clone());
    it.announce(start + secs(20), 10);
    assert!(kept.status().at_risk);
    it.chunk(start + secs(20));
    // The renewal asked for 31 s more: the warning is over, and the next one comes before the old deadline.
    it.settle(start + secs(20), &kept, live(secs(23)), start + secs(20));
    assert!(!kept.status().at_risk);
    let next = it.news.first().unwrap().0;
    assert_eq!(next, kept.announce_at());
    assert!(next < start + secs(30));
}
