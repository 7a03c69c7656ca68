//! What a grant reports at which time.

use super::*;

const TTL: Duration = Duration::from_secs(36);
/// The trusted part of the TTL.
const TRUSTED: Duration = Duration::from_secs(30);
const EXACT: ClockError = ClockError::new(Duration::ZERO);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A grant that was asked for at `sent` and got its full TTL.
fn grant(sent: Moment, cap: Option<Moment>) -> Grant {
    let name = Name::new("n").unwrap();
    let grant = Grant::new(name, Uuid::nil(), 1, TTL, EXACT, cap, sent + TRUSTED);
    assert!(grant.add_guard());
    grant
}

#[test]
fn it_is_held_until_the_deadline() {
    let start = Moment::now();
    let it = grant(start, None);
    assert_eq!(it.status().deadline, start + TRUSTED);
    assert!(it.is_held_at(start + secs(29)));
    assert!(!it.is_held_at(start + TRUSTED));
    it.announce(start + TRUSTED);
    assert!(!it.is_held_at(start));
    assert_eq!(it.loss(), Some(Loss::Expired));
}

#[test]
fn a_confirmation_at_the_deadline_does_not_revive_a_grant() {
    let start = Moment::now();
    let it = grant(start, None);
    it.confirm(start + TRUSTED, start + secs(29), TTL);
    assert!(!it.is_held_at(start));
    assert_eq!(it.loss(), Some(Loss::Expired));
    it.confirm(start + secs(1), start + secs(1), TTL);
    assert_eq!(it.loss(), Some(Loss::Expired));
}

#[test]
fn a_confirmation_counts_from_before_it_was_asked_for_and_never_moves_the_deadline_back() {
    let start = Moment::now();
    let it = grant(start, None);
    it.confirm(start + secs(20), start + secs(10), TTL);
    assert_eq!(it.status().deadline, start + secs(40));
    it.confirm(start + secs(21), start + secs(21), secs(6));
    assert_eq!(it.status().deadline, start + secs(40));
}

#[test]
fn no_more_than_the_ttl_is_trusted_although_the_row_has_more_left() {
    let start = Moment::now();
    let it = grant(start, None);
    // The database's clock was set back.
    it.confirm(start + secs(1), start + secs(1), TTL * 10);
    assert_eq!(it.status().deadline, start + secs(1) + TRUSTED);
}

#[test]
fn renewal_warning_and_loss_are_a_third_of_the_trusted_time_apart() {
    let start = Moment::now();
    let it = grant(start, None);
    assert_eq!(it.renew_at(), start + secs(10));
    assert_eq!(it.announce_at(), start + secs(20));
    it.announce(start + secs(19));
    assert!(!it.status().at_risk);
    it.announce(start + secs(20));
    assert!(it.status().at_risk);
    assert_eq!(it.announce_at(), start + TRUSTED);
    // A little more time does not take the warning back.
    it.confirm(start + secs(25), start + secs(23), secs(12));
    assert_eq!(it.status().deadline, start + secs(33));
    assert!(it.status().at_risk);
    it.confirm(start + secs(26), start + secs(25), TTL);
    assert!(!it.status().at_risk);
    assert_eq!(it.announce_at(), start + secs(45));
}

#[test]
fn a_renewal_asks_for_what_reaches_the_cap_and_no_more() {
    let start = Moment::now();
    let cap = start + secs(45);
    let it = grant(start, Some(cap));
    assert_eq!(it.renewal_ttl(start + secs(10)), Some(TTL));
    assert_eq!(it.renewal_ttl(start + secs(20)), Some(secs(30)));
    it.confirm(start + secs(20), start + secs(20), secs(30));
    assert_eq!(it.status().deadline, cap);
    assert_eq!(it.renewal_ttl(start + secs(21)), None);
    it.announce(cap);
    assert_eq!(it.loss(), Some(Loss::MaxHold));
    // It is never trusted beyond the cap, whatever the database says.
    let it = grant(start, Some(cap));
    it.confirm(start + secs(20), start + secs(20), TTL);
    assert_eq!(it.status().deadline, cap);
}

#[test]
fn the_last_guard_ends_the_grant() {
    let start = Moment::now();
    let it = grant(start, None);
    assert!(it.add_guard());
    assert!(!it.drop_guard(start));
    assert!(it.is_held_at(start));
    assert!(it.drop_guard(start));
    assert!(!it.is_held_at(start));
    assert!(!it.add_guard());
    assert_eq!(it.loss(), None);
}

#[test]
fn a_guard_that_is_dropped_at_the_deadline_was_not_held_any_more() {
    let start = Moment::now();
    let it = grant(start, None);
    assert_eq!(it.loss_at(start + secs(29)), None);
    assert_eq!(it.loss_at(start + TRUSTED), Some(Loss::Expired));
    assert!(it.drop_guard(start + TRUSTED));
    assert_eq!(it.loss(), Some(Loss::Expired));
}

#[test]
fn a_row_that_is_gone_is_a_loss_unless_the_grant_was_closing() {
    let start = Moment::now();
    let it = grant(start, None);
    it.gone();
    assert_eq!(it.loss(), Some(Loss::TakenOver));
    let it = grant(start, None);
    it.close();
    it.gone();
    assert!(!it.is_held_at(start));
    assert_eq!(it.loss(), None);
}

/// No renewals run here: only the waiting task reads the clock.
#[tokio::test]
async fn a_loss_is_noticed_by_the_task_that_waits_for_it() {
    let ago = Moment::now() - TRUSTED;
    let it = grant(ago + Duration::from_millis(30), None);
    assert!(it.is_held());
    assert_eq!(it.lost().await, Some(Loss::Expired));
    assert!(it.status().deadline.has_passed() && !it.is_held());
}

#[tokio::test]
async fn a_risk_is_noticed_by_the_task_that_waits_for_it() {
    let ago = Moment::now() - secs(20);
    let it = grant(ago + Duration::from_millis(30), None);
    it.at_risk().await;
    assert!(it.status().at_risk && it.is_held());
}

#[tokio::test]
async fn a_release_is_no_loss() {
    let start = Moment::now();
    let it = grant(start, None);
    let (lost, ()) = tokio::join!(it.lost(), async {
        it.drop_guard(start);
    });
    assert_eq!(lost, None);
}

/// A session that was opened at `sent`, and a grant in it.
fn in_session(sent: Moment, cap: Option<Moment>) -> (Arc<Grant<Uuid>>, Grant) {
    let id = Uuid::nil();
    let session = Grant::new(id, id, 0, TTL, EXACT, None, sent + TRUSTED);
    let session = Arc::new(session);
    let name = Name::new("n").unwrap();
    let far = sent + secs(1_000_000);
    let deadline = cap.unwrap_or(far);
    let grant = Grant::new(name, Uuid::max(), 1, TTL, EXACT, cap, deadline).in_session(&session);
    assert!(grant.add_guard());
    (session, grant)
}

#[test]
fn a_grant_in_a_session_is_held_as_long_as_the_session() {
    let start = Moment::now();
    let (session, it) = in_session(start, None);
    assert!(it.is_held_at(start + secs(29)));
    assert!(!it.is_held_at(start + TRUSTED));
    session.confirm(start + secs(20), start + secs(10), TTL);
    assert_eq!(it.status().deadline, start + secs(40));
    assert!(it.is_held_at(start + secs(39)));
    // It is never revived.
    session.announce(start + secs(40));
    session.confirm(start + secs(41), start + secs(41), TTL);
    assert!(!it.is_held_at(start));
    assert_eq!(it.loss(), Some(Loss::Expired));
}

#[test]
fn a_grant_in_a_session_may_end_before_it() {
    let start = Moment::now();
    let (session, it) = in_session(start, Some(start + secs(10)));
    assert!(!it.is_held_at(start + secs(10)));
    assert_eq!(it.loss_at(start + secs(10)), Some(Loss::MaxHold));
    assert!(session.is_held_at(start + secs(10)));

    let (session, it) = in_session(start, None);
    it.lose(Loss::TakenOver);
    assert_eq!(it.loss(), Some(Loss::TakenOver));
    assert!(session.is_held());

    let (session, it) = in_session(start, None);
    assert!(it.drop_guard(start + secs(1)));
    session.lose(Loss::SessionEnded);
    assert_eq!(it.loss(), None, "released before");
}

#[test]
fn a_guard_that_is_dropped_after_its_session_was_lost_says_so() {
    let start = Moment::now();
    let (session, it) = in_session(start, None);
    session.lose(Loss::SessionEnded);
    assert!(it.drop_guard(start + secs(1)));
    assert_eq!(it.loss(), Some(Loss::SessionEnded));
}

#[tokio::test]
async fn the_loss_of_a_session_wakes_all_who_wait_for_a_loss() {
    let (session, it) = in_session(Moment::now(), None);
    let it = Arc::new(it);
    let waiting: Vec<_> = [Arc::clone(&it), it]
        .into_iter()
        .map(|it| tokio::spawn(async move { (it.at_risk().await, it.lost().await).1 }))
        .collect();
    tokio::task::yield_now().await;
    session.lose(Loss::SessionEnded);
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), Some(Loss::SessionEnded));
    }
}

#[tokio::test]
async fn a_session_that_nothing_renews_is_found_lost_by_those_who_wait() {
    let past = Moment::now() - TRUSTED;
    let (_session, it) = in_session(past, None);
    assert_eq!(it.lost().await, Some(Loss::Expired));
}
