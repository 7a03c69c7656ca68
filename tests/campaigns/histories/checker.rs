//! Asks the checker of `todc-utils` whether a history is linearizable. It searches for an order of the operations in
//! which each takes effect at one moment between its invocation and its answer, and in which the model allows every
//! one of them.
//!
//! The crate knows no open operations: each call needs a response. Here an open operation gets one after all others.
//! In between stands the operation [`Entry::Over`], which comes after every answer: from there on all open operations
//! are allowed, and change nothing. So an open operation takes effect at any moment after its invocation, or never.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rowlock_test::patience;
use todc_utils::{Action, History, Specification, WGLChecker};

/// How many operations a refusal shows.
const SHOWN: usize = 16;

/// How one name of a primitive behaves when nothing happens at the same time.
pub(crate) trait Model: 'static {
    type State: Clone + Eq + Hash + Debug + Default;
    type Op: Clone + Debug + Send + 'static;

    /// The state after the operation; `None` if the operation, with this answer, is not possible in this state.
    fn step(state: &Self::State, op: &Self::Op) -> Option<Self::State>;
}

/// An operation of the history. It is open when it has no answer.
#[derive(Debug, Clone)]
pub(crate) struct Operation<Op> {
    pub(crate) op: Op,
    pub(crate) invoked: Duration,
    pub(crate) answered: Option<Duration>,
}

/// The operations on each name. Names are independent: each has a history of its own.
pub(crate) type Operations<Op> = BTreeMap<String, Vec<Operation<Op>>>;

#[derive(Debug, Clone)]
enum Entry<Op> {
    Of(Op),
    Over,
}

/// The model, as the crate wants it. `None` is the state after [`Entry::Over`].
struct Closed<M>(PhantomData<M>);

impl<M: Model> Specification for Closed<M> {
    type State = Option<M::State>;
    type Operation = Entry<M::Op>;

    fn init() -> Self::State {
        Some(M::State::default())
    }

    fn apply(entry: &Self::Operation, state: &Self::State) -> (bool, Self::State) {
        match (entry, state) {
            (Entry::Of(op), Some(state)) => match M::step(state, op) {
                Some(next) => (true, Some(next)),
                None => (false, Some(state.clone())),
            },
            (_, None) | (Entry::Over, _) => (true, None),
        }
    }
}

/// Checks every name, and returns how long that took.
///
/// # Errors
///
/// The name whose history was refused, and its operations before the first answer that cannot be.
pub(crate) fn check<M: Model>(operations: Operations<M::Op>) -> Result<Duration, String> {
    let (sender, verdict) = mpsc::channel();
    let started = Instant::now();
    std::thread::spawn(move || {
        let mut refusals = operations
            .iter()
            .filter(|(_, history)| !is_linearizable::<M>(history))
            .map(|(name, history)| refusal::<M>(name, history));
        let _ = sender.send(refusals.next().map_or(Ok(()), Err));
    });
    let verdict = verdict.recv_timeout(patience()).expect("a verdict in time");
    verdict.map(|()| started.elapsed())
}

fn is_linearizable<M: Model>(history: &[Operation<M::Op>]) -> bool {
    let mut ends = Vec::with_capacity(2 * history.len());
    for (process, operation) in history.iter().enumerate() {
        let entry = || Entry::Of(operation.op.clone());
        ends.push((operation.invoked, false, process, Action::Call(entry())));
        if let Some(answered) = operation.answered {
            ends.push((answered, true, process, Action::Response(entry())));
        }
    }
    // What happens at the same nanosecond overlaps: the calls come first.
    ends.sort_by_key(|&(at, is_response, process, _)| (at, is_response, process));
    let mut actions: Vec<_> = ends
        .into_iter()
        .map(|(_, _, process, action)| (process, action))
        .collect();
    actions.push((history.len(), Action::Call(Entry::Over)));
    actions.push((history.len(), Action::Response(Entry::Over)));
    for (process, operation) in history.iter().enumerate() {
        if operation.answered.is_none() {
            let entry = Entry::Of(operation.op.clone());
            actions.push((process, Action::Response(entry)));
        }
    }
    WGLChecker::<Closed<M>>::is_linearizable(History::from_actions(actions))
}

/// The history as it was known at `time`: what is answered later is open.
fn until<Op: Clone>(history: &[Operation<Op>], time: Duration) -> Vec<Operation<Op>> {
    let begun = history.iter().filter(|operation| operation.invoked <= time);
    let known = begun.map(|operation| Operation {
        answered: operation.answered.filter(|answered| *answered <= time),
        ..operation.clone()
    });
    known.collect()
}

/// Finds the first answer that cannot be, and shows the operations before it.
fn refusal<M: Model>(name: &str, history: &[Operation<M::Op>]) -> String {
    let mut answers: Vec<Duration> = history.iter().filter_map(|o| o.answered).collect();
    answers.sort_unstable();
    let first = answers.partition_point(|&time| is_linearizable::<M>(&until(history, time)));
    let time = answers.get(first).copied().unwrap_or(Duration::MAX);
    let mut known = until(history, time);
    known.sort_by_key(|operation| operation.answered.unwrap_or(operation.invoked));
    let mut text = format!(
        "{name}: not linearizable. Its last operations, in ms before the answer that cannot be:"
    );
    let before = |at: Duration| (time.saturating_sub(at)).as_secs_f64() * 1e3;
    for operation in known.iter().rev().take(SHOWN).rev() {
        let answered = operation
            .answered
            .map_or("open".to_owned(), |at| format!("{:.3}", before(at)));
        let invoked = before(operation.invoked);
        write!(
            text,
            "\n  {invoked:>10.3} to {answered:>8}  {:?}",
            operation.op
        )
        .unwrap();
    }
    text
}
