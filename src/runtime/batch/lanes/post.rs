//! Answers go to their callers together.
//!
//! A caller waits on the application's runtime. To wake it from the lane's thread may start a worker, which takes the
//! processor from the lane for one answer. So the answers of a statement go to that runtime as one task, which wakes
//! the callers.
//!
//! No caller depends on that task: workers may be blocked, and runtimes end. So the lane delivers what is left while
//! it waits: for the answer to the next statement, or for work. It also delivers before it answers a flush or a
//! shutdown: an answer whose caller has gone drops a guard, and that sends a release.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use parking_lot::{Mutex, RwLock};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::runtime::batch::job::Answer;

/// From so many answers on, they are worth a task.
pub(super) const MANY: usize = 8;

/// The runtime on which the callers of a lane wait.
#[derive(Debug, Default)]
pub(crate) struct Home {
    /// It is known, and nobody looks again before it is used.
    is_known: AtomicBool,
    runtime: Mutex<Option<Handle>>,
}

impl Home {
    /// A caller is here.
    pub(crate) fn note(&self) {
        if self.is_known.load(Ordering::Relaxed) {
            return;
        }
        self.is_known.store(true, Ordering::Relaxed);
        let here = Handle::try_current().ok();
        // The only thread of a runtime may be busy with the caller.
        let here = here.filter(|here| here.runtime_flavor() == RuntimeFlavor::MultiThread);
        *self.runtime.lock() = here;
    }

    /// The runtime of a caller that came since the last call: most likely the others wait there too.
    pub(super) fn take(&self) -> Option<Handle> {
        let runtime = self.runtime.lock().take();
        self.is_known.store(false, Ordering::Relaxed);
        runtime
    }
}

/// The answers that were sent to a runtime.
#[derive(Debug, Default)]
pub(super) struct Post {
    letter: Option<Letter>,
    /// Read while an answer is being delivered, of this letter or of an earlier one.
    delivering: Arc<RwLock<()>>,
}

impl Post {
    /// Delivers `answers`: on `home`, if there are many.
    pub(super) fn send(&mut self, answers: Vec<Answer>, home: Option<Handle>) {
        self.deliver();
        let Some(home) = home.filter(|_| answers.len() >= MANY) else {
            return answers.into_iter().for_each(|answer| answer());
        };
        let letter = Letter {
            answers: Arc::new(Mutex::new(answers.into())),
            delivering: Arc::clone(&self.delivering),
        };
        let delivery = Delivery(letter.clone());
        home.spawn(async move { drop(delivery) });
        self.letter = Some(letter);
    }

    /// Delivers what nobody has begun to deliver.
    pub(super) fn deliver(&mut self) {
        if let Some(letter) = self.letter.take() {
            letter.deliver();
        }
    }

    /// Delivers, and waits for answers that others are delivering. Afterwards all callers have their answers.
    pub(super) fn deliver_all(&mut self) {
        self.deliver();
        drop(self.delivering.write());
    }

    /// Awaits `work`, and delivers after its first step: the statement is on its way then.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let begun = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
        self.deliver();
        match begun {
            Poll::Ready(done) => done,
            Poll::Pending => work.await,
        }
    }
}

/// Answers that are on their way. Who delivers takes one after the other, so that a worker which stands still in the
/// middle keeps back one answer only.
#[derive(Clone)]
struct Letter {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    delivering: Arc<RwLock<()>>,
}

impl Letter {
    fn deliver(&self) {
        loop {
            let _delivering = self.delivering.read();
            let next = self.answers.lock().pop_front();
            let Some(answer) = next else {
                return;
            };
            answer();
        }
    }
}

impl fmt::Debug for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Letter").finish_non_exhaustive()
    }
}

/// Delivers a letter when it is dropped: by a task that runs, or by a runtime that ends before.
struct Delivery(Letter);

impl Drop for Delivery {
    fn drop(&mut self) {
        self.0.deliver();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use tokio::runtime::{Builder, Runtime};

    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// So many answers, and the threads that deliver them.
    fn answers(count: usize) -> (Vec<Answer>, mpsc::Receiver<ThreadId>) {
        let (sender, threads) = mpsc::channel();
        let answer = |_| {
            let sender = sender.clone();
            let answer: Answer = Box::new(move || sender.send(thread::current().id()).unwrap());
            answer
        };
        ((0..count).map(answer).collect(), threads)
    }

    fn runtime() -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    }

    /// A runtime whose only worker is blocked.
    pub(in crate::runtime::batch::lanes) struct Blocked {
        home: Option<Runtime>,
        ends: Option<mpsc::Sender<()>>,
    }

    impl Blocked {
        pub(in crate::runtime::batch::lanes) fn new() -> Self {
            let home = runtime();
            let (ends, ended) = mpsc::channel::<()>();
            let (begins, begun) = mpsc::channel();
            home.spawn(async move {
                begins.send(()).unwrap();
                let _ = ended.recv();
            });
            begun.recv().unwrap();
            Self {
                home: Some(home),
                ends: Some(ends),
            }
        }

        pub(in crate::runtime::batch::lanes) fn handle(&self) -> &Handle {
            self.home.as_ref().unwrap().handle()
        }
    }

    impl Drop for Blocked {
        /// Also in a test that runs on another runtime.
        fn drop(&mut self) {
            self.home.take().unwrap().shutdown_background();
            drop(self.ends.take());
        }
    }

    #[tokio::test]
    async fn a_home_has_threads_of_its_own() {
        let home = Home::default();
        home.note();
        assert!(home.take().is_none(), "this runtime has no other thread");
        let other = runtime();
        {
            let _entered = other.enter();
            home.note();
        }
        assert!(home.take().is_some());
        assert!(home.take().is_none(), "nobody came since");
        other.shutdown_background();
    }

    #[test]
    fn many_answers_are_delivered_at_home_and_few_are_not() {
        let home = runtime();
        for (count, at_home) in [(MANY, true), (MANY - 1, false)] {
            let (answers, threads) = answers(count);
            Post::default().send(answers, Some(home.handle().clone()));
            for _ in 0..count {
                let by_lane = threads.recv().unwrap() == thread::current().id();
                assert_eq!(by_lane, !at_home, "{count}");
            }
        }
    }

    #[tokio::test]
    async fn a_blocked_home_keeps_no_answer() {
        let home = Blocked::new();
        let (answers, threads) = answers(MANY);
        let mut post = Post::default();
        post.send(answers, Some(home.handle().clone()));
        assert!(threads.try_recv().is_err());
        let arrived = async {
            while threads.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
        };
        // The work ends only when the answers are delivered beside it.
        let beside = tokio::time::timeout(PATIENCE, post.beside(arrived));
        beside.await.expect("they are delivered");
        assert_eq!(threads.try_iter().count(), MANY - 1);
    }

    #[test]
    fn a_home_that_has_ended_or_ends_delivers_all_the_same() {
        for has_ended in [true, false] {
            let (answers, threads) = answers(MANY);
            let (home, mut post) = (Blocked::new(), Post::default());
            let handle = home.handle().clone();
            if has_ended {
                drop(home);
                post.send(answers, Some(handle));
            } else {
                post.send(answers, Some(handle));
                drop(home);
            }
            for _ in 0..MANY {
                threads.recv_timeout(PATIENCE).unwrap();
            }
        }
    }

    /// A worker is in the middle of an answer, and does not go on.
    #[test]
    fn an_answer_that_stands_still_keeps_back_no_other() {
        let home = runtime();
        let (in_the_middle, begun) = mpsc::channel();
        let (goes_on, until) = mpsc::channel::<()>();
        let (mut answers, threads) = answers(MANY);
        let stands_still: Answer = Box::new(move || {
            in_the_middle.send(()).unwrap();
            let _ = until.recv();
        });
        answers.insert(0, stands_still);
        let mut post = Post::default();
        post.send(answers, Some(home.handle().clone()));
        begun.recv().unwrap();
        post.deliver();
        assert_eq!(threads.try_iter().count(), MANY);
        let all = thread::spawn(move || post.deliver_all());
        assert!(!all.is_finished(), "one is not delivered");
        drop(goes_on);
        all.join().unwrap();
    }

    #[test]
    fn the_answers_of_a_statement_come_before_those_of_the_next() {
        let home = Blocked::new();
        let (first, early) = answers(MANY);
        let (second, late) = answers(MANY);
        let mut post = Post::default();
        post.send(first, Some(home.handle().clone()));
        post.send(second, Some(home.handle().clone()));
        assert_eq!(early.try_iter().count(), MANY);
        assert_eq!(late.try_iter().count(), 0);
        post.deliver();
        assert_eq!(late.try_iter().count(), MANY);
    }
}
