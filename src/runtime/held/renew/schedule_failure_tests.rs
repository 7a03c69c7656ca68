//! What is sent again: after a statement has failed, and where a row was found locked.

use super::*;

#[test]
fn what_failed_together_is_sent_again_in_halves_in_turn_with_the_others() {
    let start = Moment::now();
    let (mut it, all) = crowd(600, TTL, start);
    let now = start + secs(11);
    let whole = it.chunk(now).kept;
    assert_eq!(whole.len(), 256);
    it.fail(now, &whole);
    // Others first.
    let others = it.chunk(now).kept;
    assert_eq!(ids(&others), ids(&all[256..512]));
    it.settle(now, &others[0], live(TTL), now);
    let half = it.chunk(now).kept;
    assert_eq!(half.len(), 128);
    assert!(half.iter().all(|kept| ids(&whole).contains(&id(kept))));
    it.fail(now, &half);
    assert_eq!(ids(&it.chunk(now).kept), ids(&all[512..]));
}

#[test]
fn a_refused_row_is_alone_after_a_few_statements_and_costs_no_other_its_renewal() {
    for count in [2, 21, 256] {
        let start = Moment::now();
        let (mut it, all) = crowd(count, TTL, start);
        let now = start + secs(11);
        let bad = id(&all[13 % all.len()]);
        let mut statements = 0;
        while it.next().is_some_and(|next| next <= now) {
            let chunk = it.chunk(now).kept;
            statements += 1;
            if ids(&chunk).contains(&bad) {
                it.fail(now, &chunk);
            } else {
                for kept in &chunk {
                    it.settle(now, kept, live(TTL), now);
                }
            }
        }
        // Each half of each half, and no more.
        assert!(
            statements <= 2 * count.ilog2() + 3,
            "{statements} for {count}"
        );
        for kept in &all {
            let failed = u32::from(id(kept) == bad);
            assert_eq!(it.entries[&kept.id()].failed, failed);
            assert_eq!(kept.status().deadline > start + secs(31), failed == 0);
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
        let next = it.next().unwrap();
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
    assert_eq!(it.next(), Some(now + secs(10)));
    assert_eq!(it.entries[&all[0].id()].failed, 0);
    // No pause is much longer than a tenth of the TTL.
    let (mut it, all) = crowd(1, millis(240), start);
    let now = start + millis(100);
    for _ in 0..12 {
        it.fail(now, &all);
    }
    assert!(it.next().unwrap() - now <= millis(48));
}

#[test]
fn suspects_of_one_chunk_are_alike() {
    let start = Moment::now();
    let mut it = Schedule::default();
    let slow: Vec<Renewable> = (0..3).map(|_| lease(TTL, start)).collect();
    let fast: Vec<Renewable> = (0..3)
        .map(|_| lease(millis(240), start + secs(10)))
        .collect();
    for kept in slow.iter().chain(&fast) {
        it.keep(start, kept.clone());
    }
    let now = start + millis(10_100);
    let chunk = it.chunk(now);
    // The first time the shortest TTL limits all.
    assert_eq!((chunk.kept.len(), chunk.bound), (6, millis(60)));
    it.fail(now, &chunk.kept);
    it.fail(now, &slow[..2]);
    for _ in 0..4 {
        let chunk = it.chunk(now);
        let like = |kept: &Renewable| (kept.ttl(), it.entries[&kept.id()].largest);
        let first = like(&chunk.kept[0]);
        assert!(chunk.kept.iter().all(|kept| like(kept) == first));
        assert_eq!(chunk.bound, bound(first.0));
    }
    assert_eq!(it.next(), None);
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
    let mut until = it.next().unwrap();
    for pause in [8, 16, 32, 64] {
        let (least, most) = (now + millis(pause), now + millis(2 * pause));
        assert!(
            least <= until && until <= most,
            "{pause}: {:?}",
            until - now
        );
        assert_eq!(ids(&it.chunk(until).kept), [id(&all[0])]);
        it.settle(now, &all[0], live(secs(1)), now);
        until = it.next().unwrap();
    }
    // When the row is free the pauses begin anew.
    it.chunk(until);
    it.settle(until, &all[0], live(TTL), until);
    assert_eq!(it.next(), Some(now + secs(10)));
    assert_eq!(it.entries[&all[0].id()].locked, 0);
    // No pause is much longer than a tenth of the TTL.
    let (mut it, all) = crowd(1, millis(240), start);
    let now = start + millis(100);
    for _ in 0..12 {
        it.settle(now, &all[0], live(millis(1)), now);
    }
    let pause = it.next().unwrap() - now;
    assert!(pause >= millis(24) && pause <= millis(48), "{pause:?}");
}

#[test]
fn what_was_not_sent_after_all_is_due() {
    let start = Moment::now();
    let (mut it, all) = crowd(2, TTL, start);
    let now = start + secs(11);
    let chunk = it.chunk(now).kept;
    it.put_back(&chunk);
    assert_eq!(it.next(), Some(start + secs(10)));
    assert_eq!(ids(&it.chunk(now).kept), ids(&all));
}
