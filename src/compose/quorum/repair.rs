//! While a lock is held: leases of members that answer late, and of members that were lost.

use std::future::pending;
use std::sync::Weak;

use tokio::time::timeout;

use super::ask::{Asked, Request};
use super::held::Leases;
use super::round::{Round, all};
use crate::lock::{Held, TryAcquire};
use crate::model::Name;

impl Request {
    /// Adds the leases of members that answer late. Then asks the other members again, every third of the TTL, while a majority is held.
    pub(super) async fn repair(
        self,
        name: Name,
        leases: Weak<Leases>,
        fence: i64,
        mut late: Round<'static, Asked>,
    ) {
        let (this, name) = (&self, &name);
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
