//! Sends a chunk of renewals, and handles the answers.

use std::sync::Arc;
use std::time::Duration;

use super::RenewShared;
use super::renewable::Renewable;
use super::schedule::Chunk;
use crate::model::{Loss, Moment};
use crate::runtime::batch::link::Link;
use crate::runtime::held::grant::{Grant, GrantSubject};
use crate::runtime::held::session::{Session, SessionRenewal};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::{RenewOutcome, RenewParams};
use crate::store::verbs::record::KeepParams;

/// Renews the locks of a chunk in one statement, its attempts in another, and each session in one of its own. Each is
/// settled by itself.
pub(super) async fn send(link: &mut Link, shared: &RenewShared, chunk: Chunk) -> Result<(), Fault> {
    let (mut leases, mut attempts, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    for kept in chunk.kept {
        match kept {
            Renewable::Lease(grant) => leases.push(grant),
            Renewable::Attempt(grant) => attempts.push(grant),
            Renewable::Session(session) => sessions.push(session),
        }
    }
    let now = Moment::now();
    let leases = newest_only(leases);
    let all: Vec<RenewParams> = leases
        .iter()
        .map(|grant| RenewParams {
            name: grant.name.clone(),
            grant_id: grant.id,
            ttl: grant.renewal_ttl(now).unwrap_or_default(),
        })
        .collect();
    let leases = leases.into_iter().map(Renewable::Lease).collect();
    let renewed = part(
        link,
        shared,
        leases,
        chunk.bound,
        async |conn: &mut dyn Store| conn.lease_renew(&all).await,
    )
    .await;
    let attempts = newest_only(attempts);
    let all: Vec<KeepParams> = attempts
        .iter()
        .map(|grant| KeepParams {
            key: grant.name.clone(),
            attempt_id: grant.id,
            lease: grant.ttl,
        })
        .collect();
    let attempts = attempts.into_iter().map(Renewable::Attempt).collect();
    let kept = part(
        link,
        shared,
        attempts,
        chunk.bound,
        async |conn: &mut dyn Store| conn.record_renew(&all).await,
    )
    .await;
    let mut done = renewed.and(kept);
    for session in sessions {
        done = done.and(renew_session(link, shared, &session, chunk.bound).await);
    }
    done
}

/// Renews a session. Has its grants looked at, when that is due.
async fn renew_session(
    link: &mut Link,
    shared: &RenewShared,
    session: &Arc<Session>,
    bound: Duration,
) -> Result<(), Fault> {
    let (id, ttl) = (session.grant.id, session.grant.ttl);
    let kept = vec![Renewable::Session(Arc::clone(session))];
    let mut forced = None;
    part(link, shared, kept, bound, async |conn: &mut dyn Store| {
        let renewed = conn.session_renew(id, ttl).await?;
        forced = renewed.map(|renewed| renewed.forced);
        let outcome = renewed.map_or(RenewOutcome::Gone, |renewed| RenewOutcome::Live {
            remaining: renewed.remaining,
        });
        Ok(vec![outcome])
    })
    .await?;
    let connection = link.number();
    let renewal = forced.map(|forced| SessionRenewal { forced, connection });
    let now = Moment::now();
    let is_due = |renewal: &SessionRenewal| session.is_look_due(*renewal, now);
    if let Some(renewal) = renewal.filter(is_due) {
        session.await_look(now);
        shared.state.lock().look = Some((Arc::clone(session), renewal));
        shared.look.notify_one();
    }
    Ok(())
}

/// Sends one statement and settles its leases.
pub(super) async fn part(
    link: &mut Link,
    shared: &RenewShared,
    kept: Vec<Renewable>,
    bound: Duration,
    verb: impl AsyncFnOnce(&mut dyn Store) -> Result<Vec<RenewOutcome>, Fault>,
) -> Result<(), Fault> {
    if kept.is_empty() {
        return Ok(());
    }
    if !link.is_connected() {
        // The previous statement has cost the connection.
        shared.state.lock().schedule.put_back(&kept);
        return Ok(());
    }
    let outcomes = link.run_many(("renew", kept.len()), bound, verb).await;
    let now = Moment::now();
    // Before that, another call may have had the connection.
    let sent = link.sent().unwrap_or(now);
    let schedule = &mut shared.state.lock().schedule;
    match outcomes {
        Ok(outcomes) => {
            schedule.took(now - sent, kept.len());
            for (kept, outcome) in kept.iter().zip(outcomes) {
                schedule.settle(now, kept, outcome, sent);
            }
            Ok(())
        }
        Err(fault) if link.sent().is_none() => {
            schedule.put_back(&kept);
            Err(fault)
        }
        Err(fault) => {
            if !link.is_connected() {
                schedule.took(now - sent, kept.len());
            }
            schedule.fail(now, &kept);
            Err(fault)
        }
    }
}

/// Sorts by name. Of two grants of one name it drops the older one, which is lost and does not know it yet.
pub(super) fn newest_only<K: GrantSubject + Ord>(
    mut due: Vec<Arc<Grant<K>>>,
) -> Vec<Arc<Grant<K>>> {
    due.sort_by(|a, b| a.name.cmp(&b.name).then(b.fence().cmp(&a.fence())));
    due.dedup_by(|older, newest| {
        let same = older.name == newest.name;
        if same {
            older.lose(Loss::TakenOver);
        }
        same
    });
    due
}
