//! The jobs of a batch, and the jobs of a failed batch.

use super::*;
use crate::runtime::batch::endpoints::Endpoints;
use crate::store::driver::request::RequestLimit;

#[tokio::test]
async fn acquires_leave_in_requests_of_one_piece() {
    let mut bench = Bench::new().await;
    bench.lane.pending = Pending::within(RequestLimit::of(16_000, 1_000, 10));
    let mut outcomes = Vec::new();
    for n in 0..40 {
        let (take, outcome) = bench.take(&format!("n{n}"));
        bench.lane.pending.arrive(take.into());
        outcomes.push(outcome);
    }
    let batch = bench.lane.pending.pick(Moment::now());
    assert!((1..40).contains(&batch.len()), "{} in one", batch.len());
}

#[tokio::test]
async fn what_breaks_the_connection_alone_is_put_off_from_the_second_time_on() {
    let mut bench = Bench::new().await;
    let (take, _outcome) = bench.take("a");
    let mut job = Job::from(take);
    for time in 1..=3 {
        assert!(bench.lane.failed(vec![job], Fault::timed_out()).is_empty());
        assert_eq!(bench.lane.pending.wakes_at().is_some(), time > 1, "{time}");
        bench.lane.pending.wake(Moment::now() + PATIENCE);
        job = bench.lane.pending.take_ready().pop_front().unwrap();
    }
}

#[tokio::test]
async fn an_acquire_waits_for_a_server_that_is_away() {
    let mut bench = Bench::new().await;
    let endpoints: Arc<Endpoints> = Arc::default();
    let nowhere = bench.dir.path().join("nowhere").join("lane.db");
    let nowhere = Sqlite::from_url(&format!("sqlite:{}", nowhere.display())).unwrap();
    bench.lane.link = Link::new(nowhere, PATIENCE, &endpoints);
    let (take, mut outcome) = bench.take("a");
    bench.send(take);
    assert!(bench.lane.gather().await);
    let dialed = async {
        while endpoints.refusal().is_none() {
            tokio::task::yield_now().await;
        }
    };
    select! {
        biased;
        _ = bench.lane.connect() => panic!("there is no server"),
        () = dialed => {}
    }
    assert!(answer(&mut outcome).is_none(), "it is refused");
}

#[tokio::test]
async fn many_releases_and_acquires_share_a_statement_and_few_do_not() {
    let mut bench = Bench::new().await;
    bench.lane.shared = exchange::shared(4).into();
    let take = bench.take("held");
    let guard = bench.granted(take).await;
    for (acquires, expected) in [(2, 2), (3, 1)] {
        let (release, _released) = bench.release_of(&guard);
        // The name of the first one comes before that of the release.
        let mut jobs: Vec<Job> = vec![release.into()];
        jobs.extend((0..acquires).map(|n| bench.take(&format!("a{n}")).0.into()));
        let statements = bench.lane.statements(jobs);
        assert_eq!(statements.len(), expected);
        let (first, _) = statements.into_iter().next().unwrap().into_jobs();
        assert!(as_release(&first[0]).is_some(), "what frees comes first");
    }
}
