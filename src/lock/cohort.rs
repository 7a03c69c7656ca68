//! Waiting for a lease together with other tasks of this client; see
//! [`runtime::wait::cohort`](crate::runtime::wait::cohort).

use std::pin::pin;
use std::sync::Arc;

use tokio::select;

use super::Lock;
use super::patience::{Patience, until};
use crate::model::{Error, Kind, Name, Subject};
use crate::runtime::held::guard::Guard;
use crate::runtime::requests::take::AcquireAnswer;
use crate::runtime::wait::cohort::delegate::{Delegation, LINGERING};
use crate::runtime::wait::cohort::{Arrival, Cohort, CohortKey, CohortWaiter, WaitEnd};
use crate::store::verbs::Store;
use crate::store::verbs::queue::{ConfirmOutcome, ConfirmParams, FenceBlock};

impl Lock {
    /// Waits for the lease: in its cohort, if it may have one. Asks at least once, however short the wait.
    pub(super) async fn wait_in_cohort(&self, name: &Name) -> Result<Guard, Error> {
        let patience = Patience::new(self);
        let Some(cohort) = self.cohort(name) else {
            return self.wait_in_queue(name, patience).await;
        };
        let delegate = |delegation| self.delegate(name, delegation);
        let waiting = match cohort.arrive(delegate) {
            Arrival::Held(guard) => return Ok(guard),
            Arrival::Asks(mut asking) => {
                match self.ask(name).await {
                    Ok(AcquireAnswer::Held(guard)) => {
                        let reserved = self.reserve(&guard).await;
                        match asking.granted(guard, reserved) {
                            Ok(guard) => return Ok(guard),
                            Err(lost) => asking = lost,
                        }
                    }
                    Ok(AcquireAnswer::Not(busy)) if patience.is_over() => {
                        return Err(patience.timed_out(busy));
                    }
                    Ok(AcquireAnswer::Not(_)) => {}
                    Err(error) if !error.is_transient() || patience.is_over() => return Err(error),
                    Err(error) => cohort.set_trouble(Some(&error)),
                }
                match asking.waits(delegate) {
                    Ok(guard) => return Ok(guard),
                    Err(waiting) => waiting,
                }
            }
            Arrival::Waits(waiting) => waiting,
            Arrival::IsAlone => return self.wait_in_queue(name, patience).await,
            Arrival::Full(waiting) => {
                let mut busy = self.core.rows.busy_now(name, Kind::Lock).await;
                busy.waiters = busy.waiters.max(u32::try_from(waiting).unwrap_or(u32::MAX));
                let busy = Box::new(busy);
                return Err(Error::QueueFull { busy });
            }
        };
        self.wait_for_turn(name, &cohort, (waiting, patience)).await
    }

    async fn wait_for_turn(
        &self,
        name: &Name,
        cohort: &Cohort,
        (mut waiting, patience): (CohortWaiter, Patience),
    ) -> Result<Guard, Error> {
        let core = &self.core;
        loop {
            let mut closing = pin!(core.queue.closing.notified());
            // From here on no shutdown is missed.
            closing.as_mut().enable();
            core.lanes.check_open()?;
            if core.lanes.is_closing() {
                // It may still be granted a lock, and its delegate may not.
                break;
            }
            select! {
                biased;
                told = waiting.told() => match told {
                    WaitEnd::Held(guard) => return Ok(guard),
                    WaitEnd::Failed(Error::ShutDown { .. }) | WaitEnd::Again => break,
                    WaitEnd::Failed(error) => return Err(error),
                },
                () = closing => {}
                () = until(patience.limit) => {
                    let trouble = cohort.trouble();
                    drop(waiting);
                    if let Some(trouble) = trouble {
                        return Err(trouble);
                    }
                    return Err(patience.timed_out(core.rows.busy_now(name, Kind::Lock).await));
                }
            }
        }
        drop(waiting);
        self.wait_in_queue(name, patience).await
    }

    /// The lease of its cohort, if it lingers.
    pub(super) fn pick_up(&self, name: &Name) -> Option<Guard> {
        self.linger?;
        self.cohort(name)?.pick_up()
    }

    /// The cohort of this request, if it may have one.
    fn cohort(&self, name: &Name) -> Option<Arc<Cohort>> {
        let core = &self.core;
        let is_plain = self.share.is_none() && self.owner.is_none() && self.max_hold.is_none();
        if !is_plain || core.server.multi_writer || core.lanes.is_closing() {
            return None;
        }
        Some(core.cohorts.of(CohortKey {
            name: name.clone(),
            ttl: self.lease(),
            in_session: self.in_session,
            holder: self.holder.clone(),
            queue_limit: self.queue_limit,
            linger: self.linger,
        }))
    }

    /// Reserves fences for the tasks that take a lease while it lingers. Without them, it does not linger.
    async fn reserve(&self, guard: &Guard) -> FenceBlock {
        let grant = guard.grant();
        if self.linger.is_none() {
            return FenceBlock::default();
        }
        let reserved = async {
            let params = ConfirmParams {
                name: grant.name.clone(),
                grant_id: grant.id,
                ttl: self.lease(),
                session: grant.session_id(),
                fences: LINGERING,
            };
            let head = self
                .core
                .lanes
                .wish(Subject::Lock(grant.name.clone()), "reserve fences");
            let confirm = async move |store: &mut dyn Store| store.queue_confirm(&params).await;
            self.core.lanes.run(head, confirm).await
        };
        match reserved.await {
            Ok(Some(ConfirmOutcome::Held { fence, reserved })) => {
                grant.set_fence(fence);
                reserved
            }
            Ok(_) => FenceBlock::default(),
            Err(error) => {
                tracing::debug!(name = %grant.name, %error, "the lease cannot linger");
                FenceBlock::default()
            }
        }
    }

    /// A delegate: it waits in the database for the tasks of the cohort, turn by turn.
    fn delegate(
        &self,
        name: &Name,
        delegation: Delegation,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (name, delegation) = (name.clone(), Arc::new(delegation));
        let lock = Self {
            wait: None,
            delegation: Some(Arc::clone(&delegation)),
            ..self.clone()
        };
        async move {
            while delegation.is_awaited() {
                let patience = Patience::new(&lock);
                delegation.delivered(lock.queue_up(&name, patience, false).await);
            }
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::Rowlock;
    use crate::model::Loss;

    async fn client() -> (tempfile::TempDir, Rowlock) {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("a.db").display());
        let rowlock = Rowlock::connect(&url).await.unwrap();
        (dir, rowlock)
    }

    async fn guard_of(lock: &Lock, name: &Name) -> Guard {
        match lock.ask(name).await.unwrap() {
            AcquireAnswer::Held(guard) => guard,
            AcquireAnswer::Not(busy) => panic!("{busy:?}"),
        }
    }

    #[tokio::test]
    async fn a_lease_that_was_lost_before_its_turn_begins_is_waited_for() {
        let (_dir, rowlock) = client().await;
        let lock = rowlock.lock("a").wait(Duration::from_secs(20));
        let name = Name::new("a").unwrap();
        let cohort = lock.cohort(&name).unwrap();
        let delegate = |delegation| lock.delegate(&name, delegation);
        let Arrival::Asks(asking) = cohort.arrive(delegate) else {
            panic!("nobody asks yet");
        };
        let guard = guard_of(&lock, &name).await;
        guard.grant().lose(Loss::Expired);
        let asking = asking.granted(guard, FenceBlock::default()).unwrap_err();
        let told = asking.waits(delegate).unwrap_err().told().await;
        assert!(
            matches!(&told, WaitEnd::Held(guard) if guard.is_held()),
            "{told:?}"
        );
    }

    #[tokio::test]
    async fn a_lock_stays_in_its_session_when_fences_are_reserved_for_it() {
        let (_dir, rowlock) = client().await;
        let lock = rowlock.lock("a").in_session();
        let lock = lock.linger(Duration::from_secs(1));
        let name = Name::new("a").unwrap();
        let guard = guard_of(&lock, &name).await;
        let session = lock.core.session().await.unwrap();
        session.grant.lose(Loss::SessionEnded);
        lock.reserve(&guard).await;
        let next = lock.core.session().await.unwrap().grant.id;
        let info = rowlock.inspect("a").await.unwrap();
        assert_ne!(info.and_then(|info| info.session), Some(next));
    }

    #[tokio::test]
    async fn reserved_fences_are_higher_than_all_that_were_granted_before() {
        let (_dir, rowlock) = client().await;
        let lock = rowlock.lock("a").linger(Duration::from_mins(1));
        let guard = guard_of(&lock, &Name::new("a").unwrap()).await;
        let own = guard.grant().fence();
        let reserved = lock.reserve(&guard).await;
        assert!(reserved.count > 0);
        let fences = reserved.fences(guard.grant().fence());
        assert_eq!(*fences.start(), own + 1);
    }

    #[tokio::test]
    async fn a_task_that_was_refused_takes_the_lease_that_lingers_since() {
        let (_dir, rowlock) = client().await;
        let lock = rowlock.lock("a").linger(Duration::from_mins(1));
        let name = Name::new("a").unwrap();
        let cohort = lock.cohort(&name).unwrap();
        let delegate = |delegation| lock.delegate(&name, delegation);
        let Arrival::Asks(asking) = cohort.arrive(delegate) else {
            panic!("nobody asks yet");
        };
        // Another one has the lease since, and leaves it: it lingers, although its delegate may not have ended yet.
        for round in 0..40 {
            drop(lock.core.queue.keepers.recall(&name));
            let before = rowlock.lock("a").wait(rowlock_test::patience());
            let before = before.acquire().await.unwrap();
            let release = async {
                while rowlock.admin().queue("a").await.unwrap().is_empty() {
                    tokio::task::yield_now().await;
                }
                before.release().await.unwrap();
            };
            let (held, ()) = tokio::join!(lock.acquire(), release);
            let held = held.unwrap();
            held.release().await.unwrap();
            assert!(cohort.lingers(), "round {round}");
        }
        let guard = asking.waits(delegate).expect("it lingers");
        assert!(guard.is_held());
    }

    #[tokio::test]
    async fn a_lease_that_is_called_back_leaves_no_task() {
        let (_dir, rowlock) = client().await;
        let lock = rowlock.lock("a").linger(Duration::from_mins(1));
        let name = Name::new("a").unwrap();
        let cohort = lock.cohort(&name).unwrap();
        let alive = || lock.core.cohorts.own.metrics().num_alive_tasks();
        let before = alive();
        for _ in 0..50 {
            while !cohort.lingers() {
                let held = lock.acquire().await.unwrap();
                held.release().await.unwrap();
            }
            drop(lock.core.queue.keepers.recall(&name));
        }
        let ended = async {
            // Others end with the turn.
            while alive() > before + 10 {
                tokio::task::yield_now().await;
            }
        };
        let ended = tokio::time::timeout(rowlock_test::patience(), ended).await;
        ended.expect("they end");
    }

    #[tokio::test]
    async fn a_task_that_asks_and_is_not_polled_stops_nobody() {
        let (_dir, rowlock) = client().await;
        let lock = rowlock.lock("a").wait(Duration::from_secs(20));
        let name = Name::new("a").unwrap();
        let cohort = lock.cohort(&name).unwrap();
        // A task that asks, and is not polled again.
        let asking = cohort.arrive(|delegation| lock.delegate(&name, delegation));
        assert!(matches!(asking, Arrival::Asks(_)), "{asking:?}");
        for _ in 0..3 {
            let held = lock.acquire().await.unwrap();
            held.release().await.unwrap();
        }
        drop(asking);
    }
}
