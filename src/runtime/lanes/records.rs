//! What a lane does with operations on records: the reads of a batch in one statement, its claims, its ends; the rest one
//! by one. A storm of one key is one read and one claim, whose answers all get.

pub(super) mod place;

use std::sync::Arc;

use super::Lane;
use super::pending::MAX_BYTES;
use super::statements::STALE;
use crate::model::{Error, FaultKind, Moment};
use crate::runtime::Core;
use crate::runtime::attempt::RecordGuard;
use crate::runtime::grant::Grant;
use crate::runtime::op::{Fate, Op, Reply};
use crate::runtime::record::{
    Claim, Claiming, LockWalk, Read, RecordOp, RecordWork, UndoClaim, UndoStep,
};
use crate::store::Connector;
use crate::store::clean::CleanStore;
use crate::store::fault::Fault;
use crate::store::form_token::FormTokenStore;
use crate::store::lease::Renewed;
use crate::store::record::{
    ANY_ATTEMPT, ClaimAsk, Claimed, FinishAsk, Finished, KeepAsk, RecordEnd, RecordRow, RecordStore,
};
use crate::store::record_admin::RecordAdminStore;
use crate::store::step::{StepAsk, StepBegun, StepStore};

/// What an end has beside its outcome, in bytes: no more than that.
const BESIDE_OUTCOME: usize = 1 << 10;

impl<C: Connector> Lane<C> {
    pub(super) async fn records(&mut self, ops: Vec<RecordOp>) {
        let (mut ends, mut claims, mut reads, mut rest) = (vec![], vec![], vec![], vec![]);
        for op in ops {
            if let Some(error) = self.too_large(&op.work) {
                op.work.fail(error);
                continue;
            }
            match &op.work {
                RecordWork::Finish(..) | RecordWork::Undo(_) => ends.push(op),
                RecordWork::Claim(_) => claims.push(op),
                RecordWork::Read(..) => reads.push(op),
                _ => rest.push(op),
            }
        }
        for ends in portions(ends, self.largest) {
            self.finish(ends).await;
        }
        self.claim(claims).await;
        self.read(reads).await;
        for op in rest {
            self.work_on(op).await;
        }
    }

    /// The error for an outcome that no statement can carry: the server would end the connection, under all others, too.
    fn too_large(&self, work: &RecordWork) -> Option<Error> {
        let bytes = work.written().filter(|bytes| *bytes > self.largest)?;
        Some(Error::OutcomeTooLarge {
            what: "the outcome",
            bytes,
            limit: self.largest,
        })
    }

    /// Whether the batch goes on; else the operations are taken back.
    fn go_on(&mut self, ops: Vec<RecordOp>) -> Option<Vec<RecordOp>> {
        if ops.is_empty() {
            return None;
        }
        if self.goes_on() {
            return Some(ops);
        }
        self.not_sent(ops.into_iter().map(Op::Record));
        None
    }

    /// Those that are to be sent singly, after a statement for all of them has failed.
    fn failed_records(&mut self, ops: Vec<RecordOp>, fault: Fault) -> Vec<RecordOp> {
        let guilty = self.failed(ops.into_iter().map(Op::Record).collect(), fault);
        let record = |op| match op {
            Op::Record(op) => Some(op),
            _ => None,
        };
        guilty.into_iter().filter_map(record).collect()
    }

    /// The same for operations that share an answer.
    fn go_on_shared(&mut self, ops: Vec<Shared>) -> Option<Vec<Shared>> {
        if ops.is_empty() || self.goes_on() {
            return Some(ops).filter(|ops| !ops.is_empty());
        }
        let ops: Vec<_> = ops.into_iter().flat_map(Shared::all).collect();
        self.not_sent(ops.into_iter().map(Op::Record));
        None
    }

    /// The same for operations that share an answer: the statement was sent for the first of each.
    fn failed_shared(&mut self, ops: Vec<Shared>, fault: Fault) -> Vec<RecordOp> {
        let (mut first, mut rest) = (Vec::new(), Vec::new());
        for op in ops {
            first.push(op.first);
            rest.extend(op.rest);
        }
        if fault.kind == FaultKind::Disconnected {
            // It would have broken under each of them.
            let together = first.len();
            for op in &mut rest {
                op.fate.broke(together, super::PATIENT);
            }
        }
        self.not_sent(rest.into_iter().map(Op::Record));
        self.failed_records(first, fault)
    }

    async fn read(&mut self, ops: Vec<RecordOp>) {
        let is_large =
            |op: &RecordOp| matches!(&op.work, RecordWork::Read(read) if read.size.is_some());
        let (large, unknown): (Vec<_>, Vec<_>) = ops.into_iter().partition(is_large);
        let (large, unknown) = (Shared::of(large), Shared::of(unknown));
        // Each has its share of what a statement may bring: what is larger comes with one of the next ones.
        let share = MAX_BYTES / unknown.len().max(1);
        self.read_up_to(share, unknown).await;
        self.read_up_to(usize::MAX, large).await;
    }

    async fn read_up_to(&mut self, largest: usize, ops: Vec<Shared>) {
        let Some(ops) = self.go_on_shared(ops) else {
            return;
        };
        let keys: Vec<_> = ops
            .iter()
            .filter_map(|op| op.first.work.key().cloned())
            .collect();
        match self
            .run(async |conn: &mut C::Connection| conn.record_read(&keys, largest).await)
            .await
        {
            Ok(rows) => {
                let mut again = Vec::new();
                for (op, row) in ops.into_iter().zip(rows) {
                    let left = row.as_ref().and_then(RecordRow::left_behind);
                    for op in op.all() {
                        match op.work {
                            RecordWork::Read(read) if left.is_none() => {
                                let _ = read.reply.send(Ok(row.clone()));
                            }
                            RecordWork::Read(read) => again.push(Op::Record(RecordOp {
                                work: RecordWork::Read(Read { size: left, ..read }),
                                fate: op.fate,
                            })),
                            _ => {}
                        }
                    }
                }
                self.not_sent(again.into_iter());
            }
            Err(fault) => {
                for op in self.failed_shared(ops, fault) {
                    Box::pin(self.read(vec![op])).await;
                }
            }
        }
    }

    async fn claim(&mut self, ops: Vec<RecordOp>) {
        let Some(ops) = self.go_on_shared(Shared::of(ops)) else {
            return;
        };
        let ask = |op: &Shared| match &op.first.work {
            RecordWork::Claim(claim) => Some(claim.ask.clone()),
            _ => None,
        };
        let asks: Vec<ClaimAsk> = ops.iter().filter_map(ask).collect();
        let sent = Moment::now();
        match self
            .run(async |conn: &mut C::Connection| conn.record_claim(&asks).await)
            .await
        {
            Ok(outcomes) => {
                let took = sent.elapsed();
                for (op, outcome) in ops.into_iter().zip(outcomes) {
                    // By now the record is not as the others have seen it.
                    let others = match outcome {
                        Claimed::Mine { .. } | Claimed::Missed => || Claiming::Missed,
                        Claimed::Locked => || Claiming::Locked,
                    };
                    for other in op.rest {
                        if let RecordWork::Claim(claim) = other.work {
                            let _ = claim.reply.send(Ok(others()));
                        }
                    }
                    let RecordWork::Claim(claim) = op.first.work else {
                        continue;
                    };
                    let fate = op.first.fate;
                    match outcome {
                        Claimed::Mine { attempt }
                            if fate.sent || took > claim.ask.lease / STALE =>
                        {
                            self.confirm_claim(*claim, fate, attempt).await;
                        }
                        Claimed::Mine { attempt } => {
                            let clock_error = claim.core.settings.clock_error;
                            let deadline = sent + clock_error.trusted(claim.ask.lease);
                            mine(*claim, attempt, deadline);
                        }
                        Claimed::Missed => self.not_claimed(*claim, &fate, Claiming::Missed),
                        Claimed::Locked => self.not_claimed(*claim, &fate, Claiming::Locked),
                    }
                }
            }
            Err(fault) => {
                for op in self.failed_shared(ops, fault) {
                    Box::pin(self.claim(vec![op])).await;
                }
            }
        }
    }

    /// An earlier sending may have claimed it, or this one long ago: how much of the lease is left?
    async fn confirm_claim(&mut self, claim: Claim, fate: Fate, attempt: i64) {
        let ask = KeepAsk {
            key: claim.ask.key.clone(),
            owner: claim.ask.owner,
            lease: claim.ask.lease,
        };
        let sent = Moment::now();
        let renewed = self
            .run(async |conn: &mut C::Connection| {
                conn.record_renew(std::slice::from_ref(&ask)).await
            })
            .await;
        match renewed.map(|mut renewed| renewed.pop()) {
            Ok(Some(Renewed::Live { remaining, .. })) => {
                let deadline = sent + claim.core.settings.clock_error.trusted(remaining);
                mine(claim, attempt, deadline);
            }
            Ok(_) => self.not_claimed(claim, &fate, Claiming::Missed),
            Err(fault) => {
                let work = RecordWork::Claim(Box::new(claim));
                // Sent again, it finds what it has.
                for op in self.failed_records(vec![RecordOp { work, fate }], fault) {
                    self.put_off(Op::Record(op));
                }
            }
        }
    }

    /// The key is not to be had. A sending that comes late may claim it all the same.
    fn not_claimed(&mut self, claim: Claim, fate: &Fate, found: Claiming) {
        if fate.in_doubt() {
            self.put_off(undo(&claim.ask, fate, true, Moment::now()));
        }
        let _ = claim.reply.send(Ok(found));
    }

    async fn finish(&mut self, ops: Vec<RecordOp>) {
        let Some(mut ops) = self.go_on(ops) else {
            return;
        };
        ops.sort_by(|a, b| a.work.key().cmp(&b.work.key()));
        let ask = |op: &RecordOp| match &op.work {
            RecordWork::Finish(ask, _) | RecordWork::Undo(UndoClaim { ask, .. }) => {
                Some(ask.clone())
            }
            _ => None,
        };
        let asks: Vec<FinishAsk> = ops.iter().filter_map(ask).collect();
        match self
            .run(async |conn: &mut C::Connection| conn.record_finish(&asks).await)
            .await
        {
            Ok(outcomes) => {
                for (op, outcome) in ops.into_iter().zip(outcomes) {
                    let RecordOp { work, fate } = op;
                    match work {
                        work if outcome == Finished::Locked => {
                            self.put_off(Op::Record(RecordOp { work, fate }));
                        }
                        RecordWork::Finish(_, Some(reply)) => drop(reply.send(Ok(outcome))),
                        // What one sending has claimed is free: it is not any more what the other ones have seen.
                        RecordWork::Undo(undo) if undo.late && outcome != Finished::Ended => {
                            let repeated = true;
                            let work = RecordWork::Undo(UndoClaim { repeated, ..undo });
                            let fate = fate.innocent();
                            self.put_off(Op::Record(RecordOp { work, fate }));
                        }
                        _ => {}
                    }
                }
            }
            Err(fault) => {
                for op in self.failed_records(ops, fault) {
                    Box::pin(self.finish(vec![op])).await;
                }
            }
        }
    }

    async fn begin_step(
        &mut self,
        ask: StepAsk,
        core: Arc<Core>,
        reply: Reply<(StepBegun, UndoStep)>,
        fate: Fate,
    ) {
        let begun = self
            .run(async |conn: &mut C::Connection| conn.step_begin(&ask).await)
            .await;
        match begun {
            Ok(StepBegun::Locked) => {
                let work = RecordWork::StepBegin(ask, core, reply);
                self.put_off(Op::Record(RecordOp { work, fate }));
            }
            Ok(begun) => {
                let in_doubt = matches!(begun, StepBegun::Fresh) && !ask.repeatable;
                let undo = UndoStep::new(in_doubt.then(|| (core, ask.clone())));
                if let Err(Ok((_, undo))) = reply.send(Ok((begun, undo))) {
                    undo.disarm();
                    if in_doubt {
                        // Before the end of the attempt, which may wait behind it already.
                        let work = RecordWork::StepFinish(ask, None, None);
                        self.pending.push_front(Op::Record(RecordOp { work, fate }));
                    }
                }
            }
            Err(fault) => {
                let work = RecordWork::StepBegin(ask, core, reply);
                self.failed_records(vec![RecordOp { work, fate }], fault);
            }
        }
    }

    /// Walks through the lock rows. What stopped it, if something did: sent again, it goes on where it was.
    async fn walk(&mut self, mut walk: LockWalk, reply: Reply<u64>) -> Option<(Fault, RecordWork)> {
        loop {
            let batch = self
                .run(async |conn: &mut C::Connection| {
                    conn.lock_clean(&walk.after, walk.limit).await
                })
                .await;
            match batch {
                Ok(cleaned) => {
                    walk.removed += cleaned.removed;
                    let Some(last) = cleaned.last.filter(|_| !reply.is_closed()) else {
                        let _ = reply.send(Ok(walk.removed));
                        return None;
                    };
                    walk.after = last;
                }
                Err(fault) => return Some((fault, RecordWork::CleanLocks(walk, reply))),
            }
        }
    }

    async fn work_on(&mut self, op: RecordOp) {
        let Some(op) = self.go_on(vec![op]).and_then(|mut ops| ops.pop()) else {
            return;
        };
        macro_rules! answer {
            ($reply:expr, $verb:expr) => {
                match self.run($verb).await {
                    Ok(answer) => {
                        let _ = $reply.send(Ok(answer));
                        return;
                    }
                    Err(fault) => fault,
                }
            };
        }
        let RecordOp { work, fate } = op;
        let (fault, work) = match work {
            RecordWork::StepBegin(ask, core, reply) => {
                return self.begin_step(ask, core, reply, fate).await;
            }
            RecordWork::StepFinish(ask, outcome, reply) => {
                let done = self
                    .run(async |conn: &mut C::Connection| {
                        conn.step_finish(&ask, outcome.as_ref()).await
                    })
                    .await;
                match done {
                    Ok(Finished::Locked) => {
                        let work = RecordWork::StepFinish(ask, outcome, reply);
                        return self.put_off(Op::Record(RecordOp { work, fate }));
                    }
                    Ok(done) => {
                        if let Some(reply) = reply {
                            let _ = reply.send(Ok(done));
                        }
                        return;
                    }
                    Err(fault) => (fault, RecordWork::StepFinish(ask, outcome, reply)),
                }
            }
            RecordWork::IsClaimed(key, reply) => {
                let fault = answer!(reply, async |conn: &mut C::Connection| conn
                    .record_is_claimed(&key)
                    .await);
                (fault, RecordWork::IsClaimed(key, reply))
            }
            RecordWork::Steps(key, reply) => {
                let fault = answer!(reply, async |conn: &mut C::Connection| conn
                    .step_list(&key)
                    .await);
                (fault, RecordWork::Steps(key, reply))
            }
            RecordWork::List(filter, reply) => {
                let fault = answer!(reply, async |conn: &mut C::Connection| conn
                    .record_list(&filter)
                    .await);
                (fault, RecordWork::List(filter, reply))
            }
            RecordWork::Forget(key, attempt, reply) => {
                let fault = answer!(reply, async |conn: &mut C::Connection| conn
                    .record_forget(&key, attempt)
                    .await);
                (fault, RecordWork::Forget(key, attempt, reply))
            }
            RecordWork::Decide(ask, reply) => {
                let fault = answer!(reply, async |conn: &mut C::Connection| conn
                    .record_decide(&ask)
                    .await);
                (fault, RecordWork::Decide(ask, reply))
            }
            RecordWork::IssueToken(new, reply) => {
                // Each sending has a token of its own: what a late one makes was given to nobody.
                let (token, ask) = new.make();
                let fault = answer!(reply, async |conn: &mut C::Connection| {
                    conn.token_issue(&ask).await.map(|()| token)
                });
                (fault, RecordWork::IssueToken(new, reply))
            }
            RecordWork::Clean(limit, reply) => {
                let fault = answer!(reply, async |conn: &mut C::Connection| conn
                    .clean(limit)
                    .await);
                (fault, RecordWork::Clean(limit, reply))
            }
            RecordWork::CleanLocks(walk, reply) => match self.walk(walk, reply).await {
                Some(stopped) => stopped,
                None => return,
            },
            // The batches have them.
            work @ (RecordWork::Read(_)
            | RecordWork::Claim(_)
            | RecordWork::Finish(..)
            | RecordWork::Undo(_)) => {
                return self.not_sent(std::iter::once(Op::Record(RecordOp { work, fate })));
            }
        };
        self.failed_records(vec![RecordOp { work, fate }], fault);
    }
}

/// Frees what a claim whose outcome nobody will learn may have claimed. It does not count.
pub(super) fn undo(claim: &ClaimAsk, fate: &Fate, repeated: bool, now: Moment) -> Op {
    let ask = FinishAsk {
        key: claim.key.clone(),
        owner: claim.owner,
        attempt: ANY_ATTEMPT,
        end: RecordEnd::Free {
            bound: false,
            pardon: 1,
            forget: claim.forget,
            begun: claim.begun,
            in_doubt: false,
        },
    };
    let late = fate.in_doubt();
    Op::Record(RecordOp {
        work: RecordWork::Undo(UndoClaim {
            ask,
            late,
            repeated,
        }),
        fate: Fate::until(now + claim.lease.min(super::MAX_UNDO)),
    })
}

/// Operations on a record that share one answer: that of the first.
#[derive(Debug)]
struct Shared {
    first: RecordOp,
    rest: Vec<RecordOp>,
}

impl Shared {
    /// Sorted by key.
    fn of(mut ops: Vec<RecordOp>) -> Vec<Self> {
        ops.sort_by(|a, b| a.work.key().cmp(&b.work.key()));
        let mut shared: Vec<Self> = Vec::new();
        for op in ops {
            match shared.last_mut() {
                Some(last) if op.work.shares_with(&last.first.work) => last.rest.push(op),
                _ => shared.push(Self {
                    first: op,
                    rest: Vec::new(),
                }),
            }
        }
        shared
    }

    fn all(self) -> impl Iterator<Item = RecordOp> {
        std::iter::once(self.first).chain(self.rest)
    }
}

/// The ends of attempts in portions, each no larger than a statement may be. (Keys and the rest are counted as if they were
/// a part of the outcome.)
fn portions(ops: Vec<RecordOp>, largest: usize) -> Vec<Vec<RecordOp>> {
    let mut portions: Vec<Vec<RecordOp>> = Vec::new();
    let mut bytes = 0;
    for op in ops {
        let its = op.work.written().unwrap_or(0) + BESIDE_OUTCOME;
        match portions.last_mut() {
            Some(portion) if bytes + its <= largest => portion.push(op),
            _ => {
                portions.push(vec![op]);
                bytes = 0;
            }
        }
        bytes += its;
    }
    portions
}

/// Hands the guard to the caller. When the caller is gone, the guard is dropped, and the key is free.
fn mine(claim: Claim, attempt: i64, deadline: Moment) {
    let ask = claim.ask;
    let (key, lease) = (ask.key.clone(), ask.lease);
    let clock_error = claim.core.settings.clock_error;
    let grant = Grant::new(key, ask.owner, attempt, lease, clock_error, None, deadline);
    let grant = Arc::new(grant);
    let guard = RecordGuard::new(grant, claim.core, &ask);
    let _ = claim.reply.send(Ok(Claiming::Mine(guard)));
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
