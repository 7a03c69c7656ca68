//! Which operations share a batch, and when they are sent.

use std::sync::Arc;

use tokio::sync::oneshot::Receiver;
use uuid::Uuid;

use super::*;
use crate::model::{ClockError, Error, Name, Outcome, RecordKey};
use crate::runtime::batch::alone::ClosureRequest;
use crate::runtime::batch::head::{JobHead, Progress};
use crate::runtime::batch::job::{AnswerTime, Next, Request, Task};
use crate::runtime::batch::lanes::batch_limits::{MAX_BATCH, MAX_BYTES, MAX_JOINS};
use crate::runtime::held::grant::Grant;
use crate::runtime::requests::finish::Finish;
use crate::runtime::requests::release;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::record::{FinishParams, RecordEnd};
use crate::store::verbs::row::LockRow;

const MS: Duration = Duration::from_millis(1);
const NS: Duration = Duration::from_nanos(1);

fn release(name: &str, give_up: Moment, repeated: bool) -> Job {
    let name = Name::new(name).unwrap();
    let exact = ClockError::new(Duration::ZERO);
    let grant = Grant::new(name, Uuid::nil(), 1, MS, exact, None, give_up);
    let progress = Progress::until(give_up);
    let release = release::of(&Arc::new(grant), &Arc::default(), None, progress);
    if repeated {
        release.repeated().into()
    } else {
        release.into()
    }
}

type Found = Receiver<Result<Option<LockRow>, Error>>;

fn look(name: &str, give_up: Moment) -> (Job, Found) {
    let (reply, found) = oneshot::channel();
    let name = Name::new(name).unwrap();
    let subject = Subject::Lock(name.clone());
    let head = JobHead::new(subject, "inspect", Manner::Look, Progress::until(give_up));
    let request = ClosureRequest {
        verb: async move |store: &mut dyn Store| store.lock_inspect(&name).await,
        reply,
    };
    (Task { head, request }.into(), found)
}

fn outcome(key: &str, bytes: usize, give_up: Moment) -> Job {
    let params = FinishParams {
        key: RecordKey::new("scope", key).unwrap(),
        attempt_id: Uuid::nil(),
        attempt: 1,
        end: RecordEnd::Done {
            outcome: Outcome::kept("a/b", vec![0; bytes]),
            retain: MS,
            remember: MS,
        },
    };
    Finish::task(params, None, Progress::until(give_up)).into()
}

fn flush(pending: &mut Pending) -> Receiver<()> {
    let (reply, done) = oneshot::channel();
    pending.flush(reply);
    done
}

fn is_answered(done: &mut Receiver<()>) -> bool {
    done.try_recv().is_ok()
}

/// The names of jobs that were given up, or are in a batch.
fn names(jobs: &[Job]) -> Vec<String> {
    let name = |job: &Job| match &job.head().subject {
        Some(Subject::Lock(name)) => name.to_string(),
        Some(Subject::Record(key)) => String::from_utf8_lossy(key.key()).into(),
        _ => "nothing".into(),
    };
    jobs.iter().map(name).collect()
}

fn filled(jobs: impl IntoIterator<Item = Job>) -> Pending {
    let mut pending = Pending::default();
    for job in jobs {
        pending.arrive(job);
    }
    pending
}

/// A request that joins a queue, or confirms a grant, and does nothing.
#[derive(Debug)]
struct Idle<const CONFIRMS: bool>;

impl<const CONFIRMS: bool> Request for Idle<CONFIRMS> {
    type Outcome = ();

    const RANK: Rank = if CONFIRMS { Rank::Confirm } else { Rank::Join };

    async fn send(tasks: &mut [Task<Self>], _: &mut dyn Store) -> Result<Vec<()>, Fault> {
        Ok(vec![(); tasks.len()])
    }

    fn settle(_: Task<Self>, (): (), _: AnswerTime) -> Next {
        Next::Done
    }

    fn fail(self, _: Error) {}

    fn is_closed(&self) -> bool {
        false
    }
}

fn idle<const CONFIRMS: bool>(name: &str, give_up: Moment) -> Job {
    let subject = Subject::Lock(Name::new(name).unwrap());
    let head = JobHead::acquire(subject, give_up);
    let request = Idle::<CONFIRMS>;
    Task { head, request }.into()
}

/// It has a window. The joins of a busy semaphore may be thousands, and each is a batch of its own.
#[test]
fn a_confirm_goes_before_the_joins_of_others() {
    let (now, far) = (Moment::now(), Moment::now() + Duration::from_hours(1));
    let mut pending = filled([
        release("a", far, false),
        idle::<false>("a", far),
        idle::<false>("b", far),
        idle::<false>("a", far),
        idle::<true>("a", far),
        idle::<true>("a", far),
    ]);
    let numbers = |jobs: Vec<Job>| -> Vec<u64> {
        let numbers = jobs.iter().map(|job| job.head().progress.number);
        numbers.collect()
    };
    assert_eq!(
        numbers(pending.pick(now)),
        [1, 3],
        "a release keeps its place"
    );
    for next in [5, 6, 2, 4] {
        assert_eq!(numbers(pending.pick(now)), [next]);
    }
}

/// The rows of all who join may be locked.
#[test]
fn a_batch_joins_a_few_queues_and_others_go_with_it() {
    let (now, far) = (Moment::now(), Moment::now() + Duration::from_hours(1));
    let joins = (0..3 * MAX_JOINS).map(|n| idle::<false>(&format!("join {n:02}"), far));
    let mut pending = filled(joins.chain([release("a", far, false)]));
    for (first, others) in [(0, 1), (MAX_JOINS, 0), (2 * MAX_JOINS, 0)] {
        let batch = names(&pending.pick(now));
        let joined = (first..first + MAX_JOINS).map(|n| format!("join {n:02}"));
        assert_eq!(
            batch[..MAX_JOINS],
            joined.collect::<Vec<_>>(),
            "in their order"
        );
        assert_eq!(batch.len(), MAX_JOINS + others);
    }
}

#[test]
fn what_is_put_off_pauses_longer_each_time_up_to_a_limit() {
    let now = Moment::now();
    let far = now + Duration::from_hours(1);
    for (repeated, longest) in [(false, 200), (true, 30_000)] {
        let mut job = release("a", far, repeated);
        let mut expected = 2;
        for put_offs in 1..20 {
            let mut pending = Pending::default();
            pending.put_off(job, now, 0.0);
            assert_eq!(pending.wakes_at(), Some(now + MS * expected));
            assert!(pending.is_idle());
            pending.wake(now + MS * expected);
            assert_eq!(pending.wakes_at(), None);
            job = pending.pick(now).pop().unwrap();
            assert_eq!(job.head().progress.put_offs, put_offs);
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
    let jobs = ["b", "a", "b", "c", "b"].map(|name| release(name, far, false));
    let mut pending = filled(jobs);
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

    // The batch ends with the job that makes it too large.
    let sizes = [("a", 1), ("b", MAX_BYTES - 1), ("c", 1), ("d", 1)];
    let mut pending = filled(sizes.map(|(key, bytes)| outcome(key, bytes, far)));
    assert_eq!(names(&pending.pick(now)), ["a", "b", "c"]);
    assert_eq!(names(&pending.pick(now)), ["d"]);
}

#[test]
fn nobody_waits_longer_than_the_operation_timeout() {
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
    // A release of the same name has arrived meanwhile: the first one may have led to it.
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
        let (mut job, _) = look("k", now);
        job.head_mut().bytes = size;
        job
    };
    let mut room = Room::of(RequestLimit::NONE);
    assert!(room.take(&*outcome("a", MAX_BYTES + 1, now)));
    assert!(!room.take(&*outcome("b", 1, now)));
    assert!(room.take(&*read(MAX_BYTES + 1)));
    assert!(!room.take(&*read(1)));
    // A job without bytes still fits.
    assert!(room.take(&*release("a", now, false)));
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
