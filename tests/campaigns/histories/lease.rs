//! The model of a lease, and the operations that the records of a name stand for. The head text of [`super`] explains
//! both.

use std::time::Duration;

use super::Primitive;
use super::checker::{Model, Operation};
use super::event::{Answer, Ask, Grant, Record, is_in_session};
use super::grants::{Counts, Facts, Grants};

/// A name under leases.
#[derive(Debug)]
pub(crate) enum Lease {}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The greatest fence so far.
    greatest: i64,
    live: Option<Grant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Granted(Grant),
    Released(Grant),
    /// The lease ends, and no caller gets an answer: it expires, its guard was dropped, its acquire is undone.
    Ends(Grant),
    /// The grant was seen: by its guard, by another acquire, by an inspection.
    IsLive(Grant),
    IsFree,
    /// An acquire without an answer, whose grant no operation saw.
    Unseen,
}

impl Primitive for Lease {
    fn operations(records: &[Record], ttl: Duration, counts: &mut Counts) -> Vec<Operation<Op>> {
        Grants::of(records, ttl).operations(records, counts)
    }
}

impl Model for Lease {
    type State = State;
    type Op = Op;

    fn step(state: &State, op: &Op) -> Option<State> {
        let freed = State {
            live: None,
            ..state.clone()
        };
        match *op {
            Op::Granted(grant) => {
                let may = state.live.is_none() && grant.fence > state.greatest;
                may.then_some(State {
                    greatest: grant.fence,
                    live: Some(grant),
                })
            }
            Op::Released(grant) | Op::Ends(grant) => (state.live == Some(grant)).then_some(freed),
            Op::IsLive(grant) => (state.live == Some(grant)).then(|| state.clone()),
            Op::IsFree => state.live.is_none().then(|| state.clone()),
            // It may stay open for ever: a grant that no operation saw, together with its end, makes no other answer
            // possible.
            Op::Unseen => None,
        }
    }
}

impl Grants {
    fn of(records: &[Record], ttl: Duration) -> Self {
        let mut grants = Self::returned(records, ttl);
        for record in records {
            if let Some((at, Answer::Busy(Some(grant)) | Answer::Held(grant))) = record.answer {
                grants.see(grant, at, records);
            }
        }
        grants
    }

    /// The grant was seen, by an operation that was answered at `at`.
    fn see(&mut self, grant: Grant, at: Duration, records: &[Record]) {
        if let Some(facts) = self.0.get_mut(&grant) {
            facts.known = facts.known.min(at);
            return;
        }
        let acquire = records.iter().find(|record| record.id == grant.by);
        // Without such an acquire there is no grant, and the checker refuses what was seen.
        if let Some(acquire) = acquire.filter(|record| may_have_hidden(record)) {
            let answered = match acquire.answer {
                // It may leave the queue after its answer.
                Some((_, Answer::Busy(_))) if acquire.ask == Ask::Acquire => at,
                Some((answered, _)) => answered,
                None => at,
            };
            let facts = Facts {
                invoked: acquire.asked,
                known: at.min(answered),
                told: answered,
                is_hidden: true,
                is_released: false,
                // A dropped acquire is undone at once.
                ends: acquire.asked,
            };
            self.0.insert(grant, facts);
        }
    }

    fn operations(&self, records: &[Record], counts: &mut Counts) -> Vec<Operation<Op>> {
        let mut operations = Vec::new();
        for record in records {
            let answer = record.answer.as_ref().map(|(_, answer)| answer);
            let was_seen = || self.0.keys().any(|grant| grant.by == record.id);
            let op = match (record.ask, answer) {
                (_, Some(Answer::Busy(Some(grant)) | Answer::Held(grant))) => Op::IsLive(*grant),
                (_, Some(Answer::Free)) => Op::IsFree,
                (Ask::Check(grant), Some(Answer::Trusted(_))) => Op::IsLive(grant),
                (Ask::Release(grant), Some(Answer::Released)) => Op::Released(grant),
                (Ask::TryAcquire | Ask::Acquire, None) if !was_seen() => Op::Unseen,
                _ => continue,
            };
            operations.push(Operation {
                op,
                invoked: record.asked,
                answered: record.answer.as_ref().map(|(at, _)| *at),
            });
        }
        // When a grant with a greater fence is known, this one has ended.
        let mut greater_known = Duration::MAX;
        for (&grant, facts) in self.0.iter().rev() {
            counts.grants += 1;
            counts.hidden += usize::from(facts.is_hidden);
            counts.ends += usize::from(!facts.is_released);
            operations.push(Operation {
                op: Op::Granted(grant),
                invoked: facts.invoked,
                answered: Some(facts.known),
            });
            if !facts.is_released {
                let over = greater_known < Duration::MAX && greater_known >= facts.ends;
                operations.push(Operation {
                    op: Op::Ends(grant),
                    invoked: facts.ends,
                    answered: over.then_some(greater_known),
                });
            }
            greater_known = greater_known.min(facts.known);
        }
        operations
    }
}

/// Whether an acquire may have had a grant that it did not return: it has no answer yet, or its process was paused,
/// found the grant expired when it woke up, and asked again or called the name busy.
fn may_have_hidden(record: &Record) -> bool {
    let answer = record.answer.as_ref().map(|(_, answer)| answer);
    match record.ask {
        Ask::Acquire => true,
        // When its session has ended meanwhile, it asks again in another one.
        Ask::TryAcquire if is_in_session(record.id) => true,
        Ask::TryAcquire => matches!(answer, None | Some(Answer::Busy(None))),
        _ => false,
    }
}
