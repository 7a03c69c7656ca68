//! Short histories of read/write locks and semaphores, written by hand. Acquires 1, 2, … are granted 10 ms after they
//! are asked.

use std::time::Duration;

use super::TTL;
use super::by_hand::Story;
use super::event::{Answer, Ask, Grant, Share};
use super::permit::Permits;

type Of = Story<Permits>;

impl Of {
    fn permit(self, id: u64, asked: u64, share: Share, fence: i64) -> Self {
        let granted = Answer::Granted(fence);
        self.then(id, asked, asked + 10, Ask::TryPermit(share), granted)
    }

    fn read(self, id: u64, asked: u64, fence: i64) -> Self {
        self.permit(id, asked, Share::Read, fence)
    }

    fn write(self, id: u64, asked: u64, fence: i64) -> Self {
        self.permit(id, asked, Share::Write, fence)
    }

    fn weight(self, id: u64, asked: u64, weight: u32) -> Self {
        let fence = i64::try_from(id).unwrap();
        self.permit(id, asked, Share::Weight(weight), fence)
    }

    fn frees(self, id: u64, asked: u64, grant: Grant) -> Self {
        self.released(id, asked, asked + 10, grant)
    }

    fn downgraded(self, id: u64, asked: u64, grant: Grant) -> Self {
        let downgraded = Answer::Downgraded;
        self.then(id, asked, asked + 10, Ask::Downgrade(grant), downgraded)
    }

    fn upgraded(self, id: u64, asked: u64, grant: Grant, fence: i64) -> Self {
        let upgraded = Answer::Upgraded(fence);
        self.then(id, asked, asked + 10, Ask::Upgrade(grant), upgraded)
    }

    fn trusted(self, id: u64, asked: u64, grant: Grant, millis: u64) -> Self {
        let trusted = Answer::Trusted(Duration::from_millis(millis));
        self.then(id, asked, asked + 10, Ask::Check(grant), trusted)
    }
}

fn grant(by: u64, fence: i64) -> Grant {
    Grant { fence, by }
}

/// The permit of acquire 1, with the fence 5.
const FIRST: Grant = Grant { fence: 5, by: 1 };

fn reader() -> Of {
    Of::new().read(1, 0, 5)
}

fn writer() -> Of {
    Of::new().write(1, 0, 5)
}

pub(super) fn all() {
    readers_and_writers();
    fences();
    semaphores();
    ends();
    downgrades();
    upgrades();
    writes_without_an_answer();
}

fn readers_and_writers() {
    // Side by side.
    reader().read(2, 20, 5).read(3, 40, 5).accepted();
    // Two writers; a writer beside a reader, whoever was first.
    writer().write(2, 20, 6).refused();
    reader().write(2, 20, 6).refused();
    writer().read(2, 20, 5).refused();
    // One after the other, or at the same time.
    writer().frees(2, 20, FIRST).write(3, 40, 6).accepted();
    reader().frees(2, 20, FIRST).write(3, 25, 6).accepted();
    writer().frees(2, 45, FIRST).read(3, 20, 5).refused();
    // One of two readers is still there.
    let two = || reader().read(2, 20, 5).frees(3, 40, FIRST);
    two().write(4, 60, 6).refused();
    two().frees(4, 60, grant(2, 5)).write(5, 80, 6).accepted();
    two().frees(4, 60, grant(2, 5)).write(5, 45, 6).refused();
}

fn fences() {
    let written = || writer().frees(2, 20, FIRST);
    // A writer's is new, a reader's that of the last write.
    written().write(3, 40, 5).refused();
    written().write(3, 40, 4).refused();
    written().read(3, 40, 5).accepted();
    written().read(3, 40, 6).refused();
    written().read(3, 40, 4).refused();
    // The row begins with one.
    reader().read(2, 20, 6).refused();
    reader().frees(2, 20, FIRST).read(3, 40, 6).refused();
    reader().frees(2, 20, FIRST).write(3, 40, 5).refused();
    // Each of a semaphore's is new.
    let one = Share::Weight(1);
    let first = || Of::new().permit(1, 0, one, 5);
    first().permit(2, 20, one, 6).accepted();
    first().permit(2, 20, one, 5).refused();
    first().permit(2, 20, one, 4).refused();
}

fn semaphores() {
    // A capacity of 3.
    let three = || Of::new().weight(1, 0, 1).weight(2, 20, 1).weight(3, 40, 1);
    three().accepted();
    three().weight(4, 60, 1).refused();
    Of::new().weight(1, 0, 2).weight(2, 20, 1).accepted();
    Of::new().weight(1, 0, 2).weight(2, 20, 2).refused();
    Of::new().weight(1, 0, 3).weight(2, 20, 1).refused();
    // One was released: its weight is free, no more.
    let freed = || three().frees(4, 60, grant(1, 1));
    freed().weight(5, 80, 1).accepted();
    freed().weight(5, 65, 1).accepted();
    freed().weight(5, 80, 2).refused();
    // Two acquires by the same sum: each fits, both do not.
    freed().weight(5, 80, 1).weight(6, 82, 1).refused();
    freed().weight(6, 62, 1).weight(7, 64, 1).refused();
}

fn ends() {
    let ttl = u64::try_from(TTL.as_millis()).unwrap();
    // It expires after its TTL, not earlier, and not while its guard trusts it.
    writer().write(2, ttl, 6).accepted();
    writer().write(2, ttl - 30, 6).refused();
    writer().read(2, ttl - 30, 5).refused();
    writer()
        .trusted(2, 100, FIRST, 250)
        .write(3, 320, 6)
        .refused();
    writer()
        .trusted(2, 100, FIRST, 250)
        .write(3, 345, 6)
        .accepted();
    writer()
        .write(2, ttl, 6)
        .trusted(3, ttl + 20, FIRST, 1)
        .refused();
    writer()
        .write(2, ttl, 6)
        .frees(3, ttl + 20, FIRST)
        .refused();
    let full = || Of::new().weight(1, 0, 1).weight(2, 100, 2);
    full().weight(3, ttl - 30, 1).refused();
    full().weight(3, ttl, 1).accepted();
    full().weight(3, ttl, 2).refused();
    full().weight(3, ttl + 100, 3).accepted();
    // A dropped guard, and a release without an answer, free it at any time.
    writer()
        .open(2, 20, Ask::Drop(FIRST))
        .read(3, 30, 5)
        .accepted();
    writer()
        .open(2, 20, Ask::Release(FIRST))
        .write(3, 30, 6)
        .accepted();
    // A permit in a session (odd, and not one of the first) may end at any time, but not while its guard trusts it.
    let by = 1_000_001;
    let in_session = || Of::new().write(by, 0, 5);
    in_session().write(2, 20, 6).accepted();
    let trusted = || in_session().trusted(2, 20, grant(by, 5), 100);
    trusted().write(3, 90, 6).refused();
    trusted().write(3, 130, 6).accepted();
}

fn downgrades() {
    let downgraded = || writer().downgraded(2, 20, FIRST);
    // Readers come in, and no writer.
    downgraded().read(3, 40, 5).accepted();
    downgraded().read(3, 25, 5).accepted();
    downgraded().read(3, 40, 6).refused();
    downgraded().write(3, 40, 6).refused();
    writer().read(3, 15, 5).downgraded(2, 30, FIRST).refused();
    // It is still there.
    downgraded().frees(3, 40, FIRST).write(4, 60, 6).accepted();
    writer()
        .frees(2, 20, FIRST)
        .downgraded(3, 40, FIRST)
        .refused();
    // A reader stays one.
    reader().downgraded(2, 20, FIRST).read(3, 40, 5).accepted();
    reader().downgraded(2, 20, FIRST).write(3, 40, 6).refused();
    // Without an answer it may be either: there may be readers, or it is a writer all the time.
    let open = || writer().open(2, 20, Ask::Downgrade(FIRST));
    open().read(3, 40, 5).accepted();
    open().write(3, 40, 6).refused();
    open().upgraded(3, 40, FIRST, 5).accepted();
    open().upgraded(3, 40, FIRST, 6).accepted();
    open().read(3, 40, 5).upgraded(4, 60, FIRST, 5).refused();
    // But it does not take effect after an upgrade.
    open().upgraded(3, 40, FIRST, 6).read(4, 60, 6).refused();
    open().upgraded(3, 40, FIRST, 5).read(4, 60, 5).refused();
    let lost = |story: Of| story.then(2, 20, 30, Ask::Downgrade(FIRST), Answer::Lost);
    lost(writer()).read(3, 40, 5).accepted();
}

fn upgrades() {
    let upgraded = || reader().upgraded(2, 20, FIRST, 6);
    let freed = || upgraded().frees(3, 40, FIRST);
    // It has a new fence, which later readers have too, and keeps all others out.
    freed().read(4, 60, 6).accepted();
    freed().read(4, 60, 5).refused();
    freed().write(4, 60, 7).accepted();
    freed().write(4, 60, 6).refused();
    upgraded().read(3, 40, 6).refused();
    upgraded().write(3, 40, 7).refused();
    reader().upgraded(2, 20, FIRST, 5).refused();
    upgraded()
        .downgraded(3, 40, FIRST)
        .read(4, 60, 6)
        .accepted();
    // There is another reader, or was.
    let two = || reader().read(2, 20, 5);
    two().upgraded(3, 40, FIRST, 6).refused();
    let one = || two().frees(3, 40, grant(2, 5));
    one().upgraded(4, 60, FIRST, 6).accepted();
    one().upgraded(4, 45, FIRST, 6).accepted();
    reader().upgraded(2, 20, FIRST, 6).read(3, 25, 5).refused();
    // Before the other one expires, or while its guard trusts it.
    two().upgraded(3, 300, FIRST, 6).refused();
    two().upgraded(3, 315, FIRST, 6).accepted();
    let trusted = || two().trusted(3, 290, grant(2, 5), 200);
    trusted().upgraded(4, 330, FIRST, 6).refused();
    trusted().upgraded(4, 485, FIRST, 6).accepted();
    // Two readers cannot both upgrade; a busy one says nothing.
    two()
        .upgraded(3, 40, FIRST, 6)
        .upgraded(4, 45, grant(2, 5), 7)
        .refused();
    let busy = |story: Of| story.then(3, 40, 50, Ask::Upgrade(FIRST), Answer::Busy(None));
    busy(two()).write(4, 60, 6).refused();
    busy(two()).read(4, 60, 5).accepted();
}

fn writes_without_an_answer() {
    let freed = || reader().frees(2, 20, FIRST);
    // Readers have a new fence: somebody has written, and got no answer.
    freed().read(4, 60, 6).refused();
    let open = |story: Of| story.open(3, 40, Ask::Permit(Share::Write));
    open(freed()).read(4, 60, 6).accepted();
    open(freed()).read(4, 60, 6).read(5, 80, 5).refused();
    open(freed()).read(4, 60, 5).accepted();
    freed()
        .read(3, 40, 6)
        .open(4, 60, Ask::Permit(Share::Write))
        .refused();
    // Not beside a reader, and not before its acquire.
    open(reader()).read(4, 60, 6).refused();
    freed()
        .read(3, 25, 6)
        .open(4, 40, Ask::Permit(Share::Write))
        .refused();
    // Its acquire was busy: a wait may be over a little before it leaves the queue.
    let busy = |ask| freed().then(3, 40, 50, ask, Answer::Busy(None));
    busy(Ask::Permit(Share::Write)).read(4, 60, 6).accepted();
    let between = |story: Of| story.read(4, 60, 5).frees(5, 80, grant(4, 5));
    between(busy(Ask::TryPermit(Share::Write)))
        .read(6, 100, 6)
        .refused();
    between(busy(Ask::Permit(Share::Write)))
        .read(6, 100, 6)
        .accepted();
    busy(Ask::Permit(Share::Read)).read(4, 60, 6).refused();
    // An upgrade, which keeps its permit.
    let open = |story: Of| story.open(2, 20, Ask::Upgrade(FIRST));
    open(reader()).read(3, 40, 6).accepted();
    open(reader()).upgraded(3, 40, FIRST, 6).accepted();
    open(reader()).write(3, 40, 6).refused();
    open(reader().read(3, 15, 5)).read(4, 40, 6).refused();
}
