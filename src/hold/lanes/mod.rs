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
//!   is, after growing pauses, until the operation's patience ends.
//! - *The statement was refused for good*: the operations of the batch are sent one by one, so that
//!   only the guilty one fails.
//! - *The connection broke*: the outcome of all of them is in doubt. They are sent again on the next
//!   connection; every verb finds what an earlier sending of the same grant did. What cannot be
//!   found out before the patience ends is reported as unknown, and an acquire is undone.
//! - *The caller is gone*: an acquire that was not sent is skipped. One that was sent gives a guard
//!   that nobody receives, and dropping a guard releases.
//! - *The server may still be working on a statement that we gave up on*: an undo that finds nothing to
//!   undo is repeated, with growing pauses, for as long as the lease could last (10 minutes at most).

mod records;
mod statements;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBackoff;
use tokio::select;
use tokio::sync::{mpsc, oneshot};

use super::clock::{Moment, sleep_until};
use super::line::Lines;
use super::link::Link;
use super::op::{Fate, Op, Release, Take};
use super::record::{RecordOp, RecordWork};
use super::retry;
use crate::store::fault::{Fault, FaultKind};
use crate::store::{Connector, ReleaseAsk};
use crate::{Error, Subject};

/// The most operations in one statement.
const MAX_BATCH: usize = 256;
/// The outcomes in one statement have little more than so many bytes: servers limit a statement (MariaDB to 16 MiB).
const MAX_BYTES: usize = 1 << 20;
/// The longest pause before an operation is sent again, and before an undo is repeated.
const MAX_PAUSE: Duration = Duration::from_millis(200);
const MAX_UNDO_PAUSE: Duration = Duration::from_secs(30);
/// How long an undo is repeated.
const MAX_UNDO: Duration = Duration::from_mins(10);

#[derive(Debug)]
pub(crate) struct Lane<C: Connector> {
    pub(crate) link: Link<C>,
    pub(crate) target: Arc<str>,
    queue: mpsc::UnboundedReceiver<Op>,
    pending: VecDeque<Op>,
    /// Operations that wait for a moment before they are sent again.
    later: Vec<(Moment, Op)>,
    flushes: Vec<Flush>,
    /// How many operations have arrived.
    arrived: u64,
    lines: Arc<Lines>,
    /// Why the last statement or connection failed, for messages.
    trouble: Option<Fault>,
    /// The next connection is not made before.
    dial_at: Moment,
    /// A statement of this batch was refused and is to be sent again: what is left of the batch goes
    /// back, so that everybody's patience is looked at before the next wait.
    refused: bool,
    /// `None` while statements succeed: the first connection that breaks is made anew at once.
    backoff: Option<ExponentialBackoff>,
}

/// Somebody waits until everything that has arrived is done.
#[derive(Debug)]
struct Flush {
    reply: oneshot::Sender<()>,
    /// The last operation that it waits for.
    mark: u64,
    /// What was in flight may have left something to undo: everything is waited for twice.
    second: bool,
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
            flushes: Vec::new(),
            arrived: 0,
            lines,
            trouble: None,
            dial_at: Moment::now(),
            backoff: None,
            refused: false,
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
            if !self.pending.is_empty() {
                return true;
            }
            let wake = self.later.iter().map(|(at, _)| *at).min();
            match wake {
                None => match self.queue.recv().await {
                    Some(op) => self.accept(op),
                    None => return false,
                },
                Some(at) => select! {
                    Some(op) = self.queue.recv() => self.accept(op),
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    fn accept(&mut self, mut op: Op) {
        if let Op::Flush(reply) = op {
            self.flushes.push(Flush {
                reply,
                mark: self.arrived,
                second: false,
            });
            return;
        }
        self.arrived += 1;
        if let Some(fate) = op.fate_mut() {
            fate.number = self.arrived;
        }
        self.pending.push_back(op);
    }

    /// Everything that has arrived, or has waited long enough.
    fn take_in(&mut self) {
        let (ready, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(at, _)| at.has_passed());
        self.later = later;
        self.pending.extend(ready.into_iter().map(|(_, op)| op));
        while let Ok(op) = self.queue.try_recv() {
            self.accept(op);
        }
        self.answer_flushes();
    }

    fn answer_flushes(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let waiting = self
            .pending
            .iter()
            .chain(self.later.iter().map(|(_, op)| op));
        // A repeated undo waits for what may never come.
        let waiting = waiting.filter(|op| !matches!(op, Op::Release(op) if op.repeated));
        let oldest = waiting
            .filter_map(|op| Some(op.fate()?.number))
            .min()
            .unwrap_or(u64::MAX);
        for mut flush in std::mem::take(&mut self.flushes) {
            if oldest > flush.mark && !flush.second {
                flush.mark = self.arrived;
                flush.second = true;
            }
            if oldest > flush.mark {
                let _ = flush.reply.send(());
            } else {
                self.flushes.push(flush);
            }
        }
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
            if !self.dial_at.has_passed() {
                sleep_until(self.dial_at.min(give_up)).await;
                continue;
            }
            let attempt = dialing.get_or_insert_with(|| Box::pin(self.link.dial()));
            let made = select! {
                made = attempt => made,
                () = sleep_until(give_up) => continue,
            };
            dialing = None;
            match made {
                Ok(conn) => self.link.put(conn),
                Err(fault) => {
                    tracing::warn!(target = %self.target, error = %fault, "cannot connect");
                    if fault.kind == FaultKind::ReadOnly {
                        let pending = std::mem::take(&mut self.pending);
                        self.pending = self.refuse_takes(pending, &fault).into();
                    }
                    self.strike(fault);
                }
            }
        }
        true
    }

    /// A connection is of no use any more. The first time a new one is made at once, then after
    /// growing pauses, until a statement succeeds.
    fn strike(&mut self, fault: Fault) {
        self.trouble = Some(fault);
        let pause = match &mut self.backoff {
            Some(backoff) => backoff.next().unwrap_or_default(),
            None => Duration::ZERO,
        };
        self.backoff.get_or_insert_with(retry::reconnect);
        self.dial_at = Moment::now() + pause;
    }

    /// Gives up on the operations whose patience has ended, and tells when the next one's does.
    fn expire(&mut self) -> Option<Moment> {
        self.take_in();
        for op in std::mem::take(&mut self.pending) {
            if op.is_abandoned() {
                continue;
            }
            if op.fate().is_some_and(|fate| fate.give_up.has_passed()) {
                self.give_up(op);
            } else {
                self.pending.push_back(op);
            }
        }
        self.answer_flushes();
        self.pending
            .iter()
            .filter_map(|op| Some(op.fate()?.give_up))
            .min()
    }

    fn give_up(&mut self, op: Op) {
        let in_doubt = op.fate().is_some_and(|fate| fate.in_doubt);
        let error = match (in_doubt, op.subject()) {
            (true, Some(on)) => Error::OutcomeUnknown {
                doing: op.doing(),
                on,
                target: self.target.to_string(),
                detail: self.detail(),
            },
            _ => match &self.trouble {
                Some(fault) if fault.kind == FaultKind::ReadOnly => {
                    fault.clone().into_error(op.doing(), &self.target)
                }
                _ => Error::Unreachable {
                    target: self.target.to_string(),
                    detail: self.detail(),
                },
            },
        };
        self.fail(op, error);
    }

    /// Acquires that a server refused because it takes no writes are answered at once: nothing of them happened, and
    /// whoever may wait tries again. Returns the other operations, and what an earlier sending may have done.
    fn refuse_takes(&mut self, ops: impl IntoIterator<Item = Op>, fault: &Fault) -> Vec<Op> {
        let mut others = Vec::new();
        for op in ops {
            match &op {
                Op::Take(take) if !take.fate.in_doubt => {
                    let error = fault.clone().into_error(op.doing(), &self.target);
                    op.fail(error);
                }
                _ => others.push(op),
            }
        }
        others
    }

    /// Answers with an error. An acquire that may have happened is undone.
    fn fail(&mut self, op: Op, error: Error) {
        if let Op::Take(take) = &op
            && take.fate.sent
        {
            self.pending.push_back(undo(take));
        }
        if let Op::Record(RecordOp { work, fate }) = &op
            && let RecordWork::Claim(claim) = work
            && fate.sent
        {
            self.pending.push_back(records::undo(claim));
        }
        op.fail(error);
    }

    fn detail(&self) -> String {
        self.trouble
            .as_ref()
            .map_or_else(|| "no answer in time".into(), ToString::to_string)
    }

    /// The next batch, oldest first: at most one operation per name or record, so that the operations on it
    /// keep their order and never meet in a statement.
    fn pick(&mut self) -> Vec<Op> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut subjects: HashSet<Subject> = HashSet::new();
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
            let first = op.subject().is_none_or(|subject| subjects.insert(subject));
            if op.fate().is_some_and(|fate| fate.give_up.has_passed()) {
                self.give_up(op);
            } else if first && batch.len() < MAX_BATCH && bytes <= MAX_BYTES {
                bytes += records::size(&op);
                batch.push(op);
            } else {
                rest.push_back(op);
            }
        }
        // What giving up has added comes last.
        rest.append(&mut self.pending);
        self.pending = rest;
        batch
    }

    async fn execute(&mut self, batch: Vec<Op>) {
        let (mut takes, mut enters, mut releases) = (Vec::new(), Vec::new(), Vec::new());
        let (mut looks, mut records) = (Vec::new(), Vec::new());
        for op in batch {
            match op {
                Op::Take(op) => takes.push(op),
                Op::Enter(op) => enters.push(op),
                Op::Release(op) => releases.push(op),
                Op::Look(op) => looks.push(op),
                Op::Record(op) => records.push(op),
                Op::Flush(reply) => drop(reply.send(())), // never picked: `accept` keeps them apart
            }
        }
        let (partial, full): (Vec<_>, Vec<_>) = releases.into_iter().partition(|op| op.partial);
        self.refused = false;
        self.release(full).await;
        self.hold(partial, enters).await;
        let (again, fresh): (Vec<_>, Vec<_>) = takes.into_iter().partition(|op| op.fate.sent);
        self.take(fresh).await;
        for op in again {
            self.resolve(op).await;
        }
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

    /// What becomes of operations whose statement failed. Returns those that are to be sent singly.
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
                // A forced release names no grant: sent again, it might free the next holder.
                let (forced, ops): (Vec<_>, Vec<_>) = ops.into_iter().partition(Op::is_forced);
                for op in forced {
                    self.give_up(op);
                }
                self.not_sent(ops.into_iter());
            }
            FaultKind::ReadOnly => {
                let ops = self.refuse_takes(ops, &fault);
                self.strike(fault);
                for op in ops {
                    self.put_off(op);
                }
            }
            _ if kind.is_retryable() => {
                self.trouble = Some(fault);
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

    /// Not now: the row is locked by somebody, or the statement lost against another transaction.
    fn put_off(&mut self, mut op: Op) {
        let longest = match &op {
            Op::Release(op) if op.repeated => MAX_UNDO_PAUSE,
            _ => MAX_PAUSE,
        };
        let tries = op.fate_mut().map_or(0, |fate| {
            fate.tries += 1;
            fate.tries
        });
        self.later
            .push((Moment::now() + retry::again(tries, longest), op));
    }

    /// A statement succeeded: whatever was wrong is over.
    fn calm(&mut self) {
        self.backoff = None;
        self.trouble = None;
    }
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
        repeated: false,
        reply: None,
        // It may have been granted just now; after its TTL it is free by itself.
        fate: Fate {
            in_doubt: take.fate.in_doubt,
            ..Fate::within(take.ask.ttl.min(MAX_UNDO))
        },
    })
}
