//! When the next look comes.

use super::*;
use crate::runtime::wait::queue::SOON;

#[test]
fn a_place_that_came_is_looked_at_soon_although_the_server_tells_the_news() {
    let queue = Queue::default();
    queue.set_told(Some(uuid::Uuid::new_v4()));
    let seen = LastLook::nothing();
    assert_eq!(seen.next(&queue), seen.at + LONGEST_BETWEEN_LOOKS);
    queue.queued(false);
    assert!(seen.next(&queue) <= Moment::now() + SOON);
}

#[test]
fn who_is_woken_looks_at_once_and_seldom_and_often_again_after_a_miss() {
    let queue = Queue::default();
    let seen = LastLook::nothing();
    let is_seldom = || seen.next(&queue) == seen.at + LONGEST_BETWEEN_LOOKS;
    queue.woken();
    assert_eq!(seen.next(&queue), seen.at);
    let taken = |queue: &Queue| {
        let state = &mut *queue.state.lock();
        (state.is_woken, state.soon) = (false, None);
    };
    taken(&queue);
    assert!(is_seldom());
    // A look that had begun before has found them.
    queue.missed(seen.began);
    assert!(is_seldom());
    queue.missed(Moment::now() + SHORTEST_PAUSE);
    assert!(!is_seldom());
    assert!(queue.state.lock().missed_at().is_some());
    // They were just late.
    queue.woken();
    taken(&queue);
    assert!(is_seldom() && queue.state.lock().missed_at().is_none());
}

#[test]
fn after_a_miss_only_a_wake_that_brings_a_grant_makes_looks_seldom() {
    let queue = Queue::default();
    let wakes = |queue: &Queue| {
        queue.woken();
        let state = &mut *queue.state.lock();
        (state.is_woken, state.soon) = (false, None);
    };
    let is_seldom = || queue.state.lock().is_pushed();
    wakes(&queue);
    assert!(is_seldom());
    // The miss was too long ago for a late wake.
    queue.state.lock().missed = Some(Moment::now() - SOON * 2);
    for _ in 0..2 {
        // As the wakes of this client's own tests are, also those of another connection.
        wakes(&queue);
        assert!(!is_seldom() && queue.state.lock().missed_at().is_none());
        queue.set_told(None);
    }
    wakes(&queue);
    queue.brought(Moment::now());
    assert!(is_seldom());
}

#[test]
fn who_hears_from_another_process_looks_seldom_and_soon_for_what_was_lost() {
    let queue = Queue::default();
    let seen = LastLook::nothing();
    queue.state.lock().missed = Some(Moment::now() - SOON * 2);
    queue.heard();
    assert!(queue.state.lock().is_pushed());
    assert!(seen.next(&queue) <= Moment::now() + SOON);
    queue.state.lock().soon = None;
    assert_eq!(seen.next(&queue), seen.at + LONGEST_BETWEEN_LOOKS);
    // Where the server has shown that it tells the news, none is lost.
    let session = uuid::Uuid::new_v4();
    queue.set_told(Some(session));
    queue.heard();
    let state = queue.state.lock();
    assert!(state.told == Some(session) && state.soon.is_none() && state.woken.is_none());
}

#[test]
fn looks_that_take_long_rest_before_they_look_at_places_that_came() {
    let queue = Queue::default();
    queue.set_told(Some(uuid::Uuid::new_v4()));
    let seen = LastLook {
        took: SOON,
        ..LastLook::nothing()
    };
    queue.queued(false);
    assert_eq!(seen.next(&queue), seen.at + LONGEST_BETWEEN_LOOKS);
}

#[test]
fn the_name_that_was_passed_on_last_comes_after_all_others() {
    let name = |name: &str| Name::new(name).unwrap();
    let after = |last: &str| {
        let mut names = ["a", "b", "c"].map(|one| (name(one), Kind::Lock));
        begin_after(&mut names, &name(last));
        names.map(|(name, _)| name.as_str().to_owned()).concat()
    };
    let found = ["A", "a", "b", "bb", "c", "d"].map(after);
    assert_eq!(found, ["abc", "bca", "cab", "cab", "abc", "abc"]);
}

#[test]
fn a_look_is_left_out_only_if_neither_the_database_nor_a_place_has_changed() {
    let queue = Queue::default();
    let seen = LastLook {
        version: Some(1),
        looked: Some(Moment::now()),
        ..LastLook::nothing()
    };
    assert!(seen.shows_all(Some(1), &queue));
    assert!(!seen.shows_all(Some(2), &queue));
    assert!(!seen.shows_all(None, &queue));
    let unseen = LastLook::nothing();
    assert!(!unseen.shows_all(None, &queue));
    queue.changed();
    assert!(!seen.shows_all(Some(1), &queue));
}
