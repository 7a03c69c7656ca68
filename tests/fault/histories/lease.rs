//! The model of a lease, and the operations that the records of a name stand for. The head text of [`super`] explains both.

use std::collections::BTreeMap;
use std::time::Duration;

use super::checker::{Model, Operation, Operations};
use super::event::{Answer, Ask, Grant, Record, Records, is_in_session};

/// How much earlier than its TTL a lease may end by this host's monotonic clock: the database reads another clock, perhaps in
/// milliseconds.
const CLOCKS: Duration = Duration::from_millis(2);

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
            // It may stay open for ever: a grant that no operation saw, together with its end, makes no other answer possible.
            Op::Unseen => None,
        }
    }
}

/// What a history has in it, for the output of the test.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) operations: usize,
    /// Operations without an answer.
    pub(crate) open: usize,
    pub(crate) grants: usize,
    /// Grants that other operations saw, and that no acquire returned.
    pub(crate) hidden: usize,
    /// Grants that ended without an answered release.
    pub(crate) ends: usize,
    /// Busy answers without a holder. They are left out: they say nothing about the name.
    pub(crate) changing: usize,
}

/// The operations of all names.
pub(crate) fn operations(records: &Records, ttl: Duration) -> (Operations<Op>, Counts) {
    let mut counts = Counts::default();
    let of_name = |(name, records): (&String, &Vec<Record>)| {
        let grants = Grants::of(records, ttl);
        (name.clone(), grants.operations(records, &mut counts))
    };
    let operations = records.iter().map(of_name).collect();
    (operations, counts)
}

/// What the history tells about a grant.
#[derive(Debug)]
struct Facts {
    invoked: Duration,
    /// At this moment it had been granted: its acquire had its answer, or another operation had seen the grant.
    known: Duration,
    is_hidden: bool,
    is_released: bool,
    /// Before this moment it cannot have ended without an answered release.
    ends: Duration,
}

/// The grants of a name, by their fences.
struct Grants(BTreeMap<Grant, Facts>);

impl Grants {
    fn of(records: &[Record], ttl: Duration) -> Self {
        let mut grants = Self(BTreeMap::new());
        for record in records {
            if let Some((at, Answer::Granted(fence))) = record.answer {
                let by = record.id;
                // The session may have been renewed long before.
                let shortest = if is_in_session(by) {
                    Duration::ZERO
                } else {
                    ttl.saturating_sub(CLOCKS)
                };
                let facts = Facts {
                    invoked: record.asked,
                    known: at,
                    is_hidden: false,
                    is_released: false,
                    ends: record.asked + shortest,
                };
                grants.0.insert(Grant { fence, by }, facts);
            }
        }
        for record in records {
            grants.take_in(record, records);
        }
        grants
    }

    /// Takes in what a record tells about a grant that was returned before, or never.
    fn take_in(&mut self, record: &Record, records: &[Record]) {
        match (&record.ask, &record.answer) {
            (_, Some((at, Answer::Busy(Some(grant)) | Answer::Held(grant)))) => {
                self.see(*grant, *at, records);
            }
            (Ask::Release(grant), Some((_, Answer::Released))) => {
                self.get(grant).is_released = true;
            }
            // The release may reach the database, whatever the holder is told about it.
            (Ask::Release(grant) | Ask::Drop(grant), _) => {
                let facts = self.get(grant);
                facts.ends = facts.ends.min(record.asked);
            }
            // The holder's deadline is never later than the expiry.
            (Ask::Check(grant), Some((_, Answer::Trusted(remaining)))) => {
                let facts = self.get(grant);
                facts.ends = facts.ends.max(record.asked + *remaining);
            }
            _ => {}
        }
    }

    /// A grant that its acquire returned.
    fn get(&mut self, grant: &Grant) -> &mut Facts {
        self.0.get_mut(grant).expect("its acquire told it first")
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
            counts.operations += 1;
            counts.open += usize::from(record.answer.is_none());
            let answer = record.answer.as_ref().map(|(_, answer)| answer);
            counts.changing += usize::from(answer == Some(&Answer::Busy(None)));
            let was_seen = || self.0.keys().any(|grant| grant.by == record.id);
            let op = match (record.ask, answer) {
                (_, Some(Answer::Busy(Some(grant)) | Answer::Held(grant))) => Op::IsLive(*grant),
                (_, Some(Answer::Free)) => Op::IsFree,
                (Ask::Check(grant), Some(Answer::Trusted(_))) => Op::IsLive(grant),
                (Ask::Release(grant), Some(Answer::Released)) => Op::Released(grant),
                (Ask::TryAcquire | Ask::Acquire | Ask::Barge, None) if !was_seen() => Op::Unseen,
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

/// Whether an acquire may have had a grant that it did not return: it has no answer yet, or its process was paused, found the grant
/// expired when it woke up, and asked again or called the name busy.
fn may_have_hidden(record: &Record) -> bool {
    let answer = record.answer.as_ref().map(|(_, answer)| answer);
    match record.ask {
        Ask::Acquire | Ask::Barge => true,
        // When its session has ended meanwhile, it asks again in another one.
        Ask::TryAcquire if is_in_session(record.id) => true,
        Ask::TryAcquire => matches!(answer, None | Some(Answer::Busy(None))),
        _ => false,
    }
}
