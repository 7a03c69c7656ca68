//! Judges which rounds have run, and how often.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// A job and a round in which a machine was killed before its call returned, or lost its lease.
pub(super) type Cut = (i64, i64);

/// A run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effect {
    job: i64,
    round: i64,
    /// How long after the round it began, by the clock of its machine, in milliseconds.
    late: i64,
    /// It has come to its end.
    done: bool,
}

impl From<(i64, i64, i64, i64)> for Effect {
    fn from((job, round, late, done): (i64, i64, i64, i64)) -> Self {
        Self {
            job,
            round,
            late,
            done: done != 0,
        }
    }
}

/// How the rounds went.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// They ran once.
    once: usize,
    /// A machine was killed in them, or lost its lease. They ran in part.
    in_part: usize,
    /// The same. They did not run.
    not_at_all: usize,
    /// They ran once in time, and again on a machine that called so late that the name was free again: it stood still.
    /// (Other work on its processors does that.)
    late: usize,
}

impl Verdict {
    pub(super) fn once(self) -> usize {
        self.once
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            once,
            in_part,
            not_at_all,
            late,
        } = self;
        write!(
            f,
            "{once} ran once, {in_part} in part and {not_at_all} not at all because their machine was killed or had no answer, {late} again on a machine that stood still"
        )
    }
}

/// Every round of these jobs ran once to its end, of the runs that began less than `slack` after it. When a machine
/// was killed or lost its lease in a round, it ran at most once.
pub(super) fn judge(
    effects: &[Effect],
    cut: &BTreeSet<Cut>,
    jobs: Range<i64>,
    rounds: i64,
    slack: Duration,
) -> Result<Verdict, String> {
    let mut of: BTreeMap<Cut, Vec<Effect>> = BTreeMap::new();
    for effect in effects {
        of.entry((effect.job, effect.round))
            .or_default()
            .push(*effect);
    }
    let slack = i64::try_from(slack.as_millis()).map_err(|error| error.to_string())?;
    let mut verdict = Verdict::default();
    for (job, round) in jobs.flat_map(|job| (0..rounds).map(move |round| (job, round))) {
        let is_cut = cut.contains(&(job, round));
        let ran = of.remove(&(job, round)).unwrap_or_default();
        let in_time = ran.iter().filter(|effect| effect.late < slack).count();
        let count = match &ran[..] {
            _ if in_time > 1 => {
                return Err(format!("job {job} ran {in_time} times in round {round}"));
            }
            [] if is_cut => &mut verdict.not_at_all,
            [] => return Err(format!("job {job} did not run in round {round}")),
            [_, _, ..] => &mut verdict.late,
            [one] if one.done => &mut verdict.once,
            [_] if is_cut => &mut verdict.in_part,
            [_] => {
                return Err(format!(
                    "job {job} did not come to its end in round {round}"
                ));
            }
        };
        *count += 1;
    }
    Ok(verdict)
}

/// Runs that it must accept, and others that it must refuse.
pub(crate) fn the_judge_sees_violations() {
    const SLACK: Duration = Duration::from_secs(2);
    let judge = |effects: &[(i64, i64, i64, i64)], cut: &[Cut]| {
        let effects: Vec<_> = effects.iter().copied().map(Effect::from).collect();
        judge(&effects, &cut.iter().copied().collect(), 0..2, 2, SLACK)
    };
    let refused = |effects: &[(i64, i64, i64, i64)], cut: &[Cut], why: &str| {
        let flaw = judge(effects, cut).unwrap_err();
        assert!(flaw.contains(why), "{flaw}");
    };
    let sound = [(0, 0, 3, 1), (0, 1, 4, 1), (1, 0, 1_500, 1), (1, 1, 7, 1)];
    let verdict = Verdict {
        once: 4,
        ..Verdict::default()
    };
    assert_eq!(judge(&sound, &[]), Ok(verdict));
    // Another job's rounds are not judged.
    assert_eq!(
        judge(&[&sound[..], &[(2, 0, 3, 0), (2, 0, 3, 1)]].concat(), &[]),
        Ok(verdict)
    );
    // It ran twice, also when a machine was killed in that round, or is in no hurry.
    for again in [(0, 1, 5, 1), (0, 1, 1_900, 0)] {
        let twice = [&sound[..], &[again]].concat();
        refused(&twice, &[], "job 0 ran 2 times in round 1");
        refused(&twice, &[(0, 1)], "job 0 ran 2 times in round 1");
    }
    // A machine that stood still for longer than the slack cannot be told from a clock that is behind by as much.
    let late = [&sound[..], &[(0, 1, 2_100, 1)]].concat();
    let verdict = Verdict {
        once: 3,
        late: 1,
        ..Verdict::default()
    };
    assert_eq!(judge(&late, &[]), Ok(verdict));
    // A round is left out, or left undone: only a kill explains it, of a machine that was in that round.
    refused(&sound[1..], &[(0, 1)], "job 0 did not run in round 0");
    let undone = [&sound[1..], &[(0, 0, 3, 0)]].concat();
    refused(&undone, &[(1, 0)], "job 0 did not come to its end");
    let verdict = Verdict {
        once: 3,
        not_at_all: 1,
        ..Verdict::default()
    };
    assert_eq!(judge(&sound[1..], &[(0, 0)]), Ok(verdict));
    let verdict = Verdict {
        once: 3,
        in_part: 1,
        ..Verdict::default()
    };
    assert_eq!(judge(&undone, &[(0, 0)]), Ok(verdict));
}
