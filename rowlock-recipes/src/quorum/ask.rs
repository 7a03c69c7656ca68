//! Both rounds: the lock is asked of all databases, then the highest fence is proposed to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::held::{Leases, QuorumHeld};
use super::members::Members;
use super::round::Round;
use rowlock::extend::raise_fence;
use rowlock::{Busy, Error, Held, Name};

/// How the lock is asked of the members.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) members: Arc<Members>,
    pub(super) ttl: Duration,
    pub(super) holder: Option<Arc<str>>,
}

/// The answer of a member.
pub(super) type Asked = Result<Held, Error>;

/// Whether a member grants names at all: one that is in quarantine, or that fails, does not.
fn may_grant(answer: &Asked) -> bool {
    match answer {
        Ok(_) => true,
        Err(Error::WaitTimeout { busy, .. }) => busy.quarantine.is_none(),
        Err(_) => false,
    }
}

/// Why a round did not win the lock.
pub(super) enum Missed {
    /// Others have the name.
    Busy(Busy),
    /// Too few members gave an answer.
    Failed(Error),
}

impl Request {
    /// How long a round may take.
    pub(super) fn bound(&self) -> Duration {
        self.ttl / 6
    }

    /// Asks one member.
    pub(super) fn ask_member(
        &self,
        name: &Name,
        member: usize,
    ) -> impl Future<Output = Asked> + use<> {
        let client = self.members.client(member).ok_or_else(Members::missing);
        let lock = client.map(|client| {
            let lock = client.lock(name.clone()).ttl(self.ttl).wait(Duration::ZERO);
            match &self.holder {
                Some(holder) => lock.holder(Arc::clone(holder)),
                None => lock,
            }
        });
        async move { lock?.acquire().await }
    }

    /// Both rounds.
    pub(super) async fn ask(&self, name: &Name) -> Result<QuorumHeld, Missed> {
        let (count, majority) = (self.members.count(), self.members.majority());
        let asks = (0..count).map(|member| self.ask_member(name, member));
        let mut round = Round::of(asks);
        let granted = |round: &Round<_>| round.count(Asked::is_ok);
        let members = &self.members;
        let started = Instant::now();
        let decided = round.run(|round| {
            let granted = granted(round);
            // Those that were silent the last time are waited for only if the others cannot be a majority: they are in
            // quarantine, or fail. Otherwise this would keep meanwhile what the others have granted, and of several
            // callers none would get a majority.
            let is_candidate = |member: &usize| {
                let answer = round.done[*member].as_ref();
                !members.is_silent(*member) && answer.is_none_or(may_grant)
            };
            let candidates = (0..count).filter(is_candidate).count();
            let hoped = round
                .pending()
                .filter(|member| candidates < majority || !members.is_silent(*member));
            granted >= majority || granted + hoped.count() < majority
        });
        let is_late = timeout(self.bound(), decided).await.is_err();
        if granted(&round) >= majority {
            // Members that answer nearly as quickly are taken in this round, too.
            let _ = timeout(started.elapsed(), round.run(|_| false)).await;
        }
        for (member, asked) in round.done.iter().enumerate() {
            match asked {
                Some(Ok(_) | Err(Error::WaitTimeout { .. })) => members.set_silent(member, false),
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
                Some(Ok(held)) => Some(held),
                Some(Err(Error::WaitTimeout { busy: other, .. })) => {
                    busy = busy.or(Some(*other));
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
        let held = (held >= majority).then(|| {
            let repair = |leases: Arc<Leases>| {
                let leases = Arc::downgrade(&leases);
                let repairing = self.clone().repair(name.clone(), leases, fence, round);
                tokio::spawn(repairing).abort_handle()
            };
            QuorumHeld::new(name.clone(), fence, leases, &self.members, repair)
        });
        // Too little time would be left for the work.
        let held = held.filter(|held| held.remaining() >= self.ttl / 3);
        held.ok_or_else(|| Missed::Failed(Self::too_late(count)))
    }

    /// The second round: proposes the highest fence to all members, and drops the leases that did not get it.
    async fn propose(&self, leases: &mut [Option<Held>]) -> i64 {
        let fences = leases.iter().flatten().map(Held::fence);
        let fence = fences.max().unwrap_or_default();
        let raise = leases.iter().map(|lease| async move {
            match lease {
                Some(held) if held.fence() == fence => true,
                Some(held) => raise_fence(held, fence).await.is_ok(),
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

    /// A majority granted the lock, and did not answer the second round in time.
    fn too_late(count: usize) -> Error {
        Error::Unreachable {
            target: format!("a majority of the {count} databases of the quorum"),
            detail: "they have granted the lock, but too slowly for its TTL: it is released again"
                .into(),
        }
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
}
