//! Judges what leaders did, and what an observer saw.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_recipes::leader::Leader;

/// One act of a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Act {
    term: i64,
    candidate: i64,
    /// By the database's clock, in microseconds.
    at: i64,
}

impl From<(i64, i64, i64)> for Act {
    fn from((term, candidate, at): (i64, i64, i64)) -> Self {
        Self {
            term,
            candidate,
            at,
        }
    }
}

/// A leader that an observer reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) term: i64,
    candidate: i64,
}

impl From<Leader> for Seen {
    fn from(leader: Leader) -> Self {
        Self {
            term: leader.term,
            candidate: leader.candidate.parse().unwrap(),
        }
    }
}

/// A term, as its acts show it.
#[derive(Debug)]
pub(super) struct Term {
    candidates: BTreeSet<i64>,
    first: i64,
    last: i64,
}

/// The terms in which somebody acted.
pub(super) fn terms(acts: &[Act]) -> BTreeMap<i64, Term> {
    let mut terms: BTreeMap<i64, Term> = BTreeMap::new();
    for act in acts {
        let term = terms.entry(act.term).or_insert_with(|| Term {
            candidates: BTreeSet::new(),
            first: act.at,
            last: act.at,
        });
        term.candidates.insert(act.candidate);
        term.first = term.first.min(act.at);
        term.last = term.last.max(act.at);
    }
    terms
}

/// One candidate acts in a term; no act of a term comes after the first act of a later term; the observer saw terms
/// rise, each with the candidate that acted in it. Returns how many terms there were, or what is wrong.
pub(super) fn judge(acts: &[Act], seen: &[Seen]) -> Result<usize, String> {
    let terms = terms(acts);
    for (number, Term { candidates, .. }) in &terms {
        if candidates.len() > 1 {
            return Err(format!(
                "several candidates acted in term {number}: {candidates:?}"
            ));
        }
    }
    let mut latest: Option<(i64, i64)> = None;
    for (number, term) in &terms {
        if let Some((earlier, last)) = latest
            && term.first < last
        {
            return Err(format!(
                "term {number} began {} ms before the last act of term {earlier}",
                (last - term.first) / 1_000
            ));
        }
        latest = Some((*number, term.last));
    }
    for two in seen.windows(2) {
        if two[0].term >= two[1].term {
            return Err(format!(
                "the observer saw {:?}, and then {:?}",
                two[0], two[1]
            ));
        }
    }
    for leader in seen {
        let acted = terms.get(&leader.term).map(|term| &term.candidates);
        if let Some(candidates) = acted.filter(|acted| !acted.contains(&leader.candidate)) {
            return Err(format!(
                "the observer saw {leader:?}, and {candidates:?} acted"
            ));
        }
    }
    Ok(terms.len())
}

/// Histories that it must accept, and others that it must refuse.
pub(crate) fn the_judge_sees_violations() {
    let acts = |all: &[(i64, i64, i64)]| all.iter().copied().map(Act::from).collect::<Vec<_>>();
    let seen = |all: &[(i64, i64)]| {
        let seen = all.iter().copied();
        seen.map(|(term, candidate)| Seen { term, candidate })
            .collect::<Vec<_>>()
    };
    let sound = acts(&[(10, 1, 100), (10, 1, 200), (20, 2, 300), (35, 1, 400)]);
    assert_eq!(judge(&sound, &[]), Ok(3));
    // An observer may miss a term, and may see a leader that does not act.
    let watched = seen(&[(10, 1), (30, 3), (35, 1)]);
    assert_eq!(judge(&sound, &watched), Ok(3));

    let refused = |acts: &[Act], seen: &[Seen], why: &str| {
        let flaw = judge(acts, seen).unwrap_err();
        assert!(flaw.contains(why), "{flaw}");
    };
    // A paused leader wakes up, and acts in the term of the next one: with a later act, or with the first one that it
    // does.
    let late = acts(&[
        (10, 1, 100),
        (20, 2, 300),
        (10, 1, 400_000),
        (20, 2, 500_000),
    ]);
    refused(
        &late,
        &[],
        "term 20 began 399 ms before the last act of term 10",
    );
    let idle = acts(&[(20, 2, 300), (10, 1, 400)]);
    refused(&idle, &[], "term 20 began");
    // Not only the term right before counts.
    let long = acts(&[(10, 1, 100), (20, 2, 300), (30, 3, 400), (20, 2, 401)]);
    refused(&long, &[], "term 30 began");
    // Two candidates have one term.
    let split = acts(&[(10, 1, 100), (10, 2, 200)]);
    refused(&split, &[], "several candidates acted in term 10");
    // An observer that reports a term twice, goes back, or names another candidate.
    for bad in [[(10, 1), (10, 1)], [(20, 2), (10, 1)]] {
        refused(&sound, &seen(&bad), "and then");
    }
    refused(&sound, &seen(&[(20, 1)]), "acted");
}
