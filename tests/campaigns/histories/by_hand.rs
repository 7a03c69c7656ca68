//! Short histories, written by hand: the checker must not be blind, and must not refuse what may be.

use std::marker::PhantomData;
use std::time::Duration;

use super::event::{Answer, Ask, Event, Grant};
use super::lease::Lease;
use super::{Primitive, TTL, judge};

/// Operations on one name. Times are milliseconds.
pub(super) struct Story<P = Lease>(Vec<Event>, PhantomData<P>);

impl<P: Primitive> Story<P> {
    pub(super) fn new() -> Self {
        Self(Vec::new(), PhantomData)
    }

    pub(super) fn open(mut self, id: u64, asked: u64, ask: Ask) -> Self {
        self.0.push(Event::Asked {
            id,
            at: Duration::from_millis(asked),
            name: "a".into(),
            ask,
        });
        self
    }

    pub(super) fn then(self, id: u64, asked: u64, answered: u64, ask: Ask, answer: Answer) -> Self {
        let mut story = self.open(id, asked, ask);
        story.0.push(Event::Answered {
            id,
            at: Duration::from_millis(answered),
            answer,
        });
        story
    }

    pub(super) fn released(self, id: u64, asked: u64, answered: u64, grant: Grant) -> Self {
        self.then(id, asked, answered, Ask::Release(grant), Answer::Released)
    }

    fn is_accepted(&self) -> bool {
        // Through the lines that the processes write.
        let lines = self.0.iter().map(Event::to_string);
        judge::<P>(lines.map(|line| line.parse().unwrap())).is_ok()
    }

    #[track_caller]
    pub(super) fn accepted(self) {
        assert!(self.is_accepted());
    }

    #[track_caller]
    pub(super) fn refused(self) {
        assert!(!self.is_accepted());
    }
}

impl Story {
    fn granted(self, id: u64, asked: u64, answered: u64, fence: i64) -> Self {
        self.then(id, asked, answered, Ask::TryAcquire, Answer::Granted(fence))
    }
}

/// The grant of acquire 1, with the fence 5.
const FIRST: Grant = Grant { fence: 5, by: 1 };

fn story() -> Story {
    Story::new().granted(1, 0, 10, 5)
}

fn released() -> Story {
    story().released(2, 20, 30, FIRST)
}

pub(crate) fn the_checker_sees_violations() {
    holders_and_fences();
    ends_of_leases();
    what_others_see();
    open_acquires();
    super::permit_by_hand::all();
}

fn holders_and_fences() {
    // One after the other, and a release that overlaps with the next acquire.
    story()
        .released(2, 20, 30, FIRST)
        .granted(3, 40, 50, 6)
        .accepted();
    story()
        .released(2, 20, 60, FIRST)
        .granted(3, 30, 40, 6)
        .accepted();
    // Two holders.
    story().granted(2, 20, 30, 6).refused();
    story()
        .released(2, 40, 50, FIRST)
        .granted(3, 20, 30, 6)
        .refused();
    // Fences that fall, or are the same.
    story()
        .released(2, 20, 30, FIRST)
        .granted(3, 40, 50, 4)
        .refused();
    story()
        .released(2, 20, 30, FIRST)
        .granted(3, 40, 50, 5)
        .refused();
}

fn ends_of_leases() {
    let ttl = u64::try_from(TTL.as_millis()).unwrap();
    let trusted = |millis| Answer::Trusted(Duration::from_millis(millis));
    // The lease expires after its TTL, not earlier, and not while its guard trusts it.
    story().granted(2, ttl + 10, ttl + 20, 6).accepted();
    story().granted(2, ttl - 30, ttl - 20, 6).refused();
    story()
        .then(2, 100, 110, Ask::Check(FIRST), trusted(250))
        .granted(3, 320, 330, 6)
        .refused();
    story()
        .then(2, 100, 110, Ask::Check(FIRST), trusted(250))
        .granted(3, 320, 360, 6)
        .accepted();
    story()
        .granted(2, ttl, ttl + 10, 6)
        .then(3, ttl + 20, ttl + 30, Ask::Check(FIRST), trusted(1))
        .refused();
    story()
        .granted(2, ttl, ttl + 10, 6)
        .released(3, ttl + 20, ttl + 30, FIRST)
        .refused();
    // A dropped guard, and a release without an answer, free the name at any time.
    story()
        .open(2, 20, Ask::Drop(FIRST))
        .granted(3, 30, 40, 6)
        .accepted();
    story()
        .open(2, 20, Ask::Release(FIRST))
        .granted(3, 30, 40, 6)
        .accepted();
    story()
        .open(2, 20, Ask::Drop(FIRST))
        .then(3, 30, 40, Ask::Inspect, Answer::Held(FIRST))
        .accepted();
}

fn what_others_see() {
    story()
        .then(2, 20, 30, Ask::Inspect, Answer::Held(FIRST))
        .accepted();
    story()
        .then(2, 20, 30, Ask::Inspect, Answer::Free)
        .refused();
    story()
        .then(2, 20, 30, Ask::TryAcquire, Answer::Busy(Some(FIRST)))
        .accepted();
    story()
        .then(2, 20, 30, Ask::TryAcquire, Answer::Busy(None))
        .accepted();
    released()
        .then(3, 40, 50, Ask::Inspect, Answer::Held(FIRST))
        .refused();
    released()
        .then(3, 40, 50, Ask::TryAcquire, Answer::Busy(Some(FIRST)))
        .refused();
    released()
        .then(3, 40, 50, Ask::Inspect, Answer::Free)
        .accepted();
    // A grant that belongs to no acquire, or to one that was answered otherwise.
    released()
        .then(
            3,
            40,
            50,
            Ask::Inspect,
            Answer::Held(Grant { fence: 6, by: 9 }),
        )
        .refused();
    let busy = released().then(3, 40, 50, Ask::TryAcquire, Answer::Busy(Some(FIRST)));
    busy.then(
        4,
        60,
        70,
        Ask::Inspect,
        Answer::Held(Grant { fence: 6, by: 3 }),
    )
    .refused();
}

fn open_acquires() {
    // It takes effect late, or never, but not twice, and not before its invocation.
    let late = Grant { fence: 6, by: 3 };
    let open = || released().open(3, 40, Ask::Acquire);
    open().granted(4, 50, 60, 7).accepted();
    open()
        .then(4, 500, 510, Ask::Inspect, Answer::Held(late))
        .accepted();
    open()
        .then(4, 50, 60, Ask::Inspect, Answer::Held(late))
        .granted(5, 70, 80, 7)
        .accepted();
    open()
        .granted(4, 50, 60, 7)
        .then(5, 70, 80, Ask::Inspect, Answer::Held(late))
        .refused();
    let seen = open().then(4, 50, 60, Ask::Inspect, Answer::Held(late));
    let free = seen.then(5, 70, 80, Ask::Inspect, Answer::Free);
    free.then(6, 90, 100, Ask::Inspect, Answer::Held(late))
        .refused();
    story()
        .then(2, 20, 30, Ask::Inspect, Answer::Held(late))
        .open(3, 40, Ask::Acquire)
        .refused();
    // A grant that its acquire did not return is from before the acquire's answer.
    let released_later = |story: Story| story.released(2, 60, 70, FIRST);
    let then_seen = |story: Story| story.then(4, 80, 90, Ask::Inspect, Answer::Held(late));
    then_seen(released_later(story().open(3, 40, Ask::Acquire))).accepted();
    let busy = |ask| story().then(3, 40, 50, ask, Answer::Busy(None));
    then_seen(released_later(busy(Ask::TryAcquire))).refused();
    // But an acquire whose time is over may leave the queue after its answer. The name may be passed on to it before
    // that, once.
    let late_leave = || then_seen(released_later(busy(Ask::Acquire)));
    late_leave().accepted();
    late_leave()
        .granted(5, 90, 100, 7)
        .then(6, 110, 120, Ask::Inspect, Answer::Held(late))
        .refused();
    late_leave()
        .then(5, 92, 94, Ask::Inspect, Answer::Free)
        .then(6, 100, 110, Ask::Inspect, Answer::Held(late))
        .refused();
    let granted = released().then(3, 40, 50, Ask::Acquire, Answer::Granted(6));
    let again = Answer::Held(Grant { fence: 7, by: 3 });
    granted
        .released(4, 60, 70, late)
        .then(5, 80, 90, Ask::Inspect, again)
        .refused();
    let busy = released().then(3, 40, 50, Ask::Acquire, Answer::Busy(None));
    then_seen(busy).accepted();
    asked_again();
}

/// Its session ends while it asks, and it asks again in another one.
fn asked_again() {
    // Odd, and not one of the first: in a session.
    let by = 1_000_001;
    let (lost, new) = (Grant { fence: 6, by }, Grant { fence: 8, by });
    let other = Grant { fence: 7, by: 4 };
    let seen = |story: Story, grant| story.then(3, 50, 60, Ask::Inspect, Answer::Held(grant));
    // Another one has the name now.
    let busy = |id| released().then(id, 40, 90, Ask::TryAcquire, Answer::Busy(Some(other)));
    seen(busy(by), lost).granted(4, 70, 80, 7).accepted();
    // Or it has: after another one, or at once.
    let granted = |id| released().then(id, 40, 90, Ask::TryAcquire, Answer::Granted(8));
    seen(granted(by), lost).accepted();
    let after = || seen(granted(by), lost).granted(4, 70, 80, 7);
    after().released(5, 82, 84, other).accepted();
    // The first grant has ended when the second one is there.
    after().refused();
    seen(granted(by), lost)
        .then(5, 100, 110, Ask::Inspect, Answer::Held(new))
        .then(6, 120, 130, Ask::Inspect, Answer::Held(lost))
        .refused();
    // And without a session it asks once.
    let (by, even) = (by + 1, Grant { by: by + 1, ..lost });
    seen(busy(by), even).granted(4, 70, 80, 7).refused();
    seen(granted(by), even).refused();
}
