//! Lanes: group commit for operations.
//!
//! # Overview
//!
//! A lane is a task with a connection of its own. It takes every operation that has arrived, at most
//! one per name, and runs each kind as one statement; what arrives in the meantime is the next
//! batch. There is no timer and no added delay: alone, an operation leaves at once.
//!
//! # Failure
//!
//! - *The statement was refused and may be sent again* (deadlock, serialization failure, busy): it
//!   is, after a moment, until the operation's patience ends.
//! - *The statement was refused for good*: the operations of the batch are sent one by one, so that
//!   only the guilty one fails.
//! - *The connection broke*: the outcome of all of them is in doubt. They are sent again on the next
//!   connection; every verb finds what an earlier sending of the same grant did. What cannot be
//!   found out before the patience ends is reported as unknown, and an acquire is undone.
//! - *The caller is gone*: an acquire that was not sent is skipped. One that was sent gives a guard
//!   that nobody receives, and dropping a guard releases.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tokio::select;
use tokio::sync::mpsc;

use super::clock::{Moment, sleep_until};
use super::grant::Grant;
use super::guard::Guard;
use super::line::Lines;
use super::link::Link;
use super::op::{Attempt, Enter, Fate, Look, LookAt, Op, Release, Take};
use super::retry;
use crate::lock::{Busy, LockInfo, Loss, ReleaseOutcome};
use crate::store::fault::{Fault, FaultKind};
use crate::store::{
    Connector, Freed, LockRow, ReleaseAsk, RenewAsk, Renewed, Store, TakeAsk, Taken,
};
use crate::{Error, Name};

/// The most operations in one statement.
const MAX_BATCH: usize = 256;

/// A grant whose answer took longer than this part of its TTL is confirmed by a renewal before it is
/// handed out. (On SQLite the statement itself waits while somebody else writes.)
const STALE: u32 = 6;

#[derive(Debug)]
pub(crate) struct Lane<C: Connector> {
    pub(crate) link: Link<C>,
    pub(crate) target: Arc<str>,
    queue: mpsc::UnboundedReceiver<Op>,
    pending: VecDeque<Op>,
    /// Operations that wait for a moment before they are sent again.
    later: Vec<(Moment, Op)>,
    lines: Arc<Lines>,
    /// Why the last statement or connection failed, for messages.
    trouble: Option<Fault>,
}

impl<C: Connector> Lane<C> {
    pub(crate) fn new(
        link: Link<C>,
        queue: mpsc::UnboundedReceiver<Op>,
        lines: Arc<Lines>,
        target: Arc<str>,
    ) -> Self {
        Self {
            link,
            target,
            queue,
            pending: VecDeque::new(),
            later: Vec::new(),
            lines,
            trouble: None,
        }
    }

    /// Works until all senders are gone and everything is done.
    pub(crate) async fn work(mut self) {
        while self.gather().await {
            if self.connect().await {
                let batch = self.pick();
                self.execute(batch).await;
            }
        }
    }

    /// Waits until there is something to do, and takes in all there is. False: nothing will come.
    async fn gather(&mut self) -> bool {
        loop {
            self.wake_later();
            while let Ok(op) = self.queue.try_recv() {
                self.pending.push_back(op);
            }
            if !self.pending.is_empty() {
                return true;
            }
            let wake = self.later.iter().map(|(at, _)| *at).min();
            match wake {
                None => match self.queue.recv().await {
                    Some(op) => self.pending.push_back(op),
                    None => return false,
                },
                Some(at) => select! {
                    Some(op) = self.queue.recv() => self.pending.push_back(op),
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    fn wake_later(&mut self) {
        let mut index = 0;
        while index < self.later.len() {
            if self.later[index].0.has_passed() {
                let (_, op) = self.later.swap_remove(index);
                self.pending.push_back(op);
            } else {
                index += 1;
            }
        }
    }

    /// Makes the connection, as often as it takes, while operations wait for it. False: the
    /// patience of all of them ended first.
    async fn connect(&mut self) -> bool {
        let mut backoff = retry::reconnect();
        while !self.link.is_connected() {
            let Some(give_up) = self.expire() else {
                return false;
            };
            let fault = select! {
                made = self.link.connect() => match made {
                    Ok(()) => break,
                    Err(fault) => fault,
                },
                () = sleep_until(give_up) => continue,
            };
            tracing::warn!(target = %self.target, error = %fault, "cannot connect");
            self.trouble = Some(fault);
            let pause = Moment::now() + backoff.next().unwrap_or_default();
            sleep_until(pause.min(give_up)).await;
        }
        true
    }

    /// Gives up on the operations whose patience has ended, and tells when the next one's does.
    fn expire(&mut self) -> Option<Moment> {
        while let Ok(op) = self.queue.try_recv() {
            self.pending.push_back(op);
        }
        for op in std::mem::take(&mut self.pending) {
            if op.is_abandoned() {
                continue;
            }
            match op.fate() {
                Some(fate) if !fate.give_up.has_passed() => self.pending.push_back(op),
                Some(_) => self.give_up(op),
                // Whatever stood before it will be done, or was given up on.
                None if self.pending.is_empty() => op.fail(self.unreachable()),
                None => self.pending.push_back(op),
            }
        }
        self.pending
            .iter()
            .filter_map(|op| Some(op.fate()?.give_up))
            .min()
    }

    fn give_up(&mut self, op: Op) {
        let in_doubt = op.fate().is_some_and(|fate| fate.in_doubt);
        let error = match (in_doubt, op.name()) {
            (true, Some(name)) => Error::OutcomeUnknown {
                doing: op.doing(),
                name: name.clone(),
                target: self.target.to_string(),
                detail: self.detail(),
            },
            _ => self.unreachable(),
        };
        if in_doubt && let Op::Take(take) = &op {
            self.pending.push_back(undo(take));
        }
        op.fail(error);
    }

    fn detail(&self) -> String {
        self.trouble
            .as_ref()
            .map_or_else(|| "no answer in time".into(), ToString::to_string)
    }

    fn unreachable(&self) -> Error {
        Error::Unreachable {
            target: self.target.to_string(),
            detail: self.detail(),
        }
    }

    /// The next batch, oldest first: at most one operation per name, so that the operations on a
    /// name keep their order and never meet in a statement.
    fn pick(&mut self) -> Vec<Op> {
        let mut batch = Vec::new();
        let mut names: HashSet<Name> = HashSet::new();
        let mut rest = VecDeque::new();
        for op in std::mem::take(&mut self.pending) {
            if op.is_abandoned() {
                continue;
            }
            if let Op::Take(take) = &op
                && take.reply.is_closed()
            {
                rest.push_back(undo(take));
                continue;
            }
            let given_up = op.fate().is_some_and(|fate| fate.give_up.has_passed());
            let first = op.name().is_none_or(|name| !names.contains(name));
            let flush = matches!(op, Op::Flush(_));
            if given_up {
                self.give_up(op);
            } else if !first
                || batch.len() == MAX_BATCH
                || (flush && !(batch.is_empty() && rest.is_empty()))
            {
                names.extend(op.name().cloned());
                rest.push_back(op);
            } else {
                names.extend(op.name().cloned());
                batch.push(op);
            }
        }
        // What giving up has added comes last.
        rest.append(&mut self.pending);
        self.pending = rest;
        batch
    }

    async fn execute(&mut self, batch: Vec<Op>) {
        let (mut takes, mut enters, mut releases) = (Vec::new(), Vec::new(), Vec::new());
        let mut looks = Vec::new();
        for op in batch {
            match op {
                Op::Take(op) => takes.push(op),
                Op::Enter(op) => enters.push(op),
                Op::Release(op) => releases.push(op),
                Op::Look(op) => looks.push(op),
                Op::Flush(reply) => drop(reply.send(())),
            }
        }
        let (partial, full): (Vec<_>, Vec<_>) = releases.into_iter().partition(|op| op.partial);
        self.release(full).await;
        self.hold(partial, enters).await;
        let (doubtful, fresh): (Vec<_>, Vec<_>) =
            takes.into_iter().partition(|op| op.fate.in_doubt);
        self.take(fresh).await;
        for op in doubtful {
            self.resolve(op).await;
        }
        for look in looks {
            self.look(look).await;
        }
    }

    /// What becomes of operations whose statement failed.
    fn failed(&mut self, ops: Vec<Op>, fault: Fault) -> Vec<Op> {
        let kind = fault.kind;
        tracing::debug!(target = %self.target, error = %fault, ?kind, count = ops.len(), "statement failed");
        if kind == FaultKind::Disconnected {
            self.trouble = Some(fault);
            for mut op in ops.into_iter().rev() {
                op.doubt();
                self.pending.push_front(op);
            }
            return Vec::new();
        }
        if kind.is_retryable() {
            self.trouble = Some(fault);
            let at = Moment::now() + retry::again();
            self.later.extend(ops.into_iter().map(|op| (at, op)));
            return Vec::new();
        }
        if ops.len() > 1 {
            return ops;
        }
        for op in ops {
            let error = fault.clone().into_error(op.doing(), &self.target);
            op.fail(error);
        }
        Vec::new()
    }

    async fn take(&mut self, mut ops: Vec<Take>) {
        if ops.is_empty() {
            return;
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
                            let deadline = sent + op.ask.ttl;
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
                        Box::pin(self.take(vec![op])).await;
                    }
                }
            }
        }
    }

    /// An acquire whose first sending may have happened: it is sent again under the same id, and
    /// what it got is confirmed by a renewal, which tells how much of its time is left.
    async fn resolve(&mut self, op: Take) {
        let ask = op.ask.clone();
        let taken = self
            .run(async |conn: &mut C::Connection| conn.lease_take(std::slice::from_ref(&ask)).await)
            .await;
        match taken.map(|mut taken| taken.pop()) {
            Ok(Some(Taken::Granted { fence })) => self.confirm(vec![(op, fence)]).await,
            Ok(Some(Taken::Busy(Some(row)))) if row.owner == Some(ask.owner) => {
                self.confirm(vec![(op, row.fence)]).await;
            }
            Ok(Some(Taken::Busy(row))) => busy(op, row),
            Ok(None) => {}
            Err(fault) => drop(self.failed(vec![Op::Take(op)], fault)),
        }
    }

    /// Renews grants of which it is not known how much of their time is left: the answer came late,
    /// or it is the answer to an earlier sending.
    async fn confirm(&mut self, grants: Vec<(Take, i64)>) {
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
                            granted(op, fence, sent, sent + remaining);
                        }
                        // It was granted, and ran out in the meantime.
                        Renewed::Gone => busy(op, None),
                    }
                }
            }
            Err(fault) => {
                // Sent again, they find what they have.
                let ops = grants.into_iter().map(|(mut op, _)| {
                    op.fate.in_doubt = true;
                    Op::Take(op)
                });
                let ops = ops.collect();
                for op in self.failed(ops, fault) {
                    self.give_up(op);
                }
            }
        }
    }

    /// Sets hold counts: one more, or one less of several.
    async fn hold(&mut self, partial: Vec<Release>, enters: Vec<Enter>) {
        let mut ops: Vec<Op> = Vec::new();
        for op in partial {
            match &op.grant {
                // The last guard is gone as well by now: its release comes right behind.
                Some(grant) if grant.guards() == 0 => answer(op.reply, ReleaseOutcome::Released),
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
        ops.sort_by(|a, b| a.name().cmp(&b.name()));
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
            (op, Renewed::Live { holds, .. }) if Some(holds) != ask.holds => self.put_off(op),
            (Op::Enter(op), Renewed::Live { remaining, .. }) => {
                op.grant.confirm(sent + remaining);
                let guard = Guard::new(op.grant, op.core);
                let _ = op.reply.send(Ok(guard));
            }
            (Op::Enter(op), Renewed::Gone) => {
                op.grant.lose(Loss::TakenOver);
                let _ = op.reply.send(Ok(None));
            }
            (Op::Release(op), Renewed::Live { .. }) => answer(op.reply, ReleaseOutcome::Released),
            (Op::Release(op), Renewed::Gone) => {
                if let Some(grant) = &op.grant {
                    grant.lose(Loss::TakenOver);
                    let loss = grant.loss().unwrap_or(Loss::TakenOver);
                    answer(op.reply, ReleaseOutcome::Lost(loss));
                }
            }
            _ => {}
        }
    }

    /// The row is locked by somebody: not now.
    fn put_off(&mut self, op: Op) {
        self.later.push((Moment::now() + retry::again(), op));
    }

    async fn release(&mut self, mut ops: Vec<Release>) {
        if ops.is_empty() {
            return;
        }
        ops.sort_by(|a, b| a.ask.name.cmp(&b.ask.name));
        let asks: Vec<ReleaseAsk> = ops.iter().map(|op| op.ask.clone()).collect();
        match self
            .run(async |conn: &mut C::Connection| conn.lease_release(&asks).await)
            .await
        {
            Ok(outcomes) => {
                for (op, outcome) in ops.into_iter().zip(outcomes) {
                    if outcome == Freed::Locked {
                        self.put_off(Op::Release(op));
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

    async fn look(&mut self, look: Look) {
        let failed = match &look.what {
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
            LookAt::ForceRelease(name, _) => {
                let name = name.clone();
                self.run(async |conn: &mut C::Connection| conn.lease_force_release(&name).await)
                    .await
                    .map(Vec::from_iter)
            }
        };
        let rows = match failed {
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

    async fn run<T>(
        &mut self,
        verb: impl AsyncFnOnce(&mut C::Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let bound = self.link.patience();
        self.link.run(bound, verb).await
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

/// The release of an acquire whose outcome nobody will learn.
fn undo(take: &Take) -> Op {
    Op::Release(Release {
        ask: ReleaseAsk {
            name: take.ask.name.clone(),
            owner: take.ask.owner,
            fence: 0,
        },
        grant: None,
        partial: false,
        reply: None,
        // It may have been granted just now; after its TTL it is free by itself.
        fate: Fate::within(take.ask.ttl),
    })
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
        holds: i32::try_from(grant.guards() + more).ok(),
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

fn answer(reply: Option<super::op::Reply<ReleaseOutcome>>, outcome: ReleaseOutcome) {
    if let Some(reply) = reply {
        let _ = reply.send(Ok(outcome));
    }
}
