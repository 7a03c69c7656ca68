//! What is sent again: after a statement has failed, and where a row was found locked.

use super::*;

#[test]
fn what_failed_together_is_sent_again_in_halves_after_the_others() {
    let start = Moment::now();
    let (mut it, all) = crowd(600, TTL, start);
    let now = start + secs(11);
    let whole = it.chunk(now).kept;
    assert_eq!(whole.len(), 256);
    it.fail(now, &whole);
    // Others first.
    assert_eq!(ids(&it.chunk(now).kept), ids(&all[256..512]));
    let now = now + millis(4);
    let half = it.chunk(now).kept;
    assert_eq!(half.len(), 128);
    assert!(half.iter().all(|kept| ids(&whole).contains(&id(kept))));
    it.fail(now, &half);
    // Then what has not failed, and the other half.
    assert_eq!(ids(&it.chunk(now).kept), ids(&all[512..]));
    assert_eq!(ids(&it.chunk(now).kept).len(), 128);
}

/// A statement that was cut off has cost the connection, and the login took longer than the pause of what had failed.
#[test]
fn what_has_failed_gives_way_once_also_when_it_is_due_again() {
    let start = Moment::now();
    let (mut it, all) = crowd(300, TTL, start);
    let now = start + secs(11);
    let first = it.chunk(now).kept;
    it.fail(now, &first);
    let now = now + millis(30);
    assert_eq!(ids(&it.chunk(now).kept), ids(&all[256..]));
    // Its halves take turns.
    let half = it.chunk(now).kept;
    assert_eq!(ids(&half), ids(&all[..128]));
    it.fail(now, &half);
    let now = now + millis(30);
    assert_eq!(ids(&it.chunk(now).kept), ids(&all[128..256]));
    assert_eq!(ids(&it.chunk(now).kept), ids(&all[..64]));
}

#[test]
fn a_refused_row_is_alone_after_a_few_statements_and_costs_no_other_its_renewal() {
    for count in [2, 21, 256] {
        let start = Moment::now();
        let (mut it, all) = crowd(count, TTL, start);
        let mut now = start + secs(11);
        let bad = id(&all[13 % all.len()]);
        let (mut statements, mut failed) = (0, 0);
        let is_renewed = |kept: &Renewable| kept.status().deadline > start + secs(31);
        let others = || all.iter().filter(|kept| id(kept) != bad);
        while failed == 0 || !others().all(is_renewed) {
            now = now + millis(4);
            let chunk = it.chunk(now).kept;
            statements += u32::from(!chunk.is_empty());
            if ids(&chunk).contains(&bad) {
                it.fail(now, &chunk);
                failed += u32::from(chunk.len() == 1);
            } else {
                for kept in &chunk {
                    it.settle(now, kept, live(TTL), now);
                }
            }
        }
        // Each half of each half, and no more (but for more tries of the row alone).
        assert!(
            statements - failed <= 2 * count.ilog2() + 3,
            "{statements} for {count}"
        );
        for kept in &all {
            let failed = if id(kept) == bad { failed } else { 0 };
            assert_eq!(it.entries[&kept.id()].put_off, failed);
        }
    }
}

#[test]
fn one_that_fails_alone_is_put_off_and_success_forgives() {
    let start = Moment::now();
    let (mut it, all) = crowd(1, TTL, start);
    let mut now = start + secs(10);
    for failed in 1..=12_u32 {
        let chunk = it.chunk(now).kept;
        it.fail(now, &chunk);
        let next = it.next(now).unwrap();
        let pause = millis(1 << failed).min(TTL / 10);
        assert!(
            next - now >= pause && next - now <= pause * 2,
            "{failed}: {:?}",
            next - now
        );
        now = next;
    }
    it.chunk(now);
    it.settle(now, &all[0], live(TTL), now);
    assert_eq!(it.next(now), Some(now + secs(10)));
    assert_eq!(it.entries[&all[0].id()].put_off, 0);
    // No pause is much longer than a tenth of the TTL.
    let (mut it, all) = crowd(1, millis(240), start);
    let now = start + millis(100);
    for _ in 0..12 {
        it.fail(now, &all);
    }
    assert!(it.next(now).unwrap() - now <= millis(48));
}

#[test]
fn a_locked_row_puts_off_its_own_renewal_only() {
    let start = Moment::now();
    let (mut it, all) = crowd(2, TTL, start);
    let now = start + secs(11);
    assert_eq!(it.chunk(now).kept.len(), 2);
    it.settle(now, &all[1], live(TTL), now);
    // The row says no more than what is known.
    it.settle(now, &all[0], live(secs(20)), now);
    let mut until = it.next(now).unwrap();
    for pause in [2, 4, 8, 16] {
        let (least, most) = (now + millis(pause), now + millis(2 * pause));
        assert!(
            least <= until && until <= most,
            "{pause}: {:?}",
            until - now
        );
        assert_eq!(ids(&it.chunk(until).kept), [id(&all[0])]);
        it.settle(now, &all[0], live(secs(1)), now);
        until = it.next(now).unwrap();
    }
    // When the row is free the pauses begin anew.
    it.chunk(until);
    it.settle(until, &all[0], live(TTL), until);
    assert_eq!(it.next(until), Some(now + secs(10)));
    assert_eq!(it.entries[&all[0].id()].put_off, 0);
    // No pause is much longer than a tenth of the TTL.
    let (mut it, all) = crowd(1, millis(240), start);
    let now = start + millis(100);
    for _ in 0..12 {
        it.settle(now, &all[0], live(millis(1)), now);
    }
    let pause = it.next(now).unwrap() - now;
    assert!(pause >= millis(24) && pause <= millis(48), "{pause:?}");
}

#[test]
fn what_was_not_sent_after_all_is_due() {
    let start = Moment::now();
    let (mut it, all) = crowd(2, TTL, start);
    let now = start + secs(11);
    let chunk = it.chunk(now).kept;
    it.put_back(&chunk);
    assert_eq!(it.next(now), Some(now));
    assert_eq!(ids(&it.chunk(now).kept), ids(&all));
}

/// Two connections in a row hang, as in a failover behind a balancer.
#[test]
fn a_statement_that_hung_costs_no_lease_its_last_try() {
    let start = Moment::now();
    let (mut it, all) = crowd(1, secs(6), start);
    let mut now = it.next(start).unwrap();
    for _ in 0..2 {
        let chunk = it.chunk(now);
        assert_eq!(ids(&chunk.kept), ids(&all));
        now = now + chunk.bound;
        it.took(chunk.bound, 1);
        it.fail(now, &chunk.kept);
        now = now + millis(10);
    }
    assert_eq!(ids(&it.chunk(now).kept), ids(&all), "the third try");
    // A lease of 1 s that comes then is not sent with the bound of a lease of 6 s.
    it.keep(now, lease(secs(1), now));
    let now = now + millis(300);
    assert!(it.chunk(now).bound < millis(500));
}
