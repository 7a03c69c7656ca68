//! What a lane does with a batch: each kind of operation in one statement, and every caller its own
//! answer.

use std::sync::Arc;

use super::Lane;
use crate::hold::clock::{Moment, trusted};
use crate::hold::grant::Grant;
use crate::hold::guard::Guard;
use crate::hold::op::{Attempt, Enter, Look, LookAt, Op, Release, Reply, Seen, Take};
use crate::lock::{Busy, LockInfo, Loss, ReleaseOutcome};
use crate::store::fault::Fault;
use crate::store::{
    Connector, Freed, LockRow, ReleaseAsk, RenewAsk, Renewed, Store, TakeAsk, Taken,
};
use crate::{Error, Name};

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
                        Taken::Granted { fence } if took > op.ask.ttl / STALE => {
                            stale.push((op, fence));
                        }
                        Taken::Granted { fence } => {
                            let deadline = sent + trusted(op.ask.ttl);
                            granted(op, fence, sent, deadline);
                        }
                        Taken::Busy(row) => busy(op, row),
                    }
                }
                self.confirm(stale).await;
            }
            Err(fault) => {
                let guilty = self.failed(ops.into_iter().map(Op::Take).collect(), fault);
                for op in guilty {
                    if let Op::Take(op) = op {
                        self.resolve(op).await;
                    }
                }
            }
        }
    }

    /// An acquire whose first sending may have happened: it is sent again under the same id, and
    /// what it got is confirmed by a renewal, which tells how much of its time is left.
    pub(super) async fn resolve(&mut self, op: Take) {
        if !self.goes_on() {
            return self.not_sent(std::iter::once(Op::Take(op)));
        }
        let ask = op.ask.clone();
        let taken = self
            .run(async |conn: &mut C::Connection| conn.lease_take(std::slice::from_ref(&ask)).await)
            .await;
        match taken.map(|mut taken| taken.pop()) {
            Ok(Some(Taken::Granted { fence })) => self.confirm(vec![(op, fence)]).await,
            Ok(Some(Taken::Busy(Some(row)))) if row.owner == Some(ask.owner) => {
                self.confirm(vec![(op, row.fence)]).await;
            }
            // The row may be locked by the first sending, which the server has not finished.
            Ok(Some(Taken::Busy(None))) if op.fate.in_doubt => self.put_off(Op::Take(op)),
            Ok(Some(Taken::Busy(row))) => busy(op, row),
            Ok(None) => {}
            Err(fault) => drop(self.failed(vec![Op::Take(op)], fault)),
        }
    }

    /// Renews grants of which it is not known how much of their time is left: the answer came late,
    /// or it is the answer to an earlier sending.
    pub(super) async fn confirm(&mut self, grants: Vec<(Take, i64)>) {
        if grants.is_empty() {
            return;
        }
        let asks: Vec<RenewAsk> = grants
            .iter()
            .map(|(op, _)| RenewAsk {
                name: op.ask.name.clone(),
                owner: op.ask.owner,
                ttl: op.ask.ttl,
                holds: None,
            })
            .collect();
        let sent = Moment::now();
        match self
            .run(async |conn: &mut C::Connection| conn.lease_renew(&asks).await)
            .await
        {
            Ok(outcomes) => {
                for ((op, fence), outcome) in grants.into_iter().zip(outcomes) {
                    match outcome {
                        Renewed::Live { remaining, .. } => {
                            granted(op, fence, sent, sent + trusted(remaining));
                        }
                        // It was granted, and ran out in the meantime.
                        Renewed::Gone => busy(op, None),
                    }
                }
            }
            Err(fault) => {
                // Sent again, they find what they have.
                let ops = grants.into_iter().map(|(op, _)| Op::Take(op)).collect();
                for op in self.failed(ops, fault) {
                    self.put_off(op);
                }
            }
        }
    }

    /// Sets hold counts: one more, or one less of several.
    pub(super) async fn hold(&mut self, partial: Vec<Release>, enters: Vec<Enter>) {
        let mut ops: Vec<Op> = Vec::new();
        for op in partial {
            match &op.grant {
                // The last guard is gone as well by now: its release comes right behind.
                Some(grant) if grant.guards() == 0 => {
                    let outcome = grant
                        .loss()
                        .map_or(ReleaseOutcome::Released, ReleaseOutcome::Lost);
                    answer(op.reply, outcome);
                }
                _ => ops.push(Op::Release(op)),
            }
        }
        for op in enters {
            if op.grant.is_held() {
                ops.push(Op::Enter(op));
            } else {
                let _ = op.reply.send(Ok(None));
            }
        }
        if ops.is_empty() {
            return;
        }
        if !self.goes_on() {
            return self.not_sent(ops.into_iter());
        }
        ops.sort_by(|a, b| name(a).cmp(&name(b)));
        let asks: Vec<RenewAsk> = ops.iter().filter_map(hold_ask).collect();
        let sent = Moment::now();
        match self
            .run(async |conn: &mut C::Connection| conn.lease_renew(&asks).await)
            .await
        {
            Ok(outcomes) => {
                for ((op, ask), outcome) in ops.into_iter().zip(asks).zip(outcomes) {
                    self.held(op, &ask, outcome, sent);
                }
            }
            Err(fault) => {
                for op in self.failed(ops, fault) {
                    match op {
                        Op::Enter(op) => Box::pin(self.hold(Vec::new(), vec![op])).await,
                        Op::Release(op) => Box::pin(self.hold(vec![op], Vec::new())).await,
                        _ => {}
                    }
                }
            }
        }
    }

    fn held(&mut self, op: Op, ask: &RenewAsk, outcome: Renewed, sent: Moment) {
        match (op, outcome) {
            // The row is locked by somebody.
            (op, Renewed::Live { holds, .. }) if Some(holds) != ask.holds => self.put_off(op),
            (Op::Enter(op), outcome) => {
                match outcome {
                    Renewed::Live { remaining, .. } => op.grant.confirm(sent + trusted(remaining)),
                    Renewed::Gone => op.grant.lose(Loss::TakenOver),
                }
                let guard = op
                    .grant
                    .is_held()
                    .then(|| Guard::new(op.grant, op.core))
                    .flatten();
                let _ = op.reply.send(Ok(guard));
            }
            (Op::Release(op), outcome) => {
                if let Some(grant) = &op.grant {
                    if outcome == Renewed::Gone {
                        grant.lose(Loss::TakenOver);
                    }
                    let outcome = grant
                        .loss()
                        .map_or(ReleaseOutcome::Released, ReleaseOutcome::Lost);
                    answer(op.reply, outcome);
                }
            }
            _ => {}
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
                    let undone = matches!(outcome, Freed::Released | Freed::Expired);
                    if outcome == Freed::Locked {
                        self.put_off(Op::Release(op));
                    } else if op.grant.is_none() && op.fate.in_doubt && !undone {
                        // The acquire that it undoes may be on its way in the server still.
                        self.put_off(Op::Release(Release {
                            repeated: true,
                            ..op
                        }));
                    } else {
                        self.lines.freed(&op.ask.name);
                        let outcome = release_outcome(&op, outcome);
                        answer(op.reply, outcome);
                    }
                }
            }
            Err(fault) => {
                let guilty = self.failed(ops.into_iter().map(Op::Release).collect(), fault);
                for op in guilty {
                    if let Op::Release(op) = op {
                        Box::pin(self.release(vec![op])).await;
                    }
                }
            }
        }
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
    let grant = Arc::new(Grant::new(name, owner, fence, ttl, cap, deadline));
    op.core.renewals.add(&grant);
    if let Some(guard) = Guard::new(grant, op.core) {
        let _ = op.reply.send(Ok(Attempt::Held(guard)));
    }
}

fn busy(op: Take, row: Option<LockRow>) {
    let name = op.ask.name.clone();
    let busy = row
        .map(LockRow::info)
        .transpose()
        .map(|holder| Busy { name, holder });
    let _ = op.reply.send(busy.map(Attempt::Busy));
}

fn name(op: &Op) -> Option<&Name> {
    match op {
        Op::Enter(op) => Some(&op.grant.name),
        Op::Release(op) => Some(&op.ask.name),
        _ => None,
    }
}

/// The absolute hold count that an operation asks for, so that it may be sent twice.
fn hold_ask(op: &Op) -> Option<RenewAsk> {
    let (grant, more) = match op {
        Op::Enter(op) => (&op.grant, 1),
        Op::Release(op) => (op.grant.as_ref()?, 0),
        _ => return None,
    };
    Some(RenewAsk {
        name: grant.name.clone(),
        owner: grant.id,
        ttl: grant.renewal_ttl().filter(|_| more > 0).unwrap_or_default(),
        // A guard may be dropped just now; its own release follows.
        holds: i32::try_from((grant.guards() + more).max(1)).ok(),
    })
}

fn release_outcome(op: &Release, freed: Freed) -> ReleaseOutcome {
    let Some(grant) = &op.grant else {
        return ReleaseOutcome::Released;
    };
    if let Some(loss) = grant.loss() {
        return ReleaseOutcome::Lost(loss);
    }
    // Until the deadline nobody can take the name over. So when an earlier sending is in doubt and
    // the name is not ours any more, that sending has released it.
    let by_earlier_sending = op.fate.in_doubt && !grant.status().deadline.has_passed();
    match freed {
        Freed::Released => ReleaseOutcome::Released,
        Freed::WasFree | Freed::Superseded if by_earlier_sending => ReleaseOutcome::Released,
        Freed::Expired => ReleaseOutcome::Lost(Loss::Expired),
        Freed::WasFree | Freed::Superseded | Freed::Locked => ReleaseOutcome::Lost(Loss::TakenOver),
    }
}

fn answer(reply: Option<Reply<ReleaseOutcome>>, outcome: ReleaseOutcome) {
    if let Some(reply) = reply {
        let _ = reply.send(Ok(outcome));
    }
}
