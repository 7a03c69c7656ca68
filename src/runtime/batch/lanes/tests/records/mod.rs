//! A lane, batch by batch, on a real file: the jobs of each batch, and the answers that they share.

mod each;
mod undone;

use sqlx::{Connection, SqliteConnection};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::Duration;
use crate::model::{ClockError, Error, Fingerprint, Outcome, RecordKey, Subject};
use crate::runtime::Core;
use crate::runtime::base::settings::{Preparing, Settings};
use crate::runtime::batch::head::Progress;
use crate::runtime::batch::job::{Reply, Request, Task};
use crate::runtime::batch::lanes::{MAX_BYTES, *};
use crate::runtime::held::attempt_guard::RecordGuard;
use crate::runtime::requests::claim::{Claim, ClaimAnswer};
use crate::runtime::requests::read::Read;
use crate::runtime::requests::step::{BeginStep, FinishStep};
use crate::runtime::requests::{exchange, finish::Finish};
use crate::store::driver::connector::Connector;
use crate::store::sqlite::Sqlite;
use crate::store::verbs::kept_state::KeptState;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, FinishOutcome, FinishParams, RecordEnd, RecordStore,
};
use crate::store::verbs::record_row::RecordRow;
use crate::store::verbs::step::{StepBegun, StepKind, StepParams, StepStore};

const PATIENCE: Duration = Duration::from_mins(1);

type Answer<T> = oneshot::Receiver<Result<T, Error>>;

struct House {
    core: Arc<Core>,
    lane: Lane,
    to_lane: mpsc::UnboundedSender<Message>,
    dir: tempfile::TempDir,
}

impl House {
    /// A client that has made the tables, and a lane that runs only when a test runs it.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/test.db?mode=rwc", dir.path().display());
        let connector = Sqlite::from_url(&url).unwrap();
        let settings = Settings {
            holder: "a test".into(),
            operation_timeout: PATIENCE,
            preparing: Preparing {
                migrate: true,
                quarantine: None,
            },
            clean_every: None,
            max_connections: 4,
            clock_error: ClockError::new(Duration::ZERO),
            session_ttl: Duration::from_secs(30),
        };
        let (core, _) = Core::start(connector.clone(), settings).await.unwrap();
        let (to_lane, queue) = mpsc::unbounded_channel();
        let link = Link::new(connector, PATIENCE, &Arc::default());
        let lane =
            Lane::new(link, queue, Sqlite::REQUEST, "here".into()).with_shared(exchange::shared(0));
        Self {
            core,
            lane,
            to_lane,
            dir,
        }
    }

    fn ask(&self, key: &RecordKey) -> ClaimParams {
        ClaimParams {
            key: key.clone(),
            attempt_id: Uuid::new_v4(),
            holder: "a test".into(),
            fingerprint: Fingerprint::of("request"),
            lease: PATIENCE,
            max_attempts: 5,
            database: self.core.server.database,
            retain: PATIENCE,
            remember: PATIENCE,
            remember_begun: PATIENCE,
            seen: None,
        }
    }

    fn claim(&self, key: &RecordKey) -> Answer<ClaimAnswer> {
        self.ask_with(|reply| Claim::task(&self.core.holdings, self.ask(key), reply))
    }

    /// A claim after the connection broke under it this often, and its ask.
    fn doubtful(
        &self,
        key: &RecordKey,
        doubts: u32,
    ) -> (Task<Claim>, ClaimParams, Answer<ClaimAnswer>) {
        let (reply, answer) = oneshot::channel();
        let params = self.ask(key);
        let mut claim = Claim::task(&self.core.holdings, params.clone(), reply);
        claim.head.progress.sent = true;
        claim.head.progress.doubts = doubts;
        (claim, params, answer)
    }

    /// A connection of its own.
    async fn other(&self) -> SqliteConnection {
        SqliteConnection::connect(&self.url()).await.unwrap()
    }

    fn url(&self) -> String {
        format!("sqlite:{}/test.db", self.dir.path().display())
    }

    async fn row(&self, key: &RecordKey) -> Option<RecordRow> {
        let keys = std::slice::from_ref(key);
        let rows = self.other().await.record_read(keys, 0).await.unwrap();
        rows.into_iter().next().flatten()
    }

    /// Waits for the next batch, and executes it.
    async fn step(&mut self) {
        assert!(self.lane.gather().await);
        assert!(self.lane.connect().await);
        let batch = self.lane.pick();
        self.lane.execute(batch).await;
    }

    fn read(&self, key: &RecordKey) -> Answer<Option<RecordRow>> {
        self.ask_with(|reply| Read::task(key, Progress::within(PATIENCE), reply))
    }

    fn finish(&self, key: &RecordKey) -> Answer<FinishOutcome> {
        let params = FinishParams {
            key: key.clone(),
            attempt_id: Uuid::new_v4(),
            attempt: 1,
            end: RecordEnd::Free {
                bound: false,
                pardon: 0,
                remember: PATIENCE,
                remember_begun: PATIENCE,
                step_is_open: false,
            },
        };
        self.ask_with(|reply| Finish::task(params, Some(reply), Progress::within(PATIENCE)))
    }

    fn ask_with<T, V: Request>(&self, task: impl FnOnce(Reply<T>) -> Task<V>) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        self.send(task(reply));
        answer
    }

    fn send(&self, job: impl Into<Job>) {
        self.to_lane.send(Message::Job(job.into())).unwrap();
    }

    /// Takes in the jobs that were sent, and executes one batch.
    async fn batch(&mut self) -> usize {
        self.lane.take_in();
        assert!(self.lane.connect().await);
        let batch = self.lane.pick();
        let size = batch.len();
        self.lane.execute(batch).await;
        size
    }

    /// A record that is done.
    async fn done(&self, key: &RecordKey, outcome: &Outcome) {
        let params = self.ask(key);
        let claim = |reply| Claim::task(&self.core.holdings, params, reply);
        let ClaimAnswer::Mine(guard) = self.core.lanes.answer(claim).await.unwrap() else {
            panic!("it is new")
        };
        let end = RecordEnd::Done {
            outcome: outcome.clone(),
            retain: PATIENCE,
            remember: PATIENCE,
        };
        assert_eq!(guard.finish(end).await.unwrap(), FinishOutcome::Ended);
    }
}

fn key(name: &str) -> RecordKey {
    RecordKey::new("scope", name).unwrap()
}

/// The receivers that have an answer by now.
fn answered<T>(answers: &mut Vec<Answer<T>>) -> Vec<T> {
    let mut found = Vec::new();
    answers.retain_mut(|answer| match answer.try_recv() {
        Ok(answer) => {
            found.push(answer.unwrap());
            false
        }
        Err(TryRecvError::Empty) => true,
        Err(TryRecvError::Closed) => panic!("an operation was lost"),
    });
    found
}

#[tokio::test]
async fn a_storm_of_one_key_is_one_read_and_one_claim() {
    let mut house = House::new().await;
    let mut reads: Vec<_> = (0..1_000).map(|_| house.read(&key("k"))).collect();
    house.batch().await;
    assert_eq!(answered(&mut reads).len(), 1_000);

    let mut claims: Vec<_> = (0..1_000).map(|_| house.claim(&key("k"))).collect();
    let mut later: Vec<_> = (0..3).map(|_| house.read(&key("k"))).collect();
    house.batch().await;
    let claims = answered(&mut claims);
    assert_eq!(claims.len(), 1_000);
    let mine = |claim: &&ClaimAnswer| matches!(claim, ClaimAnswer::Mine(_));
    let missed = |claim: &&ClaimAnswer| matches!(claim, ClaimAnswer::Missed);
    assert_eq!(claims.iter().filter(mine).count(), 1);
    assert_eq!(claims.iter().filter(missed).count(), 999);
    // Reads do not wait for batches of their own after the others, and see their effects.
    for row in answered(&mut later) {
        assert_eq!(row.unwrap().state, KeptState::Running);
    }
    assert!(later.is_empty());
}

#[tokio::test]
async fn reads_and_claims_of_one_key_do_not_wait_for_each_other() {
    let mut house = House::new().await;
    let (mut reads, mut claims) = (Vec::new(), Vec::new());
    for _ in 0..500 {
        reads.push(house.read(&key("k")));
        claims.push(house.claim(&key("k")));
    }
    house.batch().await;
    assert_eq!(answered(&mut reads).len(), 500);
    assert_eq!(answered(&mut claims).len(), 500);
}

#[tokio::test]
async fn reads_that_are_sent_again_share_an_answer_and_claims_do_not() {
    let mut house = House::new().await;
    let (mut reads, mut claims) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (reply, read) = oneshot::channel();
        let mut progress = Progress::within(PATIENCE);
        progress.sent = true;
        house.send(Read::task(&key("k"), progress, reply));
        reads.push(read);
    }
    for _ in 0..2 {
        let (claim, _, claimed) = house.doubtful(&key("k"), 0);
        house.send(claim);
        claims.push(claimed);
    }
    assert_eq!(house.batch().await, 3);
    assert_eq!(answered(&mut reads).len(), 2);
    assert_eq!(answered(&mut claims).len(), 1);
}

#[tokio::test]
async fn what_shares_an_answer_is_left_alone_with_it() {
    let mut house = House::new().await;
    let mut reads = Vec::new();
    for _ in 0..3 {
        reads.push(house.read(&key("k")));
    }
    let mut others = vec![house.read(&key("another"))];
    for _ in 0..2 {
        house.lane.take_in();
        let batch = house.lane.pick();
        assert_eq!(batch.len(), 4);
        // The connection breaks under the batch.
        let (firsts, followers) = house.lane.statements(batch).pop().unwrap().into_jobs();
        let fault = Fault::said(FaultKind::Disconnected, "gone");
        let again = house.lane.broke_off(firsts, followers, fault);
        assert!(again.iter().all(Vec::is_empty));
    }
    // From now on each job goes alone; jobs that share an answer go together.
    assert_eq!(house.batch().await, 1);
    assert_eq!(answered(&mut others).len(), 1);
    assert_eq!(house.batch().await, 3);
    assert_eq!(answered(&mut reads).len(), 3);
}

#[tokio::test]
async fn a_read_behind_a_change_has_an_answer_of_its_own() {
    let mut house = House::new().await;
    let mut reads = vec![house.read(&key("k"))];
    let end = house.finish(&key("k"));
    reads.push(house.read(&key("k")));
    house.batch().await;
    let first = answered(&mut reads);
    assert!(matches!(first[..], [None]), "{first:?}");
    assert_eq!(house.batch().await, 1);
    assert!(answered(&mut reads).is_empty());
    assert_eq!(answered(&mut vec![end]), [FinishOutcome::Superseded]);
    house.batch().await;
    assert_eq!(answered(&mut reads).len(), 1);
}

#[tokio::test]
async fn large_replays_come_in_portions_and_others_go_between() {
    let mut house = House::new().await;
    let size = 256 << 10;
    let large = |n: u8| Outcome::new("b", vec![n; size]).unwrap();
    for n in 0..48 {
        house.done(&key(&format!("large {n:02}")), &large(n)).await;
    }
    let mut replays: Vec<_> = (0..48)
        .map(|n| house.read(&key(&format!("large {n:02}"))))
        .collect();
    let mut seen = Vec::new();
    // Dropping a guard frees its key through another lane, which would hold the file when this lane wants it.
    let mut mine = Vec::new();
    let mut batches = 0;
    while !replays.is_empty() {
        // A job that comes now does not wait for all of them.
        let stranger = key(&format!("stranger {batches}"));
        let (mut looks, mut claims) = (vec![house.read(&stranger)], Vec::new());
        if batches > 0 {
            claims.push(house.claim(&key(&format!("other {batches}"))));
        }
        house.batch().await;
        batches += 1;
        assert!(answered(&mut looks).pop().is_some_and(|row| row.is_none()));
        mine.extend(answered(&mut claims));
        assert!(claims.is_empty());
        let portion = answered(&mut replays);
        let bytes: usize = portion
            .iter()
            .flatten()
            .flat_map(|row| &row.outcome)
            .map(|outcome| outcome.len())
            .sum();
        assert!(bytes <= MAX_BYTES + size, "{bytes} bytes in one batch");
        seen.extend(portion);
    }
    assert!(batches >= 48 * size / (MAX_BYTES + size), "{batches}");
    for (n, row) in (0..).zip(seen) {
        let row = row.unwrap();
        assert_eq!(row.key, format!("large {n:02}").into_bytes());
        assert_eq!(row.outcome.as_deref(), Some(large(n).bytes()));
    }
}

#[tokio::test]
async fn a_few_small_replays_need_one_statement() {
    let mut house = House::new().await;
    for n in 0..4 {
        let outcome = Outcome::new("b", vec![7; MAX_BYTES / 4]).unwrap();
        house.done(&key(&n.to_string()), &outcome).await;
    }
    let mut replays: Vec<_> = (0..4).map(|n| house.read(&key(&n.to_string()))).collect();
    house.batch().await;
    assert_eq!(answered(&mut replays).len(), 4);
}

#[tokio::test]
async fn what_is_put_off_is_not_overtaken_by_the_end_of_its_attempt() {
    let mut house = House::new().await;
    let subjects = |jobs: &[Job]| {
        let subjects = jobs.iter().map(|job| job.head().subject.clone());
        subjects.collect::<Vec<_>>()
    };
    let record = |name: &str| Some(Subject::Record(key(name)));
    let first = house.finish(&key("k"));
    house.lane.take_in();
    let job = house.lane.pick().pop().unwrap();
    house
        .lane
        .pending
        .put_off(job, Moment::now() + PATIENCE, 0.0);
    let until = house.lane.pending.wakes_at().unwrap();
    // The end of another record, a look and a claim go on; the end of this record waits for the job that was put off.
    let second = house.finish(&key("k"));
    let (look, claim, other) = (
        house.read(&key("k")),
        house.claim(&key("k")),
        house.finish(&key("other")),
    );
    house.lane.take_in();
    let batch = house.lane.pick();
    let expected = [record("k"), record("k"), record("other")];
    assert_eq!(subjects(&batch), expected);
    assert!(house.lane.pending.is_idle());
    // When their pause is over they go before later arrivals, in their order.
    let third = house.finish(&key("k"));
    house.lane.take_in();
    house.lane.pending.wake(until);
    let mut numbers = Vec::new();
    while let Some(job) = house.lane.pick().pop() {
        numbers.push(job.head().progress.number);
    }
    assert_eq!(numbers, [1, 2, 6]);
    drop((first, second, third, look, claim, other));
}

mod steps;
