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
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New { record, token } => write!(f, "new {record} {token}."),
            Self::Replay { record, token } => write!(f, "replay {record} {token}."),
            Self::Refused { record, token } => write!(f, "refused {record} {token}."),
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
}

impl Verdict {
    pub(super) fn add(&mut self, event: Event) {
        match event {
            Event::New { .. } => self.news += 1,
            Event::Replay { .. } => self.replays += 1,
            Event::Refused { .. } => self.refused += 1,
        }
    }
}

/// Checks that no key has two effects, that every outcome that was told is that of the effect, and that no refused run
/// had one. (A killed process may have had an effect that it did not tell.)
pub(super) fn judge(effects: &[(i64, i64)], events: &[Event]) -> Result<Verdict, String> {
    let mut of_record = HashMap::new();
    for (record, token) in effects {
        if let Some(other) = of_record.insert(*record, *token) {
            return Err(format!("key {record} has two effects: {other} and {token}"));
        }
    }
    let mut verdict = Verdict::default();
    for event in events {
        verdict.add(*event);
        let (Event::New { record, token }
        | Event::Replay { record, token }
        | Event::Refused { record, token }) = *event;
        let has_effect = of_record.get(&record) == Some(&token);
        let must_have = !matches!(event, Event::Refused { .. });
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
    let told = [new, replay, refused];
    let (news, replays, refusals) = (1, 1, 1);
    let verdict = Verdict {
        news,
        replays,
        refused: refusals,
    };
    assert_eq!(judge(&[(1, 10), (2, 20)], &told), Ok(verdict));
    for (effects, events) in [
        (&[(1, 10), (1, 11)][..], &[new][..]),
        (&[], &[new]),
        (&[(1, 11)], &[new]),
        (&[(1, 11)], &[replay]),
        (&[(1, 11)], &[refused]),
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
