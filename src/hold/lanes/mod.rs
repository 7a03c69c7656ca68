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

mod statements;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tokio::select;
use tokio::sync::mpsc;

use super::clock::{Moment, sleep_until};
use super::line::Lines;
use super::link::Link;
use super::op::{Fate, Op, Release, Take};
use super::retry;
use crate::store::fault::{Fault, FaultKind};
use crate::store::{Connector, ReleaseAsk};
use crate::{Error, Name};

/// The most operations in one statement.
const MAX_BATCH: usize = 256;

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

    async fn run<T>(
        &mut self,
        verb: impl AsyncFnOnce(&mut C::Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let bound = self.link.patience();
        self.link.run(bound, verb).await
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
        reply: None,
        // It may have been granted just now; after its TTL it is free by itself.
        fate: Fate::within(take.ask.ttl),
    })
}
