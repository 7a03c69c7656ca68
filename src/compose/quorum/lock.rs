//! The request for a lock: its settings, both rounds, and the task that takes lost members again.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::held::{Leases, QuorumHeld};
use super::members::Members;
use super::round::{Round, all};
use crate::lock::{Held, Lock, TryAcquire};
use crate::model::{Busy, Error, Name};

/// The pause after a round that did not win: random, up to a limit that grows from the first value to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// A request for a lock in a [`Quorum`](super::Quorum); made by [`Quorum::lock`](super::Quorum::lock), then given its settings.
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct QuorumLock {
    members: Arc<Members>,
    name: Result<Name, Error>,
    ttl: Duration,
    wait: Option<Duration>,
    holder: Option<Arc<str>>,
}

/// The answer of a member.
type Asked = Result<TryAcquire, Error>;

/// Why a round did not win the lock.
enum Missed {
    /// Others have the name.
    Busy(Busy),
    /// Too few members gave an answer.
    Failed(Error),
}

impl QuorumLock {
    pub(super) fn new(members: Arc<Members>, name: Result<Name, Error>) -> Self {
        Self {
            members,
            name,
            ttl: Lock::DEFAULT_TTL,
            wait: None,
            holder: None,
        }
    }

    /// As [`Lock::ttl`], in each database: 100 ms to 24 h; 30 s when not set. A majority has to answer within a sixth of it in each of the two rounds.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The longest time that [`acquire`](Self::acquire) waits: at most 366 days; for ever when not set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// As [`Lock::holder`].
    pub fn holder(mut self, holder: impl Into<Arc<str>>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Asks once.
    ///
    /// # Errors
    ///
    /// Invalid settings; [`Error::Unreachable`] when too few databases gave an answer in a sixth of the TTL.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: what was granted is released in the background.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn try_acquire(&self) -> Result<TryAcquire<QuorumHeld>, Error> {
        let name = self.check()?;
        match self.ask(name).await {
            Ok(held) => Ok(TryAcquire::Held(held)),
            Err(Missed::Busy(busy)) => Ok(TryAcquire::Busy(busy)),
            Err(Missed::Failed(error)) => Err(error),
        }
    }

    /// Waits for the lock, for at most [`wait`](Self::wait): asks again and again, after random pauses. If too few databases can be reached, it tries again in that time. There is no
    /// queue: a waiter may starve.
    ///
    /// # Errors
    ///
    /// [`Error::WaitTimeout`] when the lock was not free in time, and the errors of [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: what was granted is released in the background.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn acquire(&self) -> Result<QuorumHeld, Error> {
        let name = self.check()?;
        let started = Instant::now();
        let mut limit = PAUSES.0;
        loop {
            let missed = match self.ask(name).await {
                Ok(held) => return Ok(held),
                Err(missed) => missed,
            };
            let waited = started.elapsed();
            let left = self.wait.map(|wait| wait.saturating_sub(waited));
            match missed {
                Missed::Busy(busy) if left == Some(Duration::ZERO) => {
                    return Err(Error::WaitTimeout {
                        name: name.clone(),
                        waited,
                        busy: Box::new(busy),
                    });
                }
                Missed::Failed(error) if left == Some(Duration::ZERO) || !error.is_transient() => {
                    return Err(error);
                }
                Missed::Busy(_) | Missed::Failed(_) => {}
            }
            let pause = limit.mul_f64(fastrand::f64());
            sleep(left.map_or(pause, |left| pause.min(left))).await;
            limit = (limit * 2).min(PAUSES.1);
        }
    }

    fn check(&self) -> Result<&Name, Error> {
        Lock::check_ttl(self.ttl)?;
        if let Some(wait) = self.wait {
            Lock::check_wait(wait)?;
        }
        self.name.as_ref().map_err(Clone::clone)
    }

    /// How long a round may take.
    fn bound(&self) -> Duration {
        self.ttl / 6
    }

    /// Asks one member.
    fn ask_member(&self, name: &Name, member: usize) -> impl Future<Output = Asked> + use<> {
        let client = self.members.client(member).ok_or_else(Members::missing);
        let lock = client.map(|client| {
            let lock = client.lock(name.clone()).ttl(self.ttl);
            match &self.holder {
                Some(holder) => lock.holder(Arc::clone(holder)),
                None => lock,
            }
        });
        async move { lock?.try_acquire().await }
    }

    /// Both rounds.
    async fn ask(&self, name: &Name) -> Result<QuorumHeld, Missed> {
        let (count, majority) = (self.members.count(), self.members.majority());
        let asks = (0..count).map(|member| self.ask_member(name, member));
        let mut round = Round::of(asks);
        let granted =
            |round: &Round<_>| round.count(|asked| matches!(asked, Ok(TryAcquire::Held(_))));
        let members = &self.members;
        let speaking = (0..count)
            .filter(|member| !members.is_silent(*member))
            .count();
        let started = Instant::now();
        let decided = round.run(|round| {
            let granted = granted(round);
            // Those that were silent the last time are not waited for, if the others can be a majority. Meanwhile this would keep what the others have granted, and of
            // several callers none would get a majority.
            let hoped = round
                .pending()
                .filter(|member| speaking < majority || !members.is_silent(*member));
            granted >= majority || granted + hoped.count() < majority
        });
        let is_late = timeout(self.bound(), decided).await.is_err();
        if granted(&round) >= majority {
            // Members that answer nearly as quickly are taken in this round, too.
            let _ = timeout(started.elapsed(), round.run(|_| false)).await;
        }
        for (member, asked) in round.done.iter().enumerate() {
            match asked {
                Some(Ok(_)) => members.set_silent(member, false),
                Some(Err(error)) if error.is_transient() => members.set_silent(member, true),
                None if is_late => members.set_silent(member, true),
                Some(Err(_)) | None => {}
            }
        }
        let is_granted = granted(&round) >= majority;
        let (mut leases, mut busy, mut errors) = (Vec::new(), None, Vec::new());
        for asked in &mut round.done {
            let asked = asked.take();
            let lease = match asked {
                Some(Ok(TryAcquire::Held(held))) => Some(held),
                Some(Ok(TryAcquire::Busy(other))) => {
                    busy = busy.or(Some(other));
                    None
                }
                Some(Err(error)) => {
                    errors.push(error);
                    None
                }
                None => None,
            };
            leases.push(lease);
        }
        if !is_granted {
            return Err(self.missed(busy, &errors));
        }
        let fence = self.propose(&mut leases).await;
        let held = leases
            .iter()
            .flatten()
            .filter(|held| held.is_held())
            .count();
        let name = name.clone();
        let held = (held >= majority).then(|| {
            let repair = |leases: Arc<Leases>| {
                let repairing = self.clone().repair(Arc::downgrade(&leases), fence, round);
                tokio::spawn(repairing).abort_handle()
            };
            QuorumHeld::new(name, fence, leases, &self.members, repair)
        });
        // Too little time would be left for the work.
        let held = held.filter(|held| held.remaining() >= self.ttl / 3);
        held.ok_or_else(|| self.missed(None, &errors))
    }

    /// The second round: proposes the highest fence to all members, and drops the leases that did not get it.
    async fn propose(&self, leases: &mut [Option<Held>]) -> i64 {
        let fences = leases.iter().flatten().map(Held::fence);
        let fence = fences.max().unwrap_or_default();
        let raise = leases.iter().map(|lease| async move {
            match lease {
                Some(held) if held.fence() == fence => true,
                Some(held) => held.raise_fence(fence).await.is_ok(),
                None => false,
            }
        });
        let has_it: Vec<bool> = {
            let mut round = Round::of(raise);
            let _ = timeout(self.bound(), round.run(|_| false)).await;
            let raised = std::mem::take(&mut round.done).into_iter();
            raised.map(|raised| raised == Some(true)).collect()
        };
        for (lease, has_it) in leases.iter_mut().zip(has_it) {
            if !has_it {
                *lease = None;
            }
        }
        fence
    }

    /// Why no majority granted the lock.
    fn missed(&self, busy: Option<Busy>, errors: &[Error]) -> Missed {
        let (count, majority) = (self.members.count(), self.members.majority());
        let lasting: Vec<&Error> = errors.iter().filter(|e| !e.is_transient()).collect();
        let speaking = (0..count).filter(|member| !self.members.is_silent(*member));
        if let Some(busy) = busy.filter(|_| speaking.count() >= majority + lasting.len()) {
            return Missed::Busy(busy);
        }
        // Without these there is no majority, so asking again does not help.
        if let Some(error) = lasting.first().filter(|_| count - lasting.len() < majority) {
            return Missed::Failed((*error).clone());
        }
        let detail: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Missed::Failed(Error::Unreachable {
            target: format!("a majority of the {count} databases of the quorum"),
            detail: if detail.is_empty() {
                format!("they did not answer within {:.1?}", self.bound())
            } else {
                detail.join("; ")
            },
        })
    }

    /// Adds the leases of members that answer late. Then asks the other members again, every third of the TTL, while a majority is held.
    async fn repair(self, leases: Weak<Leases>, fence: i64, mut late: Round<'static, Asked>) {
        let this = &self;
        let Ok(name) = &this.name else {
            return;
        };
        let raised = async |held: Held| {
            let raised = timeout(this.bound(), held.raise_fence(fence)).await;
            matches!(raised, Ok(Ok(_))).then_some(held)
        };
        let add_late = async |late: &mut Round<'static, Asked>| {
            while late.pending().next().is_some() {
                late.run(|late| late.count(|_| true) > 0).await;
                for (member, asked) in late.done.iter_mut().enumerate() {
                    let asked = asked.take();
                    if let Some(answer) = &asked {
                        this.members.set_silent(member, answer.is_err());
                    }
                    if let Some(Ok(TryAcquire::Held(held))) = asked
                        && let Some(held) = raised(held).await
                        && let Some(leases) = leases.upgrade()
                    {
                        leases.add(member, held);
                    }
                }
            }
            pending::<()>().await;
        };
        loop {
            // Those that do not answer do not delay the others.
            let _ = timeout(this.ttl / 3, add_late(&mut late)).await;
            let Some(held) = leases.upgrade() else {
                return;
            };
            let Some(mut missing) = held.missing() else {
                return held.give_up();
            };
            drop(held);
            missing.retain(|member| late.pending().all(|late| late != *member));
            let again = missing.into_iter().map(|member| async move {
                let asked = timeout(this.bound(), this.ask_member(name, member)).await;
                let Ok(Ok(TryAcquire::Held(held))) = asked else {
                    return None;
                };
                raised(held).await.map(|held| (member, held))
            });
            for (member, held) in all(again).await.into_iter().flatten() {
                if let Some(leases) = leases.upgrade() {
                    leases.add(member, held);
                }
            }
        }
    }
}
