//! The order of turns.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use super::*;

/// The time of a verb.
const BOUND: Duration = Duration::from_secs(2);

fn writers() -> Arc<Writers> {
    Arc::new(Writers::new())
}

/// Polls once.
async fn poll<F: Future>(future: &mut Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    })
    .await
}

async fn transaction(writers: &Arc<Writers>) -> WriteTurn {
    writers.line_up().await.turn().await
}

async fn own(writers: &Arc<Writers>) -> Option<WriteTurn> {
    writers.in_turns(BOUND, turn()).await
}

#[tokio::test]
async fn transactions_have_their_turns_in_order() {
    let writers = writers();
    let first = transaction(&writers).await;
    let (mut second, mut third) = (pin!(transaction(&writers)), pin!(transaction(&writers)));
    assert!(poll(&mut second).await.is_none());
    assert!(poll(&mut third).await.is_none());
    drop(first);
    assert!(poll(&mut third).await.is_none());
    let turn = poll(&mut second).await.expect("its turn");
    assert!(poll(&mut third).await.is_none());
    drop(turn);
    assert!(poll(&mut third).await.is_some());
}

#[tokio::test]
async fn an_own_connection_waits_for_one_transaction_and_the_next_transaction_for_one_own_connection()
 {
    let writers = writers();
    let first = transaction(&writers).await;
    // The head waits for the turn before the own connection comes.
    let (mut second, mut third) = (pin!(transaction(&writers)), pin!(transaction(&writers)));
    assert!(poll(&mut second).await.is_none());
    assert!(poll(&mut third).await.is_none());
    let mut lane = pin!(own(&writers));
    assert!(poll(&mut lane).await.is_none());
    drop(first);
    assert!(
        poll(&mut second).await.is_none(),
        "it lets the lane go first"
    );
    let turn = poll(&mut lane)
        .await
        .flatten()
        .expect("the turn of the lane");
    let mut renewal = pin!(own(&writers));
    assert!(poll(&mut renewal).await.is_none());
    drop(turn);
    let turn = poll(&mut second).await.expect("it lets one go first only");
    assert!(poll(&mut renewal).await.is_none());
    drop(turn);
    assert!(poll(&mut renewal).await.flatten().is_some());
}

#[tokio::test]
async fn a_task_that_leaves_lets_the_next_one_go() {
    let writers = writers();
    let first = transaction(&writers).await;
    // The head, which waits for the turn; a task in the line; an own connection.
    let mut head = Box::pin(transaction(&writers));
    assert!(poll(&mut head.as_mut()).await.is_none());
    let mut waits = Box::pin(transaction(&writers));
    assert!(poll(&mut waits.as_mut()).await.is_none());
    let mut lane = Box::pin(own(&writers));
    assert!(poll(&mut lane.as_mut()).await.is_none());
    let mut last = pin!(transaction(&writers));
    assert!(poll(&mut last).await.is_none());
    drop((head, waits, lane));
    drop(first);
    let turn = poll(&mut last).await;
    assert!(turn.is_some());
    assert_eq!(writers.own.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_own_connection_goes_without_a_turn_in_the_end() {
    let writers = writers();
    let _long = transaction(&writers).await;
    let before = tokio::time::Instant::now();
    assert!(own(&writers).await.is_none());
    assert!(before.elapsed() >= OWN_WAIT);
    assert_eq!(writers.own.load(Ordering::SeqCst), 0);
}

/// Between two transactions the file is free for a moment only.
#[tokio::test]
async fn an_own_connection_keeps_its_place_while_a_transaction_has_the_file() {
    let writers = writers();
    let first = transaction(&writers).await;
    first.has_file();
    let mut second = pin!(transaction(&writers));
    assert!(poll(&mut second).await.is_none());
    let mut lane = pin!(own(&writers));
    let waits = timeout(3 * OWN_WAIT, &mut lane).await;
    assert!(waits.is_err(), "it has left: {waits:?}");
    drop(first);
    assert!(poll(&mut second).await.is_none());
    let turn = poll(&mut lane).await.flatten();
    drop(turn.expect("the turn of the lane"));
    let second = poll(&mut second).await.expect("its turn");
    second.has_file();
    let began = tokio::time::Instant::now();
    assert!(own(&writers).await.is_none());
    let has_file = began.elapsed();
    assert!(has_file >= BOUND / 2, "it waits for half of its time");
    drop(second);
    let third = transaction(&writers).await;
    let began = tokio::time::Instant::now();
    assert!(own(&writers).await.is_none(), "the third has not begun");
    let has_none = began.elapsed();
    assert!(has_none < has_file / 2, "{has_none:?} of {has_file:?}");
    drop(third);
}

#[tokio::test]
async fn a_verb_outside_of_an_own_connection_waits_for_no_turn() {
    assert!(turn().await.is_none());
}

#[test]
fn a_file_has_its_writers_by_each_of_its_paths() {
    let dir = tempfile::tempdir().unwrap();
    let (file, other) = (dir.path().join("a.db"), dir.path().join("b.db"));
    std::fs::write(&file, "").unwrap();
    let writers = Writers::of_file(&file);
    #[cfg(unix)]
    {
        let link = dir.path().join("link.db");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(Arc::ptr_eq(&writers, &Writers::of_file(&link)));
    }
    let detour = dir.path().join(".").join("a.db");
    assert!(Arc::ptr_eq(&writers, &Writers::of_file(&detour)));
    assert!(!Arc::ptr_eq(&writers, &Writers::of_file(&other)));
}

#[tokio::test]
async fn a_turn_alone_keeps_its_file_known() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.db");
    let turn = transaction(&Writers::of_file(&file)).await;
    let writers = Writers::of_file(&file);
    assert!(poll(&mut pin!(transaction(&writers))).await.is_none());
    drop(turn);
    transaction(&writers).await;
}
