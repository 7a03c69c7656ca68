//! What a lane does with a batch: each kind of operation in one statement, and every caller its own
//! answer.

use std::sync::Arc;
use std::time::Duration;

use super::{Lane, undo};
use crate::model::{Busy, Error, LockInfo, Loss, Moment, ReleaseOutcome};
use crate::runtime::grant::Grant;
use crate::runtime::guard::Guard;
use crate::runtime::op::{Attempt, Look, LookAt, Op, Release, Seen, Take};
use crate::store::Connector;
use crate::store::fault::Fault;
use crate::store::lease::{Freed, LeaseStore, ReleaseAsk, RenewAsk, Renewed, TakeAsk, Taken};
use crate::store::row::LockRow;

/// A grant whose answer took longer than this part of its TTL is confirmed by a renewal before it is
/// handed out. (On SQLite the statement itself waits while somebody else writes.)
pub(super) const STALE: u32 = 6;

impl<C: Connector> Lane<C> {
    pub(super) async fn run<T>(
        &mut self,
        verb: impl AsyncFnOnce(&mut C::Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let bound = self.link.patience();
        let result = self.link.run(bound, verb).await;
        if result.is_ok() {
            self.calm();
        }
        result
    }

    pub(super) async fn take(&mut self, mut ops: Vec<Take>) {
        if ops.is_empty() {
            return;
        }
        if !self.goes_on() {
            return self.not_sent(ops.into_iter().map(Op::Take));
        }
        ops.sort_by(|a, b| a.ask.name.cmp(&b.ask.name));
        let asks: Vec<TakeAsk> = ops.iter().map(|op| op.ask.clone()).collect();
        let sent = Moment::now();
        match self
            .run(async |conn: &mut C::Connection| conn.lease_take(&asks).await)
            .await
        {
            Ok(outcomes) => {
                let took = sent.elapsed();
                let mut stale = Vec::new();
                for (op, outcome) in ops.into_iter().zip(outcomes) {
                    match outcome {
                        Taken::Granted { fence } if is_stale(took, op.ask.ttl) => {
                            stale.push((op, fence));
                        }
                        Taken::Granted { fence } => {
                            let deadline = sent + op.core.settings.clock_error.trusted(op.ask.ttl);
                            granted(op, fence, sent, deadline);
                        }
                        Taken::Busy(row) => self.busy(op, row),
                    }
                }
                self.confirm(stale).await;
            }
            Err(fault) => {
                for half in self.failed_takes(ops, fault) {
                    self.resolve(half).await;
                }
            }
        }
    }

    /// Acquires whose first sending may have happened: they are sent again under the same ids, and
    /// what they got is confirmed by a renewal, which tells how much of its time is left.
    pub(super) async fn resolve(&mut self, mut ops: Vec<Take>) {
        if ops.is_empty() {
            return;
        }
        if !self.goes_on() {
            return self.not_sent(ops.into_iter().map(Op::Take));
        }
        ops.sort_by(|a, b| a.ask.name.cmp(&b.ask.name));
        let asks: Vec<TakeAsk> = ops.iter().map(|op| op.ask.clone()).collect();
        match self
            .run(async |conn: &mut C::Connection| conn.lease_take(&asks).await)
            .await
        {
            Ok(outcomes) => {
                let mut granted = Vec::new();
                for (op, outcome) in ops.into_iter().zip(outcomes) {
                    match outcome {
                        Taken::Granted { fence } => granted.push((op, fence)),
                        Taken::Busy(Some(row)) if row.owner == Some(op.ask.owner) => {
                            granted.push((op, row.fence));
                        }
                        // The row may be locked by the first sending, which the server has not finished.
                        Taken::Busy(None) if op.fate.in_doubt() => self.put_off(Op::Take(op)),
                        Taken::Busy(row) => self.busy(op, row),
                    }
                }
                self.confirm(granted).await;
            }
            Err(fault) => {
                for half in self.failed_takes(ops, fault) {
                    Box::pin(self.resolve(half)).await;
                }
            }
        }
    }

    /// Those that are to be sent again, in two statements.
    fn failed_takes(&mut self, ops: Vec<Take>, fault: Fault) -> [Vec<Take>; 2] {
        let again = self.failed(ops.into_iter().map(Op::Take).collect(), fault);
        let take = |op| match op {
            Op::Take(op) => Some(op),
            _ => None,
        };
        halves(again.into_iter().filter_map(take).collect())
    }

    /// Renews grants of which it is not known how much of their time is left: the answer came late,
    /// or it is the answer to an earlier sending.
    async fn confirm(&mut self, grants: Vec<(Take, i64)>) {
        if grants.is_empty() {
            return;
        }
        let ask = |(op, _): &(Take, i64)| RenewAsk {
            name: op.ask.name.clone(),
            owner: op.ask.owner,
            ttl: op.ask.ttl,
        };
        let asks: Vec<RenewAsk> = grants.iter().map(ask).collect();
        let sent = Moment::now();
        match self
            .run(async |conn: &mut C::Connection| conn.lease_renew(&asks).await)
            .await
        {
            Ok(outcomes) => {
                for ((op, fence), outcome) in grants.into_iter().zip(outcomes) {
                    match outcome {
                        Renewed::Live { remaining } => {
                            let deadline = sent + op.core.settings.clock_error.trusted(remaining);
                            granted(op, fence, sent, deadline);
                        }
                        // It was granted, and ran out in the meantime.
                        Renewed::Gone => self.busy(op, None),
                    }
                }
            }
            Err(fault) => {
                let (ops, fences): (Vec<_>, Vec<_>) = grants.into_iter().unzip();
                // Sent again, they find what they have.
                let [first, second] = self.failed_takes(ops, fault);
                let mut fences = fences.into_iter();
                for half in [first, second] {
                    let half = half.into_iter().zip(&mut fences).collect();
                    Box::pin(self.confirm(half)).await;
                }
            }
        }
    }

    pub(super) async fn release(&mut self, mut ops: Vec<Release>) {
        if ops.is_empty() {
            return;
        }
        if !self.goes_on() {
            return self.not_sent(ops.into_iter().map(Op::Release));
        }
        ops.sort_by(|a, b| a.ask.name.cmp(&b.ask.name));
        let asks: Vec<ReleaseAsk> = ops.iter().map(|op| op.ask.clone()).collect();
        match self
            .run(async |conn: &mut C::Connection| conn.lease_release(&asks).await)
            .await
        {
            Ok(outcomes) => {
                for (op, outcome) in ops.into_iter().zip(outcomes) {
                    match outcome {
                        Freed::Locked => self.put_off(Op::Release(op)),
                        _ if op.grant.is_none() => self.undone(op, outcome),
                        _ => self.released(op, outcome),
                    }
                }
            }
            Err(fault) => {
                let again = self.failed(ops.into_iter().map(Op::Release).collect(), fault);
                let release = |op| match op {
                    Op::Release(op) => Some(op),
                    _ => None,
                };
                for half in halves(again.into_iter().filter_map(release).collect()) {
                    Box::pin(self.release(half)).await;
                }
            }
        }
    }

    fn released(&mut self, op: Release, outcome: Freed) {
        self.lines.freed(&op.ask.name);
        if let Some(undo) = undo::after(&op, Moment::now()) {
            self.put_off(undo);
        }
        let outcome = release_outcome(&op, outcome, Moment::now());
        if let Some(reply) = op.reply {
            let _ = reply.send(Ok(outcome));
        }
    }

    /// An undo has freed what one sending of its acquire was granted, or nothing. It is repeated while another sending may come.
    /// A lease that has run out accounts for no sending: it stays in the row and is found again, and it may be that of the sending
    /// which was answered.
    fn undone(&mut self, op: Release, outcome: Freed) {
        if matches!(outcome, Freed::Released | Freed::Expired) {
            self.lines.freed(&op.ask.name);
        }
        let accounted = u32::from(outcome == Freed::Released);
        let late = op.late.saturating_sub(accounted);
        if late > 0 {
            let (repeated, fate) = (true, op.fate.innocent());
            self.put_off(Op::Release(Release {
                late,
                repeated,
                fate,
                ..op
            }));
        }
    }

    /// The name is held, or changing hands. A sending that comes late may be granted it all the same.
    fn busy(&mut self, op: Take, row: Option<LockRow>) {
        let Take {
            ask, fate, reply, ..
        } = op;
        if fate.in_doubt() {
            self.put_off(undo::late(&ask, fate.doubts, Moment::now()));
        }
        let name = ask.name;
        let busy = row
            .map(LockRow::info)
            .transpose()
            .map(|holder| Busy { name, holder });
        let _ = reply.send(busy.map(Attempt::Busy));
    }

    pub(super) async fn look(&mut self, look: Look) {
        if !self.goes_on() {
            return self.not_sent(std::iter::once(Op::Look(look)));
        }
        let patience = self.link.patience();
        let found = match &look.what {
            LookAt::Inspect(name, _) => {
                let name = name.clone();
                self.run(async |conn: &mut C::Connection| conn.lock_inspect(&name).await)
                    .await
                    .map(Vec::from_iter)
            }
            LookAt::List(_) => {
                self.run(async |conn: &mut C::Connection| conn.lock_list().await)
                    .await
            }
            LookAt::Row(name, make, _) => {
                let (name, make) = (name.clone(), *make);
                self.run(async |conn: &mut C::Connection| conn.lock_row(&name, make).await)
                    .await
                    .map(Vec::from_iter)
            }
            LookAt::ForceRelease(name, _) => {
                let name = name.clone();
                self.run(async |conn: &mut C::Connection| {
                    conn.lease_force_release(&name, patience).await
                })
                .await
                .map(Vec::from_iter)
            }
        };
        let rows = match found {
            Ok(rows) => rows,
            Err(fault) => return drop(self.failed(vec![Op::Look(look)], fault)),
        };
        match look.what {
            LookAt::Inspect(_, reply) => {
                let info = rows.into_iter().next().map(LockRow::info).transpose();
                let _ = reply.send(info);
            }
            LookAt::List(reply) => {
                let infos: Result<Vec<LockInfo>, Error> =
                    rows.into_iter().map(LockRow::info).collect();
                let _ = reply.send(infos);
            }
            LookAt::Row(.., reply) => {
                let seen = |row: LockRow| {
                    let fence = row.fence;
                    row.owned().map(|owner| Seen { fence, owner })
                };
                let _ = reply.send(rows.into_iter().next().map(seen).transpose());
            }
            LookAt::ForceRelease(name, reply) => {
                self.lines.freed(&name);
                // What cannot be read is freed all the same, and nobody held what had run out.
                let held = rows
                    .into_iter()
                    .find(LockRow::is_live)
                    .and_then(|row| row.info().ok());
                let _ = reply.send(Ok(held));
            }
        }
    }
}

/// Hands the guard to the caller. When the caller is gone, the guard is dropped, and released.
fn granted(op: Take, fence: i64, sent: Moment, deadline: Moment) {
    let TakeAsk {
        name, owner, ttl, ..
    } = op.ask;
    let cap = op.max_hold.map(|max_hold| sent + max_hold);
    let clock_error = op.core.settings.clock_error;
    let mut grant = Grant::new(name, owner, fence, ttl, clock_error, cap, deadline);
    grant.late = op.fate.doubts;
    let grant = Arc::new(grant);
    op.core.renewals.add(&grant);
    if let Some(guard) = Guard::new(grant, op.core) {
        let _ = op.reply.send(Ok(Attempt::Held(guard)));
    }
}

pub(super) fn is_stale(took: Duration, ttl: Duration) -> bool {
    took > ttl / STALE
}

/// Two statements instead of one that was refused, so that the guilty operation is found.
fn halves<T>(mut ops: Vec<T>) -> [Vec<T>; 2] {
    let rest = ops.split_off(ops.len() / 2);
    [ops, rest]
}

pub(super) fn release_outcome(op: &Release, freed: Freed, now: Moment) -> ReleaseOutcome {
    let Some(grant) = &op.grant else {
        return ReleaseOutcome::Released;
    };
    if let Some(loss) = grant.loss() {
        return ReleaseOutcome::Lost(loss);
    }
    // Until the deadline no lease or transaction takes the name over. So when the release was sent before and the name is not
    // ours any more, that sending has released it: its answer was lost, or the statement was refused after the release.
    // (A forced release, or a failover that loses commits, in between is not told from it.)
    let by_earlier_sending = op.fate.sent && now < grant.status().deadline;
    match freed {
        Freed::Released => ReleaseOutcome::Released,
        Freed::WasFree | Freed::Superseded if by_earlier_sending => ReleaseOutcome::Released,
        // That sending may have come too late.
        Freed::WasFree if op.fate.sent => ReleaseOutcome::Lost(Loss::Expired),
        Freed::Expired => ReleaseOutcome::Lost(Loss::Expired),
        Freed::WasFree | Freed::Superseded | Freed::Locked => ReleaseOutcome::Lost(Loss::TakenOver),
    }
}
