//! While a lock is held: leases of members that answer late, and of members that were lost.

use std::future::pending;
use std::sync::Weak;

use tokio::time::timeout;

use super::ask::{Asked, Request};
use super::held::Leases;
use super::round::{Round, all};
use rowlock::Name;
use rowlock::extend::raise_fence;
use rowlock::{Error, Held};

impl Request {
    /// Adds the leases of members that answer late. Then asks the other members again, every third of the TTL, while a
    /// majority is held.
    pub(super) async fn repair(
        self,
        name: Name,
        leases: Weak<Leases>,
        fence: i64,
        mut late: Round<'static, Asked>,
    ) {
        let (this, name) = (&self, &name);
        let raised = async |held: Held| {
            let raised = timeout(this.bound(), raise_fence(&held, fence)).await;
            matches!(raised, Ok(Ok(_))).then_some(held)
        };
        let add_late = async |late: &mut Round<'static, Asked>| {
            loop {
                // The time may have been over before all answers of the last look were handled.
                for (member, asked) in late.done.iter_mut().enumerate() {
                    let asked = asked.take();
                    if let Some(answer) = &asked {
                        let is_silent = !matches!(answer, Ok(_) | Err(Error::WaitTimeout { .. }));
                        this.members.set_silent(member, is_silent);
                    }
                    if let Some(Ok(held)) = asked
                        && let Some(held) = raised(held).await
                        && let Some(leases) = leases.upgrade()
                    {
                        leases.add(member, held);
                    }
                }
                if late.pending().next().is_none() {
                    return pending::<()>().await;
                }
                late.run(|late| late.count(|_| true) > 0).await;
            }
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
                let Ok(Ok(held)) = asked else {
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

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::future::ready;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::quorum::held::QuorumHeld;
    use crate::quorum::members::Members;
    use rowlock::Rowlock;

    /// The repair was cut off after it had this answer, and before it had added the lease.
    #[tokio::test]
    async fn a_late_lease_that_was_not_added_in_time_is_added_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut clients = Vec::new();
        for number in 0..3 {
            let url = format!("sqlite:{}/{number}.db", dir.path().display());
            clients.push(Rowlock::connect(&url).await.unwrap());
        }
        let name = Name::new("a").unwrap();
        let mut granted = Vec::new();
        for client in &clients {
            granted.push(client.lock("a").acquire().await.unwrap());
        }
        let late = granted.pop().unwrap();
        let fence = late.fence().max(granted[0].fence()).max(granted[1].fence());
        for held in &granted {
            raise_fence(held, fence).await.unwrap();
        }
        let members = Arc::new(Members::of(clients).unwrap());
        let request = Request {
            members: Arc::clone(&members),
            ttl: Duration::from_secs(30),
            holder: None,
        };
        let answers = [Err(Members::missing()), Err(Members::missing()), Ok(late)];
        let mut round = Round::of(answers.map(ready));
        round.run(|_| false).await;
        let granted = granted.into_iter().map(Some).chain([None]).collect();
        let mut leases = None;
        let held = QuorumHeld::new(name.clone(), fence, granted, &members, |all| {
            let all = leases.insert(all);
            tokio::spawn(request.repair(name, Arc::downgrade(all), fence, round)).abort_handle()
        });
        let leases = leases.unwrap();
        let added = async {
            while leases.missing() != Some(Vec::new()) {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(9), added).await.unwrap();
        held.release().await.unwrap();
    }
}
