//! What the processes were told, compared with the effects.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// What a process tells, a line each. Each run of a key has a token of its own, which is its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// This run had the effect.
    New { record: i64, token: i64 },
    /// The run with this token had the effect.
    Replay { record: i64, token: i64 },
    /// This run was refused, and must have no effect.
    Refused { record: i64, token: i64 },
    /// This run was an attempt that another one had replaced, and must have no effect.
    Late { record: i64, token: i64 },
    /// An attempt with this number has begun.
    Begun { record: i64, attempt: i64 },
}

/// A row of the application's: the run with this token, in this attempt (0: in one transaction).
pub(super) type Effect = (i64, i64, i64);

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New { record, token } => write!(f, "new {record} {token}."),
            Self::Replay { record, token } => write!(f, "replay {record} {token}."),
            Self::Refused { record, token } => write!(f, "refused {record} {token}."),
            Self::Late { record, token } => write!(f, "late {record} {token}."),
            Self::Begun { record, attempt } => write!(f, "begun {record} {attempt}."),
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let whole = line.strip_suffix('.');
        let words: Vec<&str> = whole.unwrap_or_default().split(' ').collect();
        let [what, record, token] = words[..] else {
            return Err(format!("half a line: {line:?}")); // of a killed process
        };
        let number = |word: &str| word.parse::<i64>().map_err(|e| format!("{line:?}: {e}"));
        let (record, token) = (number(record)?, number(token)?);
        match what {
            "new" => Ok(Self::New { record, token }),
            "replay" => Ok(Self::Replay { record, token }),
            "refused" => Ok(Self::Refused { record, token }),
            "late" => Ok(Self::Late { record, token }),
            "begun" => Ok(Self::Begun {
                record,
                attempt: token,
            }),
            _ => Err(format!("not an event: {line:?}")),
        }
    }
}

/// How often the processes were told what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) news: usize,
    pub(super) replays: usize,
    pub(super) refused: usize,
    pub(super) late: usize,
}

impl Verdict {
    pub(super) fn add(&mut self, event: Event) {
        match event {
            Event::New { .. } => self.news += 1,
            Event::Replay { .. } => self.replays += 1,
            Event::Refused { .. } => self.refused += 1,
            Event::Late { .. } => self.late += 1,
            Event::Begun { .. } => {}
        }
    }
}

/// Checks that no key has two effects, that every outcome that was told is that of the effect, that no refused or late
/// run had one, and that no attempt had one after the next one had begun. (A killed process may have had an effect
/// that it did not tell.)
pub(super) fn judge(effects: &[Effect], events: &[Event]) -> Result<Verdict, String> {
    let mut of_record = HashMap::new();
    for (record, token, _) in effects {
        if let Some(other) = of_record.insert(*record, *token) {
            return Err(format!("key {record} has two effects: {other} and {token}"));
        }
    }
    let mut last = HashMap::new();
    for event in events {
        if let Event::Begun { record, attempt } = *event {
            let last = last.entry(record).or_insert(attempt);
            *last = attempt.max(*last);
        }
    }
    for (record, _, attempt) in effects {
        let newest = last.get(record).copied().unwrap_or_default();
        if *attempt > 0 && newest > *attempt {
            return Err(format!(
                "the effect of key {record} is that of attempt {attempt}, and attempt {newest} had begun"
            ));
        }
    }
    let mut verdict = Verdict::default();
    for event in events {
        verdict.add(*event);
        let (Event::New { record, token }
        | Event::Replay { record, token }
        | Event::Refused { record, token }
        | Event::Late { record, token }) = *event
        else {
            continue;
        };
        let has_effect = of_record.get(&record) == Some(&token);
        let must_have = !matches!(event, Event::Refused { .. } | Event::Late { .. });
        if has_effect != must_have {
            let effect = of_record.get(&record);
            return Err(format!(
                "{event:?}, and the effect of its key is {effect:?}"
            ));
        }
    }
    Ok(verdict)
}

pub(crate) fn the_judge_sees_violations() {
    let (record, token) = (1, 10);
    let new = Event::New { record, token };
    let replay = Event::Replay { record, token };
    let refused = Event::Refused { record, token: 11 };
    let late = Event::Late { record, token: 12 };
    let begun = |attempt| Event::Begun { record, attempt };
    let told = [begun(1), begun(2), new, replay, refused, late];
    let verdict = Verdict {
        news: 1,
        replays: 1,
        refused: 1,
        late: 1,
    };
    assert_eq!(judge(&[(1, 10, 2), (2, 20, 0)], &told), Ok(verdict));
    for (effects, events) in [
        (&[(1, 10, 0), (1, 11, 0)][..], &[new][..]),
        (&[], &[new]),
        (&[(1, 11, 0)], &[new]),
        (&[(1, 11, 0)], &[replay]),
        (&[(1, 11, 0)], &[refused]),
        (&[(1, 12, 0)], &[late]),
        (&[(1, 10, 1)], &[begun(1), begun(2), new]),
    ] {
        let judged = judge(effects, events);
        assert!(judged.is_err(), "{effects:?}: {events:?}");
    }
    for event in told {
        let line = event.to_string();
        assert_eq!(line.parse(), Ok(event));
        let half = &line[..line.len() - 1];
        assert!(half.parse::<Event>().is_err(), "{half}");
    }
}
