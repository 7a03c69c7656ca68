//! The operations of a lane that are in no statement just now, in their order, and the flushes that wait for them.
//!
//! Nothing here reads a clock: every method that needs the time is told it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::oneshot;

use super::records::place;
use super::undo;
use crate::model::{Moment, Subject};
use crate::runtime::backoff;
use crate::runtime::op::Op;
use crate::store::RequestLimit;

/// The most operations in one statement.
pub(super) const MAX_BATCH: usize = 256;
/// The outcomes in one statement have little more than so many bytes: servers limit a statement (MariaDB to 16 MiB).
pub(super) const MAX_BYTES: usize = 1 << 20;
/// The longest pause before an operation is sent again, and before an undo is repeated. (Up to as much comes on top by chance.)
pub(super) const MAX_PAUSE: Duration = Duration::from_millis(200);
pub(super) const MAX_UNDO_PAUSE: Duration = Duration::from_secs(30);
/// What is to be sent again within so short a time is sent together; timers are no finer.
const TOGETHER: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// To be sent, oldest first.
    ready: VecDeque<Op>,
    /// Operations that wait for a moment before they are sent again.
    later: Vec<(Moment, Op)>,
    flushes: Vec<Flush>,
    limit: RequestLimit,
    /// How many operations have arrived.
    arrived: u64,
    /// The last batch was an operation that may go alone only.
    went_alone: bool,
}

/// A caller waits until everything that has arrived is done.
#[derive(Debug)]
struct Flush {
    reply: oneshot::Sender<()>,
    /// The last operation that it waits for.
    mark: u64,
    /// What was in flight may have left something to undo: everything is waited for twice.
    second: bool,
}

impl Pending {
    /// Its batches need requests within `limit`.
    pub(super) fn within(limit: RequestLimit) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// A new operation.
    pub(super) fn arrive(&mut self, mut op: Op) {
        if let Op::Flush(reply) = op {
            self.flushes.push(Flush {
                reply,
                mark: self.arrived,
                second: false,
            });
            return;
        }
        self.arrived += 1;
        if let Some(fate) = op.fate_mut() {
            fate.number = self.arrived;
        }
        self.ready.push_back(op);
    }

    /// What has not arrived from outside, and is to be sent after everything else.
    pub(super) fn push_back(&mut self, op: Op) {
        self.ready.push_back(op);
    }

    /// What is to be sent before everything else.
    pub(super) fn push_front(&mut self, op: Op) {
        self.ready.push_front(op);
    }

    /// Removes what is to be sent now.
    pub(super) fn take_ready(&mut self) -> VecDeque<Op> {
        std::mem::take(&mut self.ready)
    }

    /// Whether nothing is to be sent now.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// When the first of those that were put off is to be sent again.
    pub(super) fn wakes_at(&self) -> Option<Moment> {
        self.later.iter().map(|(at, _)| *at).min()
    }

    /// Those that were put off long enough are to be sent now.
    pub(super) fn wake(&mut self, now: Moment) {
        let (ready, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(at, _)| *at <= now + TOGETHER);
        self.later = later;
        // They came before what has arrived since.
        let arrived = std::mem::take(&mut self.ready);
        self.ready.extend(ready.into_iter().map(|(_, op)| op));
        self.ready.extend(arrived);
    }

    /// Not now: a row is locked, or the statement lost against another transaction. `jitter` is from 0 to 1: the part of the
    /// pause that comes on top, so that what fails together in several processes does not come back together. What one
    /// statement has left undone has the same one, and shares the next statement, too.
    pub(super) fn put_off(&mut self, mut op: Op, now: Moment, jitter: f64) {
        let longest = if op.is_repeated_undo() {
            MAX_UNDO_PAUSE
        } else {
            MAX_PAUSE
        };
        let tries = op.fate_mut().map_or(0, |fate| {
            fate.tries += 1;
            fate.tries
        });
        let pause = backoff::pause(tries, longest).mul_f64(1.0 + jitter);
        self.later.push((now + pause, op));
    }

    /// Removes the operations whose patience has ended, and returns them. The undo of an acquire that may have happened
    /// takes its place, so that the operations on its name that come after it find what it leaves.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<Op> {
        let mut expired = Vec::new();
        for op in std::mem::take(&mut self.ready) {
            if op.is_abandoned() {
                continue;
            }
            if op.fate().is_some_and(|fate| fate.give_up <= now) {
                self.ready.extend(undo::of(&op, now));
                expired.push(op);
            } else {
                self.ready.push_back(op);
            }
        }
        expired
    }

    /// When the patience of the next operation ends.
    pub(super) fn gives_up_at(&self) -> Option<Moment> {
        let fates = self.ready.iter().filter_map(Op::fate);
        fates.map(|fate| fate.give_up).min()
    }

    /// The next batch, oldest first: at most one operation per name or record (and those that share it), so that the
    /// operations on it keep their order and never meet in a statement.
    ///
    /// What may go alone only (see [`Fate::company`](crate::runtime::op::Fate)) takes turns with all else, and the one under
    /// which the connection broke least often goes first: the guilty one comes last.
    pub(super) fn pick(&mut self, now: Moment) -> Vec<Op> {
        let breaks = |op: &Op| {
            op.fate()
                .filter(|fate| fate.company == 1)
                .map(|fate| fate.breaks)
        };
        let least = self.ready.iter().filter_map(breaks).min();
        let others_turn = self.went_alone && self.ready.iter().any(|op| breaks(op).is_none());
        let makes_way = |op: &Op| breaks(op).is_some() && (others_turn || breaks(op) > least);
        let mut batch = self.pick_but(now, makes_way);
        if batch.is_empty() {
            // What is left waits for what has made way.
            batch = self.pick_but(now, |_| false);
        }
        self.went_alone = batch.iter().any(|op| breaks(op).is_some());
        batch
    }

    fn pick_but(&mut self, now: Moment, makes_way: impl Fn(&Op) -> bool) -> Vec<Op> {
        let mut batch: Vec<Op> = Vec::new();
        let mut room = Room::of(self.limit);
        let mut places: HashMap<Subject, place::Place> = HashMap::new();
        let mut company = usize::MAX;
        let put_off = place::put_off(&self.later);
        for op in std::mem::take(&mut self.ready) {
            if op.is_abandoned() {
                continue;
            }
            let op = match &op {
                Op::Take(take) if take.reply.is_closed() => undo::of(&op, now).unwrap_or(op),
                _ => op,
            };
            if let Some(at) = place::ordered(&op).and_then(|key| put_off.get(key)) {
                self.later.push((*at, op));
                continue;
            }
            let its_company = op.fate().map_or(usize::MAX, |fate| fate.company);
            let mut admit = |op: &Op| {
                !makes_way(op) && room.operations < company.min(its_company) && room.take(op)
            };
            let picked = match op.subject() {
                None => admit(&op),
                Some(subject) => {
                    let place = places.entry(subject).or_default();
                    let picked = place.joins(&op, &batch) || (place.admits(&op) && admit(&op));
                    place.pass(&op, picked.then_some(batch.len()));
                    picked
                }
            };
            if picked {
                company = company.min(its_company);
                batch.push(op);
            } else {
                self.ready.push_back(op);
            }
        }
        batch
    }

    /// Answers the flushes that have nothing to wait for any more.
    pub(super) fn answer_flushes(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let later = self.later.iter().map(|(_, op)| op);
        let waiting = self.ready.iter().chain(later);
        // A repeated undo waits for what may never come.
        let waiting = waiting.filter(|op| !op.is_repeated_undo());
        let oldest = waiting
            .filter_map(|op| Some(op.fate()?.number))
            .min()
            .unwrap_or(u64::MAX);
        for mut flush in std::mem::take(&mut self.flushes) {
            if oldest > flush.mark && !flush.second {
                flush.mark = self.arrived;
                flush.second = true;
            }
            if oldest > flush.mark {
                let _ = flush.reply.send(());
            } else {
                self.flushes.push(flush);
            }
        }
    }
}

/// What still fits into a batch.
#[derive(Debug)]
struct Room {
    limit: RequestLimit,
    operations: usize,
    /// Bytes of the statements that acquire and release.
    takes: usize,
    releases: usize,
    /// Bytes of outcomes that are written.
    written: usize,
    /// Bytes of outcomes that are read, as far as they are known to be large.
    read: usize,
}

impl Room {
    fn of(limit: RequestLimit) -> Self {
        Self {
            limit,
            operations: 0,
            takes: 0,
            releases: 0,
            written: 0,
            read: 0,
        }
    }

    fn take(&mut self, op: &Op) -> bool {
        if self.operations == MAX_BATCH {
            return false;
        }
        let in_one_piece = match op {
            Op::Take(op) => {
                let (name, holder) = (op.ask.name.as_bytes().len(), op.ask.holder.len());
                self.limit.admits(&mut self.takes, name, holder)
            }
            Op::Release(op) => {
                let name = op.ask.name.as_bytes().len();
                self.limit.admits(&mut self.releases, name, 0)
            }
            _ => true,
        };
        in_one_piece && self.take_outcome(op)
    }

    fn take_outcome(&mut self, op: &Op) -> bool {
        let size = place::size(op);
        let bytes = if place::only_looks(op) {
            &mut self.read
        } else {
            &mut self.written
        };
        let fits = size == 0 || *bytes <= MAX_BYTES;
        if fits {
            self.operations += 1;
            *bytes += size;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::Receiver;
    use uuid::Uuid;

    use super::*;
    use crate::model::{Error, LockInfo, Name, Outcome, RecordKey};
    use crate::runtime::op::{Fate, Look, LookAt, Release};
    use crate::runtime::record::{Read, RecordOp, RecordWork};
    use crate::store::ReleaseAsk;
    use crate::store::record::{FinishAsk, RecordEnd};

    const MS: Duration = Duration::from_millis(1);
    const NS: Duration = Duration::from_nanos(1);

    fn release(name: &str, give_up: Moment, repeated: bool) -> Op {
        Op::Release(Release {
            ask: ReleaseAsk {
                name: Name::new(name).unwrap(),
                owner: Uuid::nil(),
                fence: 0,
            },
            grant: None,
            late: 0,
            repeated,
            reply: None,
            fate: Fate::until(give_up),
        })
    }

    type Found = Receiver<Result<Option<LockInfo>, Error>>;

    fn look(name: &str, give_up: Moment) -> (Op, Found) {
        let (reply, found) = oneshot::channel();
        let look = Look {
            what: LookAt::Inspect(Name::new(name).unwrap(), reply),
            fate: Fate::until(give_up),
        };
        (Op::Look(look), found)
    }

    fn outcome(key: &str, bytes: usize, give_up: Moment) -> Op {
        let ask = FinishAsk {
            key: RecordKey::new("scope", key).unwrap(),
            owner: Uuid::nil(),
            attempt: 1,
            end: RecordEnd::Done {
                outcome: Outcome::kept("a/b", vec![0; bytes]),
                retain: MS,
                forget: MS,
            },
        };
        Op::Record(RecordOp {
            work: RecordWork::Finish(ask, None),
            fate: Fate::until(give_up),
        })
    }

    fn flush(pending: &mut Pending) -> Receiver<()> {
        let (reply, done) = oneshot::channel();
        pending.arrive(Op::Flush(reply));
        done
    }

    fn is_answered(done: &mut Receiver<()>) -> bool {
        done.try_recv().is_ok()
    }

    /// What was given up, or is in a batch, by name.
    fn names(ops: &[Op]) -> Vec<String> {
        let name = |op: &Op| match op.subject() {
            Some(Subject::Lock(name)) => name.to_string(),
            Some(Subject::Record(key)) => String::from_utf8_lossy(key.key()).into(),
            _ => "nothing".into(),
        };
        ops.iter().map(name).collect()
    }

    fn filled(ops: impl IntoIterator<Item = Op>) -> Pending {
        let mut pending = Pending::default();
        for op in ops {
            pending.arrive(op);
        }
        pending
    }

    #[test]
    fn what_is_put_off_pauses_longer_each_time_up_to_a_limit() {
        let now = Moment::now();
        let far = now + Duration::from_hours(1);
        for (repeated, longest) in [(false, 200), (true, 30_000)] {
            let mut op = release("a", far, repeated);
            let mut expected = 2;
            for tries in 1..20 {
                let mut pending = Pending::default();
                pending.put_off(op, now, 0.0);
                assert_eq!(pending.wakes_at(), Some(now + MS * expected));
                assert!(pending.is_idle());
                pending.wake(now + MS * expected);
                assert_eq!(pending.wakes_at(), None);
                op = pending.pick(now).pop().unwrap();
                assert_eq!(op.fate().unwrap().tries, tries);
                expected = (expected * 2).min(longest);
            }
        }
    }

    #[test]
    fn chance_adds_up_to_as_much_again() {
        let now = Moment::now();
        for (jitter, pause) in [(0.0, 2 * MS), (0.25, 5 * MS / 2), (1.0, 4 * MS)] {
            let mut pending = Pending::default();
            pending.put_off(release("a", now, false), now, jitter);
            assert_eq!(pending.wakes_at(), Some(now + pause));
        }
    }

    #[test]
    fn nothing_wakes_before_its_moment_but_for_what_is_due_with_it() {
        let now = Moment::now();
        let mut pending = Pending::default();
        for (name, put_off) in [("c", now + 9 * MS), ("b", now + MS), ("a", now)] {
            pending.put_off(release(name, now + 60 * MS, false), put_off, 0.0);
        }
        assert_eq!(pending.wakes_at(), Some(now + 2 * MS));
        pending.wake(now + MS - NS);
        assert!(pending.is_idle());
        pending.wake(now + 2 * MS);
        assert_eq!(names(&pending.pick(now)), ["b", "a"]);
        assert_eq!(pending.wakes_at(), Some(now + 11 * MS));
    }

    #[test]
    fn a_batch_has_one_operation_per_name_in_their_order() {
        let far = Moment::now() + 60 * MS;
        let ops = ["b", "a", "b", "c", "b"].map(|name| release(name, far, false));
        let mut pending = filled(ops);
        assert!(!pending.is_idle());
        pending.push_front(release("first", far, false));
        pending.push_back(release("last", far, false));
        let now = Moment::now();
        assert_eq!(names(&pending.pick(now)), ["first", "b", "a", "c", "last"]);
        assert_eq!(names(&pending.pick(now)), ["b"]);
        assert_eq!(names(&pending.pick(now)), ["b"]);
        assert!(pending.is_idle());
    }

    #[test]
    fn releases_leave_in_requests_of_one_piece_and_looks_beside_them() {
        let now = Moment::now();
        let far = now + 60 * MS;
        let mut pending = Pending::within(RequestLimit::of(16_000, 100, 10));
        for name in ["a", "b", "c", "d", "a"] {
            pending.arrive(release(name, far, false));
        }
        let (look, _found) = look("e", far);
        pending.arrive(look);
        assert_eq!(names(&pending.pick(now)), ["a", "b", "c", "e"]);
        assert_eq!(names(&pending.pick(now)), ["d", "a"]);
    }

    #[test]
    fn a_batch_is_no_larger_than_a_statement_may_be() {
        let now = Moment::now();
        let far = now + 60 * MS;
        let name = |n: usize| release(&format!("n{n}"), far, false);
        let mut pending = filled((0..=MAX_BATCH).map(name));
        assert_eq!(pending.pick(now).len(), MAX_BATCH);
        assert_eq!(pending.pick(now).len(), 1);

        // The one that makes it too large is the last one.
        let sizes = [("a", 1), ("b", MAX_BYTES - 1), ("c", 1), ("d", 1)];
        let mut pending = filled(sizes.map(|(key, bytes)| outcome(key, bytes, far)));
        assert_eq!(names(&pending.pick(now)), ["a", "b", "c"]);
        assert_eq!(names(&pending.pick(now)), ["d"]);
    }

    #[test]
    fn nobody_waits_longer_than_the_patience_lasts() {
        let now = Moment::now();
        let (first, _first) = look("a", now + 5 * MS);
        let (second, _second) = look("b", now + 3 * MS);
        let mut pending = filled([first, second]);
        assert_eq!(pending.gives_up_at(), Some(now + 3 * MS));
        assert!(pending.expire(now + 3 * MS - NS).is_empty());
        assert_eq!(names(&pending.expire(now + 3 * MS)), ["b"]);
        assert_eq!(pending.gives_up_at(), Some(now + 5 * MS));
        assert_eq!(names(&pending.expire(now + 9 * MS)), ["a"]);
        assert_eq!(pending.gives_up_at(), None);
    }

    #[test]
    fn what_nobody_waits_for_is_left_out() {
        let now = Moment::now();
        let far = now + 60 * MS;
        let (gone, found) = look("a", far);
        drop(found);
        let (here, _found) = look("b", far);
        let mut pending = filled([gone, here]);
        assert_eq!(names(&pending.pick(now)), ["b"]);
        assert!(pending.is_idle());
        let (gone, found) = look("a", now);
        drop(found);
        let mut pending = filled([gone]);
        assert!(pending.expire(now).is_empty() && pending.is_idle());
    }

    #[test]
    fn a_flush_waits_for_what_has_arrived_before_it_and_then_once_more() {
        let now = Moment::now();
        let far = now + 60 * MS;
        let mut pending = Pending::default();
        let mut nothing = flush(&mut pending);
        pending.answer_flushes();
        assert!(is_answered(&mut nothing));

        pending.arrive(release("a", far, false));
        let mut done = flush(&mut pending);
        pending.answer_flushes();
        assert!(!is_answered(&mut done));
        // In the meantime a release of the same name has arrived: the first one may have led to it.
        pending.arrive(release("a", far, false));
        pending.pick(now);
        pending.answer_flushes();
        assert!(!is_answered(&mut done), "the second round");
        pending.arrive(release("a", far, false));
        pending.pick(now);
        pending.answer_flushes();
        assert!(is_answered(&mut done), "there is no third round");
    }

    #[test]
    fn a_flush_waits_for_what_was_put_off_but_not_for_a_repeated_undo() {
        let now = Moment::now();
        for repeated in [false, true] {
            let mut pending = Pending::default();
            pending.put_off(release("a", now + 60 * MS, repeated), now, 0.0);
            let mut done = flush(&mut pending);
            pending.answer_flushes();
            assert_eq!(is_answered(&mut done), repeated);
            pending.wake(now + 9 * MS);
            pending.answer_flushes();
            assert!(!is_answered(&mut done));
            pending.pick(now);
            pending.answer_flushes();
            assert_eq!(is_answered(&mut done), !repeated);
        }
    }

    #[test]
    fn what_is_read_takes_no_room_from_what_is_written() {
        let now = Moment::now();
        let read = |size| {
            let (reply, _) = oneshot::channel();
            let key = RecordKey::new("scope", "k").unwrap();
            let size = Some(size);
            Op::Record(RecordOp {
                work: RecordWork::Read(Read { key, size, reply }),
                fate: Fate::until(now),
            })
        };
        let mut room = Room::of(RequestLimit::NONE);
        assert!(room.take(&outcome("a", MAX_BYTES + 1, now)));
        assert!(!room.take(&outcome("b", 1, now)));
        assert!(room.take(&read(MAX_BYTES + 1)));
        assert!(!room.take(&read(1)));
        // What brings nothing fits.
        assert!(room.take(&release("a", now, false)));
    }

    #[test]
    fn what_is_ready_is_handed_over_whole_and_what_was_put_off_stays() {
        let now = Moment::now();
        let mut pending = Pending::default();
        pending.put_off(release("later", now + 60 * MS, false), now, 0.0);
        pending.arrive(release("a", now, false));
        pending.arrive(release("b", now, false));
        assert_eq!(pending.take_ready().len(), 2);
        assert!(pending.is_idle() && pending.wakes_at().is_some());
    }
}
