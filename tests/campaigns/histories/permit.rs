//! The model of read/write locks and semaphores, and the operations that the records of a name stand for. The head
//! text of [`super`] explains both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Primitive;
use super::checker::{Model, Operation};
use super::event::{Answer, Ask, Record, Share};
use super::grants::{Counts, Grants};

/// A name under permits.
#[derive(Debug)]
pub(crate) enum Permits {}

/// Of a semaphore.
pub(crate) const CAPACITY: u32 = 3;
/// Of a read/write lock.
const ALL: u32 = 1_000_000;

impl Share {
    pub(crate) fn weight(self) -> u32 {
        match self {
            Self::Read => 1,
            Self::Write => ALL,
            Self::Weight(weight) => weight,
        }
    }

    pub(crate) fn capacity(self) -> u32 {
        match self {
            Self::Read | Self::Write => ALL,
            Self::Weight(_) => CAPACITY,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The greatest fence so far. Of a read/write lock: that of the last write, or the one that its row began with. 0:
    /// unknown.
    fence: i64,
    /// The weights of the live permits, by the numbers of their acquires.
    live: BTreeMap<u64, u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Granted {
        by: u64,
        share: Share,
        fence: i64,
    },
    Released(u64),
    /// The permit ends, and no caller gets an answer.
    Ends(u64),
    /// Its guard says so.
    IsLive(u64),
    Downgraded(u64),
    /// A downgrade without an answer.
    MayDowngrade(u64),
    Upgraded {
        by: u64,
        fence: i64,
        /// It was a writer all the time: a downgrade before that had no answer, and did not take effect.
        was_writer: bool,
    },
    /// A write that no caller got an answer to, whose fence readers have. It may be one by an upgrade of these
    /// permits.
    Hidden {
        fence: i64,
        upgrading: BTreeSet<u64>,
    },
}

impl State {
    fn is_alone(&self, by: u64) -> bool {
        self.live.len() == 1 && self.live.contains_key(&by)
    }

    /// If `may`: `by` has this weight now, and the last fence is this one.
    fn then(&self, may: bool, by: u64, weight: u32, fence: i64) -> Option<Self> {
        let mut next = Self {
            fence,
            live: self.live.clone(),
        };
        next.live.insert(by, weight);
        may.then_some(next)
    }
}

impl Model for Permits {
    type State = State;
    type Op = Op;

    fn step(state: &State, op: &Op) -> Option<State> {
        let is_live = |by| state.live.contains_key(by);
        match op {
            Op::Granted { by, share, fence } => {
                let used: u32 = state.live.values().sum();
                let fits = used + share.weight() <= share.capacity();
                let in_order = match share {
                    Share::Read => *fence == state.fence || state.fence == 0,
                    Share::Write | Share::Weight(_) => *fence > state.fence,
                };
                state.then(fits && in_order, *by, share.weight(), *fence)
            }
            Op::Released(by) | Op::Ends(by) => {
                let mut next = state.clone();
                next.live.remove(by).map(|_| next)
            }
            Op::IsLive(by) => is_live(by).then(|| state.clone()),
            Op::Downgraded(by) => state.then(is_live(by), *by, 1, state.fence),
            Op::MayDowngrade(by) if is_live(by) => state.then(true, *by, 1, state.fence),
            Op::MayDowngrade(_) => Some(state.clone()),
            Op::Upgraded {
                by,
                fence,
                was_writer,
            } => {
                let in_order = if *was_writer {
                    *fence == state.fence
                } else {
                    *fence > state.fence
                };
                state.then(state.is_alone(*by) && in_order, *by, ALL, *fence)
            }
            Op::Hidden { fence, upgrading } => {
                let by_upgrade = || upgrading.iter().any(|by| state.is_alone(*by));
                let may = *fence > state.fence && (state.live.is_empty() || by_upgrade());
                may.then(|| State {
                    fence: *fence,
                    live: state.live.clone(),
                })
            }
        }
    }
}

impl Primitive for Permits {
    fn operations(records: &[Record], ttl: Duration, counts: &mut Counts) -> Vec<Operation<Op>> {
        let mut operations = Vec::new();
        let mut writes = Writes::default();
        for record in records {
            writes.take_in(record);
            if let Some((op, answered)) = told(record, &mut writes) {
                operations.push(Operation {
                    op,
                    invoked: record.asked,
                    answered: Some(answered),
                });
            }
        }
        let grants = Grants::returned(records, ttl);
        counts.grants += grants.0.len();
        for (grant, facts) in grants.0.iter().filter(|(_, facts)| !facts.is_released) {
            counts.ends += 1;
            operations.push(Operation {
                op: Op::Ends(grant.by),
                invoked: facts.ends,
                // Nobody else sees the permit: when it ends at once, all is possible that is possible when it ends
                // later.
                answered: Some(facts.ends.max(facts.told)),
            });
        }
        let hidden = writes.hidden();
        counts.hidden += hidden.len();
        operations.extend(hidden);
        let of = |ops: fn(&Op) -> bool| operations.iter().filter(|o| ops(&o.op)).count();
        counts.downgrades += of(|op| matches!(op, Op::Downgraded(_)));
        counts.upgrades += of(|op| matches!(op, Op::Upgraded { .. }));
        operations
    }
}

/// What a record says, and the moment until which it took effect.
fn told(record: &Record, writes: &mut Writes) -> Option<(Op, Duration)> {
    let by = record.id;
    let answer = record.answer.as_ref().map(|(_, answer)| answer);
    let op = match (record.ask, answer) {
        (Ask::TryPermit(share) | Ask::Permit(share), Some(&Answer::Granted(fence))) => {
            Op::Granted { by, share, fence }
        }
        (Ask::Check(grant), Some(Answer::Trusted(_))) => Op::IsLive(grant.by),
        (Ask::Release(grant), Some(Answer::Released)) => Op::Released(grant.by),
        (Ask::Downgrade(grant), Some(Answer::Downgraded)) => {
            writes.writers.remove(&grant.by);
            Op::Downgraded(grant.by)
        }
        // Whatever is possible beside a writer is possible beside a reader: it counts as one at once.
        (Ask::Downgrade(grant), _) => return Some((Op::MayDowngrade(grant.by), record.asked)),
        (Ask::Upgrade(grant), Some(&Answer::Upgraded(fence))) => Op::Upgraded {
            by: grant.by,
            fence,
            was_writer: writes.writers.insert(grant.by, fence) == Some(fence),
        },
        _ => return None,
    };
    let (answered, _) = record.answer.as_ref()?;
    Some((op, *answered))
}

/// The fences of a read/write lock, and who may have written without an answer.
#[derive(Default)]
struct Writes {
    /// The fences of those that have not been downgraded with an answer, by the numbers of their acquires.
    writers: BTreeMap<u64, i64>,
    known: BTreeSet<i64>,
    /// Readers' fences: the first moment at which each was known.
    read: BTreeMap<i64, Duration>,
    /// Each fence, and the moment before which it was not given.
    given: Vec<(i64, Duration)>,
    unanswered: Vec<Unanswered>,
    upgrading: BTreeSet<u64>,
}

/// An operation that may have written without an answer.
struct Unanswered {
    asked: Duration,
    until: Duration,
    /// Its answer has this fence: an earlier one is smaller.
    below: i64,
}

impl Unanswered {
    /// For ever.
    fn from(asked: Duration) -> Self {
        Self {
            asked,
            until: Duration::MAX,
            below: i64::MAX,
        }
    }
}

impl Writes {
    fn take_in(&mut self, record: &Record) {
        let answer = record.answer.as_ref().map(|(at, answer)| (*at, answer));
        match (record.ask, answer) {
            (Ask::TryPermit(Share::Read) | Ask::Permit(Share::Read), answer) => {
                if let Some((at, Answer::Granted(fence))) = answer {
                    let known = self.read.entry(*fence).or_insert(at);
                    *known = at.min(*known);
                    self.given.push((*fence, record.asked));
                }
            }
            (Ask::TryPermit(Share::Write) | Ask::Permit(Share::Write), answer) => {
                let mut unanswered = Unanswered::from(record.asked);
                match answer {
                    // It may leave the queue after its answer.
                    Some((_, Answer::Busy(_))) if record.ask == Ask::Permit(Share::Write) => {}
                    Some((at, _)) => unanswered.until = at,
                    None => {}
                }
                if let Some((_, Answer::Granted(fence))) = answer {
                    unanswered.below = *fence;
                    self.writers.insert(record.id, *fence);
                    self.known.insert(*fence);
                    self.given.push((*fence, record.asked));
                }
                self.unanswered.push(unanswered);
            }
            (Ask::Upgrade(_), Some((_, Answer::Upgraded(fence)))) => {
                self.known.insert(*fence);
                self.given.push((*fence, record.asked));
            }
            (Ask::Upgrade(_), Some((_, Answer::Busy(_)))) => {}
            (Ask::Upgrade(grant), _) => {
                self.upgrading.insert(grant.by);
                self.unanswered.push(Unanswered::from(record.asked));
            }
            _ => {}
        }
    }

    /// The writes without an answer. Readers have a fence that no answered write had: then there was one. (The
    /// smallest fence may be the row's first.)
    fn hidden(&self) -> Vec<Operation<Op>> {
        let first = self.given.iter().map(|(fence, _)| *fence).min();
        let mut hidden = Vec::new();
        for (&fence, &known) in &self.read {
            if self.known.contains(&fence) || first == Some(fence) {
                continue;
            }
            let smaller = self.given.iter().filter(|(other, _)| *other < fence);
            let since = smaller.map(|(_, asked)| *asked).max().unwrap_or_default();
            let begun = self
                .unanswered
                .iter()
                .filter(|one| one.asked <= known && one.until >= since && one.below > fence);
            // Without such an operation nobody gave the reader its fence, and the checker refuses it.
            let Some(asked) = begun.clone().map(|one| one.asked).min() else {
                continue;
            };
            let until = begun.map(|one| one.until).max().unwrap_or(known);
            hidden.push(Operation {
                op: Op::Hidden {
                    fence,
                    upgrading: self.upgrading.clone(),
                },
                invoked: asked.max(since),
                answered: Some(known.min(until)),
            });
        }
        hidden
    }
}
