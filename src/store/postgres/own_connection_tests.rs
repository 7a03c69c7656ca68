//! When the plans of a connection are made anew.

use super::*;

#[test]
fn plans_are_made_anew_after_a_slow_verb_and_not_too_often() {
    let now = Instant::now();
    let mut plans = Plans::made(now);
    plans.took(Duration::from_millis(1));
    plans.took(SLOW.0);
    assert!(
        !plans.are_outlived(now + 2 * OLD_ENOUGH),
        "no verb was slow"
    );
    plans.took(SLOW.0 * 2);
    plans.took(SLOW.0);
    assert!(!plans.are_outlived(now + OLD_ENOUGH / 2));
    assert!(plans.are_outlived(now + OLD_ENOUGH));
    plans.made_anew(now);
    assert!(!plans.are_outlived(now + 2 * OLD_ENOUGH));
}

#[test]
fn a_server_that_is_far_away_is_not_slow() {
    let (now, way) = (Instant::now(), Duration::from_millis(40));
    let mut plans = Plans::made(now);
    plans.took(way);
    plans.took(way * SLOW.1);
    assert!(!plans.are_outlived(now + OLD_ENOUGH));
    plans.took(way * (SLOW.1 + 1));
    assert!(plans.are_outlived(now + OLD_ENOUGH));
}
