//! The set of everything that a client has started: threads, slow operations, and tasks that go on for callers who
//! have gone.
//!
//! A member is in the set from its start to its end, under a name for messages. So [`flush`](crate::Rowlock::flush)
//! can wait for all members, and [`shutdown`](crate::Rowlock::shutdown) can report those that did not end.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskKind {
    /// A task of the caller's runtime.
    Work,
    /// A task that finishes what a dropped call has begun on a connection: a begin, a commit or a rollback.
    Finish,
    /// A slow operation that changes something for other clients.
    Order,
    /// A slow operation for its caller only.
    SlowOp,
    /// The thread of the lanes.
    Lanes,
    /// The thread of the renewals and announcements.
    Renewals,
}

tokio::task_local! {
    /// The numbers of the running task and of the tasks that spawned it, oldest first.
    static CHAIN: Arc<[u64]>;
}

/// How many members all clients of this process have had. (One count for all, because a chain may lead from client to
/// client.)
static STARTED: AtomicU64 = AtomicU64::new(0);

fn chain() -> Arc<[u64]> {
    CHAIN.try_with(Arc::clone).unwrap_or_default()
}

/// The set. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks(Arc<TaskSet>);

#[derive(Debug, Default)]
struct TaskSet {
    running: watch::Sender<BTreeMap<u64, RunningTask>>,
}

#[derive(Debug, Clone, Copy)]
struct RunningTask {
    kind: TaskKind,
    name: &'static str,
    /// The number of the oldest member of this set in its chain of spawners; its own number, when no member spawned
    /// it.
    root: u64,
}

/// A member of the set, until it is dropped.
#[derive(Debug)]
pub(crate) struct Member {
    tasks: Tasks,
    number: u64,
}

impl Drop for Member {
    fn drop(&mut self) {
        let running = &self.tasks.0.running;
        running.send_modify(|running| {
            running.remove(&self.number);
        });
    }
}

impl Tasks {
    /// Adds a member.
    pub(crate) fn enter(&self, kind: TaskKind, name: &'static str) -> Member {
        let spawners = chain();
        let mut number = 0;
        self.0.running.send_modify(|running| {
            // Under the lock of the set, so that a mark is exact.
            number = STARTED.fetch_add(1, Ordering::Relaxed);
            let spawner = spawners.iter().find_map(|number| running.get(number));
            let root = spawner.map_or(number, |spawner| spawner.root);
            running.insert(number, RunningTask { kind, name, root });
        });
        Member {
            tasks: self.clone(),
            number,
        }
    }

    /// A mark between the members so far and later ones. Members that earlier ones spawn count as earlier.
    pub(crate) fn mark(&self) -> u64 {
        let _running = self.0.running.borrow();
        STARTED.load(Ordering::Relaxed)
    }

    /// Whether the calling task, or a task that led to it and still runs, entered this set before `mark`.
    pub(crate) fn called_from_before(&self, mark: u64) -> bool {
        let (chain, running) = (chain(), self.0.running.borrow());
        let mut own = chain.iter().filter_map(|number| running.get(number));
        own.any(|its| its.root < mark)
    }

    /// The names of the running members of this kind that entered before `mark`, without the calling task.
    pub(crate) fn running(&self, kind: TaskKind, mark: u64) -> Vec<&'static str> {
        let caller = chain().last().copied();
        let running = self.0.running.borrow();
        let others = running.iter().filter(|(number, its)| {
            its.kind == kind && its.root < mark && Some(**number) != caller
        });
        others.map(|(_, its)| its.name).collect()
    }

    /// Waits for the members of these kinds that entered before `mark`, but not for the calling task and for the tasks
    /// that led to it: they may wait for it.
    pub(crate) async fn ended(&self, kinds: &[TaskKind], mark: u64) {
        let own = chain();
        let ended = |running: &BTreeMap<u64, RunningTask>| {
            !running.iter().any(|(number, its)| {
                its.root < mark && kinds.contains(&its.kind) && !own.contains(number)
            })
        };
        // `self` owns the sender, so this cannot fail.
        let _ = self.0.running.subscribe().wait_for(ended).await;
    }

    /// Runs `work` to its end, as a task of the caller's runtime.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let member = self.enter(TaskKind::Work, name);
        let chain: Arc<[u64]> = chain().iter().copied().chain([member.number]).collect();
        tokio::spawn(CHAIN.scope(chain, async move {
            let done = work.await;
            drop(member);
            done
        }))
    }

    /// Runs `work`, which is never dropped in the middle. When this future is dropped, a task of the caller's runtime
    /// finishes the work and drops its result. (sqlx leaves an open transaction in the pool when its begin is cut
    /// off.)
    pub(crate) fn finish<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Completion<T> {
        Completion {
            work: Some(Box::pin(work)),
            tasks: self.clone(),
            name,
        }
    }
}

pub(crate) struct Completion<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    tasks: Tasks,
    name: &'static str,
}

impl<T: Send + 'static> Future for Completion<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.work else {
            return Poll::Pending; // polled after it was done
        };
        let done = work.as_mut().poll(cx);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for Completion<T> {
    fn drop(&mut self) {
        if let (Some(work), Ok(runtime)) = (self.work.take(), runtime::Handle::try_current()) {
            let member = self.tasks.enter(TaskKind::Finish, self.name);
            runtime.spawn(async move {
                work.await;
                drop(member);
            });
        }
    }
}
