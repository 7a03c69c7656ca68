//! Lanes: group commit for operations.
//!
//! # Overview
//!
//! A lane is a task with a connection of its own. It takes every operation that has arrived, at most
//! one per name, and runs each kind as one statement; what arrives in the meantime is the next
//! batch. There is no timer and no added delay: alone, an operation leaves at once.
//!
//! Reads of one record that wait together share one answer, and so do claims of it. Large outcomes are read in bounded
//! portions, one in each batch. What an attempt says of its record arrives in order, also what was put off.
//!
//! # Failure
//!
//! - *The statement was refused and may be sent again* (deadlock, serialization failure, busy): it
//!   is, after growing pauses, until the operation's patience ends.
//! - *The statement was refused for good*: acquires and releases are sent again in halves, operations on records one by
//!   one, so that only the guilty one fails.
//! - *The connection broke*: the outcome of all of them is in doubt. They are sent again on the next
//!   connection; every verb finds what an earlier sending of the same grant did. What cannot be
//!   found out before the patience ends is reported as unknown, and an acquire is undone. What breaks it
//!   twice may be guilty of that (a statement that the server finds too large ends the connection): such operations are
//!   sent in ever smaller statements, at last alone, and what breaks the connection alone makes way for the others.
//! - *What is sent again* is sent together, as the first time: there is most of it when there is most to do.
//! - *The caller is gone*: an acquire that was not sent is skipped. One that was sent gives a guard
//!   that nobody receives, and dropping a guard releases.
//! - *The server may still be working on a statement that we gave up on*, or get it late: the first sending of an
//!   acquire would then grant the name to nobody. So an acquire that was in doubt is undone when it ends, however it
//!   ends: given up, refused, or granted by a later sending and released. An undo that finds nothing to undo is
//!   repeated, with growing pauses, for as long as the lease could last (10 minutes at most).

mod pending;
mod records;
mod statements;
#[cfg(test)]
mod tests;
mod trouble;
mod undo;

use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::line::Lines;
use super::link::Link;
use super::op::Op;
use crate::model::Moment;
use crate::model::{Error, FaultKind};
use crate::runtime::timer::sleep_until;
use crate::store::Connector;
use crate::store::fault::Fault;
use crate::store::schema::SchemaStore;
use pending::Pending;
use trouble::Trouble;
use undo::MAX_UNDO;

#[derive(Debug)]
pub(crate) struct Lane<C: Connector> {
    pub(crate) link: Link<C>,
    pub(crate) target: Arc<str>,
    queue: mpsc::UnboundedReceiver<Op>,
    pending: Pending,
    lines: Arc<Lines>,
    trouble: Trouble,
    /// The largest outcome that the server takes, in bytes.
    largest: usize,
    /// A statement of this batch was refused and is to be sent again: what is left of the batch goes
    /// back, so that everybody's patience is looked at before the next wait.
    refused: bool,
    /// A statement of this batch has found that the server takes no writes.
    read_only: Option<Fault>,
    /// By chance, from 0 to 1, anew for every batch; see [`Pending::put_off`].
    jitter: f64,
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
            pending: Pending::within(C::REQUEST),
            lines,
            trouble: Trouble::none(Moment::now()),
            largest: usize::MAX,
            refused: false,
            read_only: None,
            jitter: 0.0,
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
            self.take_in();
            if !self.pending.is_idle() {
                return true;
            }
            match self.pending.wakes_at() {
                None => match self.queue.recv().await {
                    Some(op) => self.pending.arrive(op),
                    None => return false,
                },
                Some(at) => select! {
                    Some(op) = self.queue.recv() => self.pending.arrive(op),
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    /// Everything that has arrived, or has waited long enough.
    fn take_in(&mut self) {
        self.pending.wake(Moment::now());
        while let Ok(op) = self.queue.try_recv() {
            self.pending.arrive(op);
        }
        self.pending.answer_flushes();
    }

    /// Makes the connection, as often as it takes, while operations wait for it. False: the
    /// patience of all of them ended first.
    async fn connect(&mut self) -> bool {
        // One attempt goes on while operations give up: under load one of them always does.
        let mut dialing = None;
        while !self.link.is_connected() {
            let Some(give_up) = self.expire() else {
                return false;
            };
            let dial_at = self.trouble.dial_at();
            if !dial_at.has_passed() {
                sleep_until(dial_at.min(give_up)).await;
                continue;
            }
            let attempt = dialing.get_or_insert_with(|| {
                let patience = self.link.patience();
                Box::pin(meet::<C>(self.link.dial(), patience))
            });
            let made = select! {
                made = attempt => made,
                () = sleep_until(give_up) => continue,
            };
            dialing = None;
            match made {
                Ok((conn, largest)) => {
                    self.link.put(conn);
                    self.largest = largest;
                }
                Err(fault) => {
                    tracing::warn!(target = %self.target, error = %fault, "cannot connect");
                    if fault.kind == FaultKind::ReadOnly {
                        self.refuse_waiting_takes(&fault);
                    }
                    self.strike(fault);
                }
            }
        }
        true
    }

    fn strike(&mut self, fault: Fault) {
        self.trouble.strike(fault, Moment::now());
    }

    /// Gives up on the operations whose patience has ended, and tells when the next one's does.
    fn expire(&mut self) -> Option<Moment> {
        self.take_in();
        self.give_up_in_time(Moment::now());
        self.pending.answer_flushes();
        self.pending.gives_up_at()
    }

    fn give_up_in_time(&mut self, now: Moment) {
        for op in self.pending.expire(now) {
            let error = self.gave_up(&op);
            op.fail(error);
        }
    }

    /// The error for an operation that is given up.
    fn gave_up(&self, op: &Op) -> Error {
        let in_doubt = op.fate().is_some_and(|fate| fate.in_doubt());
        match (in_doubt, op.subject()) {
            (true, Some(on)) => Error::OutcomeUnknown {
                doing: op.doing(),
                on,
                target: self.target.to_string(),
                detail: self.trouble.detail(),
            },
            _ => self.trouble.error(op.doing(), &self.target),
        }
    }

    /// Acquires that a server refused because it takes no writes are answered at once: a caller who may wait tries again.
    /// What was sent is undone all the same: it may have been granted before the server took no writes any more (MySQL
    /// makes missing rows in a statement of its own, and a late grant is confirmed in another one). Returns the other
    /// operations, and what an earlier sending may have done.
    fn refuse_takes(&mut self, ops: impl IntoIterator<Item = Op>, fault: &Fault) -> Vec<Op> {
        let mut others = Vec::new();
        for op in ops {
            match &op {
                Op::Take(take) if !take.fate.in_doubt() => {
                    let error = fault.clone().into_error(op.doing(), &self.target);
                    // Nobody waits for it: it may be long until the server takes writes again, and mostly nothing was granted.
                    if take.fate.sent {
                        let late = undo::late(&take.ask, take.fate.doubts, Moment::now());
                        self.pending.push_back(late);
                    }
                    op.fail(error);
                }
                _ => others.push(op),
            }
        }
        others
    }

    /// The same for those that wait for a statement: they need not wait for what is before them.
    fn refuse_waiting_takes(&mut self, fault: &Fault) {
        let ready = self.pending.take_ready();
        let others = self.refuse_takes(ready, fault);
        self.not_sent(others.into_iter());
    }

    /// Answers with an error. An acquire that may have happened is undone.
    fn fail(&mut self, op: Op, error: Error) {
        if let Some(undo) = undo::of(&op, Moment::now()) {
            self.pending.push_back(undo);
        }
        op.fail(error);
    }

    /// The next batch.
    fn pick(&mut self) -> Vec<Op> {
        let now = Moment::now();
        self.give_up_in_time(now);
        self.pending.pick(now)
    }

    async fn execute(&mut self, batch: Vec<Op>) {
        let (mut takes, mut releases) = (Vec::new(), Vec::new());
        let (mut looks, mut records) = (Vec::new(), Vec::new());
        for op in batch {
            match op {
                Op::Take(op) => takes.push(op),
                Op::Release(op) => releases.push(op),
                Op::Look(op) => looks.push(op),
                Op::Record(op) => records.push(op),
                Op::Flush(reply) => drop(reply.send(())), // never picked: `Pending` keeps them apart
            }
        }
        self.refused = false;
        self.read_only = None;
        self.jitter = fastrand::f64();
        self.release(releases).await;
        let (again, mut fresh): (Vec<_>, Vec<_>) = takes.into_iter().partition(|op| op.fate.sent);
        if let Some(fault) = self.read_only.take() {
            // They would be refused, too, and need not wait for the releases.
            self.refuse_takes(fresh.drain(..).map(Op::Take), &fault);
        }
        self.take(fresh).await;
        self.resolve(again).await;
        self.records(records).await;
        for look in looks {
            self.look(look).await;
        }
    }

    /// Whether this batch goes on.
    fn goes_on(&self) -> bool {
        self.link.is_connected() && !self.refused
    }

    /// Takes back operations that were not sent, because the batch ended before their turn.
    fn not_sent(&mut self, ops: impl DoubleEndedIterator<Item = Op>) {
        for op in ops.rev() {
            self.pending.push_front(op);
        }
    }

    /// What becomes of operations whose statement failed. Returns those that are to be sent again in smaller
    /// statements.
    fn failed(&mut self, mut ops: Vec<Op>, fault: Fault) -> Vec<Op> {
        let kind = fault.kind;
        tracing::debug!(target = %self.target, error = %fault, ?kind, count = ops.len(), "statement failed");
        for fate in ops.iter_mut().filter_map(Op::fate_mut) {
            fate.sent = true;
        }
        match kind {
            FaultKind::Disconnected => {
                self.strike(fault);
                ops.iter_mut().for_each(Op::doubt);
                let alone = ops.len() == 1;
                isolate(&mut ops, PATIENT);
                // A forced release names no grant: sent again, it might free the next holder.
                let (forced, ops): (Vec<_>, Vec<_>) = ops.into_iter().partition(Op::is_forced);
                for op in forced {
                    let error = self.gave_up(&op);
                    op.fail(error);
                }
                for op in ops.into_iter().rev() {
                    if alone && op.fate().is_some_and(|fate| fate.breaks >= PATIENT) {
                        self.put_off(op);
                    } else {
                        self.pending.push_front(op);
                    }
                }
            }
            FaultKind::TooLarge if ops.len() > 1 => {
                isolate(&mut ops, 1);
                self.not_sent(ops.into_iter());
            }
            FaultKind::ReadOnly => {
                let ops = self.refuse_takes(ops, &fault);
                self.refuse_waiting_takes(&fault);
                self.read_only = Some(fault.clone());
                self.strike(fault);
                for op in ops {
                    self.put_off(op);
                }
            }
            _ if kind.is_retryable() => {
                self.trouble.refused(fault);
                self.refused = true;
                for op in ops {
                    self.put_off(op);
                }
            }
            _ if ops.len() > 1 => return ops,
            _ => {
                for op in ops {
                    let error = fault.clone().into_error(op.doing(), &self.target);
                    self.fail(op, error);
                }
            }
        }
        Vec::new()
    }

    /// Not now: a row is locked, or the statement lost against another transaction.
    fn put_off(&mut self, op: Op) {
        self.pending.put_off(op, Moment::now(), self.jitter);
    }

    /// A statement succeeded: whatever was wrong is over.
    fn calm(&mut self) {
        self.trouble.calm();
    }
}

/// A connection, and how large the outcomes are that its server takes. (Not through [`Lane::run`]: it is no sign that the
/// trouble is over.) Both are one attempt, so that nobody whose patience ends waits for a server that accepts and is silent.
async fn meet<C: Connector>(
    dial: impl Future<Output = Result<C::Connection, Fault>>,
    patience: Duration,
) -> Result<(C::Connection, usize), Fault> {
    let mut conn = dial.await?;
    let largest = timeout(patience, conn.largest_outcome()).await;
    let largest = largest.unwrap_or_else(|_| Err(Fault::timed_out()))?;
    Ok((conn, largest))
}

/// How often the connection has to break under an operation before that may be its doing.
const PATIENT: u32 = 2;

/// The connection broke under a statement with all of them.
fn isolate(ops: &mut [Op], patient: u32) {
    let together = ops.len();
    for fate in ops.iter_mut().filter_map(Op::fate_mut) {
        fate.broke(together, patient);
    }
}
